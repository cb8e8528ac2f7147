//! Counts that do not flicker: a label is in a zone once it was seen on some pictures in a row, and gone once it was
//! not seen for a while.
//!
//! Pure. A look is the set of objects on one picture; its time is passed in. No look is ever made up while the camera
//! or its model is away, so nothing appears and nothing is gone meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The most looks in a row without an object that are not yet its end, however long they are apart: one missed picture
/// makes no event.
const MISSED_LOOKS_MAX: u32 = 1;

/// The most objects of one label in one zone that are counted.
const COUNT_MAX: usize = 1000;

/// The most labels of one zone. A model has a fixed list of labels; this bounds one that makes them up.
const LABELS_MAX: usize = 1000;

/// A zone, by its place in the configuration, and a label. The zone 0 is the whole picture.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZoneLabel {
    pub zone: usize,
    pub label: Arc<str>,
}

/// The number of objects of each subject on one picture. A subject that is not in it has none.
pub type ObjectCounts = BTreeMap<ZoneLabel, usize>;

/// The rules of a camera.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PresenceRules {
    /// The looks in a row after which something is there.
    pub appear_after: u32,
    /// The time in milliseconds without it after which it is gone.
    pub hold_ms: u64,
}

/// A change of one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountChange {
    pub subject: ZoneLabel,
    pub before: usize,
    pub count: usize,
}

impl CountChange {
    /// True if there was no object of this label before.
    pub fn is_appearance(&self) -> bool {
        self.before == 0
    }

    /// True if the last of it is gone.
    pub fn is_end(&self) -> bool {
        self.count == 0
    }
}

/// The subjects of one camera.
#[derive(Debug)]
pub struct ObjectPresence {
    rules: PresenceRules,
    counters: BTreeMap<ZoneLabel, SubjectCounter>,
    /// Set while the camera or its model is away: the time away must not end the presence of an object.
    was_away: bool,
}

/// The count of one subject.
#[derive(Debug, Default)]
struct SubjectCounter {
    /// The count that is published.
    settled: usize,
    /// For each count that was seen lately, from 1 on.
    levels: Vec<CountLevel>,
}

/// The recent looks with at least a certain number of objects.
#[derive(Debug, Default, Clone, Copy)]
struct CountLevel {
    seen_in_a_row: u32,
    missed_in_a_row: u32,
    last_seen_ms: u64,
}

impl ObjectPresence {
    /// A camera that has seen nothing yet.
    pub fn new(rules: PresenceRules) -> Self {
        Self { rules, counters: BTreeMap::new(), was_away: false }
    }

    /// Takes a look at `now_ms` and returns the changes. Times never run backwards.
    pub fn look(&mut self, look: &ObjectCounts, now_ms: u64) -> Vec<CountChange> {
        let was_away = std::mem::take(&mut self.was_away);
        for subject in look.keys() {
            let of_zone = |known: &&ZoneLabel| known.zone == subject.zone;
            if !self.counters.contains_key(subject) && self.counters.keys().filter(of_zone).count() < LABELS_MAX {
                self.counters.insert(subject.clone(), SubjectCounter::default());
            }
        }

        let mut changes = Vec::new();
        for (subject, counter) in &mut self.counters {
            let before = counter.settled;
            if was_away {
                counter.start_again(now_ms);
            }
            counter.look(look.get(subject).copied().unwrap_or_default(), now_ms, self.rules);
            if counter.settled != before {
                changes.push(CountChange { subject: subject.clone(), before, count: counter.settled });
            }
        }
        changes
    }

    /// Notes that the camera or its model is away. Objects that were present stay so, for at least the hold time after
    /// it is back.
    pub fn away(&mut self) {
        self.was_away = true;
    }

    /// True if the last look agrees with the published counts, so that further looks of the same picture change
    /// nothing.
    pub fn is_settled(&self) -> bool {
        self.counters.values().all(SubjectCounter::is_settled)
    }

