//! The route of capacity.

use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use ledge_part::reply::json;
use ledge_part::route::needs::VIEW;
use ledge_part::route::{Route, RouteScope};

use crate::part::Capacity;

/// The routes of capacity.
pub const ROUTES: &[Route<Capacity>] = &[Route::get("/capacity", VIEW, || get(capacity)).scope(RouteScope::Box)];

/// `GET /capacity`.
async fn capacity(State(capacity): State<Capacity>) -> Response {
    json(&capacity.report().await)
}
