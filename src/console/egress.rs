//! `GET /egress`: what can leave this box, and how much did.

use std::fmt;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use ledge_part::reply::json_bytes;
use ledge_service::off_thread::blocking;
use serde_json::Value;

use crate::http::ConsoleState;

/// Makes the report of `ledge audit egress`. It may block: it reads a file.
#[derive(Clone)]
pub struct EgressSource(Arc<dyn Fn() -> Value + Send + Sync>);

impl EgressSource {
    pub fn new(report: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        Self(Arc::new(report))
    }
}

impl fmt::Debug for EgressSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EgressSource")
    }
}

/// `GET /egress`.
pub async fn egress(State(console): State<ConsoleState>) -> Response {
    let report = console.egress.0.clone();
    json_bytes(blocking(move || report().to_string()).await)
}
