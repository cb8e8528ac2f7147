//! Properties that hold for a snapshot of any bytes. `fuzz/` and `tests/it/fuzz.rs` feed it.

use super::write::head;
use super::{BLOCK_BYTES_MAX, KIND_RECORDS, SnapshotError, SnapshotHeader, SnapshotReader, SnapshotWriter};
use crate::key::IndexKey;

/// Reads `data` as a snapshot, and as the content of a block with a correct checksum. Returns the number of records of
/// the latter.
///
/// # Panics
///
/// When a complete snapshot that was read is written differently.
pub fn fuzz(data: &[u8]) -> usize {
    if let Ok((header, records)) = read(data) {
        assert_eq!(write(&header, &records), data);
    }

    if data.is_empty() || data.len() > BLOCK_BYTES_MAX {
        return 0;
    }

    let header =
        SnapshotHeader { replay_from: 1, created_ms: 2, hash_key_id: [3; 8], catalog: "{}".into(), partial: false };
    let empty = write(&header, &[]);
    let (begin, _) = empty.split_at(empty.len() - super::BLOCK_HEAD_BYTES - super::FOOTER_BYTES);
    // The footer is missing, so this is never a complete snapshot.
    let block = [begin, &head(KIND_RECORDS, data), data].concat();
    let Ok(mut reader) = SnapshotReader::new(&block[..]) else { panic!("the header is right") };

    let mut records = Vec::new();
    let error = loop {
        match reader.next() {
            Ok(Some(record)) => records.push(record),
            Ok(None) => panic!("a snapshot without a footer passes for whole"),
            Err(error) => break error,
        }
    };

    match error {
        SnapshotError::Cut { bytes } => {
            assert_eq!(bytes, block.len() as u64);
            assert_eq!(read(&write(&header, &records)).ok(), Some((header, records.clone())));
            records.len()
        }
        _ => 0,
    }
}

type Records = Vec<(IndexKey, Vec<u8>)>;

fn read(bytes: &[u8]) -> Result<(SnapshotHeader, Records), SnapshotError> {
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
