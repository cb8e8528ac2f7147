use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;

use super::*;

/// 2030-01-01, a day that no build of this comes after.
const START: u64 = 1_893_456_000_000;
const FIRST: u32 = 21_915;

fn made(period: u32) -> AuditEvent {
    AuditEvent::TagKeyMade { period }
}

fn try_destroy(period: u32) -> AuditEvent {
    AuditEvent::TagKeyDestroyed { period }
}

/// Keys for 30 days that are kept for 100.
fn open(audit: &Path, now: u64) -> (AuditTagKeys, Vec<AuditEvent>) {
    AuditTagKeys::open(audit, 30, 100, now, &Sealer::none()).unwrap()
}

/// The events of a turn after the daemon has run for `hours`.
fn turn(tags: &mut AuditTagKeys, now: u64, hours: u64) -> Vec<AuditEvent> {
    tags.turn_after(now, Duration::from_hours(hours), Vec::new()).unwrap()
}

fn periods(audit: &Path) -> Vec<u32> {
    all(audit, &Sealer::none()).unwrap().iter().map(TagKey::period).collect()
}

#[test]
fn a_key_is_private_and_is_in_use_until_its_period_is_over() {
    let audit = tempfile::tempdir().unwrap();
    let (mut tags, events) = open(audit.path(), START);
    assert_eq!(events, [made(FIRST)]);
    let tag = tags.current().of_text("somebody");
    let mode = audit.path().join(format!("tags/{FIRST}.key")).metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(turn(&mut tags, START + 30 * DAY_MS - 1, 1), []);
    assert_eq!(tags.current().of_text("somebody"), tag);
    drop(tags);
    // Another length in the configuration holds for the next period.
    let (mut tags, events) = AuditTagKeys::open(audit.path(), 1, 100, START + DAY_MS, &Sealer::none()).unwrap();
    assert_eq!((events, tags.current().of_text("somebody")), (vec![], tag));
    assert_eq!(turn(&mut tags, START + 30 * DAY_MS, 0), [made(FIRST + 30)]);
    assert_ne!(tags.current().of_text("somebody"), tag);
    assert_eq!(turn(&mut tags, START + 31 * DAY_MS, 0), [made(FIRST + 31)]);
    assert_eq!(periods(audit.path()), [FIRST, FIRST + 30, FIRST + 31]);
}

#[test]
fn what_was_not_told_is_told_by_the_next_start_and_what_was_is_not() {
    let audit = tempfile::tempdir().unwrap();
    assert_eq!(open(audit.path(), START).1, [made(FIRST)]);
    let (mut tags, events) = open(audit.path(), START);
    assert_eq!(events, [made(FIRST)]);
    tags.told().unwrap();
    assert_eq!(open(audit.path(), START).1, []);
    // A cut between making a key and writing it into the list.
    TagKeyFolder::of(audit.path(), &Sealer::none()).make(FIRST + 3, START, START + DAY_MS).unwrap();
    let (tags, events) = open(audit.path(), START);
    assert_eq!((events, tags.current().period()), (vec![made(FIRST + 3)], FIRST + 3));
}

#[test]
fn a_clock_that_goes_back_makes_and_destroys_nothing() {
    let audit = tempfile::tempdir().unwrap();
    let (mut tags, _) = open(audit.path(), START);
    assert_eq!(turn(&mut tags, START + 30 * DAY_MS, 24), [made(FIRST + 30)]);
    for now in [0, START, 1, START + 59 * DAY_MS, 0] {
        assert_eq!(turn(&mut tags, now, 1), []);
    }
    drop(tags);
    assert_eq!(open(audit.path(), 0).1, []);
    // From 1970 on there is no number twice, and the keys that were made later are not taken for old ones.
    std::fs::remove_file(audit.path().join(format!("tags/{}.key", FIRST + 30))).unwrap();
    std::fs::remove_file(audit.path().join(format!("tags/{FIRST}.key"))).unwrap();
    let (_, events) = open(audit.path(), 0);
    assert_eq!(events, [try_destroy(FIRST), try_destroy(FIRST + 30), made(FIRST + 31)]);
}

#[test]
fn a_clock_that_was_far_ahead_does_not_make_a_key_for_ever() {
    let audit = tempfile::tempdir().unwrap();
    let century = START + 36_500 * DAY_MS;
    let (mut tags, events) = open(audit.path(), century);
    assert_eq!(events, [made(FIRST + 36_500)]);
    assert_eq!(turn(&mut tags, START, 29 * 24), []);
    assert_eq!(turn(&mut tags, START + DAY_MS, 24), [made(FIRST + 36_501)]);
    // Its end is a century away, so it is destroyed once the daemon has run for the time that a key is kept.
    for _ in 0..3 {
        turn(&mut tags, START + 2 * DAY_MS, 24 * 29);
    }
    let events = turn(&mut tags, START + 2 * DAY_MS, 24 * 13);
    assert_eq!(events[events.len() - 1], try_destroy(FIRST + 36_500), "{events:?}");
}

