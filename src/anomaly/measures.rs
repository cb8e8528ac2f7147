//! The statistics of a series that are judged: a single sample, the mean distance from the baseline over a few samples
//! and over many, the spread, and runs of equal values.

use crate::detector::Expectation;
use crate::event::{Direction, UnusualKind};
use crate::pace::Pace;
use crate::ring::RecentSamples;
use crate::runs::Runs;
use crate::statistic::{Judged, Statistic};
use serde::{Deserialize, Serialize};

/// Samples of the means.
const NEAR: f64 = 8.0;
const FAR: f64 = 48.0;
const SPREAD: f64 = 16.0;
/// Shares of the rate of false alarms.
const POINT_SHARE: f64 = 0.25;
const NEAR_SHARE: f64 = 0.1;
const FAR_SHARE: f64 = 0.05;
const SPREAD_SHARE: f64 = 0.08;
const STUCK_SHARE: f64 = 0.05;
/// A sample is not unusual below so many times the mean size of a residual; about 4 standard deviations of a normal
/// distribution. Means and spreads likewise.
const POINT_FLOOR: f64 = 5.0;
const MEAN_FLOOR: f64 = 3.5;
/// The spread must be so many times what it was, or that part of it.
const SPREAD_FLOOR: f64 = 0.9;
/// Statistics that change slowly have fewer independent values: their thresholds are further away while little is seen.
const YOUTH: f64 = 2.0;
const CUT: f64 = 1.5;
const DISTANCE_CUT: f64 = 8.0;
/// A sample counts for the means as no more than so many times the threshold of the mean, so that a lasting one reaches it.
const DISTANCE_THRESHOLDS: f64 = 1.5;

/// The statistics with their learnt scales, about 2.3 KB.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Measures {
    point: Statistic,
    near: Statistic,
    far: Statistic,
    spread: Statistic,
    near_mean: f64,
    far_mean: f64,
    /// Mean size of residuals over the last samples, in units of the usual one; 0 before the first.
    size: f64,
}

/// The statistics of one sample.
#[derive(Debug, Clone, Copy)]
pub struct Readings {
    pub point: Judged,
    pub near: Judged,
    pub far: Judged,
    pub spread: Judged,
    pub run: f64,
}

/// Sizes of the statistics, for what a person calls normal.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Peaks {
    pub point: f64,
    pub near: f64,
    pub far: f64,
    pub spread: f64,
}

impl Readings {
    pub fn score(&self) -> f64 {
        let ratios = [self.point, self.near, self.far, self.spread].map(Judged::ratio);
        ratios.into_iter().fold(self.run, f64::max)
    }

    /// The score of changes that last.
    pub fn lasting(&self) -> f64 {
        self.near.ratio().max(self.far.ratio())
    }

    /// Kind and direction of the statistic that is furthest beyond its threshold.
    pub fn kind(&self) -> (UnusualKind, Direction) {
        let score = self.score();
        let lasting = if self.near.ratio() >= self.far.ratio() { self.near } else { self.far };
        if self.run >= score {
            (UnusualKind::Stuck, Direction::Neither)
        } else if self.lasting() >= 1.0 && self.lasting() >= 0.5 * score {
            (UnusualKind::LevelShift, direction(lasting.size))
        } else if self.spread.ratio() >= score {
            (UnusualKind::Spread, direction(self.spread.size))
        } else if self.point.size > 0.0 {
            (UnusualKind::Spike, Direction::Up)
        } else {
            (UnusualKind::Dip, Direction::Down)
        }
    }

    pub fn lasting_direction(&self) -> Direction {
        direction(if self.near.ratio() >= self.far.ratio() { self.near.size } else { self.far.size })
    }

    pub fn peaks(&self) -> Peaks {
        Peaks { point: self.point.size, near: self.near.size, far: self.far.size, spread: self.spread.size }
    }
}

impl Peaks {
    /// The larger of both, by size.
    pub fn with(self, other: Self) -> Self {
        let larger = |left: f64, right: f64| if right.abs() > left.abs() { right } else { left };
        Self {
            point: larger(self.point, other.point),
            near: larger(self.near, other.near),
            far: larger(self.far, other.far),
            spread: larger(self.spread, other.spread),
        }
    }

    pub fn is_sound(&self) -> bool {
        [self.point, self.near, self.far, self.spread].iter().all(|size| size.is_finite() && size.abs() < 1e6)
    }
}

fn direction(size: f64) -> Direction {
    if size >= 0.0 { Direction::Up } else { Direction::Down }
}

