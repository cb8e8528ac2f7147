//! What a start finds of a log. Nothing is written here: a log that is not sound stays as it was found.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ledge_base::names::DeviceName;
use ledge_service::audit_event::PreviousLog;
use rustix::io::Errno;
use tlog_tiles::{Checkpoint, Hash, record_hash};

use super::super::key::{AuditKey, SignedCheckpoint, origin, under_name};
use super::super::layout::{CHECKPOINT, TileKind, TilePath, WIDTH, log_folder, whole_entries};
use super::super::local;
use super::super::record::AuditRecord;
use super::frontier::{Frontier, Grown};
use super::{LogError, hashes};

/// The most records that a log without a checkpoint may have. Its first checkpoint follows its first commit, so it is a
/// log whose daemon was killed in between or had no room for more; another one lost its checkpoint.
const MOST_UNSIGNED: u64 = 100_000;

/// What was found of a log.
pub enum Verdict {
    /// Nothing: it never got its first record.
    Empty,
    /// It can be appended to.
    Sound(Box<Found>),
    /// It must not be appended to, nor signed again.
    Left {
        /// `damaged` or `renamed`.
        cause: &'static str,
        reason: String,
        /// What is known of it.
        previous: PreviousLog,
    },
}

/// A log that can be appended to.
pub struct Found {
    pub checkpoint: Option<SignedCheckpoint>,
    /// The first tile of records that is there.
    pub first: u64,
    /// The edge before the tile in which the head ends.
    pub base: Frontier,
    /// The records from there on: their leaves.
    pub leaves: Vec<Hash>,
    /// How many bytes those of the last tile take, if it is partial.
    pub tail: u64,
    /// How many bytes behind the last whole record are to be cut.
    pub torn: u64,
    /// Whether those are no record of which only a part was written.
    pub is_odd: bool,
    /// The hashes from level 1 up, when those on the disk are not those of the records.
    pub rebuilt: Option<Grown>,
}

impl Found {
    /// What is told of it when another follows it.
    pub fn previous(&self, origin: String) -> PreviousLog {
        let (size, root) = self.checkpoint.as_ref().map_or((0, None), |head| (head.size, Some(head.root)));
        let found = self.base.size() + self.leaves.len() as u64;
        PreviousLog { origin, size, root: encoded(root), found }
    }
}

/// A root hash as a record has it; nothing when there is none.
pub fn encoded(root: Option<Hash>) -> String {
    root.map(|root| STANDARD.encode(root.0)).unwrap_or_default()
}

/// Why it is not sound.
enum Wrong {
    Damaged(String),
    Renamed(String),
    Error(LogError),
}

impl From<LogError> for Wrong {
    fn from(error: LogError) -> Self {
        match error {
            // The disk has lost it; it will be the same at the next start.
            LogError::File { path, error } if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {
                Self::Damaged(format!("{} cannot be read: {error}", path.display()))
            }
            error => Self::Error(error),
        }
    }
}

/// Looks at a log.
pub fn inspect(audit: &Path, generation: u32, device: &DeviceName, key: &AuditKey) -> Result<Verdict, LogError> {
    let folder = log_folder(audit, generation);
    let inspector = Inspector { folder: &folder, origin: origin(device, generation), key: key.verifier_key() };
    let (cause, reason) = match inspector.look() {
        Ok(None) => return Ok(Verdict::Empty),
        Ok(Some(found)) => return Ok(Verdict::Sound(Box::new(found))),
        Err(Wrong::Error(error)) => return Err(error),
        Err(Wrong::Damaged(reason)) => ("damaged", reason),
        Err(Wrong::Renamed(reason)) => ("renamed", reason),
    };
    let reason = format!("{}: {reason}", folder.display());
    Ok(Verdict::Left { cause, reason, previous: inspector.previous() })
}

struct Inspector<'a> {
    folder: &'a Path,
    origin: String,
    key: &'a str,
}

