//! The contents of the last snapshots, in a separate small file. When the snapshots are missing, or older ones are in
//! their place, it shows what is lost.
//!
//! It is written when a snapshot is complete, before the files that the snapshot replaces are removed. It is never
//! ahead of the snapshots, and without it a loss is still found, with a lower number and without the names of views.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::view::ViewId;

/// The snapshots that are remembered. Two are kept; a backup of the folder may bring back older ones.
const SNAPSHOTS_MAX: usize = 16;

/// The changes between two snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotChanges {
    /// The first journal entry that may be among them: the number of the snapshot before.
    pub after: u64,
    /// The number of the snapshot that has them.
    pub number: u64,
    /// The entities of each view that changed: each by one acknowledged entry at least.
    pub changed: Vec<(ViewId, u64)>,
}

/// The last snapshots, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SnapshotManifest {
    snapshots: Vec<SnapshotChanges>,
}

impl SnapshotManifest {
    /// Adds a snapshot. Changes after the same one, or a later one, are those of snapshots that are gone.
    pub fn add(&mut self, snapshot: SnapshotChanges) {
        self.snapshots.retain(|known| known.number <= snapshot.after);
        self.snapshots.push(snapshot);
        let surplus = self.snapshots.len().saturating_sub(SNAPSHOTS_MAX);
        self.snapshots.drain(..surplus);
    }

    /// The lost changes, if no file has an entry between `from` and `until`: the least number of entries of each view.
    pub fn lost(&self, from: u64, until: u64) -> BTreeMap<ViewId, u64> {
        let mut lost = BTreeMap::new();
        for snapshot in self.snapshots.iter().filter(|known| known.after >= from && known.number <= until) {
            for (view, entries) in &snapshot.changed {
                *lost.entry(*view).or_default() += entries;
            }
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn changes(after: u64, number: u64, entries: u64) -> SnapshotChanges {
        SnapshotChanges { after, number, changed: vec![(ViewId(1), entries), (ViewId(2), 1)] }
    }

    #[test]
    fn lost_changes_are_those_between_the_snapshot_that_is_left_and_the_journal() {
        let mut manifest = SnapshotManifest::default();
        for (after, number) in [(1, 100), (100, 200), (200, 300)] {
            manifest.add(changes(after, number, 50));
        }
        let lost = |from, until| manifest.lost(from, until).get(&ViewId(1)).copied();
        assert_eq!(
            (lost(1, 300), lost(100, 300), lost(200, 300), lost(300, 400)),
            (Some(150), Some(100), Some(50), None)
        );
        assert_eq!(lost(100, 299), Some(50), "the journal has the entries from 299 on, and some of the last snapshot");
        assert_eq!(lost(150, 300), Some(50), "a part of an interval is not certain");
        assert_eq!(manifest.lost(1, 300).get(&ViewId(2)), Some(&3));
    }

    #[test]
    fn a_snapshot_over_an_older_one_takes_the_place_of_those_that_are_gone() {
        let mut manifest = SnapshotManifest::default();
        for (after, number) in [(1, 100), (100, 200), (200, 300), (100, 400)] {
            manifest.add(changes(after, number, 50));
        }
        assert_eq!(manifest.lost(1, 400).get(&ViewId(1)), Some(&100), "entries are not counted twice");
    }

    proptest! {
        #[test]
        fn no_more_is_lost_than_was_changed(
            steps in prop::collection::vec((1_u64..50, 0_u64..50), 1..40), from in 0_u64..2000, until in 0_u64..2000,
        ) {
            let (mut manifest, mut after, mut all) = (SnapshotManifest::default(), 1, 0);
            for (entries, changed) in steps {
                let changed = changed.min(entries);
                manifest.add(SnapshotChanges { after, number: after + entries, changed: vec![(ViewId(1), changed)] });
                after += entries;
                all += changed;
            }
            let lost: u64 = manifest.lost(from, until).values().sum();
            prop_assert!(lost <= all.min(until.saturating_sub(from)), "{lost}");
            let text = serde_json::to_vec(&manifest).unwrap();
            prop_assert_eq!(serde_json::from_slice::<SnapshotManifest>(&text).unwrap(), manifest);
        }
    }
}
