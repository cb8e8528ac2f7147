//! The console as a part of the daemon.

use std::sync::Arc;

use ledge_base::names::DeviceName;
use ledge_identity::access_config::AccessConfig;
use ledge_identity::authentication::Authenticator;
use ledge_models::serving::Serving;
use ledge_part::findings::FindingsSource;
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::{BoundRoute, bind};
use ledge_part::{PartEnvironment, Subsystem};
use ledge_service::off_thread::blocking;
use ledge_service::shutdown::Shutdown;

use crate::findings::ConsoleFindings;
use crate::http::ROUTES;
use crate::keys::{self, KeysHttpState};
use crate::state::{ConsoleHttpState, EgressSource};
use crate::{page, sign_in};

/// The console.
#[derive(Debug)]
pub struct ConsolePart {
    state: ConsoleHttpState,
    access: Arc<AccessConfig>,
}

impl ConsolePart {
    /// Creates the console of a box, with or without a broker. `access` has the ways in without a key, `findings`
    /// collects the findings about the box, and `egress` reports what can leave it. The last two may block.
    pub fn new(
        (device, has_broker): (DeviceName, bool),
        serving: Serving,
        authenticator: Authenticator,
        access: AccessConfig,
        findings: FindingsSource,
        egress: EgressSource,
        shutdown: Shutdown,
    ) -> Self {
        let state = ConsoleHttpState {
            device: Arc::new(device),
            has_broker,
            serving,
            authenticator,
            findings: ConsoleFindings::new(findings),
            egress,
            shutdown,
        };
        Self { state, access: Arc::new(access) }
    }
}

impl Subsystem for ConsolePart {
    fn name(&self) -> &'static str {
        "console"
    }

    fn routes(&self, context: &HandlerContext) -> Vec<BoundRoute> {
        let keys = KeysHttpState {
            authenticator: self.state.authenticator.clone(),
            access: self.access.clone(),
            context: context.clone(),
        };
        [bind(ROUTES, &self.state), bind(keys::ROUTES, &keys), bind(sign_in::ROUTES, &keys)].concat()
    }

    /// Prepares the page.
    fn spawn(&self, environment: &PartEnvironment) -> Result<(), String> {
        environment.shutdown.spawn(blocking(page::prepare));
        Ok(())
    }
}
