//! The logs on the disk of this box, for readers only, also while another process appends.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::layout::{CHECKPOINT, TILE_WIDTH, TileKind, TilePath, whole_entries};

/// The length of a hash.
const HASH_BYTES: usize = 32;

/// A log on the disk of this box, for reading. Clones share it.
///
/// No lock is needed: files that a checkpoint covers are written before it, and do not change.
#[derive(Debug, Clone)]
pub struct LocalAuditLog {
    folder: Arc<Path>,
}

impl LocalAuditLog {
    /// The log in a folder, see [`super::layout::log_folder`]. Nothing is read yet.
    pub fn open(log_folder: &Path) -> Self {
        Self { folder: log_folder.into() }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The signed head; `None` when none was signed yet.
    pub fn checkpoint(&self) -> io::Result<Option<Vec<u8>>> {
        read(&self.folder.join(CHECKPOINT))
    }

    /// The content that C2SP tlog-tiles has at the path of the tile; `None` when the file has less, or was pruned.
    pub fn tile(&self, tile: TilePath) -> io::Result<Option<Vec<u8>>> {
        let Some(mut content) = read(&tile.local(&self.folder))? else { return Ok(None) };
        let width = usize::from(tile.width);
        let length = match tile.kind {
            TileKind::Entries => {
                let (entries, _) = whole_entries(&content);
                entries.get(..width).map(|entries| entries.iter().map(|entry| entry.len() + 2).sum())
            }
            TileKind::Hashes(_) => Some(width * HASH_BYTES),
        };
        Ok(length.filter(|length| (1..=content.len()).contains(length)).map(|length| {
            content.truncate(length);
            content
        }))
    }

    /// The first record that a log of `size` records still has. Earlier ones were pruned.
    pub fn first(&self, size: u64) -> io::Result<u64> {
        // Whole tiles are removed, the oldest first, so the rest has no gap: a binary search finds its beginning.
        let (mut gone, mut there) = (0, size / TILE_WIDTH);
        while gone < there {
            let middle = gone + (there - gone) / 2;
            let tile = TilePath { kind: TileKind::Entries, index: middle, width: 1 };
            if tile.local(&self.folder).try_exists()? {
                there = middle;
            } else {
                gone = middle + 1;
            }
        }
        Ok(there * TILE_WIDTH)
    }
}

/// The logs in the folder of all of them, the oldest first.
pub fn generations(audit: &Path) -> io::Result<Vec<u32>> {
    let entries = match std::fs::read_dir(audit.join("logs")) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut generations = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok().filter(|number: &u32| number.to_string() == name));
        generations.extend(number.filter(|number| *number > 0));
    }
    generations.sort_unstable();
    Ok(generations)
}

/// Reads a file; `None` if it does not exist.
pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The files of a kind in the folder of a log: their indices, and their lengths.
pub(super) fn files(log: &Path, kind: TileKind) -> io::Result<std::collections::BTreeMap<u64, u64>> {
    let mut found = std::collections::BTreeMap::new();
    let below = match kind {
        TileKind::Entries => log.join("tile/entries"),
        TileKind::Hashes(level) => log.join(format!("tile/{level}")),
    };
    let mut folders: Vec<(PathBuf, u64)> = vec![(below, 0)];

    while let Some((folder, before)) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let number = name.strip_prefix('x').unwrap_or(name).parse::<u64>().ok().filter(|number| *number < 1000);
            let Some(index) = number.and_then(|number| before.checked_mul(1000)?.checked_add(number)) else { continue };
            if name.starts_with('x') {
                folders.push((entry.path(), index));
            } else if (TilePath { kind, index, width: 1 }).local(log) == entry.path() {
                found.insert(index, entry.metadata()?.len());
            }
        }
    }
    Ok(found)
}
