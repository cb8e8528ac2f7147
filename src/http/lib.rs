//! HTTP: listeners, limits and routes, with one handler file for each noun. The only code that knows axum and hyper's
//! server. The protocols themselves are in the crate `protocol`.
//!
//! Files, in reading order:
//! * `config.rs` - `[http]`
//! * `connection.rs`, `handover.rs` - listeners bound early, served late, drained in order; sockets that stay open
//!   while the program starts again
//! * `tls/` - TLS as a server:
//!   * `mod.rs` - the certificate of this box, renewed while it serves, and those of callers
//!   * `config.rs`, `files.rs` - `[http.tls]`, and its files ready to serve with
//!   * `handshake.rs`, `callers.rs` - handshakes under limits, and connections of one network
//!   * `names.rs`, `self_signed.rs` - names and addresses of this box, and a certificate made for them
//!   * `certificate.rs` - all code that reads X.509
//! * `places.rs` - places of connections, and the idle one that ends when a caller finds none
//! * `stall.rs` - a caller that does not read its answer
//! * `refusal.rs` - ends of connections whose caller still sends, and bodies for requests that hyper refuses
//! * `routes.rs` - `ROUTES`, the one table of routes: permission, scope, audit; the router is made of it
//! * `guard.rs` - the caller of a request, and its permission, before any body is read
//! * `browser.rs` - requests that a web page made a browser send
//! * `administration.rs` - changes of the box, answered after their durable audit record
//! * `body.rs`, `held.rs` - bodies under their limits, and answers counted until the caller has read them
//! * `terms.rs` - priority and timeout of a call, from its headers
//! * `infer.rs`, `models.rs` - handlers: inference; models
//! * `features.rs`, `features_admin.rs` - handlers: Feast's feature server; administration of the feature store
//! * `updates.rs`, `audit.rs`, `health.rs` - handlers: updates; the audit log; liveness and readiness
//! * `openapi.rs`, `openapi.json` - the description of every route
//! * `metrics.rs` - `/metrics`, in the formats of Prometheus and OpenMetrics
//! * `metrics/` - `exposition.rs` has the formats; the other files are named after the part that they show:
//!   `models.rs`, `features.rs`, `messages.rs`, `updates.rs`, `audit.rs`, `egress.rs`, `tls.rs`, `process.rs`
//! * `reply.rs` - answers, errors and their headers
//! * `fuzz.rs` - properties that hold for anything that a caller sends except a body
//!
//! Invariants:
//! * A route that is not in `ROUTES` does not exist. A test fails for one without a permission, and compares the
//!   table with `openapi.json`.
//! * The caller is known before a byte of its body is read.
//! * A change of the box, or a copy of its data, is answered after its durable audit record.
//! * Every error has a body `{"error": "..."}`, unknown routes and wrong verbs included. Feast's own routes have the
//!   form that Feast's client expects.
//! * Memory of a call counts until the caller has read the answer.
//! * Figures are read from their owners at each scrape. Nothing is counted twice.
//! * The crate knows no runtime, and no file of the repository. Only `tls/certificate.rs` reads X.509.
//!
//! # One caller
//!
//! 1. `connection.rs` makes a `Peer` of a connection: an address with the certificate that the handshake took, or the
//!    user id behind the Unix socket.
//! 2. `routes.rs` has put `guard` before each route that is not public. It takes the one API key of the headers (two
//!    that differ are 400) and asks `Authenticator::caller(peer, key)`, before the body is read or its sender invited
//!    to send it.
//! 3. With a key: its id in the list that is in memory, BLAKE3 of its secret compared in constant time, its end, its
//!    revocation. What is not good is 401 whatever the way in would grant, and is recorded; what may be a guess counts
//!    against the address it came from. Without one: a listed certificate, else the user id, else what `[access]` says
//!    of loopback or the socket; beyond loopback that is nothing.
//! 4. `Caller::enter` takes its place within `max_rate` and `max_concurrent`, or 429.
//! 5. `ROUTES.needs`: one permission of the caller's roles suffices, or 403, naming the role; who presented nothing
//!    gets 401.
//! 6. The scope: a caller that is for some models is refused others (`Scope::Model`, `Subject`), the whole box
//!    (`Box`), and shown its own where there are lists (`Listed`). The feature views of values (`Values`) are in the
//!    body: `features/caller.rs` refuses those that are not the caller's, and records what was read and pushed. It
//!    stands before every read and push, those of models included. Who came over TCP and is known by nothing but
//!    loopback is refused when a page had its browser ask (`Origin`, `Sec-Fetch-Site`, a foreign `Host`).
//! 7. The handler gets the `Principal`, for quotas and audit. A route that is audited has `administration::audited`
//!    around it: refused while the log cannot be written, and answered when its records are on the disk.
//!
//! Over MQTT `Desk` asks the same `Authenticator` with the key in a message's properties, or `[access.mqtt]`.
#![forbid(unsafe_code)]

