//! A serving core without a daemon, for commands. Like the daemon's, its models run in sandboxed processes.

use std::fs::Metadata;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt as _;

use ledge_base::telemetry::system::MachineMemory;
use ledge_features::FeatureStore;
use ledge_features::registry::Registry;
use ledge_identity::sealing::Sealer;
use ledge_isolation::{ChildSettings, ChildStarter, Isolation};
use ledge_models::serving::Serving;
use ledge_service::audit_event::AuditSink;

use super::serving_core;
use crate::config::Config;
use crate::scratch::ScratchFolder;

/// The serving core of a command that runs without a daemon.
#[derive(Debug)]
pub struct Standalone {
    serving: Serving,
    /// The files of the processes of its models, where the cache is not this user's; removed with this.
    _scratch: Option<ScratchFolder>,
}

impl Standalone {
    /// A serving core of this program. Its feature store has the declarations and no values, which belong to the
    /// daemon.
    pub fn new(config: &Config, audit: AuditSink) -> Self {
        Self::with_starter(config, audit, ChildStarter::of_command(&config.state.path))
    }

    /// The same, with another starter of the processes of its models.
    pub fn with_starter(config: &Config, audit: AuditSink, starter: ChildStarter) -> Self {
        // Mistakes in the declarations are reported where they matter, by the daemon and `config check`.
        let registry = Registry::load(&config.features.views, &config.features.path).unwrap_or_default();
        // Only the daemon creates the cache, so that a command that only reads leaves nothing behind. And only the
        // owner of a compiled model may read it: root would leave files that the daemon of another user cannot use.
        let is_own = |metadata: Metadata| metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw();
        let cache = Some(&config.runtimes.cache).filter(|cache| std::fs::metadata(cache).is_ok_and(is_own));
        // The first process makes it.
        let scratch = if cache.is_some() { None } else { ScratchFolder::planned().ok() };
        let folder = cache.map(|cache| serving_core::instances_folder(cache));
        let folder = folder.or_else(|| scratch.as_ref().map(|scratch| scratch.path().to_owned()));
        let children = ChildSettings {
            starter: match &folder {
                Some(_) => starter,
                None => ChildStarter::Unavailable("the system returns no random numbers".into()),
            },
            folder: folder.unwrap_or_default(),
            // Only the daemon opens encrypted models.
            memory_folder: None,
            content_bytes: config.http.counted_memory_bytes(),
            memory_bytes: MachineMemory::limit_of_process(),
            is_yielding: false,
            is_trial: false,
        };
        // Each model runs in a separate process, so it needs no trial before, and a crash affects no other model.
        let mut config = config.clone();
        config.runtimes.isolation = Isolation::Own.into();
        let runtimes = serving_core::runtimes(&config);
        let features = FeatureStore::without_values(&config.features, registry);
        let serving =
            serving_core::serving(&config, runtimes, features, audit, Sealer::none(), cache.cloned(), children);
        Self { serving, _scratch: scratch }
    }
}

impl Deref for Standalone {
    type Target = Serving;

    fn deref(&self) -> &Serving {
        &self.serving
    }
}
