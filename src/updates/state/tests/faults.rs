//! Faults of a server, a link or a disk that may be repaired.

use super::*;
use crate::state::delays::DOWNLOAD_DEADLINE_S;

const START_MS: u64 = 1_795_132_800_000;

pub(super) fn hindered(words: &str, now_ms: u64) -> UpdateEvent {
    wasted(words, now_ms, 0)
}

/// A deferred attempt of which `wasted` bytes were thrown away.
pub(super) fn wasted(words: &str, now_ms: u64, wasted: u64) -> UpdateEvent {
    let reason = RollbackReason::new(RollbackCause::Download, words);
    UpdateEvent::Deferred { reason, now_ms, next_ms: now_ms + 1_000, wasted }
}

#[test]
fn a_fault_of_a_server_counts_no_attempt_and_a_download_ends_14_days_after_the_first() {
    let many = std::iter::repeat_n(hindered("wrong bytes", START_MS), 1_000);
    let state = after(at(RolloutPhase::Downloading), many);
    let trial = state.trial.clone().unwrap();
    assert_eq!((trial.stage, trial.failures), (RolloutPhase::Downloading, 0));
    // The time of a download without faults does not count.
    let well = after(at(RolloutPhase::Downloading), [UpdateEvent::Waited { seconds: 365 * 86_400 }]);
    assert_eq!(stage(&well), Some(RolloutPhase::Downloading), "what comes slowly comes");
    let mut state = after(well, [hindered("wrong bytes", START_MS)]);
    for _ in 0..14 {
        // Other faults and restarts in between change nothing.
        state = after(state, [UpdateEvent::Waited { seconds: 86_400 }, hindered("status 503", START_MS), start(true)]);
        assert_eq!(stage(&state), Some(RolloutPhase::Downloading));
    }
    let state = after(state, [UpdateEvent::Waited { seconds: 1 }]);
    assert_eq!(
        (live(&state), rolled_back(&state)),
        (Some(1), Some((RolloutPhase::Downloading, RollbackCause::Deadline)))
    );
    let detail = &state.outcome.as_ref().unwrap().rolled_back.as_ref().unwrap().1.detail;
    let told = "not downloaded 14 days after the first fault; 15 attempts failed since 2026-11-20T00:00:00Z, the last one: \
                download: status 503";
    assert_eq!(detail, told);
    assert_eq!(stage(&after(state, [want("r2", 2)])), None, "and it is not begun again");
}

#[test]
fn a_fault_that_passes_leaves_no_trace() {
    let day = || UpdateEvent::Waited { seconds: 86_400 };
    let state = after(at(RolloutPhase::Downloading), [hindered("wrong bytes", START_MS), day(), UpdateEvent::Passed]);
    assert_eq!((stage(&state), state.trial.unwrap().fault), (Some(RolloutPhase::Verified), None));
}

#[test]
fn a_fault_ends_with_the_bytes_that_come_after_it() {
    let days = |days: u64| UpdateEvent::Waited { seconds: days * 86_400 };
    let bytes = |bytes| UpdateEvent::Fetched { bytes };
    let present = |state: &SubjectState| state.trial.as_ref().unwrap().present_fault().cloned();
    // One error of TLS, and then a download of weeks.
    let state = after(at(RolloutPhase::Downloading), [hindered("TLS", START_MS), days(3)]);
    assert_eq!(present(&state).unwrap().lasted_s, 3 * 86_400);
    let state = after(state, [bytes(100), days(30)]);
    assert_eq!((stage(&state), present(&state)), (Some(RolloutPhase::Downloading), None));
    // The next fault is another one.
    let state = after(state, [hindered("503", START_MS + 7), days(14)]);
    let fault = present(&state).unwrap();
    assert_eq!((fault.since_ms, fault.attempts, fault.lasted_s), (START_MS + 7, 1, DOWNLOAD_DEADLINE_S));
    assert_eq!(rolled_back(&after(state, [days(1)])), Some((RolloutPhase::Downloading, RollbackCause::Deadline)));
}

#[test]
fn bytes_that_turn_out_wrong_end_no_fault() {
    let day = || UpdateEvent::Waited { seconds: 86_400 };
    let bytes = |bytes| UpdateEvent::Fetched { bytes };
    // A server that sends the wrong file, whole.
    let mut state = after(at(RolloutPhase::Downloading), [bytes(10), wasted("wrong bytes", START_MS, 10)]);
    for _ in 0..14 {
        assert_eq!(stage(&state), Some(RolloutPhase::Downloading));
        state = after(state, [day(), bytes(10), wasted("wrong bytes", START_MS, 10)]);
    }
    assert_eq!(rolled_back(&after(state, [day()])), Some((RolloutPhase::Downloading, RollbackCause::Deadline)));
    // The same for a download that breaks off in the middle: its bytes had counted as useful.
    let mut state = after(at(RolloutPhase::Downloading), [bytes(5), hindered("broken off", START_MS)]);
    for _ in 0..7 {
        assert_eq!(stage(&state), Some(RolloutPhase::Downloading));
        state = after(state, [day(), bytes(5), wasted("wrong bytes", START_MS, 10)]);
        state = after(state, [day(), bytes(5), hindered("broken off", START_MS)]);
    }
    let state = after(state, [day(), bytes(5), wasted("wrong bytes", START_MS, 10), day()]);
    assert_eq!(rolled_back(&state), Some((RolloutPhase::Downloading, RollbackCause::Deadline)));
    // Bytes that a server without ranges sends again end no fault either.
    let again = [hindered("broken off", START_MS), day(), bytes(5), wasted("broken off", START_MS, 5)];
    let fault = after(at(RolloutPhase::Downloading), again).trial.unwrap().fault.unwrap();
    assert_eq!((fault.attempts, fault.lasted_s), (2, 86_400));
}

#[test]
fn a_fault_counts_on_when_its_rollout_comes_back_and_not_while_it_stands_still() {
    let week = || UpdateEvent::Waited { seconds: 7 * 86_400 };
    let state = after(at(RolloutPhase::Downloading), [hindered("wrong bytes", START_MS), week()]);
    let paused =
        after(state.clone(), [desired_state(plan("r2", 2), RolloutAllowance::Nothing), week(), week(), week()]);
    assert_eq!(stage(&paused), Some(RolloutPhase::Downloading));
    let again = after(state, [nothing(), want("r2", 2), week()]);
    assert_eq!(again.trial.as_ref().unwrap().fault.as_ref().unwrap().lasted_s, DOWNLOAD_DEADLINE_S);
    assert_eq!(
        rolled_back(&after(again, [UpdateEvent::Waited { seconds: 1 }])),
        Some((RolloutPhase::Downloading, RollbackCause::Deadline))
    );
}

#[test]
fn the_next_attempt_is_due_after_its_pause_or_when_somebody_says_so_whatever_the_clock_does() {
    let state = after(at(RolloutPhase::Downloading), [hindered("wrong bytes", START_MS)]);
    let is_due = |state: &SubjectState, now_ms| state.trial.as_ref().unwrap().is_due(now_ms);
    assert!(
        is_due(&at(RolloutPhase::Downloading), 0)
            && !is_due(&state, START_MS + 999)
            && is_due(&state, START_MS + 1_000)
    );
    // The clock was set back by more than any pause: to 1970, say.
    assert!(is_due(&state, 0));
    let now = after(state, [UpdateEvent::Retry { now_ms: START_MS + 1 }]);
    assert!(is_due(&now, START_MS + 1));
    let fault = now.trial.unwrap().fault.unwrap();
    assert_eq!((fault.since_ms, fault.attempts), (START_MS, 1), "the deadline stays");
}
