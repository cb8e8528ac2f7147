//! The last samples of a series, in the order of time and without gaps: a missing sample is stored as the value that was
//! expected.

use serde::{Deserialize, Serialize};

/// Samples that are kept: two cycles of a period of up to 192 samples.
pub const CAPACITY: usize = 384;

/// A ring of samples, 4 bytes each, relative to the origin of their series.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RecentSamples {
    values: Vec<f32>,
    /// Place of the oldest sample once the ring is full.
    oldest: u16,
}

impl RecentSamples {
    pub fn push(&mut self, value: f64) {
        if self.values.len() < CAPACITY {
            self.values.push(value as f32);
            return;
        }
        if let Some(place) = self.values.get_mut(usize::from(self.oldest)) {
            *place = value as f32;
        }
        self.oldest = (self.oldest + 1) % CAPACITY as u16;
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// The sample `back` steps before the newest, which is 0.
    pub fn back(&self, back: usize) -> Option<f64> {
        let length = self.values.len();
        if back >= length {
            return None;
        }
        let at = (usize::from(self.oldest) + length - 1 - back) % length;
        self.values.get(at).map(|value| f64::from(*value))
    }

    /// The newest `count` samples or fewer, the newest first.
    pub fn newest(&self, count: usize) -> impl Iterator<Item = f64> {
        (0..count.min(self.len())).filter_map(|back| self.back(back))
    }

    /// All samples, the oldest first.
    pub fn in_order(&self) -> Vec<f64> {
        let (newer, older) = self.values.split_at(usize::from(self.oldest).min(self.values.len()));
        older.iter().chain(newer).map(|value| f64::from(*value)).collect()
    }

    pub fn median_of_newest(&self, count: usize) -> f64 {
        median(&mut self.newest(count).collect::<Vec<_>>())
    }

    pub fn is_sound(&self) -> bool {
        let in_place =
            if self.values.len() == CAPACITY { usize::from(self.oldest) < CAPACITY } else { self.oldest == 0 };
        in_place && self.values.len() <= CAPACITY && self.values.iter().all(|value| value.is_finite())
    }
}

/// The median, 0 of nothing. Reorders the values.
pub fn median(values: &mut [f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value below which this share lies, 0 of nothing. Reorders the values.
pub fn quantile(values: &mut [f64], share: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let at = ((values.len() - 1) as f64 * share).round() as usize;
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}
