//! The console as a part of the daemon.

use std::sync::Arc;

use ledge_base::names::DeviceName;
use ledge_identity::authentication::Authenticator;
use ledge_models::serving::Serving;
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::{BoundRoute, bind};
use ledge_part::{Environment, Part};
use ledge_service::shutdown::Shutdown;

use crate::egress::EgressSource;
use crate::figures::{self, Figures};
use crate::findings::{Findings, FindingsSource};
use crate::http::{ConsoleState, ROUTES};
use crate::live::Listeners;
use crate::readings::Reader;

/// The console.
#[derive(Debug)]
pub struct ConsolePart {
    state: ConsoleState,
    serving: Serving,
}

impl ConsolePart {
    /// Creates the console of a box. `findings` looks for what is wrong with it, `egress` reports what
    /// can leave it; both may block.
    pub fn new(
        device: DeviceName,
        serving: Serving,
        authenticator: Authenticator,
        findings: FindingsSource,
        egress: EgressSource,
        shutdown: Shutdown,
    ) -> Self {
        let state = ConsoleState {
            device: Arc::new(device),
            authenticator,
            figures: Figures::default(),
            listeners: Listeners::default(),
            findings: Findings::new(findings),
            egress,
            shutdown,
        };
        Self { state, serving }
    }
}

impl Part for ConsolePart {
    fn name(&self) -> &'static str {
        "console"
    }

    fn routes(&self, _context: &HandlerContext) -> Vec<BoundRoute> {
        bind(ROUTES, &self.state)
    }

    /// Starts the task that keeps the figures.
    fn spawn(&self, environment: &Environment) -> Result<(), String> {
        let reader = Reader::new(self.serving.clone());
        environment.shutdown.spawn(figures::keep(self.state.figures.clone(), reader, environment.shutdown.clone()));
        Ok(())
    }
}
