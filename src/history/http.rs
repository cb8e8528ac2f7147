//! The routes of the figures.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::Response;
use axum::routing::{get, post};
use ledge_base::clock;
use ledge_part::api_error::ApiError;
use ledge_part::reply::json;
use ledge_part::route::needs::{OPERATE, VIEW};
use ledge_part::route::{Route, RouteScope};
use ledge_service::off_thread::blocking;
use serde_json::json;

use crate::figures::after_of;
use crate::live;
use crate::part::HistoryHttpState;
use crate::query::{HistoryForm, HistoryQuery};
use crate::store::STORE_BYTES_MAX;
use crate::unusual::http as unusual;

/// The routes of this crate.
pub const ROUTES: &[Route<HistoryHttpState>] = &[
    Route::get("/figures", VIEW, || get(figures)).scope(RouteScope::Box),
    Route::get("/figures/live", VIEW, || get(live::live)).scope(RouteScope::Box).caller(),
    Route::get("/figures/series", VIEW, || get(series)).scope(RouteScope::Box),
    Route::get("/figures/history", VIEW, || get(history)).scope(RouteScope::Box),
    Route::get("/unusual", VIEW, || get(unusual::status)).scope(RouteScope::Box),
    Route::post("/unusual/{series}/{column}/normal", OPERATE, || post(unusual::call_normal))
        .scope(RouteScope::Box)
        .audited(),
];

/// `GET /figures`.
async fn figures(State(state): State<HistoryHttpState>, uri: Uri) -> Result<Response, ApiError> {
    let after_ms = after_of(uri.query().unwrap_or_default())?;
    Ok(state.history.figures.answer(after_ms))
}

/// `GET /figures/series`: the names of all series, and the health of the store.
async fn series(State(state): State<HistoryHttpState>) -> Response {
    let document = blocking(move || {
        let store = state.history.store();
        let series: Vec<_> =
            store.series().map(|(name, has_hours)| json!({ "name": name.to_string(), "hours": has_hours })).collect();
        let status = store.status();
        json!({
            "series": series,
            "problem": status.problem,
            "lost_records": status.lost,
            "files_set_aside": status.set_aside,
            "bytes_max": STORE_BYTES_MAX,
        })
    })
    .await;
    json(&document)
}

/// `GET /figures/history`: one series at one resolution.
async fn history(State(state): State<HistoryHttpState>, headers: HeaderMap, uri: Uri) -> Result<Response, ApiError> {
    let query = HistoryQuery::parse(uri.query().unwrap_or_default());
    let mut query = query.map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    if headers.get(header::ACCEPT).is_some_and(|accepted| accepted == "text/csv") {
        query.form = HistoryForm::Csv;
    }
    let form = query.form;
    let rows = blocking(move || query.read(&state.history.store(), clock::unix_millis())).await;
    let rows = rows.map_err(|error| {
        let message = format!("the history cannot be read: {error}");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    })?;
    Ok(match form {
        HistoryForm::Json => json(&rows.json()),
        HistoryForm::Csv => {
            let mut response = Response::new(rows.csv().into());
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/csv; charset=utf-8"));
            response
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_route_is_public() {
        for Route { rule, .. } in ROUTES {
            assert!(!rule.is_public());
        }
    }
}
