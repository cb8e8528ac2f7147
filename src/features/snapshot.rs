//! Snapshots: all records of the index at some time, in one file that describes itself and proves that it is complete.
//! A backup is the same bytes as a stream.
//!
//! A header, blocks, and a footer with the BLAKE3 hash of everything before it. All integers are little-endian. The
//! header and each block have a checksum, so that their content is checked before use, long before the footer is read.
//! The blocks, in this order:
//! * records. Each begins with the number of bytes that its key shares with the key before it in the block, the rest of
//!   the key, and its length; the first one of a block has its whole key, so that a block can be read on its own.
//! * the index: the first key and the length of each block of records. Only where all keys were ascending.
//! * the statistics: the number of records of each view.
//! * the footer: the number of records, the place of the index, the newest event time and the earliest expiry, the
//!   hash.
//!
//! With an index the file is a table: [`SortedTable`] finds a record with one read. Version 1 had blocks of records
//! with whole keys, and a footer of the number of records and the hash.

mod file;
mod form;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod read;
mod scan;
mod table;
#[cfg(test)]
mod tests;
mod write;

use std::io;
use std::path::PathBuf;

use super::key::IndexKey;
use super::record::DamagedBytes;
use super::view::ViewId;
pub use file::{
    MisplacedSnapshot, SnapshotFile, file_name, list, misplaced, remove_unfinished, verify_file, write_file,
};
pub use read::SnapshotReader;
pub use scan::SortedTableScan;
pub use table::SortedTable;
pub use write::SnapshotWriter;

const MAGIC: &[u8; 8] = b"LEDGESNP";
const VERSION: u16 = 2;
/// The version without index and statistics, which is read and no longer written.
const VERSION_1: u16 = 1;

/// The bytes of the header before the catalog: magic, version, cipher, part, key id, two numbers, the hash key's id,
/// the length of the catalog.
const HEADER_BYTES: usize = 8 + 2 + 2 + 4 + 8 + 8 + 8 + 4;
/// The longest catalog, in bytes.
const CATALOG_BYTES_MAX: usize = 64 << 20;

/// The bytes of a block before its content: its kind, three zeros, the length of its content, a checksum of both.
const BLOCK_HEAD_BYTES: usize = 12;
/// The size beyond which a block of records takes no further one, in bytes. A read of one record reads its block.
const BLOCK_BYTES: usize = 2 << 10;
/// The longest content of a block, in bytes.
const BLOCK_BYTES_MAX: usize = 1 << 20;
/// The most bytes before a record: the number of shared bytes, its key, and its length.
const RECORD_HEAD_BYTES_MAX: usize = 1 + IndexKey::LENGTH + 3;
/// The bytes of a block of records in the index: its first key, and the length of its content.
const INDEX_ENTRY_BYTES: usize = IndexKey::LENGTH + 4;
/// The longest content of a block of the index, in bytes.
const INDEX_BLOCK_BYTES: usize = 2048 * INDEX_ENTRY_BYTES;
/// The bytes of a view in the statistics: its number, and its number of records.
const VIEW_ENTRY_BYTES: usize = 4 + 8;
/// The most views with records: the statistics are one block.
const VIEWS_MAX: usize = BLOCK_BYTES_MAX / VIEW_ENTRY_BYTES;
/// The bytes of the footer: number of records, offset of the index, two times, and a hash.
const FOOTER_BYTES: usize = 8 + 8 + 8 + 8 + blake3::OUT_LEN;
/// The bytes of the footer of version 1: the number of records, and a hash.
const FOOTER_BYTES_1: usize = 8 + blake3::OUT_LEN;

const KIND_RECORDS: u8 = 1;
const KIND_FOOTER: u8 = 2;
const KIND_INDEX: u8 = 3;
const KIND_STATISTICS: u8 = 4;

/// The header of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotHeader {
    /// The sequence number from which the journal has to be replayed. In a backup, and in a snapshot of version 1,
    /// records may already have later changes in them.
    pub replay_from: u64,
    /// The time when it was begun, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// The id of the hash key of its index keys.
    pub hash_key_id: [u8; 8],
    /// True when it has the rows of one feature view only, and cannot be restored.
    pub partial: bool,
    /// The catalog: the views with the numbers of their fields, as JSON.
    pub catalog: String,
}

/// The size of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotSize {
    pub records: u64,
    pub bytes: u64,
}

/// Figures over the records of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotStatistics {
    /// The number of records of each view that has any, ascending by view.
    pub records: Vec<(ViewId, u64)>,
    /// The newest event time of any record, in microseconds since the Unix epoch; `i64::MIN` without any.
    pub newest_us: i64,
    /// The earliest time from which a record may be removed; `i64::MAX` is never.
    pub earliest_purge_us: i64,
}

/// Reasons why a snapshot cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("the snapshot cannot be read")]
    Read(#[source] io::Error),
    #[error("the snapshot {} cannot be written", file.display())]
    Write { file: PathBuf, source: io::Error },
    #[error("this is not a snapshot or backup of a feature store")]
    Foreign,
    /// Its form is of a later version.
    #[error("the snapshot was written by a later version of Ledge: use that version or a newer one")]
    Newer,
    #[error("the snapshot is cut off after {bytes} bytes")]
    Cut { bytes: u64 },
    #[error("the snapshot is damaged near byte {offset}: {reason}")]
    Damaged { offset: u64, reason: DamagedBytes },
    #[error("the snapshot is damaged: its hash does not match")]
    Hash,
    #[error("the snapshot is followed by bytes that do not belong to it")]
    TooLong,
    /// Another snapshot was put in its place.
    #[error("this is not the snapshot that its name says, but the one of entry {number}")]
    Misplaced { number: u64 },
    /// The file as read back differs from the written content.
    #[error("the snapshot was not written correctly: {found} records were read back, and {written} were written")]
    ReadBack { found: u64, written: u64 },
}

impl SnapshotError {
    /// True when the file itself is damaged, so that reading it again would fail, too.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Foreign
            | Self::Cut { .. }
            | Self::Damaged { .. }
            | Self::Hash
            | Self::TooLong
            | Self::Misplaced { .. } => true,
            Self::Read(_) | Self::Write { .. } | Self::Newer | Self::ReadBack { .. } => false,
        }
    }
}
