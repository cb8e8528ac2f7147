//! The state of the routes.

use std::fmt;
use std::sync::Arc;

use ledge_base::names::DeviceName;
use ledge_identity::authentication::Authenticator;
use ledge_models::serving::Serving;
use ledge_service::shutdown::Shutdown;
use serde_json::Value;

use crate::findings::ConsoleFindings;

/// The state of the routes.
#[derive(Debug, Clone)]
pub struct ConsoleHttpState {
    pub(crate) device: Arc<DeviceName>,
    /// True where a broker is configured.
    pub(crate) has_broker: bool,
    pub(crate) serving: Serving,
    pub(crate) authenticator: Authenticator,
    pub(crate) findings: ConsoleFindings,
    pub(crate) egress: EgressSource,
    pub(crate) shutdown: Shutdown,
}

/// Makes the report of `ledge audit egress`. It may block: it reads a file.
#[derive(Clone)]
pub struct EgressSource(pub(crate) Arc<dyn Fn() -> Value + Send + Sync>);

impl EgressSource {
    pub fn new(report: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        Self(Arc::new(report))
    }
}

impl fmt::Debug for EgressSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EgressSource")
    }
}
