//! Brings one log on the platform up to a signed head: its tiles first, then the checkpoint that covers them.
//!
//! A tile is put under a unique name, on the condition that no file has that name yet, so that putting it twice changes
//! nothing. A file that has the name already must have the same bytes, else the platform has another history of the
//! log. The checkpoint there is always one of this log, and everything that it covers is there.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use ledge_base::clock;

use super::hint::{AuditSyncProgress, UnconfirmedTiles, UploadedLog};
use super::remote::{AuditRemote, RemoteGetOutcome, RemotePutOutcome};
use super::tiles::SignedLog;
use super::{AuditSyncError, AuditSyncSettings};
use crate::key::{CheckpointError, SignedCheckpoint, origin};
use crate::layout::{CHECKPOINT, FULL_WIDTH, TILE_WIDTH, TileKind, TilePath, changed};

/// Number of requests in flight at a time: while one connection waits for an answer, others send.
const REQUESTS_IN_FLIGHT: usize = 4;

/// Interval between two saves of the progress. After a kill, tiles sent since then are sent again.
const HINT_SAVE_INTERVAL: Duration = Duration::from_secs(5);

/// One attempt to upload a log up to its head.
pub struct AuditLogUpload<'a> {
    pub settings: &'a AuditSyncSettings,
    pub remote: &'a AuditRemote,
    /// The state of the platform at the last contact.
    pub hint: &'a mut AuditSyncProgress,
    /// Set when the platform takes a file.
    pub made_progress: &'a mut bool,
}

