//! What is removed of logs to stay within the quota: the files of records and of their hashes, whole tiles only. The levels
//! above stay, and with them what proofs of the records that are left need.

use std::path::Path;

use super::super::layout::{TileKind, WIDTH, log_folder, whole_entries};
use super::super::local;
use super::LogError;
use super::files::{hashes_path, remove};
use super::inspect::entries_path;

/// Removes a whole tile of records. Who goes from the first one on may be killed at any moment: what is there stays in one
/// piece.
pub fn tile(folder: &Path, index: u64) -> Result<u64, LogError> {
    let entries = entries_path(index).local(folder);
    let freed = remove(&entries)? + remove(&hashes_path(0, index).local(folder))?;
    // 1000 files share a folder; it goes with the last of them, which fails for any other.
    for kind in [TileKind::Entries, TileKind::Hashes(0)].into_iter().filter(|_| index % 1000 == 999) {
        let path = super::super::layout::TilePath { kind, index, width: 1 }.local(folder);
        let _ = path.parent().map(std::fs::remove_dir);
    }
    Ok(freed)
}

/// Removes the whole tiles of all logs before one.
pub fn before(audit: &Path, generation: u32) -> Result<u64, LogError> {
    let mut freed = 0;
    for generation in
        local::generations(audit).map_err(LogError::at(audit))?.into_iter().filter(|old| *old < generation)
    {
        let folder = log_folder(audit, generation);
        let files = local::files(&folder, TileKind::Entries).map_err(LogError::at(&folder))?;
        let Some((last, _)) = files.last_key_value() else { continue };
        let content =
            local::read(&entries_path(*last).local(&folder)).map_err(LogError::at(&folder))?.unwrap_or_default();
        let end = last + u64::from(whole_entries(&content).0.len() as u64 == WIDTH);
        for index in files.keys().filter(|index| **index < end) {
            freed += tile(&folder, *index)?;
        }
    }
    Ok(freed)
}
