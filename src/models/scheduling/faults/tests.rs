use std::net::{IpAddr, Ipv4Addr};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn key(name: &str) -> Principal {
    Principal::Key(name.into())
}

fn loopback() -> Principal {
    Principal::Peer(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

fn input(byte: u8) -> InputDigest {
    InputDigest::of_tensors(&[], &[usize::from(byte)])
}

/// Counts a fault of a caller.
fn crash(faults: &ModelFaults, principal: Principal, byte: u8, now: Instant) -> FaultConsequences {
    faults.count("SIGSEGV", FaultingCaller { principal, input: Some(input(byte)) }.cause(), now)
}

#[test]
fn a_model_with_a_fault_gets_its_own_process() {
    let faults = ModelFaults::default();
    assert_eq!(faults.isolation(Isolation::Process), Isolation::Process);
    assert_eq!(faults.count("crashed", FaultCause::Own, Instant::now()), FaultConsequences::default());
    assert_eq!(faults.isolation(Isolation::Process), Isolation::Own);
}

#[test]
fn a_suspect_gets_its_own_process_and_has_no_fault() {
    let faults = ModelFaults::default();
    faults.suspect();
    assert_eq!(faults.isolation(Isolation::Process), Isolation::Own);
    assert!(!faults.has_any() && faults.crashing(Instant::now()).is_none());
}

#[test]
fn faults_without_a_caller_within_one_probation_unload_it_and_rare_ones_do_not() {
    let (faults, now) = (ModelFaults::default(), Instant::now());
    let own = |now| faults.count("SIGSEGV", FaultCause::Own, now).unloaded;
    for count in 0..10 {
        assert_eq!(own(now + PROBATION * count), None);
    }
    let now = now + PROBATION * 20;
    assert_eq!((own(now), own(now)), (None, None));
    assert!(own(now).unwrap().contains("SIGSEGV"));
    assert!(faults.unloadable().unwrap().contains("3 times within 10 minutes"));
}

#[test]
fn faults_of_callers_never_unload_it_and_are_told() {
    let (faults, now) = (ModelFaults::default(), Instant::now());
    for count in 0..20 {
        assert_eq!(faults.crashing(now).is_some(), count >= FAULTS_MAX, "{count}");
        assert_eq!(crash(&faults, key("a"), 0, now).unloaded, None);
    }
    assert!(faults.crashing(now).unwrap().contains("20 times"));
    assert!(faults.crashing(now + PROBATION).is_none());
    assert_eq!(faults.unloaded(), None);
}

#[test]
fn a_caller_is_refused_after_three_faults_for_a_time_that_grows_and_others_are_not() {
    let (faults, now) = (ModelFaults::default(), Instant::now());
    let refused = |now| faults.admit(&key("a"), None, now).err().and_then(|blamed| blamed.retry_after());
    assert_eq!(crash(&faults, key("a"), 0, now).refused_for, None);
    assert_eq!(crash(&faults, key("a"), 1, now).refused_for, None);
    assert_eq!(refused(now), None);
    assert_eq!(crash(&faults, key("a"), 2, now).refused_for, Some(REFUSED_FOR));
    assert_eq!(refused(now + SECOND), REFUSED_FOR.checked_sub(SECOND));
    assert_eq!(faults.refusal(&key("a"), now + SECOND), faults.admit(&key("a"), None, now + SECOND).err());
    for other in [key("b"), Principal::User(0), loopback(), Principal::Local] {
        assert_eq!(faults.admit(&other, None, now), Ok(()));
    }

    let now = now + REFUSED_FOR;
    assert_eq!(refused(now), None);
    assert_eq!(crash(&faults, key("a"), 3, now).refused_for, Some(2 * REFUSED_FOR));
    assert_eq!(refused(now), Some(2 * REFUSED_FOR));
    let now = now + HELD_FOR;
    assert_eq!(crash(&faults, key("a"), 3, now).refused_for, None, "it is forgotten");
}

#[test]
fn an_input_is_refused_after_two_faults_whoever_sends_it() {
    let (faults, now) = (ModelFaults::default(), Instant::now());
    let admit = |byte, now| faults.admit(&key("c"), Some(&input(byte)), now);
    assert!(!faults.needs_input());
    crash(&faults, key("a"), 7, now);
    assert!(faults.needs_input());
    assert_eq!(admit(7, now), Ok(()));
    crash(&faults, key("b"), 7, now);
    assert_eq!((admit(7, now), admit(8, now)), (Err(FaultRefusal::Input), Ok(())));
    assert_eq!(FaultRefusal::Input.retry_after(), None);
    assert_eq!(admit(7, now + HELD_FOR), Ok(()));
}

#[test]
fn callers_that_cannot_be_told_apart_get_one_call_in_a_while() {
    let (faults, now) = (ModelFaults::default(), Instant::now());
    let wait = |principal: &Principal, now| {
        faults.admit(principal, None, now).map_err(|blamed| blamed.retry_after().unwrap()).err()
    };
    let topic = Principal::Mqtt("t".into());
    for (byte, principal) in (0..).zip([loopback(), topic.clone(), loopback()]) {
        assert_eq!(wait(&principal, now), None);
        assert_eq!(crash(&faults, principal, byte, now).refused_for, None);
    }
    assert_eq!((wait(&topic, now), wait(&loopback(), now)), (None, Some(SECOND)));
    assert_eq!(wait(&key("a"), now), None);
    assert_eq!((wait(&loopback(), now + SECOND), wait(&topic, now + SECOND)), (None, Some(SECOND)));

    let now = now + SECOND;
    crash(&faults, topic.clone(), 9, now);
    assert_eq!((wait(&topic, now + SECOND), wait(&topic, now + SECOND)), (None, Some(2 * SECOND)));
    let now = now + PROBATION;
    assert_eq!((wait(&topic, now), wait(&topic, now)), (None, None), "it is forgotten");
}

#[test]
fn a_call_that_waited_is_admitted_again_only_after_a_fault() {
    let (faults, now) = (ModelFaults::default(), Instant::now());
    let again = |since, now| faults.admit_again(&key("a"), None, since, now).is_ok();
    for byte in 0..3 {
        crash(&faults, key("a"), byte, now + SECOND);
    }
    assert!(!again(now, now + SECOND));
    assert!(again(now + 2 * SECOND, now + 2 * SECOND));
}

#[test]
fn the_tables_are_bounded() {
    let (faults, now) = (ModelFaults::default(), Instant::now());
    for count in 0..1000_u16 {
        let principal = key(&count.to_string());
        let input = Some(InputDigest::of_tensors(&[], &[usize::from(count)]));
        faults.count("SIGSEGV", FaultingCaller { principal, input }.cause(), now + SECOND * count.into());
    }
    let state = faults.state();
    assert_eq!((state.callers.len(), state.inputs.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
    assert!(state.callers.contains_key(&key("999")) && !state.callers.contains_key(&key("0")));
}

#[test]
fn golden_inputs_that_fail_unload_the_model_until_they_pass() {
    let (faults, now) = (ModelFaults::new(true), Instant::now());
    assert!(!faults.begin_trial(now) && faults.next_trial().is_none());
    crash(&faults, key("a"), 0, now);
    assert_eq!(faults.next_trial(), Some(now));
    assert!(faults.begin_trial(now) && !faults.begin_trial(now));
    assert_eq!(faults.end_trial(GoldenTrialResult::Failed("off by 1".into()), now), GoldenTrialChange::Unloaded);
    assert!(faults.unloadable().unwrap().contains("off by 1"));

    let mut now = now;
    for pause in [TRIAL_PAUSE_MIN, 2 * TRIAL_PAUSE_MIN, 4 * TRIAL_PAUSE_MIN] {
        now += pause.saturating_sub(SECOND);
        assert!(!faults.begin_trial(now));
        now += SECOND;
        assert!(faults.begin_trial(now));
        assert!(faults.unloaded().is_some() && faults.unloadable().is_none(), "it is loaded to be tried");
        assert_eq!(faults.end_trial(GoldenTrialResult::Unknown("no answer".into()), now), GoldenTrialChange::None);
    }
    let now = faults.next_trial().unwrap();
    assert!(faults.begin_trial(now));
    assert_eq!(faults.end_trial(GoldenTrialResult::Passed, now), GoldenTrialChange::Back);
    assert_eq!((faults.unloaded(), faults.next_trial()), (None, None));
}

#[test]
fn golden_inputs_that_could_not_be_run_unload_nothing_unless_they_crash() {
    let (faults, now) = (ModelFaults::new(true), Instant::now());
    let unknown = || GoldenTrialResult::Unknown("no answer".into());
    crash(&faults, key("a"), 0, now);
    assert!(faults.begin_trial(now));
    assert_eq!(faults.end_trial(unknown(), now), GoldenTrialChange::None);
    let now = now + TRIAL_PAUSE_MIN;
    assert!(faults.begin_trial(now));
    faults.count("SIGSEGV", FaultCause::Own, now);
    assert_eq!(faults.end_trial(unknown(), now), GoldenTrialChange::Unloaded);
}

#[test]
fn a_model_without_golden_inputs_is_not_tried() {
    let (faults, now) = (ModelFaults::new(false), Instant::now());
    crash(&faults, key("a"), 0, now);
    assert!(faults.next_trial().is_none() && !faults.begin_trial(now));
}
