//! HTTP/1.1 and its routes, with one handler file for each noun. Sockets, TLS and limits on connections are in the crate
//! `listener`, the protocols in the crate `protocol`. Parts write their own routes with axum, too.
//!
//! Files, in reading order:
//! * `config.rs` - `[http]`
//! * `local_plain.rs` - `[[http.local_plain]]`, addresses without encryption in a local network
//! * `connection.rs` - connections with HTTP/1.1
//! * `head_lines.rs` - heads whose lines end with CR LF, and nothing else
//! * `connection_close.rs` - lingering close, and error bodies for requests that hyper refuses
//! * `routes.rs` - `ROUTES`, the table of the routes of this crate, and the router of these and those of parts
//! * `guard.rs` - the caller of a request, and its permission, before any body is read
//! * `browser.rs` - detection of requests that a foreign web page made a browser send
//! * `administration.rs` - changes of the box, answered after their durable audit record
//! * `call_headers.rs` - priority and timeout of a call, from its headers
//! * `infer.rs`, `models.rs` - handlers: inference; models
//! * `csv.rs` - CSV to a model with a pipeline of rows, answered while it is read
//! * `vision.rs`, `vision/` - handlers of DeepStack's interface, and `[vision]`
//! * `openai.rs` - handlers of OpenAI's interface for embeddings
//! * `features.rs`, `health.rs` - handlers: Feast's feature server; liveness and readiness
//! * `openapi.rs`, `openapi.json` - the description of every route
//! * `metrics.rs`, `metrics/` - `/metrics`; `exposition.rs` has the formats of Prometheus and OpenMetrics, `process.rs`
//!   the metrics of the process and the machine
//! * `reply.rs` - answers in the forms of KServe, Feast and DeepStack
//! * `doctor.rs` - the findings of `ledge doctor` about `https://` addresses
//! * `fuzz.rs` - invariants of the readers of headers
//!
//! Bodies, JSON answers and errors are in the crate `part`. The routes of updates, of the audit log and of the
//! administration of the feature store are in their crates.
//!
//! Invariants:
//! * A route that is neither in `ROUTES` nor in the table of a part does not exist. A test fails for a route without a
//!   permission, and compares the tables with `openapi.json`.
//! * The caller is known before a byte of its body is read.
//! * A change of the box, or a copy of its data, is answered after its durable audit record.
//! * Every error has a body `{"error": "..."}`, unknown routes and methods included. Feast's own routes have the form
//!   that Feast's client expects, and every path of DeepStack's interface that of DeepStack.
//! * Memory of a call counts until the caller has read the answer.
//! * Figures are read from their owners at each scrape. Nothing is counted twice.
//! * The crate knows no runtime, and no file of the repository.
//!
//! # One caller
//!
//! 1. `listener/listeners.rs` makes a `Peer` of a connection: an address with the certificate of the handshake, or the user id
//!    behind the Unix socket.
//! 2. `routes.rs` puts `guard` before each route that is not public. It takes the API key from the headers (two
//!    different keys are 400) and calls `Authenticator::caller(peer, key)`, before the body is read and before a
//!    `100 Continue` is sent.
//! 3. With a key, it checks the key's id in the list in memory, BLAKE3 of its secret in constant time, its expiry and
//!    its revocation. An invalid key is 401, whatever the roles of the way in, and is recorded; a key that may be a
//!    guess counts against the address it came from. Without a key, the caller is a listed certificate, else the user
//!    id, else has the roles that `[access]` gives to loopback or the socket; beyond loopback it has none. A key in a
//!    form of `/v1/vision` counts as one in a header (`guard::admit_by_form`): for a caller that would be refused without
//!    it, the guard reads the start of the form.
//! 4. `Caller::enter` returns a `RequestPermit` within `max_rate` and `max_concurrent`, or 429.
//! 5. `RouteRule::needs`: one of these permissions in the caller's roles suffices. Otherwise the answer is 403 and
//!    names the role, or 401 for a caller without a credential.
//! 6. The scope (`RouteRule::scope`): a caller that is limited to some models is refused for other models
//!    (`Scope::Model`, `Subject`) and for the whole box (`Box`), and sees its own models in lists (`Listed`). The
//!    feature views of values (`Values`) are in the body: `features/caller.rs` refuses those that are not the caller's,
//!    and records reads and pushes, those of models included. A caller over TCP without a credential is refused when
//!    the request comes from a foreign web page (`browser::foreign_request`: `Origin`, `Sec-Fetch-Site`, a foreign `Host`).
//! 7. The handler gets the `Principal`, for quotas and audit. An audited route has `administration::audited` around it:
//!    it is refused while the log cannot be written, and answered when its records are on the disk.
//!
//! Over MQTT, `mqtt/caller.rs` uses the same `Authenticator` with the key in a message's properties, or
//! `[access.mqtt]`.
#![forbid(unsafe_code)]

