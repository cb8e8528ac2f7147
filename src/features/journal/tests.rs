//! The journal against flipped bytes, cuts, torn pages, failed writes and concurrent readers.

#![expect(clippy::cast_possible_truncation, reason = "the numbers are small")]

mod faults;
mod torn;

use bytes::Bytes;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// The latest event time that is trusted.
pub const LATEST_US: i64 = 1_795_222_800_000_000;

pub fn key(number: u64) -> IndexKey {
    let mut bytes = [0; IndexKey::LENGTH];
    bytes[12..].copy_from_slice(&number.to_be_bytes());
    IndexKey::try_from(&bytes[..]).unwrap()
}

/// Changes of all kinds, distinguished by `tag`.
pub fn changes(tag: u64, sizes: &[usize]) -> Vec<(IndexKey, JournalChange)> {
    let change = |(n, size): (usize, &usize)| match size {
        0 => (key(tag), JournalChange::Delete),
        _ => (key(tag), JournalChange::Put((0..*size).map(|at| (tag as usize * 31 + n * 7 + at) as u8).collect())),
    };
    sizes.iter().enumerate().map(change).collect()
}

pub fn open(folder: &TempDir, segment_bytes: u64) -> OpenedJournal {
    Journal::open(folder.path(), segment_bytes, 1, 0).unwrap()
}

/// Appends, and adds the entries to the expected ones.
pub fn append(journal: &mut Journal, expected: &mut Vec<JournalEntry>, changes: Vec<(IndexKey, JournalChange)>) {
    let seqs = journal.append(&changes, LATEST_US).unwrap();
    assert_eq!(seqs.clone().count(), changes.len());
    expected.extend(seqs.zip(changes).map(|(seq, (key, change))| JournalEntry {
        seq,
        key,
        change,
        latest_us: LATEST_US,
    }));
}

/// The entries of a replay, and its result.
pub fn read(folder: &Path, from_seq: u64, to_seq: Option<u64>) -> (Vec<JournalEntry>, Result<u64, ReplayError<()>>) {
    let mut entries = Vec::new();
    let end = replay(folder, from_seq, to_seq, |entry| {
        entries.push(entry);
        Ok(())
    });
    (entries, end)
}

#[derive(Debug, Clone)]
enum JournalStep {
    Append(Vec<usize>),
    Rotate,
    Skip(u64),
    Reopen,
    Fail(bool),
}

fn steps() -> impl Strategy<Value = Vec<JournalStep>> {
    let step = prop_oneof![
        8 => prop::collection::vec(prop_oneof![Just(0), 1..100_usize, Just(5000)], 0..6).prop_map(JournalStep::Append),
        1 => Just(JournalStep::Rotate),
        1 => (0..20_u64).prop_map(JournalStep::Skip),
        2 => Just(JournalStep::Reopen),
        1 => any::<bool>().prop_map(JournalStep::Fail),
    ];
    prop::collection::vec(step, 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn what_was_appended_is_replayed_over_rotations_failures_and_restarts(steps in steps(), from in 1..60_u64) {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = open(&folder, 2000).journal;
        let mut expected = Vec::new();
        append(&mut journal, &mut expected, changes(1000, &[1]));

        for (tag, step) in steps.into_iter().enumerate() {
            match step {
                JournalStep::Append(sizes) => append(&mut journal, &mut expected, changes(tag as u64, &sizes)),
                JournalStep::Rotate => journal.rotate().unwrap(),
                JournalStep::Skip(by) => journal.skip_to(journal.next_seq() + by).unwrap(),
                JournalStep::Reopen => {
                    let next_seq = journal.next_seq();
                    let opened = open(&folder, 2000);
                    prop_assert_eq!(opened.report.next_seq, next_seq);
                    prop_assert_eq!(opened.report.cut_off, 0);
                    prop_assert_eq!(opened.report.damage, vec![]);
                    journal = opened.journal;
                }
                JournalStep::Fail(may_go_on) => faults::fail(&mut journal, may_go_on),
            }
        }
        let next_seq = journal.next_seq();
        for to_seq in [None, Some(next_seq)] {
            let (entries, end) = read(folder.path(), 1, to_seq);
            prop_assert_eq!(end.unwrap(), next_seq);
            prop_assert_eq!(&entries, &expected);
            let (entries, end) = read(folder.path(), from, to_seq);
            prop_assert_eq!(end.unwrap(), next_seq.max(from));
            expected.iter().filter(|entry| entry.seq >= from).zip(&entries).for_each(|(a, b)| assert_eq!(a, b));
        }
        prop_assert_eq!(verify(folder.path()).unwrap(), vec![]);
        let on_disk: u64 = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        prop_assert_eq!(journal.bytes(), on_disk);
    }
}

#[test]
fn a_segment_rotates_at_its_size_and_goes_when_a_snapshot_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(&folder, 1000).journal;
    let mut expected = Vec::new();
    (0..12).for_each(|tag| append(&mut journal, &mut expected, changes(tag, &[300])));
    assert_eq!(journal.segments(), 6);
    journal.remove_before(6).unwrap();
    assert_eq!(journal.segments(), 4);
    let opened = open(&folder, 1000);
    assert_eq!((opened.report.first_seq, opened.report.next_seq), (Some(5), 13));
    assert!(opened.report.damage.is_empty());
    assert_eq!(read(folder.path(), 5, Some(13)).0, expected[4..]);
    let (entries, end) = read(folder.path(), 4, Some(13));
    assert!(matches!(end, Err(ReplayError::Gap { from_seq: 4, to_seq: 5 })), "{end:?}");
    assert!(entries.is_empty());
    journal.remove_before(u64::MAX).unwrap();
    assert_eq!(journal.segments(), 1);
}

