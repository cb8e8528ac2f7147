//! Flipped bytes, cuts, and pages of the last write that did or did not get to the disk.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use tempfile::TempDir;

use super::super::*;
use super::{LATEST_US, append, changes, open, read};

/// The files of a folder.
type FolderFiles = BTreeMap<String, Vec<u8>>;

fn files(folder: &Path) -> FolderFiles {
    let file = |entry: io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    };
    folder.read_dir().unwrap().map(file).collect()
}

fn folder_of(files: &FolderFiles) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        File::create(folder.path().join(name)).unwrap().write_all(bytes).unwrap();
    }
    folder
}

/// Three segments of a few groups each.
struct TornJournal {
    files: FolderFiles,
    entries: Vec<JournalEntry>,
    /// The name of the last segment.
    last: String,
    /// The length of the last segment before each of its groups and at the end, and the number of entries by then.
    ends: Vec<(usize, usize)>,
}

fn sample() -> TornJournal {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(&folder, 1 << 20).journal;
    let mut entries = Vec::new();
    let mut ends = Vec::new();
    for segment in 0..3 {
        journal.rotate().unwrap();
        ends = vec![(HEADER_BYTES, entries.len())];
        for group in 0..3 {
            append(&mut journal, &mut entries, changes(segment * 10 + group, &[9, 0, 20]));
            ends.push((journal.segments.last().unwrap().length as usize, entries.len()));
        }
    }
    let files = files(folder.path());
    let last = files.keys().last().unwrap().clone();
    TornJournal { files, entries, last, ends }
}

/// Opens the journal, appends, and reads back: after any damage, newly acknowledged entries are there.
fn goes_on(folder: &Path) -> OpenReport {
    let OpenedJournal { mut journal, report } = Journal::open(folder, 1 << 20, 1, 0).unwrap();
    let change = changes(77, &[5, 0]);
    let seqs = journal.append(&change, LATEST_US).unwrap();
    assert_eq!(*seqs.start(), report.next_seq);
    let again = Journal::open(folder, 1 << 20, 1, 0).unwrap();
    assert_eq!(again.report.next_seq, seqs.end() + 1);
    assert_eq!(again.report.cut_off, 0);
    let (entries, end) = read(folder, *seqs.start(), Some(again.report.next_seq));
    end.unwrap();
    assert_eq!(entries.into_iter().map(|entry| (entry.key, entry.change)).collect::<Vec<_>>(), change);
    report
}

#[test]
fn every_flipped_byte_is_reported_or_lies_in_the_last_group() {
    let sample = sample();
    let before_last_group = sample.ends[sample.ends.len() - 2];
    for (name, bytes) in &sample.files {
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut files = sample.files.clone();
                files.get_mut(name).unwrap()[at] ^= flip;
                let folder = folder_of(&files);
                let place = format!("{name} at {at}");

                let damage = verify(folder.path()).unwrap();
                let (entries, end) = read(folder.path(), 1, None);
                assert!(sample.entries.starts_with(&entries), "{place}: {entries:?}");
                if *name == sample.last && at >= before_last_group.0 {
                    assert_eq!(damage, vec![], "{place}");
                    assert_eq!(end.unwrap(), before_last_group.1 as u64 + 1, "{place}");
                    assert_eq!(entries.len(), before_last_group.1);
                    if flip == 1 && at % 5 == 0 {
                        let report = goes_on(folder.path());
                        assert_eq!(report.cut_off, (bytes.len() - before_last_group.0) as u64, "{place}");
                        assert_eq!(report.damage, vec![], "{place}");
                    }
                    continue;
                }

                let [damage] = &damage[..] else { panic!("{place}: {damage:?}") };
                assert!(damage.file.ends_with(name) && damage.offset <= at as u64, "{place}: {damage}");
                // Nothing outside the damage is lost, and the damage covers at most one group.
                assert!(damage.to_seq.unwrap() - damage.from_seq <= 3, "{place}: {damage}");
                if damage.to_seq == Some(1) {
                    // The header of the oldest segment: no entry is lost.
                    assert_eq!((entries.len(), end.unwrap()), (sample.entries.len(), 28), "{place}");
                } else {
                    assert_eq!(entries.len() as u64 + 1, damage.from_seq, "{place}: {damage}");
                    assert!(matches!(end, Err(ReplayError::Damaged(same)) if same == *damage), "{place}");
                }

                let (rest, end) = read(folder.path(), damage.to_seq.unwrap().max(damage.from_seq + 1), None);
                assert!(sample.entries.ends_with(&rest), "{place}");
                end.unwrap();
                // Each of these waits for fsyncs.
                if flip == 1 && at % 11 == 0 {
                    let report = goes_on(folder.path());
                    let seen = *name == sample.last || at < HEADER_BYTES;
                    assert_eq!(report.damage, if seen { vec![damage.clone()] } else { vec![] }, "{place}");
                    assert_eq!(report.cut_off, 0);
                    assert_eq!(verify(folder.path()).unwrap(), vec![damage.clone()], "{place}");
                    let kept = std::fs::read(folder.path().join(name)).unwrap();
                    assert_eq!(kept, files[name], "a damaged segment stays as it is");
                }
            }
        }
    }
}

