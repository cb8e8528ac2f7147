//! Writes the files of a log other than its checkpoint.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use tlog_tiles::{Hash, record_hash};

use super::super::layout::{TILE_HEIGHT, TILE_WIDTH, TileKind, TilePath, whole_entries};
use super::super::local;
use super::AuditLogError;
use super::frontier::{AddedTreeHashes, TreeFrontier};
use super::hashes::{LEVELS, entries_path, hashes_path, whole_tile};
use super::inspect::ContinuableLog;

/// Writes at an offset of a file, which is created at offset 0. Also returns whether it was created.
fn write_at(path: &Path, content: &[u8], offset: u64) -> Result<(File, bool), AuditLogError> {
    let is_new = offset == 0;
    if is_new {
        durable::create_folder(path.parent().unwrap_or(path)).map_err(AuditLogError::at(path))?;
    }
    let open = OpenOptions::new().write(true).create(is_new).truncate(is_new).open(path);
    let file = open.map_err(AuditLogError::at(path))?;
    file.write_all_at(content, offset).map_err(AuditLogError::at(path))?;
    Ok((file, is_new))
}

/// Makes the content of a file survive a power cut.
fn sync(path: &Path, file: &File, is_new: bool) -> Result<(), AuditLogError> {
    file.sync_data().map_err(AuditLogError::at(path))?;
    if is_new { sync_folder_of(path) } else { Ok(()) }
}

fn sync_folder_of(path: &Path) -> Result<(), AuditLogError> {
    durable::sync_folder(path.parent().unwrap_or(path)).map_err(AuditLogError::at(path))
}

/// Writes records at the end of their file. When this returns, they survive a power cut.
pub fn append_entries(folder: &Path, index: u64, bundle: &[u8], offset: u64) -> Result<(), AuditLogError> {
    let path = entries_path(index).local(folder);
    let (file, is_new) = write_at(&path, bundle, offset)?;
    sync(&path, &file, is_new)
}

/// Writes the hashes by which the levels grew since `old` leaves. When this returns, they survive a power cut, except
/// those of the last tile of level 0, which a start computes from the records.
pub fn append_hashes(folder: &Path, old: u64, grown: &AddedTreeHashes) -> Result<(), AuditLogError> {
    for (level, hashes) in (0..LEVELS).zip(grown) {
        let mut rest = hashes.as_slice();
        let mut number = old >> (u32::from(TILE_HEIGHT) * u32::from(level));
        while !rest.is_empty() {
            let (index, offset) = (number / TILE_WIDTH, number % TILE_WIDTH);
            let room = usize::try_from(TILE_WIDTH - offset).unwrap_or_default();
            let (now, later) = rest.split_at(room.min(rest.len()));
            let path = hashes_path(level, index).local(folder);
            let (file, is_new) = write_at(&path, &bytes(now), offset * 32)?;
            if level > 0 || now.len() == room {
                sync(&path, &file, is_new)?;
            }
            (rest, number) = (later, number + now.len() as u64);
        }
    }
    Ok(())
}

/// Makes the files end where the edge ends.
///
/// For a failed write or fsync, of which any part may have reached the disk: nothing of it may stay. Earlier durable
/// records are checked, because the system may have dropped pages that it could not write.
pub fn restore(folder: &Path, edge: &TreeFrontier, tail: u64) -> Result<(), AuditLogError> {
    let path = cut(folder, TileKind::Entries, edge.size() / TILE_WIDTH, tail)?;
    for level in 0..LEVELS {
        let count = edge.size() >> (u32::from(TILE_HEIGHT) * u32::from(level));
        cut(folder, TileKind::Hashes(level), count / TILE_WIDTH, count % TILE_WIDTH * 32)?;
        let hashes = edge.level(level);
        if !hashes.is_empty() {
            ensure_hashes(folder, level, count / TILE_WIDTH, hashes)?;
        }
    }

    let content = local::read(&path).map_err(AuditLogError::at(&path))?.unwrap_or_default();
    let (entries, rest) = whole_entries(&content);
    let is_same = rest.is_empty() && entries.iter().map(|entry| record_hash(entry)).eq(edge.level(0).iter().copied());
    if is_same {
        return Ok(());
    }
    let error = io::Error::new(io::ErrorKind::InvalidData, "its content is not what was written");
    Err(AuditLogError::File { path, error })
}

/// Cuts the last file of a kind, which still grows, and removes those after it. Returns its path.
fn cut(folder: &Path, kind: TileKind, index: u64, length: u64) -> Result<PathBuf, AuditLogError> {
    let last = TilePath { kind, index, width: 1 }.local(folder);
    if length == 0 {
        remove(&last)?;
    } else if kind == TileKind::Entries || last.exists() {
        let file = OpenOptions::new().write(true).open(&last).map_err(AuditLogError::at(&last))?;
        if file.metadata().map_err(AuditLogError::at(&last))?.len() != length {
            file.set_len(length).map_err(AuditLogError::at(&last))?;
        }
        file.sync_all().map_err(AuditLogError::at(&last))?;
    }
    for index in index + 1.. {
        let path = TilePath { kind, index, width: 1 }.local(folder);
        if std::fs::symlink_metadata(&path).is_err() {
            break;
        }
        remove(&path)?;
    }
    Ok(last)
}

