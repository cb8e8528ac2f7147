//! Jobs as a part of the daemon: their section of the configuration, routes, metrics and task.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ledge_base::toml_check::ValueProblem;
use ledge_identity::access::CallerAccess;
use ledge_identity::sealing::{Rekey, RekeyCounts};
use ledge_models::serving::Serving;
use ledge_part::check::Finding;
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::{BoundRoute, bind};
use ledge_part::section::{ConfigSection, DoctorContext};
use ledge_part::{PartEnvironment, Subsystem};
use prometheus_client::encoding::DescriptorEncoder;

use crate::config::JobsConfig;
use crate::http::{JobsHttpState, ROUTES};
use crate::queue::JobQueue;
use crate::runner::JobRunner;
use crate::store::JobStore;
use crate::{doctor, metrics};

impl ConfigSection for JobsConfig {
    fn resolve(&mut self, root: &Path) {
        self.resolve_paths(root);
    }

    fn problems(&self) -> Vec<ValueProblem> {
        self.mistakes()
    }

    fn doctor(&self, context: &DoctorContext<'_>) -> Vec<Finding> {
        doctor::checks(context)
    }
}

/// See the module.
#[derive(Debug)]
pub struct JobsPart {
    pub queue: JobQueue,
    pub serving: Serving,
    /// The longest file of a job, in bytes.
    pub file_bytes_max: usize,
}

impl JobsPart {
    /// Reads the jobs of the folder, which keeps those that have ended for the time `kept`. Without it the rest of the daemon
    /// works, so an unreadable folder is an error only of this part.
    pub fn open(
        config: &JobsConfig,
        environment: &PartEnvironment,
        serving: &Serving,
        file_bytes_max: usize,
        kept: Duration,
    ) -> Option<Self> {
        match JobQueue::open(config, kept, environment.sealer.clone(), environment.audit.clone()) {
            Ok(queue) => Some(Self { queue, serving: serving.clone(), file_bytes_max }),
            Err(error) => {
                let folder = config.path.display();
                tracing::error!(name: "jobs.unreadable", %folder, %error, "the folder of jobs cannot be read");
                None
            }
        }
    }
}

impl Subsystem for JobsPart {
    fn name(&self) -> &'static str {
        "jobs"
    }

    fn routes(&self, context: &HandlerContext) -> Vec<BoundRoute> {
        let (queue, serving) = (self.queue.clone(), self.serving.clone());
        bind(ROUTES, &JobsHttpState { queue, serving, context: context.clone() })
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>, _access: &CallerAccess) -> fmt::Result {
        metrics::encode(encoder, &self.queue)
    }

    fn problem(&self, _is_starting: bool) -> Option<String> {
        let stuck = self.queue.jobs().iter().filter(|job| job.problem.is_some()).count();
        (stuck > 0).then(|| format!("{stuck} jobs cannot go on"))
    }

    fn encrypted_store(&self) -> Option<Arc<dyn Rekey>> {
        Some(Arc::new(JobKeys(self.queue.store().clone())))
    }

    fn spawn(&self, environment: &PartEnvironment) -> Result<(), String> {
        let PartEnvironment { readiness, shutdown, .. } = environment;
        let (ready, stop) = (readiness.clone(), shutdown.clone());
        let runner =
            JobRunner { queue: self.queue.clone(), serving: self.serving.clone(), file_bytes_max: self.file_bytes_max };
        shutdown.spawn(async move {
            let run = async {
                ready.wait().await;
                runner.run().await;
            };
            tokio::select! {
                () = run => {}
                () = stop.requested() => {}
            }
        });
        Ok(())
    }
}

/// The keys of jobs, which the master key encrypts.
struct JobKeys(JobStore);

impl Rekey for JobKeys {
    fn what(&self) -> &'static str {
        "job keys"
    }

    fn rekey(&self, stop: &dyn Fn() -> bool, done: &mut RekeyCounts) -> Result<(), String> {
        let count = |was_plain: bool| {
            let counted = if was_plain { &mut done.plain } else { &mut done.old };
            *counted += 1;
        };
        self.0.rekey(stop, count).map_err(|error| error.to_string())
    }
}