#[test]
fn a_key_is_destroyed_when_the_clock_agrees_for_a_day() {
    let audit = tempfile::tempdir().unwrap();
    let (mut tags, _) = open(audit.path(), START);
    let end = START + 30 * DAY_MS;
    turn(&mut tags, end, 1);
    assert_eq!(turn(&mut tags, end + 29 * DAY_MS, 1), []);
    // At 2130 for some hours: a new period, and nothing is lost.
    let events = turn(&mut tags, START + 36_500 * DAY_MS, 23);
    assert_eq!(events, [made(FIRST + 36_500)]);
    assert_eq!(turn(&mut tags, end + 30 * DAY_MS, 23), []);
    assert_eq!(periods(audit.path()).len(), 3);
    // In earnest: across a restart, too.
    let due = end + 100 * DAY_MS;
    assert_eq!(turn(&mut tags, due - 1, 23), []);
    assert_eq!(turn(&mut tags, due, 23), []);
    drop(tags);
    let (mut tags, _) = open(audit.path(), due + DAY_MS);
    assert_eq!(turn(&mut tags, due + DAY_MS, 1), [try_destroy(FIRST)]);
    assert_eq!(periods(audit.path()), [FIRST + 30, FIRST + 36_500]);
    assert_eq!(turn(&mut tags, due + DAY_MS, 1), []);
}

#[test]
fn keys_are_kept_for_ever_where_that_is_asked_for() {
    let audit = tempfile::tempdir().unwrap();
    let (mut tags, _) = AuditTagKeys::open(audit.path(), 30, 0, START, &Sealer::none()).unwrap();
    for month in 1..=100 {
        assert_eq!(turn(&mut tags, START + month * 30 * DAY_MS, 720).len(), 1);
    }
    assert_eq!(periods(audit.path()).len(), 101);
}

#[test]
fn a_key_that_is_destroyed_by_hand_is_noticed_and_never_used_again() {
    let audit = tempfile::tempdir().unwrap();
    let (mut tags, _) = open(audit.path(), START);
    turn(&mut tags, START + 30 * DAY_MS, 0);
    tags.told().unwrap();
    let tag = tags.current().of_text("somebody");
    assert!(destroy(audit.path(), FIRST + 30).unwrap());
    assert!(!destroy(audit.path(), FIRST + 30).unwrap());
    assert_eq!(turn(&mut tags, START + 30 * DAY_MS, 0), [try_destroy(FIRST + 30), made(FIRST + 31)]);
    assert_ne!(tags.current().of_text("somebody"), tag);
    tags.told().unwrap();
    drop(tags);
    assert!(destroy(audit.path(), FIRST).unwrap());
    assert_eq!(open(audit.path(), START + 30 * DAY_MS).1, [try_destroy(FIRST)]);
}

#[test]
fn the_content_of_a_destroyed_key_is_overwritten() {
    let audit = tempfile::tempdir().unwrap();
    open(audit.path(), START);
    let key = audit.path().join(format!("tags/{FIRST}.key"));
    // A second link to the same file shows the written bytes.
    let witness = audit.path().join("witness");
    std::fs::hard_link(&key, &witness).unwrap();
    let length = std::fs::read(&witness).unwrap().len();
    assert!(destroy(audit.path(), FIRST).unwrap());
    assert_eq!(std::fs::read(&witness).unwrap(), vec![0; length]);
}

#[test]
fn a_damaged_key_is_set_aside_until_it_is_destroyed_and_its_number_is_not_used_again() {
    let audit = tempfile::tempdir().unwrap();
    open(audit.path(), START).0.told().unwrap();
    let key = audit.path().join(format!("tags/{FIRST}.key"));
    let content = std::fs::read(&key).unwrap();
    ForeignFiles::write(&key, &content[1..]);
    let (mut tags, events) = open(audit.path(), START);
    // Most of it is there: it is not destroyed, and is not to be said to be.
    assert_eq!(events, [made(FIRST + 1)]);
    tags.told().unwrap();
    let aside = audit.path().join(format!("tags/{FIRST}.key.damaged"));
    assert_eq!(std::fs::read(&aside).unwrap(), content[1..]);
    // Repaired, its tags can be found again; it is no key for new ones.
    ForeignFiles::write(&key, &content);
    let (tags, events) = open(audit.path(), START);
    assert_eq!((events, tags.current().period()), (vec![], FIRST + 1));
    assert_eq!(periods(audit.path()), [FIRST, FIRST + 1]);
    assert!(destroy(audit.path(), FIRST).unwrap());
    assert!(!aside.exists() && !key.exists());
    assert_eq!(open(audit.path(), START).1, [try_destroy(FIRST)]);
}

