//! What others do wrong, told in a log: each kind once, then at most once a minute with a count.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a kind is quiet after a line.
const QUIET: Duration = Duration::from_mins(1);

/// Which kinds were told when. The kinds are of a closed set, so this stays small whatever is sent.
#[derive(Debug, Default)]
pub struct Complaints {
    kinds: HashMap<(&'static str, u32), Kind>,
}

#[derive(Debug)]
struct Kind {
    quiet_until: Instant,
    suppressed: u64,
}

impl Complaints {
    /// Whether to log a complaint of this kind now: the number of those since the last line that were not logged.
    pub fn take(&mut self, kind: (&'static str, u32), now: Instant) -> Option<u64> {
        match self.kinds.get_mut(&kind) {
            Some(known) if now < known.quiet_until => {
                known.suppressed += 1;
                None
            }
            Some(known) => {
                known.quiet_until = now + QUIET;
                Some(std::mem::take(&mut known.suppressed))
            }
            None => {
                self.kinds.insert(kind, Kind { quiet_until: now + QUIET, suppressed: 0 });
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
        let mut complaints = Complaints::default();
        let start = Instant::now();
        let logged: Vec<_> =
            (0..90).map(|second| complaints.take(("a", 0), start + Duration::from_secs(second))).collect();
        let lines: Vec<_> = logged.iter().enumerate().filter_map(|(second, line)| Some((second, (*line)?))).collect();
        assert_eq!(lines, [(0, 0), (60, 59)]);
        assert_eq!(complaints.take(("a", 1), start), Some(0));
    }
}
