//! Properties that hold for a segment of any bytes. `fuzz/` and `tests/it/fuzz.rs` feed it.

use std::io::Cursor;
use std::path::PathBuf;

use bytes::Bytes;

use super::chain::{JournalSegment, SegmentEnd, SegmentReader, SegmentStep};
use super::format::{
    GROUP_BYTES_MAX, HEADER_BYTES, JournalGroupHeader, PreviousSegment, SegmentHeader, encode_group, group_length,
};
use super::scan::read_header;
use super::{JournalChange, JournalEntry};
use crate::key::IndexKey;

const MARK: u64 = 0x6d61_726b_6d61_726b;

/// Reads `data` as a segment, and as the content of a group with a correct checksum. Returns the number of entries of
/// the latter.
///
/// # Panics
///
/// When reading does not end, returns an entry twice or out of order, reports impossible damage, or when a group that
/// was read is written differently.
pub fn fuzz(data: &[u8]) -> usize {
    let stated = PreviousSegment { first_seq: 1, length: data.len() as u64, next_seq: 9 };
    for end in [SegmentEnd::Last, SegmentEnd::Stated(stated), SegmentEnd::Unknown { next_seq: 9, missing: None }] {
        walk(data, end);
    }
    if data.len() > GROUP_BYTES_MAX {
        return 0;
    }
    let mut segment = SegmentHeader::new(MARK, 1, None).encode().to_vec();
    segment.extend_from_slice(&JournalGroupHeader::of(MARK, data).encode());
    segment.extend_from_slice(data);
    let Some(entries) = walk(&segment, SegmentEnd::Last) else { return 0 };
    let changes: Vec<(IndexKey, JournalChange)> =
        entries.iter().map(|entry| (entry.key, entry.change.clone())).collect();
    if group_length(&changes).is_some() {
        let mut again = Vec::new();
        encode_group(&mut again, MARK, 1, &changes, entries.first().map_or(i64::MAX, |entry| entry.latest_us));
        assert_eq!(again, segment.get(HEADER_BYTES..).unwrap_or_default());
    }
    entries.len()
}

/// All entries of the segment; `None` when a part of it is damaged or torn.
fn walk(bytes: &[u8], end: SegmentEnd) -> Option<Vec<JournalEntry>> {
    let length = bytes.len() as u64;
    let header = read_header(bytes, length).expect("memory is readable");
    let first_seq = header.map_or(1, |header| header.first_seq);
    let segment = JournalSegment { first_seq, path: PathBuf::from("fuzz"), length, header, end };
    let mut reader =
        SegmentReader::over(&segment, Cursor::new(Bytes::copy_from_slice(bytes))).expect("memory is readable");

    let mut entries: Vec<JournalEntry> = Vec::new();
    let (mut steps, mut whole) = (0, true);

    while let Some(step) = reader.step().expect("memory is readable") {
        steps += 1;
        assert!(steps <= 3 + bytes.len(), "reading does not end");
        assert!(reader.position().0 <= length.max(HEADER_BYTES as u64));
        match step {
            SegmentStep::Entries(found) => {
                for entry in found {
                    assert!(entry.seq >= first_seq);
                    assert!(entries.last().is_none_or(|last| last.seq < entry.seq), "entries are out of order");
                    entries.push(entry);
                }
            }
            SegmentStep::Damage(damage) => {
                whole = false;
                assert!(damage.offset <= length.max(HEADER_BYTES as u64), "{damage}");
            }
            SegmentStep::Torn(count) => {
                whole = false;
                assert!(count <= length);
            }
        }
    }

    whole.then_some(entries)
}
