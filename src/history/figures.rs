//! `GET /figures`: the activity of the box in the last hour and the last day; with `?after=TIME` only the samples since
//! then. The memory is fixed: rings of 720 and 1,440 samples, 120 kB together.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use ledge_base::clock;
use ledge_part::api_error::ApiError;
use ledge_part::reply::json;
use serde::Serialize;
use tokio::sync::broadcast;

use crate::readings::FigureSample;
use crate::ring::FigureRing;

const HOUR: Duration = Duration::from_hours(1);
pub const HOUR_INTERVAL: Duration = Duration::from_secs(5);
const DAY: Duration = Duration::from_hours(24);
const DAY_INTERVAL: Duration = Duration::from_mins(1);

/// The events that a slow listener may be behind. It then misses some.
const EVENTS_BEHIND_MAX: usize = 4;

/// The figures. Clones share them.
#[derive(Debug, Clone)]
pub struct FigureHistory {
    rings: Arc<Mutex<FigureRings>>,
    events: broadcast::Sender<Bytes>,
}

#[derive(Debug, Serialize)]
struct FigureRings {
    hour: FigureRing,
    day: FigureRing,
    /// True until the first sample after those that were stored.
    #[serde(skip)]
    is_hour_restored: bool,
    #[serde(skip)]
    is_day_restored: bool,
}

impl FigureRings {
    fn new(hour: FigureRing, day: FigureRing) -> Self {
        Self { hour, day, is_hour_restored: false, is_day_restored: false }
    }
}

impl Default for FigureHistory {
    fn default() -> Self {
        let rings = FigureRings::new(FigureRing::new(HOUR_INTERVAL, HOUR), FigureRing::new(DAY_INTERVAL, DAY));
        Self { rings: Arc::new(Mutex::new(rings)), events: broadcast::Sender::new(EVENTS_BEHIND_MAX) }
    }
}

impl FigureHistory {
    /// The events of new samples, ready to be sent.
    pub fn events(&self) -> broadcast::Receiver<Bytes> {
        self.events.subscribe()
    }

    /// The samples; those after this time where one is given, in milliseconds since the Unix epoch.
    pub fn answer(&self, after_ms: Option<u64>) -> Response {
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        match after_ms {
            None => json(&*rings),
            Some(after_ms) => json(&FigureRings::new(rings.hour.after(after_ms), rings.day.after(after_ms))),
        }
    }

    /// Adds a sample that ended at `end_ms` and lasted for `elapsed`.
    pub fn push(&self, period: FigurePeriod, sample: FigureSample, elapsed: Duration, end_ms: u64) {
        let interval = self.remember(period, sample, elapsed, end_ms);
        if self.events.receiver_count() > 0 {
            // Fails where the last listener has just gone.
            let _ = self.events.send(event(period, &sample, interval, end_ms));
        }
    }
}

/// A ring.
#[derive(Debug, Clone, Copy)]
pub enum FigurePeriod {
    Hour,
    Day,
}

impl FigureHistory {
    /// Adds a sample without an event, and returns the interval of its ring. The first one since the start follows those
    /// that were stored before, after a gap.
    pub fn remember(&self, period: FigurePeriod, sample: FigureSample, elapsed: Duration, end_ms: u64) -> Duration {
        // Nothing panics under this lock.
        let rings = &mut *self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let (ring, is_restored) = match period {
            FigurePeriod::Hour => (&mut rings.hour, &mut rings.is_hour_restored),
            FigurePeriod::Day => (&mut rings.day, &mut rings.is_day_restored),
        };
        let away = ring.end_ms().filter(|_| std::mem::take(is_restored));
        let away = away.map(|before| Duration::from_millis(end_ms.saturating_sub(before)));
        ring.push(sample, away.map_or(elapsed, |away| away.max(elapsed)), end_ms);
        ring.interval()
    }

