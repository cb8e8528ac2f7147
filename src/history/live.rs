//! `GET /figures/live`: each new sample as a server-sent event.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use ledge_identity::authentication::{Authenticator, Caller};
use ledge_part::api_error::ApiError;
use ledge_service::shutdown::Shutdown;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::part::HistoryHttpState;

/// The most listeners at a time: each holds a connection.
const LISTENERS_MAX: usize = 32;

/// The places of listeners. Clones share them.
#[derive(Debug, Clone)]
pub struct EventStreamLimiter(Arc<Semaphore>);

impl Default for EventStreamLimiter {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LISTENERS_MAX)))
    }
}

/// The time after which a listener that is one too many may try again.
const LISTENER_RETRY_AFTER: Duration = Duration::from_secs(10);

/// The time without an event after which a comment shows that the connection is alive.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);

/// The first bytes, which show at once that the answer has begun.
const OPENING: &[u8] = b": one event for each new sample of GET /figures\n\n";

const HEARTBEAT: &[u8] = b": alive\n\n";

/// One listener.
struct EventStreamSubscriber {
    /// The bytes that are sent before the next event.
    opening: Option<Bytes>,
    /// The number of events after which the answer ends; `None` for no end.
    left: Option<u64>,
    events: Receiver<Bytes>,
    caller: Caller,
    authenticator: Authenticator,
    shutdown: Shutdown,
    _place: OwnedSemaphorePermit,
}

/// `GET /figures/live`. With `?events=N` it ends after N events.
pub async fn live(
    State(state): State<HistoryHttpState>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let left = events_of(uri.query().unwrap_or_default())?;
    let place = state.listeners.0.clone().try_acquire_owned().map_err(|_| {
        let message = format!("{LISTENERS_MAX} callers listen already: ask for GET /figures now and then instead");
        ApiError::later(StatusCode::SERVICE_UNAVAILABLE, message, LISTENER_RETRY_AFTER)
    })?;

    let listener = EventStreamSubscriber {
        opening: Some(Bytes::from_static(OPENING)),
        left,
        events: state.history.figures.events(),
        caller,
        authenticator: state.authenticator.clone(),
        shutdown: state.shutdown.clone(),
        _place: place,
    };
    let events = stream::unfold(listener, |mut listener| async move {
        let next = listener.next().await?;
        Some((Ok::<_, std::convert::Infallible>(next), listener))
    });
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The number in `events=N`, the only parameter.
fn events_of(query: &str) -> Result<Option<u64>, ApiError> {
    if query.is_empty() {
        return Ok(None);
    }
    let number = query.strip_prefix("events=").and_then(|number| number.parse().ok());
    let wrong = || ApiError::new(StatusCode::BAD_REQUEST, "expected no parameter, or events=N with a whole number");
    number.map(Some).ok_or_else(wrong)
}

impl EventStreamSubscriber {
    /// The next bytes; `None` at the end: after the last event, at the shutdown, and for a caller whose key was revoked
    /// or has expired.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(opening) = self.opening.take() {
            return Some(opening);
        }
        if self.left == Some(0) {
            return None;
        }
        let next = loop {
            tokio::select! {
                biased;
                () = self.shutdown.requested() => return None,
                event = self.events.recv() => match event {
                    Ok(event) => {
                        self.left = self.left.map(|left| left.saturating_sub(1));
                        break event;
                    }
                    // `GET /figures` has the events that it missed.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                },
                () = tokio::time::sleep(HEARTBEAT_INTERVAL) => break Bytes::from_static(HEARTBEAT),
            }
        };
        self.authenticator.is_current(&self.caller).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_of_events_is_a_parameter() {
        assert_eq!(events_of(""), Ok(None));
        assert_eq!(events_of("events=0"), Ok(Some(0)));
        assert_eq!(events_of("events=12"), Ok(Some(12)));
        for wrong in ["events", "events=", "events=-1", "events=1&key=x", "api_key=x", "events=99999999999999999999"] {
            assert_eq!(events_of(wrong).unwrap_err().status, StatusCode::BAD_REQUEST, "{wrong}");
        }
    }
}
