//! The upper tail of a standardised statistic: a histogram with logarithmic bins, and the value that is exceeded with a
//! given probability, by peaks over threshold (Siffer et al., "Anomaly Detection in Streams with Extreme Value Theory",
//! KDD 2017). A histogram in place of the list of peaks bounds the memory, and lets old samples fade.

use serde::{Deserialize, Serialize};

const BINS: usize = 64;
/// The first bin is below this; each other is wider than the one before by `RATIO`. The last begins at about 8460: where
/// nearly all samples are equal, what is usual of the others is many times the mean.
const LOWEST: f64 = 0.5;
const RATIO: f64 = 1.17;
/// Largest value of a statistic that is told apart from larger ones.
pub const LARGEST: f64 = 10_000.0;
/// Samples between two steps of forgetting.
const FADE_EVERY: u32 = 256;
/// Share of the samples that form the tail, and the fewest of them.
const TAIL_SHARE: f64 = 0.02;
const TAIL_COUNT: f64 = 12.0;
/// The shape of the tail is held near this as if by so many samples: between an exponential and a heavy tail.
const PRIOR_SHAPE: f64 = 0.1;
const PRIOR_COUNT: f64 = 15.0;

/// Counts of a statistic by its size, 256 bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tail {
    counts: Vec<f32>,
    since_fade: u32,
}

impl Default for Tail {
    fn default() -> Self {
        Self { counts: vec![0.0; BINS], since_fade: 0 }
    }
}

impl Tail {
    /// Counts one value. Values not above 0 belong to the first bin.
    pub fn add(&mut self, value: f64, memory: f64) {
        let bin = if value <= LOWEST { 0.0 } else { 1.0 + ((value / LOWEST).ln() / RATIO.ln()).floor() };
        if let Some(count) = self.counts.get_mut((bin as usize).min(BINS - 1)) {
            *count += 1.0;
        }

        self.since_fade += 1;
        if self.since_fade >= FADE_EVERY {
            self.since_fade = 0;
            let keep = (1.0 - f64::from(FADE_EVERY) / memory).clamp(0.1, 1.0) as f32;
            self.counts.iter_mut().for_each(|count| *count *= keep);
        }
    }

    /// The value that a sample exceeds with this probability, from the generalized Pareto distribution that has the mean
    /// and the variance of the tail.
    pub fn quantile(&self, probability: f64) -> f64 {
        let total: f64 = self.counts.iter().map(|count| f64::from(*count)).sum();
        if total < TAIL_COUNT {
            return LARGEST;
        }

        let wanted = (total * TAIL_SHARE).max(TAIL_COUNT.min(total * 0.2));
        let (mut count, mut first) = (0.0, 0.0);
        let (mut sum, mut squares) = (0.0, 0.0);
        for (bin, in_bin) in self.counts.iter().enumerate().rev() {
            let (in_bin, lower) = (f64::from(*in_bin), lower_edge(bin));
            let middle = lower * RATIO.sqrt();
            count += in_bin;
            sum += in_bin * middle;
            squares += in_bin * middle * middle;
            first = lower;
            if count >= wanted {
                break;
            }
        }

        let beyond = count / total;
        if probability >= beyond {
            return first;
        }
        let mean = (sum / count - first).max(first * 0.02).max(1e-3);
        let variance = (squares / count - (sum / count).powi(2)).max(mean * mean * 0.2);
        let moments = 0.5 * (1.0 - mean * mean / variance);
        let shape = ((moments * count + PRIOR_SHAPE * PRIOR_COUNT) / (count + PRIOR_COUNT)).clamp(0.02, 0.5);
        let scale = mean * (1.0 - shape);
        (first + scale / shape * ((probability / beyond).powf(-shape) - 1.0)).min(LARGEST)
    }

    pub fn is_sound(&self) -> bool {
        self.counts.len() == BINS
            && self.since_fade < FADE_EVERY
            && self.counts.iter().all(|count| count.is_finite() && (0.0..1e9).contains(count))
    }
}

fn lower_edge(bin: usize) -> f64 {
    if bin == 0 { 0.0 } else { LOWEST * RATIO.powi(bin as i32 - 1) }
}