#[test]
fn a_lost_list_is_made_anew_of_the_keys_that_are_there() {
    let audit = tempfile::tempdir().unwrap();
    let (mut tags, _) = open(audit.path(), START);
    turn(&mut tags, START + 30 * DAY_MS, 0);
    for content in [None, Some(b"{".as_slice())] {
        let list = audit.path().join("tags/list.json");
        std::fs::remove_file(&list).unwrap();
        if let Some(content) = content {
            ForeignFiles::write(&list, content);
        }
        let (tags, events) = open(audit.path(), START + 31 * DAY_MS);
        assert_eq!((events, tags.current().period()), (vec![], FIRST + 30));
    }
    std::fs::remove_dir_all(audit.path().join("tags")).unwrap();
    assert_eq!(open(audit.path(), START + 31 * DAY_MS).1, [made(FIRST + 31)]);
}

/// Files as somebody else writes them.
struct ForeignFiles;

impl ForeignFiles {
    #[expect(clippy::disallowed_methods, reason = "what it stands for is no careful write")]
    fn write(path: &Path, content: &[u8]) {
        std::fs::write(path, content).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn whatever_the_clock_does_no_number_comes_twice_and_the_key_in_use_is_there(
        steps in proptest::collection::vec((0..200_000_u64, 0..2000_u64, 0..8_u8), 1..20)
    ) {
        let audit = tempfile::tempdir().unwrap();
        let (mut tags, mut events) = open(audit.path(), START);
        let mut begun = vec![];
        let mut gone = vec![];
        for (day, hours, what) in steps {
            tags.told().unwrap();
            for event in events {
                match event {
                    AuditEvent::TagKeyMade { period } => begun.push(period),
                    AuditEvent::TagKeyDestroyed { period } => gone.push(period),
                    other => panic!("{other:?}"),
                }
            }
            prop_assert!(begun.is_sorted_by(|one, next| one < next));
            prop_assert_eq!(tags.current().period(), *begun.last().unwrap());
            let left: Vec<_> = begun.iter().copied().filter(|period| !gone.contains(period)).collect();
            prop_assert_eq!(periods(audit.path()), left);
            let now = day * DAY_MS;
            events = match what {
                0 => {
                    destroy(audit.path(), tags.current().period()).unwrap();
                    turn(&mut tags, now, hours)
                }
                1 => {
                    drop(tags);
                    let opened = open(audit.path(), now);
                    tags = opened.0;
                    opened.1
                }
                _ => turn(&mut tags, now, hours),
            };
        }
    }
}

#[test]
fn sealed_keys_make_the_same_tags_and_without_their_master_key_nothing_is_lost() {
    let audit = tempfile::tempdir().unwrap();
    let tag = |key: &TagKey| key.of_text("ip:192.0.2.1").to_string();
    let (tags, _) = open(audit.path(), START);
    let before = tag(&tags.current());
    drop(tags);
    let path = audit.path().join(format!("tags/{FIRST}.key"));
    let plain = std::fs::read(&path).unwrap();
    let (old, new) = (Sealer::with_keys(&[[1; 32]]), Sealer::with_keys(&[[2; 32], [1; 32]]));
    let resealed = |sealer: &Sealer| {
        let mut done = RekeyCounts::default();
        rekey(audit.path(), sealer, &mut done).unwrap();
        done
    };
    assert_eq!(resealed(&old), RekeyCounts { plain: 1, old: 0 });
    assert_eq!(resealed(&new), RekeyCounts { plain: 0, old: 1 });
    assert_eq!(resealed(&new), RekeyCounts::default());
    let sealed = std::fs::read(&path).unwrap();
    assert!(!sealed.windows(16).any(|window| plain.windows(16).any(|plain| plain == window)));
    let mut found = MasterKeyCounts::default();
    survey(audit.path(), &mut found).unwrap();
    assert_eq!(found.0, [(new.current(), 1)].into());
    for wrong in [Sealer::none(), old] {
        let error = AuditTagKeys::open(audit.path(), 30, 100, START, &wrong).unwrap_err();
        assert!(matches!(error, TagKeysError::Sealed { .. }), "{error}");
        assert!(std::fs::read(&path).unwrap() == sealed && all(audit.path(), &wrong).is_err());
    }
    let (tags, events) = AuditTagKeys::open(audit.path(), 30, 100, START, &new).unwrap();
    // It was made before, and its event is perhaps not in the log yet.
    let told_again = AuditEvent::TagKeyMade { period: FIRST };
    assert_eq!((tag(&tags.current()), events), (before, vec![told_again]));
    // Another period's file in its place is no key of this one.
    ledge_base::durable::replace_private(&audit.path().join(format!("tags/{}.key", FIRST - 1)), &sealed).unwrap();
    assert!(matches!(TagKeyFolder::of(audit.path(), &new).read(FIRST - 1), Err(TagKeysError::Damaged { .. })));
    assert!(destroy(audit.path(), FIRST).unwrap());
}
