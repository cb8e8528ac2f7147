//! The state of a log found at a start. Nothing is written here: a log that is not sound stays as it is.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ledge_base::names::DeviceName;
use ledge_service::audit_event::PreviousLog;
use rustix::io::Errno;
use tlog_tiles::{Checkpoint, Hash, record_hash};

use super::super::key::{AuditKey, SignedCheckpoint, origin, under_name};
use super::super::layout::{CHECKPOINT, TILE_WIDTH, TileKind, log_folder, whole_entries};
use super::super::local;
use super::super::record::AuditRecord;
use super::frontier::{AddedTreeHashes, TreeFrontier};
use super::hashes::entries_path;
use super::{AuditLogError, hashes};

/// The most records that a log without a checkpoint may have. The first checkpoint follows the first commit, so a log
/// without one belongs to a daemon that was killed in between, or had a full disk. A larger log has lost its
/// checkpoint.
const UNSIGNED_RECORDS_MAX: u64 = 100_000;

/// The state of a log.
pub enum LogInspection {
    /// It never got its first record.
    Empty,
    /// It can be continued.
    Sound(Box<ContinuableLog>),
    /// It must not be continued, nor signed again.
    Unsound {
        /// `damaged` or `renamed`.
        cause: &'static str,
        reason: String,
        /// The log, as far as it is known.
        previous: PreviousLog,
    },
}

/// A log that can be continued.
pub struct ContinuableLog {
    pub checkpoint: Option<SignedCheckpoint>,
    /// The first tile of records that still exists.
    pub first: u64,
    /// The edge before the tile in which the head ends.
    pub base: TreeFrontier,
    /// The leaves of the records from there on.
    pub leaves: Vec<Hash>,
    /// The number of bytes of the records in the last tile, if it is partial.
    pub tail: u64,
    /// The number of bytes after the last whole record, which are to be cut off.
    pub torn: u64,
    /// True if those bytes are something other than the beginning of a record.
    pub has_foreign_tail: bool,
    /// The hashes from level 1 up, computed from the records, if those on the disk do not fit.
    pub rebuilt: Option<AddedTreeHashes>,
}

impl ContinuableLog {
    /// The description of this log for the first record of the one that follows.
    pub fn previous(&self, origin: String) -> PreviousLog {
        let (size, root) = self.checkpoint.as_ref().map_or((0, None), |head| (head.size, Some(head.root)));
        let found = self.base.size() + self.leaves.len() as u64;
        PreviousLog { origin, size, root: encoded(root), found }
    }
}

/// A root hash in the form that records have; empty without one.
pub fn encoded(root: Option<Hash>) -> String {
    root.map(|root| STANDARD.encode(root.0)).unwrap_or_default()
}

/// Reasons why a log is not sound, or could not be read.
enum LogInspectError {
    Damaged(String),
    Renamed(String),
    Error(AuditLogError),
}

impl From<AuditLogError> for LogInspectError {
    fn from(error: AuditLogError) -> Self {
        match error {
            // The disk has lost it: the next start would find the same.
            AuditLogError::File { path, error } if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {
                Self::Damaged(format!("{} cannot be read: {error}", path.display()))
            }
            error => Self::Error(error),
        }
    }
}

/// Finds the state of a log.
pub fn inspect(
    audit: &Path,
    generation: u32,
    device: &DeviceName,
    key: &AuditKey,
) -> Result<LogInspection, AuditLogError> {
    let folder = log_folder(audit, generation);
    let inspector = LogInspector { folder: &folder, origin: origin(device, generation), key: key.verifier_key() };
    let (cause, reason) = match inspector.look() {
        Ok(None) => return Ok(LogInspection::Empty),
        Ok(Some(found)) => return Ok(LogInspection::Sound(Box::new(found))),
        Err(LogInspectError::Error(error)) => return Err(error),
        Err(LogInspectError::Damaged(reason)) => ("damaged", reason),
        Err(LogInspectError::Renamed(reason)) => ("renamed", reason),
    };
    let reason = format!("{}: {reason}", folder.display());
    Ok(LogInspection::Unsound { cause, reason, previous: inspector.previous() })
}

