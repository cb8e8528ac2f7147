//! HTTP: the only code that knows axum and hyper. Listener, limits, routes; one handler file a noun.
//!
//! Every answer with an error status carries `{"error": "..."}`, unknown routes and wrong verbs included. Only those of
//! Feast's own routes carry what Feast's client expects.

mod administration;
mod audit;
mod body;
pub mod config;
mod connection;
mod features;
mod features_admin;
mod handover;
mod health;
mod infer;
mod metrics;
mod models;
mod openapi;
mod reply;
mod terms;
pub mod tls;
mod updates;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::extract::{OriginalUri, Request};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};

use crate::audit::status::AuditState;
use crate::egress::Egress;
use crate::readiness::Readiness;
use crate::serving::Serving;
use crate::shutdown::Shutdown;
use crate::telemetry::machine::MachineMonitor;
use crate::telemetry::messages::MessageStatistics;
use crate::updates::Updates;
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
    machine: MachineMonitor,
}

impl App {
    /// Over its parts.
    pub fn new(parts: Parts) -> Self {
        Self { shared: Arc::new(Shared { parts, machine: MachineMonitor::default() }) }
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

/// Every route. `openapi.json` describes the same ones; a test compares the two.
pub fn router(app: App) -> Router {
    Router::new()
        .route("/v2", get(health::server_metadata))
        .route("/v2/", get(health::server_metadata))
        .route("/v2/health/live", get(health::live))
        .route("/v2/health/ready", get(health::ready))
        .route("/v2/models/stats", get(models::all_statistics))
        .route("/v2/models/{model}", get(models::metadata))
        .route("/v2/models/{model}/ready", get(models::ready))
        .route("/v2/models/{model}/config", get(models::config))
        .route("/v2/models/{model}/stats", get(models::statistics))
        .route("/v2/models/{model}/infer", post(infer::infer))
        .route("/v2/models/{model}/versions/{version}", get(models::metadata))
        .route("/v2/models/{model}/versions/{version}/ready", get(models::ready))
        .route("/v2/models/{model}/versions/{version}/config", get(models::config))
        .route("/v2/models/{model}/versions/{version}/stats", get(models::statistics))
        .route("/v2/models/{model}/versions/{version}/infer", post(infer::infer))
        .route("/v2/repository/index", post(models::index))
        .route("/get-online-features", post(features::get_online_features))
        .route("/push", post(features::push))
        .route("/write-to-online-store", post(features::write_to_online_store))
        .route("/materialize", post(features::materialize))
        .route("/materialize-incremental", post(features::materialize))
        .route("/health", get(health::live))
        .route("/feature-views", get(features::views))
        .route("/feature-views/{feature_view}", get(features::view))
        .route("/feature-services", get(features::services))
        .route("/feature-services/{feature_service}", get(features::service))
        .route("/entities", get(features::entities))
        .route("/features/status", get(features_admin::status))
        .route("/updates", get(updates::status))
        .route("/audit/status", get(audit::status))
        .route("/audit/logs/{generation}/checkpoint", get(audit::checkpoint))
        .route("/audit/logs/{generation}/tile/{*path}", get(audit::tile))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(openapi::document))
        .merge(administration::routes(&app))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_verb)
        .with_state(app)
}

async fn unknown_route(OriginalUri(uri): OriginalUri) -> Response {
    error(StatusCode::NOT_FOUND, &format!("no route {}; GET /openapi.json lists them", uri.path()))
}

async fn wrong_verb(request: Request) -> Response {
    let message = format!("{} is not allowed for {}", request.method(), request.uri().path());
    error(StatusCode::METHOD_NOT_ALLOWED, &message)
}
