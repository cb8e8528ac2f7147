//! The figures of one camera since the start, which grow with its pictures.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct CameraCounter(AtomicU64);

impl CameraCounter {
    pub fn inc(&self) {
        self.add(1);
    }

    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The figures of one camera since the start.
#[derive(Debug, Default)]
pub struct CameraCounters {
    /// Pictures that the model was asked about.
    pub inferred: CameraCounter,
    /// Pictures that showed nothing new.
    pub unchanged: CameraCounter,
    /// Pictures that the camera did not give.
    pub missing: CameraCounter,
    /// Pictures that could not be decoded, or that the model did not answer.
    pub failed: CameraCounter,
    pub events: CameraCounter,
    pub published: CameraCounter,
    /// The time of decoding and comparing pictures, in microseconds.
    pub comparing_us: CameraCounter,
    /// The time of fetching, in microseconds.
    pub fetching_us: CameraCounter,
}

impl CameraCounters {
    /// Adds a time to one of the sums.
    pub fn spend(sum: &CameraCounter, time: Duration) {
        sum.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }
}
