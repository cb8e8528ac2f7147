use proptest::prelude::*;

use super::*;

const MINUTE: u64 = 60_000;

fn name() -> ModelName {
    ModelName::constant("m")
}

fn version() -> ModelVersion {
    1.try_into().unwrap()
}

fn served(digest: &str, took_ms: u64) -> ServedVersion {
    ServedVersion { conditions: "c".into(), digest: digest.into(), files: Vec::new(), took_ms, checked: None }
}

fn failed(content: &str, reason: &str) -> FailedLoad {
    FailedLoad {
        content: content.into(),
        reason: reason.into(),
        is_timeout: reason == "late",
        is_of_box: reason == "disk",
    }
}

#[test]
fn an_unchanged_failure_is_news_once_and_its_pause_grows() {
    let mut records = LoadRecords::default();
    let mut fail = |content, reason, at| {
        let is_news = records.record_failure(&name(), version(), failed(content, reason), at * MINUTE);
        let wait = records.next_tries(at * MINUTE)[&name()];
        (is_news, wait.as_secs() / 60)
    };
    assert_eq!(fail("a", "no model", 0), (true, 1));
    assert_eq!(fail("a", "no model", 1), (false, 2));
    assert_eq!(fail("a", "another", 3), (true, 4));
    // Other files fail for the first time.
    assert_eq!(fail("b", "another", 5), (false, 1));
    assert!(!records.is_due(&name(), version(), 5 * MINUTE) && records.is_due(&name(), version(), 6 * MINUTE));
    assert!(records.failure(&name(), version(), "b").is_some() && records.failure(&name(), version(), "a").is_none());
}

#[test]
fn a_version_that_loads_has_no_failure_and_is_written_only_when_it_is_another() {
    let mut records = LoadRecords::default();
    assert!(records.record_served(&name(), version(), served("d", 1000)));
    assert!(!records.record_served(&name(), version(), served("d", 1900)));
    assert!(records.record_served(&name(), version(), served("d", 5000)), "it takes longer now");
    records.record_failure(&name(), version(), failed("a", "no memory"), 0);
    assert!(records.served(&name(), version()).is_some(), "what it has served is not forgotten");
    assert!(records.record_served(&name(), version(), served("d", 5000)));
    assert_eq!(records.failures().count(), 0);
    assert!(records.record_served(&name(), version(), served("e", 5000)));
}

#[test]
fn a_try_that_ran_out_of_time_gets_twice_as_much_the_next_time() {
    let mut records = LoadRecords::default();
    let other = ModelName::constant("other");
    assert_eq!(records.limit(&name(), version(), "a", 0).as_secs(), 30);
    records.record_failure(&name(), version(), failed("a", "late"), 0);
    assert_eq!(records.limit(&name(), version(), "a", 0).as_secs(), 60);
    assert_eq!(records.limit(&name(), version(), "b", 0).as_secs(), 30, "other files");
    records.record_served(&other, version(), served("d", 15_000));
    assert_eq!(records.limit(&name(), version(), "b", 0).as_secs(), 60, "a slow box");
}

#[test]
fn a_fault_of_the_box_is_tried_again_each_minute() {
    let mut records = LoadRecords::default();
    for at in [0, MINUTE, 2 * MINUTE] {
        records.record_failure(&name(), version(), failed("a", "disk"), at);
        assert_eq!(records.next_tries(at)[&name()], PAUSES.first);
    }
}

#[test]
fn a_model_with_ever_new_versions_has_a_bounded_record() {
    let mut records = LoadRecords::default();
    for number in 1..=200_u64 {
        records.record_served(&name(), number.try_into().unwrap(), served("d", 1));
    }
    assert_eq!(records.versions.len(), VERSIONS_MAX);
    assert!(records.served(&name(), 200.try_into().unwrap()).is_some());
}

#[test]
fn models_that_are_gone_or_unloaded_are_forgotten() {
    let mut records = LoadRecords::default();
    records.record_failure(&name(), version(), failed("a", "no model"), 0);
    assert!(records.forget_failures(&name()) && !records.forget_failures(&name()));
    assert_eq!(records, LoadRecords::default());
    records.record_served(&name(), version(), served("d", 1));
    assert!(!records.retain(|_, _| true) && records.retain(|_, _| false));
    assert_eq!(records, LoadRecords::default());
}

#[test]
fn a_description_says_the_reason_the_count_and_the_next_try() {
    let mut records = LoadRecords::default();
    for at in [0, MINUTE] {
        records.record_failure(&name(), version(), failed("a", "cut off"), at);
    }
    let (_, _, failure) = records.failures().next().unwrap();
    assert_eq!(
        failure.describe(&name()),
        "cut off; it failed 2 times since 1970-01-01T00:00:00Z; the next try is at 1970-01-01T00:03:00Z, or at once after a \
         change of its files or POST /v2/repository/models/m/load"
    );
}

#[test]
fn records_of_a_later_version_are_not_read() {
    assert!(matches!(LoadRecords::parse(br#"{"format":2,"versions":[]}"#), Err(LoadRecordsError::Later(2))));
    assert_eq!(LoadRecords::parse(br#"{"format":1,"versions":[]}"#).unwrap(), LoadRecords::default());
}

proptest! {
    #[test]
    fn whatever_happens_a_version_is_tried_again_within_a_day(
        events in prop::collection::vec((any::<bool>(), 0..3_u8, 0..3_u8, 0..100_000_u64), 1..60),
    ) {
        let (mut records, mut now) = (LoadRecords::default(), 0);
        for (loads, content, reason, pause) in events {
            now += pause * 1000;
            if loads {
                records.record_served(&name(), version(), served(&content.to_string(), pause));
                prop_assert_eq!(records.failures().count(), 0);
            } else {
                records.record_failure(&name(), version(), failed(&content.to_string(), &reason.to_string()), now);
                let wait = records.next_tries(now)[&name()];
                prop_assert!(wait >= PAUSES.first && wait <= PAUSES.longest);
            }
            let stored = records.encode().unwrap();
            prop_assert_eq!(LoadRecords::parse(&stored).unwrap(), records.clone());
        }
    }
}

#[test]
fn a_failure_of_the_box_is_forgotten_with_the_process() {
    let mut records = LoadRecords::default();
    records.record_served(&name(), version(), served("d", 1000));
    records.record_failure(&name(), version(), failed("a", "disk"), 0);
    assert!(records.failure(&name(), version(), "a").is_some());
    let next = LoadRecords::parse(&records.encode().unwrap()).unwrap();
    assert!(next.failures().next().is_none() && next.served(&name(), version()).is_some());
    // A new version that only failed leaves nothing.
    let mut records = LoadRecords::default();
    records.record_failure(&name(), version(), failed("a", "disk"), 0);
    assert_eq!(LoadRecords::parse(&records.encode().unwrap()).unwrap(), LoadRecords::default());
    records.record_failure(&name(), version(), failed("a", "no memory"), 0);
    assert_eq!(LoadRecords::parse(&records.encode().unwrap()).unwrap(), records);
}
