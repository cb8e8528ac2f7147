//! Prevents a model that crashes the process from being loaded at each start: gives the repository the record of loads,
//! and the trials in a separate process that updates have.

use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ledge_base::telemetry::system::boot_id;
use ledge_engine::Runtimes;
use ledge_models::repository::attempts::TrialFailure;
use ledge_models::repository::attempts::log::AttemptLog;
use ledge_models::repository::{Repository, SeparateTrial, VersionOnDisk};
use ledge_service::audit_event::{AuditEvent, AuditSink};
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;
use ledge_updates::preflight::{self, PreflightError, PreflightSettings};

use crate::config::Config;

struct LoadTrial(PreflightSettings);

impl SeparateTrial for LoadTrial {
    fn run(&self, version: VersionOnDisk, runtimes: Runtimes) -> BoxFuture<'static, Result<(), TrialFailure>> {
        let settings = PreflightSettings { runtimes, ..self.0.clone() };
        let finding = |error| match error {
            PreflightError::Failed(reason) => TrialFailure::Failed(reason.to_string()),
            PreflightError::Interrupted(reason) | PreflightError::Postponed(reason) => {
                TrialFailure::Interrupted(reason.to_string())
            }
        };
        async move { preflight::run_version(&settings, version).await.map_err(finding) }.boxed()
    }
}

/// Reads the record of the last process, reports the models that ended it, and records each load from here on.
pub fn guard(repository: &Repository, config: &Config, trials: PreflightSettings, audit: &AuditSink) {
    let Some(boot) = boot_id(Path::new("/")) else {
        tracing::warn!(
            "the kernel gives no boot id (/proc/sys/kernel/random/boot_id): a model that crashes the process is loaded \
             again at each start"
        );
        return;
    };
    let (attempts, to_blame) = AttemptLog::open(&config.state.path, &boot);
    for suspect in to_blame {
        let (model, version, suspended) = (&suspect.model, suspect.version, suspect.suspension.is_some());
        tracing::error!(
            %model,
            %version,
            suspended,
            reason = %suspect,
            "the process ended while a model was loaded or first run"
        );
        if suspect.alone > 0 {
            audit.record_own(AuditEvent::ModelCrashed { model: model.clone(), version, suspended });
        }
    }
    // On as many cores as the load during which the process ended.
    let trials = PreflightSettings { threads: config.runtimes.threads, ..trials };
    repository.guard_loads(attempts, Box::new(LoadTrial(trials)));
}

/// Tries the suspended models whenever one is due, until the shutdown.
pub fn spawn(repository: &Repository, readiness: &Arc<Readiness>, shutdown: &Shutdown) {
    let (repository, ready, stop) = (repository.clone(), readiness.clone(), shutdown.clone());
    shutdown.spawn(async move {
        let work = async {
            ready.wait().await;
            repository.try_suspended().await;
        };
        tokio::select! {
            () = work => {}
            () = stop.requested() => {}
        }
    });
}
