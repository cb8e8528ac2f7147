//! `GET /egress`: the data that can leave this box, and the amounts that did.

use axum::extract::State;
use axum::response::Response;
use ledge_part::reply::json_bytes;
use ledge_service::off_thread::blocking;

use crate::state::ConsoleHttpState;

/// `GET /egress`.
pub async fn egress(State(console): State<ConsoleHttpState>) -> Response {
    let report = console.egress.0.clone();
    json_bytes(blocking(move || report().to_string()).await)
}