/// Removes a file if it exists; returns its length.
pub fn remove(path: &Path) -> Result<u64, AuditLogError> {
    let length = std::fs::symlink_metadata(path).map_or(0, |about| about.len());
    match std::fs::remove_file(path) {
        Ok(()) => Ok(length),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(AuditLogError::at(path)(error)),
    }
}

/// Makes the files of a log fit its state: hashes of the records that exist, and nothing after the last whole record.
/// When this returns, all of it survives a power cut.
pub fn adopt(folder: &Path, found: &ContinuableLog) -> Result<TreeFrontier, AuditLogError> {
    let base = found.base.size() / TILE_WIDTH;
    // Pruning removes the records first: a daemon that was killed left their hashes.
    for (index, _) in local::files(folder, TileKind::Hashes(0)).map_err(AuditLogError::at(folder))?.range(..found.first)
    {
        remove(&hashes_path(0, *index).local(folder))?;
    }

    if let Some(grown) = &found.rebuilt {
        for (level, hashes) in (1..LEVELS).zip(grown.iter().skip(1)) {
            for (index, hashes) in (0..).zip(hashes.chunks(1 << TILE_HEIGHT)) {
                ensure_hashes(folder, level, index, hashes)?;
            }
        }
    }
    let tiles = local::files(folder, TileKind::Hashes(0)).map_err(AuditLogError::at(folder))?;
    for index in found.first..base {
        if (found.rebuilt.is_some() || tiles.get(&index) != Some(&(TILE_WIDTH * 32)))
            && let Some(leaves) = whole_tile(folder, index)?
        {
            ensure_hashes(folder, 0, index, &leaves)?;
        }
    }

    let (mut edge, mut grown) = (found.base.clone(), AddedTreeHashes::new());
    for leaf in &found.leaves {
        edge.push(*leaf, &mut grown);
    }
    for (level, grown) in (0..LEVELS).zip(&grown) {
        let count = found.base.size() >> (u32::from(TILE_HEIGHT) * u32::from(level));
        let hashes = [found.base.level(level), grown].concat();
        for (index, hashes) in (count / TILE_WIDTH..).zip(hashes.chunks(1 << TILE_HEIGHT)) {
            ensure_hashes(folder, level, index, hashes)?;
        }
    }
    for level in 0..LEVELS {
        let count = edge.size() >> (u32::from(TILE_HEIGHT) * u32::from(level));
        remove_from(folder, TileKind::Hashes(level), count.div_ceil(TILE_WIDTH))?;
    }
    remove_from(folder, TileKind::Entries, edge.size().div_ceil(TILE_WIDTH))?;

    restore(folder, &edge, found.tail)?;
    // A daemon may have written them and been killed before their fsync.
    for index in base..edge.size().div_ceil(TILE_WIDTH) {
        let path = entries_path(index).local(folder);
        let file = File::open(&path).map_err(AuditLogError::at(&path))?;
        sync(&path, &file, true)?;
    }
    Ok(edge)
}

/// Removes the files of a kind from an index on. After a power cut there may be gaps between them.
fn remove_from(folder: &Path, kind: TileKind, index: u64) -> Result<(), AuditLogError> {
    for (index, _) in local::files(folder, kind).map_err(AuditLogError::at(folder))?.range(index..) {
        remove(&TilePath { kind, index: *index, width: 1 }.local(folder))?;
    }
    Ok(())
}

/// Makes the file of a tile hold exactly these hashes.
fn ensure_hashes(folder: &Path, level: u8, index: u64, hashes: &[Hash]) -> Result<(), AuditLogError> {
    let path = hashes_path(level, index).local(folder);
    let expected = bytes(hashes);
    if local::read(&path).map_err(AuditLogError::at(&path))?.as_ref() == Some(&expected) {
        let file = File::open(&path).map_err(AuditLogError::at(&path))?;
        return sync(&path, &file, true);
    }
    durable::create_folder(path.parent().unwrap_or(&path)).map_err(AuditLogError::at(&path))?;
    durable::replace(&path, &expected).map_err(AuditLogError::at(&path))
}

fn bytes(hashes: &[Hash]) -> Vec<u8> {
    hashes.iter().flat_map(|hash| hash.0).collect()
}

/// The number of bytes of all files in a folder and below it.
pub fn bytes_in(folder: &Path) -> io::Result<u64> {
    let (mut sum, mut folders) = (0, vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let about = entry.metadata()?;
            if about.is_dir() { folders.push(entry.path()) } else { sum += about.len() }
        }
    }
    Ok(sum)
}
