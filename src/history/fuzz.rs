//! Properties that hold for any input; fed by `tests/it/fuzz.rs` and `fuzz/`.

use crate::query::HistoryQuery;
use crate::record::{Record, StoredRecord};

/// Feeds arbitrary bytes to the reader of records: a record that was read is written the same. True when it is one.
///
/// # Panics
/// When that does not hold, which is a bug.
pub fn fuzz_history_record(data: &[u8]) -> bool {
    let StoredRecord::Whole(record) = Record::decode(data) else { return false };
    let mut written = Vec::new();
    record.encode(&mut written);
    assert_eq!(written, data);
    true
}

/// Feeds arbitrary text to the reader of queries. True when it is one.
pub fn fuzz_history_query(data: &[u8]) -> bool {
    std::str::from_utf8(data).is_ok_and(|text| HistoryQuery::parse(text).is_ok())
}

/// The bytes of a record.
pub fn record_bytes(slot: u32, covered_s: u16, figures: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Record { slot, covered_s, figures: figures.into() }.encode(&mut bytes);
    bytes
}
