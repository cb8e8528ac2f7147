//! Is it alive, is it ready, who is it.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::App;
use super::reply::{error, json};
use crate::protocol::metadata::ServerMetadata;

/// The extensions of the protocol that every route together makes up.
const EXTENSIONS: [&str; 6] =
    ["model_repository", "statistics", "model_configuration", "binary_tensor_data", "classification", "parameters"];

/// `GET /v2`.
pub async fn server_metadata() -> Response {
    json(&ServerMetadata::new("ledge", env!("CARGO_PKG_VERSION"), &EXTENSIONS))
}

/// `GET /v2/health/live`.
pub async fn live() -> StatusCode {
    StatusCode::OK
}

/// `GET /v2/health/ready`: ready once every model of the repository was loaded or listed with its reason.
pub async fn ready(State(app): State<App>) -> Response {
    if app.is_ready() {
        StatusCode::OK.into_response()
    } else {
        error(StatusCode::SERVICE_UNAVAILABLE, "models are being loaded")
    }
}