    /// Notes that the samples until now are those of before the start.
    pub fn restored(&self) {
        let rings = &mut *self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        (rings.is_hour_restored, rings.is_day_restored) = (true, true);
    }
}

#[derive(Serialize)]
struct FiguresEvent<'a> {
    interval_s: u64,
    end: String,
    figures: &'a FigureSample,
}

/// A server-sent event: the name of the ring, and the sample that it got.
fn event(period: FigurePeriod, sample: &FigureSample, interval: Duration, end_ms: u64) -> Bytes {
    let name = match period {
        FigurePeriod::Hour => "hour",
        FigurePeriod::Day => "day",
    };
    let event = FiguresEvent { interval_s: interval.as_secs(), end: clock::rfc3339(end_ms), figures: sample };
    // Numbers and times always have a form in JSON.
    let data = serde_json::to_string(&event).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n").into()
}

/// The time in `after=TIME`, the only parameter, in milliseconds since the Unix epoch.
pub fn after_of(query: &str) -> Result<Option<u64>, ApiError> {
    if query.is_empty() {
        return Ok(None);
    }
    let time = query.strip_prefix("after=").map(|time| time.replace("%3A", ":").replace("%3a", ":"));
    let time = time.and_then(|time| u64::try_from(clock::parse_micros(&time)? / 1000).ok());
    let wrong = || {
        let message = "expected no parameter, or after=TIME with the `end` of an answer, such as 2026-01-01T00:00:00Z";
        ApiError::new(StatusCode::BAD_REQUEST, message)
    };
    time.map(Some).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn length(figures: &FigureHistory, ring: &str) -> usize {
        let document = serde_json::to_value(&*figures.rings.lock().unwrap()).unwrap();
        document[ring]["columns"]["queue"].as_array().unwrap().len()
    }

    #[test]
    fn the_first_sample_after_a_start_follows_a_gap() {
        let figures = FigureHistory::default();
        figures.remember(FigurePeriod::Hour, FigureSample::default(), HOUR_INTERVAL, 1_000_000);
        figures.restored();
        figures.push(FigurePeriod::Hour, FigureSample::default(), HOUR_INTERVAL, 1_060_000);
        assert_eq!(length(&figures, "hour"), 13);
        figures.push(FigurePeriod::Hour, FigureSample::default(), HOUR_INTERVAL, 1_999_000);
        assert_eq!(length(&figures, "hour"), 14, "a step of the clock is no gap");
        figures.restored();
        figures.push(FigurePeriod::Hour, FigureSample::default(), HOUR_INTERVAL, 7_000);
        assert_eq!(length(&figures, "hour"), 15, "nor is one that went back");
    }

    #[test]
    fn only_a_time_is_a_parameter() {
        assert_eq!(after_of(""), Ok(None));
        for time in ["after=2026-01-01T00:00:00Z", "after=2026-01-01T00%3A00%3a00Z"] {
            assert_eq!(after_of(time), Ok(Some(1_767_225_600_000)), "{time}");
        }
        for wrong in
            ["after", "after=", "after=soon", "after=1960-01-01T00:00:00Z", "since=2026-01-01T00:00:00Z", "api_key=x"]
        {
            assert_eq!(after_of(wrong).unwrap_err().status, StatusCode::BAD_REQUEST, "{wrong}");
        }
    }

    #[test]
    fn an_event_is_one_line_of_json_with_every_figure() {
        let text = event(FigurePeriod::Day, &FigureSample::default(), DAY_INTERVAL, 1_767_225_600_000);
        let text = std::str::from_utf8(&text).unwrap();
        let data = text.strip_prefix("event: day\ndata: ").unwrap().strip_suffix("\n\n").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!((data["interval_s"].as_u64(), data["end"].as_str()), (Some(60), Some("2026-01-01T00:00:00Z")));
        assert_eq!(data["figures"].as_object().unwrap().len(), crate::readings::BOX_COLUMNS.len());
    }
}