#[test]
fn sequence_numbers_begin_at_the_least_one_and_go_on_after_a_restore() {
    let folder = tempfile::tempdir().unwrap();
    let opened = Journal::open(folder.path(), 1000, 7, 0).unwrap();
    assert_eq!((opened.report.first_seq, opened.report.next_seq), (None, 7));
    let mut journal = opened.journal;
    assert_eq!(journal.append(&[], LATEST_US).unwrap().count(), 0);
    assert_eq!(journal.append(&changes(1, &[1, 2]), LATEST_US).unwrap(), 7..=8);
    journal.skip_to(100).unwrap();
    assert_eq!(journal.next_seq(), 100);
    assert_eq!(open(&folder, 1000).report.next_seq, 100);
    assert_eq!(journal.append(&changes(1, &[1]), LATEST_US).unwrap(), 100..=100);
    // A snapshot from before the restore does not need the skipped numbers.
    journal.remove_before(100).unwrap();
    assert_eq!(journal.segments(), 1);
    assert_eq!(read(folder.path(), 9, Some(101)).0.len(), 1);
    assert_eq!(Journal::open(folder.path(), 1000, 500, 0).unwrap().report.next_seq, 500);
}

#[test]
fn what_is_not_there_before_the_end_that_is_known_is_a_gap() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(read(folder.path(), 3, Some(5)).1, Err(ReplayError::Gap { from_seq: 3, to_seq: 5 })));
    assert_eq!(read(folder.path(), 3, None).1.unwrap(), 3);
    let mut journal = open(&folder, 1000).journal;
    journal.append(&changes(1, &[1]), LATEST_US).unwrap();
    let length = journal.bytes();
    journal.append(&changes(1, &[1]), LATEST_US).unwrap();
    OpenOptions::new().write(true).open(&journal.segments[0].path).unwrap().set_len(length).unwrap();
    let (entries, end) = read(folder.path(), 1, Some(3));
    assert_eq!(entries.len(), 1);
    assert!(matches!(end, Err(ReplayError::Gap { from_seq: 2, to_seq: 3 })), "{end:?}");
}

#[test]
fn a_reader_beside_the_writer_gets_exactly_what_was_acknowledged() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(&folder, 4000).journal;
    let next_seq = AtomicU64::new(journal.next_seq());
    let sizes: Vec<usize> = (0..20).map(|n| n * 20).collect();

    std::thread::scope(|scope| {
        scope.spawn(|| {
            for tag in 0..60 {
                if tag % 7 == 3 {
                    faults::fail(&mut journal, tag % 2 == 0);
                }
                journal.append(&changes(tag, &sizes), LATEST_US).unwrap();
                next_seq.store(journal.next_seq(), Ordering::SeqCst);
            }
            next_seq.store(u64::MAX, Ordering::SeqCst);
        });

        loop {
            let to_seq = next_seq.load(Ordering::SeqCst);
            if to_seq == u64::MAX {
                break;
            }
            let (entries, end) = read(folder.path(), 1, Some(to_seq));
            assert_eq!(end.unwrap(), to_seq);
            assert!(entries.iter().all(|entry| entry.key != key(faults::FAILED_KEY)));
            assert_eq!(verify(folder.path()).unwrap(), vec![]);
        }
    });

    let (entries, _) = read(folder.path(), 1, None);
    assert_eq!(entries.len(), 60 * sizes.len());
}

#[test]
fn a_group_that_is_too_large_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(&folder, 1000).journal;
    let row = Bytes::from(vec![0; 1 << 20]);
    let many = vec![(key(1), JournalChange::Put(row)); 64];
    let error = journal.append(&many, LATEST_US).unwrap_err();
    assert_eq!(error.to_string(), "a write to the journal is limited to 64 MiB");
    assert_eq!(journal.append(&many[..63], LATEST_US).unwrap(), 1..=63);
    assert_eq!(read(folder.path(), 1, Some(64)).0.len(), 63);
}

