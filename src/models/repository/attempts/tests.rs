use proptest::prelude::*;

use super::*;

const HOUR_MS: u64 = 3_600_000;

fn attempt(model: &str) -> Attempt {
    Attempt {
        key: AttemptKey::new(model, "", ""),
        model: model.parse().unwrap(),
        version: "1".parse().unwrap(),
        began_ms: 1,
    }
}

fn key(model: &str) -> AttemptKey {
    attempt(model).key
}

/// Loads these at the same time in a process that dies of it, at this time in this boot.
fn died(mut attempts: Attempts, models: &[&str], boot: &str, now_ms: u64) -> Attempts {
    attempts.start(boot, now_ms);
    for model in models {
        attempts.begin(attempt(model));
    }
    attempts
}

/// Returns the state that the next process finds.
fn found(mut attempts: Attempts, boot: &str, now_ms: u64) -> Attempts {
    attempts.start(boot, now_ms);
    attempts
}

fn twice_died(model: &str) -> Attempts {
    let attempts = died(Attempts::default(), &[model], "a", 1);
    found(died(attempts, &[model], "a", 2), "a", 3)
}

fn is_refused(attempts: &Attempts, model: &str) -> bool {
    matches!(attempts.verdict(&key(model), LoadMode::Changed, 4), Verdict::Refused(_))
}

#[test]
fn two_deaths_suspend_a_model_and_an_explicit_load_is_tried_first() {
    let once = found(died(Attempts::default(), &["m"], "a", 1), "a", 2);
    assert_eq!(once.verdict(&key("m"), LoadMode::Changed, 2), Verdict::Alone);
    assert_eq!(once.verdict(&key("m"), LoadMode::Always, 2), Verdict::AfterTrial);
    assert_eq!(once.verdict(&key("other"), LoadMode::Changed, 2), Verdict::Concurrent);

    let twice = twice_died("m");
    let Verdict::Refused(reason) = twice.verdict(&key("m"), LoadMode::Changed, 4) else { panic!("{twice:?}") };
    for words in ["2 times", "last at 1970-01-01T00:00:00Z", "next trial is at 1970-01-01T00:00:00Z", "models/m/load"] {
        assert!(reason.contains(words), "{reason}");
    }
    assert_eq!(twice.verdict(&key("m"), LoadMode::Due, 4), Verdict::AfterTrial, "the first trial is at once");
    assert_eq!(twice.verdict(&key("m"), LoadMode::Always, 4), Verdict::AfterTrial);
}

#[test]
fn a_death_elsewhere_an_orderly_stop_and_another_boot_blame_nobody() {
    let mut ended = died(Attempts::default(), &["m"], "a", 1);
    ended.end(&attempt("m"));
    let mut stopped = died(Attempts::default(), &["m"], "a", 1);
    stopped.stop();
    let under_way = died(Attempts::default(), &["m"], "a", 1);
    for (attempts, boot) in [(ended, "a"), (stopped, "a"), (under_way.clone(), "b")] {
        assert_eq!(found(attempts, boot, 2).suspects().count(), 0);
    }
    // A death before a restart of the machine and one after it are not two.
    let other_boot = died(found(under_way, "a", 2), &["m"], "b", 3);
    assert!(!is_refused(&found(other_boot, "b", 4), "m"));
    assert!(is_refused(&found(twice_died("m"), "b", 4), "m"), "a suspension outlives the boot");
}

#[test]
fn trials_come_ever_more_seldom_and_a_clock_that_was_set_back_does_not_put_them_off() {
    let mut attempts = twice_died("m");
    let mut now_ms = 3;
    assert_eq!(attempts.next_due_ms(now_ms), Some(0));
    attempts.record_failed_trial(&key("m"), &TrialFailure::Failed("died of SIGFPE".to_owned()), now_ms);
    let mut waits = Vec::new();
    for _ in 0..7 {
        let wait = attempts.next_due_ms(now_ms).unwrap();
        assert!(attempts.due(now_ms + wait - 1).is_empty());
        now_ms += wait;
        assert_eq!(attempts.next_due_ms(now_ms), Some(0));
        assert_eq!(attempts.verdict(&key("m"), LoadMode::Due, now_ms), Verdict::AfterTrial);
        assert_eq!(attempts.due(now_ms).len(), 1);
        let reason =
            attempts.record_failed_trial(&key("m"), &TrialFailure::Failed("died of SIGFPE".to_owned()), now_ms);
        assert!(reason.contains("died of SIGFPE") && reason.contains("next trial"), "{reason}");
        waits.push(wait / HOUR_MS);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 24, 24]);
    assert_eq!(attempts.due(1).len(), 1, "nobody knows how long it was since");
}

