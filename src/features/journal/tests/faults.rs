//! Writes and fsyncs that fail.

use super::super::*;
use super::{LATEST_US, append, changes, key, open, read};

/// The key of changes that were never acknowledged.
pub const FAILED_KEY: u64 = 0xdead;

/// Leaves the same as a failed append: a part of a group when the write failed (`may_go_on`), all of it when the fsync
/// did.
pub fn fail(journal: &mut Journal, may_go_on: bool) {
    let Some(writer) = &mut journal.writer else { return };
    let current = journal.segments.last().unwrap();
    let lost = changes(FAILED_KEY, &[700, 0]);
    let mut bytes = Vec::new();
    encode_group(&mut bytes, writer.mark, current.next_seq, &lost, LATEST_US);
    let next_seq = current.next_seq + 2;
    let count = if may_go_on { bytes.len() / 2 } else { bytes.len() };
    writer.file.write_all(&bytes[..count]).unwrap();
    journal.undo(may_go_on, next_seq);
}

#[test]
fn after_a_failed_write_the_same_segment_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(&folder, 1 << 20).journal;
    let mut expected = Vec::new();
    append(&mut journal, &mut expected, changes(1, &[10]));
    fail(&mut journal, true);
    append(&mut journal, &mut expected, changes(2, &[10]));
    assert_eq!((journal.segments(), journal.next_seq()), (1, 3));
    assert_eq!(read(folder.path(), 1, None).0, expected);
    assert_eq!(open(&folder, 1 << 20).report.cut_off, 0);
}

#[test]
fn after_a_failed_fsync_the_segment_is_left_alone_and_its_sequence_numbers_are_not_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(&folder, 1 << 20).journal;
    let mut expected = Vec::new();
    append(&mut journal, &mut expected, changes(1, &[10]));
    let path = journal.segments[0].path.clone();
    let writer = journal.writer.as_mut().unwrap();
    let lost = changes(FAILED_KEY, &[700, 0]);
    let mut bytes = Vec::new();
    encode_group(&mut bytes, writer.mark, 2, &lost, LATEST_US);
    writer.file.write_all(&bytes).unwrap();
    journal.undo(false, 4);
    append(&mut journal, &mut expected, changes(2, &[10]));
    assert_eq!(expected.last().unwrap().seq, 4);
    // Bytes that could not be cut off may reappear on the disk.
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(&bytes).unwrap();
    assert_eq!(verify(folder.path()).unwrap(), vec![]);
    assert_eq!(read(folder.path(), 1, Some(5)).0, expected);
    let OpenedJournal { mut journal, report } = open(&folder, 1 << 20);
    assert_eq!((report.next_seq, report.cut_off, report.damage), (5, 0, vec![]));
    append(&mut journal, &mut expected, changes(3, &[10]));
    assert_eq!(read(folder.path(), 1, Some(6)).0, expected);
}

/// A file that cannot be written, cut or fsynced, as on a device that is gone.
#[test]
fn a_segment_that_can_be_neither_written_nor_cut_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(&folder, 1 << 20).journal;
    let mut expected = Vec::new();
    append(&mut journal, &mut expected, changes(1, &[10]));
    journal.writer.as_mut().unwrap().file = File::open(&journal.segments[0].path).unwrap();
    let error = journal.append(&changes(FAILED_KEY, &[1]), LATEST_US).unwrap_err();
    assert!(matches!(&error, JournalError::Write { file, .. } if *file == journal.segments[0].path), "{error}");
    append(&mut journal, &mut expected, changes(2, &[10]));
    assert_eq!(journal.segments(), 2);
    assert_eq!(read(folder.path(), 1, Some(journal.next_seq())).0, expected);
}

#[test]
fn while_no_segment_can_be_begun_appends_fail_and_what_was_acknowledged_is_read() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("journal");
    let mut journal = Journal::open(&folder, 1 << 20, 1, 0).unwrap().journal;
    let mut expected = Vec::new();
    append(&mut journal, &mut expected, changes(1, &[10]));
    let away = parent.path().join("away");
    durable::rename(&folder, &away).unwrap();
    fail(&mut journal, false);
    assert!(matches!(journal.append(&changes(FAILED_KEY, &[1]), LATEST_US), Err(JournalError::Write { .. })));
    assert!(journal.rotate().is_err());
    assert_eq!(journal.next_seq(), 2);
    durable::rename(&away, &folder).unwrap();
    assert_eq!(read(&folder, 1, Some(journal.next_seq())).0, expected);
    append(&mut journal, &mut expected, changes(2, &[10]));
    assert_eq!(read(&folder, 1, Some(journal.next_seq())).0, expected);
    assert!(expected.iter().all(|entry| entry.key != key(FAILED_KEY)));
}
