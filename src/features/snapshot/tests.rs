#![expect(clippy::cast_possible_truncation, reason = "the numbers are small")]

mod table;

use std::io::Read;

use ledge_base::durable;
use proptest::prelude::*;

use super::*;

fn header() -> SnapshotHeader {
    SnapshotHeader {
        replay_from: 42,
        created_ms: 1_700_000_000_000,
        hash_key_id: *b"hash key",
        catalog: r#"{"views":[]}"#.into(),
        partial: false,
    }
}

fn key(number: u32) -> IndexKey {
    let mut bytes = [0; IndexKey::LENGTH];
    bytes[16..].copy_from_slice(&number.to_be_bytes());
    IndexKey::try_from(&bytes[..]).unwrap()
}

type RecordList = Vec<(IndexKey, Vec<u8>)>;

fn records(sizes: &[usize]) -> RecordList {
    sizes.iter().enumerate().map(|(n, size)| (key(n as u32), vec![n as u8; *size])).collect()
}

/// As [`records`], each with a correct checksum.
fn real_records(sizes: &[usize]) -> RecordList {
    let header = crate::record::RecordHeader { seq: 1, event_us: 0, purge_us: i64::MAX };
    let real = |(key, body): (IndexKey, Vec<u8>)| {
        let body = [&[0; 8][..], &body].concat();
        (key, header.with_body(&key, crate::record::CipherHeader::default(), false, &body))
    };
    records(sizes).into_iter().map(real).collect()
}

fn write(header: &SnapshotHeader, records: &RecordList) -> (Vec<u8>, SnapshotSize) {
    let mut writer = SnapshotWriter::new(Vec::new(), header).unwrap();
    for (key, record) in records {
        writer.add(key, record).unwrap();
    }
    writer.finish().unwrap()
}

/// The records that were read, and the result.
fn read(stream: impl Read) -> (RecordList, Result<SnapshotHeader, SnapshotError>) {
    let mut records = Vec::new();
    let mut reader = match SnapshotReader::new(stream) {
        Ok(reader) => reader,
        Err(error) => return (records, Err(error)),
    };
    loop {
        match reader.next() {
            Ok(Some(record)) => records.push(record),
            Ok(None) => return (records, Ok(reader.header().clone())),
            Err(error) => return (records, Err(error)),
        }
    }
}

/// A snapshot as the releases before version 2 wrote it.
fn write_1(header: &SnapshotHeader, records: &RecordList) -> Vec<u8> {
    let mut bytes = write::header_bytes(header, VERSION_1);
    let put_block = |bytes: &mut Vec<u8>, kind, content: &[u8]| {
        bytes.extend(form::BlockHeader::encode(kind, content));
        bytes.extend(content);
    };
    let mut block = Vec::new();
    for (key, record) in records {
        if !block.is_empty() && block.len() + IndexKey::LENGTH + 4 + record.len() > 64 << 10 {
            put_block(&mut bytes, KIND_RECORDS, &std::mem::take(&mut block));
        }
        block.extend(key.as_bytes());
        block.extend((record.len() as u32).to_le_bytes());
        block.extend(record);
    }
    if !block.is_empty() {
        put_block(&mut bytes, KIND_RECORDS, &block);
    }
    let footer = [&(records.len() as u64).to_le_bytes()[..], blake3::hash(&bytes).as_bytes()].concat();
    put_block(&mut bytes, KIND_FOOTER, &footer);
    bytes
}

/// A stream in pieces, as from a network.
struct PieceReader<'b>(&'b [u8], usize);