impl Measures {
    pub fn read(&self, pace: Pace, expected: &Expectation, sample: f64, runs: &Runs, missing: u64) -> Readings {
        let residual = (sample - expected.predicted) / expected.spread;
        let point = if missing >= 3 { Judged::NOTHING } else { self.point.judge(residual, expected.floor) };
        let distance = sample - expected.baseline;
        let near_mean = self.near_mean + (self.bounded(distance, expected.floor) - self.near_mean) / NEAR;
        let far_mean = self.far_mean + (self.bounded(distance, expected.floor) - self.far_mean) / FAR;
        let spread = Self::log_size(self.next_size(point.size));
        Readings {
            point: raise(point, POINT_FLOOR, youth(1.0, self.point.count())),
            near: raise(self.near.judge(near_mean, expected.floor), MEAN_FLOOR, youth(NEAR, self.near.count())),
            far: raise(self.far.judge(far_mean, expected.floor), MEAN_FLOOR, youth(FAR, self.far.count())),
            spread: raise(
                self.spread.judge(spread, 0.0),
                SPREAD_FLOOR / self.spread.scale(0.0),
                youth(SPREAD, self.spread.count()),
            ),
            run: runs.ratio(pace.probability() * STUCK_SHARE),
        }
    }

    /// Learns a sample that was read. `clean` is what is believed of it.
    pub fn learn(
        &mut self,
        pace: Pace,
        expected: &Expectation,
        read: &Readings,
        sample: f64,
        clean: f64,
        in_event: bool,
    ) {
        let memory = pace.tail_memory();
        let p = pace.probability() / 2.0;
        let floor = expected.floor;
        let residual = (sample - expected.predicted) / expected.spread;
        if self.point.count() == 0 || read.point != Judged::NOTHING {
            self.point.learn(residual, floor, read.point.threshold, memory, p * POINT_SHARE);
        }
        self.size = self.next_size(read.point.size.clamp(-CUT * 10.0, CUT * 10.0));

        let distance = self.bounded(clean - expected.baseline, floor);
        self.near_mean += (distance - self.near_mean) / NEAR;
        self.far_mean += (distance - self.far_mean) / FAR;
        if self.point.count() >= 20 && !in_event {
            let log_size = Self::log_size(self.size);
            self.near.learn(self.near_mean, floor, read.near.threshold, memory, p * NEAR_SHARE);
            self.far.learn(self.far_mean, floor, read.far.threshold, memory, p * FAR_SHARE);
            self.spread.learn(log_size, 0.0, read.spread.threshold, memory, p * SPREAD_SHARE);
        }
    }

    /// A distance from the baseline, cut so that one sample moves no mean beyond its threshold.
    fn bounded(&self, distance: f64, floor: f64) -> f64 {
        let threshold = self.near.threshold(distance >= 0.0) * self.near.scale(floor);
        let limit = (DISTANCE_CUT * self.usual_distance(floor)).max(DISTANCE_THRESHOLDS * threshold);
        if self.near.count() < 20 { distance } else { distance.clamp(-limit, limit) }
    }

    fn next_size(&self, point: f64) -> f64 {
        let size = point.abs().min(15.0);
        if self.size == 0.0 { 1.0 } else { self.size + (size - self.size) / SPREAD }
    }

    fn log_size(size: f64) -> f64 {
        (size + 0.02).ln()
    }

    /// The unit of a single sample's residual.
    pub fn scale(&self, expected: &Expectation) -> f64 {
        self.point.scale(expected.floor) * expected.spread
    }

    /// The usual distance of the mean of a few samples from the baseline.
    pub fn usual_distance(&self, floor: f64) -> f64 {
        self.near.scale(floor).max(self.point.scale(floor))
    }

    /// The distances below and above its prediction within which a sample is normal.
    pub fn reach(&self, expected: &Expectation, strictness: f64) -> (f64, f64) {
        let youth = youth(1.0, self.point.count());
        let side = |above| self.point.threshold(above).max(POINT_FLOOR) * youth * strictness * self.scale(expected);
        (side(false), side(true))
    }

    /// True if the last few samples lie where they did before a shift.
    pub fn is_back(&self, recent: &RecentSamples, level: f64, season: f64) -> bool {
        let distance = recent.median_of_newest(5) - level - season;
        let judged = self.near.judge(distance, 0.0);
        raise(judged, MEAN_FLOOR, 1.0).ratio() < 0.5
    }

    pub fn forget_distance(&mut self) {
        self.near_mean = 0.0;
        self.far_mean = 0.0;
    }

    /// Takes the present spread as what is usual.
    pub fn accept_spread(&mut self) {
        self.point.rescale(self.size);
        self.size = 1.0;
    }

    pub fn teach(&mut self, peaks: Peaks) {
        self.point.teach(peaks.point);
        self.near.teach(peaks.near);
        self.far.teach(peaks.far);
        self.spread.teach(peaks.spread);
    }

    pub fn is_sound(&self) -> bool {
        [&self.point, &self.near, &self.far, &self.spread].iter().all(|statistic| statistic.is_sound())
            && [self.near_mean, self.far_mean, self.size].iter().all(|number| number.is_finite())
            && self.size >= 0.0
    }
}

fn raise(judged: Judged, floor: f64, youth: f64) -> Judged {
    Judged { threshold: judged.threshold.max(floor) * youth, ..judged }
}

/// Factor of a threshold while few independent values are seen.
fn youth(samples: f64, count: u32) -> f64 {
    1.0 + YOUTH * (samples / f64::from(count.max(1))).sqrt().min(1.0)
}
