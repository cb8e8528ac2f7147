//! Finds jumps of the wall clock.

use std::time::Instant;

/// Corrections up to this are not reported, in milliseconds: time servers make them all the time.
const USUAL_CORRECTION_MS: u64 = 2000;

/// Compares the wall clock with the monotonic clock.
#[derive(Debug)]
pub struct ClockWatch {
    at: Instant,
    wall_ms: u64,
}

impl ClockWatch {
    /// Watches from now on.
    pub fn new(at: Instant, wall_ms: u64) -> Self {
        Self { at, wall_ms }
    }

    /// The jump of the wall clock since the last call, in milliseconds, if there was one. The monotonic clock stands
    /// still while a machine sleeps: that counts as a jump forward, as it appears in the log.
    pub fn jump(&mut self, at: Instant, wall_ms: u64) -> Option<i64> {
        let passed = u64::try_from(at.duration_since(self.at).as_millis()).unwrap_or(u64::MAX);
        let expected = self.wall_ms.saturating_add(passed);
        (self.at, self.wall_ms) = (at, wall_ms);
        jump(expected, wall_ms)
    }
}

/// The difference between a clock and the expected time, if it is more than usual.
pub fn jump(expected_ms: u64, wall_ms: u64) -> Option<i64> {
    let off = i64::try_from(wall_ms.abs_diff(expected_ms)).unwrap_or(i64::MAX);
    let signed = if wall_ms < expected_ms { -off } else { off };
    (off.unsigned_abs() > USUAL_CORRECTION_MS).then_some(signed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_clock_that_is_set_is_noticed_once() {
        let start = Instant::now();
        let mut watch = ClockWatch::new(start, 1_000_000);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(watch.jump(after(10), 1_011_000), None);
        assert_eq!(watch.jump(after(20), 5_021_000), Some(4_000_000));
        assert_eq!(watch.jump(after(30), 5_031_000), None);
        assert_eq!(watch.jump(after(40), 0), Some(-5_041_000));
        assert_eq!(watch.jump(after(50), 10_000), None);
    }
}