#[test]
fn the_journal_of_a_later_version_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(&folder, 1000).journal;
    journal.append(&changes(1, &[1]), LATEST_US).unwrap();
    let path = journal.segments[0].path.clone();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8] += 1;
    let sum = crc32fast::hash(&bytes[..60]).to_le_bytes();
    bytes[60..64].copy_from_slice(&sum);
    durable::replace(&path, &bytes).unwrap();
    let error = Journal::open(folder.path(), 1000, 1, 0).unwrap_err();
    assert!(matches!(&error, JournalError::Newer { file } if *file == path), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

/// Turns a segment into one of the previous version, which wrote groups without a latest event time.
fn make_old(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[8..10].copy_from_slice(&1_u16.to_le_bytes());
    let sum = crc32fast::hash(&bytes[..HEADER_BYTES - 4]);
    bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    File::create(path).unwrap().write_all(&bytes).unwrap();
}

#[test]
fn a_journal_of_the_version_before_is_read_and_goes_on_in_a_new_segment() {
    for entries in [&[1, 2, 3][..], &[]] {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = open(&folder, 1000).journal;
        journal.ready().unwrap();
        journal.append(&changes(1, entries), i64::MAX).unwrap();
        let (_, path) = list(folder.path()).unwrap().remove(0);
        make_old(&path);
        let before = std::fs::read(&path).unwrap();
        let OpenedJournal { mut journal, report } = open(&folder, 1000);
        assert_eq!((report.damage, journal.segments()), (vec![], 2), "{entries:?}");
        let first = *journal.append(&changes(2, &[1]), LATEST_US).unwrap().start();
        assert_eq!(std::fs::read(&path).unwrap(), before, "an old segment was written to");
        let (read, end) = read(folder.path(), 1, Some(first + 1));
        assert_eq!(end.unwrap(), first + 1);
        let times: Vec<i64> = read.iter().map(|entry| entry.latest_us).collect();
        assert_eq!(times, [vec![i64::MAX; entries.len()], vec![LATEST_US]].concat());
    }
}

#[test]
fn a_journal_that_ends_before_what_was_acknowledged_is_damaged_and_nothing_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(&folder, 1 << 20).journal;
    (0..5).for_each(|tag| _ = journal.append(&changes(tag, &[100]), LATEST_US).unwrap());
    let (_, path) = list(folder.path()).unwrap().remove(0);
    let whole = std::fs::read(&path).unwrap();
    let group = (whole.len() - HEADER_BYTES) / 5;
    for (length, left) in [(whole.len(), 5), (whole.len() - 1, 4), (HEADER_BYTES + 2 * group, 2), (HEADER_BYTES, 0)] {
        let lost = tempfile::tempdir().unwrap();
        let path = lost.path().join(path.file_name().unwrap());
        File::create(&path).unwrap().write_all(&whole[..length]).unwrap();
        let OpenedJournal { mut journal, report } = Journal::open(lost.path(), 1 << 20, 1, 6).unwrap();
        let lacking = Some(left + 1..6).filter(|lacking| !lacking.is_empty());
        assert_eq!((report.lacking.clone(), report.cut_off), (lacking.clone(), 0));
        assert_eq!(report.damage.len(), usize::from(lacking.is_some()), "{:?}", report.damage);
        assert_eq!(std::fs::read(&path).unwrap(), whole[..length]);
        // Until the journal continues, opening it again finds the same.
        let again = Journal::open(lost.path(), 1 << 20, 1, 6).unwrap();
        assert_eq!(again.report, report);
        assert_eq!(journal.ready().unwrap(), 6);
        journal.append(&changes(9, &[1]), LATEST_US).unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[..length], whole[..length]);
        let (entries, end) = read(lost.path(), 1, Some(7));
        let numbers: Vec<u64> = entries.iter().map(|entry| entry.seq).collect();
        assert_eq!((numbers, end.unwrap()), ((1..=left).chain([6]).collect(), 7));
    }
}

#[test]
fn a_journal_of_which_nothing_is_left_goes_on_behind_what_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let OpenedJournal { mut journal, report } = Journal::open(folder.path(), 1000, 3, 6).unwrap();
    assert_eq!((report.lacking, report.damage.len()), (Some(1..6), 1));
    assert_eq!((report.damage[0].from_seq, report.damage[0].to_seq), (3, Some(6)), "a snapshot has those before");
    assert_eq!(journal.append(&changes(1, &[1]), LATEST_US).unwrap(), 6..=6);
    assert_eq!(read(folder.path(), 3, Some(7)).0.len(), 1);
}
