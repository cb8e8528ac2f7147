//! The detector of one series: learns its level, spread and season, and judges each new sample.

use crate::codec::{self, Sound, StateError};
use crate::event::{Band, Change, SampleError, SeriesState, Unusual, UnusualKind, Verdict};
use crate::lifecycle::Lifecycle;
use crate::measures::{Measures, Readings};
use crate::pace::{DAY_MS, HOUR_MS, Pace};
use crate::predictors::Predictors;
use crate::ring::{CAPACITY, RecentSamples};
use crate::runs::{Gaps, Runs};
use crate::season::Season;
use crate::trend::{TimeToLimit, Trend, TrendSketch};
use serde::{Deserialize, Serialize};

/// Samples beyond this are no measurement, and their squares have to fit.
const LARGEST_SAMPLE: f64 = 1e16;
/// Times beyond this are none, so that no arithmetic on times overflows.
const LATEST_MS: u64 = 1 << 60;
/// Samples in a row that are kept from the predictors as faults. After that the series is believed to be there.
const SURPRISES: u8 = 3;
/// The level follows no sample further than this many times its usual distance.
const LEVEL_CUT: f64 = 3.0;
/// A residual counts for the spread of its hour as no more than this many times the usual one.
const SPREAD_CUT: f64 = 20.0;
/// Samples between two searches for a period.
const PERIOD_SEARCH: u32 = 96;
/// A change this small, relative to the value, is rounding.
const ROUNDING: f64 = 1e-6;
/// A change this small, relative to a usual step of the series, is as good as none. Where most samples are equal, such as
/// counts of rare failures, the mean of all residuals says nothing about those that are not 0.
const STEP_SHARE: f64 = 0.05;

/// State of one series, about 6 KB. Pure: times are those of the samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeriesDetector {
    pub(crate) pace: Pace,
    /// The first sample. Everything else is relative to it, so that a large value with small changes keeps its digits.
    pub(crate) origin: f64,
    pub(crate) count: u32,
    pub(crate) last_ms: i64,
    pub(crate) level: f64,
    pub(crate) lowest: f64,
    pub(crate) season: Season,
    pub(crate) recent: RecentSamples,
    pub(crate) predictors: Predictors,
    pub(crate) measures: Measures,
    pub(crate) runs: Runs,
    pub(crate) gaps: Gaps,
    pub(crate) trends: [TrendSketch; 2],
    pub(crate) lifecycle: Lifecycle,
    surprises: u8,
}

/// A sample next to what was expected of it.
pub(crate) struct Expectation {
    pub(crate) baseline: f64,
    pub(crate) predicted: f64,
    pub(crate) floor: f64,
    pub(crate) spread: f64,
}

impl SeriesDetector {
    pub fn new(pace: Pace) -> Self {
        let interval = pace.interval_ms();
        Self {
            pace,
            origin: 0.0,
            count: 0,
            last_ms: i64::MIN,
            level: 0.0,
            lowest: 0.0,
            season: Season::default(),
            recent: RecentSamples::default(),
            predictors: Predictors::default(),
            measures: Measures::default(),
            runs: Runs::default(),
            gaps: Gaps::default(),
            trends: [TrendSketch::new((HOUR_MS / 15).max(2 * interval)), TrendSketch::new(HOUR_MS.max(6 * interval))],
            lifecycle: Lifecycle::default(),
            surprises: 0,
        }
    }

    /// Judges a sample, and learns it. Samples that come early or late by less than half an interval are fine; missing
    /// ones are found by the time of the next.
    pub fn observe(&mut self, time_ms: i64, value: f64) -> Result<Verdict, SampleError> {
        if !value.is_finite() || value.abs() > LARGEST_SAMPLE {
            return Err(SampleError::NotANumber);
        }
        if time_ms.unsigned_abs() >= LATEST_MS {
            return Err(SampleError::OutOfTime);
        }
        if self.count > 0 && time_ms <= self.last_ms {
            return Err(SampleError::NotLater);
        }
        if self.count == 0 {
            self.origin = value;
            self.lowest = value;
        }

        let missing = self.fill_gap(time_ms);
        let sample = value - self.origin;
        self.lowest = self.lowest.min(value);
        let baseline = self.level + self.season.at(time_ms, self.pace.interval_ms());
        let predictions = self.predictors.predict(baseline, &self.recent);
        let best = self.predictors.best(&predictions);
        let expectation = Expectation {
            baseline,
            // After a gap the last samples say little.
            predicted: if missing >= 3 { baseline } else { best.unwrap_or(sample) },
            floor: self.floor(value.abs()),
            spread: self.season.spread_at(time_ms),
        };

        self.runs.observe(value);
        let mut readings = self.measures.read(self.pace, &expectation, sample, &self.runs, missing);
        if value == 0.0 && self.lowest >= 0.0 {
            // Nothing happens, such as failures.
            readings.run = 0.0;
        }
        let clean = self.clean(&readings, sample, expectation.predicted);
        let score = if self.is_learning() { 0.0 } else { readings.score() };
        self.learn(time_ms, &expectation, &readings, sample, clean);
        self.predictors.learn(&predictions, sample, clean, baseline, self.measures.scale(&expectation));
        self.recent.push(clean);
        if self.count.is_multiple_of(PERIOD_SEARCH) {
            self.predictors.find_period(&self.recent);
        }
        self.update_trends(time_ms, sample, expectation.floor);

        let change = self.turn(time_ms, &readings);
        let score = match self.lifecycle.event() {
            Some(event) if matches!(event.kind, UnusualKind::Trend | UnusualKind::Silence) => score.max(1.0),
            _ => score,
        };
        Ok(Verdict {
            score,
            expected: expectation.predicted + self.origin,
            band: self.band(&expectation),
            state: self.state(),
            change,
        })
    }