#[test]
fn a_trial_that_could_not_be_made_puts_the_next_one_off_no_longer_than_before() {
    let mut attempts = twice_died("m");
    for now_ms in [HOUR_MS + 3, 2 * HOUR_MS + 3] {
        assert_eq!(attempts.due(now_ms).len(), 1);
        let reason =
            attempts.record_failed_trial(&key("m"), &TrialFailure::Interrupted("no process".to_owned()), now_ms);
        assert!(reason.contains("no process") && reason.contains("2 times"), "{reason}");
        assert_eq!(attempts.next_due_ms(now_ms), Some(HOUR_MS));
    }
}

#[test]
fn a_model_that_passes_its_trial_is_free_and_one_that_ends_the_process_all_the_same_waits_for_people_at_last() {
    let mut passed = twice_died("m");
    passed.begin(attempt("m"));
    assert!(passed.end(&attempt("m")));
    assert_eq!(passed, found(Attempts::default(), "a", 0));

    let third = found(died(twice_died("m"), &["m"], "a", 4), "a", 5);
    assert_eq!(third.next_due_ms(5), Some(HOUR_MS));
    let fourth = found(died(third, &["m"], "a", 6), "a", 7);
    assert_eq!(fourth.next_due_ms(7), None);
    assert!(fourth.due(u64::MAX).is_empty() && is_refused(&fourth, "m"));
    assert_eq!(fourth.verdict(&key("m"), LoadMode::Always, 8), Verdict::AfterTrial);
}

#[test]
fn other_files_another_configuration_and_other_runtimes_are_other_attempts() {
    let keys = [("d", "c", "l"), ("d", "c", "L"), ("d", "C", "l"), ("D", "c", "l"), ("dc", "", "l"), ("", "dc", "l")];
    let keys: std::collections::BTreeSet<_> = keys.map(|(d, c, l)| AttemptKey::new(d, c, l)).into();
    assert_eq!(keys.len(), 6);
    // Suspicions of a version's earlier files are dropped.
    let mut attempts = twice_died("m");
    let other = Attempt { key: AttemptKey::new("other files", "", ""), ..attempt("m") };
    attempts.begin(other.clone());
    assert!(attempts.end(&other) && attempts.suspects().count() == 0);
}

#[test]
fn copies_of_one_model_are_one_suspect() {
    let copy = Attempt { model: "copy".parse().unwrap(), ..attempt("m") };
    let mut attempts = Attempts::default();
    for now_ms in 1..3 {
        attempts.start("a", now_ms);
        attempts.begin(attempt("m"));
        attempts.begin(copy.clone());
    }
    assert!(is_refused(&found(attempts, "a", 3), "m"));
}

/// Loads `models` as a process does: suspects last and one at a time, `beside` at a time of the others. `false` when
/// one of the `guilty` killed it.
fn run(attempts: &mut Attempts, models: &[String], guilty: &[String], beside: usize) -> Result<Vec<String>, ()> {
    attempts.start("a", 0);
    let verdict = |attempts: &Attempts, model: &String| attempts.verdict(&key(model), LoadMode::Changed, 0);
    let is_beside = |model: &&String| verdict(attempts, model) == Verdict::Concurrent;
    let (first, last): (Vec<_>, Vec<_>) = models.iter().partition(is_beside);
    let mut loaded = Vec::new();
    for together in first.chunks(beside).chain(last.chunks(1)) {
        let tried: Vec<_> =
            together.iter().filter(|model| !matches!(verdict(attempts, model), Verdict::Refused(_))).collect();
        for model in &tried {
            attempts.begin(attempt(model));
        }
        if tried.iter().any(|model| guilty.contains(model)) {
            return Err(());
        }
        for model in tried {
            attempts.end(&attempt(model));
            loaded.push((*model).clone());
        }
    }
    Ok(loaded)
}

proptest! {
    #[test]
    fn the_guilty_are_suspended_after_two_deaths_each_at_most_and_nobody_else(
        models in prop::collection::vec((any::<bool>(), any::<u8>()), 1..12),
        beside in 1_usize..5,
    ) {
        let mut order: Vec<_> = models.iter().enumerate().map(|(n, &(bad, place))| (place, format!("m{n}"), bad)).collect();
        order.sort();
        let all: Vec<String> = order.iter().map(|(_, name, _)| name.clone()).collect();
        let guilty: Vec<String> = order.iter().filter(|(.., bad)| *bad).map(|(_, name, _)| name.clone()).collect();
        let mut attempts = Attempts::default();
        let mut deaths = 0;
        let loaded = loop {
            match run(&mut attempts, &all, &guilty, beside) {
                Ok(loaded) => break loaded,
                Err(()) => deaths += 1,
            }
            prop_assert!(deaths <= 2 * guilty.len(), "{attempts:?}");
        };
        prop_assert_eq!(loaded.len(), all.len() - guilty.len());
        let mut suspended: Vec<_> = attempts.suspects().map(|suspect| suspect.model.to_string()).collect();
        suspended.sort();
        let mut expected = guilty.clone();
        expected.sort();
        prop_assert_eq!(suspended, expected);
    }
}