impl Read for PieceReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.1.min(buffer.len());
        (&mut self.0).take(count as u64).read(buffer)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_written_is_read_from_a_stream_in_any_pieces(
        sizes in prop::collection::vec(prop_oneof![0..200_usize, Just(60_000)], 0..40),
        replay_from in any::<u64>(), catalog in ".*", piece in 1..5000_usize,
    ) {
        let header = SnapshotHeader { replay_from, catalog, ..header() };
        let records = records(&sizes);
        let (bytes, summary) = write(&header, &records);
        prop_assert_eq!(summary, SnapshotSize { records: records.len() as u64, bytes: bytes.len() as u64 });
        let (found, end) = read(PieceReader(&bytes, piece));
        prop_assert_eq!(end.unwrap(), header);
        prop_assert_eq!(found, records);
    }

    #[test]
    fn records_in_any_order_are_a_stream_in_that_order(
        numbers in prop::collection::vec((any::<u32>(), 0..3000_usize), 0..20),
    ) {
        let records: RecordList = numbers.iter().map(|(number, size)| (key(*number), vec![7; *size])).collect();
        let (bytes, _) = write(&header(), &records);
        let (found, end) = read(&bytes[..]);
        prop_assert_eq!(end.unwrap(), header());
        prop_assert_eq!(&found, &records);
        let is_table = records.is_sorted_by(|(a, _), (b, _)| a < b);
        prop_assert_eq!(table::of(&bytes).unwrap().is_some(), is_table);
    }

    #[test]
    fn a_snapshot_of_version_1_is_read_as_a_stream(
        sizes in prop::collection::vec(prop_oneof![0..200_usize, Just(60_000)], 0..40), catalog in ".*",
    ) {
        let header = SnapshotHeader { catalog, ..header() };
        let records = records(&sizes);
        let bytes = write_1(&header, &records);
        let (found, end) = read(&bytes[..]);
        prop_assert_eq!(end.unwrap(), header);
        prop_assert_eq!(found, records);
        prop_assert!(table::of(&bytes).unwrap().is_none());
    }

    #[test]
    fn any_bytes_keep_the_properties(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzz::fuzz(&bytes);
    }

    #[test]
    fn records_with_changed_bytes_keep_the_properties(
        numbers in prop::collection::vec((0..9_u32, 0..9_usize), 1..6),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let (mut block, mut previous) = (Vec::new(), None);
        for (number, size) in numbers {
            let key = key(number);
            form::put_record(&mut block, previous.as_ref(), &key, &vec![0; size]);
            previous = Some(key);
        }
        if changes.is_empty() {
            prop_assert!(fuzz::fuzz(&block) > 0);
        }
        for (at, byte) in changes {
            let at = at.index(block.len());
            block[at] = byte;
        }
        fuzz::fuzz(&block);
    }

    #[test]
    fn an_index_statistics_or_a_footer_that_lies_is_damage(
        at in 0..fuzz::CHANGES, change in 1_u8.., more in prop::collection::vec(any::<u8>(), 0..4),
    ) {
        let changes = [&vec![0; at][..], &[change], &more].concat();
        prop_assert!(!fuzz::as_changes(&changes));
    }

    #[test]
    fn bytes_that_are_no_snapshot_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(read(&bytes[..]).1.is_err());
    }
}

#[test]
fn a_flipped_byte_anywhere_is_an_error() {
    let records = records(&[0, 5, 30_000, 40_000, 7]);
    let (bytes, _) = write(&header(), &records);
    let head = 200;
    let places = (0..head).chain((head..bytes.len() - head).step_by(97)).chain(bytes.len() - head..bytes.len());
    for at in places {
        for flip in [1, 0x80, 0xff] {
            let mut flipped = bytes.clone();
            flipped[at] ^= flip;
            let (found, end) = read(&flipped[..]);
            assert!(end.is_err(), "byte {at}");
            assert!(records.starts_with(&found), "byte {at}");
        }
    }
}

#[test]
fn a_cut_anywhere_is_an_error_that_says_so() {
    let records = records(&[0, 5, 30_000, 40_000, 7]);
    let (bytes, _) = write(&header(), &records);
    for length in (0..300).chain((300..bytes.len()).step_by(61)).chain(bytes.len() - 100..bytes.len()) {
        let (found, end) = read(&bytes[..length]);
        let error = end.unwrap_err();
        let said = if length < MAGIC.len() {
            matches!(error, SnapshotError::Foreign)
        } else {
            matches!(error, SnapshotError::Cut { bytes } if bytes == length as u64)
        };
        assert!(said, "cut at {length}: {error}");
        assert!(records.starts_with(&found));
    }
}

#[test]
fn keys_that_are_written_whole_or_share_less_than_they_could_are_found() {
    let record = |shared: usize, key: IndexKey| [&[shared as u8], &key.as_bytes()[shared..], &[1, 7]].concat();
    let block = [record(0, key(1)), record(0, key(2)), record(17, key(3)), record(19, key(4))].concat();
    for number in 0..6 {
        let found = form::find(&block, &key(1), &key(number)).unwrap();
        assert_eq!(found.is_some(), (1..5).contains(&number), "{number}");
    }
    assert!(fuzz::fuzz(&block) >= 4);
}

#[test]
fn a_lie_needs_a_change() {
    assert!(fuzz::as_changes(&[0; fuzz::CHANGES]));
    assert!(fuzz::as_changes(&[&[0; fuzz::CHANGES][..], &[1]].concat()), "there is more to change");
}

#[test]
fn version_1_of_these_tests_is_the_one_that_was_released() {
    let bytes = write_1(&header(), &records(&[0, 5, 30_000, 40_000, 7]));
    assert_eq!(
        blake3::hash(&bytes).to_hex().as_str(),
        "d8bd1f45842fd6e25a69582eed6232adff6c5b6fa53be88b6768b8bae14353e2"
    );
}

