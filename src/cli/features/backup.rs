//! Backups, restores, and the upkeep that can be asked for.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, bail};
use bytes::Bytes;
use futures_util::stream;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value as Json, json};

use super::daemon::{Daemon, checked};
use super::new_file::NewFile;
use crate::cli::Output;
use crate::cli::doctor::size;
use crate::features::snapshot::verify_file;

/// How much of a file is sent at a time.
const PIECE: usize = 256 << 10;

/// A bar of bytes; without a total it counts.
pub fn bytes_bar(total: Option<u64>) -> ProgressBar {
    let template = match total {
        Some(_) => "{bar:30} {bytes}/{total_bytes} {elapsed}",
        None => "{spinner} {bytes} {elapsed}",
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    total.map_or_else(ProgressBar::new_spinner, ProgressBar::new).with_style(style)
}

/// Receives what is at `path` into a file.
pub async fn receive(daemon: &mut Daemon, path: &str, file: &mut File) -> anyhow::Result<u64> {
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

/// `ledge features backup`.
pub async fn backup(daemon: &mut Daemon, path: &Path, force: bool, json: bool, out: &mut Output) -> anyhow::Result<()> {
    let (new, mut file) = NewFile::create(path, force)?;
    receive(daemon, "/features/backup", &mut file).await?;
    let summary = verify_file(new.temporary()).context("the backup is not whole")?;
    new.keep()?;
    if json {
        writeln!(out, "{}", json!({ "file": path, "records": summary.records, "bytes": summary.bytes }))?;
    } else {
        writeln!(out, "{}: {} records, {}", path.display(), summary.records, size(summary.bytes))?;
    }
    Ok(())
}

/// `ledge features restore`.
pub async fn restore(daemon: &mut Daemon, path: &Path, json: bool, out: &mut Output) -> anyhow::Result<()> {
    // Here already, before anything is sent: a server that refuses a large body closes the connection.
    verify_file(path).with_context(|| format!("{} cannot be restored", path.display()))?;
    let state: Json = daemon.get("/features/status").await?;
    if state.get("state").and_then(Json::as_str) == Some("disabled") {
        bail!("the server has no feature store: declare the feature views of the backup first");
    }
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let bar = bytes_bar(Some(length));
    let sent = bar.clone();
    let pieces = stream::unfold(file, move |mut file| {
        let mut piece = vec![0; PIECE];
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
        writeln!(out, "{} records are restored", answer.get("records").unwrap_or(&Json::Null))?;
    }
    Ok(())
}

/// `ledge features snapshot`.
pub async fn snapshot(daemon: &mut Daemon, json: bool, out: &mut Output) -> anyhow::Result<()> {
    let answer: Json = daemon.post("/features/snapshot", &json!({})).await?;
    if json {
        writeln!(out, "{answer}")?;
    } else {
        writeln!(out, "a snapshot of {} is taken", bytes(&answer, "bytes"))?;
    }
    Ok(())
}

/// `ledge features compact`.
pub async fn compact(daemon: &mut Daemon, json: bool, out: &mut Output) -> anyhow::Result<()> {
    let answer: Json = daemon.post("/features/compact", &json!({})).await?;
    if json {
        writeln!(out, "{answer}")?;
    } else {
        writeln!(
            out,
            "the index took {}, and takes {}",
            bytes(&answer, "bytes_before"),
            bytes(&answer, "bytes_after")
        )?;
    }
    Ok(())
}

fn bytes(answer: &Json, key: &str) -> String {
    size(answer.get(key).and_then(Json::as_u64).unwrap_or(0))
}
