//! Drift as a part of the daemon.

use std::fmt;

use ledge_base::names::ModelName;
use ledge_identity::access::CallerAccess;
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::{BoundRoute, bind};
use ledge_part::{PartEnvironment, Subsystem};
use prometheus_client::encoding::DescriptorEncoder;

use crate::drift::Drift;
use crate::http::ROUTES;
use crate::metrics;

impl Subsystem for Drift {
    fn name(&self) -> &'static str {
        "drift"
    }

    fn routes(&self, _context: &HandlerContext) -> Vec<BoundRoute> {
        bind(ROUTES, self)
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>, access: &CallerAccess) -> fmt::Result {
        let mut versions = self.documents(None);
        versions.retain(|document| document.model.parse::<ModelName>().is_ok_and(|model| access.has_model(&model)));
        metrics::encode(encoder, &versions)
    }

    fn spawn(&self, environment: &PartEnvironment) -> Result<(), String> {
        let shutdown = environment.shutdown.clone();
        environment.shutdown.spawn(self.clone().run(shutdown));
        Ok(())
    }
}
