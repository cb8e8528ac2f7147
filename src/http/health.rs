//! Is it alive, is it ready, who is it.

use axum::extract::State;
use axum::response::Response;
use ledge_part::reply::json;
use ledge_protocol::metadata::{Live, Ready, ServerMetadata};

use super::App;
use super::reply::not_ready;

/// The extensions of the protocol that every route together makes up.
const EXTENSIONS: [&str; 6] =
    ["model_repository", "statistics", "model_configuration", "binary_tensor_data", "classification", "parameters"];

/// `GET /v2`.
pub async fn server_metadata() -> Response {
    json(&ServerMetadata::new("ledge", env!("CARGO_PKG_VERSION"), &EXTENSIONS))
}

/// `GET /v2/health/live`. Triton's clients read the status, those of KServe the body.
pub async fn live() -> Response {
    json(&Live { live: true })
}

/// `GET /v2/health/ready`: ready once every model of the repository was loaded or listed with its reason.
pub async fn ready(State(app): State<App>) -> Response {
    if app.is_ready() { json(&Ready { name: None, ready: true }) } else { not_ready("models are being loaded") }
}
