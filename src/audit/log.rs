//! The log on the disk: records appended, made durable, signed. One thread owns it.
//!
//! A commit writes the hashes, then the records, and its records count once their fsync is done; a head is signed of what
//! counts. So at any moment the disk has what the last head needs, perhaps with more behind it. A start keeps whole records
//! behind the head and cuts a torn one; whatever else does not fit the head means that the log is left as it is, for good,
//! and another one begins.

mod files;
mod frontier;
mod hashes;
mod inspect;
mod open;
mod prune;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_service::audit_event::PreviousLog;
use tlog_tiles::{Hash, record_hash};

use self::frontier::{Frontier, Grown};
use super::key::{AuditKey, CheckpointError, SignedCheckpoint};
use super::layout::{CHECKPOINT, WIDTH, push_entry};
use super::local;
use super::record::LONGEST;
use super::status::LogFigures;

/// Why the log cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("the audit log: {path}: {error}", path = path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("the audit log in {path} is in use by another process", path = path.display())]
    Locked { path: PathBuf },
    /// A record is longer than an entry bundle can hold.
    #[error("a record of {length} bytes is longer than the {max} that a log takes", max = LONGEST)]
    TooLong { length: usize },
    #[error("the audit log: {0}")]
    Checkpoint(#[from] CheckpointError),
}

impl LogError {
    fn at(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        move |error| Self::File { path: path.to_owned(), error }
    }

    /// Whether there is no room on the disk.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::File { error, .. } if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }
}

/// A log that is appended to.
pub struct Log {
    audit: PathBuf,
    folder: PathBuf,
    generation: u32,
    origin: String,
    checkpoint: Option<SignedCheckpoint>,
    /// The tree of what is durable, and how many bytes the records of its last tile take, if it is partial.
    durable: Frontier,
    tail: u64,
    /// The tree of what was appended, and what that is: records by their tile, and hashes by their level.
    edge: Frontier,
    bundles: Vec<(u64, Vec<u8>)>,
    grown: Grown,
    /// Whether a write failed, and what it left could not be cut off yet.
    is_suspect: bool,
    first: u64,
    bytes: u64,
    /// Nobody else appends as long as it is held; the lock of a process that died is gone with it.
    lock: File,
}

/// What opening a log brought.
pub struct Opened {
    /// The log that is appended to from now on.
    pub log: Log,
    /// Why it is another one than before, and what the one before had; `None` when the last one goes on.
    pub begun: Option<Begun>,
}

/// Why a log begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// `new`, `damaged`, `forked` or `renamed`.
    pub cause: &'static str,
    /// In words for the log, where something is wrong.
    pub reason: Option<String>,
    /// What is known of the one before.
    pub previous: Option<PreviousLog>,
}

impl Log {
    /// Which of the logs of this box it is, from 1.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The first line of its checkpoints.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// How many records it has, those that are not durable yet among them: the sequence number of the next.
    pub fn size(&self) -> u64 {
        self.edge.size()
    }

    /// How many records are durable.
    pub fn durable_size(&self) -> u64 {
        self.durable.size()
    }

    /// The first record that is still on this box.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// What there is of it on the disk.
    pub fn figures(&self) -> LogFigures {
        LogFigures { size: self.durable_size(), first: self.first, bytes: self.bytes }
    }

    /// The last signed head.
    pub fn checkpoint(&self) -> Option<&SignedCheckpoint> {
        self.checkpoint.as_ref()
    }

    /// What all logs take on the disk, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends a record in memory, and gives the hash of its leaf.
    pub fn append(&mut self, record: &[u8]) -> Result<Hash, LogError> {
        let length = record.len();
        if length > LONGEST {
            return Err(LogError::TooLong { length });
        }
        let tile = self.edge.size() / WIDTH;
        if self.bundles.last().is_none_or(|(last, _)| *last != tile) {
            self.bundles.push((tile, Vec::new()));
        }
        let pushed = self.bundles.last_mut().and_then(|(_, bundle)| push_entry(bundle, record));
        pushed.ok_or(LogError::TooLong { length })?;
        let leaf = record_hash(record);
        self.edge.push(leaf, &mut self.grown);
        Ok(leaf)
    }

