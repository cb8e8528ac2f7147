//! Pauses between two attempts at a job that a server, a link or a disk prevents.

use std::time::Duration;

use ledge_base::backoff::{Backoff, random};
use ledge_base::clock;

use super::Updater;
use crate::artifact::Artifact;
use crate::state::{PAUSE_MAX_MS, RollbackReason, UpdateEvent};

/// Bounds of the pause after an attempt that cost little: a network that is back is soon noticed.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_mins(15);

/// Bounds of the pause after an attempt that cost at least [`WASTED_BYTES_MIN`]: a server with the wrong file must not
/// send it all day.
const FIRST_PAUSE_AFTER_WASTE: Duration = Duration::from_mins(1);
const PAUSE_AFTER_WASTE_MAX: Duration = Duration::from_millis(PAUSE_MAX_MS);

/// Thrown-away bytes from which on pauses are longer.
const WASTED_BYTES_MIN: u64 = 64 << 10;

impl Updater {
    /// Delays the next attempt after one that failed for a reason outside of this box or its release.
    pub(super) async fn deferred(
        &mut self,
        subject: &Artifact,
        reason: RollbackReason,
        after: Option<Duration>,
        wasted: u64,
    ) {
        // Fetched bytes count before the next attempt is planned: the byte budget may be used up.
        self.count_fetched(subject).await;
        let Some(trial) = self.state(subject).trial else { return };
        let attempts = trial.fault.as_ref().map_or(0, |fault| fault.attempts_before(wasted));
        let (now_ms, pause) = (clock::unix_millis(), pause(attempts, wasted, after, random()));
        tracing::warn!(name: "update.paused", %subject, %reason, wasted, "an update waits before its next attempt");
        tracing::debug!(name: "update.retry_planned", %reason, retry_in_s = pause.as_secs(), "the next attempt waits");
        let next_ms = now_ms.saturating_add(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        self.advance(subject, UpdateEvent::Deferred { reason, now_ms, next_ms, wasted }).await;
        // A delay need not be on disk before it counts: the disk may be full.
        self.write_counts();
    }

    /// Counts the bytes fetched since the last call.
    pub(super) async fn count_fetched(&mut self, subject: &Artifact) {
        let bytes = self.trial_runtime(subject).take_fetched();
        if bytes > 0 {
            self.parts.updates.update_status(|status| status.fetched_bytes += bytes);
            self.advance(subject, UpdateEvent::Fetched { bytes }).await;
        }
    }

    /// Tries again at once: the administrator may have removed the obstacle.
    pub(super) async fn retry(&mut self) {
        for subject in self.known() {
            self.trial_runtime(&subject).end_pause();
            self.advance(&subject, UpdateEvent::Retry { now_ms: clock::unix_millis() }).await;
            self.reconcile(&subject).await;
        }
    }
}

/// Computes the pause after an attempt that failed and threw away `wasted` bytes, when `before` attempts had failed
/// before it. `after` is the pause that the server asked for, and `random` anything from 0 to 1. Pure.
fn pause(before: u32, wasted: u64, after: Option<Duration>, random: f64) -> Duration {
    let (first, longest) = if wasted < WASTED_BYTES_MIN {
        (FIRST_PAUSE, PAUSE_MAX)
    } else {
        (FIRST_PAUSE_AFTER_WASTE, PAUSE_AFTER_WASTE_MAX)
    };
    let grown = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(before)).max(first);
    let pause = Backoff::new(grown, longest).pause(random);
    // The server sends all boxes the same pause, so spread them. It is bounded like every pause.
    let asked = after.map(|after| after.min(PAUSE_AFTER_WASTE_MAX).mul_f64(1.0 + random.clamp(0.0, 1.0) / 2.0));
    pause.max(asked.unwrap_or_default()).min(PAUSE_AFTER_WASTE_MAX)
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
        let little = pauses(WASTED_BYTES_MIN - 1);
        assert_eq!(little, [2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900, 900, 900, 900, 900]);
        let much = pauses(WASTED_BYTES_MIN);
        assert_eq!(much, [60, 60, 60, 60, 60, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 21600, 21600]);
    }

    #[test]
    fn a_server_that_always_has_the_wrong_file_sends_it_a_bounded_number_of_times() {
        let (mut passed, mut fetched) = (Duration::ZERO, 0_u32);
        while passed < Duration::from_hours(14 * 24) {
            // With 0, every pause is the shortest.
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
            prop_assert!(found <= PAUSE_AFTER_WASTE_MAX);
            prop_assert!(found >= pause(before, wasted, None, random));
        }
    }
}