mod administration;
mod browser;
mod call_headers;
pub mod config;
mod connection;
mod connection_close;
mod csv;
mod doctor;
mod features;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod guard;
mod head_lines;
mod health;
mod infer;
mod local_plain;
mod metrics;
mod models;
mod openai;
mod openapi;
mod reply;
pub mod routes;
pub mod vision;

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::extract::{OriginalUri, Request};
use axum::http::StatusCode;
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use ledge_audit::status::AuditState;
use ledge_base::principal::Principal;
use ledge_base::telemetry::machine::MachineMonitor;
use ledge_identity::authentication::{Authenticator, Peer};
use ledge_models::serving::Serving;
use ledge_part::api_error::ApiError;
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::{ErrorForm, RouteRule};
use ledge_part::{Part, counted_body, grpc};
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;
use tower_service::Service as _;

use config::HttpConfig;
pub use connection::service;
pub use metrics::StoreFolder;
use reply::VisionErrorResponse;
use vision::config::VisionConfig;

/// The name of the service of HTTP listeners.
pub const SERVICE: &str = "http";

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
    pub all: Vec<Arc<dyn Part>>,
    pub config: HttpConfig,
    pub vision: VisionConfig,
    /// The folders of the stores, for metrics.
    pub stores: Vec<StoreFolder>,
    pub shutdown: Shutdown,
}

#[derive(Debug)]
struct AppState {
    parts: AppParts,
    context: HandlerContext,
    machine: MachineMonitor,
    /// The answer to `GET /openapi.json`, from the first such request on.
    description: OnceLock<Bytes>,
}

impl App {
    pub fn new(parts: AppParts) -> Self {
        let memory = parts.serving.memory().clone();
        let audit = parts.serving.audit().clone();
        let context = HandlerContext::new(parts.config.body_limits(), memory, audit, parts.shutdown.clone());
        let (machine, description) = (MachineMonitor::default(), OnceLock::new());
        Self { state: Arc::new(AppState { parts, context, machine, description }) }
    }

    fn serving(&self) -> &Serving {
        &self.state.parts.serving
    }

    /// True when every part has started.
    fn is_started(&self) -> bool {
        self.state.parts.readiness.is_ready()
    }

    /// True when every part has started, and a model serves where one is to serve.
    fn is_ready(&self) -> bool {
        self.is_started() && self.serving().repository().is_serving()
    }

    fn stores(&self) -> &[StoreFolder] {
        &self.state.parts.stores
    }

    fn machine(&self) -> &MachineMonitor {
        &self.state.machine
    }

    fn authenticator(&self) -> &Authenticator {
        &self.state.parts.authenticator
    }

    fn audit(&self) -> &AuditState {
        &self.state.parts.audit
    }

    fn parts(&self) -> &[Arc<dyn Part>] {
        &self.state.parts.all
    }

    fn context(&self) -> &HandlerContext {
        &self.state.context
    }

    fn vision(&self) -> &VisionConfig {
        &self.state.parts.vision
    }

    fn config(&self) -> &HttpConfig {
        &self.state.parts.config
    }
}

