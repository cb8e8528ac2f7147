//! The report as a part of the daemon.

use std::fmt;
use std::sync::Arc;

use ledge_part::Subsystem;
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::{BoundRoute, bind};
use tokio::sync::Mutex;

use crate::http::{FindReportSource, ROUTES, ReportHttpState};

/// The report of a month, on request.
pub struct ReportPart {
    state: ReportHttpState,
}

impl ReportPart {
    /// Creates the part. `find` finds the logs of the box at each request.
    pub fn new(find: FindReportSource) -> Self {
        Self { state: ReportHttpState { find, turn: Arc::new(Mutex::new(())) } }
    }
}

impl fmt::Debug for ReportPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReportPart").finish_non_exhaustive()
    }
}

impl Subsystem for ReportPart {
    fn name(&self) -> &'static str {
        "report"
    }

    fn routes(&self, _context: &HandlerContext) -> Vec<BoundRoute> {
        bind(ROUTES, &self.state)
    }
}
