//! Backups: a snapshot of now, as a stream.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::super::backup_cipher::BackupRecipient;
use super::super::online::FeatureError;
use super::super::record::Damaged;
use super::super::snapshot::SnapshotWriter;
use super::super::store::IndexError;
use super::super::view::ViewId;
use super::Engine;
use super::orders::Command;
use super::snapshots::ScanError;

/// How much is handed on at a time.
const PIECE: usize = 64 << 10;
/// How many pieces wait for a caller who reads slowly.
const PIECES: usize = 8;
/// A caller who takes nothing for so long is given up: a backup holds on to the index that it reads.
const STALL: Duration = Duration::from_mins(1);

/// The pieces of a backup.
#[derive(Debug)]
pub struct Pieces {
    /// `None` comes at the end of a whole one.
    receiver: Receiver<Option<Bytes>>,
    over: bool,
}

impl Pieces {
    /// The next piece. One that broke off ends with an error, so that nobody takes it for whole.
    pub async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.over {
            return None;
        }
        let piece = self.receiver.recv().await;
        self.over = !matches!(piece, Some(Some(_)));
        match piece {
            Some(piece) => piece.map(Ok),
            None => Some(Err(io::Error::other("the backup broke off"))),
        }
    }
}

/// Writes what the index has now, or the rows of one view, into a stream. Everything that was acknowledged before is in it.
pub async fn start(
    engine: &Arc<Engine>,
    view: Option<ViewId>,
    recipient: Option<BackupRecipient>,
    permit: OwnedSemaphorePermit,
) -> Result<Pieces, FeatureError> {
    let unavailable = || FeatureError::Unavailable { reason: engine.state.load().reason() };
    let (reply, marked) = oneshot::channel();
    let sent = engine.commands.send(Command::Mark { rotate: false, reply }).await;
    sent.map_err(|_| unavailable())?;
    let (replay_from, _) = marked.await.map_err(|_| unavailable())??;
    let index = engine.live().ok_or_else(unavailable)?;
    let (sender, receiver) = channel(PIECES);
    let engine = engine.clone();
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let header = super::super::snapshot::Header { partial: view.is_some(), ..engine.snapshot_header(replay_from) };
        let mut stream = PieceWriter { sender, piece: Vec::with_capacity(PIECE), runtime: Handle::current() };
        let prefix = view.map(|view| view.0.to_be_bytes());
        let fill = |output: &mut dyn Write| {
            let mut writer = SnapshotWriter::new(output, &header).map_err(ScanError::Io)?;
            let prefix = prefix.as_ref().map_or(&[][..], |prefix| prefix);
            index.scan_prefix::<ScanError>(prefix, |key, bytes| {
                if engine.protection.keys().is_none() {
                    return Ok(writer.add(&key, bytes)?);
                }
                match engine.protection.record(&key, bytes) {
                    Ok(record) => Ok(writer.add(&key, &record.encode(&key))?),
                    Err(Damaged::Erased) => Ok(()),
                    Err(error) => Err(IndexError::damaged(format!("of a record, {error}")).into()),
                }
            })?;
            writer.finish()?;
            Ok(())
        };
        let written = match &recipient {
            None => fill(&mut stream),
            Some(recipient) => {
                let encrypted = recipient.encrypt(&mut stream).map_err(|error| ScanError::Io(io::Error::other(error)));
                encrypted.and_then(|mut encrypted| {
                    fill(&mut encrypted)?;
                    Ok(encrypted.finish()?.flush()?)
                })
            }
        };
        let error = match written.and_then(|()| Ok(stream.send(None)?)) {
            Ok(()) => return,
            Err(ScanError::Index(error)) => {
                engine.give_up(&index, &error);
                io::Error::other(error)
            }
            Err(ScanError::Io(error)) => error,
        };
        tracing::warn!(%error, "a backup of the feature store broke off");
    });
    Ok(Pieces { receiver, over: false })
}

/// Writes into a channel.
struct PieceWriter {
    sender: Sender<Option<Bytes>>,
    piece: Vec<u8>,
    runtime: Handle,
}

impl PieceWriter {
    fn send(&self, piece: Option<Bytes>) -> io::Result<()> {
        self.runtime
            .block_on(self.sender.send_timeout(piece, STALL))
            .map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the caller is gone, or takes nothing"))
    }
}

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        self.send(Some(piece.into()))
    }
}
