//! What is written of a log, but for its checkpoint.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use tlog_tiles::{Hash, record_hash};

use super::super::layout::{HEIGHT, TileKind, TilePath, WIDTH, whole_entries};
use super::super::local;
use super::LogError;
use super::frontier::{Frontier, Grown};
use super::hashes::{LEVELS, hashes_path, whole_tile};
use super::inspect::{Found, entries_path};

/// Writes at a place of a file, which is made when the place is its beginning. Whether it was made.
fn write_at(path: &Path, content: &[u8], offset: u64) -> Result<(File, bool), LogError> {
    let is_new = offset == 0;
    if is_new {
        durable::create_folder(path.parent().unwrap_or(path)).map_err(LogError::at(path))?;
    }
    let open = OpenOptions::new().write(true).create(is_new).truncate(is_new).open(path);
    let file = open.map_err(LogError::at(path))?;
    file.write_all_at(content, offset).map_err(LogError::at(path))?;
    Ok((file, is_new))
}

/// Makes what was written survive a power cut.
fn sync(path: &Path, file: &File, is_new: bool) -> Result<(), LogError> {
    file.sync_data().map_err(LogError::at(path))?;
    if is_new { sync_folder_of(path) } else { Ok(()) }
}

fn sync_folder_of(path: &Path) -> Result<(), LogError> {
    durable::sync_folder(path.parent().unwrap_or(path)).map_err(LogError::at(path))
}

/// Writes records at the end of their file. When this returns, they survive a power cut.
pub fn append_entries(folder: &Path, index: u64, bundle: &[u8], offset: u64) -> Result<(), LogError> {
    let path = entries_path(index).local(folder);
    let (file, is_new) = write_at(&path, bundle, offset)?;
    sync(&path, &file, is_new)
}

