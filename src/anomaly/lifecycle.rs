//! Begin and end of events, with hysteresis, and the rate of alarms: each alarm makes the next a little harder, so that
//! a series whose faults are what is usual comes to rest at the rate that the owner set.

use crate::event::{Change, Direction, Unusual, UnusualKind};
use crate::measures::{Peaks, Readings};
use crate::pace::Pace;
use crate::trend::Trend;
use serde::{Deserialize, Serialize};

/// An event ends when its score was below this for so many samples.
const CALM: f64 = 0.7;
const CALM_SAMPLES: u32 = 3;
/// Samples after which a spike that is still there is a shift of the level.
const SHIFT_SAMPLES: u32 = 5;
/// A spike that did not become a shift by then ends, even if the series is not back.
const WAIT_FOR_SHIFT: u32 = 16;
const SHIFT_SCORE: f64 = 0.8;
/// Factor of all thresholds after an alarm, and its bound. It fades within about a week.
const STRICTER: f64 = 1.2;
const STRICTEST: f64 = 5.0;

/// The event of now, and what the last ones leave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lifecycle {
    event: Option<Unusual>,
    last_event: Option<Unusual>,
    peaks: Peaks,
    strictness: f64,
    samples: u32,
    calm: u32,
    /// The trend that was found, and whether it was reported or accepted.
    trend: Option<Trend>,
    trend_reported: bool,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            event: None,
            last_event: None,
            peaks: Peaks::default(),
            strictness: 1.0,
            samples: 0,
            calm: 0,
            trend: None,
            trend_reported: false,
        }
    }
}

impl Lifecycle {
    pub fn event(&self) -> Option<Unusual> {
        self.event
    }

    pub fn is(&self, kinds: &[UnusualKind]) -> bool {
        self.event.is_some_and(|event| kinds.contains(&event.kind))
    }

    pub fn trend(&self) -> Option<Trend> {
        self.trend
    }

    pub fn strictness(&self) -> f64 {
        self.strictness
    }

    pub fn set_trend(&mut self, trend: Option<Trend>) {
        self.trend = trend;
        if trend.is_none() {
            self.trend_reported = false;
        }
    }

    /// Judges the readings of a sample. `is_back`: the last samples lie where the series usually is.
    pub fn turn(&mut self, pace: Pace, time_ms: i64, readings: &Readings, is_back: bool) -> Option<Change> {
        self.strictness = 1.0 + (self.strictness - 1.0) * (1.0 - 1.0 / pace.samples_a_week().max(50.0));
        let score = readings.score() / self.strictness;
        let Some(mut event) = self.event else {
            return self.begin_if_unusual(time_ms, readings, score);
        };

        self.samples = self.samples.saturating_add(1);
        self.peaks = self.peaks.with(readings.peaks());
        event.score = event.score.max(score);
        self.refine(&mut event, readings, is_back);
        self.event = Some(event);

        let is_calm = match event.kind {
            UnusualKind::Silence => true,
            UnusualKind::Trend => self.trend.is_none(),
            UnusualKind::Stuck => readings.run < CALM,
            UnusualKind::LevelShift => is_back && readings.lasting() < CALM * self.strictness,
            UnusualKind::Spread => readings.spread.ratio() < CALM * self.strictness,
            UnusualKind::Spike | UnusualKind::Dip => {
                let is_over = is_back || self.samples >= WAIT_FOR_SHIFT;
                is_over && readings.point.ratio() < CALM * self.strictness && readings.lasting() < 1.0
            }
        };
        self.calm = if is_calm { self.calm.saturating_add(1) } else { 0 };
        let needed = if matches!(event.kind, UnusualKind::Silence | UnusualKind::Stuck) { 1 } else { CALM_SAMPLES };
        if self.calm >= needed {
            return Some(self.end(event, false));
        }
        let lasts =
            matches!(event.kind, UnusualKind::LevelShift | UnusualKind::Spread | UnusualKind::Spike | UnusualKind::Dip);
        if lasts && self.samples >= pace.acceptance_samples() {
            return Some(self.end(event, true));
        }
        None
    }