impl Inspector<'_> {
    fn look(&self) -> Result<Option<Found>, Wrong> {
        let checkpoint = self.checkpoint()?;
        let files = self.files()?;
        let size = checkpoint.as_ref().map_or(0, |head| head.size);
        let (first, last) = match (files.keys().next(), files.keys().next_back()) {
            (Some(first), Some(last)) => (*first, *last),
            _ if size == 0 => return Ok(None),
            _ => return Err(Wrong::Damaged(format!("it has no records, and its checkpoint says {size}"))),
        };
        if let Some(missing) = (first..=last).find(|index| !files.contains_key(index)) {
            return Err(Wrong::Damaged(format!("the file {} is missing", entries_path(missing).path())));
        }
        let tiles = size.saturating_sub(1) / WIDTH;
        if !(first..=last).contains(&tiles) {
            return Err(Wrong::Damaged(format!("the file {} is missing", entries_path(tiles).path())));
        }
        if checkpoint.is_none() && last * WIDTH >= MOST_UNSIGNED {
            return Err(Wrong::Damaged("its checkpoint is missing".to_owned()));
        }
        let known = hashes::frontier(self.folder, tiles)?;
        let mut found = match known.map(|base| self.take(checkpoint.as_ref(), first, base)) {
            Some(Ok(found)) => found,
            Some(Err(Wrong::Error(error))) => return Err(Wrong::Error(error)),
            // The hashes can be wrong, and the records right.
            Some(Err(Wrong::Damaged(_) | Wrong::Renamed(_))) | None => {
                let (base, grown) = hashes::rebuild(self.folder, first, tiles)?
                    .map_err(|tile| Wrong::Damaged(format!("the file {} is damaged", entries_path(tile).path())))?;
                let mut found = self.take(checkpoint.as_ref(), first, base)?;
                found.rebuilt = Some(grown);
                found
            }
        };
        let whole = (found.base.size() + found.leaves.len() as u64) / WIDTH;
        found.torn += files.range(whole + 1..).map(|(_, length)| length).sum::<u64>();
        if checkpoint.is_none() && (found.is_odd || last > whole) {
            return Err(Wrong::Damaged("it has no checkpoint, and not all of its records are whole".to_owned()));
        }
        if found.leaves.is_empty() && size == 0 {
            return Ok(None);
        }
        found.checkpoint = checkpoint;
        Ok(Some(found))
    }

    /// The records from the tile on in which the head ends, checked against the head.
    fn take(&self, head: Option<&SignedCheckpoint>, first: u64, base: Frontier) -> Result<Found, Wrong> {
        let size = head.map_or(0, |head| head.size);
        let (mut edge, mut grown) = (base.clone(), Grown::new());
        let mut found =
            Found { checkpoint: None, first, base, leaves: Vec::new(), tail: 0, torn: 0, is_odd: false, rebuilt: None };
        for index in edge.size() / WIDTH.. {
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
                    return Err(Wrong::Damaged(format!(
                        "its first {} records are not those of its checkpoint",
                        head.size
                    )));
                }
            }
            let torn = bundle.get(length..).unwrap_or_default();
            found.torn = torn.len() as u64;
            found.is_odd = !whole_entries(torn).0.is_empty() && torn.iter().any(|byte| *byte != 0);
            found.tail = if edge.size().is_multiple_of(WIDTH) { 0 } else { length as u64 };
            if !torn.is_empty() || edge.size() != (index + 1) * WIDTH {
                break;
            }
        }
        if edge.size() < size {
            return Err(Wrong::Damaged(format!("it has {} records, and its checkpoint says {size}", edge.size())));
        }
        Ok(found)
    }

    fn files(&self) -> Result<BTreeMap<u64, u64>, LogError> {
        local::files(self.folder, TileKind::Entries).map_err(LogError::at(self.folder))
    }

    fn checkpoint(&self) -> Result<Option<SignedCheckpoint>, Wrong> {
        let Some(note) = hashes::read(&self.folder.join(CHECKPOINT))? else { return Ok(None) };
        let opened = match SignedCheckpoint::open(&note, self.key) {
            Ok(checkpoint) => checkpoint,
            Err(error) => match self.renamed(&note) {
                Some(name) => return Err(Wrong::Renamed(format!("it was begun as {name}"))),
                None => return Err(Wrong::Damaged(format!("its checkpoint does not count: {error}"))),
            },
        };
        if opened.origin != self.origin {
            return Err(Wrong::Damaged(format!("its checkpoint is that of {}", opened.origin)));
        }
        Ok(Some(opened))
    }

    /// The name of the key under which this box signed the checkpoint, when it had another.
    fn renamed(&self, note: &[u8]) -> Option<String> {
        let text = std::str::from_utf8(note).ok()?;
        let (name, _) = text.lines().next()?.rsplit_once('/')?;
        let key = under_name(self.key, name)?;
        SignedCheckpoint::open(note, &key).ok().map(|_| name.to_owned())
    }

    /// What can be told of a log that is not sound: what its checkpoint says, whoever signed it.
    fn previous(&self) -> PreviousLog {
        let note = local::read(&self.folder.join(CHECKPOINT)).ok().flatten().unwrap_or_default();
        let said = said(&note);
        let last = self.files().ok().and_then(|files| files.keys().next_back().copied());
        let found = last.map_or(0, |last| {
            let bundle = local::read(&entries_path(last).local(self.folder)).ok().flatten().unwrap_or_default();
            last * WIDTH + whole_entries(&bundle).0.len() as u64
        });
        PreviousLog {
            origin: said.as_ref().map_or_else(|| self.origin.clone(), |said| said.origin().to_owned()),
            size: said.as_ref().map_or(0, Checkpoint::size),
            root: encoded(said.map(|said| *said.hash())),
            found,
        }
    }
}

/// What a checkpoint says, whoever signed it.
pub fn said(note: &[u8]) -> Option<Checkpoint> {
    // The text of a note ends with the line before its signatures.
    let end = note.windows(2).position(|pair| pair == b"\n\n")? + 1;
    Checkpoint::from_bytes(note.get(..end)?).ok()
}

/// The file of records with an index.
pub fn entries_path(index: u64) -> TilePath {
    TilePath { kind: TileKind::Entries, index, width: 1 }
}
