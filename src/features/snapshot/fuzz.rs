//! What must hold whatever bytes a snapshot has. The folder `fuzz/` and `tests/it/fuzz.rs` feed it.

use super::write::head;
use super::{Header, MAX_BLOCK, RECORDS, SnapshotError, SnapshotReader, SnapshotWriter};
use crate::key::IndexKey;

/// Reads `data` as a snapshot, and as the content of a block whose checksum is right, and says how many records it is as
/// such.
///
/// # Panics
///
/// When what was read as whole is written differently.
pub fn fuzz(data: &[u8]) -> usize {
    if let Ok((header, records)) = read(data) {
        assert_eq!(write(&header, &records), data);
    }
    if data.is_empty() || data.len() > MAX_BLOCK {
        return 0;
    }
    let header = Header { replay_from: 1, created_ms: 2, hash_key_id: [3; 8], catalog: "{}".into(), partial: false };
    let empty = write(&header, &[]);
    let (begin, _) = empty.split_at(empty.len() - super::BLOCK_HEAD - super::FOOTER);
    // The footer is missing, so this never passes for whole.
    let block = [begin, &head(RECORDS, data), data].concat();
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

fn read(bytes: &[u8]) -> Result<(Header, Records), SnapshotError> {
    let mut reader = SnapshotReader::new(bytes)?;
    let mut records = Vec::new();
    while let Some(record) = reader.next()? {
        records.push(record);
    }
    Ok((reader.header().clone(), records))
}

fn write(header: &Header, records: &[(IndexKey, Vec<u8>)]) -> Vec<u8> {
    let mut writer = SnapshotWriter::new(Vec::new(), header).expect("memory is writable");
    for (key, record) in records {
        writer.add(key, record).expect("memory is writable");
    }
    writer.finish().expect("memory is writable").0
}
