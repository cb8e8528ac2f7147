//! Snapshots: all records of the index at some time, in one file that explains itself and proves that it is whole. A
//! backup is the same bytes as a stream.
//!
//! A header, blocks of records, and a footer with the number of records and the BLAKE3 hash of everything before it. All
//! integers are little-endian. Header and blocks have checksums of their own, so that nothing is believed that is not
//! checked, long before the footer comes.

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

/// What the header has before the catalog: magic, version, cipher, part, key id, two numbers, the hash key's id, the
/// length of the catalog.
const HEADER: usize = 8 + 2 + 2 + 4 + 8 + 8 + 8 + 4;
/// The longest catalog.
const MAX_CATALOG: usize = 64 << 20;

/// What a block has before its content: its kind, three bytes of nothing, the length of its content, a checksum of both.
const BLOCK_HEAD: usize = 12;
/// A block is closed when it has as much as this.
const BLOCK: usize = 64 << 10;
/// The longest content of a block.
const MAX_BLOCK: usize = 1 << 20;
/// What a record has before its bytes: its key, and its length.
const RECORD_HEAD: usize = IndexKey::LENGTH + 4;
/// The content of the last block: the number of records, and a hash.
const FOOTER: usize = 8 + blake3::OUT_LEN;

const RECORDS: u8 = 1;
const LAST: u8 = 2;

/// What a snapshot says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The journal is to be replayed from this sequence number on. Records may have later changes in them already.
    pub replay_from: u64,
    /// When it was begun, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Which hash key the index keys were made with.
    pub hash_key_id: [u8; 8],
    /// Whether it has the rows of one feature view alone: nothing to restore a store from.
    pub partial: bool,
    /// What was declared: the views with the numbers of their fields, as JSON.
    pub catalog: String,
}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    pub records: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// Why a snapshot cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("the snapshot cannot be read")]
    Read(#[source] io::Error),
    #[error("the snapshot {} cannot be written", file.display())]
    Write { file: PathBuf, source: io::Error },
    #[error("it is no snapshot of a feature store")]
    Foreign,
    /// It has a form that this version cannot read.
    #[error("the snapshot was written by a later version of Ledge")]
    Newer,
    #[error("the snapshot is cut off after {bytes} bytes")]
    Cut {
        /// How many bytes there are.
        bytes: u64,
    },
    #[error("the snapshot is damaged near byte {offset}: {reason}")]
    Damaged { offset: u64, reason: Damaged },
    #[error("the snapshot is damaged: its hash does not match")]
    Hash,
    #[error("the snapshot is followed by bytes that do not belong to it")]
    TooLong,
    /// What was read back is not what was written.
    #[error("the snapshot that was written has {found} records instead of {written}")]
    ReadBack {
        found: u64,
        /// How many it should have.
        written: u64,
    },
}

impl SnapshotError {
    /// Whether the file is bad, and will be bad when it is read again.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Foreign | Self::Cut { .. } | Self::Damaged { .. } | Self::Hash | Self::TooLong => true,
            Self::Read(_) | Self::Write { .. } | Self::Newer | Self::ReadBack { .. } => false,
        }
    }
}

/// The checksum of a block covers what stands before its length, too.
fn checksum(kind: [u8; 4], content: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&kind);
    hasher.update(content);
    hasher.finalize()
}
