use proptest::prelude::*;

use super::*;

const MINUTE: Duration = Duration::from_mins(1);
const MINUTE_MS: u64 = 60_000;
const HOLD: Duration = Duration::from_mins(5);
const DAY: Duration = Duration::from_hours(24);

fn rules() -> AlertReceiverRules {
    let (checks, except) = (Vec::new(), "alert shop".to_owned());
    AlertReceiverRules { least: FindingStatus::Warn, checks, except, hold: HOLD, repeat: Some(DAY) }
}

fn disk(status: FindingStatus) -> Vec<Finding> {
    vec![Finding { status, ..Finding::warn("state", "1 MiB free", "free disk space") }, Finding::ok("cpu", "x")]
}

/// A receiver that takes each message at once, and the looks at a box once a minute.
struct TrackedBox {
    tracker: AlertTracker,
    now_ms: u64,
}

impl TrackedBox {
    fn new(rules: AlertReceiverRules) -> Self {
        Self { tracker: AlertTracker::new(rules, BTreeMap::new()), now_ms: 1_000_000_000 }
    }

    fn look(&mut self, findings: &[Finding]) {
        self.now_ms += MINUTE_MS;
        self.tracker.look(findings, self.now_ms, MINUTE);
    }

    fn take(&mut self) -> Vec<DueAlert> {
        let mut taken = Vec::new();
        while let Some(due) = self.tracker.due(self.now_ms, &UndeliveredAlerts::default()) {
            self.tracker.told(&due, self.now_ms);
            taken.push(due);
        }
        taken
    }

    /// Looks a number of times, and returns the messages with the minute of each.
    fn looks(&mut self, times: usize, findings: &[Finding]) -> Vec<(usize, NotificationKind, FindingStatus)> {
        let mut all = Vec::new();
        for number in 1..=times {
            self.look(findings);
            all.extend(self.take().into_iter().map(|due| (number, due.news, due.severity)));
        }
        all
    }
}

#[test]
fn a_trouble_is_told_once_after_its_hold_time_and_so_is_its_end() {
    let mut run = TrackedBox::new(rules());
    assert_eq!(run.looks(5, &disk(FindingStatus::Fail)), [], "five minutes pass from the first look to the sixth");
    let began_ms = run.now_ms - 4 * MINUTE_MS;
    run.look(&disk(FindingStatus::Fail));
    let [told] = run.take().try_into().unwrap();
    assert_eq!(
        (told.check.as_str(), told.news, told.severity),
        ("state", NotificationKind::Firing, FindingStatus::Fail)
    );
    assert_eq!((told.since_ms, told.detail.as_str()), (began_ms, "1 MiB free"));
    assert_eq!(told.advice.as_deref(), Some("free disk space"));
    assert_eq!(run.looks(60, &disk(FindingStatus::Fail)), []);

    assert_eq!(run.looks(5, &disk(FindingStatus::Ok)), []);
    run.look(&disk(FindingStatus::Ok));
    let [resolved] = run.take().try_into().unwrap();
    assert_eq!((resolved.news, resolved.since_ms, resolved.advice), (NotificationKind::Resolved, began_ms, None));
    assert_eq!(run.looks(60, &disk(FindingStatus::Ok)), []);
    assert_eq!(run.tracker.checks, BTreeMap::new());
}

#[test]
fn what_is_no_longer_among_the_findings_is_right() {
    let mut run = TrackedBox::new(rules());
    run.looks(6, &disk(FindingStatus::Warn));
    assert_eq!(run.looks(6, &[]), [(6, NotificationKind::Resolved, FindingStatus::Warn)]);
}

#[test]
fn what_flaps_is_told_once_at_most() {
    let mut run = TrackedBox::new(rules());
    let flap = |run: &mut TrackedBox, times: usize| {
        let mut all = Vec::new();
        for _ in 0..times {
            all.extend(run.looks(3, &disk(FindingStatus::Fail)));
            all.extend(run.looks(3, &disk(FindingStatus::Ok)));
        }
        all
    };
    assert_eq!(flap(&mut run, 100), []);
    assert_eq!(run.looks(6, &disk(FindingStatus::Fail)).len(), 1);
    assert_eq!(flap(&mut run, 100), []);
}

#[test]
fn a_trouble_that_alternates_between_warning_and_failure_is_told() {
    let mut run = TrackedBox::new(rules());
    let mut told = Vec::new();
    for _ in 0..10 {
        told.extend(run.looks(1, &disk(FindingStatus::Warn)));
        told.extend(run.looks(1, &disk(FindingStatus::Fail)));
    }
    assert_eq!(told.len(), 1, "{told:?}");
}

