//! Limits log messages about repeated faults: each kind is logged at once, then at most once a minute with a count.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The shortest time between two lines of one kind.
const QUIET_PERIOD: Duration = Duration::from_mins(1);

/// The kinds of messages that were logged. The kinds are a closed set, so the map stays small whatever others send.
#[derive(Debug, Default)]
pub struct LogLimiter {
    kinds: HashMap<(&'static str, u32), LoggedKind>,
}

#[derive(Debug)]
struct LoggedKind {
    quiet_until: Instant,
    suppressed: u64,
}

impl LogLimiter {
    /// Decides if a message of this kind is to be logged now. Returns the number of messages since the last line that
    /// were not logged, or `None` to log nothing.
    pub fn take(&mut self, kind: (&'static str, u32), now: Instant) -> Option<u64> {
        match self.kinds.get_mut(&kind) {
            Some(known) if now < known.quiet_until => {
                known.suppressed += 1;
                None
            }
            Some(known) => {
                known.quiet_until = now + QUIET_PERIOD;
                Some(std::mem::take(&mut known.suppressed))
            }
            None => {
                self.kinds.insert(kind, LoggedKind { quiet_until: now + QUIET_PERIOD, suppressed: 0 });
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_logged_once_and_after_a_minute_with_the_number_of_the_others() {
        let mut limiter = LogLimiter::default();
        let start = Instant::now();
        let logged: Vec<_> =
            (0..90).map(|second| limiter.take(("a", 0), start + Duration::from_secs(second))).collect();
        let lines: Vec<_> = logged.iter().enumerate().filter_map(|(second, line)| Some((second, (*line)?))).collect();
        assert_eq!(lines, [(0, 0), (60, 59)]);
        assert_eq!(limiter.take(("a", 1), start), Some(0));
    }
}