/// Writes the hashes with which the levels grew since `old` leaves. They survive a power cut when this returns, but for
/// those of the last tile of level 0: a start has them from the records.
pub fn append_hashes(folder: &Path, old: u64, grown: &Grown) -> Result<(), LogError> {
    for (level, hashes) in (0..LEVELS).zip(grown) {
        let mut rest = hashes.as_slice();
        let mut number = old >> (u32::from(HEIGHT) * u32::from(level));
        while !rest.is_empty() {
            let (index, offset) = (number / WIDTH, number % WIDTH);
            let room = usize::try_from(WIDTH - offset).unwrap_or_default();
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

/// Makes the files those of the edge: what was written behind it goes.
///
/// For a failed write or fsync: what came of it nobody knows, so nothing of it may stay. What was durable before it is
/// checked, since the system may have dropped pages that it could not write.
pub fn restore(folder: &Path, edge: &Frontier, tail: u64) -> Result<(), LogError> {
    let path = cut(folder, TileKind::Entries, edge.size() / WIDTH, tail)?;
    for level in 0..LEVELS {
        let count = edge.size() >> (u32::from(HEIGHT) * u32::from(level));
        cut(folder, TileKind::Hashes(level), count / WIDTH, count % WIDTH * 32)?;
        let hashes = edge.level(level);
        if !hashes.is_empty() {
            conform(folder, level, count / WIDTH, hashes)?;
        }
    }
    let content = local::read(&path).map_err(LogError::at(&path))?.unwrap_or_default();
    let (entries, rest) = whole_entries(&content);
    let is_same = rest.is_empty() && entries.iter().map(|entry| record_hash(entry)).eq(edge.level(0).iter().copied());
    if is_same {
        return Ok(());
    }
    let error = io::Error::new(io::ErrorKind::InvalidData, "it is not what was written to it");
    Err(LogError::File { path, error })
}

/// Cuts the file of a kind that still grows, and removes those behind it. Gives its path.
fn cut(folder: &Path, kind: TileKind, index: u64, length: u64) -> Result<PathBuf, LogError> {
    let last = TilePath { kind, index, width: 1 }.local(folder);
    if length == 0 {
        remove(&last)?;
    } else if kind == TileKind::Entries || last.exists() {
        let file = OpenOptions::new().write(true).open(&last).map_err(LogError::at(&last))?;
        if file.metadata().map_err(LogError::at(&last))?.len() != length {
            file.set_len(length).map_err(LogError::at(&last))?;
        }
        file.sync_all().map_err(LogError::at(&last))?;
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

/// Removes a file, which may be gone; gives its length.
pub fn remove(path: &Path) -> Result<u64, LogError> {
    let length = std::fs::symlink_metadata(path).map_or(0, |about| about.len());
    match std::fs::remove_file(path) {
        Ok(()) => Ok(length),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(LogError::at(path)(error)),
    }
}

/// Makes the files of a log those of what was found of it: hashes of the records that are there, and nothing behind the
/// last whole record. When this returns, all of it survives a power cut.
pub fn take_up(folder: &Path, found: &Found) -> Result<Frontier, LogError> {
    let base = found.base.size() / WIDTH;
    // A daemon that was killed while it pruned removes the records first.
    for (index, _) in local::files(folder, TileKind::Hashes(0)).map_err(LogError::at(folder))?.range(..found.first) {
        remove(&hashes_path(0, *index).local(folder))?;
    }
    if let Some(grown) = &found.rebuilt {
        for (level, hashes) in (1..LEVELS).zip(grown.iter().skip(1)) {
            for (index, hashes) in (0..).zip(hashes.chunks(1 << HEIGHT)) {
                conform(folder, level, index, hashes)?;
            }
        }
    }
    let tiles = local::files(folder, TileKind::Hashes(0)).map_err(LogError::at(folder))?;
    for index in found.first..base {
        if (found.rebuilt.is_some() || tiles.get(&index) != Some(&(WIDTH * 32)))
            && let Some(leaves) = whole_tile(folder, index)?
        {
            conform(folder, 0, index, &leaves)?;
        }
    }
    let (mut edge, mut grown) = (found.base.clone(), Grown::new());
    for leaf in &found.leaves {
        edge.push(*leaf, &mut grown);
    }
    for (level, grown) in (0..LEVELS).zip(&grown) {
        let count = found.base.size() >> (u32::from(HEIGHT) * u32::from(level));
        let hashes = [found.base.level(level), grown].concat();
        for (index, hashes) in (count / WIDTH..).zip(hashes.chunks(1 << HEIGHT)) {
            conform(folder, level, index, hashes)?;
        }
    }
    for level in 0..LEVELS {
        let count = edge.size() >> (u32::from(HEIGHT) * u32::from(level));
        remove_from(folder, TileKind::Hashes(level), count.div_ceil(WIDTH))?;
    }
    remove_from(folder, TileKind::Entries, edge.size().div_ceil(WIDTH))?;
    restore(folder, &edge, found.tail)?;
    // They may have been written by a daemon that was killed before their fsync.
    for index in base..edge.size().div_ceil(WIDTH) {
        let path = entries_path(index).local(folder);
        let file = File::open(&path).map_err(LogError::at(&path))?;
        sync(&path, &file, true)?;
    }
    Ok(edge)
}

/// Removes the files of a kind from an index on. After a power cut, not all before them need to be there.
fn remove_from(folder: &Path, kind: TileKind, index: u64) -> Result<(), LogError> {
    for (index, _) in local::files(folder, kind).map_err(LogError::at(folder))?.range(index..) {
        remove(&TilePath { kind, index: *index, width: 1 }.local(folder))?;
    }
    Ok(())
}

/// Makes the file of a tile hold these hashes, and no others.
fn conform(folder: &Path, level: u8, index: u64, hashes: &[Hash]) -> Result<(), LogError> {
    let path = hashes_path(level, index).local(folder);
    let expected = bytes(hashes);
    if local::read(&path).map_err(LogError::at(&path))?.as_ref() == Some(&expected) {
        let file = File::open(&path).map_err(LogError::at(&path))?;
        return sync(&path, &file, true);
    }
    durable::create_folder(path.parent().unwrap_or(&path)).map_err(LogError::at(&path))?;
    durable::replace(&path, &expected).map_err(LogError::at(&path))
}

fn bytes(hashes: &[Hash]) -> Vec<u8> {
    hashes.iter().flat_map(|hash| hash.0).collect()
}

/// How many bytes the files in a folder have, and in those below.
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
