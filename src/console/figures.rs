//! `GET /figures`: the activity of the box in the last hour and the last day; with `?after=TIME` only the samples since
//! then.
//!
//! One task reads the counters every five seconds. The memory is fixed: two rings of 720 samples, 65 kB together.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use ledge_base::clock;
use ledge_part::api_error::ApiError;
use ledge_part::reply::json;
use ledge_service::off_thread::blocking;
use ledge_service::shutdown::Shutdown;
use serde::Serialize;
use tokio::sync::broadcast;
use tokio::time::MissedTickBehavior;

use crate::readings::{FigureInterval, FigureReader, FigureReading, FigureSample};
use crate::ring::FigureRing;

const HOUR: Duration = Duration::from_hours(1);
const HOUR_INTERVAL: Duration = Duration::from_secs(5);
const DAY: Duration = Duration::from_hours(24);
const DAY_INTERVAL: Duration = Duration::from_mins(2);

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
}

impl Default for FigureHistory {
    fn default() -> Self {
        let rings = FigureRings { hour: FigureRing::new(HOUR_INTERVAL, HOUR), day: FigureRing::new(DAY_INTERVAL, DAY) };
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
            Some(after_ms) => json(&FigureRings { hour: rings.hour.after(after_ms), day: rings.day.after(after_ms) }),
        }
    }

    fn push(&self, period: FigurePeriod, sample: FigureSample, elapsed: Duration, end_ms: u64) {
        let interval = {
            // Nothing panics under this lock.
            let rings = &mut *self.rings.lock().unwrap_or_else(PoisonError::into_inner);
            let ring = match period {
                FigurePeriod::Hour => &mut rings.hour,
                FigurePeriod::Day => &mut rings.day,
            };
            ring.push(sample, elapsed, end_ms);
            ring.interval()
        };
        if self.events.receiver_count() > 0 {
            // Fails where the last listener has just gone.
            let _ = self.events.send(event(period, &sample, interval, end_ms));
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum FigurePeriod {
    Hour,
    Day,
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

/// Keeps the figures until the shutdown.
pub async fn keep(figures: FigureHistory, mut reader: FigureReader, shutdown: Shutdown) {
    let mut recorder = FigureRecorder::new(FigureReading::at_start());
    let mut ticks = tokio::time::interval(HOUR_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    // The first tick comes at once.
    ticks.tick().await;
    let usage = reader.serving().clone();
    let (mut at, mut cpu) = (recorder.started(), recorder.cpu());
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shutdown.requested() => return,
        }
        let reading;
        (reader, reading) = blocking(move || {
            let reading = reader.read();
            (reader, reading)
        })
        .await;
        let service_cpu = reading.totals.cpu().zip(cpu).map(|(now, before)| now.saturating_sub(before));
        let end_ms = clock::unix_millis();
        usage.usage().end_interval(end_ms, reading.at.saturating_duration_since(at), service_cpu);
        (at, cpu) = (reading.at, reading.totals.cpu());
        recorder.take(reading, end_ms, &figures);
    }
}

/// The intervals that are not complete.
#[derive(Debug)]
struct FigureRecorder {
    hour: FigureInterval,
    day: FigureInterval,
}

impl FigureRecorder {
    fn new(start: FigureReading) -> Self {
        Self { hour: FigureInterval::starting(start.clone()), day: FigureInterval::starting(start) }
    }

    fn started(&self) -> Instant {
        self.hour.start().at
    }

    fn cpu(&self) -> Option<Duration> {
        self.hour.start().totals.cpu()
    }

    /// Completes the sample of the hour, and that of the day where it is time.
    fn take(&mut self, reading: FigureReading, end_ms: u64, figures: &FigureHistory) {
        self.hour.take(&reading);
        figures.push(FigurePeriod::Hour, self.hour.sample(&reading), self.hour.elapsed(&reading), end_ms);
        self.hour = FigureInterval::starting(reading.clone());

        self.day.take(&reading);
        // A tick that is a little early still completes it.
        if self.day.elapsed(&reading) + HOUR_INTERVAL / 2 >= DAY_INTERVAL {
            figures.push(FigurePeriod::Day, self.day.sample(&reading), self.day.elapsed(&reading), end_ms);
            self.day = FigureInterval::starting(reading);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::readings::test_reading;

    fn lengths(figures: &FigureHistory) -> (usize, usize) {
        let document = serde_json::to_value(&*figures.rings.lock().unwrap()).unwrap();
        let length = |ring: &str| document[ring]["columns"]["queue"].as_array().unwrap().len();
        (length("hour"), length("day"))
    }

    #[test]
    fn a_sample_of_the_day_comes_after_two_minutes_of_samples() {
        let (figures, start) = (FigureHistory::default(), Instant::now());
        let mut recorder = FigureRecorder::new(test_reading(start));
        for number in 1..=23_u32 {
            recorder.take(test_reading(start + number * HOUR_INTERVAL), 0, &figures);
        }
        assert_eq!(lengths(&figures), (23, 0));
        // The timer may be a little early.
        recorder.take(test_reading(start + 23 * HOUR_INTERVAL + Duration::from_millis(4997)), 0, &figures);
        assert_eq!(lengths(&figures), (24, 1));
        for number in 25..=48_u32 {
            recorder.take(test_reading(start + number * HOUR_INTERVAL), 0, &figures);
        }
        assert_eq!(lengths(&figures), (48, 2));
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
    fn a_suspended_machine_leaves_a_gap_in_both() {
        let (figures, start) = (FigureHistory::default(), Instant::now());
        let mut recorder = FigureRecorder::new(test_reading(start));
        recorder.take(test_reading(start + HOUR_INTERVAL), 0, &figures);
        recorder.take(test_reading(start + 3 * HOUR), 0, &figures);
        let (hour, day) = lengths(&figures);
        assert_eq!((hour, day), (720, 1), "an hour of gaps, and the first sample of the day");
        recorder.take(test_reading(start + 4 * HOUR), 0, &figures);
        assert_eq!(lengths(&figures).1, 31);
    }

    #[test]
    fn an_event_is_one_line_of_json_with_every_figure() {
        let text = event(FigurePeriod::Day, &FigureSample::default(), DAY_INTERVAL, 1_767_225_600_000);
        let text = std::str::from_utf8(&text).unwrap();
        let data = text.strip_prefix("event: day\ndata: ").unwrap().strip_suffix("\n\n").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!((data["interval_s"].as_u64(), data["end"].as_str()), (Some(120), Some("2026-01-01T00:00:00Z")));
        assert_eq!(data["figures"].as_object().unwrap().len(), crate::readings::COLUMNS.len());
    }
}
