//! Inboxes as a part of the daemon: their sections of the configuration, route, metrics and tasks.

use std::fmt;
use std::path::Path;

use ledge_base::toml_check::ValueProblem;
use ledge_egress::ConfiguredDestination;
use ledge_identity::access::CallerAccess;
use ledge_part::check::Finding;
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::{BoundRoute, bind};
use ledge_part::section::{ConfigSection, DoctorContext};
use ledge_part::{PartEnvironment, Subsystem};
use prometheus_client::encoding::DescriptorEncoder;

use crate::config::{INBOXES_MAX, InboxConfig, InboxesConfig};
use crate::http::ROUTES;
use crate::inboxes::Inboxes;
use crate::{doctor, metrics};

impl ConfigSection for InboxesConfig {
    fn resolve(&mut self, root: &Path) {
        self.0.iter_mut().for_each(|inbox| inbox.resolve(root));
    }

    fn problems(&self) -> Vec<ValueProblem> {
        let own = |inbox: &InboxConfig| inbox.problems();
        let mut problems = ValueProblem::of_entries(&self.0, "inboxes", INBOXES_MAX, |inbox| &inbox.name, own);
        problems.extend(self.overlaps());
        problems
    }

    fn destinations(&self) -> Vec<ConfiguredDestination> {
        let of_inbox =
            |(index, inbox): (usize, &InboxConfig)| Some(inbox.destination()?.in_section(&format!("[{index}]")));
        self.0.iter().enumerate().filter_map(of_inbox).collect()
    }

    fn doctor(&self, context: &DoctorContext<'_>) -> Vec<Finding> {
        doctor::checks(self, context)
    }
}

impl Subsystem for Inboxes {
    fn name(&self) -> &'static str {
        "inboxes"
    }

    fn routes(&self, _context: &HandlerContext) -> Vec<BoundRoute> {
        bind(ROUTES, self)
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>, _access: &CallerAccess) -> fmt::Result {
        metrics::encode(encoder, &self.documents())
    }

    fn problem(&self, _is_starting: bool) -> Option<String> {
        let stuck = self.inboxes().iter().filter(|inbox| inbox.status().problem.is_some());
        let stuck: Vec<_> = stuck.map(|inbox| inbox.config.name.as_str()).collect();
        (!stuck.is_empty()).then(|| format!("inboxes whose files wait: {}", stuck.join(", ")))
    }

    fn spawn(&self, environment: &PartEnvironment) -> Result<(), String> {
        self.start(&environment.readiness, &environment.shutdown);
        Ok(())
    }
}
