//! Snapshots in a folder.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

use ledge_base::durable;

use super::{SnapshotError, SnapshotHeader, SnapshotReader, SnapshotSize, SnapshotWriter};
use crate::record;

/// The end of the name of an unfinished snapshot.
const UNFINISHED_SUFFIX: &str = ".tmp";
/// The bytes after which a snapshot that is being written is synced. Pushes wait for other syncs of the disk, and one
/// sync of the whole file would delay these until gigabytes are written.
const SYNC_BYTES: usize = 8 << 20;
/// The bytes that are read at once.
const READ_BYTES: usize = 256 << 10;

/// The file of a snapshot that is being written, synced again and again.
#[derive(Debug)]
pub struct SnapshotFile {
    file: File,
    /// The bytes that were written since the last sync.
    unsynced: usize,
}

impl Write for SnapshotFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.unsynced += count;
        if self.unsynced >= SYNC_BYTES {
            self.file.sync_data()?;
            self.unsynced = 0;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The name of the snapshot after which the journal is replayed from `replay_from` on.
pub fn file_name(replay_from: u64) -> String {
    format!("snapshot-{replay_from:016x}.ledge")
}

fn replay_from(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("snapshot-")?.strip_suffix(".ledge")?;
    let replay_from = u64::from_str_radix(digits, 16).ok()?;
    (file_name(replay_from) == name).then_some(replay_from)
}

/// The snapshots in `folder`, the newest first, each with the sequence number where the replay begins.
pub fn list(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in folder.read_dir()? {
        let entry = entry?;
        if let Some(replay_from) = entry.file_name().to_str().and_then(replay_from) {
            found.push((replay_from, entry.path()));
        }
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

/// A snapshot with another number than its name says: the file was put in the place of another one.
#[derive(Debug)]
pub struct MisplacedSnapshot {
    pub path: PathBuf,
    /// The number that its header states.
    pub number: u64,
}

/// The snapshots in `folder` with another number in the header than in the name. Damaged ones are left out.
pub fn misplaced(folder: &Path) -> io::Result<Vec<MisplacedSnapshot>> {
    let mut found = Vec::new();
    for (named, path) in list(folder)? {
        let header = File::open(&path).map_err(SnapshotError::Read);
        let header = header.and_then(|file| Ok(SnapshotReader::new(BufReader::new(file))?.header().replay_from));
        if let Ok(number) = header
            && number != named
        {
            found.push(MisplacedSnapshot { path, number });
        }
    }
    Ok(found)
}

/// Writes a snapshot into the existing `folder`; `fill` adds the records.
///
/// When this returns `Ok`, the snapshot survives a power cut, and was read back completely. When it fails, the folder
/// has its earlier snapshots. A power cut in the middle leaves a file that [`list`] ignores and [`remove_unfinished`]
/// removes; so no two calls may run at the same time.
pub fn write_file(
    folder: &Path,
    header: &SnapshotHeader,
    fill: impl FnOnce(&mut SnapshotWriter<SnapshotFile>) -> io::Result<()>,
) -> Result<(PathBuf, SnapshotSize), SnapshotError> {
    let path = folder.join(file_name(header.replay_from));
    let temporary = path.with_extension(format!("ledge{UNFINISHED_SUFFIX}"));
    let written = remove_unfinished(folder)
        .and_then(|_| write(&temporary, header, fill))
        .map_err(|source| SnapshotError::Write { file: path.clone(), source });
    let done = written.and_then(|summary| {
        read_back(&temporary, header, summary)?;
        durable::rename(&temporary, &path).map_err(|source| SnapshotError::Write { file: path.clone(), source })?;
        Ok(summary)
    });
    if done.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    done.map(|summary| (path, summary))
}

fn write(
    path: &Path,
    header: &SnapshotHeader,
    fill: impl FnOnce(&mut SnapshotWriter<SnapshotFile>) -> io::Result<()>,
) -> io::Result<SnapshotSize> {
    let created = OpenOptions::new().write(true).create_new(true).open(path)?;
    let mut writer = SnapshotWriter::new(SnapshotFile { file: created, unsynced: 0 }, header)?;
    fill(&mut writer)?;
    let (written, summary) = writer.finish()?;
    written.file.sync_all()?;
    Ok(summary)
}

/// Reads a snapshot to its end and checks every checksum, and that it is the one that its name says.
pub fn verify_file(path: &Path) -> Result<SnapshotSize, SnapshotError> {
    let reader = read_all(path)?;
    let named = path.file_name().and_then(|name| replay_from(name.to_str()?));
    let number = reader.header().replay_from;
    if named.is_some_and(|named| named != number) {
        Err(SnapshotError::Misplaced { number })
    } else {
        Ok(reader.summary())
    }
}

fn read_all(path: &Path) -> Result<SnapshotReader<BufReader<File>>, SnapshotError> {
    let file = File::open(path).map_err(SnapshotError::Read)?;
    let mut reader = SnapshotReader::new(BufReader::with_capacity(READ_BYTES, file))?;
    while let Some((key, record)) = reader.next()? {
        let offset = reader.summary().bytes;
        record::verify(&key, &record).map_err(|reason| SnapshotError::Damaged { offset, reason })?;
    }
    Ok(reader)
}

fn read_back(path: &Path, header: &SnapshotHeader, summary: SnapshotSize) -> Result<(), SnapshotError> {
    let reader = read_all(path)?;
    if reader.summary() != summary || reader.header() != header {
        return Err(SnapshotError::ReadBack { found: reader.summary().records, written: summary.records });
    }
    Ok(())
}

/// Removes the unfinished snapshots of killed processes. Returns the number of bytes that this freed.
pub fn remove_unfinished(folder: &Path) -> io::Result<u64> {
    let mut freed = 0;
    for entry in folder.read_dir()? {
        let entry = entry?;
        if entry.file_name().to_str().and_then(|name| replay_from(name.strip_suffix(UNFINISHED_SUFFIX)?)).is_some() {
            let bytes = entry.metadata()?.len();
            std::fs::remove_file(entry.path())?;
            freed += bytes;
        }
    }
    Ok(freed)
}
