//! Properties that hold for a snapshot of any bytes. `fuzz/` and `tests/it/fuzz.rs` feed it.

use std::path::PathBuf;

use super::form::{self, BlockHeader, SnapshotFigures};
use super::write::header_bytes;
use super::{
    BLOCK_BYTES_MAX, KIND_FOOTER, KIND_INDEX, KIND_RECORDS, KIND_STATISTICS, SnapshotError, SnapshotHeader,
    SnapshotReader, SnapshotWriter, SortedTable, VERSION, VERSION_1,
};
use crate::key::IndexKey;
use crate::wire;

/// The bytes that [`as_changes`] changes: an index of two blocks, four views, and the footer without its hash.
#[cfg(test)]
pub(super) const CHANGES: usize =
    2 * super::INDEX_ENTRY_BYTES + 4 * super::VIEW_ENTRY_BYTES + super::FOOTER_BYTES - blake3::OUT_LEN;

type FuzzRecords = Vec<(IndexKey, Vec<u8>)>;

/// Reads `data` as a snapshot, as the content of a block of either version with a correct checksum, and as changes of
/// index, statistics and footer. Returns the number of records in the blocks, and one more for a snapshot that is whole
/// after the changes.
///
/// # Panics
///
/// When a complete snapshot that was read is read differently after it was written again, or when stream and table have
/// different records.
pub fn fuzz(data: &[u8]) -> usize {
    if let Ok((header, records)) = check(data) {
        assert_eq!(read(&write(&header, &records)).ok(), Some((header, records)));
    }
    if data.is_empty() || data.len() > BLOCK_BYTES_MAX {
        return 0;
    }
    as_block(data, VERSION_1) + as_block(data, VERSION) + usize::from(as_changes(data))
}

fn header() -> SnapshotHeader {
    SnapshotHeader { replay_from: 1, created_ms: 2, hash_key_id: [3; 8], catalog: "{}".into(), partial: false }
}

/// The number of records in a block with this content, when it is right.
fn as_block(content: &[u8], version: u16) -> usize {
    // The footer is missing, so this is never a complete snapshot.
    let bytes = [&header_bytes(&header(), version), &block(KIND_RECORDS, content)[..]].concat();
    let Ok(mut reader) = SnapshotReader::new(&bytes[..]) else { panic!("the header is right") };
    let mut records = Vec::new();
    let error = loop {
        match reader.next() {
            Ok(Some(record)) => records.push(record),
            Ok(None) => panic!("a snapshot without a footer passes for whole"),
            Err(error) => break error,
        }
    };

    let is_right = matches!(error, SnapshotError::Cut { .. });
    if let SnapshotError::Cut { bytes: read } = error {
        assert_eq!(read, bytes.len() as u64);
        assert_eq!(self::read(&write(&header(), &records)).ok(), Some((header(), records.clone())));
    }
    if version == VERSION {
        // With an index, for any content: reading it in place must notice damage just as well.
        let mut figures = SnapshotFigures::new();
        for (key, record) in &records {
            figures.add(key, record).expect("there are few views");
        }
        let first = content.get(1..).and_then(|key| wire::ByteReader::new(key).array().ok()).unwrap_or_default();
        let index = form::index_entry(&IndexKey::from(first), content.len());
        let count = records.len() as u64;
        let is_table = is_right && figures.is_ascending();
        let whole = whole(&[content], &index, &figures.encode(), |index_at, hash| {
            figures.footer(count, index_at, hash).encode()
        });
        assert_eq!(check(&whole).ok().map(|(_, records)| records), is_table.then(|| records.clone()));
    }
    if is_right { records.len() } else { 0 }
}