/// The description of a log for the first record of the one that follows, without a check of its signature.
pub fn unverified_previous(audit: &Path, generation: u32) -> PreviousLog {
    LogInspector { folder: &log_folder(audit, generation), origin: String::new(), key: "" }.previous()
}

struct LogInspector<'a> {
    folder: &'a Path,
    origin: String,
    key: &'a str,
}

impl LogInspector<'_> {
    fn look(&self) -> Result<Option<ContinuableLog>, LogInspectError> {
        let checkpoint = self.checkpoint()?;
        let files = self.files()?;
        let size = checkpoint.as_ref().map_or(0, |head| head.size);
        let (first, last) = match (files.keys().next(), files.keys().next_back()) {
            (Some(first), Some(last)) => (*first, *last),
            _ if size == 0 => return Ok(None),
            _ => return Err(LogInspectError::Damaged(format!("it has no records, but its checkpoint has {size}"))),
        };

        if let Some(missing) = (first..=last).find(|index| !files.contains_key(index)) {
            return Err(LogInspectError::Damaged(format!("the file {} is missing", entries_path(missing).path())));
        }
        let tiles = size.saturating_sub(1) / TILE_WIDTH;
        if !(first..=last).contains(&tiles) {
            return Err(LogInspectError::Damaged(format!("the file {} is missing", entries_path(tiles).path())));
        }
        if checkpoint.is_none() && last * TILE_WIDTH >= UNSIGNED_RECORDS_MAX {
            return Err(LogInspectError::Damaged("its checkpoint is missing".to_owned()));
        }

        let known = hashes::frontier(self.folder, tiles)?;
        let mut found = match known.map(|base| self.take(checkpoint.as_ref(), first, base)) {
            Some(Ok(found)) => found,
            Some(Err(LogInspectError::Error(error))) => return Err(LogInspectError::Error(error)),
            // The hashes may be wrong although the records are right.
            Some(Err(LogInspectError::Damaged(_) | LogInspectError::Renamed(_))) | None => {
                let (base, grown) = hashes::rebuild(self.folder, first, tiles)?.map_err(|tile| {
                    LogInspectError::Damaged(format!("the file {} is damaged", entries_path(tile).path()))
                })?;
                let mut found = self.take(checkpoint.as_ref(), first, base)?;
                found.rebuilt = Some(grown);
                found
            }
        };

        let whole = (found.base.size() + found.leaves.len() as u64) / TILE_WIDTH;
        found.torn += files.range(whole + 1..).map(|(_, length)| length).sum::<u64>();
        if checkpoint.is_none() && (found.has_foreign_tail || last > whole) {
            return Err(LogInspectError::Damaged(
                "it has no checkpoint, and some of its records are incomplete".to_owned(),
            ));
        }
        if found.leaves.is_empty() && size == 0 {
            return Ok(None);
        }
        found.checkpoint = checkpoint;
        Ok(Some(found))
    }

    /// Reads the records from the tile on in which the head ends, and checks them against the head.
    fn take(
        &self,
        head: Option<&SignedCheckpoint>,
        first: u64,
        base: TreeFrontier,
    ) -> Result<ContinuableLog, LogInspectError> {
        let size = head.map_or(0, |head| head.size);
        let (mut edge, mut grown) = (base.clone(), AddedTreeHashes::new());
        let mut found = ContinuableLog {
            checkpoint: None,
            first,
            base,
            leaves: Vec::new(),
            tail: 0,
            torn: 0,
            has_foreign_tail: false,
            rebuilt: None,
        };
        for index in edge.size() / TILE_WIDTH.. {
            let Some(bundle) = hashes::read(&entries_path(index).local(self.folder))? else { break };
            let mut length = 0;
            for entry in whole_entries(&bundle).0 {
                let is_next = |record: AuditRecord| record.seq == edge.size();
                if edge.size() >= size && !AuditRecord::parse(entry).is_ok_and(is_next) {
                    break;
                }
                let leaf = record_hash(entry);
                edge.push(leaf, &mut grown);
                found.leaves.push(leaf);
                length += entry.len() + 2;
                if let Some(head) = head.filter(|head| head.size == edge.size() && head.root != edge.root()) {
                    return Err(LogInspectError::Damaged(format!(
                        "its first {} records do not fit its checkpoint",
                        head.size
                    )));
                }
            }

            let torn = bundle.get(length..).unwrap_or_default();
            found.torn = torn.len() as u64;
            found.has_foreign_tail = !whole_entries(torn).0.is_empty() && torn.iter().any(|byte| *byte != 0);
            found.tail = if edge.size().is_multiple_of(TILE_WIDTH) { 0 } else { length as u64 };
            if !torn.is_empty() || edge.size() != (index + 1) * TILE_WIDTH {
                break;
            }
        }

        if edge.size() < size {
            return Err(LogInspectError::Damaged(format!(
                "it has {} records, but its checkpoint has {size}",
                edge.size()
            )));
        }
        Ok(found)
    }

    fn files(&self) -> Result<BTreeMap<u64, u64>, AuditLogError> {
        local::files(self.folder, TileKind::Entries).map_err(AuditLogError::at(self.folder))
    }

    fn checkpoint(&self) -> Result<Option<SignedCheckpoint>, LogInspectError> {
        let Some(note) = hashes::read(&self.folder.join(CHECKPOINT))? else { return Ok(None) };
        let opened = match SignedCheckpoint::open(&note, self.key) {
            Ok(checkpoint) => checkpoint,
            Err(error) => match self.renamed(&note) {
                Some(name) => return Err(LogInspectError::Renamed(format!("it was begun as {name}"))),
                None => return Err(LogInspectError::Damaged(format!("its checkpoint is not valid: {error}"))),
            },
        };
        if opened.origin != self.origin {
            return Err(LogInspectError::Damaged(format!("its checkpoint is that of {}", opened.origin)));
        }
        Ok(Some(opened))
    }

    /// The name under which this box signed the checkpoint, if it had another name then.
    fn renamed(&self, note: &[u8]) -> Option<String> {
        let text = std::str::from_utf8(note).ok()?;
        let (name, _) = text.lines().next()?.rsplit_once('/')?;
        let key = under_name(self.key, name)?;
        SignedCheckpoint::open(note, &key).ok().map(|_| name.to_owned())
    }

    /// The description of a log that is not sound, from its checkpoint, without a check of the signature.
    fn previous(&self) -> PreviousLog {
        let note = local::read(&self.folder.join(CHECKPOINT)).ok().flatten().unwrap_or_default();
        let checkpoint = unverified_checkpoint(&note);
        let last = self.files().ok().and_then(|files| files.keys().next_back().copied());
        let found = last.map_or(0, |last| {
            let bundle = local::read(&entries_path(last).local(self.folder)).ok().flatten().unwrap_or_default();
            last * TILE_WIDTH + whole_entries(&bundle).0.len() as u64
        });
        PreviousLog {
            origin: checkpoint.as_ref().map_or_else(|| self.origin.clone(), |head| head.origin().to_owned()),
            size: checkpoint.as_ref().map_or(0, Checkpoint::size),
            root: encoded(checkpoint.map(|head| *head.hash())),
            found,
        }
    }
}

/// Reads a checkpoint without a check of its signature.
pub fn unverified_checkpoint(note: &[u8]) -> Option<Checkpoint> {
    // The text of a note ends with the line before its signatures.
    let end = note.windows(2).position(|pair| pair == b"\n\n")? + 1;
    Checkpoint::from_bytes(note.get(..end)?).ok()
}
