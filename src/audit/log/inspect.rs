//! What a start finds of a log. Nothing is written here: a log that is not sound stays as it was found.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tlog_tiles::{Checkpoint, Hash, record_hash};

use super::super::key::{AuditKey, SignedCheckpoint, origin};
use super::super::layout::{CHECKPOINT, HEIGHT, TileKind, TilePath, WIDTH, entries, log_folder, whole_entries};
use super::super::local;
use super::super::record::AuditRecord;
use super::LogError;
use super::frontier::{Frontier, Grown, subtree};
use crate::audit_event::PreviousLog;
use crate::names::DeviceName;

/// The most records that a log without a checkpoint may have. Its first checkpoint follows its first commit, so it is a
/// log whose daemon was killed in between or had no room for more; another one lost its checkpoint.
const MOST_UNSIGNED: u64 = 100_000;

/// The levels of tiles that a tree of 2^64 leaves has.
pub const LEVELS: u8 = 64 / HEIGHT;

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
        /// In words.
        reason: String,
        /// What is known of it.
        previous: PreviousLog,
    },
}

/// A log that can be appended to.
pub struct Found {
    /// Its signed head.
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
    /// The hashes from level 1 up, when those on the disk are not those of the records.
    pub rebuilt: Option<Grown>,
}

impl Found {
    /// What is told of it when another follows it.
    pub fn previous(&self, origin: String) -> PreviousLog {
        let (size, root) = self.checkpoint.as_ref().map_or((0, None), |head| (head.size, Some(head.root)));
        let found = self.base.size() + self.leaves.len() as u64;
        PreviousLog { origin, size, root: root.map(|root| STANDARD.encode(root.0)).unwrap_or_default(), found }
    }
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
            LogError::File { path, error } if error.raw_os_error() == Some(libc::EIO) => {
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
        let (first, last) = match (files.keys().next(), files.keys().next_back()) {
            (Some(first), Some(last)) => (*first, *last),
            _ => (0, 0),
        };
        let size = checkpoint.as_ref().map_or(0, |head| head.size);
        if files.is_empty() && size == 0 {
            return Ok(None);
        }
        if files.len() as u64 != last - first + 1 {
            let missing = (first..=last).find(|index| !files.contains_key(index)).unwrap_or_default();
            return Err(Wrong::Damaged(format!("the file {} is missing", entries_path(missing).path())));
        }
        let tiles = size.saturating_sub(1) / WIDTH;
        if first > tiles {
            let (from, to) = (tiles * WIDTH, first * WIDTH);
            return Err(Wrong::Damaged(format!("the records from {from} up to {to} are missing")));
        }
        if checkpoint.is_none() && last * WIDTH >= MOST_UNSIGNED {
            return Err(Wrong::Damaged("its checkpoint is missing".to_owned()));
        }
        let found = self.take(checkpoint.as_ref(), first, self.frontier(tiles)?.ok_or("a file of hashes is short"));
        let mut found = match found {
            Ok(found) => found,
            // The hashes can be wrong, and the records right.
            Err(Wrong::Damaged(_)) if tiles > 0 => {
                let (base, grown) = self.rebuild(first, tiles)?;
                let mut found = self.take(checkpoint.as_ref(), first, Ok(base))?;
                found.rebuilt = Some(grown);
                found
            }
            Err(wrong) => return Err(wrong),
        };
        let whole = (found.base.size() + found.leaves.len() as u64) / WIDTH;
        found.torn += files.range(whole + 1..).map(|(_, length)| length).sum::<u64>();
        if checkpoint.is_none() && found.torn > 0 && last > whole {
            return Err(Wrong::Damaged("it has no checkpoint, and not all of its records are whole".to_owned()));
        }
        if found.leaves.is_empty() && size == 0 {
            return Ok(None);
        }
        found.checkpoint = checkpoint;
        Ok(Some(found))
    }

    /// The records from the tile on in which the head ends, checked against the head.
    fn take(&self, head: Option<&SignedCheckpoint>, first: u64, base: Result<Frontier, &str>) -> Result<Found, Wrong> {
        let base = base.map_err(|reason| Wrong::Damaged(reason.to_owned()))?;
        let size = head.map_or(0, |head| head.size);
        let (mut edge, mut leaves, mut grown) = (base.clone(), Vec::new(), Grown::new());
        let (mut tail, mut torn) = (0, 0);
        for index in base.size() / WIDTH.. {
            let Some(bundle) = read(&entries_path(index).local(self.folder))? else { break };
            let (entries, _) = whole_entries(&bundle);
            let mut length = 0;
            for entry in &entries {
                let is_next =
                    edge.size() < size || AuditRecord::parse(entry).is_ok_and(|record| record.seq == edge.size());
                if !is_next {
                    break;
                }
                let leaf = record_hash(entry);
                leaves.push(leaf);
                edge.push(leaf, &mut grown);
                length += entry.len() as u64 + 2;
                if let Some(head) = head.filter(|head| head.size == edge.size() && head.root != edge.root()) {
                    return Err(Wrong::Damaged(format!(
                        "the first {} records are not those of its checkpoint",
                        head.size
                    )));
                }
            }
            torn = bundle.len() as u64 - length;
            tail = if edge.size().is_multiple_of(WIDTH) { 0 } else { length };
            if torn > 0 || edge.size() != (index + 1) * WIDTH {
                break;
            }
        }
        if edge.size() < size {
            return Err(Wrong::Damaged(format!("it has {} records, and its checkpoint says {size}", edge.size())));
        }
        Ok(Found { checkpoint: None, first, base, leaves, tail, torn, rebuilt: None })
    }

