//! The log on the disk: records appended, made durable, signed. One thread owns it.

use std::io;
use std::path::{Path, PathBuf};

use tlog_tiles::Hash;

use super::key::{AuditKey, CheckpointError, SignedCheckpoint};
use crate::audit_event::PreviousLog;
use crate::names::DeviceName;

/// Why the log cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A file cannot be read or written.
    #[error("the audit log: {path}: {error}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's words.
        error: io::Error,
    },
    /// Another process has it.
    #[error("the audit log in {path} is in use by another process", path = path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// A record is longer than an entry bundle can hold.
    #[error("a record of {length} bytes is longer than the {max} that a log takes", max = super::record::LONGEST)]
    TooLong {
        /// How long it is.
        length: usize,
    },
    /// A head cannot be signed.
    #[error("the audit log: {0}")]
    Checkpoint(#[from] CheckpointError),
}

impl LogError {
    /// Whether there is no room on the disk.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::File { error, .. } if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }
}

/// A log that is appended to.
pub struct Log {
    folder: PathBuf,
    generation: u32,
    origin: String,
    checkpoint: Option<SignedCheckpoint>,
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
    /// Opens the last log in the folder of all logs, or begins one.
    pub fn open(audit: &Path, device: &DeviceName, key: &AuditKey) -> Result<Opened, LogError> {
        let _ = (audit, device, key);
        Err(LogError::Locked { path: audit.to_owned() })
    }

    /// Leaves this log as it is, and begins another one after it.
    pub fn begin_another(self, cause: &'static str, device: &DeviceName, key: &AuditKey) -> Result<Opened, LogError> {
        let _ = (cause, device, key);
        Err(LogError::Locked { path: self.folder })
    }

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
        0
    }

    /// How many records are durable.
    pub fn durable_size(&self) -> u64 {
        0
    }

    /// The first record that is still on this box.
    pub fn first(&self) -> u64 {
        0
    }

    /// The last signed head.
    pub fn checkpoint(&self) -> Option<&SignedCheckpoint> {
        self.checkpoint.as_ref()
    }

    /// What all logs take on the disk, in bytes.
    pub fn bytes(&self) -> u64 {
        0
    }

    /// Appends a record in memory, and gives the hash of its leaf.
    pub fn append(&mut self, record: &[u8]) -> Result<Hash, LogError> {
        Err(LogError::TooLong { length: record.len() })
    }

    /// Makes what was appended durable. When it fails, the log is as it was after the last commit, and what was appended
    /// since is gone.
    pub fn commit(&mut self) -> Result<(), LogError> {
        Ok(())
    }

    /// Signs the head of what is durable, and keeps it.
    pub fn sign(&mut self, key: &AuditKey) -> Result<&SignedCheckpoint, LogError> {
        Ok(self.checkpoint.insert(key.sign(&self.origin, 0, Hash::default())?))
    }

    /// Removes whole tiles of records below `below`, and those of logs before this one first; gives how many bytes that
    /// were. What proofs need of them stays.
    pub fn prune(&mut self, below: u64) -> Result<u64, LogError> {
        let _ = below;
        Ok(0)
    }
}
