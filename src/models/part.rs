//! The models as a part of the daemon.

use std::fmt;
use std::path::Path;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ledge_base::config_path;
use ledge_identity::access::CallerAccess;
use ledge_part::check::Finding;
use ledge_part::section::{ConfigSection, DoctorContext};
use ledge_part::{PartEnvironment, Subsystem};
use prometheus_client::encoding::DescriptorEncoder;

use crate::metrics;
use crate::repository::VersionState;
use crate::runtimes::{RuntimesConfig, doctor};
use crate::serving::Serving;
use crate::serving::config::{QuotaConfig, ResponseCacheConfig, ServingConfig};

impl ConfigSection for RuntimesConfig {
    fn resolve(&mut self, root: &Path) {
        for path in [&mut self.dir, &mut self.cache] {
            config_path::resolve(path, root);
        }
    }

    fn doctor(&self, _: &DoctorContext<'_>) -> Vec<Finding> {
        let mut checks = doctor::checks(self);
        let finding = self.isolation.finding();
        checks.extend(finding.map(|found| Finding::warn("runtimes.isolation", found.detail, found.advice)));
        checks
    }
}

impl ConfigSection for ServingConfig {}

impl ConfigSection for ResponseCacheConfig {}

impl ConfigSection for QuotaConfig {}

impl Subsystem for Serving {
    fn name(&self) -> &'static str {
        "inference"
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>, access: &CallerAccess) -> fmt::Result {
        metrics::encode(encoder, self.repository(), access)
    }

    fn heartbeat(&self) -> BoxFuture<'_, ()> {
        self.repository().engine().heartbeat().boxed()
    }

    fn spawn(&self, environment: &PartEnvironment) -> Result<(), String> {
        let (repository, shutdown) = (self.repository().clone(), environment.shutdown.clone());
        environment.shutdown.spawn(async move {
            tokio::select! {
                () = repository.try_crashed() => {}
                () = shutdown.requested() => {}
            }
        });
        Ok(())
    }

    fn problem(&self, _is_starting: bool) -> Option<String> {
        let failing = self.repository().index().into_iter().filter_map(|row| match row.state {
            VersionState::Unavailable(reason) if reason.is_failure() => Some(row.model.to_string()),
            _ => None,
        });
        let mut failing: Vec<String> = failing.collect();
        failing.dedup();
        (!failing.is_empty()).then(|| format!("not loaded: {}", failing.join(", ")))
    }
}
