//! Backups: a snapshot of now, as a stream.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::super::backup_cipher::BackupRecipient;
use super::super::index::IndexError;
use super::super::online::FeatureError;
use super::super::record::DamagedBytes;
use super::super::snapshot::SnapshotWriter;
use super::super::view::ViewId;
use super::StoreEngine;
use super::commands::StoreWriterCommand;
use super::snapshots::SnapshotScanError;

/// The size of a piece, in bytes.
const PIECE_BYTES: usize = 64 << 10;
/// The pieces that are buffered for a caller who reads slowly.
const PIECES_BUFFERED: usize = 8;
/// The longest wait for a caller who reads nothing. Then the backup is abandoned, because it keeps its index open.
const READER_TIMEOUT: Duration = Duration::from_mins(1);

/// The pieces of a backup.
#[derive(Debug)]
pub struct BackupPieces {
    /// `None` marks the end of a complete backup.
    receiver: Receiver<Option<Bytes>>,
    over: bool,
}

impl BackupPieces {
    /// The next piece. An interrupted backup ends with an error, so that it is not taken for complete.
    pub async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.over {
            return None;
        }
        let piece = self.receiver.recv().await;
        self.over = !matches!(piece, Some(Some(_)));
        match piece {
            Some(piece) => piece.map(Ok),
            None => Some(Err(io::Error::other("the backup was interrupted; take another one"))),
        }
    }
}

/// Writes the records of the index, or those of one view, into a stream. Every push acknowledged before is included.
pub async fn start(
    engine: &Arc<StoreEngine>,
    view: Option<ViewId>,
    recipient: Option<BackupRecipient>,
    permit: OwnedSemaphorePermit,
) -> Result<BackupPieces, FeatureError> {
    let unavailable = || FeatureError::Unavailable { reason: engine.state.load().reason() };
    let (reply, marked) = oneshot::channel();
    let sent = engine.commands.send(StoreWriterCommand::Position { reply }).await;
    sent.map_err(|_| unavailable())?;
    let (replay_from, _) = marked.await.map_err(|_| unavailable())??;

    let index = engine.live().ok_or_else(unavailable)?;

    let (sender, receiver) = channel(PIECES_BUFFERED);
    let engine = engine.clone();
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let header =
            super::super::snapshot::SnapshotHeader { partial: view.is_some(), ..engine.snapshot_header(replay_from) };
        let mut stream = PieceWriter { sender, piece: Vec::with_capacity(PIECE_BYTES), runtime: Handle::current() };
        let prefix = view.map(|view| view.0.to_be_bytes());

        let fill = |output: &mut dyn Write| {
            let mut writer = SnapshotWriter::new(output, &header).map_err(SnapshotScanError::Io)?;
            let prefix = prefix.as_ref().map_or(&[][..], |prefix| prefix);
            index.scan_prefix::<SnapshotScanError>(prefix, |key, bytes| {
                if engine.protection.keys().is_none() {
                    return Ok(writer.add(&key, bytes)?);
                }
                match engine.protection.record(&key, bytes) {
                    Ok(record) => Ok(writer.add(&key, &record.encode(&key))?),
                    Err(DamagedBytes::Erased) => Ok(()),
                    Err(error) if error.is_undecryptable() => {
                        engine.leave_out(error);
                        Ok(())
                    }
                    Err(error) => Err(IndexError::damaged(format!("a record cannot be used: {error}")).into()),
                }
            })?;
            writer.finish()?;
            Ok(())
        };

        let written = match &recipient {
            None => fill(&mut stream),
            Some(recipient) => {
                let encrypted =
                    recipient.encrypt(&mut stream).map_err(|error| SnapshotScanError::Io(io::Error::other(error)));
                encrypted.and_then(|mut encrypted| {
                    fill(&mut encrypted)?;
                    Ok(encrypted.finish()?.flush()?)
                })
            }
        };

        let error = match written.and_then(|()| Ok(stream.send(None)?)) {
            Ok(()) => return,
            Err(SnapshotScanError::Index(error)) => {
                engine.give_up(&index, &error);
                io::Error::other(error)
            }
            Err(SnapshotScanError::Io(error)) => error,
        };
        tracing::warn!(%error, "a backup of the feature store was interrupted");
    });

    Ok(BackupPieces { receiver, over: false })
}

/// Writes a backup into a channel, in pieces.
struct PieceWriter {
    sender: Sender<Option<Bytes>>,
    piece: Vec<u8>,
    runtime: Handle,
}

impl PieceWriter {
    fn send(&self, piece: Option<Bytes>) -> io::Result<()> {
        self.runtime
            .block_on(self.sender.send_timeout(piece, READER_TIMEOUT))
            .map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the caller hung up, or stopped reading the backup"))
    }
}

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE_BYTES));
        self.send(Some(piece.into()))
    }
}
