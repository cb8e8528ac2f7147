//! Tests of reading in place.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::*;
use crate::record::RecordHeader;

/// A table of these bytes.
pub fn of(bytes: &[u8]) -> Result<Option<SortedTable<&[u8]>>, SnapshotError> {
    SortedTable::of(bytes, PathBuf::from("bytes"))
}

fn scanned<S: super::super::table::ReadAt>(
    table: &SortedTable<S>,
    prefix: &[u8],
) -> (RecordList, Result<(), SnapshotError>) {
    let (mut scan, mut records) = (table.scan(prefix), Vec::new());
    loop {
        match scan.next() {
            Ok(Some((key, record))) => records.push((key, record.to_vec())),
            Ok(None) => return (records, Ok(())),
            Err(error) => {
                assert!(scan.next().unwrap().is_none(), "a scan goes on after an error");
                return (records, Err(error));
            }
        }
    }
}

/// Keys that often share long beginnings.
fn any_key() -> impl Strategy<Value = IndexKey> {
    let byte = prop_oneof![Just(0), Just(1), Just(0xff)];
    let similar = (0..IndexKey::LENGTH, byte, any::<u8>()).prop_map(|(at, byte, other)| {
        let mut key = [byte; IndexKey::LENGTH];
        key[at] = other;
        key
    });
    prop_oneof![similar, any::<[u8; IndexKey::LENGTH]>()].prop_map(IndexKey::from)
}

fn any_record() -> impl Strategy<Value = Vec<u8>> {
    let body = prop_oneof![4 => 0..120_usize, 1 => 4000..4200_usize, 1 => Just(60_000)];
    (any::<i64>(), any::<i64>(), body).prop_map(|(event_us, purge_us, body)| {
        let header = RecordHeader { seq: 1, event_us, purge_us };
        let body = [&event_us.to_le_bytes()[..], &vec![1; body]].concat();
        header.with_body(&key(0), crate::record::CipherHeader::default(), false, &body)
    })
}

