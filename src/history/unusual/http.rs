//! The routes of what is unusual: the state of each series with the last events, and "this was normal".

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use ledge_anomaly::{Band, SeriesDetector, SeriesState};
use ledge_base::clock;
use ledge_base::principal::Principal;
use ledge_part::api_error::ApiError;
use ledge_part::reply::json;
use ledge_part::route::PathParts;
use ledge_service::off_thread::blocking;
use serde::{Deserialize, Serialize};

use super::bands::BandColumns;
use super::events::{ReportedEvent, series_and_column};
use super::{CallNormalError, LEARNING_SAMPLES, UnusualWatch};
use crate::part::HistoryHttpState;

/// The series that are watched, and the events that go on and ended, the newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnusualDocument {
    /// `history.unusual_alarms_per_week`: with 0 nothing is watched.
    pub alarms_per_week: u32,
    pub series: Vec<SeriesDocument>,
    pub events: Vec<EventDocument>,
}

/// A series now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeriesDocument {
    /// `box` or `model:NAME`, as in the history.
    pub series: String,
    pub column: String,
    /// `learning`, `normal` or `unusual`.
    pub state: String,
    /// The minutes that are still to be learnt before events are reported.
    pub needed_minutes: u32,
    /// The values that are usual in the next minute. None in the first half day.
    pub band: Option<Band>,
    /// The values that were usual in the last day, of a series of the box.
    pub bands: Option<BandColumns>,
    pub text: Option<String>,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventDocument {
    pub series: String,
    pub column: String,
    /// `spike`, `dip`, `level_shift`, `trend`, `spread`, `stuck`, `silence`, or `limit`.
    pub kind: String,
    /// `up`, `down` or `neither`.
    pub direction: String,
    pub began: String,
    pub ended: Option<String>,
    /// `usual`, `new_normal`, `called_normal`, `limit_far` or `forgotten`.
    pub end: Option<String>,
    /// The value with which it began, and the values that were usual then.
    pub value: Option<f64>,
    pub band: Option<Band>,
    pub text: String,
}

impl EventDocument {
    fn new(event: &ReportedEvent) -> Self {
        let (series, column) = series_and_column(&event.name);
        Self {
            series: series.to_owned(),
            column: column.to_owned(),
            kind: event.kind_word().to_owned(),
            direction: event.direction.as_str().to_owned(),
            began: clock::rfc3339(event.began_ms),
            ended: event.ended.map(|(at_ms, _)| clock::rfc3339(at_ms)),
            end: event.ended.map(|(_, end)| end.as_str().to_owned()),
            value: event.value,
            band: event.band,
            text: event.text.clone(),
        }
    }
}

impl UnusualWatch {
    /// The state of all series, and the events.
    pub fn document(&self) -> UnusualDocument {
        let document = |state: ledge_anomaly::MonitorState<'_>| {
            let (series, column) = series_and_column(state.name);
            let detector = self.set.detector(state.name);
            let needed = LEARNING_SAMPLES.saturating_sub(detector.map_or(0, SeriesDetector::count));
            let text = self.text(&state);
            let word = match state.state {
                _ if text.is_some() => "unusual",
                SeriesState::Learning { .. } => "learning",
                _ if needed > 0 => "learning",
                _ => "normal",
            };
            SeriesDocument {
                series: series.to_owned(),
                column: column.to_owned(),
                state: word.to_owned(),
                needed_minutes: needed,
                band: detector.and_then(SeriesDetector::next_band),
                bands: self.bands.of(state.name),
                text,
            }
        };
        UnusualDocument {
            alarms_per_week: self.alarms_per_week,
            series: self.set.states().map(document).collect(),
            events: self.events.all().map(EventDocument::new).collect(),
        }
    }
}

/// `GET /unusual`.
pub(crate) async fn status(State(state): State<HistoryHttpState>) -> Response {
    json(&blocking(move || state.history.unusual().document()).await)
}

/// `POST /unusual/{series}/{column}/normal`: the event of a series, or its last one, is normal. The answer comes once the
/// state is written.
pub(crate) async fn call_normal(
    State(state): State<HistoryHttpState>,
    path: PathParts,
    Extension(principal): Extension<Principal>,
) -> Result<StatusCode, ApiError> {
    let part = |name: &str| path.0.get(name).map_or("", String::as_str);
    let name = format!("{} {}", part("series"), part("column"));
    let written = blocking(move || -> Result<_, CallNormalError> {
        let mut watch = state.history.unusual();
        let record = watch.call_normal(&name)?;
        state.audit.record(&principal, record);
        Ok(watch.write())
    });
    match written.await {
        Ok(Ok(())) => Ok(StatusCode::OK),
        Ok(Err(error)) => {
            let message = format!("it counts as normal until a restart, but cannot be written: {error}");
            Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message))
        }
        Err(error @ CallNormalError::Unknown) => Err(ApiError::new(StatusCode::NOT_FOUND, error.to_string())),
        Err(error @ CallNormalError::NothingReported) => Err(ApiError::new(StatusCode::CONFLICT, error.to_string())),
    }
}
