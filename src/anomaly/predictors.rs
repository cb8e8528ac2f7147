//! Predictions of the next sample. Several simple ones run at the same time, and that with the smallest recent error is
//! believed: which is best depends on the series, and may change.

use crate::autoregression::Autoregression;
use crate::ring::{CAPACITY, RecentSamples};
use serde::{Deserialize, Serialize};

const COUNT: usize = 6;
/// Samples over which errors are averaged, and over which the local level is.
const ERROR_MEMORY: f64 = 200.0;
const LOCAL_GAIN: f64 = 0.25;
/// An error counts as no more than this many times the mean error.
const CUT: f64 = 4.0;
/// A period is accepted where samples a period apart differ by no more than this share of the usual difference.
const PERIODIC: f64 = 0.6;
const SHORTEST_PERIOD: usize = 4;

/// The predictions of one sample, each missing until it has seen enough: the last sample; the local level; the baseline;
/// the baseline with the local deviation from it; a linear prediction of that deviation; the last period.
pub type Predictions = [Option<f64>; COUNT];

/// State of all predictors, about 350 bytes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Predictors {
    last: f64,
    local: f64,
    /// The deviation from the baseline, and from the sample of one period ago.
    off_baseline: f64,
    off_period: f64,
    linear: Autoregression,
    /// In samples; 0 where there is none.
    period: u16,
    errors: [f64; COUNT],
    count: u32,
}

impl Predictors {
    pub fn predict(&self, baseline: f64, recent: &RecentSamples) -> Predictions {
        if self.count == 0 {
            return [None; COUNT];
        }
        let a_period_ago = self.period().and_then(|period| recent.back(period - 1));
        [
            Some(self.last),
            Some(self.local),
            Some(baseline),
            Some(baseline + self.off_baseline),
            self.linear.predict().map(|deviation| baseline + deviation),
            a_period_ago.map(|value| value + self.off_period),
        ]
    }

    /// The prediction that is believed: that with the smallest mean error so far.
    pub fn best(&self, predictions: &Predictions) -> Option<f64> {
        let known = predictions.iter().zip(&self.errors).filter_map(|(value, error)| Some(((*value)?, *error)));
        known.min_by(|left, right| left.1.total_cmp(&right.1)).map(|(value, _)| value)
    }

    /// Learns a sample. `clean` is the sample, or its prediction where it is taken for a fault; the errors are those of
    /// the sample itself.
    pub fn learn(&mut self, predictions: &Predictions, sample: f64, clean: f64, baseline: f64, scale: f64) {
        for (error, prediction) in self.errors.iter_mut().zip(predictions) {
            let Some(prediction) = prediction else { continue };
            let found = (sample - prediction).abs();
            let cut = if self.count < 20 { found } else { found.min(CUT * error.max(scale)) };
            *error += (cut - *error) / f64::from(self.count.max(1)).min(ERROR_MEMORY);
        }
        if let Some(Some(a_period_ago)) = predictions.get(5) {
            self.off_period += (clean - (a_period_ago - self.off_period) - self.off_period) * LOCAL_GAIN * 0.4;
        }
        self.linear.learn(clean - baseline, scale);
        self.follow(clean, baseline, if self.count == 0 { 1.0 } else { LOCAL_GAIN });
        self.count = self.count.saturating_add(1);
    }

    /// Takes an expected sample in place of a missing one.
    pub fn skip(&mut self, expected: f64, baseline: f64) {
        self.linear.remember(expected - baseline);
        self.follow(expected, baseline, LOCAL_GAIN);
    }

    fn follow(&mut self, value: f64, baseline: f64, gain: f64) {
        self.last = value;
        self.local += (value - self.local) * gain;
        self.off_baseline += (value - baseline - self.off_baseline) * gain;
    }

    pub fn period(&self) -> Option<usize> {
        (self.period > 0).then_some(usize::from(self.period))
    }

    /// Looks for a period in the last samples, by the mean difference of samples at each distance. Takes 0.1 ms.
    pub fn find_period(&mut self, recent: &RecentSamples) {
        let samples = recent.in_order();
        let longest = samples.len() / 2;
        if longest <= SHORTEST_PERIOD * 4 {
            return;
        }
        let difference = |distance: usize| {
            let later = samples.iter().skip(distance);
            let sum: f64 = samples.iter().zip(later).map(|(a, b)| (a - b).abs()).sum();
            sum / (samples.len() - distance) as f64
        };
        let differences: Vec<f64> = (SHORTEST_PERIOD..=longest).map(difference).collect();
        let mean = differences.iter().sum::<f64>() / differences.len() as f64;
        let least = differences.iter().copied().fold(f64::INFINITY, f64::min);

        // The shortest that is nearly the best: multiples of a period are as good. A short one must be a minimum, because
        // neighbours of a smooth series differ little, too.
        let is_minimum = |at: usize| {
            let value = |at: usize| differences.get(at).copied().unwrap_or(f64::INFINITY);
            at > 0 && value(at) <= value(at - 1) && value(at) <= value(at + 1)
        };
        let limit = least + 0.15 * (mean - least);
        let found = differences.iter().enumerate().find(|(at, value)| **value <= limit && is_minimum(*at));
        let period = match found {
            Some((at, value)) if *value < PERIODIC * mean => (at + SHORTEST_PERIOD) as u16,
            _ => 0,
        };
        if period != self.period {
            self.period = period;
            self.off_period = 0.0;
            let start = differences.get(usize::from(period).saturating_sub(SHORTEST_PERIOD)).copied();
            if let (Some(error), Some(start)) = (self.errors.get_mut(5), start) {
                *error = start;
            }
        }
    }

    pub fn is_sound(&self) -> bool {
        let numbers = [self.last, self.local, self.off_baseline, self.off_period];
        numbers.iter().chain(&self.errors).all(|number| number.is_finite() && number.abs() < 1e32)
            && self.errors.iter().all(|error| *error >= 0.0)
            && usize::from(self.period) <= CAPACITY / 2
            && self.period().is_none_or(|period| period >= SHORTEST_PERIOD)
            && self.linear.is_sound()
    }
}