    /// The edge of so many whole tiles, as the hashes on the disk have it. `None` when they are too few.
    fn frontier(&self, tiles: u64) -> Result<Option<Frontier>, LogError> {
        let mut levels = vec![Vec::new()];
        let mut count = tiles;
        for level in 1..LEVELS {
            let width = count % WIDTH;
            let tile = TilePath { kind: TileKind::Hashes(level), index: count / WIDTH, width: 1 };
            let hashes = if width == 0 { Some(Vec::new()) } else { read(&tile.local(self.folder))? };
            let Some(hashes) = hashes.and_then(|content| first_hashes(&content, width)) else { return Ok(None) };
            levels.push(hashes);
            count /= WIDTH;
        }
        Ok(Some(Frontier::of_tiles(tiles, levels)))
    }

    /// The same, as the records have it, and the hashes of all levels but the lowest. Of records that were pruned, the
    /// hashes that the disk has are taken.
    fn rebuild(&self, first: u64, tiles: u64) -> Result<(Frontier, Grown), Wrong> {
        let (mut edge, mut grown) = (Frontier::default(), Grown::new());
        let mut known: Option<(u64, Vec<Hash>)> = None;
        for tile in 0..tiles {
            let hash = if tile < first {
                let index = tile / WIDTH;
                if known.as_ref().is_none_or(|(of, _)| *of != index) {
                    let path = TilePath { kind: TileKind::Hashes(1), index, width: 1 }.local(self.folder);
                    let content = read(&path)?.unwrap_or_default();
                    known = Some((index, first_hashes(&content, content.len() as u64 / 32).unwrap_or_default()));
                }
                let at = usize::try_from(tile % WIDTH).unwrap_or_default();
                known.as_ref().and_then(|(_, hashes)| hashes.get(at).copied())
            } else {
                whole_tile(self.folder, tile)?.map(|leaves| subtree(&leaves))
            };
            let Some(hash) = hash else {
                return Err(Wrong::Damaged(format!("the file {} is damaged", entries_path(tile).path())));
            };
            edge.push_tile(hash, &mut grown);
        }
        Ok((edge, grown))
    }

    fn files(&self) -> Result<BTreeMap<u64, u64>, LogError> {
        local::files(self.folder, TileKind::Entries).map_err(LogError::at(self.folder))
    }

    fn checkpoint(&self) -> Result<Option<SignedCheckpoint>, Wrong> {
        let Some(note) = read(&self.folder.join(CHECKPOINT))? else { return Ok(None) };
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
        let public = STANDARD.decode(self.key.splitn(3, '+').nth(2)?).ok()?;
        let id = signed_note::key_id(name, &public);
        let key = format!("{name}+{id:08x}+{}", STANDARD.encode(&public));
        SignedCheckpoint::open(note, &key).ok().map(|_| name.to_owned())
    }

    /// What can be told of a log that is not sound: what its checkpoint says, whoever signed it.
    fn previous(&self) -> PreviousLog {
        let note = local::read(&self.folder.join(CHECKPOINT)).ok().flatten().unwrap_or_default();
        // The text of a note ends with the line before its signatures.
        let end = note.windows(2).position(|pair| pair == b"\n\n").map_or(0, |at| at + 1);
        let said = Checkpoint::from_bytes(note.get(..end).unwrap_or_default()).ok();
        let last = self.files().ok().and_then(|files| files.keys().next_back().copied());
        let found = last.map_or(0, |last| {
            let bundle = local::read(&entries_path(last).local(self.folder)).ok().flatten().unwrap_or_default();
            last * WIDTH + whole_entries(&bundle).0.len() as u64
        });
        PreviousLog {
            origin: said.as_ref().map_or_else(|| self.origin.clone(), |said| said.origin().to_owned()),
            size: said.as_ref().map_or(0, Checkpoint::size),
            root: said.map(|said| STANDARD.encode(said.hash().0)).unwrap_or_default(),
            found,
        }
    }
}

/// The leaves of a whole tile of records; `None` when it is not.
pub fn whole_tile(folder: &Path, index: u64) -> Result<Option<Vec<Hash>>, LogError> {
    let bundle = read(&entries_path(index).local(folder))?.unwrap_or_default();
    let entries = entries(&bundle).unwrap_or_default();
    Ok((entries.len() as u64 == WIDTH).then(|| entries.into_iter().map(record_hash).collect()))
}

/// The first hashes of a file; `None` when it has fewer.
fn first_hashes(content: &[u8], count: u64) -> Option<Vec<Hash>> {
    let (hashes, _) = content.as_chunks();
    Some(hashes.get(..usize::try_from(count).ok()?)?.iter().copied().map(Hash).collect())
}

/// The file of records with an index.
pub fn entries_path(index: u64) -> TilePath {
    TilePath { kind: TileKind::Entries, index, width: 1 }
}

/// A file that may not be there.
fn read(path: &PathBuf) -> Result<Option<Vec<u8>>, LogError> {
    local::read(path).map_err(LogError::at(path))
}
