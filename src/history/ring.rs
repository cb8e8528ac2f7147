//! The samples of a period at an interval: a ring of rows, the oldest of which makes room for the newest.

use std::collections::VecDeque;
use std::time::Duration;

use ledge_base::clock;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};

use crate::readings::{BOX_COLUMNS, FigureSample};

/// The samples of one period.
#[derive(Debug, Clone)]
pub struct FigureRing {
    interval: Duration,
    rows_max: usize,
    rows: VecDeque<FigureSample>,
    /// The time of the newest row, in milliseconds since the Unix epoch.
    end_ms: u64,
}

impl FigureRing {
    /// An empty ring for `period`.
    pub fn new(interval: Duration, period: Duration) -> Self {
        let rows_max = usize::try_from(period.as_millis() / interval.as_millis().max(1)).unwrap_or(usize::MAX);
        Self { interval, rows_max, rows: VecDeque::with_capacity(rows_max), end_ms: 0 }
    }

    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// The time of the newest row, in milliseconds since the Unix epoch; `None` without one.
    pub fn end_ms(&self) -> Option<u64> {
        (!self.rows.is_empty()).then_some(self.end_ms)
    }

    /// The rows since `after_ms`, in milliseconds since the Unix epoch, as if each took an interval. It is the end of
    /// an earlier answer, cut to seconds, and intervals are a little longer or shorter: so it is rounded to an
    /// interval.
    pub fn after(&self, after_ms: u64) -> Self {
        let interval_ms = self.interval.as_millis().max(1);
        let newer = (u128::from(self.end_ms.saturating_sub(after_ms)) + interval_ms / 2) / interval_ms;
        let older = self.rows.len().saturating_sub(usize::try_from(newer).unwrap_or(usize::MAX));
        Self { rows: self.rows.iter().skip(older).copied().collect(), ..*self }
    }

    /// Adds a sample that was complete at `end_ms`, `elapsed` after the one before. Intervals without a sample, because
    /// the machine was too busy or suspended, become rows without figures.
    pub fn push(&mut self, sample: FigureSample, elapsed: Duration, end_ms: u64) {
        let intervals = (elapsed.as_secs_f64() / self.interval.as_secs_f64()).round();
        let missed =
            (1..self.rows_max).take_while(|number| f64::from(u32::try_from(*number).unwrap_or(u32::MAX)) < intervals);
        if !self.rows.is_empty() {
            self.rows.extend(missed.map(|_| FigureSample::default()));
        }
        self.rows.push_back(sample);
        while self.rows.len() > self.rows_max {
            self.rows.pop_front();
        }
        self.end_ms = end_ms;
    }
}

/// `{"interval_s": 5, "end": "2026-01-01T00:00:00Z", "columns": {"calls_per_s": [...],
/// ...}}`; a figure that is not known is `null`.
impl Serialize for FigureRing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("interval_s", &self.interval.as_secs())?;
        map.serialize_entry("end", &(!self.rows.is_empty()).then(|| clock::rfc3339(self.end_ms)))?;
        map.serialize_entry("columns", &RingColumns(self))?;
        map.end()
    }
}

struct RingColumns<'a>(&'a FigureRing);

impl Serialize for RingColumns<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(BOX_COLUMNS.len()))?;
        for (index, name) in BOX_COLUMNS.iter().enumerate() {
            map.serialize_entry(name, &RingColumn { ring: self.0, index })?;
        }
        map.end()
    }
}

struct RingColumn<'a> {
    ring: &'a FigureRing,
    index: usize,
}

impl Serialize for RingColumn<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.ring.rows.len()))?;
        for row in &self.ring.rows {
            list.serialize_element(&row.figure(self.index))?;
        }
        list.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ring(rows: u32) -> FigureRing {
        FigureRing::new(5 * SECOND, rows * 5 * SECOND)
    }

    fn sample(figure: f32) -> FigureSample {
        let mut sample = FigureSample::default();
        sample.set("calls_per_s", figure);
        sample
    }

    fn calls(ring: &FigureRing) -> Value {
        serde_json::to_value(ring).unwrap()["columns"]["calls_per_s"].clone()
    }

    #[test]
    fn the_oldest_sample_makes_room_for_the_newest() {
        let mut ring = ring(3);
        for figure in [1.0, 2.0, 3.0, 4.0] {
            ring.push(sample(figure), 5 * SECOND, 1_767_225_600_000);
        }
        assert_eq!(calls(&ring), json!([2.0, 3.0, 4.0]));
        let document = serde_json::to_value(&ring).unwrap();
        assert_eq!((&document["interval_s"], &document["end"]), (&json!(5), &json!("2026-01-01T00:00:00Z")));
        assert_eq!(document["columns"].as_object().unwrap().len(), BOX_COLUMNS.len());
        assert_eq!(document["columns"]["queue"], json!([null, null, null]));
    }

    #[test]
    fn the_rows_after_a_time_are_those_that_a_listener_lacks() {
        let mut ring = ring(4);
        let end = 1_767_225_600_000;
        for (figure, at) in [(1.0, end), (2.0, end + 5010), (3.0, end + 9990)] {
            ring.push(sample(figure), 5 * SECOND, at);
        }
        for (after, expected) in [
            (0, json!([1.0, 2.0, 3.0])),
            (end, json!([2.0, 3.0])),
            (end + 5010, json!([3.0])),
            (end + 5000, json!([3.0])),
            (end + 9000, json!([])),
            (end + 9990, json!([])),
            (end + 60_000, json!([])),
        ] {
            assert_eq!(calls(&ring.after(after)), expected, "after {after}");
        }
        let none = serde_json::to_value(ring.after(end + 9990)).unwrap();
        assert_eq!((&none["end"], &none["interval_s"]), (&Value::Null, &json!(5)));
    }

    #[test]
    fn a_missed_sample_is_a_gap_and_no_gap_is_longer_than_the_period() {
        let mut ring = ring(4);
        ring.push(sample(1.0), 500 * SECOND, 0);
        assert_eq!(calls(&ring), json!([1.0]), "nothing is missed before the first");
        ring.push(sample(2.0), 7 * SECOND, 0);
        ring.push(sample(3.0), 11 * SECOND, 0);
        assert_eq!(calls(&ring), json!([1.0, 2.0, null, 3.0]));
        ring.push(sample(4.0), 86_400 * SECOND, 0);
        assert_eq!(calls(&ring), json!([null, null, null, 4.0]));
    }

    #[test]
    fn a_ring_before_its_first_sample_has_no_end() {
        let document = serde_json::to_value(ring(3)).unwrap();
        assert_eq!((&document["end"], &document["columns"]["p99_s"]), (&Value::Null, &json!([])));
    }

    #[test]
    fn a_day_of_samples_keeps_its_bound() {
        let mut day = FigureRing::new(120 * SECOND, 86_400 * SECOND);
        for number in 0..2000_u16 {
            day.push(sample(f32::from(number)), 120 * SECOND, 0);
        }
        let kept = calls(&day);
        let kept = kept.as_array().unwrap();
        assert_eq!((kept.len(), &kept[0], &kept[719]), (720, &json!(1280.0), &json!(1999.0)));
        assert!(serde_json::to_vec(&day).unwrap().len() < 100_000);
    }
}
