//! Removes the oldest records to stay within the quota: whole tiles of records, with the tiles of their hashes. The
//! levels above stay, because proofs of the remaining records need them.

use std::path::Path;

use super::super::layout::{CHECKPOINT, TILE_WIDTH, TileKind, log_folder};
use super::super::local;
use super::AuditLogError;
use super::files::remove;
use super::hashes::{entries_path, hashes_path, read};
use super::inspect::unverified_checkpoint;

/// Removes a whole tile of records. Tiles are removed from the first one on, so that a kill leaves no gap.
pub fn tile(folder: &Path, index: u64) -> Result<u64, AuditLogError> {
    let entries = entries_path(index).local(folder);
    let hashes = hashes_path(0, index).local(folder);
    let freed = remove(&entries)? + remove(&hashes)?;
    if index % 1000 == 999 {
        // It was the last file of its folder. A folder that is not empty stays.
        let _ = [entries, hashes].iter().filter_map(|path| path.parent()).try_for_each(std::fs::remove_dir);
    }
    Ok(freed)
}

/// Removes the whole tiles of all logs before one, except the tile in which the head of each ends: it shows that the
/// levels above are those of the head.
pub fn before(audit: &Path, generation: u32) -> Result<u64, AuditLogError> {
    let mut freed = 0;
    for generation in
        local::generations(audit).map_err(AuditLogError::at(audit))?.into_iter().filter(|old| *old < generation)
    {
        let folder = log_folder(audit, generation);
        let files = local::files(&folder, TileKind::Entries).map_err(AuditLogError::at(&folder))?;
        let Some((last, _)) = files.last_key_value() else { continue };
        let head = unverified_checkpoint(&read(&folder.join(CHECKPOINT))?.unwrap_or_default())
            .map_or(u64::MAX, |head| head.size());
        let end = (*last).min(head.saturating_sub(1) / TILE_WIDTH);
        for index in files.keys().filter(|index| **index < end) {
            freed += tile(&folder, *index)?;
        }
    }
    Ok(freed)
}
