//! Runs of equal values, and gaps between samples: what is usual of both.

use serde::{Deserialize, Serialize};

const SHARE_MEMORY: f64 = 1000.0;
/// Fewest equal samples, and fewest missing, that are unusual.
const SHORTEST_RUN: u32 = 8;
const SHORTEST_GAP: f64 = 5.0;
/// A run or gap is unusual from so many times the longest that was seen.
const LONGER: f64 = 2.0;
const LONGEST_FADES: f64 = 1e-4;
/// Changes over which their size is averaged, and how many times the mean one counts at most.
const STEP_MEMORY: f64 = 5000.0;
const STEP_CUT: f64 = 10.0;

/// Runs of samples with exactly the same value.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Runs {
    last: f64,
    run: u32,
    /// Fades, so that a fault of long ago hides no other.
    longest: f64,
    /// Share of samples that equal the one before.
    equal_share: f64,
    count: u32,
    /// Mean size of a change from one sample to the next, of those that differ.
    step: f64,
    steps: u32,
}

impl Runs {
    #[expect(clippy::float_cmp, reason = "a value that hangs is the same to the last bit")]
    pub fn observe(&mut self, value: f64) {
        if self.count > 0 && value == self.last {
            self.run = self.run.saturating_add(1);
        } else {
            self.longest = self.longest.max(f64::from(self.run));
            self.run = 0;
            self.learn_step((value - self.last).abs());
        }
        // Only the start of a run tells how likely it is that it goes on.
        self.longest *= 1.0 - LONGEST_FADES;
        if f64::from(self.run) < f64::from(SHORTEST_RUN).max(self.longest) {
            let equal = if self.run > 0 { 1.0 } else { 0.0 };
            self.equal_share += (equal - self.equal_share) / f64::from(self.count.saturating_add(1)).min(SHARE_MEMORY);
        }
        self.last = value;
        self.count = self.count.saturating_add(1);
    }

    fn learn_step(&mut self, step: f64) {
        if self.count == 0 {
            return;
        }
        let cut = if self.steps < 20 { step } else { step.min(STEP_CUT * self.step) };
        self.steps = self.steps.saturating_add(1);
        self.step += (cut - self.step) / f64::from(self.steps).min(STEP_MEMORY);
    }

    /// The mean size of a change from one sample to the next, of those that differ.
    pub fn step(&self) -> f64 {
        self.step
    }

    /// At least 1 where the present run is longer than a run of this probability.
    pub fn ratio(&self, probability: f64) -> f64 {
        let likely = probability.ln() / self.equal_share.clamp(0.02, 0.999_99).ln();
        let limit = likely.max(f64::from(SHORTEST_RUN)).max(LONGER * self.longest);
        // A series that never changed is not stuck.
        if self.run.saturating_add(1) >= self.count { 0.0 } else { f64::from(self.run) / limit }
    }

    pub fn teach(&mut self) {
        self.longest = self.longest.max(f64::from(self.run));
    }

    pub fn is_sound(&self) -> bool {
        self.last.is_finite()
            && self.step.is_finite()
            && self.step >= 0.0
            && self.longest.is_finite()
            && self.longest >= 0.0
            && (0.0..=1.0).contains(&self.equal_share)
    }
}

/// Gaps between samples, in intervals.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Gaps {
    longest: f64,
    mean: f64,
    count: u32,
}

impl Gaps {
    pub fn observe(&mut self, missing: f64) {
        self.count = self.count.saturating_add(1);
        self.mean += (missing.min(100.0) - self.mean) / f64::from(self.count).min(SHARE_MEMORY);
        self.longest = missing.max(self.longest * (1.0 - LONGEST_FADES));
    }

    /// At least 1 where so many missing samples are more than usual.
    pub fn ratio(&self, missing: f64) -> f64 {
        missing / (SHORTEST_GAP + 5.0 * self.mean).max(LONGER * self.longest)
    }

    pub fn teach(&mut self, missing: f64) {
        self.longest = self.longest.max(missing);
    }

    pub fn is_sound(&self) -> bool {
        [self.longest, self.mean].iter().all(|number| number.is_finite() && *number >= 0.0)
    }
}