fn neighbours(key: &IndexKey) -> [IndexKey; 4] {
    [(19, 1), (19, 0xff), (4, 1), (0, 0xff)].map(|(at, change): (usize, u8)| {
        let mut bytes = *key.as_bytes();
        bytes[at] = bytes[at].wrapping_add(change);
        IndexKey::from(bytes)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_record_is_found_under_its_key_and_nothing_under_others(
        records in prop::collection::btree_map(any_key(), any_record(), 0..80),
        others in prop::collection::vec(any_key(), 10),
        cuts in prop::collection::vec(0..=IndexKey::LENGTH, 10),
    ) {
        let listed: RecordList = records.iter().map(|(key, record)| (*key, record.clone())).collect();
        let (bytes, _) = write(&header(), &listed);
        prop_assert_eq!(&read(&bytes[..]).0, &listed);
        let table = of(&bytes).unwrap().unwrap();
        prop_assert_eq!(table.header(), &header());
        prop_assert_eq!(table.records(), listed.len() as u64);

        let ends = [[0; IndexKey::LENGTH], [0xff; IndexKey::LENGTH]].map(IndexKey::from);
        let absent = records.keys().flat_map(neighbours).chain(others.iter().copied()).chain(ends);
        for key in records.keys().copied().chain(absent) {
            let found = table.get(&key).unwrap();
            prop_assert_eq!(found.as_ref(), records.get(&key));
        }

        prop_assert_eq!(scanned(&table, b"").0, listed.clone());
        for (key, cut) in records.keys().chain(&others).chain(&ends).zip(cuts.iter().cycle()) {
            let prefix = &key.as_bytes()[..*cut];
            let (found, end) = scanned(&table, prefix);
            prop_assert!(end.is_ok());
            let begins = |(key, _): &&(IndexKey, Vec<u8>)| key.as_bytes().starts_with(prefix);
            prop_assert_eq!(found, listed.iter().filter(begins).cloned().collect::<Vec<_>>());
        }
        let (found, end) = scanned(&table, &[0; IndexKey::LENGTH + 1]);
        prop_assert!(found.is_empty() && end.is_ok(), "no key has so long a prefix");
    }

    #[test]
    fn statistics_are_those_of_the_records(
        records in prop::collection::btree_map((0..5_u32, any::<[u8; 2]>()), (any::<i64>(), any::<i64>()), 0..60),
    ) {
        let records: BTreeMap<IndexKey, RecordHeader> = records
            .into_iter()
            .map(|((view, rest), (event_us, purge_us))| {
                let mut key = [0; IndexKey::LENGTH];
                key[..4].copy_from_slice(&view.to_be_bytes());
                key[4..6].copy_from_slice(&rest);
                (IndexKey::from(key), RecordHeader { seq: 1, event_us, purge_us })
            })
            .collect();
        let seal = crate::record::CipherHeader::default();
        let record = |key: &IndexKey, header: &RecordHeader| header.with_body(key, seal, false, &header.event_us.to_le_bytes());
        let listed = records.iter().map(|(key, header)| (*key, record(key, header))).collect();
        let (bytes, _) = write(&header(), &listed);
        let table = of(&bytes).unwrap().unwrap();

        let statistics = table.statistics();
        let count = |view| records.keys().filter(|key| key.view() == view).count() as u64;
        let counts: Vec<_> = (0..6).map(ViewId).map(|view| (view, count(view))).filter(|(_, count)| *count > 0).collect();
        prop_assert_eq!(&statistics.records, &counts);
        prop_assert_eq!(statistics.newest_us, records.values().map(|one| one.event_us).max().unwrap_or(i64::MIN));
        prop_assert_eq!(statistics.earliest_purge_us, records.values().map(|one| one.purge_us).min().unwrap_or(i64::MAX));
    }
}

/// A small file of three blocks.
fn small() -> (RecordList, Vec<u8>) {
    let records = records(&[0, 5, 30, 4060, 7, 200]);
    let (bytes, _) = write(&header(), &records);
    assert_eq!(of(&bytes).unwrap().unwrap().first_keys().len(), 3);
    (records, bytes)
}

#[test]
fn a_flipped_byte_anywhere_is_noticed_where_it_is_read_and_never_gives_a_wrong_record() {
    let (records, bytes) = small();
    let mut noticed = 0;
    for at in 0..bytes.len() {
        for flip in [1 << (at % 8), 0xff] {
            let mut flipped = bytes.clone();
            flipped[at] ^= flip;
            assert!(read(&flipped[..]).1.unwrap_err().is_damage(), "byte {at}");
            let table = match of(&flipped) {
                Ok(table) => table.unwrap(),
                Err(error) => {
                    assert!(error.is_damage(), "byte {at}: {error}");
                    noticed += 1;
                    continue;
                }
            };

            let (found, end) = scanned(&table, b"");
            assert!(records.starts_with(&found), "byte {at}");
            let error = end.unwrap_err();
            assert!(
                matches!(error, SnapshotError::Damaged { offset, .. } if offset <= at as u64),
                "byte {at}: {error}"
            );
            let mut errors = 0;
            for (key, record) in &records {
                match table.get(key) {
                    Ok(found) => assert_eq!(found.as_ref(), Some(record), "byte {at}"),
                    Err(error) => {
                        assert!(matches!(error, SnapshotError::Damaged { .. }), "byte {at}: {error}");
                        errors += 1;
                    }
                }
            }
            assert!((1..records.len()).contains(&errors), "byte {at}: {errors} records are damaged");
            assert!(!matches!(table.get(&key(100)), Ok(Some(_))), "byte {at}");
        }
    }
    assert!(noticed > 2 * (HEADER_BYTES + FOOTER_BYTES), "{noticed}");
}

#[test]
fn a_cut_file_is_neither_whole_nor_opened() {
    let (_, bytes) = small();
    for length in 0..bytes.len() {
        assert!(of(&bytes[..length]).unwrap_err().is_damage(), "cut at {length}");
        assert!(read(&bytes[..length]).1.unwrap_err().is_damage(), "cut at {length}");
    }
    let longer = [&bytes[..], b"\0"].concat();
    assert!(of(&longer).unwrap_err().is_damage());

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut");
    for length in [0, 5, 100, bytes.len() / 2, bytes.len() - 1] {
        durable::replace(&path, &bytes[..length]).unwrap();
        assert!(SortedTable::open(&path).unwrap_err().is_damage(), "cut at {length}");
        assert!(verify_file(&path).unwrap_err().is_damage(), "cut at {length}");
    }
    assert!(!SortedTable::open(&folder.path().join("none")).unwrap_err().is_damage(), "a missing file");
}

#[test]
fn a_file_that_loses_its_end_while_it_is_open_is_damage() {
    let (records, bytes) = small();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    durable::replace(&path, &bytes).unwrap();
    let table = SortedTable::open(&path).unwrap().unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(500).unwrap();
    assert_eq!(table.get(&records[0].0).unwrap().as_ref(), Some(&records[0].1));
    let (last, _) = records.last().unwrap();
    assert!(matches!(table.get(last), Err(SnapshotError::Cut { bytes: 500 })));
    assert!(scanned(&table, b"").1.unwrap_err().is_damage());
}

#[test]
fn a_whole_block_in_the_place_of_another_one_is_damage() {
    let records = records(&[3000, 3000, 3000]);
    let (bytes, _) = write(&header(), &records);
    let begin = |block| of(&bytes).unwrap().unwrap().offset(block).unwrap() as usize;
    for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        let mut changed = bytes.clone();
        changed.copy_within(begin(from)..begin(from + 1), begin(to));
        let table = of(&changed).unwrap().unwrap();
        for (block, (key, record)) in records.iter().enumerate() {
            match table.get(key) {
                Ok(found) => assert_eq!((block != to, found.as_ref()), (true, Some(record))),
                Err(SnapshotError::Damaged { offset, .. }) => assert_eq!((block, offset), (to, begin(to) as u64)),
                Err(error) => panic!("{error}"),
            }
        }
        let (found, end) = scanned(&table, b"");
        assert_eq!(found, records[..to]);
        assert!(matches!(end, Err(SnapshotError::Damaged { offset, .. }) if offset == begin(to) as u64));
    }
}

#[test]
fn a_file_of_many_pieces_is_read_in_place_by_many_threads() {
    let folder = tempfile::tempdir().unwrap();
    let sizes: Vec<usize> = (0..9_000).map(|number| if number % 1000 == 17 { 65_000 } else { 110 }).collect();
    let header_of = RecordHeader { seq: 1, event_us: 0, purge_us: i64::MAX };
    let record = |(number, size): (usize, &usize)| {
        let key = key(number as u32 * 2);
        (key, header_of.with_body(&key, crate::record::CipherHeader::default(), false, &vec![0; *size]))
    };
    let records: RecordList = sizes.iter().enumerate().map(record).collect();
    let (path, _) =
        write_file(folder.path(), &header(), |writer| records.iter().try_for_each(|(key, one)| writer.add(key, one)))
            .unwrap();
    let table = SortedTable::open(&path).unwrap().unwrap();
    assert_eq!(table.path(), path);
    // A file that is removed stays readable through open handles.
    std::fs::remove_file(&path).unwrap();

    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (table, records) = (&table, &records);
            scope.spawn(move || {
                for (number, (found, record)) in records.iter().enumerate().skip(thread).step_by(4) {
                    assert_eq!(table.get(found).unwrap().as_ref(), Some(record));
                    assert_eq!(table.get(&key(number as u32 * 2 + 1)).unwrap(), None);
                }
            });
        }
    });

    let (found, end) = scanned(&table, b"");
    end.unwrap();
    assert_eq!(found, records);
    let (found, end) = scanned(&table, &key(0x1300).as_bytes()[..19]);
    end.unwrap();
    assert_eq!(
        found.iter().map(|(key, _)| *key).collect::<Vec<_>>(),
        (0..128).map(|n| key(0x1300 + n * 2)).collect::<Vec<_>>()
    );
}

#[test]
fn a_snapshot_without_records_is_a_table() {
    let (bytes, _) = write(&header(), &Vec::new());
    let table = of(&bytes).unwrap().unwrap();
    assert_eq!(table.records(), 0);
    assert_eq!(table.get(&key(1)).unwrap(), None);
    assert!(scanned(&table, b"").0.is_empty());
    let none = SnapshotStatistics { records: Vec::new(), newest_us: i64::MIN, earliest_purge_us: i64::MAX };
    assert_eq!(table.statistics(), &none);
}
