//! Backup and restore, snapshots and compaction.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::sync::mpsc;

use anyhow::{Context, bail};
use bytes::Bytes;
use futures_util::stream;
use indicatif::ProgressBar;
use ledge_base::secret::SecretFile;
use ledge_features::backup_cipher::{BackupIdentity, BackupRecipient};
use ledge_features::backup_form::is_encrypted;
use ledge_features::snapshot::{SnapshotReader, SnapshotSize, verify_file};
use ledge_part::check::size;
use serde_json::{Value as Json, json};

use super::daemon::{DaemonClient, checked};
use super::new_file::NewFile;
use crate::cli::{Output, progress};

/// The size of the pieces in which a file is read and sent, in bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// A progress bar of bytes; without a total, a counter.
pub fn bytes_bar(total: Option<u64>) -> ProgressBar {
    let template = match total {
        Some(_) => "{bar:30} {bytes}/{total_bytes} {elapsed}",
        None => "{spinner} {bytes} {elapsed}",
    };
    progress::bar(total, template)
}

/// Downloads the body at `path` into a file, and returns its length.
pub async fn receive(daemon: &mut DaemonClient, path: &str, file: &mut File) -> anyhow::Result<u64> {
    let mut download = daemon.download(path).await?;
    let bar = bytes_bar(None);
    let mut bytes = 0;
    while let Some(piece) = download.next().await? {
        file.write_all(&piece)?;
        bytes += piece.len() as u64;
        bar.set_position(bytes);
    }
    bar.finish_and_clear();
    Ok(bytes)
}

/// The recipient of a backup; `None` without encryption.
pub fn recipient(to: Option<&str>, passphrase: Option<&Path>) -> anyhow::Result<Option<BackupRecipient>> {
    Ok(match (to, passphrase) {
        (Some(to), _) => Some(BackupRecipient::key(to)?),
        (None, Some(file)) => Some(BackupRecipient::passphrase(&secret(file)?)?),
        (None, None) => None,
    })
}

/// The identity that decrypts a backup; `None` without encryption.
pub fn identity(identity: Option<&Path>, passphrase: Option<&Path>) -> anyhow::Result<Option<BackupIdentity>> {
    Ok(match (identity, passphrase) {
        (Some(file), _) => {
            let keys = BackupIdentity::keys(&secret(file)?);
            Some(keys.with_context(|| format!("{} is not a usable age identity", file.display()))?)
        }
        (None, Some(file)) => Some(BackupIdentity::passphrase(&secret(file)?)?),
        (None, None) => None,
    })
}

fn secret(file: &Path) -> anyhow::Result<String> {
    Ok(SecretFile::Path(file.to_owned()).read_text()?)
}

/// `ledge features backup`.
pub async fn backup(
    daemon: &mut DaemonClient,
    path: &Path,
    force: bool,
    to: Option<BackupRecipient>,
    plain: bool,
    json: bool,
    out: &mut Output,
) -> anyhow::Result<()> {
    let (new, mut file) = NewFile::create(path, force)?;
    let summary = if let Some(to) = &to {
        // Verify it before it is encrypted, because the encrypted file cannot be read again here.
        receive_encrypted(daemon, to, file).await?
    } else {
        let wanted = if plain { "/features/backup?plain=true" } else { "/features/backup" };
        receive(daemon, wanted, &mut file).await?;
        verify_file(new.temporary()).context("the backup is incomplete or damaged")?
    };
    new.keep()?;
    if json {
        writeln!(out, "{}", json!({ "file": path, "records": summary.records, "bytes": summary.bytes }))?;
    } else {
        let encrypted = if to.is_some() { ", encrypted" } else { "" };
        writeln!(out, "{}: {} records, {}{encrypted}", path.display(), summary.records, size(summary.bytes))?;
    }
    Ok(())
}

/// Reads from a channel, and writes everything that was read to the encrypting output.
struct EncryptingTee<W: Write> {
    pieces: mpsc::Receiver<Bytes>,
    piece: Bytes,
    output: W,
}

impl<W: Write> Read for EncryptingTee<W> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.piece.is_empty() {
            match self.pieces.recv() {
                Ok(piece) => self.piece = piece,
                Err(_) => return Ok(0),
            }
        }
        let taken = self.piece.split_to(buffer.len().min(self.piece.len()));
        self.output.write_all(&taken)?;
        buffer.get_mut(..taken.len()).map_or(Ok(0), |place| {
            place.copy_from_slice(&taken);
            Ok(taken.len())
        })
    }
}

