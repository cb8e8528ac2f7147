//! The state that the handlers of this crate share.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use ledge_audit::status::AuditState;
use ledge_base::telemetry::machine::MachineMonitor;
use ledge_base::telemetry::system::StoreFolder;
use ledge_identity::authentication::Authenticator;
use ledge_models::serving::Serving;
use ledge_part::Subsystem;
use ledge_part::handler_context::HandlerContext;
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;

use crate::config::HttpConfig;
use crate::document_intelligence::Operations;
use crate::document_intelligence::config::DocumentsConfig;
use crate::openai::config::OpenAiConfig;
use crate::vision::config::VisionConfig;

/// The state that every handler of this crate may use. Clones share it.
#[derive(Debug, Clone)]
pub struct App {
    state: Arc<AppState>,
}

/// The parts of the daemon that the API calls.
#[derive(Debug)]
pub struct AppParts {
    pub serving: Serving,
    pub readiness: Arc<Readiness>,
    pub authenticator: Authenticator,
    /// The state of the audit log, which decides whether changes of the box are accepted.
    pub audit: AuditState,
    /// All parts of the daemon, for their routes and metrics.
    pub all: Vec<Arc<dyn Subsystem>>,
    pub config: HttpConfig,
    pub vision: VisionConfig,
    pub openai: OpenAiConfig,
    pub documents: DocumentsConfig,
    /// The folders of the stores, for metrics.
    pub stores: Vec<StoreFolder>,
    pub shutdown: Shutdown,
}

#[derive(Debug)]
struct AppState {
    parts: AppParts,
    context: HandlerContext,
    machine: MachineMonitor,
    operations: Operations,
    /// The answer to `GET /openapi.json`, made for the first request.
    description: OnceLock<Bytes>,
}

impl App {
    pub fn new(parts: AppParts) -> Self {
        let memory = parts.serving.memory().clone();
        let audit = parts.serving.audit().clone();
        let context = HandlerContext::new(parts.config.body_limits(), memory, audit, parts.shutdown.clone());
        let (machine, description) = (MachineMonitor::default(), OnceLock::new());
        let operations = Operations::default();
        Self { state: Arc::new(AppState { parts, context, machine, operations, description }) }
    }

    pub(crate) fn serving(&self) -> &Serving {
        &self.state.parts.serving
    }

    /// True when every part has started.
    pub(crate) fn is_started(&self) -> bool {
        self.state.parts.readiness.is_ready()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.serving().is_ready(&self.state.parts.readiness)
    }

    pub(crate) fn stores(&self) -> &[StoreFolder] {
        &self.state.parts.stores
    }

    /// The answer to `GET /openapi.json`, once somebody asked.
    pub(crate) fn description(&self) -> &OnceLock<Bytes> {
        &self.state.description
    }

    pub(crate) fn machine(&self) -> &MachineMonitor {
        &self.state.machine
    }

    pub(crate) fn authenticator(&self) -> &Authenticator {
        &self.state.parts.authenticator
    }

    pub(crate) fn audit(&self) -> &AuditState {
        &self.state.parts.audit
    }

    pub(crate) fn parts(&self) -> &[Arc<dyn Subsystem>] {
        &self.state.parts.all
    }

    pub(crate) fn context(&self) -> &HandlerContext {
        &self.state.context
    }

    pub(crate) fn vision(&self) -> &VisionConfig {
        &self.state.parts.vision
    }

    pub(crate) fn openai(&self) -> &OpenAiConfig {
        &self.state.parts.openai
    }

    pub(crate) fn documents(&self) -> &DocumentsConfig {
        &self.state.parts.documents
    }

    /// The analyses of documents that callers began.
    pub(crate) fn operations(&self) -> &Operations {
        &self.state.operations
    }

    pub(crate) fn config(&self) -> &HttpConfig {
        &self.state.parts.config
    }
}
