//! The serving core: the models of the configured repository, and the engine that runs them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ledge_engine::Runtimes;
use ledge_engine::cores::CpuTopology;
use ledge_features::FeatureStore;
use ledge_identity::sealing::Sealer;
use ledge_isolation::ChildSettings;
use ledge_models::repository::profile::RunProfiles;
use ledge_models::repository::{ModelDefaults, ModelFolders, Repository};
use ledge_models::scheduling::engine::InferScheduler;
use ledge_models::serving::{Serving, ServingLimits};
use ledge_service::audit_event::AuditSink;
use ledge_updates::runtime_dirs;

use crate::config::Config;

/// The runtimes of this box, including those that were installed as releases.
pub fn runtimes(config: &Config) -> Runtimes {
    Runtimes::with_own_folders(config.runtimes.dir.clone(), &runtime_dirs::active(&config.updates.path))
}

/// The folder with the files of the processes of models.
pub fn instances_folder(cache: &Path) -> PathBuf {
    cache.join(".instances")
}

/// The serving core over the configured repository. Compiled models are kept in `cache_dir`.
pub fn serving(
    config: &Config,
    runtimes: Runtimes,
    features: FeatureStore,
    audit: AuditSink,
    sealer: Sealer,
    cache_dir: Option<PathBuf>,
    children: ChildSettings,
) -> Serving {
    let budget = CpuTopology::read().budget(config.runtimes.threads);
    let seconds = config.runtimes.keep_alive_s;
    let defaults = ModelDefaults {
        keep_alive: (seconds > 0).then(|| Duration::from_secs(seconds)),
        max_queue_size: config.serving.max_queue_size,
        timeout: config.serving.default_timeout(),
        // Next to the box's identity, not in the cache, which may be emptied at any time.
        profiles: RunProfiles::new(
            // Only where a daemon has run before.
            config.runtimes.cache.is_dir().then_some(config.state.path.as_path()),
            budget.len(),
        ),
        measure: config.runtimes.measure,
        cache_dir,
        isolation: config.runtimes.isolation.isolation,
        audit: audit.clone(),
        sealer,
    };
    let sources = ModelFolders::of(&config.repository);
    let megabytes = config.runtimes.memory_mb;
    let engine = InferScheduler::new(runtimes, budget, (megabytes > 0).then_some(megabytes << 20), children);
    let repository = Repository::new(sources, engine, defaults, config.repository.parallel_loads, audit.clone());
    let limits = ServingLimits {
        max_pixels: config.http.max_pixels,
        cache_bytes: config.response_cache.max_bytes,
        quota: config.quota.limits(),
        batch_windows: config.serving.batch_windows.clone(),
        memory_bytes: config.http.counted_memory_bytes(),
    };
    Serving::new(repository, features, audit, &limits)
}
