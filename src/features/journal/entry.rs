//! One entry of the journal.

use bytes::Bytes;

use crate::key::IndexKey;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEntry {
    /// The sequence number, unique for ever.
    pub seq: u64,
    pub key: IndexKey,
    pub change: JournalChange,
    /// The latest event time that the box's clock allowed when the entry was written, in microseconds since the Unix
    /// epoch. `i64::MAX` where the clock was not set, and in entries of earlier versions.
    pub latest_us: i64,
}

/// The change of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalChange {
    /// A row is merged into it, as [`crate::record::FeatureRow::encode`] wrote it.
    Put(Bytes),
    /// Likewise, encrypted under the key of its entity, which has this number.
    PutSealed(u32, Bytes),
    Delete,
}

impl JournalChange {
    /// The length of its row.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Put(row) | Self::PutSealed(_, row) => row.len(),
            Self::Delete => 0,
        }
    }
}
