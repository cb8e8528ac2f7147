//! A queue that is full again and again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time without a refusal after which the queue counts as having room again.
const CALM: Duration = Duration::from_secs(30);

/// The refusals for want of room in one queue.
#[derive(Debug, Default)]
pub struct QueueRefusals(Mutex<Option<RefusalSpell>>);

/// Refusals without a calm between two of them.
#[derive(Debug, Clone, Copy)]
struct RefusalSpell {
    first: Instant,
    last: Instant,
    refusals: u64,
}

impl QueueRefusals {
    /// Takes note of a refusal.
    pub fn refused(&self, now: Instant) {
        let mut span = self.lock();
        let before = span.filter(|span| now.saturating_duration_since(span.last) < CALM);
        let refusals = before.map_or(0, |span| span.refusals) + 1;
        *span = Some(RefusalSpell { first: before.map_or(now, |span| span.first), last: now, refusals });
    }

    /// For how long the queue was full again and again, and the refusals in that time; `None` where it has room.
    pub fn full(&self, now: Instant) -> Option<(Duration, u64)> {
        let span = self.lock().filter(|span| now.saturating_duration_since(span.last) < CALM)?;
        Some((span.last.saturating_duration_since(span.first), span.refusals))
    }

    fn lock(&self) -> MutexGuard<'_, Option<RefusalSpell>> {
        // Nothing panics under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_full_from_its_first_refusal_to_the_calm_after_the_last() {
        let (queue, start) = (QueueRefusals::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(queue.full(at(0)), None);
        for seconds in [0, 20, 40] {
            queue.refused(at(seconds));
        }
        assert_eq!(queue.full(at(60)), Some((Duration::from_secs(40), 3)));
        assert_eq!(queue.full(at(70)), None);
        queue.refused(at(80));
        assert_eq!(queue.full(at(81)), Some((Duration::ZERO, 1)));
    }
}
