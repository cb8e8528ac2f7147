//! The audit log as a part of the daemon: its section of the configuration, routes and metrics.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ledge_base::toml_check::ValueProblem;
use ledge_base::{clock, config_path};
use ledge_egress::ConfiguredDestination;
use ledge_identity::access::CallerAccess;
use ledge_identity::sealing::{Rekey, Sealer};
use ledge_part::Subsystem;
use ledge_part::check::Finding;
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::{BoundRoute, bind};
use ledge_part::section::{ConfigSection, DoctorContext};
use ledge_service::audit_event::AuditSink;
use prometheus_client::encoding::DescriptorEncoder;

use crate::config::AuditConfig;
use crate::http::{AuditHttpState, ROUTES};
use crate::metrics::{self, AuditQueueCounts};
use crate::sealed::AuditKeys;
use crate::status::AuditState;
use crate::{doctor, live};

/// The audit log, for the other parts. Its writer is a separate thread, which ends after all of them.
#[derive(Debug)]
pub struct AuditPart {
    served: AuditHttpState,
    sink: AuditSink,
    keys: Arc<AuditKeys>,
}

impl AuditPart {
    /// Creates the part for the log in `folder`. Its writer reports to `state`, and `sealer` encrypts its key.
    pub fn new(folder: &Path, state: AuditState, sink: AuditSink, sealer: Sealer) -> Self {
        let keys = Arc::new(AuditKeys { folder: folder.to_owned(), sealer });
        Self { served: AuditHttpState { state, folder: folder.into() }, sink, keys }
    }
}

impl ConfigSection for AuditConfig {
    fn resolve(&mut self, root: &Path) {
        config_path::resolve(&mut self.path, root);
        self.sync.resolve(root);
        self.live_copies_mut().into_iter().for_each(|copy| copy.resolve(root));
    }

    fn problems(&self) -> Vec<ValueProblem> {
        let mut problems = self.sync.problems();
        let live_copies = self.live_copies();
        for copy in &live_copies {
            let of_copy = copy.problems().into_iter();
            problems.extend(of_copy.map(|problem| problem.within(copy.name())));
        }

        let live = live_copies.iter().map(|copy| (copy.name(), copy.tls()));
        let tls = std::iter::once(("sync", &self.sync.tls)).chain(live);
        problems.extend(tls.filter_map(|(section, tls)| tls.problem(&format!("{section}.tls"))));
        problems
    }

    fn destinations(&self) -> Vec<ConfiguredDestination> {
        let live = self.live_copies().into_iter().filter_map(live::destination);
        self.sync.destination().into_iter().chain(live).collect()
    }

    fn doctor(&self, context: &DoctorContext<'_>) -> Vec<Finding> {
        doctor::checks(self, context)
    }
}

impl Subsystem for AuditPart {
    fn name(&self) -> &'static str {
        "audit log"
    }

    fn routes(&self, _context: &HandlerContext) -> Vec<BoundRoute> {
        bind(ROUTES, &self.served)
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>, _access: &CallerAccess) -> fmt::Result {
        let queued = AuditQueueCounts { recorded: self.sink.recorded(), lost: self.sink.lost() };
        metrics::encode(encoder, &self.served.state.status(), queued, clock::unix_millis())
    }

    fn heartbeat(&self) -> BoxFuture<'_, ()> {
        self.served.state.heartbeat().boxed()
    }

    fn problem(&self, _is_starting: bool) -> Option<String> {
        self.served.state.status().error.map(|reason| format!("audit log: {reason}"))
    }

    fn encrypted_store(&self) -> Option<Arc<dyn Rekey>> {
        Some(self.keys.clone())
    }
}