    /// The published counts, also those of zero.
    pub fn counts(&self) -> impl Iterator<Item = (&ZoneLabel, usize)> {
        self.counters.iter().map(|(subject, counter)| (subject, counter.settled))
    }

    /// The labels that were seen since the start.
    pub fn labels(&self) -> BTreeSet<Arc<str>> {
        self.counters.keys().map(|subject| subject.label.clone()).collect()
    }
}

impl SubjectCounter {
    fn look(&mut self, count: usize, now_ms: u64, rules: PresenceRules) {
        let count = count.min(COUNT_MAX);
        if self.levels.len() < count {
            self.levels.resize(count, CountLevel::default());
        }
        for (below, level) in self.levels.iter_mut().enumerate() {
            if count > below {
                let seen_in_a_row = level.seen_in_a_row.saturating_add(1);
                *level = CountLevel { seen_in_a_row, missed_in_a_row: 0, last_seen_ms: now_ms };
            } else {
                level.seen_in_a_row = 0;
                level.missed_in_a_row = level.missed_in_a_row.saturating_add(1);
            }
        }

        while self.levels.get(self.settled).is_some_and(|next| next.seen_in_a_row >= rules.appear_after) {
            self.settled += 1;
        }
        while let Some(highest) = self.settled.checked_sub(1).and_then(|highest| self.levels.get(highest)) {
            let has_gone = highest.missed_in_a_row > MISSED_LOOKS_MAX
                && now_ms.saturating_sub(highest.last_seen_ms) >= rules.hold_ms;
            if !has_gone {
                break;
            }
            self.settled -= 1;
        }
        self.levels.truncate(count.max(self.settled));
    }

    fn start_again(&mut self, now_ms: u64) {
        for level in &mut self.levels {
            *level = CountLevel { seen_in_a_row: 0, missed_in_a_row: 0, last_seen_ms: now_ms };
        }
    }