#[test]
fn a_changed_byte_in_a_snapshot_of_version_1_is_an_error() {
    let records = records(&[0, 5, 70]);
    let bytes = write_1(&header(), &records);
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        assert!(read(&flipped[..]).1.is_err(), "byte {at}");
        assert!(read(&bytes[..at]).1.is_err(), "cut at {at}");
    }
}

#[test]
fn a_snapshot_has_so_many_views_and_no_more() {
    let key = |view: usize| {
        let mut bytes = [0; IndexKey::LENGTH];
        bytes[..4].copy_from_slice(&(view as u32).to_be_bytes());
        IndexKey::from(bytes)
    };
    let mut writer = SnapshotWriter::new(Vec::new(), &header()).unwrap();
    (0..VIEWS_MAX).for_each(|view| writer.add(&key(view), b"").unwrap());
    writer.add(&key(VIEWS_MAX - 1), b"").unwrap();
    assert!(writer.add(&key(VIEWS_MAX), b"").is_err());

    let mut writer = SnapshotWriter::new(Vec::new(), &header()).unwrap();
    (0..VIEWS_MAX).for_each(|view| writer.add(&key(view), b"").unwrap());
    let (bytes, _) = writer.finish().unwrap();
    assert_eq!(read(&bytes[..]).0.len(), VIEWS_MAX);
    assert_eq!(table::of(&bytes).unwrap().unwrap().statistics().records.len(), VIEWS_MAX);
}

#[test]
fn a_block_that_is_left_out_and_bytes_behind_the_end_are_errors() {
    let (bytes, _) = write(&header(), &records(&[40_000, 40_000, 40_000]));
    let block = BLOCK_HEAD_BYTES + RECORD_HEAD_BYTES_MAX + 40_000;
    let begin = HEADER_BYTES + header().catalog.len() + 4;
    let without = [&bytes[..begin], &bytes[begin + block..]].concat();
    assert!(matches!(read(&without[..]).1, Err(SnapshotError::Hash)));
    let longer = [&bytes[..], b"\0"].concat();
    assert!(matches!(read(&longer[..]).1, Err(SnapshotError::TooLong)));
    assert!(matches!(read(&[&bytes[..], &bytes[..]].concat()[..]).1, Err(SnapshotError::TooLong)));
}

#[test]
fn the_snapshot_of_a_later_version_is_refused_as_such() {
    let (mut bytes, _) = write(&header(), &Vec::new());
    bytes[8] = 3;
    let end = HEADER_BYTES + header().catalog.len();
    let sum = crc32fast::hash(&bytes[..end]).to_le_bytes();
    bytes[end..end + 4].copy_from_slice(&sum);
    assert!(matches!(read(&bytes[..]).1, Err(SnapshotError::Newer)));
}

#[test]
fn a_record_that_no_reader_would_take_is_not_written() {
    let mut writer = SnapshotWriter::new(Vec::new(), &header()).unwrap();
    assert!(writer.add(&key(1), &vec![0; BLOCK_BYTES_MAX - RECORD_HEAD_BYTES_MAX + 1]).is_err());
    writer.add(&key(1), &vec![0; BLOCK_BYTES_MAX - RECORD_HEAD_BYTES_MAX]).unwrap();
    let (bytes, _) = writer.finish().unwrap();
    assert_eq!(read(&bytes[..]).0.len(), 1);
}

#[test]
fn a_file_is_there_whole_or_not_at_all_and_the_newest_is_listed_first() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let records = real_records(&[10, 20]);
    for replay_from in [3, 0x1_0000, 7] {
        let header = SnapshotHeader { replay_from, ..header() };
        let (path, summary) =
            write_file(folder, &header, |writer| records.iter().try_for_each(|(key, record)| writer.add(key, record)))
                .unwrap();
        assert_eq!(path.file_name().unwrap().to_str().unwrap(), file_name(replay_from));
        assert_eq!(summary, SnapshotSize { records: 2, bytes: path.metadata().unwrap().len() });
        assert_eq!(read(std::fs::File::open(path).unwrap()).0, records);
    }
    let damaged = [(key(1), vec![1; 40])];
    let header = || SnapshotHeader { replay_from: 5, ..header() };
    let refused = write_file(folder, &header(), |writer| writer.add(&damaged[0].0, &damaged[0].1));
    assert!(matches!(refused, Err(SnapshotError::Damaged { .. })), "{refused:?}");
    let left = folder.join(format!("{}.tmp", file_name(9)));
    durable::replace(&left, b"half of one").unwrap();
    let failed =
        write_file(folder, &SnapshotHeader { replay_from: 11, ..header() }, |_| Err(io::Error::other("no index")));
    assert!(matches!(failed, Err(SnapshotError::Write { .. })));
    assert_eq!(list(folder).unwrap().into_iter().map(|(from, _)| from).collect::<Vec<_>>(), [0x1_0000, 7, 3]);
    assert_eq!(folder.read_dir().unwrap().count(), 3);
}
