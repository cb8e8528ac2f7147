//! What a server, a link or a disk keeps from going on, and the pauses between two attempts at it.

use std::time::Duration;

use ledge_base::backoff::{Backoff, random};
use ledge_base::clock;

use super::Updater;
use crate::state::{Event, LONGEST_PAUSE_MS, Reason};
use crate::subject::Subject;

/// The first pause, and the longest of attempts that cost little: a network that is back is soon noticed.
const FIRST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_mins(15);

/// The same of an attempt that cost at least [`WASTE`]: a server that has the wrong file is not made to send it all day.
const FIRST_AFTER_WASTE: Duration = Duration::from_mins(1);
const LONGEST_AFTER_WASTE: Duration = Duration::from_millis(LONGEST_PAUSE_MS);

/// Bytes fetched for nothing that are worth sparing.
const WASTE: u64 = 64 << 10;

impl Updater {
    /// An attempt failed for a reason that lies elsewhere: the next one comes later.
    pub(super) async fn hindered(&mut self, subject: &Subject, reason: Reason, after: Option<Duration>, wasted: u64) {
        // What came counts before the next attempt is planned: the byte budget may be used up.
        self.count_fetched(subject).await;
        let Some(trial) = self.state(subject).trial else { return };
        let attempts = trial.fault.as_ref().map_or(0, |fault| fault.attempts_before(wasted));
        let (now_ms, pause) = (clock::unix_millis(), pause(attempts, wasted, after, random()));
        tracing::warn!(%subject, %reason, wasted, "an update waits before its next attempt");
        tracing::debug!(%reason, retry_in_s = pause.as_secs(), "the next attempt waits");
        let next_ms = now_ms.saturating_add(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        self.advance(subject, Event::Hindered { reason, now_ms, next_ms, wasted }).await;
        // It is no step that has to be on disk before it is taken: the disk may be what is full.
        self.write_counts();
    }

    /// Counts what came off the network since it was last asked.
    pub(super) async fn count_fetched(&mut self, subject: &Subject) {
        let bytes = self.hand(subject).take_fetched();
        if bytes > 0 {
            self.parts.updates.tell(|status| status.fetched_bytes += bytes);
            self.advance(subject, Event::Fetched { bytes }).await;
        }
    }

    /// Somebody at this box has put right what was in the way, perhaps.
    pub(super) async fn retry(&mut self) {
        for subject in self.known() {
            self.hand(&subject).end_pause();
            self.advance(&subject, Event::Retry { now_ms: clock::unix_millis() }).await;
            self.reconcile(&subject).await;
        }
    }
}

/// The pause after an attempt that failed and fetched `wasted` bytes for nothing, when `before` had failed before it. `after`
/// is what the server asked for, and `random` anything from 0 to 1. Pure.
fn pause(before: u32, wasted: u64, after: Option<Duration>, random: f64) -> Duration {
    let (first, longest) = if wasted < WASTE { (FIRST, LONGEST) } else { (FIRST_AFTER_WASTE, LONGEST_AFTER_WASTE) };
    let grown = FIRST.saturating_mul(2_u32.saturating_pow(before)).max(first);
    let pause = Backoff::new(grown, longest).pause(random);
    // What the server says is for everybody at once: some come later. And it is bounded like every pause.
    let asked = after.map(|after| after.min(LONGEST_AFTER_WASTE).mul_f64(1.0 + random.clamp(0.0, 1.0) / 2.0));
    pause.max(asked.unwrap_or_default()).min(LONGEST_AFTER_WASTE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pauses(wasted: u64) -> Vec<u64> {
        (0..16).map(|before| pause(before, wasted, None, 1.0).as_secs()).collect()
    }

    #[test]
    fn pauses_grow_to_a_quarter_of_an_hour_and_after_wasted_bytes_to_hours() {
        let little = pauses(WASTE - 1);
        assert_eq!(little, [2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900, 900, 900, 900, 900]);
        let much = pauses(WASTE);
        assert_eq!(much, [60, 60, 60, 60, 60, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 21600, 21600]);
    }

    #[test]
    fn a_server_that_always_has_the_wrong_file_sends_it_a_bounded_number_of_times() {
        let (mut passed, mut fetched) = (Duration::ZERO, 0_u32);
        while passed < Duration::from_hours(14 * 24) {
            // The luck that makes every pause the shortest.
            passed += pause(fetched, u64::MAX, None, 0.0);
            fetched += 1;
        }
        assert!(fetched < 130, "{fetched}");
    }

    proptest! {
        #[test]
        fn no_server_makes_a_pause_longer_than_the_longest_or_shorter_than_the_box_wants(
            before in any::<u32>(), wasted in any::<u64>(), after in proptest::option::of(any::<u64>()), random in 0.0..=1.0_f64,
        ) {
            let found = pause(before, wasted, after.map(Duration::from_secs), random);
            prop_assert!(found <= LONGEST_AFTER_WASTE);
            prop_assert!(found >= pause(before, wasted, None, random));
        }
    }
}