#[test]
fn a_warning_that_becomes_a_failure_is_told_again() {
    let mut run = TrackedBox::new(rules());
    assert_eq!(run.looks(10, &disk(FindingStatus::Warn)), [(6, NotificationKind::Firing, FindingStatus::Warn)]);
    assert_eq!(run.looks(10, &disk(FindingStatus::Fail)), [(6, NotificationKind::Firing, FindingStatus::Fail)]);
    assert_eq!(run.looks(10, &disk(FindingStatus::Warn)), [(6, NotificationKind::Firing, FindingStatus::Warn)]);
}

#[test]
fn a_failure_that_lasts_is_told_again_each_day_and_a_warning_is_not() {
    let mut run = TrackedBox::new(rules());
    let day = 24 * 60;
    let told = run.looks(2 * day + 6, &disk(FindingStatus::Fail));
    assert_eq!(
        told,
        [
            (6, NotificationKind::Firing, FindingStatus::Fail),
            (6 + day, NotificationKind::Reminder, FindingStatus::Fail),
            (6 + 2 * day, NotificationKind::Reminder, FindingStatus::Fail)
        ]
    );
    let mut run = TrackedBox::new(rules());
    assert_eq!(run.looks(2 * day, &disk(FindingStatus::Warn)).len(), 1);
    let mut run = TrackedBox::new(AlertReceiverRules { repeat: None, ..rules() });
    assert_eq!(run.looks(2 * day, &disk(FindingStatus::Fail)).len(), 1);
}

#[test]
fn a_clock_that_is_set_back_delays_no_reminder() {
    let mut run = TrackedBox::new(rules());
    run.looks(6, &disk(FindingStatus::Fail));
    run.now_ms -= 1_000 * MINUTE_MS * 10;
    assert_eq!(
        run.looks(24 * 60 + 1, &disk(FindingStatus::Fail)),
        [(24 * 60 + 1, NotificationKind::Reminder, FindingStatus::Fail)]
    );
}

#[test]
fn a_receiver_hears_only_of_what_it_wants() {
    let found = [
        Finding::warn("cpu", "old", "a newer one"),
        Finding::fail("camera yard", "away", "look"),
        Finding::fail("cameras", "no model", "add it"),
        Finding::fail("alert shop", "refused", "look"),
        Finding::fail("alert other", "refused", "look"),
    ];
    let told = |rules: AlertReceiverRules| {
        let mut run = TrackedBox::new(AlertReceiverRules { hold: Duration::ZERO, ..rules });
        run.look(&found);
        run.take().into_iter().map(|due| due.check).collect::<Vec<_>>()
    };
    assert_eq!(told(rules()), ["alert other", "camera yard", "cameras", "cpu"]);
    assert_eq!(
        told(AlertReceiverRules { least: FindingStatus::Fail, ..rules() }),
        ["alert other", "camera yard", "cameras"]
    );
    let checks = ["camera", "cpu", "alert shop"].map(str::to_owned).to_vec();
    assert_eq!(told(AlertReceiverRules { checks, ..rules() }), ["camera yard", "cpu"]);
}

#[test]
fn findings_of_one_name_are_one() {
    let found =
        [Finding::warn("cameras", "a", "x"), Finding::fail("cameras", "b", "y"), Finding::fail("cameras", "c", "z")];
    let mut run = TrackedBox::new(AlertReceiverRules { hold: Duration::ZERO, ..rules() });
    run.look(&found);
    let [told] = run.take().try_into().unwrap();
    assert_eq!((told.severity, told.detail.as_str(), told.advice.as_deref()), (FindingStatus::Fail, "b\nc", Some("y")));
}

#[test]
fn a_receiver_that_was_away_gets_the_newest_state_only() {
    let mut run = TrackedBox::new(rules());
    (0..10).for_each(|_| run.look(&disk(FindingStatus::Warn)));
    (0..10).for_each(|_| run.look(&disk(FindingStatus::Fail)));
    let [told] = run.take().try_into().unwrap();
    assert_eq!((told.news, told.severity), (NotificationKind::Firing, FindingStatus::Fail));

    // It is away while that ends and comes again.
    (0..10).for_each(|_| run.look(&disk(FindingStatus::Ok)));
    assert_eq!(run.tracker.due_count(run.now_ms), 1);
    (0..10).for_each(|_| run.look(&disk(FindingStatus::Fail)));
    assert_eq!(run.take(), []);

    // It never hears of a trouble that came and went.
    let mut run = TrackedBox::new(rules());
    (0..10).for_each(|_| run.look(&disk(FindingStatus::Fail)));
    (0..10).for_each(|_| run.look(&disk(FindingStatus::Ok)));
    assert_eq!((run.take(), run.tracker.checks.len()), (vec![], 0));
}

#[test]
fn a_state_that_changes_while_its_message_is_on_the_way_is_told_after_it() {
    let mut run = TrackedBox::new(AlertReceiverRules { hold: Duration::ZERO, ..rules() });
    run.look(&disk(FindingStatus::Fail));
    let sent = run.tracker.due(run.now_ms, &UndeliveredAlerts::default()).unwrap();
    run.look(&disk(FindingStatus::Ok));
    // It was never reported, so it is forgotten; the message arrives nevertheless.
    run.tracker.told(&sent, run.now_ms);
    let [resolved] = run.take().try_into().unwrap();
    assert_eq!(resolved.news, NotificationKind::Resolved);
}