/// The routers of the listeners.
#[derive(Debug, Clone)]
pub struct Routers {
    all: Router,
    /// The routes that are served without encryption in a local network.
    local_plain: Router,
    /// The methods of gRPC.
    grpc: Router,
}

#[cfg(test)]
impl From<Router> for Routers {
    fn from(all: Router) -> Self {
        Self { all, local_plain: Router::new(), grpc: Router::new() }
    }
}

impl Routers {
    pub fn new(app: &App) -> Self {
        let is_grpc = |rule: &RouteRule| rule.form == ErrorForm::Grpc;
        let grpc = routes::router(app, is_grpc).fallback(unknown_method).layer(map_response(in_grpc));
        Self { all: router(app, |rule| !is_grpc(rule)), local_plain: router(app, |rule| rule.is_local_plain), grpc }
    }

    /// The methods of gRPC, with a status in trailers for every error.
    pub fn grpc(&self) -> Router {
        self.grpc.clone()
    }

    /// The JSON that this box answers to a GET of `path` by the user of this process; `None` where it is an error. For the
    /// daemon itself, which asks its parts what a command would ask.
    pub async fn ask(&self, path: &str) -> Option<serde_json::Value> {
        let mut request = Request::get(path).body(Body::empty()).ok()?;
        request.extensions_mut().insert(Peer::User(rustix::process::geteuid().as_raw()));
        let Ok(answer) = self.all.clone().call(request).await;
        if answer.status() != StatusCode::OK {
            return None;
        }
        let body = answer.into_body().collect().await.ok()?.to_bytes();
        serde_json::from_slice(&body).ok()
    }

    /// The routes for the other end of a connection.
    fn of(self, peer: &Peer) -> Router {
        match peer {
            Peer::Unencrypted { .. } => self.local_plain,
            Peer::Address { .. } | Peer::User(_) => self.all,
        }
    }
}

/// A router of some routes. The existence of a route is not a secret: `GET /openapi.json` is public.
fn router(app: &App, is_served: impl Fn(&RouteRule) -> bool) -> Router {
    // Counted for no caller: the large answers that are counted here are the same for all callers.
    let account = app.context().memory().account(Principal::Others);
    routes::router(app, is_served)
        .fallback(unknown_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(map_response(move |answer| std::future::ready(counted_body::count(answer, &account))))
}

async fn unknown_route(OriginalUri(uri): OriginalUri) -> Response {
    let message = format!("no route {}; GET /openapi.json lists the routes", uri.path());
    error_at(uri.path(), StatusCode::NOT_FOUND, message)
}

/// Methods of Triton's interface that this box does not have, with the reason.
const ABSENT_METHODS: [(&str, &str); 3] = [
    ("SharedMemory", "this box has no shared memory with callers: send tensors in raw_input_contents"),
    ("TraceSetting", "this box keeps no traces of calls: GET /metrics and ModelStatistics have their times"),
    ("LogSettings", "the log is set in the section [log] of the configuration"),
];

async fn unknown_method(OriginalUri(uri): OriginalUri) -> ApiError {
    let absent = ABSENT_METHODS.iter().find(|(method, _)| uri.path().contains(method));
    let reason = absent.map_or("reflection lists the methods", |(_, reason)| *reason);
    ApiError::new(StatusCode::NOT_IMPLEMENTED, format!("no method {}: {reason}", uri.path()))
}

/// An answer whose error is a status of gRPC.
async fn in_grpc(response: Response) -> Response {
    response.extensions().get::<ApiError>().map(grpc::error_response).unwrap_or(response)
}

async fn method_not_allowed(request: Request) -> Response {
    let path = request.uri().path();
    let message = format!("the method {} is not allowed for {path}", request.method());
    error_at(path, StatusCode::METHOD_NOT_ALLOWED, message)
}

/// An error answer in the form of the routes near `path`.
fn error_at(path: &str, status: StatusCode, message: String) -> Response {
    let failure = ApiError::new(status, message);
    if vision::is_below(path) { VisionErrorResponse::from(failure).into_response() } else { failure.into_response() }
}