mod administration;
mod browser;
pub mod config;
mod connection;
mod doctor;
mod features;
pub mod fuzz;
mod guard;
mod handover;
mod health;
mod infer;
mod metrics;
mod models;
mod openapi;
mod part;
mod places;
mod refusal;
mod reply;
pub mod routes;
mod stall;
mod terms;
pub mod tls;

use std::sync::Arc;

use axum::Router;
use axum::extract::{OriginalUri, Request};
use axum::http::StatusCode;
use axum::middleware::map_response;
use axum::response::Response;
use bytes::Bytes;
use ledge_audit::status::AuditState;
use ledge_base::memory_budget::MemoryBudget;
use ledge_base::principal::Principal;
use ledge_base::telemetry::machine::MachineMonitor;
use ledge_identity::authentication::Authenticator;
use ledge_models::serving::Serving;
use ledge_part::reply::error;
use ledge_part::web::Web;
use ledge_part::{Part, held};
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;

use config::HttpConfig;
pub use connection::{BindError, Listeners};
pub use handover::{Handover, VARIABLE as LISTENERS_VARIABLE};
pub use tls::ServerTls;

/// What every handler of the API may use. Cheap to clone.
#[derive(Debug, Clone)]
pub struct App {
    shared: Arc<Shared>,
}

/// The parts of the daemon that the API calls.
#[derive(Debug)]
pub struct Parts {
    pub serving: Serving,
    pub readiness: Arc<Readiness>,
    pub authenticator: Authenticator,
    /// Its state decides whether changes of the box are accepted.
    pub audit: AuditState,
    /// All parts of the daemon, for their routes and metrics.
    pub all: Vec<Arc<dyn Part>>,
    pub config: HttpConfig,
    pub shutdown: Shutdown,
}

#[derive(Debug)]
struct Shared {
    parts: Parts,
    web: Web,
    machine: MachineMonitor,
    /// What `GET /openapi.json` answers.
    description: Bytes,
}

impl App {
    pub fn new(parts: Parts) -> Self {
        let memory = MemoryBudget::new(parts.config.max_memory_bytes);
        let audit = parts.serving.audit().clone();
        let web = Web::new(parts.config.body_limits(), memory, audit, parts.shutdown.clone());
        let rules = parts.all.iter().flat_map(|part| part.routes(&web)).map(|route| route.rule);
        let description = openapi::with_undescribed(rules);
        Self { shared: Arc::new(Shared { parts, web, machine: MachineMonitor::default(), description }) }
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

    fn audit(&self) -> &AuditState {
        &self.shared.parts.audit
    }

    fn parts(&self) -> &[Arc<dyn Part>] {
        &self.shared.parts.all
    }

    fn web(&self) -> &Web {
        &self.shared.web
    }

    fn config(&self) -> &HttpConfig {
        &self.shared.parts.config
    }
}

/// Every route. Whether one exists is no secret: the description of all of them is public.
pub fn router(app: &App) -> Router {
    // Nobody's: what is read from the box at no small length is the same for all.
    let account = app.web().memory().account(Principal::Others);
    routes::router(app)
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_verb)
        .layer(map_response(move |answer| std::future::ready(held::counted(answer, &account))))
}

async fn unknown_route(OriginalUri(uri): OriginalUri) -> Response {
    error(StatusCode::NOT_FOUND, &format!("no route {}; GET /openapi.json lists them", uri.path()))
}

async fn wrong_verb(request: Request) -> Response {
    let message = format!("{} is not allowed for {}", request.method(), request.uri().path());
    error(StatusCode::METHOD_NOT_ALLOWED, &message)
}