    /// Makes what was appended durable. When it fails, the log is as it was after the last commit, and what was appended
    /// since is gone.
    pub fn commit(&mut self) -> Result<(), LogError> {
        let written = self.restore().and_then(|()| self.write());
        let (bundles, grown) = (std::mem::take(&mut self.bundles), std::mem::take(&mut self.grown));
        if written.is_ok() {
            let hashes: usize = grown.iter().map(Vec::len).sum();
            let records: usize = bundles.iter().map(|(_, bundle)| bundle.len()).sum();
            self.bytes += (hashes * 32 + records) as u64;
            if let Some((tile, bundle)) = bundles.last() {
                let before = if *tile == self.durable.size() / WIDTH { self.tail } else { 0 };
                let is_whole = self.edge.size().is_multiple_of(WIDTH);
                self.tail = if is_whole { 0 } else { before + bundle.len() as u64 };
            }
            self.durable = self.edge.clone();
        } else {
            self.edge = self.durable.clone();
            self.is_suspect = true;
            // Otherwise the next commit does it, before it writes anything.
            let _ = self.restore();
        }
        written
    }

    fn write(&self) -> Result<(), LogError> {
        files::append_hashes(&self.folder, self.durable.size(), &self.grown)?;
        for (tile, bundle) in &self.bundles {
            let offset = if *tile == self.durable.size() / WIDTH { self.tail } else { 0 };
            files::append_entries(&self.folder, *tile, bundle, offset)?;
        }
        Ok(())
    }

    /// Cuts off what a failed write left.
    fn restore(&mut self) -> Result<(), LogError> {
        if self.is_suspect {
            files::restore(&self.folder, &self.durable, self.tail)?;
            self.is_suspect = false;
        }
        Ok(())
    }

    /// Signs the head of what is durable, and keeps it. When this returns, it survives a power cut.
    pub fn sign(&mut self, key: &AuditKey) -> Result<&SignedCheckpoint, LogError> {
        let signed = match self.checkpoint.take() {
            Some(head) if head.size >= self.durable.size() => head,
            last => {
                let length = last.as_ref().map_or(0, |head| head.note.len() as u64);
                // It stays the last one when the next one cannot be kept.
                self.checkpoint = last;
                let next = key.sign(&self.origin, self.durable.size(), self.durable.root())?;
                let path = self.folder.join(CHECKPOINT);
                durable::replace(&path, &next.note).map_err(LogError::at(&path))?;
                self.bytes = self.bytes.saturating_sub(length) + next.note.len() as u64;
                next
            }
        };
        Ok(self.checkpoint.insert(signed))
    }

    /// Removes whole tiles of records of the logs before this one; gives how many bytes that were.
    pub fn prune_older(&mut self) -> Result<u64, LogError> {
        let freed = prune::before(&self.audit, self.generation)?;
        self.bytes = self.bytes.saturating_sub(freed);
        Ok(freed)
    }

    /// The logs before this one.
    pub fn older(&self) -> Result<Vec<u32>, LogError> {
        let mut found = local::generations(&self.audit).map_err(LogError::at(&self.audit))?;
        found.retain(|generation| *generation < self.generation);
        Ok(found)
    }

    /// Below which record [`Self::prune`] can remove, asked to remove those below `below`.
    pub fn prunable(&self, below: u64) -> u64 {
        // What the head ends in is read at the next start.
        let head = self.checkpoint.as_ref().map_or(0, |head| head.size);
        (below.min(head.saturating_sub(1)) / WIDTH * WIDTH).max(self.first)
    }

    /// Removes whole tiles of records below `below`; gives how many bytes that were. What proofs need of them stays.
    pub fn prune(&mut self, below: u64) -> Result<u64, LogError> {
        let below = self.prunable(below) / WIDTH;
        let mut sum = 0;
        while self.first / WIDTH < below {
            let freed = prune::tile(&self.folder, self.first / WIDTH)?;
            self.first += WIDTH;
            self.bytes = self.bytes.saturating_sub(freed);
            sum += freed;
        }
        Ok(sum)
    }
}
