//! Handlers of the server: metadata, liveness, readiness.

use axum::extract::State;
use axum::response::Response;
use ledge_part::reply::json;
use ledge_protocol::metadata::{self, LiveResponse, ReadyResponse};

use super::App;
use super::reply::not_ready;

/// `GET /v2`.
pub async fn server_metadata(State(app): State<App>) -> Response {
    json(&metadata::of_server(app.serving()))
}

/// `GET /v2/health/live`. Triton's clients read the status, those of KServe the body.
pub async fn live() -> Response {
    json(&LiveResponse { live: true })
}

/// `GET /v2/health/ready`: ready once every model that this box has served, with the same files, serves again or has
/// failed, and while at least one serves or none is configured. It waits for no new model and for none that failed
/// before.
pub async fn ready(State(app): State<App>) -> Response {
    if app.is_ready() {
        json(&ReadyResponse { name: None, ready: true })
    } else if app.is_started() {
        not_ready("not ready: no model serves; POST /v2/repository/index has the reasons")
    } else {
        not_ready("not ready: models are being loaded")
    }
}
