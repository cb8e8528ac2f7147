//! The log on the disk: records appended, made durable, signed. One thread owns it.
//!
//! A commit writes the hashes, then the records. Records are durable once their fsync is done, and a head is signed
//! over durable records only. So at any moment the disk has the records of the last head, perhaps with more after them.
//! A start keeps whole records after the head and cuts a torn one. If anything else does not fit the head, the log is
//! left as it is, and another one begins.

mod error;
mod files;
mod frontier;
mod hashes;
mod inspect;
mod open;
mod prune;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::path::PathBuf;

use ledge_base::durable;
use ledge_service::audit_event::PreviousLog;
use tlog_tiles::{Hash, record_hash};

use self::frontier::{AddedTreeHashes, TreeFrontier};
use super::key::{AuditKey, SignedCheckpoint};
use super::layout::{CHECKPOINT, TILE_WIDTH, push_entry};
use super::local;
use super::record::RECORD_BYTES_MAX;
use super::status::LocalLogFigures;
pub use error::AuditLogError;
pub(crate) use inspect::unverified_previous;

/// A log that is appended to.
pub struct AuditLog {
    audit: PathBuf,
    folder: PathBuf,
    generation: u32,
    origin: String,
    checkpoint: Option<SignedCheckpoint>,
    /// The tree of the durable records, and the number of bytes of the records in its last tile, if that is partial.
    durable: TreeFrontier,
    tail: u64,
    /// The tree of all appended records, and those that are not durable yet: records by tile, and hashes by level.
    edge: TreeFrontier,
    bundles: Vec<(u64, Vec<u8>)>,
    grown: AddedTreeHashes,
    /// Set after a failed write, until its remains are cut off.
    is_suspect: bool,
    first: u64,
    bytes: u64,
    /// Keeps other processes from appending. The lock of a process that died is released.
    lock: File,
}

/// A log that was opened.
pub struct OpenedAuditLog {
    /// The log that is appended to from now on.
    pub log: AuditLog,
    /// Cause of a new log, with the log before it; `None` when the last one continues.
    pub begun: Option<LogBeginning>,
}

/// The reason why a log begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogBeginning {
    /// `new`, `damaged`, `forked`, `renamed` or `restored`.
    pub cause: &'static str,
    /// The text for the log of the daemon, where something is wrong.
    pub reason: Option<String>,
    /// The log before it, as far as it is known.
    pub previous: Option<PreviousLog>,
}

impl AuditLog {
    /// The number of this log among those of this box, from 1.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The first line of its checkpoints.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The number of records, including those that are not durable yet: the sequence number of the next one.
    pub fn size(&self) -> u64 {
        self.edge.size()
    }

    /// The number of durable records.
    pub fn durable_size(&self) -> u64 {
        self.durable.size()
    }

    /// The first record that is still on this box.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The figures of the log on the disk.
    pub fn figures(&self) -> LocalLogFigures {
        LocalLogFigures { size: self.durable_size(), first: self.first, bytes: self.bytes }
    }

    /// The last signed head.
    pub fn checkpoint(&self) -> Option<&SignedCheckpoint> {
        self.checkpoint.as_ref()
    }

    /// The size of all logs on the disk, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends a record in memory, and returns the hash of its leaf.
    pub fn append(&mut self, record: &[u8]) -> Result<Hash, AuditLogError> {
        let length = record.len();
        if length > RECORD_BYTES_MAX {
            return Err(AuditLogError::TooLong { length });
        }
        let tile = self.edge.size() / TILE_WIDTH;
        if self.bundles.last().is_none_or(|(last, _)| *last != tile) {
            self.bundles.push((tile, Vec::new()));
        }
        let pushed = self.bundles.last_mut().and_then(|(_, bundle)| push_entry(bundle, record));
        pushed.ok_or(AuditLogError::TooLong { length })?;
        let leaf = record_hash(record);
        self.edge.push(leaf, &mut self.grown);
        Ok(leaf)
    }