#[test]
fn a_cut_at_any_place_of_the_last_segment_keeps_every_group_before_it() {
    let sample = sample();
    for length in 0..=sample.files[&sample.last].len() {
        let mut files = sample.files.clone();
        files.get_mut(&sample.last).unwrap().truncate(length);
        let folder = folder_of(&files);
        let (kept, count) = sample.ends.iter().rfind(|(end, _)| *end <= length).copied().unwrap_or((0, 6 * 3));
        let (entries, end) = read(folder.path(), 1, None);
        assert_eq!(entries, sample.entries[..count], "cut at {length}");
        assert_eq!(end.unwrap(), count as u64 + 1);
        if length % 3 == 0 || length == kept {
            let report = goes_on(folder.path());
            assert_eq!((report.cut_off, report.damage), ((length - kept) as u64, vec![]), "cut at {length}");
        }
    }
}

#[test]
fn a_cut_at_any_place_of_an_earlier_segment_is_damage() {
    let sample = sample();
    for name in sample.files.keys().filter(|name| **name != sample.last) {
        for length in 0..sample.files[name].len() {
            let mut files = sample.files.clone();
            files.get_mut(name).unwrap().truncate(length);
            let folder = folder_of(&files);
            assert!(!verify(folder.path()).unwrap().is_empty(), "{name} cut at {length}");
            assert!(matches!(read(folder.path(), 1, None).1, Err(ReplayError::Damaged(_))), "{name} cut at {length}");
            if length % 17 == 0 {
                assert!(!goes_on(folder.path()).damage.is_empty(), "{name} cut at {length}");
            }
        }
    }
}

#[test]
fn a_missing_segment_is_damage_unless_it_is_the_oldest() {
    let sample = sample();
    let names: Vec<&String> = sample.files.keys().collect();
    for (missing, expected) in [(0, 0), (1, 1)] {
        let mut files = sample.files.clone();
        files.remove(names[missing]);
        let folder = folder_of(&files);
        let damage = verify(folder.path()).unwrap();
        assert_eq!(damage.len(), expected, "{damage:?}");
        for damage in &damage {
            assert!(damage.file.ends_with(names[missing]));
            assert_eq!((damage.from_seq, damage.to_seq), (10, Some(19)));
            assert!(damage.to_string().ends_with("the file is missing; entries 10 to 18 may be lost"), "{damage}");
        }
        assert_eq!(goes_on(folder.path()).damage, damage);
    }
}

