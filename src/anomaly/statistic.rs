//! A statistic of a series with its own scale and its own threshold on each side, both learnt from the series. So its
//! distribution may be anything: a heavy tail, counts with many zeros, a bounded share, or a strong autocorrelation.

use crate::tail::{LARGEST, Tail};
use serde::{Deserialize, Serialize};

/// A value that a person called normal is not unusual again until it exceeds that by this factor.
const TAUGHT_MARGIN: f64 = 1.15;
const REFRESH: u32 = 32;
/// A value counts as no more than this many times its threshold, and for the scale as no more than this many times this
/// threshold.
const CUT: f64 = 1.5;
const SCALE_THRESHOLD_MAX: f64 = 20.0;

/// The size of one value, and the threshold of its side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judged {
    /// The value in units of its mean size, with its sign.
    pub size: f64,
    pub threshold: f64,
}

impl Judged {
    pub const NOTHING: Self = Self { size: 0.0, threshold: LARGEST };

    /// At least 1 where the value is beyond its threshold.
    pub fn ratio(self) -> f64 {
        self.size.abs() / self.threshold
    }
}

/// The learnt state of one statistic, about 550 bytes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Statistic {
    /// Exponentially weighted mean of the absolute value, and that of values other than 0.
    mean: f64,
    mean_nonzero: f64,
    count: u32,
    count_nonzero: u32,
    above: Tail,
    below: Tail,
    /// Thresholds are not below these, because a person called such values normal.
    taught_above: f32,
    taught_below: f32,
    /// Quantiles of both tails, computed again after `REFRESH` samples.
    quantiles: [f32; 2],
}

impl Statistic {
    /// The unit in which values are judged, not below `floor`.
    pub fn scale(&self, floor: f64) -> f64 {
        // Where nearly all values are 0 their mean says nothing about the others.
        self.mean.max(0.2 * self.mean_nonzero).max(floor).max(1e-12)
    }

    /// Judges a value against all before it.
    pub fn judge(&self, value: f64, floor: f64) -> Judged {
        let size = (value / self.scale(floor)).clamp(-LARGEST, LARGEST);
        Judged { size, threshold: self.threshold(size >= 0.0) }
    }

    /// Threshold of one side, in units of `scale`.
    pub fn threshold(&self, above: bool) -> f64 {
        let [quantile_above, quantile_below] = self.quantiles;
        let (quantile, taught) =
            if above { (quantile_above, self.taught_above) } else { (quantile_below, self.taught_below) };
        if self.count < REFRESH { LARGEST } else { f64::from(quantile.max(taught)) }
    }

    /// Learns a value. `threshold` cuts its size, so that one fault does not move the scale. `probability` is that of a
    /// false alarm by one value on one side.
    pub fn learn(&mut self, value: f64, floor: f64, threshold: f64, memory: f64, probability: f64) {
        let scale = self.scale(floor);
        let size = (value / scale).clamp(-LARGEST, LARGEST);
        let limit = CUT * threshold;
        let scale_limit = CUT * threshold.min(SCALE_THRESHOLD_MAX) * scale;
        let cut = if self.count < 20 { value.abs() } else { value.abs().min(scale_limit) };

        self.count = self.count.saturating_add(1);
        self.mean += (cut - self.mean) / f64::from(self.count).min(memory);
        if value.abs() > floor {
            self.count_nonzero = self.count_nonzero.saturating_add(1);
            self.mean_nonzero += (cut - self.mean_nonzero) / f64::from(self.count_nonzero).min(memory / 4.0);
        }
        // The scale of the first values is not known yet.
        if self.count >= 20 {
            self.above.add(size.min(limit), memory);
            self.below.add((-size).min(limit), memory);
            let fade = (1.0 - 1.0 / (16.0 * memory)) as f32;
            self.taught_above *= fade;
            self.taught_below *= fade;
        }
        if self.count.is_multiple_of(REFRESH) {
            self.quantiles = [&self.above, &self.below].map(|tail| tail.quantile(probability) as f32);
        }
    }

    /// A person called a value of this size normal.
    pub fn teach(&mut self, size: f64) {
        let taught = (size.abs() * TAUGHT_MARGIN).min(4.0 * LARGEST) as f32;
        let floor = if size >= 0.0 { &mut self.taught_above } else { &mut self.taught_below };
        *floor = floor.max(taught);
    }

    /// Changes the unit of values by a factor.
    pub fn rescale(&mut self, factor: f64) {
        let factor = factor.clamp(0.05, 20.0);
        self.mean *= factor;
        self.mean_nonzero *= factor;
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    pub fn is_sound(&self) -> bool {
        let sizes = [self.mean, self.mean_nonzero, f64::from(self.taught_above), f64::from(self.taught_below)];
        let sizes = sizes.into_iter().chain(self.quantiles.map(f64::from));
        sizes.into_iter().all(|size| size.is_finite() && (0.0..1e32).contains(&size))
            && self.above.is_sound()
            && self.below.is_sound()
    }
}
