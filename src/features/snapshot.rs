//! Snapshots: all records of the index at some time, in one file that describes itself and proves that it is complete.
//! A backup is the same bytes as a stream.
//!
//! A header, blocks of records, and a footer with the number of records and the BLAKE3 hash of everything before it.
//! All integers are little-endian. Header and blocks have checksums of their own, so that their content is
//! checked before it is used, long before the footer comes.

mod file;
pub mod fuzz;
mod read;
#[cfg(test)]
mod tests;
mod write;

use std::io;
use std::path::PathBuf;

use super::key::IndexKey;
use super::record::Damaged;
pub use file::{file_name, list, verify_file, write_file};
pub use read::SnapshotReader;
pub use write::SnapshotWriter;

const MAGIC: &[u8; 8] = b"LEDGESNP";
const VERSION: u16 = 1;

/// The bytes of the header before the catalog: magic, version, cipher, part, key id, two numbers, the hash key's id,
/// the length of the catalog.
const HEADER_BYTES: usize = 8 + 2 + 2 + 4 + 8 + 8 + 8 + 4;
/// The longest catalog, in bytes.
const CATALOG_BYTES_MAX: usize = 64 << 20;

/// The bytes of a block before its content: its kind, three zeros, the length of its content, a checksum of both.
const BLOCK_HEAD_BYTES: usize = 12;
/// The size from which a block is closed, in bytes.
const BLOCK_BYTES: usize = 64 << 10;
/// The longest content of a block, in bytes.
const BLOCK_BYTES_MAX: usize = 1 << 20;
/// The bytes before a record: its key, and its length.
const RECORD_HEAD_BYTES: usize = IndexKey::LENGTH + 4;
/// The bytes of the footer: the number of records, and a hash.
const FOOTER_BYTES: usize = 8 + blake3::OUT_LEN;

const KIND_RECORDS: u8 = 1;
const KIND_FOOTER: u8 = 2;

/// The header of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotHeader {
    /// The sequence number from which the journal has to be replayed. Records may already have later changes in them.
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
pub struct Summary {
    pub records: u64,
    pub bytes: u64,
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
    Damaged { offset: u64, reason: Damaged },
    #[error("the snapshot is damaged: its hash does not match")]
    Hash,
    #[error("the snapshot is followed by bytes that do not belong to it")]
    TooLong,
    /// The file read back differs from what was written.
    #[error("the snapshot was not written correctly: {found} records were read back, and {written} were written")]
    ReadBack { found: u64, written: u64 },
}

impl SnapshotError {
    /// True when the file itself is damaged, so that reading it again would fail, too.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Foreign | Self::Cut { .. } | Self::Damaged { .. } | Self::Hash | Self::TooLong => true,
            Self::Read(_) | Self::Write { .. } | Self::Newer | Self::ReadBack { .. } => false,
        }
    }
}

/// The checksum of a block, which covers its kind, too.
fn checksum(kind: [u8; 4], content: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&kind);
    hasher.update(content);
    hasher.finalize()
}