    /// Tells that there is no sample at a time. An event begins where that lasts unusually long.
    pub fn observe_nothing(&mut self, time_ms: i64) -> Option<Change> {
        if self.is_learning() || time_ms <= self.last_ms || time_ms.unsigned_abs() >= LATEST_MS {
            return None;
        }
        let missing = self.pace.samples_in(time_ms - self.last_ms) - 1.0;
        let ratio = self.gaps.ratio(missing);
        self.lifecycle.silence(self.last_ms, ratio)
    }

    pub fn state(&self) -> SeriesState {
        match self.lifecycle.event() {
            Some(event) => SeriesState::Unusual(event),
            None if self.is_learning() => {
                SeriesState::Learning { needed: self.pace.learning_samples().saturating_sub(self.count) }
            }
            None => SeriesState::Normal,
        }
    }

    /// A person says that the present state, or the last event, is normal. It is not reported again until it is exceeded.
    /// Returns the end of an event that was going on.
    pub fn teach_normal(&mut self) -> Option<Change> {
        let taught = self.lifecycle.taught()?;
        match taught.kind {
            UnusualKind::Trend => self.trends.iter_mut().for_each(TrendSketch::teach),
            UnusualKind::Stuck => self.runs.teach(),
            UnusualKind::Silence => self.gaps.teach(taught.score * 10.0),
            _ => self.measures.teach(self.lifecycle.peaks()),
        }
        if matches!(taught.kind, UnusualKind::LevelShift | UnusualKind::Trend) {
            self.settle();
        }
        self.lifecycle.accept()
    }

    /// True if there is an event to be called normal: that of now, or an earlier one.
    pub fn has_event(&self) -> bool {
        self.lifecycle.taught().is_some()
    }

    /// The values that are usual for the next sample. `None` while learning.
    pub fn next_band(&self) -> Option<Band> {
        if self.is_learning() {
            return None;
        }
        let time_ms = self.last_ms.saturating_add(self.pace.interval_ms());
        let baseline = self.level + self.season.at(time_ms, self.pace.interval_ms());
        let best = self.predictors.best(&self.predictors.predict(baseline, &self.recent));
        Some(self.band(&Expectation {
            baseline,
            predicted: best.unwrap_or(baseline),
            floor: self.floor((baseline + self.origin).abs()),
            spread: self.season.spread_at(time_ms),
        }))
    }

    /// The lasting rise or fall that is going on now.
    pub fn trend(&self) -> Option<Trend> {
        self.lifecycle.trend().map(|found| Trend { value: found.value + self.origin, ..found })
    }

    /// When the trend of now reaches a limit. None without a trend, or where it leads away from the limit.
    pub fn time_to_limit(&self, limit: f64) -> Option<TimeToLimit> {
        self.trend()?.reaches(limit)
    }

    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// Samples that were learnt.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Which seasons are in use: of the day, and of the week.
    pub fn seasons(&self) -> (bool, bool) {
        (self.season.has_day(), self.season.has_week())
    }

    fn is_learning(&self) -> bool {
        self.count < self.pace.learning_samples()
    }

    /// Puts expected samples in the place of missing ones, and returns how many are missing.
    fn fill_gap(&mut self, time_ms: i64) -> u64 {
        if self.count == 0 {
            return 0;
        }
        let missing = (self.pace.samples_in(time_ms - self.last_ms).round() - 1.0).max(0.0) as u64;
        self.gaps.observe(missing as f64);
        for step in 1..=missing.min(CAPACITY as u64) {
            let at = self.last_ms.saturating_add(self.pace.interval_ms().saturating_mul(step as i64));
            let baseline = self.level + self.season.at(at, self.pace.interval_ms());
            self.recent.push(baseline);
            self.predictors.skip(baseline, baseline);
        }
        missing
    }

