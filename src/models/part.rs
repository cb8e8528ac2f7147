//! The models as a part of the daemon.

use std::fmt;
use std::path::Path;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ledge_base::config_path;
use ledge_identity::access::Access;
use ledge_part::check::Check;
use ledge_part::section::{DoctorContext, Section};
use ledge_part::{Environment, Subsystem};
use prometheus_client::encoding::DescriptorEncoder;

use crate::metrics;
use crate::repository::VersionState;
use crate::runtimes::{RuntimesConfig, doctor};
use crate::serving::Serving;
use crate::serving::config::{QuotaConfig, ResponseCacheConfig, ServingConfig};

impl Section for RuntimesConfig {
    fn resolve(&mut self, root: &Path) {
        for path in [&mut self.dir, &mut self.cache] {
            config_path::resolve(path, root);
        }
    }

    fn doctor(&self, _: &DoctorContext<'_>) -> Vec<Check> {
        let mut checks = doctor::checks(self);
        let finding = self.isolation.finding();
        checks.extend(finding.map(|found| Check::warn("runtimes.isolation", found.detail, found.advice)));
        checks
    }
}

impl Section for ServingConfig {}

impl Section for ResponseCacheConfig {}

impl Section for QuotaConfig {}

impl Subsystem for Serving {
    fn name(&self) -> &'static str {
        "inference"
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>, access: &Access) -> fmt::Result {
        metrics::encode(encoder, self.repository(), access)
    }

    fn heartbeat(&self) -> BoxFuture<'_, ()> {
        self.repository().engine().heartbeat().boxed()
    }

    fn spawn(&self, environment: &Environment) -> Result<(), String> {
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
