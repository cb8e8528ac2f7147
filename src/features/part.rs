//! The feature store as a part of the daemon.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ledge_base::clock;
use ledge_base::config_path;
use ledge_identity::access::CallerAccess;
use ledge_identity::sealing::Rekey;
use ledge_part::check::Finding;
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::{BoundRoute, bind};
use ledge_part::section::{ConfigSection, DoctorContext};
use ledge_part::{PartEnvironment, Subsystem};
use prometheus_client::encoding::DescriptorEncoder;

use crate::config::FeaturesConfig;
use crate::http::{FeaturesHttpState, ROUTES};
use crate::{FeatureStore, doctor, metrics};

impl ConfigSection for FeaturesConfig {
    fn resolve(&mut self, root: &Path) {
        for path in [&mut self.views, &mut self.path] {
            config_path::resolve(path, root);
        }
    }

    fn doctor(&self, context: &DoctorContext<'_>) -> Vec<Finding> {
        doctor::check(self, context)
    }
}

impl Subsystem for FeatureStore {
    fn name(&self) -> &'static str {
        "feature store"
    }

    fn routes(&self, context: &HandlerContext) -> Vec<BoundRoute> {
        bind(ROUTES, &FeaturesHttpState { store: self.clone(), context: context.clone() })
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>, _access: &CallerAccess) -> fmt::Result {
        let Some(found) = self.statistics() else { return Ok(()) };
        #[expect(clippy::cast_precision_loss, reason = "exact for 285,000 years of milliseconds")]
        metrics::encode(encoder, &found, clock::unix_millis() as f64 / 1e3)
    }

    fn heartbeat(&self) -> BoxFuture<'_, ()> {
        self.wait_for_writer().boxed()
    }

    fn problem(&self, is_starting: bool) -> Option<String> {
        let reason = self.why_not_open().or_else(|| self.statistics().filter(|_| !is_starting)?.reason)?;
        Some(format!("feature store: {reason}"))
    }

    /// Starts the task that keeps the daemon from being ready until the store is open, and the one that opens a store
    /// that cannot be opened yet.
    fn spawn(&self, environment: &PartEnvironment) -> Result<(), String> {
        let (store, opening, stop) = (self.clone(), environment.readiness.latch(), environment.shutdown.clone());
        environment.shutdown.spawn(async move {
            tokio::select! {
                () = store.opened() => drop(opening),
                () = stop.requested() => {}
            }
        });
        let (store, stop) = (self.clone(), environment.shutdown.clone());
        environment.shutdown.spawn(async move {
            tokio::select! {
                () = store.reopen() => {}
                () = stop.requested() => {}
            }
        });
        Ok(())
    }

    fn encrypted_store(&self) -> Option<Arc<dyn Rekey>> {
        Some(Arc::new(self.clone()))
    }
}
