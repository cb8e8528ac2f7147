//! The routes of alerts: their state, and test messages.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use ledge_part::api_error::ApiError;
use ledge_part::reply::json;
use ledge_part::route::needs::{OPERATE, VIEW};
use ledge_part::route::{PathParts, Route, RouteScope};
use serde::Serialize;

use crate::alerts::Alerts;
use crate::receiver::AlertReceiver;

/// The routes of alerts.
pub const ROUTES: &[Route<Alerts>] = &[
    Route::get("/alerts", VIEW, || get(status)).scope(RouteScope::Box),
    Route::post("/alerts/{alert}/test", OPERATE, || post(test)).scope(RouteScope::Box).recorded_as("alert_test"),
];

/// The time after which a caller may try again while a test message is sent.
const TEST_RETRY_AFTER: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct AlertsDocument<'a> {
    alerts: Vec<ReceiverDocument<'a>>,
}

/// The state of one receiver.
#[derive(Serialize)]
struct ReceiverDocument<'a> {
    name: &'a str,
    /// `webhook` or `mqtt`.
    way: &'static str,
    /// The address without its path, or the topic.
    to: &'a str,
    sent: u64,
    failed: u64,
    error: Option<String>,
    /// Messages that are due and not sent yet.
    due: usize,
    /// The checks that are firing.
    firing: Vec<String>,
}

impl<'a> From<&'a AlertReceiver> for ReceiverDocument<'a> {
    fn from(receiver: &'a AlertReceiver) -> Self {
        let status = receiver.status();
        Self {
            name: receiver.alert.as_str(),
            way: receiver.way.name(),
            to: &receiver.to,
            sent: status.sent,
            failed: status.failed,
            error: status.error,
            due: status.due,
            firing: status.firing,
        }
    }
}

/// `GET /alerts`.
async fn status(State(Alerts(state)): State<Alerts>) -> Response {
    json(&AlertsDocument { alerts: state.receivers.iter().map(|receiver| (&**receiver).into()).collect() })
}

#[derive(Serialize)]
struct TestDocument<'a> {
    alert: &'a str,
    /// The receivers that got it.
    sent: Vec<String>,
}

/// `POST /alerts/{alert}/test`: sends a test message to each receiver of an alert.
async fn test(State(Alerts(state)): State<Alerts>, PathParts(path): PathParts) -> Result<Response, ApiError> {
    let name = path.get("alert").map_or("", String::as_str);
    let receivers: Vec<_> = state.receivers.iter().filter(|receiver| receiver.alert.as_str() == name).collect();
    if receivers.is_empty() {
        let message = "there is no alert of this name with a receiver: see [[alert]] of the configuration";
        return Err(ApiError::new(StatusCode::NOT_FOUND, message));
    }
    let Ok(_testing) = state.testing.try_lock() else {
        let message = "another test message is being sent";
        return Err(ApiError::later(StatusCode::TOO_MANY_REQUESTS, message, TEST_RETRY_AFTER));
    };
    let (mut sent, mut refused) = (Vec::new(), Vec::new());
    for receiver in receivers {
        let to = format!("{} {}", receiver.way.name(), receiver.to);
        match receiver.test(&state.device).await {
            Ok(()) => sent.push(to),
            Err(error) => refused.push(format!("{to}: {error}")),
        }
    }
    if !refused.is_empty() {
        return Err(ApiError::new(StatusCode::BAD_GATEWAY, refused.join("; ")));
    }
    Ok(json(&TestDocument { alert: name, sent }))
}