#[test]
fn a_damaged_segment_is_set_aside_when_a_snapshot_makes_up_for_it() {
    let mut sample = sample();
    sample.files.get_mut(&sample.last).unwrap()[HEADER_BYTES + 30] ^= 4;
    let folder = folder_of(&sample.files);
    let OpenedJournal { mut journal, report } = open(&folder, 1 << 20);
    let [damage] = &report.damage[..] else { panic!("{report:?}") };
    assert!(damage.to_string().ends_with("its checksum does not match; entries 19 to 21 may be lost"), "{damage}");
    assert_eq!(report.next_seq, 28);
    journal.append(&changes(1, &[1]), LATEST_US).unwrap();
    journal.remove_before(journal.next_seq()).unwrap();
    let left = files(folder.path());
    assert_eq!(left.len(), 2);
    assert_eq!(left[&format!("{}.damaged", sample.last)], sample.files[&sample.last]);
    assert_eq!(verify(folder.path()).unwrap(), vec![]);

    // Damage that the scrub finds in the segment that is being written ends that segment.
    let current = journal.segments[0].path.clone();
    journal.note_damage(&[JournalDamage { file: current.clone(), ..damage.clone() }]).unwrap();
    journal.append(&changes(1, &[1]), LATEST_US).unwrap();
    assert_eq!(journal.segments(), 2);
    journal.remove_before(journal.next_seq()).unwrap();
    let names: Vec<String> = files(folder.path()).into_keys().collect();
    assert_eq!(names, [format!("{}.damaged", file_name(28)), file_name(29)]);
}

const PAGE_BYTES: usize = 4096;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn pages_of_the_last_write_that_got_to_the_disk_cost_no_group_before_it(
        sizes in prop::collection::vec(prop_oneof![0..50_usize, 1000..9000_usize], 1..6),
        earlier in prop::collection::vec(prop_oneof![0..50_usize, 1000..6000_usize], 1..4),
        written in prop::collection::vec(any::<bool>(), 20),
        length in prop_oneof![Just(1000), 0..1000_usize],
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = open(&folder, 1 << 20).journal;
        let mut entries = Vec::new();

        for (tag, size) in earlier.iter().enumerate() {
            append(&mut journal, &mut entries, changes(tag as u64, &[*size]));
        }

        let path = journal.segments[0].path.clone();
        let synced = std::fs::read(&path).unwrap();
        let synced_entries = entries.len();

        append(&mut journal, &mut entries, changes(9, &sizes));
        let mut torn = std::fs::read(&path).unwrap();
        let whole = torn.clone();
        for (page, bytes) in torn.chunks_mut(PAGE_BYTES).enumerate().skip(synced.len() / PAGE_BYTES) {
            if !written[page % written.len()] {
                // The old content, or zeros beyond its end.
                let old = synced.get(page * PAGE_BYTES..).unwrap_or_default();
                let old = &old[..old.len().min(bytes.len())];
                bytes.fill(0);
                bytes[..old.len()].copy_from_slice(old);
            }
        }

        torn.truncate(synced.len() + (whole.len() - synced.len()) * length / 1000);
        File::create(&path).unwrap().write_all(&torn).unwrap();

        let expected = if torn == whole { entries.len() } else { synced_entries };
        prop_assert_eq!(verify(folder.path()).unwrap(), vec![]);
        prop_assert_eq!(&read(folder.path(), 1, None).0[..], &entries[..expected]);
        let report = goes_on(folder.path());
        prop_assert_eq!(report.damage, vec![]);
        prop_assert_eq!(report.next_seq, expected as u64 + 1);
        prop_assert_eq!(report.cut_off as usize, if torn == whole { 0 } else { torn.len() - synced.len() });
    }
}

#[test]
fn a_group_inside_a_pushed_value_is_not_taken_for_one() {
    let sample = sample();
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(&folder, 1 << 20).journal;
    journal.append(&changes(1, &[1]), LATEST_US).unwrap();
    let before = journal.bytes();
    // A push contains the bytes of a segment; the power is cut while it is written.
    let value = Bytes::from(sample.files[&sample.last].clone());
    journal.append(&[(super::key(1), JournalChange::Put(value))], LATEST_US).unwrap();
    let path = &journal.segments[0].path;
    let mut bytes = std::fs::read(path).unwrap();
    bytes[before as usize + 20] ^= 1;
    durable::replace(path, &bytes).unwrap();
    assert_eq!(verify(folder.path()).unwrap(), vec![]);
    assert_eq!(goes_on(folder.path()).next_seq, 2);
}