    /// Makes the appended records durable. If that fails, the log is as it was after the last commit, and the records
    /// appended since are dropped.
    pub fn commit(&mut self) -> Result<(), AuditLogError> {
        let written = self.restore().and_then(|()| self.write());
        let (bundles, grown) = (std::mem::take(&mut self.bundles), std::mem::take(&mut self.grown));
        if written.is_ok() {
            let hashes: usize = grown.iter().map(Vec::len).sum();
            let records: usize = bundles.iter().map(|(_, bundle)| bundle.len()).sum();
            self.bytes += (hashes * 32 + records) as u64;
            if let Some((tile, bundle)) = bundles.last() {
                let before = if *tile == self.durable.size() / TILE_WIDTH { self.tail } else { 0 };
                let is_whole = self.edge.size().is_multiple_of(TILE_WIDTH);
                self.tail = if is_whole { 0 } else { before + bundle.len() as u64 };
            }
            self.durable = self.edge.clone();
        } else {
            self.edge = self.durable.clone();
            self.is_suspect = true;
            // If this fails, the next commit tries again before it writes.
            let _ = self.restore();
        }
        written
    }

    fn write(&self) -> Result<(), AuditLogError> {
        files::append_hashes(&self.folder, self.durable.size(), &self.grown)?;
        for (tile, bundle) in &self.bundles {
            let offset = if *tile == self.durable.size() / TILE_WIDTH { self.tail } else { 0 };
            files::append_entries(&self.folder, *tile, bundle, offset)?;
        }
        Ok(())
    }

    /// Cuts off the remains of a failed write.
    fn restore(&mut self) -> Result<(), AuditLogError> {
        if self.is_suspect {
            files::restore(&self.folder, &self.durable, self.tail)?;
            self.is_suspect = false;
        }
        Ok(())
    }

    /// Signs the head of the durable records and saves it. When this returns, it survives a power cut.
    pub fn sign(&mut self, key: &AuditKey) -> Result<&SignedCheckpoint, AuditLogError> {
        let signed = match self.checkpoint.take() {
            Some(head) if head.size >= self.durable.size() => head,
            last => {
                let length = last.as_ref().map_or(0, |head| head.note.len() as u64);
                // It stays the last one if the next one cannot be saved.
                self.checkpoint = last;
                let next = key.sign(&self.origin, self.durable.size(), self.durable.root())?;
                let path = self.folder.join(CHECKPOINT);
                durable::replace(&path, &next.note).map_err(AuditLogError::at(&path))?;
                self.bytes = self.bytes.saturating_sub(length) + next.note.len() as u64;
                next
            }
        };
        Ok(self.checkpoint.insert(signed))
    }

    /// Removes whole tiles of records of the logs before this one; returns the number of bytes freed.
    pub fn prune_older(&mut self) -> Result<u64, AuditLogError> {
        let freed = prune::before(&self.audit, self.generation)?;
        self.bytes = self.bytes.saturating_sub(freed);
        Ok(freed)
    }

    /// The logs before this one.
    pub fn older(&self) -> Result<Vec<u32>, AuditLogError> {
        let mut found = local::generations(&self.audit).map_err(AuditLogError::at(&self.audit))?;
        found.retain(|generation| *generation < self.generation);
        Ok(found)
    }

    /// The record below which [`Self::prune`] can remove, when it is asked to remove those below `below`.
    pub fn prunable(&self, below: u64) -> u64 {
        // The next start reads the tile in which the head ends.
        let head = self.checkpoint.as_ref().map_or(0, |head| head.size);
        (below.min(head.saturating_sub(1)) / TILE_WIDTH * TILE_WIDTH).max(self.first)
    }

    /// Removes whole tiles of records below `below`; returns the number of bytes freed. The hashes that proofs need
    /// stay.
    pub fn prune(&mut self, below: u64) -> Result<u64, AuditLogError> {
        let below = self.prunable(below) / TILE_WIDTH;
        let mut sum = 0;
        while self.first / TILE_WIDTH < below {
            let freed = prune::tile(&self.folder, self.first / TILE_WIDTH)?;
            self.first += TILE_WIDTH;
            self.bytes = self.bytes.saturating_sub(freed);
            sum += freed;
        }
        Ok(sum)
    }
}