    fn is_settled(&self) -> bool {
        self.levels.len() == self.settled && self.levels.iter().all(|level| level.missed_in_a_row == 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULES: PresenceRules = PresenceRules { appear_after: 2, hold_ms: 5000 };

    fn cow() -> ZoneLabel {
        ZoneLabel { zone: 0, label: "cow".into() }
    }

    fn seen(count: usize) -> ObjectCounts {
        if count == 0 { ObjectCounts::new() } else { [(cow(), count)].into() }
    }

    /// The settled counts after each look, one a second.
    fn watch(presence: &mut ObjectPresence, from_s: u64, counts: &[usize]) -> Vec<usize> {
        let each = counts.iter().zip(from_s..).map(|(count, second)| {
            presence.look(&seen(*count), second * 1000);
            presence.counts().map(|(_, count)| count).sum()
        });
        each.collect()
    }

    #[test]
    fn something_is_there_after_two_looks_and_gone_after_the_hold_time() {
        let mut presence = ObjectPresence::new(RULES);
        let counts = watch(&mut presence, 0, &[0, 1, 1, 1, 0, 0, 0, 0, 0, 0]);
        //                                         seen at 3 s, gone at 8 s
        assert_eq!(counts, [0, 0, 1, 1, 1, 1, 1, 1, 0, 0]);
        assert!(presence.is_settled());
    }

    #[test]
    fn one_missed_and_one_false_picture_make_no_event() {
        let mut presence = ObjectPresence::new(RULES);
        assert_eq!(watch(&mut presence, 0, &[0, 1, 0, 1, 0, 0, 0, 0]), [0; 8]);
        assert_eq!(watch(&mut presence, 8, &[1, 1, 0, 1, 0, 1]), [0, 1, 1, 1, 1, 1]);
        // Also where pictures are further apart than the hold time.
        presence.look(&seen(0), 60_000);
        assert_eq!(presence.look(&seen(1), 120_000), []);
        presence.look(&seen(0), 180_000);
        let change = CountChange { subject: cow(), before: 1, count: 0 };
        assert!(change.is_end() && !change.is_appearance());
        assert_eq!(presence.look(&seen(0), 240_000), [change]);
    }

    #[test]
    fn a_second_one_counts_apart_from_the_first() {
        let mut presence = ObjectPresence::new(RULES);
        let counts = watch(&mut presence, 0, &[1, 2, 2, 1, 2, 1, 1, 1, 1, 1, 1]);
        assert_eq!(counts, [0, 1, 2, 2, 2, 2, 2, 2, 2, 1, 1]);
        let mut presence = ObjectPresence::new(PresenceRules { appear_after: 1, hold_ms: 0 });
        assert_eq!(watch(&mut presence, 0, &[3, 0, 0]), [3, 3, 0]);
    }

    #[test]
    fn nothing_is_gone_because_the_camera_is_away() {
        let mut presence = ObjectPresence::new(RULES);
        watch(&mut presence, 0, &[1, 1]);
        presence.away();
        // Back after an hour: the hold time begins again.
        assert_eq!(watch(&mut presence, 3600, &[0, 0, 0, 0, 0, 0]), [1, 1, 1, 1, 1, 0]);
        // An object that was only partly confirmed before does not appear because of one look afterwards.
        watch(&mut presence, 3610, &[1]);
        presence.away();
        assert_eq!(watch(&mut presence, 7200, &[1, 1]), [0, 1]);
    }

    #[test]
    fn an_open_change_is_not_settled() {
        let mut presence = ObjectPresence::new(RULES);
        assert!(presence.is_settled());
        watch(&mut presence, 0, &[1]);
        assert!(!presence.is_settled(), "it may appear");
        watch(&mut presence, 1, &[1]);
        assert!(presence.is_settled());
        watch(&mut presence, 2, &[0]);
        assert!(!presence.is_settled(), "it may be gone");
    }

    proptest! {
        /// Compares the count with a direct computation of the rules: where it rises, it is the least of the last
        /// looks; where it falls, the most of the hold time.
        #[test]
        fn counts_rise_and_fall_by_the_rules(
            counts in prop::collection::vec(0..4_usize, 1..60),
            appear_after in 1..4_u32,
            hold_s in 0..6_u64,
        ) {
            let rules = PresenceRules { appear_after, hold_ms: hold_s * 1000 };
            let mut presence = ObjectPresence::new(rules);
            let found = watch(&mut presence, 0, &counts);
            let mut settled = 0;
            for (at, found) in found.iter().enumerate() {
                let window = |looks: usize| &counts[(at + 1).saturating_sub(looks)..=at];
                let needed = usize::try_from(appear_after).unwrap();
                let rise = if at + 1 >= needed { window(needed).iter().min().copied().unwrap() } else { 0 };
                // An object that was last seen exactly the hold time ago is gone: that look is outside of the window.
                let held = usize::try_from(hold_s).unwrap().max(2);
                let most = window(held).iter().max().copied().unwrap();
                settled = if rise > settled { rise } else { settled.min(most.max(rise)) };
                prop_assert_eq!(*found, settled, "at {} of {:?}", at, &counts);
            }
        }

        #[test]
        fn changes_add_up_to_the_counts(
            looks in prop::collection::vec((prop::collection::btree_map((0..2_usize, 0..3_u8), 0..3_usize, 0..4), 0..9000_u64), 0..60),
        ) {
            let mut presence = ObjectPresence::new(RULES);
            let (mut sums, mut now) = (ObjectCounts::new(), 0);
            for (look, pause) in looks {
                now += pause;
                let subject = |(zone, label): (usize, u8)| ZoneLabel { zone, label: label.to_string().into() };
                let look: ObjectCounts = look.into_iter().map(|(of, count)| (subject(of), count)).collect();
                for change in presence.look(&look, now) {
                    prop_assert_eq!(sums.insert(change.subject.clone(), change.count).unwrap_or_default(), change.before);
                    prop_assert!(change.before != change.count);
                }
            }
            for (subject, count) in presence.counts() {
                prop_assert_eq!(sums.get(subject).copied().unwrap_or_default(), count);
            }
        }
    }
}