async fn receive_encrypted(
    daemon: &mut DaemonClient,
    to: &BackupRecipient,
    file: File,
) -> anyhow::Result<SnapshotSize> {
    let (sender, pieces) = mpsc::sync_channel(16);
    let output = to.encrypt(file)?;
    let writing = std::thread::spawn(move || -> anyhow::Result<SnapshotSize> {
        let mut tee = EncryptingTee { pieces, piece: Bytes::new(), output };
        let mut reader = SnapshotReader::new(BufReader::with_capacity(CHUNK_BYTES, &mut tee))?;
        while reader.next()?.is_some() {}
        let summary = reader.summary();
        drop(reader);
        tee.output.finish()?.sync_all()?;
        Ok(summary)
    });

    let mut download = daemon.download("/features/backup?plain=true").await?;
    let bar = bytes_bar(None);
    while let Some(piece) = download.next().await? {
        bar.inc(piece.len() as u64);
        if sender.send(piece).is_err() {
            break;
        }
    }
    drop(sender);
    bar.finish_and_clear();
    let summary = writing
        .join()
        .map_err(|_| anyhow::anyhow!("the backup could not be encrypted: the thread that encrypts it has failed"))?;
    summary.context("the backup is incomplete or damaged")
}

/// Opens a backup, and decrypts it if it is encrypted.
fn open_backup(path: &Path, with: Option<&BackupIdentity>) -> anyhow::Result<Box<dyn Read + Send>> {
    let mut file = BufReader::with_capacity(CHUNK_BYTES, File::open(path)?);
    match (is_encrypted(&mut file)?, with) {
        (false, _) => Ok(Box::new(file)),
        (true, Some(with)) => Ok(Box::new(BufReader::with_capacity(CHUNK_BYTES, with.decrypt(file)?))),
        (true, None) => bail!("the backup is encrypted: add --identity FILE or --passphrase-file FILE"),
    }
}

/// Reads a backup to its end.
fn verify(path: &Path, with: Option<&BackupIdentity>) -> anyhow::Result<SnapshotSize> {
    let mut reader = SnapshotReader::new(open_backup(path, with)?)?;
    while reader.next()?.is_some() {}
    Ok(reader.summary())
}

/// `ledge features restore`.
pub async fn restore(
    daemon: &mut DaemonClient,
    path: &Path,
    with: Option<BackupIdentity>,
    json: bool,
    out: &mut Output,
) -> anyhow::Result<()> {
    // Verify it before anything is sent: a server that refuses a large body closes the connection without a reason.
    let summary = verify(path, with.as_ref()).with_context(|| format!("{} cannot be restored", path.display()))?;
    let state: Json = daemon.get("/features/status").await?;
    if state.get("state").and_then(Json::as_str) == Some("disabled") {
        bail!("the server has no feature store: declare the feature views of the backup first");
    }

    let length = summary.bytes;
    let bar = bytes_bar(Some(length));
    let sent = bar.clone();
    let pieces = stream::unfold(open_backup(path, with.as_ref())?, move |mut file| {
        let mut piece = vec![0; CHUNK_BYTES];
        let read = file.read(&mut piece);
        let piece = read.map(|count| {
            piece.truncate(count);
            sent.inc(count as u64);
            Bytes::from(piece)
        });
        std::future::ready(match piece {
            Ok(piece) if piece.is_empty() => None,
            piece => Some((piece, file)),
        })
    });

    let answer = daemon.connection().await?.upload("/features/restore", length, pieces).await;
    bar.finish_and_clear();
    let answer: Json = serde_json::from_slice(&checked(answer?)?)?;
    if json {
        writeln!(out, "{answer}")?;
    } else {
        writeln!(out, "restored: {} records", answer.get("records").unwrap_or(&Json::Null))?;
    }
    Ok(())
}

/// `ledge features snapshot`.
pub async fn snapshot(daemon: &mut DaemonClient, json: bool, out: &mut Output) -> anyhow::Result<()> {
    let answer: Json = daemon.post("/features/snapshot", &json!({})).await?;
    if json {
        writeln!(out, "{answer}")?;
    } else {
        writeln!(out, "took a snapshot of {}", bytes(&answer, "bytes"))?;
    }
    Ok(())
}

/// `ledge features compact`.
pub async fn compact(daemon: &mut DaemonClient, json: bool, out: &mut Output) -> anyhow::Result<()> {
    let answer: Json = daemon.post("/features/compact", &json!({})).await?;
    if json {
        writeln!(out, "{answer}")?;
    } else {
        writeln!(
            out,
            "the index took {} before and takes {} now",
            bytes(&answer, "bytes_before"),
            bytes(&answer, "bytes_after")
        )?;
    }
    Ok(())
}

fn bytes(answer: &Json, key: &str) -> String {
    size(answer.get(key).and_then(Json::as_u64).unwrap_or(0))
}