#[test]
fn a_restart_neither_repeats_a_message_nor_forgets_the_end_of_a_trouble() {
    let mut run = TrackedBox::new(rules());
    run.looks(6, &disk(FindingStatus::Fail));
    let restart = |run: &mut TrackedBox| run.tracker = AlertTracker::new(rules(), run.tracker.all_told());
    restart(&mut run);
    assert_eq!(run.looks(60, &disk(FindingStatus::Fail)), []);
    restart(&mut run);
    assert_eq!(run.looks(60, &disk(FindingStatus::Ok)), [(6, NotificationKind::Resolved, FindingStatus::Fail)]);
    assert_eq!(run.tracker.all_told(), BTreeMap::new());
}

#[test]
fn the_checks_of_a_receiver_are_bounded() {
    let many: Vec<_> =
        (0..2 * CHECKS_MAX).map(|number| Finding::fail(&format!("model {number:04}"), "x", "y")).collect();
    let mut run = TrackedBox::new(AlertReceiverRules { hold: Duration::ZERO, ..rules() });
    run.look(&many);
    assert_eq!(run.tracker.firing().count(), CHECKS_MAX);
    run.take();
    run.look(&many[CHECKS_MAX..]);
    run.look(&many[CHECKS_MAX..]);
    assert_eq!(run.take().iter().filter(|due| due.news == NotificationKind::Resolved).count(), CHECKS_MAX);
}

/// The events of a minute.
#[derive(Debug, Clone)]
struct Minute {
    status: FindingStatus,
    /// False where the receiver is away.
    is_there: bool,
    is_restart: bool,
}

fn minutes() -> impl Strategy<Value = Vec<Minute>> {
    let status = prop_oneof![Just(FindingStatus::Ok), Just(FindingStatus::Warn), Just(FindingStatus::Fail)];
    // Statuses that last a while, and some that do not.
    let stretch = (status, 1..12_usize, any::<bool>(), prop::bool::weighted(0.1));
    prop::collection::vec(stretch, 0..40).prop_map(|stretches| {
        let minutes = stretches.into_iter().flat_map(|(status, length, is_there, is_restart)| {
            (0..length).map(move |number| Minute { status, is_there, is_restart: is_restart && number == 0 })
        });
        minutes.collect()
    })
}

proptest! {
    #[test]
    fn a_receiver_is_told_changes_only_and_in_the_end_the_truth(minutes in minutes(), last in 0..3_u8) {
        let mut run = TrackedBox::new(rules());
        // The checks that the receiver takes for wrong.
        let mut known: Option<FindingStatus> = None;
        let mut messages = 0;
        let hear = |run: &mut TrackedBox, known: &mut Option<FindingStatus>| {
            let taken = run.take();
            for due in &taken {
                match due.news {
                    NotificationKind::Firing => assert_ne!(known.replace(due.severity), Some(due.severity), "told twice"),
                    NotificationKind::Reminder => assert_eq!(*known, Some(due.severity)),
                    NotificationKind::Resolved => assert!(known.take().is_some(), "resolved what was not told"),
                }
            }
            taken.len()
        };
        for minute in &minutes {
            if minute.is_restart {
                run.tracker = AlertTracker::new(rules(), run.tracker.all_told());
            }
            run.look(&disk(minute.status));
            if minute.is_there {
                messages += hear(&mut run, &mut known);
            }
        }
        // Each change has to last for the hold time.
        prop_assert!(messages <= minutes.len() / 5 + 1, "{messages} messages in {} minutes", minutes.len());

        let last = [FindingStatus::Ok, FindingStatus::Warn, FindingStatus::Fail][usize::from(last)];
        for _ in 0..13 {
            run.look(&disk(last));
            hear(&mut run, &mut known);
        }
        prop_assert_eq!(known, (last != FindingStatus::Ok).then_some(last));
        prop_assert_eq!(run.tracker.due(run.now_ms, &UndeliveredAlerts::default()), None);
        prop_assert_eq!(run.tracker.checks.len(), usize::from(last != FindingStatus::Ok));
    }

    #[test]
    fn nothing_is_told_of_what_never_lasts(stretches in prop::collection::vec((0..3_u8, 1..5_usize), 0..60)) {
        let mut run = TrackedBox::new(rules());
        for (status, length) in stretches {
            let status = [FindingStatus::Warn, FindingStatus::Fail, FindingStatus::Warn][usize::from(status)];
            prop_assert_eq!(run.looks(length, &disk(status)), []);
            prop_assert_eq!(run.looks(1, &disk(FindingStatus::Ok)), []);
        }
    }
}