impl AuditLogUpload<'_> {
    /// Sends the records that the platform lacks. When this returns `Ok`, it has the log up to the head.
    pub async fn send(&mut self, mut log: SignedLog) -> Result<(), AuditSyncError> {
        let name = format!("{}/{CHECKPOINT}", log.generation);
        let there = self.there(&log, &name).await?;
        let after = there.as_ref().map_or(0, |there| there.size);
        log.sent = after;

        if after < log.head.size {
            self.send_tiles(&log, after).await?;
            // A checkpoint that could not be read may exist all the same.
            let put = self.remote.put(&name, Bytes::from(log.head.note.clone()), there.is_none()).await?;
            if put == RemotePutOutcome::There {
                self.compare(&log, &name).await?;
            }
            *self.made_progress = true;
        }

        let synced = UploadedLog { size: log.head.size, at_ms: clock::unix_millis() };
        self.hint.logs.insert(log.generation, synced);
        self.hint.sending = self.hint.sending.filter(|sending| sending.generation != log.generation);
        self.hint.keep(&self.settings.folder).await;
        Ok(())
    }

    /// Checks a checkpoint that appeared meanwhile: it must be the one that was put.
    async fn compare(&self, log: &SignedLog, name: &str) -> Result<(), AuditSyncError> {
        match self.remote.checkpoint(name).await? {
            RemoteGetOutcome::File(note) if note == log.head.note => Ok(()),
            RemoteGetOutcome::File(_) => {
                let reason = format!("another {name} was put there while this one was being sent");
                Err(AuditSyncError::Forked { generation: log.generation, reason })
            }
            RemoteGetOutcome::Nothing => Err(self.remote.unreadable(name, 404)),
            RemoteGetOutcome::Hidden => Err(self.remote.unreadable(name, 403)),
        }
    }

    /// The checkpoint on the platform, which must be one that this log had.
    async fn there(&self, log: &SignedLog, name: &str) -> Result<Option<SignedCheckpoint>, AuditSyncError> {
        let SignedLog { generation, head, .. } = log;
        let forked = |reason: String| AuditSyncError::Forked { generation: *generation, reason };
        let note = match self.remote.checkpoint(name).await? {
            RemoteGetOutcome::File(note) => note,
            // There was one at an earlier contact.
            RemoteGetOutcome::Hidden if self.hint.logs.contains_key(generation) => {
                return Err(self.remote.unreadable(name, 403));
            }
            RemoteGetOutcome::Nothing | RemoteGetOutcome::Hidden => return Ok(None),
        };

        let there = match SignedCheckpoint::open(&note, &self.settings.verifier_key) {
            Ok(there) => there,
            Err(error @ CheckpointError::Signature { .. }) => return Err(forked(format!("{name}: {error}"))),
            // A server may answer with anything in place of the file: that proves no other history.
            Err(error @ CheckpointError::Malformed { .. }) => {
                return Err(AuditSyncError::Checkpoint { path: name.to_owned(), error });
            }
        };

        let origin = origin(&self.settings.device, *generation);
        if there.origin != origin {
            return Err(forked(format!("{name} is that of {}, expected {origin}", there.origin)));
        }
        if there.size > head.size {
            return Err(forked(format!("it has {} records there and {} on this box", there.size, head.size)));
        }

        let root = match there.size {
            size if size == head.size => head.root,
            // A log without records has no tree.
            0 => there.root,
            size => log.read_root(size).await?,
        };
        if there.root != root {
            return Err(forked(format!("its first {} records differ from those on this box", there.size)));
        }
        Ok(Some(there))
    }

    async fn send_tiles(&mut self, log: &SignedLog, after: u64) -> Result<(), AuditSyncError> {
        let mut sent = self.hint.sent(log.generation, after).min(log.head.size / TILE_WIDTH);
        if let Some(last) = sent.checked_sub(1).filter(|last| *last >= after / TILE_WIDTH) {
            // A platform that was restored from a backup may have lost tiles that it had taken.
            let tile = TilePath { kind: TileKind::Entries, index: last, width: FULL_WIDTH };
            if put(self.remote, log, tile).await? == RemotePutOutcome::New {
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
            .buffered(REQUESTS_IN_FLIGHT);
        let (mut noted, mut replaced) = (Instant::now(), false);

        let outcome = loop {
            let (tile, put) = match under_way.next().await {
                None => break Ok(()),
                Some(Err(error)) => break Err(error),
                Some(Ok(done)) => done,
            };
            replaced |= put == RemotePutOutcome::Replaced;
            *self.made_progress = true;
            // The hashes of records are sent after the records.
            if tile.kind == TileKind::Hashes(0) && u64::from(tile.width) == TILE_WIDTH {
                let (generation, tiles) = (log.generation, tile.index + 1);
                self.hint.sending = Some(UnconfirmedTiles { generation, after, tiles });
            }
            if noted.elapsed() >= HINT_SAVE_INTERVAL {
                noted = Instant::now();
                self.hint.keep(&self.settings.folder).await;
            }
        };

        if outcome.is_err() {
            self.hint.keep(&self.settings.folder).await;
        }
        if replaced {
            tracing::warn!(
                "the platform replaces files of the audit log: configure it to refuse a PUT to a file that exists"
            );
        }
        outcome
    }
}

/// Puts a tile unless it exists. When this returns `Ok`, the platform has exactly its bytes.
async fn put(remote: &AuditRemote, log: &SignedLog, tile: TilePath) -> Result<RemotePutOutcome, AuditSyncError> {
    let content = log.read(tile).await?;
    let path = format!("{}/{}", log.generation, tile.path());
    let put = remote.put(&path, content.clone(), true).await?;
    if put != RemotePutOutcome::There {
        return Ok(put);
    }

    // One more byte would show that the file is longer.
    match remote.get(&path, content.len() + 1).await? {
        RemoteGetOutcome::File(there) if there == content => Ok(put),
        RemoteGetOutcome::File(there) if content.starts_with(&there) => {
            Err(AuditSyncError::Cut { path, length: there.len(), expected: content.len() })
        }
        RemoteGetOutcome::File(_) => {
            let reason = format!("{path} has other bytes there than on this box");
            Err(AuditSyncError::Forked { generation: log.generation, reason })
        }
        RemoteGetOutcome::Nothing => Err(remote.unreadable(&path, 404)),
        RemoteGetOutcome::Hidden => Err(remote.unreadable(&path, 403)),
    }
}
