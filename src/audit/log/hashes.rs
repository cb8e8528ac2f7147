//! Reads the hashes of a log at a start: from their files, or from the records where the files are wrong.

use std::path::Path;

use tlog_tiles::{Hash, record_hash};

use super::super::layout::{TILE_HEIGHT, TILE_WIDTH, TileKind, TilePath, entries};
use super::super::local;
use super::AuditLogError;
use super::frontier::{AddedTreeHashes, TreeFrontier, subtree};

/// The number of levels of tiles in a tree of 2^64 leaves.
pub const LEVELS: u8 = 64 / TILE_HEIGHT;

/// The file of hashes of a level with an index.
pub fn hashes_path(level: u8, index: u64) -> TilePath {
    TilePath { kind: TileKind::Hashes(level), index, width: 1 }
}

/// The edge of a tree of `tiles` whole tiles of records, from the hashes on the disk. `None`: files are missing or
/// short.
pub fn frontier(folder: &Path, tiles: u64) -> Result<Option<TreeFrontier>, AuditLogError> {
    let mut levels = vec![Vec::new()];
    let mut count = tiles;
    for level in 1..LEVELS {
        let (whole, width) = (count / TILE_WIDTH, count % TILE_WIDTH);
        for index in 0..whole {
            let path = hashes_path(level, index).local(folder);
            if std::fs::metadata(&path).map_or(0, |about| about.len()) != TILE_WIDTH * 32 {
                return Ok(None);
            }
        }
        let hashes = if width == 0 { Some(Vec::new()) } else { read(&hashes_path(level, whole).local(folder))? };
        let Some(hashes) = hashes.and_then(|content| first_hashes(&content, width)) else { return Ok(None) };
        levels.push(hashes);
        count = whole;
    }
    Ok(Some(TreeFrontier::of_tiles(tiles, levels)))
}

/// The same edge, computed from the records, and the hashes of all levels above the lowest. For tiles before `first`,
/// which have no records any more, the hashes on the disk are used. If a tile has neither, the inner error is that
/// tile.
pub fn rebuild(
    folder: &Path,
    first: u64,
    tiles: u64,
) -> Result<Result<(TreeFrontier, AddedTreeHashes), u64>, AuditLogError> {
    let (mut edge, mut grown) = (TreeFrontier::default(), AddedTreeHashes::new());
    let mut pruned: (Option<u64>, Vec<Hash>) = (None, Vec::new());
    for tile in 0..tiles {
        let hash = if tile < first {
            let index = tile / TILE_WIDTH;
            if pruned.0 != Some(index) {
                let content = read(&hashes_path(1, index).local(folder))?.unwrap_or_default();
                pruned = (Some(index), first_hashes(&content, content.len() as u64 / 32).unwrap_or_default());
            }
            pruned.1.get(usize::try_from(tile % TILE_WIDTH).unwrap_or(usize::MAX)).copied()
        } else {
            whole_tile(folder, tile)?.map(|leaves| subtree(&leaves))
        };
        let Some(hash) = hash else { return Ok(Err(tile)) };
        edge.push_tile(hash, &mut grown);
    }
    Ok(Ok((edge, grown)))
}

/// The leaves of a tile of records; `None` when it is not whole.
pub fn whole_tile(folder: &Path, index: u64) -> Result<Option<Vec<Hash>>, AuditLogError> {
    let bundle = read(&entries_path(index).local(folder))?.unwrap_or_default();
    let entries = entries(&bundle).unwrap_or_default();
    Ok((entries.len() as u64 == TILE_WIDTH).then(|| entries.into_iter().map(record_hash).collect()))
}

/// The first `count` hashes of a file; `None` when it has fewer.
fn first_hashes(content: &[u8], count: u64) -> Option<Vec<Hash>> {
    let (hashes, _) = content.as_chunks();
    Some(hashes.get(..usize::try_from(count).ok()?)?.iter().copied().map(Hash).collect())
}

/// Reads a file; `None` if it does not exist.
pub fn read(path: &Path) -> Result<Option<Vec<u8>>, AuditLogError> {
    local::read(path).map_err(AuditLogError::at(path))
}

/// The file of records with an index.
pub fn entries_path(index: u64) -> TilePath {
    TilePath { kind: TileKind::Entries, index, width: 1 }
}
