//! Brings one log on the platform up to a signed head: its tiles first, then the checkpoint that covers them.
//!
//! A tile is put under a name that only it can have, on the condition that nothing is there: done twice, it is there once.
//! What is under a name already must be the same bytes, else the platform has another history of the log. The checkpoint
//! there is always one of the log's own, and everything that it covers is there.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use ledge_base::clock;

use super::hint::{Hint, Sending, Synced};
use super::remote::{Found, Put, Remote};
use super::tiles::SignedLog;
use super::{SyncError, SyncSettings};
use crate::key::{CheckpointError, SignedCheckpoint, origin};
use crate::layout::{CHECKPOINT, FULL, TileKind, TilePath, WIDTH, changed};

/// How many requests are under way at a time: what one connection loses by waiting for answers, others make good.
const UNDER_WAY: usize = 4;

/// How often it is noted what was sent: a kill costs what came since.
const NOTED: Duration = Duration::from_secs(5);

/// One try to bring a log up to its head.
pub struct Upload<'a> {
    pub settings: &'a SyncSettings,
    pub remote: &'a Remote,
    /// What is known of it.
    pub hint: &'a mut Hint,
    /// Whether the platform took something.
    pub got_on: &'a mut bool,
}

impl Upload<'_> {
    /// Sends what the platform lacks. When this returns `Ok`, it has the log up to the head.
    pub async fn send(&mut self, mut log: SignedLog) -> Result<(), SyncError> {
        let name = format!("{}/{CHECKPOINT}", log.generation);
        let there = self.there(&log, &name).await?;
        let after = there.as_ref().map_or(0, |there| there.size);
        log.sent = after;
        if after < log.head.size {
            self.send_tiles(&log, after).await?;
            // Where nothing could be read, something may be all the same.
            let put = self.remote.put(&name, Bytes::from(log.head.note.clone()), there.is_none()).await?;
            if put == Put::There {
                self.compare(&log, &name).await?;
            }
            *self.got_on = true;
        }
        let synced = Synced { size: log.head.size, at_ms: clock::unix_millis() };
        self.hint.logs.insert(log.generation, synced);
        self.hint.sending = self.hint.sending.filter(|sending| sending.generation != log.generation);
        self.hint.keep(&self.settings.folder).await;
        Ok(())
    }

    /// A checkpoint is there although none was: it must be the one that was put.
    async fn compare(&self, log: &SignedLog, name: &str) -> Result<(), SyncError> {
        match self.remote.checkpoint(name).await? {
            Found::File(note) if note == log.head.note => Ok(()),
            Found::File(_) => {
                let reason = format!("another {name} came while this one was on its way");
                Err(SyncError::Forked { generation: log.generation, reason })
            }
            Found::Nothing => Err(self.remote.unreadable(name, 404)),
            Found::Hidden => Err(self.remote.unreadable(name, 403)),
        }
    }

    /// The checkpoint on the platform, which must be one that this log had.
    async fn there(&self, log: &SignedLog, name: &str) -> Result<Option<SignedCheckpoint>, SyncError> {
        let SignedLog { generation, head, .. } = log;
        let forked = |reason: String| SyncError::Forked { generation: *generation, reason };
        let note = match self.remote.checkpoint(name).await? {
            Found::File(note) => note,
            // It was there once.
            Found::Hidden if self.hint.logs.contains_key(generation) => {
                return Err(self.remote.unreadable(name, 403));
            }
            Found::Nothing | Found::Hidden => return Ok(None),
        };
        let there = match SignedCheckpoint::open(&note, &self.settings.verifier_key) {
            Ok(there) => there,
            Err(error @ CheckpointError::Signature { .. }) => return Err(forked(format!("{name}: {error}"))),
            // Whatever a server says in the place of a file proves nothing.
            Err(error @ CheckpointError::Malformed { .. }) => {
                return Err(SyncError::Checkpoint { path: name.to_owned(), error });
            }
        };
        let origin = origin(&self.settings.device, *generation);
        if there.origin != origin {
            return Err(forked(format!("{name} is of {}, and not of {origin}", there.origin)));
        }
        if there.size > head.size {
            return Err(forked(format!("it has {} records, and this box {}", there.size, head.size)));
        }
        let root = match there.size {
            size if size == head.size => head.root,
            // A log without records has no tree.
            0 => there.root,
            size => log.read_root(size).await?,
        };
        if there.root != root {
            return Err(forked(format!("its first {} records are others than those of this box", there.size)));
        }
        Ok(Some(there))
    }

    async fn send_tiles(&mut self, log: &SignedLog, after: u64) -> Result<(), SyncError> {
        let mut sent = self.hint.sent(log.generation, after).min(log.head.size / WIDTH);
        if let Some(last) = sent.checked_sub(1).filter(|last| *last >= after / WIDTH) {
            // A platform that was put back to a backup may have lost what it had taken.
            let tile = TilePath { kind: TileKind::Entries, index: last, width: FULL };
            if put(self.remote, log, tile).await? == Put::New {
                sent = 0;
            }
        }
        let is_there =
            |tile: &TilePath| matches!(tile.kind, TileKind::Entries | TileKind::Hashes(0)) && tile.index < sent;
        let mut wanted = changed(after, log.head.size);
        wanted.retain(|tile| !is_there(tile));
        let remote = self.remote;
        let mut under_way = stream::iter(wanted)
            .map(|tile| async move { put(remote, log, tile).await.map(|put| (tile, put)) })
            .buffered(UNDER_WAY);
        let (mut noted, mut replaced) = (Instant::now(), false);
        let outcome = loop {
            let (tile, put) = match under_way.next().await {
                None => break Ok(()),
                Some(Err(error)) => break Err(error),
                Some(Ok(done)) => done,
            };
            replaced |= put == Put::Replaced;
            *self.got_on = true;
            // The hashes of records come after the records.
            if tile.kind == TileKind::Hashes(0) && u64::from(tile.width) == WIDTH {
                let (generation, tiles) = (log.generation, tile.index + 1);
                self.hint.sending = Some(Sending { generation, after, tiles });
            }
            if noted.elapsed() >= NOTED {
                noted = Instant::now();
                self.hint.keep(&self.settings.folder).await;
            }
        };
        if outcome.is_err() {
            self.hint.keep(&self.settings.folder).await;
        }
        if replaced {
            tracing::warn!(
                "the platform lets files of the audit log be replaced: it should refuse that, so that nobody can"
            );
        }
        outcome
    }
}

/// Puts a tile unless it is there. When this returns `Ok`, the platform has exactly its bytes.
async fn put(remote: &Remote, log: &SignedLog, tile: TilePath) -> Result<Put, SyncError> {
    let content = log.read(tile).await?;
    let path = format!("{}/{}", log.generation, tile.path());
    let put = remote.put(&path, content.clone(), true).await?;
    if put != Put::There {
        return Ok(put);
    }
    // One byte more shows that it is longer.
    match remote.get(&path, content.len() + 1).await? {
        Found::File(there) if there == content => Ok(put),
        Found::File(there) if content.starts_with(&there) => {
            Err(SyncError::Cut { path, length: there.len(), expected: content.len() })
        }
        Found::File(_) => {
            let reason = format!("{path} has other bytes there than on this box");
            Err(SyncError::Forked { generation: log.generation, reason })
        }
        Found::Nothing => Err(remote.unreadable(&path, 404)),
        Found::Hidden => Err(remote.unreadable(&path, 403)),
    }
}
