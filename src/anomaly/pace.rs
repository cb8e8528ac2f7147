//! Times of a series: the interval of its samples, the owner's rate of false alarms, and what follows from both.

use serde::{Deserialize, Serialize};

pub const HOUR_MS: i64 = 3_600_000;
pub const DAY_MS: i64 = 24 * HOUR_MS;
const WEEK_MS: i64 = 7 * DAY_MS;

/// A setting of a detector that is out of bounds.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum PaceError {
    #[error("an interval of {0} ms is not from 1 s to 1 day")]
    Interval(i64),
    #[error("a rate of {0} false alarms a week is not from 0.001 to 1000")]
    Rate(f64),
}

/// Interval and rate, within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    interval_ms: i64,
    alarms_a_week: f64,
}

impl Pace {
    /// The rate that Ledge is tuned for.
    pub const ALARMS_A_WEEK: f64 = 1.0;

    /// `interval_ms`: time between two samples. `alarms_a_week`: false alarms that the owner accepts.
    pub fn new(interval_ms: i64, alarms_a_week: f64) -> Result<Self, PaceError> {
        if !(1000..=DAY_MS).contains(&interval_ms) {
            return Err(PaceError::Interval(interval_ms));
        }
        if !(0.001..=1000.0).contains(&alarms_a_week) {
            return Err(PaceError::Rate(alarms_a_week));
        }
        Ok(Self { interval_ms, alarms_a_week })
    }

    pub fn interval_ms(self) -> i64 {
        self.interval_ms
    }

    pub fn alarms_a_week(self) -> f64 {
        self.alarms_a_week
    }

    pub fn samples_in(self, span_ms: i64) -> f64 {
        span_ms as f64 / self.interval_ms as f64
    }

    pub fn samples_a_week(self) -> f64 {
        self.samples_in(WEEK_MS)
    }

    /// Probability that one sample begins a false alarm. A rate that is high for slow series would make every tenth
    /// sample unusual.
    pub fn probability(self) -> f64 {
        (self.alarms_a_week / self.samples_a_week()).min(LARGEST_PROBABILITY)
    }

    /// Samples before the first is judged: half a day, but not fewer than 120 nor more than 2000.
    pub fn learning_samples(self) -> u32 {
        self.samples_in(DAY_MS / 2).clamp(120.0, 2000.0) as u32
    }

    /// Samples over which the level of the series is averaged: a day.
    pub fn level_memory(self) -> f64 {
        self.samples_in(DAY_MS).clamp(100.0, 2000.0)
    }

    /// Samples over which scales and tails are: two weeks.
    pub fn tail_memory(self) -> f64 {
        self.samples_in(2 * WEEK_MS).clamp(1000.0, 40_000.0)
    }

    /// Samples after which a new level, or a new spread, is what is usual: half a day.
    pub fn acceptance_samples(self) -> u32 {
        self.samples_in(DAY_MS / 2).clamp(48.0, 1440.0) as u32
    }

    pub fn is_sound(self) -> bool {
        Self::new(self.interval_ms, self.alarms_a_week).is_ok()
    }
}

const LARGEST_PROBABILITY: f64 = 1e-3;
