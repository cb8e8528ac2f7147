//! Limits log messages about repeated faults: of calls, each kind is logged at once, then at most once a minute with a
//! count; of work that is tried again until it succeeds, the beginning and each hour.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The shortest time between two lines of one kind.
const QUIET_PERIOD: Duration = Duration::from_mins(1);

/// The time after which a fault that lasts is logged again.
const REMINDER_INTERVAL: Duration = Duration::from_hours(1);

/// The kinds of messages that were logged. The kinds are a closed set, so the map stays small regardless of what is
/// logged.
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

/// Work that is tried again until it succeeds, as on a full disk.
#[derive(Debug, Default)]
pub struct LastingFault {
    /// When it was last logged; `None` while the work succeeds.
    logged: Option<Instant>,
}

impl LastingFault {
    /// Notes an attempt that failed; true when it is to be logged.
    pub fn is_to_be_logged(&mut self, now: Instant) -> bool {
        let is_due = self.logged.is_none_or(|logged| now.saturating_duration_since(logged) >= REMINDER_INTERVAL);
        if is_due {
            self.logged = Some(now);
        }
        is_due
    }

    /// Notes an attempt that succeeded; true when a fault has ended with it.
    pub fn end(&mut self) -> bool {
        self.logged.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_that_lasts_is_logged_at_its_beginning_and_each_hour_until_its_end() {
        let mut fault = LastingFault::default();
        let start = Instant::now();
        assert!(!fault.end(), "nothing has failed yet");
        let logged = |fault: &mut LastingFault| -> Vec<u64> {
            let attempts = (0..7300).step_by(10);
            attempts.filter(|second| fault.is_to_be_logged(start + Duration::from_secs(*second))).collect()
        };
        assert_eq!(logged(&mut fault), [0, 3600, 7200]);
        assert!(fault.end() && !fault.end());
        assert!(fault.is_to_be_logged(start + Duration::from_secs(7301)), "another fault");
    }

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
