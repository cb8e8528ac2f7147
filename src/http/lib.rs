//! HTTP: the only code that knows axum and hyper. Listener, limits, routes; one handler file a noun.
//!
//! Every answer with an error status carries `{"error": "..."}`, unknown routes and wrong verbs included. Only those of
//! Feast's own routes carry what Feast's client expects.
#![forbid(unsafe_code)]

mod administration;
mod audit;
mod body;
mod browser;
pub mod config;
mod connection;
mod features;
mod features_admin;
pub mod fuzz;
mod guard;
mod handover;
mod health;
mod held;
mod infer;
mod metrics;
mod models;
mod openapi;
mod places;
mod refusal;
mod reply;
pub mod routes;
mod stall;
mod terms;
pub mod tls;
mod updates;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::extract::{OriginalUri, Request};
use axum::http::StatusCode;
use axum::middleware::map_response;
use axum::response::Response;
use ledge_audit::status::AuditState;
use ledge_base::memory_budget::MemoryBudget;
use ledge_base::principal::Principal;
use ledge_base::telemetry::machine::MachineMonitor;
use ledge_base::telemetry::messages::MessageStatistics;
use ledge_egress::Egress;
use ledge_identity::authentication::Authenticator;
use ledge_models::serving::Serving;
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;
use ledge_updates::Updates;

use config::HttpConfig;
pub use connection::{BindError, Listeners};
pub use handover::{Handover, VARIABLE as LISTENERS_VARIABLE};
use reply::{Failure, error};
pub use tls::ServerTls;

/// What every handler may use.
#[derive(Debug, Clone)]
pub struct App {
    shared: Arc<Shared>,
}

/// The parts that the handlers call.
#[derive(Debug)]
pub struct Parts {
    /// What answers calls.
    pub serving: Serving,
    /// Whether the daemon is ready.
    pub readiness: Arc<Readiness>,
    /// Who may come in.
    pub authenticator: Authenticator,
    /// What leaves this box.
    pub egress: Egress,
    /// What MQTT counts; `None` where it is off.
    pub messages: Option<MessageStatistics>,
    /// Signed updates; `None` where no platform looks after this box.
    pub updates: Option<Updates>,
    /// How the audit log does.
    pub audit: AuditState,
    /// The folder of the audit log.
    pub audit_path: PathBuf,
    /// TLS, where it is served.
    pub tls: Option<ServerTls>,
    /// The section `[http]`.
    pub config: HttpConfig,
    /// The end of the daemon.
    pub shutdown: Shutdown,
}

#[derive(Debug)]
struct Shared {
    parts: Parts,
    memory: MemoryBudget,
    machine: MachineMonitor,
}

impl App {
    /// Over its parts.
    pub fn new(parts: Parts) -> Self {
        let memory = MemoryBudget::new(parts.config.max_memory_bytes);
        Self { shared: Arc::new(Shared { parts, memory, machine: MachineMonitor::default() }) }
    }

    fn serving(&self) -> &Serving {
        &self.shared.parts.serving
    }

    fn is_ready(&self) -> bool {
        self.shared.parts.readiness.is_ready()
    }

    fn machine(&self) -> &MachineMonitor {
        &self.shared.machine
    }

    fn authenticator(&self) -> &Authenticator {
        &self.shared.parts.authenticator
    }

    fn egress(&self) -> &Egress {
        &self.shared.parts.egress
    }

    fn messages(&self) -> Option<&MessageStatistics> {
        self.shared.parts.messages.as_ref()
    }

    fn updates(&self) -> Option<&Updates> {
        self.shared.parts.updates.as_ref()
    }

    fn audit(&self) -> &AuditState {
        &self.shared.parts.audit
    }

    fn audit_path(&self) -> &Path {
        &self.shared.parts.audit_path
    }

    fn tls(&self) -> Option<&ServerTls> {
        self.shared.parts.tls.as_ref()
    }

    fn memory(&self) -> &MemoryBudget {
        &self.shared.memory
    }

    fn config(&self) -> &HttpConfig {
        &self.shared.parts.config
    }

    /// Runs `work` to its end even when the caller hangs up meanwhile: a load that is cut off half-way would leave its
    /// state behind.
    async fn to_the_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Failure> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.shared.parts.shutdown.spawn(async move {
            let _ = sender.send(work.await);
        });
        receiver.await.map_err(|_| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the work ended without a result"))
    }
}

/// Every route. Whether one exists is no secret: the description of all of them is public.
pub fn router(app: App) -> Router {
    // Nobody's: what is read from the box at no small length is the same for all.
    let account = app.memory().account(Principal::Others);
    routes::router(&app)
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_verb)
        .layer(map_response(move |answer| std::future::ready(held::counted(answer, &account))))
        .with_state(app)
}

async fn unknown_route(OriginalUri(uri): OriginalUri) -> Response {
    error(StatusCode::NOT_FOUND, &format!("no route {}; GET /openapi.json lists them", uri.path()))
}

async fn wrong_verb(request: Request) -> Response {
    let message = format!("{} is not allowed for {}", request.method(), request.uri().path());
    error(StatusCode::METHOD_NOT_ALLOWED, &message)
}
