//! Updates as a part of the daemon: their section of the configuration, routes and metrics.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ledge_base::toml_check::ValueProblem;
use ledge_base::{clock, config_path};
use ledge_egress::ConfiguredDestination;
use ledge_identity::access::CallerAccess;
use ledge_identity::sealing::Rekey;
use ledge_part::Subsystem;
use ledge_part::check::Finding;
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::{BoundRoute, bind};
use ledge_part::section::{ConfigSection, DoctorContext};
use prometheus_client::encoding::DescriptorEncoder;

use crate::Updates;
use crate::config::{RepositoryAddress, UpdatesConfig};
use crate::http::{ROUTES, UpdatesHttpState, visible};
use crate::{doctor, metrics};

/// Updates as a part. The updater itself has a separate thread.
pub struct UpdatesPart {
    /// `None` without `updates.repository`.
    pub updates: Option<Updates>,
    /// `None` on a box that never had updates.
    pub store: Option<Arc<dyn Rekey>>,
}

impl fmt::Debug for UpdatesPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpdatesPart").field("updates", &self.updates).finish_non_exhaustive()
    }
}

impl ConfigSection for UpdatesConfig {
    fn resolve(&mut self, root: &Path) {
        for path in [&mut self.path, &mut self.root_file] {
            config_path::resolve(path, root);
        }
        self.tls.resolve(root);
    }

    fn problems(&self) -> Vec<ValueProblem> {
        self.tls.problem("tls").into_iter().collect()
    }

    fn destinations(&self) -> Vec<ConfiguredDestination> {
        let destination =
            |address: &RepositoryAddress| address.destination("repository", self.proxy.as_ref(), "what this box runs");
        self.repository.as_ref().and_then(destination).into_iter().collect()
    }

    fn doctor(&self, context: &DoctorContext<'_>) -> Vec<Finding> {
        doctor::checks(self, context)
    }
}

impl Subsystem for UpdatesPart {
    fn name(&self) -> &'static str {
        "updates"
    }

    fn routes(&self, context: &HandlerContext) -> Vec<BoundRoute> {
        bind(ROUTES, &UpdatesHttpState { updates: self.updates.clone(), context: context.clone() })
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>, access: &CallerAccess) -> fmt::Result {
        let Some(updates) = &self.updates else { return Ok(()) };
        metrics::encode(encoder, &visible(updates.status(), access), clock::unix_millis())
    }

    fn encrypted_store(&self) -> Option<Arc<dyn Rekey>> {
        self.store.clone()
    }
}