    /// The sample, or what was expected in its place while the sample seems to be a fault.
    fn clean(&mut self, readings: &Readings, sample: f64, predicted: f64) -> f64 {
        if self.is_learning() || readings.point.ratio() < 1.0 {
            self.surprises = 0;
            return sample;
        }
        self.surprises = self.surprises.saturating_add(1);
        if self.surprises < SURPRISES { predicted } else { sample }
    }

    fn learn(&mut self, time_ms: i64, expectation: &Expectation, readings: &Readings, sample: f64, clean: f64) {
        let is_shifted = self.lifecycle.is(&[UnusualKind::LevelShift, UnusualKind::Trend]);
        self.measures.learn(self.pace, expectation, readings, sample, clean, self.lifecycle.event().is_some());

        let usual = self.measures.usual_distance(expectation.floor);
        let distance = clean - expectation.baseline;
        self.count = self.count.saturating_add(1);
        self.last_ms = time_ms;
        let memory = f64::from(self.count).min(self.pace.level_memory());
        let cut = if self.count < 20 { distance } else { distance.clamp(-LEVEL_CUT * usual, LEVEL_CUT * usual) };
        self.level += cut / memory;
        if !is_shifted {
            self.season.learn(time_ms, clean - self.level, LEVEL_CUT * usual);
            let size = (sample - expectation.predicted).abs().min(SPREAD_CUT * self.measures.scale(expectation));
            self.season.learn_spread(time_ms, size, self.pace.samples_in(HOUR_MS));
        }
    }

    fn update_trends(&mut self, time_ms: i64, sample: f64, floor: f64) {
        // Until a day is seen a rise may be half of the daily cycle.
        let is_young = self.pace.samples_in(DAY_MS) > f64::from(self.count) || self.is_learning();
        let season = self.season.at(time_ms, self.pace.interval_ms());
        let mut ended = false;
        for sketch in &mut self.trends {
            ended |= sketch.observe(time_ms, sample - season);
        }
        if ended && !is_young {
            let floor = floor.max(self.trend_floor());
            let found = self.trends.iter().find_map(|sketch| sketch.trend(floor));
            self.lifecycle.set_trend(found);
            self.trends.iter_mut().for_each(|sketch| sketch.set_found(found.is_some()));
        }
    }

    /// The size below which a change of a value is none.
    fn floor(&self, value: f64) -> f64 {
        (ROUNDING * value.max(self.origin.abs()).max(1e-9)).max(STEP_SHARE * self.runs.step())
    }

    fn trend_floor(&self) -> f64 {
        self.measures.usual_distance(ROUNDING * self.origin.abs())
    }

    /// Begins or ends an event.
    fn turn(&mut self, time_ms: i64, readings: &Readings) -> Option<Change> {
        if self.is_learning() {
            return None;
        }
        let is_back = self.measures.is_back(&self.recent, self.level, self.season.at(time_ms, self.pace.interval_ms()));
        if is_back && self.lifecycle.is(&[UnusualKind::LevelShift]) {
            self.measures.forget_distance();
        }
        let change = self.lifecycle.turn(self.pace, time_ms, readings, is_back);
        if let Some(Change::Ended { event, is_new_normal: true }) = change {
            match event.kind {
                UnusualKind::Spread => self.measures.accept_spread(),
                _ => self.settle(),
            }
        }
        change
    }

    /// Takes the present level as what is usual.
    fn settle(&mut self) {
        let season = self.season.at(self.last_ms, self.pace.interval_ms());
        self.level = self.recent.median_of_newest(32) - season;
        self.measures.forget_distance();
    }

    /// The band of a sample in the units of the series, within the bounds that the series never left.
    fn band(&self, expectation: &Expectation) -> Band {
        let (below, above) = self.measures.reach(expectation, self.lifecycle.strictness());
        let expected = expectation.predicted + self.origin;
        let lowest = if self.lowest >= 0.0 { 0.0 } else { f64::MIN };
        Band { low: (expected - below).max(lowest).min(expected), high: expected + above }
    }

    /// The stored form of the state, about 6 KB.
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads what `encode` wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        codec::decode(bytes)
    }

    /// The event of now.
    pub fn event(&self) -> Option<Unusual> {
        self.lifecycle.event()
    }
}

impl Sound for SeriesDetector {
    fn is_sound(&self) -> bool {
        let numbers = [self.origin, self.level, self.lowest];
        self.pace.is_sound()
            && numbers.iter().all(|number| number.is_finite() && number.abs() <= 1e31)
            && (self.count == 0 || self.last_ms.unsigned_abs() < LATEST_MS)
            && self.season.is_sound()
            && self.recent.is_sound()
            && self.predictors.is_sound()
            && self.measures.is_sound()
            && self.runs.is_sound()
            && self.gaps.is_sound()
            && self.trends.iter().all(TrendSketch::is_sound)
            && self.lifecycle.is_sound()
    }
}
