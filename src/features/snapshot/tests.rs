#![expect(clippy::cast_possible_truncation, reason = "the numbers are small")]

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

type Records = Vec<(IndexKey, Vec<u8>)>;

fn records(sizes: &[usize]) -> Records {
    sizes.iter().enumerate().map(|(n, size)| (key(n as u32), vec![n as u8; *size])).collect()
}

fn write(header: &SnapshotHeader, records: &Records) -> (Vec<u8>, Summary) {
    let mut writer = SnapshotWriter::new(Vec::new(), header).unwrap();
    for (key, record) in records {
        writer.add(key, record).unwrap();
    }
    writer.finish().unwrap()
}

/// The records that were read, and the result.
fn read(stream: impl Read) -> (Records, Result<SnapshotHeader, SnapshotError>) {
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

/// A stream in pieces, as from a network.
struct Pieces<'b>(&'b [u8], usize);

impl Read for Pieces<'_> {
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
        prop_assert_eq!(summary, Summary { records: records.len() as u64, bytes: bytes.len() as u64 });
        let (found, end) = read(Pieces(&bytes, piece));
        prop_assert_eq!(end.unwrap(), header);
        prop_assert_eq!(found, records);
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
fn a_block_that_is_left_out_and_bytes_behind_the_end_are_errors() {
    let (bytes, _) = write(&header(), &records(&[40_000, 40_000, 40_000]));
    let block = BLOCK_HEAD_BYTES + RECORD_HEAD_BYTES + 40_000;
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
    bytes[8] = 2;
    let end = HEADER_BYTES + header().catalog.len();
    let sum = crc32fast::hash(&bytes[..end]).to_le_bytes();
    bytes[end..end + 4].copy_from_slice(&sum);
    assert!(matches!(read(&bytes[..]).1, Err(SnapshotError::Newer)));
}

#[test]
fn a_record_that_no_reader_would_take_is_not_written() {
    let mut writer = SnapshotWriter::new(Vec::new(), &header()).unwrap();
    assert!(writer.add(&key(1), &vec![0; BLOCK_BYTES_MAX - RECORD_HEAD_BYTES + 1]).is_err());
    writer.add(&key(1), &vec![0; BLOCK_BYTES_MAX - RECORD_HEAD_BYTES]).unwrap();
    let (bytes, _) = writer.finish().unwrap();
    assert_eq!(read(&bytes[..]).0.len(), 1);
}

#[test]
fn a_file_is_there_whole_or_not_at_all_and_the_newest_is_listed_first() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let records = records(&[10, 20]);
    for replay_from in [3, 0x1_0000, 7] {
        let header = SnapshotHeader { replay_from, ..header() };
        let (path, summary) =
            write_file(folder, &header, |writer| records.iter().try_for_each(|(key, record)| writer.add(key, record)))
                .unwrap();
        assert_eq!(path.file_name().unwrap().to_str().unwrap(), file_name(replay_from));
        assert_eq!(summary, Summary { records: 2, bytes: path.metadata().unwrap().len() });
        assert_eq!(read(std::fs::File::open(path).unwrap()).0, records);
    }
    let left = folder.join(format!("{}.tmp", file_name(9)));
    durable::replace(&left, b"half of one").unwrap();
    let failed =
        write_file(folder, &SnapshotHeader { replay_from: 11, ..header() }, |_| Err(io::Error::other("no index")));
    assert!(matches!(failed, Err(SnapshotError::Write { .. })));
    assert_eq!(list(folder).unwrap().into_iter().map(|(from, _)| from).collect::<Vec<_>>(), [0x1_0000, 7, 3]);
    assert_eq!(folder.read_dir().unwrap().count(), 3);
}
