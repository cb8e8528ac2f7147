//! `GET /report`: the report of a month, as a page or as JSON.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::Response;
use axum::routing::get;
use ledge_base::clock::{self, TimeZone};
use ledge_base::month::Month;
use ledge_part::api_error::ApiError;
use ledge_part::reply::json;
use ledge_part::route::needs::ADMINISTER;
use ledge_part::route::{Route, RouteScope};
use tokio::sync::Mutex;

use crate::page::page;
use crate::read::{self, ReportSource};

/// The routes of the report.
pub const ROUTES: &[Route<ReportHttpState>] =
    &[Route::get("/report", ADMINISTER, || get(report)).scope(RouteScope::Box)];

/// Finds the logs of the box and everything else that the report of a month needs. It may block; an error is the reason why not.
pub type FindReportSource = Arc<dyn Fn(Month) -> Result<ReportSource, String> + Send + Sync>;

/// The state of the route.
#[derive(Clone)]
pub struct ReportHttpState {
    pub find: FindReportSource,
    /// One report at a time: each reads all logs.
    pub turn: Arc<Mutex<()>>,
}

/// `GET /report?month=2026-11&format=json`.
async fn report(State(ReportHttpState { find, turn }): State<ReportHttpState>, uri: Uri) -> Result<Response, ApiError> {
    let now_ms = clock::unix_millis();
    let query = ReportQuery::parse(uri.query().unwrap_or_default(), now_ms)?;
    let _turn = turn.lock().await;
    let failed = |reason: String| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the report cannot be made: {reason}"))
    };
    let runtime = tokio::runtime::Handle::current();
    let reading = tokio::task::spawn_blocking(move || {
        let source = find(query.month)?;
        runtime.block_on(read::report(&source, query.month, now_ms)).map_err(|error| error.to_string())
    });
    let report = reading.await.map_err(|error| failed(error.to_string()))?.map_err(failed)?;
    if query.is_json {
        return Ok(json(&report));
    }
    let mut response = Response::new(Body::from(page(&report)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    );
    Ok(response)
}

/// The query of a request.
struct ReportQuery {
    month: Month,
    is_json: bool,
}

impl ReportQuery {
    fn parse(query: &str, now_ms: u64) -> Result<Self, ApiError> {
        let bad = |message: String| ApiError::new(StatusCode::BAD_REQUEST, message);
        let (mut month, mut format) = (None, None);
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("month", text)) if month.is_none() => {
                    month = Some(text.parse::<Month>().map_err(|error| bad(format!("month: {error}")))?);
                }
                Some(("format", "html")) if format.is_none() => format = Some(false),
                Some(("format", "json")) if format.is_none() => format = Some(true),
                _ => {
                    return Err(bad(format!(
                        "unknown query {part:?}: expected month=YYYY-MM and format=html or json, each at most once"
                    )));
                }
            }
        }
        let month = month.unwrap_or_else(|| Month::of(&TimeZone::utc(), now_ms).previous());
        Ok(Self { month, is_json: format.unwrap_or(false) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_month_is_the_last_complete_one_unless_it_is_named() {
        let now_ms = "2026-12".parse::<Month>().unwrap().begin_ms(&TimeZone::utc()) + 5;
        let parse = |query: &str| ReportQuery::parse(query, now_ms).ok().map(|it| (it.month.to_string(), it.is_json));
        assert_eq!(parse(""), Some(("2026-11".into(), false)));
        assert_eq!(parse("month=2026-02&format=json"), Some(("2026-02".into(), true)));
        for bad in ["month=11", "month=2026-11&month=2026-10", "format=pdf", "year=2026"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
