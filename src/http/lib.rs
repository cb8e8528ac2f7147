//! HTTP/1.1 and its routes, with one handler file for each noun. Sockets, TLS and limits on connections are in the
//! crate `listener`, the protocols in the crate `protocol`. Parts write their own routes with axum, too.
//!
//! Files, in reading order:
//! * `config.rs` - `[http]`; `part.rs` its mistakes and findings
//! * `local_plain.rs` - `[[http.local_plain]]`, addresses without encryption in a local network
//! * `host_networks.rs` - networks between the containers of this machine
//! * `connection.rs` - connections with HTTP/1.1
//! * `head_lines.rs` - heads whose lines end with CR LF; a bare LF is refused
//! * `connection_close.rs` - lingering close, and error bodies for requests that hyper refuses
//! * `app.rs` - the state that handlers share
//! * `routes.rs` - `ROUTES`, the table of the routes of this crate, and the router of these and those of parts
//! * `routers.rs` - the routers of the listeners, with the answers to unknown routes
//! * `denied.rs` - the refusal of a request
//! * `guard.rs` - the caller of a request, and its permission, before any body is read
//! * `browser.rs` - detection of requests that a foreign web page made a browser send
//! * `administration.rs` - changes of the box, answered after their durable audit record
//! * `call_headers.rs`, `accept.rs` - priority and timeout of a call, and the forms that its caller accepts, from its
//!   headers
//! * `infer.rs`, `models.rs` - handlers: inference; models
//! * `csv.rs` - CSV to a model with a pipeline of rows, answered while it is read
//! * `vision.rs`, `vision/` - handlers of DeepStack's interface, and `[vision]`
//! * `openai.rs`, `openai/` - handlers of OpenAI's interface for embeddings, and `[openai]`
//! * `document_intelligence.rs`, `document_intelligence/` - handlers of Azure's interface for documents, and `[documents]`
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
//!   that Feast's client expects, and every path of DeepStack's and Azure's interfaces theirs.
//! * Memory of a call counts until the caller has read the answer.
//! * Figures are read from their owners at each scrape. Nothing is counted twice.
//! * The crate knows no runtime, and no file of the repository.
//!
//! # Where it is decided
//!
//! * The 401 and 403 of a request: `guard.rs` (`denied`)
//! * The form of an answer, a picture in place of JSON: `wanted_picture` in `infer.rs`; drawn by
//!   `engine/pipeline/annotation.rs`
//! * CSV: the parts, the bytes that are held back, and an answer that is broken off: `csv.rs`
//! * The time that an idle connection may stay open: `http.header_timeout_ms`, applied in `connection.rs`
//!
//! # One caller
//!
//! 1. `listener/listeners.rs` makes a `Peer` of a connection: an address with the certificate of the handshake, or the
//!    user id behind the Unix socket.
//! 2. `routes.rs` puts `guard` before each route that is not public. It takes the API key from the headers (two
//!    different keys are 400) and calls `Authenticator::caller(peer, key)`, before the body is read and before a
//!    `100 Continue` is sent.
//! 3. With a key, it checks the key's id in the list in memory, BLAKE3 of its secret in constant time, its expiry and
//!    its revocation. An invalid key is 401, whatever the roles of the way in, and is recorded; a key that may be a
//!    guess counts against the address it came from. Without a key, the caller is a listed certificate, else the user
//!    id, else has the roles that `[access]` gives to loopback or the socket; beyond loopback it has none. A key in a
//!    form of `/v1/vision` counts as one in a header (`guard::admit_by_form`): for a caller that would be refused
//!    without it, the guard reads the start of the form.
//! 4. `Caller::enter` returns a `RequestPermit` within `max_rate` and `max_concurrent`, or 429.
//! 5. `RouteRule::needs`: one of these permissions in the caller's roles suffices. Otherwise the answer is 403 and
//!    names the role, or 401 for a caller without a credential.
//! 6. The scope (`RouteRule::scope`): a caller that is limited to some models is refused for other models
//!    (`RouteScope::Model`, `Subject`) and for the whole box (`Box`), and sees its own models in lists (`Listed`). The
//!    feature views of values (`Values`) are in the body: `features/caller.rs` refuses those that are not the caller's,
//!    and records reads and pushes, those of models included. A caller over TCP without a credential is refused when
//!    the request comes from a foreign web page (`browser::foreign_request`: `Origin`, `Sec-Fetch-Site`, a foreign
//!    `Host`).
//! 7. The handler gets the `Principal`, for quotas and audit. An audited route has `administration::audited` around it:
//!    it is refused while the log cannot be written, and answered when its records are on the disk.
//!
//! Over MQTT, `mqtt/caller.rs` uses the same `Authenticator` with the key in a message's properties, or
//! `[access.mqtt]`.
#![forbid(unsafe_code)]

mod accept;
mod administration;
mod app;
mod browser;
mod call_headers;
pub mod config;
mod connection;
mod connection_close;
mod csv;
mod denied;
mod doctor;
mod features;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod guard;
mod head_lines;
mod host_networks;
mod health;
mod infer;
mod local_plain;
mod metrics;
mod models;
pub mod document_intelligence;
pub mod openai;
mod openapi;
mod part;
mod reply;
mod routers;
pub mod routes;
pub mod vision;

pub use app::{App, AppParts};
pub use connection::service;
pub use routers::Routers;

/// The name of the service of HTTP listeners.
pub const SERVICE: &str = "http";
