//! Whether the clock on the wall goes on as it should.

use std::time::Instant;

/// A clock that is set right by this much, in milliseconds, is no news: time servers do it all the time.
const USUAL: u64 = 2000;

/// Compares the clock on the wall with one that nobody sets.
#[derive(Debug)]
pub struct ClockWatch {
    at: Instant,
    wall_ms: u64,
}

impl ClockWatch {
    /// From now on.
    pub fn new(at: Instant, wall_ms: u64) -> Self {
        Self { at, wall_ms }
    }

    /// By how much the clock jumped since it was last asked, in milliseconds, if it did. While a machine sleeps its other
    /// clock stands still: that looks like a jump forward, and is one for whoever reads the log.
    pub fn jump(&mut self, at: Instant, wall_ms: u64) -> Option<i64> {
        let passed = u64::try_from(at.duration_since(self.at).as_millis()).unwrap_or(u64::MAX);
        let expected = self.wall_ms.saturating_add(passed);
        (self.at, self.wall_ms) = (at, wall_ms);
        jump(expected, wall_ms)
    }
}

/// By how much a clock is off from what it should show, if that is news.
pub fn jump(expected_ms: u64, wall_ms: u64) -> Option<i64> {
    let off = i64::try_from(wall_ms.abs_diff(expected_ms)).unwrap_or(i64::MAX);
    let signed = if wall_ms < expected_ms { -off } else { off };
    (off.unsigned_abs() > USUAL).then_some(signed)
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
