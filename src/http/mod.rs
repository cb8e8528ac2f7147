//! HTTP: the only code that knows axum and hyper. Listener, limits, routes; one handler file a noun.
//!
//! Every answer with an error status carries `{"error": "..."}`, unknown routes and wrong verbs included.

mod body;
pub mod config;
mod connection;
mod health;
mod infer;
mod metrics;
mod models;
mod openapi;
mod reply;
mod terms;

use std::sync::Arc;

use axum::Router;
use axum::extract::{OriginalUri, Request};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};

use crate::readiness::Readiness;
use crate::serving::Serving;
use crate::shutdown::Shutdown;
use crate::telemetry::machine::MachineMonitor;
use crate::telemetry::messages::MessageStatistics;
use config::HttpConfig;
pub use connection::{BindError, Listeners};
use reply::{Failure, error};

/// What every handler may use.
#[derive(Debug, Clone)]
pub struct App {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    serving: Serving,
    readiness: Arc<Readiness>,
    config: HttpConfig,
    shutdown: Shutdown,
    machine: MachineMonitor,
    messages: Option<MessageStatistics>,
}

impl App {
    /// The parts that the handlers call; `messages` is `None` where MQTT is off.
    pub fn new(
        serving: Serving,
        readiness: Arc<Readiness>,
        config: HttpConfig,
        shutdown: Shutdown,
        messages: Option<MessageStatistics>,
    ) -> Self {
        let machine = MachineMonitor::default();
        Self { shared: Arc::new(Shared { serving, readiness, config, shutdown, machine, messages }) }
    }

    fn serving(&self) -> &Serving {
        &self.shared.serving
    }

    fn is_ready(&self) -> bool {
        self.shared.readiness.is_ready()
    }

    fn machine(&self) -> &MachineMonitor {
        &self.shared.machine
    }

    fn messages(&self) -> Option<&MessageStatistics> {
        self.shared.messages.as_ref()
    }

    fn config(&self) -> &HttpConfig {
        &self.shared.config
    }

    /// Runs `work` to its end even when the caller hangs up meanwhile: a load that is cut off half-way would leave its
    /// state behind.
    async fn to_the_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Failure> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.shared.shutdown.spawn(async move {
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
        .route("/v2/repository/models/{model}/load", post(models::load))
        .route("/v2/repository/models/{model}/unload", post(models::unload))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(openapi::document))
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