/// True when a snapshot stays whole under these changes of index, statistics and footer.
pub(super) fn as_changes(changes: &[u8]) -> bool {
    let key = |number| IndexKey::from([number; IndexKey::LENGTH]);
    let records: FuzzRecords = [3, 5, 7, 9].map(|number| (key(number), vec![number; 3])).to_vec();
    let (mut figures, mut blocks, mut index) = (SnapshotFigures::new(), Vec::new(), Vec::new());
    for pair in records.chunks(2) {
        let (mut content, mut previous) = (Vec::new(), None);
        for (key, record) in pair {
            form::put_record(&mut content, previous, key, record);
            previous = Some(key);
            figures.add(key, record).expect("there are few views");
        }
        index.extend(pair.first().map(|(first, _)| form::index_entry(first, content.len())).unwrap_or_default());
        blocks.push(content);
    }

    let mut changes = changes.iter().copied();
    let mut apply = |mut bytes: Vec<u8>| {
        bytes.iter_mut().zip(&mut changes).for_each(|(byte, change)| *byte ^= change);
        bytes
    };
    let (index, statistics) = (apply(index), apply(figures.encode()));
    let blocks: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
    let bytes = whole(&blocks, &index, &statistics, |index_at, hash| {
        let mut footer = figures.footer(4, index_at, hash).encode();
        let end = footer.split_off(footer.len() - blake3::OUT_LEN);
        [apply(footer), end].concat()
    });

    // The blocks are right, so with any index no record is found under another key.
    if let Ok(Some(table)) = SortedTable::of(&bytes[..], PathBuf::new()) {
        for number in 0..12 {
            if let Ok(Some(found)) = table.get(&key(number)) {
                assert!(records.contains(&(key(number), found)));
            }
        }
        let mut scan = table.scan(b"");
        while let Ok(Some((key, record))) = scan.next() {
            assert!(records.contains(&(key, record.to_vec())));
        }
    }
    check(&bytes).is_ok_and(|(_, found)| {
        assert_eq!(found, records);
        true
    })
}

/// Reads a snapshot as a stream and in place, and compares the records.
fn check(bytes: &[u8]) -> Result<(SnapshotHeader, FuzzRecords), SnapshotError> {
    let stream = read(bytes);
    let table = SortedTable::of(bytes, PathBuf::new());
    match (&stream, table) {
        (Ok((header, records)), Ok(Some(table))) => {
            assert_eq!(table.header(), header);
            assert_eq!(table.records(), records.len() as u64);
            for (key, record) in records {
                assert_eq!(table.get(key).ok().flatten().as_ref(), Some(record));
            }
            assert_eq!(scanned(&table).ok().as_ref(), Some(records));
        }
        (Ok(_), Err(error)) => panic!("a whole snapshot is not opened: {error}"),
        (Err(_), Ok(Some(table))) => {
            // Every block is read once, regardless of its content.
            for key in table.first_keys() {
                let _ = table.get(key);
            }
            let _ = scanned(&table);
        }
        (Ok(_), Ok(None)) | (Err(_), _) => {}
    }
    stream
}

fn scanned(table: &SortedTable<&[u8]>) -> Result<FuzzRecords, SnapshotError> {
    let mut scan = table.scan(b"");
    let mut records = Vec::new();
    while let Some((key, record)) = scan.next()? {
        records.push((key, record.to_vec()));
    }
    Ok(records)
}

/// A snapshot of these parts, with correct checksums. `footer` makes the footer of the offset of the index, and the
/// hash.
fn whole(
    blocks: &[&[u8]],
    index: &[u8],
    statistics: &[u8],
    footer: impl FnOnce(u64, blake3::Hash) -> Vec<u8>,
) -> Vec<u8> {
    let mut bytes = header_bytes(&header(), VERSION);
    for content in blocks {
        bytes.extend(block(KIND_RECORDS, content));
    }
    let index_at = bytes.len() as u64;
    bytes.extend(block(KIND_INDEX, index));
    bytes.extend(block(KIND_STATISTICS, statistics));
    let footer = footer(index_at, blake3::hash(&bytes));
    bytes.extend(block(KIND_FOOTER, &footer));
    bytes
}

fn block(kind: u8, content: &[u8]) -> Vec<u8> {
    [&BlockHeader::encode(kind, content)[..], content].concat()
}

fn read(bytes: &[u8]) -> Result<(SnapshotHeader, FuzzRecords), SnapshotError> {
    let mut reader = SnapshotReader::new(bytes)?;
    let mut records = Vec::new();
    while let Some(record) = reader.next()? {
        records.push(record);
    }
    Ok((reader.header().clone(), records))
}

fn write(header: &SnapshotHeader, records: &[(IndexKey, Vec<u8>)]) -> Vec<u8> {
    let mut writer = SnapshotWriter::new(Vec::new(), header).expect("memory is writable");
    for (key, record) in records {
        writer.add(key, record).expect("memory is writable");
    }
    writer.finish().expect("memory is writable").0
}