    fn begin_if_unusual(&mut self, time_ms: i64, readings: &Readings, score: f64) -> Option<Change> {
        if let (Some(Trend { per_hour, since_ms, .. }), false) = (self.trend, self.trend_reported) {
            self.trend_reported = true;
            let direction = if per_hour > 0.0 { Direction::Up } else { Direction::Down };
            return Some(self.begin(UnusualKind::Trend, direction, since_ms.min(time_ms), score.max(1.0), readings));
        }
        if score < 1.0 {
            return None;
        }
        let (kind, direction) = readings.kind();
        Some(self.begin(kind, direction, time_ms, score, readings))
    }

    /// Names an event by what it became.
    fn refine(&mut self, event: &mut Unusual, readings: &Readings, is_back: bool) {
        let is_point = matches!(event.kind, UnusualKind::Spike | UnusualKind::Dip);
        let can_shift = is_point || event.kind == UnusualKind::Spread && readings.spread.ratio() < readings.lasting();
        if can_shift && !is_back && self.samples >= SHIFT_SAMPLES && readings.lasting() >= SHIFT_SCORE {
            event.kind = UnusualKind::LevelShift;
            event.direction = readings.lasting_direction();
        }
        if is_point && self.samples >= SHIFT_SAMPLES && readings.spread.ratio() >= readings.lasting().max(1.0) {
            event.kind = UnusualKind::Spread;
            event.direction = if readings.spread.size > 0.0 { Direction::Up } else { Direction::Down };
        }
        if let (Some(Trend { per_hour, since_ms, .. }), false) = (self.trend, self.trend_reported) {
            self.trend_reported = true;
            event.kind = UnusualKind::Trend;
            event.direction = if per_hour > 0.0 { Direction::Up } else { Direction::Down };
            event.since_ms = event.since_ms.min(since_ms);
        }
    }

    pub fn silence(&mut self, since_ms: i64, ratio: f64) -> Option<Change> {
        match &mut self.event {
            None if ratio >= 1.0 => {
                let event =
                    Unusual { kind: UnusualKind::Silence, direction: Direction::Neither, since_ms, score: ratio };
                self.event = Some(event);
                self.peaks = Peaks::default();
                (self.samples, self.calm) = (0, 0);
                Some(Change::Began(event))
            }
            Some(event) if event.kind == UnusualKind::Silence => {
                event.score = event.score.max(ratio);
                None
            }
            _ => None,
        }
    }

    fn begin(
        &mut self,
        kind: UnusualKind,
        direction: Direction,
        since_ms: i64,
        score: f64,
        readings: &Readings,
    ) -> Change {
        let event = Unusual { kind, direction, since_ms, score };
        self.event = Some(event);
        self.peaks = readings.peaks();
        (self.samples, self.calm) = (0, 0);
        self.strictness = (self.strictness * STRICTER).min(STRICTEST);
        Change::Began(event)
    }

    fn end(&mut self, event: Unusual, is_new_normal: bool) -> Change {
        self.last_event = Some(event);
        self.event = None;
        Change::Ended { event, is_new_normal }
    }

    /// The event that a person speaks of: that of now, or else the last.
    pub fn taught(&self) -> Option<Unusual> {
        self.event.or(self.last_event)
    }

    pub fn peaks(&self) -> Peaks {
        self.peaks
    }

    /// Ends the event of now as normal.
    pub fn accept(&mut self) -> Option<Change> {
        self.trend = None;
        self.trend_reported = false;
        let event = self.event?;
        Some(self.end(event, true))
    }

    pub fn is_sound(&self) -> bool {
        let events = [self.event, self.last_event];
        let is_event = |event: &Unusual| (0.0..1e9).contains(&event.score) && event.since_ms.unsigned_abs() < 1 << 61;
        events.iter().flatten().all(is_event)
            && self.peaks.is_sound()
            && (1.0..=STRICTEST).contains(&self.strictness)
            && self.trend.as_ref().is_none_or(Trend::is_sound)
    }
}
