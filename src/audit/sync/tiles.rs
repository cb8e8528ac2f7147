//! The files of a log on this box, each checked against the signed head, because a file stays on the platform for good.
//!
//! The check is our own. Where several subtrees of the head are in one tile, `TileHashReader` of the library (0.2.0)
//! accepts tiles that it has not compared with anything.

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;
use tlog_tiles::{Hash, HashReader, Tile, record_hash, stored_hash_index, tree_hash};

use super::AuditSyncError;
use crate::key::SignedCheckpoint;
use crate::layout::{TILE_HEIGHT, TILE_WIDTH, TileKind, TilePath, entries};
use crate::local::LocalAuditLog;

/// A log on this box, up to a signed head.
#[derive(Debug, Clone)]
pub struct SignedLog {
    /// The number of the log.
    pub generation: u32,
    pub local: LocalAuditLog,
    /// The head, over at least one record.
    pub head: Arc<SignedCheckpoint>,
    /// The number of records that the platform has.
    pub sent: u64,
}

impl SignedLog {
    /// The root hash that the log had when it had `size` records. Waits for the disk.
    pub fn root_at(&self, size: u64) -> Result<Hash, AuditSyncError> {
        let tiles = TileHashReader { log: self, is_checked: true, failed: RefCell::default() };
        tree_hash(size, &tiles).map_err(|error| tiles.explained(&error))
    }

    /// A tile of the tree of the head, or of its records. Waits for the disk.
    pub fn tile(&self, tile: TilePath) -> Result<Bytes, AuditSyncError> {
        match tile.kind {
            TileKind::Entries => {
                let content = self.content(tile)?;
                let hashes = self.checked(self.tile_of(0, tile.index * TILE_WIDTH)?)?;
                let found = entries(&content).unwrap_or_default();
                let is_signed = found.len() == usize::from(tile.width)
                    && found
                        .into_iter()
                        .map(|entry| record_hash(entry).0.to_vec())
                        .eq(hashes.chunks(32).map(<[u8]>::to_vec));
                if is_signed {
                    Ok(content.into())
                } else {
                    Err(self.damaged(&tile.path(), "does not fit the signed head"))
                }
            }
            TileKind::Hashes(level) => {
                let checked = self.checked(self.tile_of(level, tile.index * TILE_WIDTH)?)?;
                if checked.len() == usize::from(tile.width) * 32 {
                    Ok(checked.into())
                } else {
                    Err(self.damaged(&tile.path(), "is not a tile of the signed head"))
                }
            }
        }
    }

    /// [`Self::tile`], on a thread for blocking work.
    pub async fn read(&self, tile: TilePath) -> Result<Bytes, AuditSyncError> {
        let log = self.clone();
        joined(tokio::task::spawn_blocking(move || log.tile(tile)).await)
    }

    /// [`Self::root_at`], on a thread for blocking work.
    pub async fn read_root(&self, size: u64) -> Result<Hash, AuditSyncError> {
        let log = self.clone();
        joined(tokio::task::spawn_blocking(move || log.root_at(size)).await)
    }

    /// The tile with the hash `number` of a level, as wide as in the tree of the head.
    fn tile_of(&self, level: u8, number: u64) -> Result<Tile, AuditSyncError> {
        let index = stored_hash_index(level.saturating_mul(TILE_HEIGHT), number);
        let tile = Tile::from_index(TILE_HEIGHT, index).parent(0, self.head.size);
        tile.ok_or_else(|| self.damaged("checkpoint", "has no such tile"))
    }

    /// The hashes of a tile, checked against the root of the head: a whole tile by its hash in the tile above, a
    /// partial one because the root is computed from it.
    fn checked(&self, tile: Tile) -> Result<Vec<u8>, AuditSyncError> {
        let content = self.content(path(tile))?;
        let is_signed = if u64::from(tile.width()) == TILE_WIDTH {
            let above =
                tile.parent(1, self.head.size).ok_or_else(|| self.damaged(&path(tile).path(), "is too high"))?;
            let hashes = self.checked(above)?;
            let index = stored_hash_index(above.level().saturating_mul(TILE_HEIGHT), tile.level_index());
            above.hash_at_index(&hashes, index).is_ok_and(|hash| hash == Tile::subtree_hash(&content))
        } else {
            let tiles = TileHashReader { log: self, is_checked: false, failed: RefCell::default() };
            tree_hash(self.head.size, &tiles).map_err(|error| tiles.explained(&error))? == self.head.root
        };
        if is_signed { Ok(content) } else { Err(self.damaged(&path(tile).path(), "does not fit the signed head")) }
    }

    fn content(&self, tile: TilePath) -> Result<Vec<u8>, AuditSyncError> {
        let Self { generation, local, sent, .. } = self;
        match local.tile(tile) {
            Ok(Some(content)) => Ok(content),
            Ok(None) => Err(AuditSyncError::Missing { generation: *generation, size: *sent, path: tile.path() }),
            Err(error) => Err(AuditSyncError::File { path: tile.local(local.folder()), error }),
        }
    }

    fn damaged(&self, path: &str, reason: &str) -> AuditSyncError {
        AuditSyncError::Damaged { generation: self.generation, path: path.to_owned(), reason: reason.to_owned() }
    }
}

fn joined<T>(result: Result<Result<T, AuditSyncError>, tokio::task::JoinError>) -> Result<T, AuditSyncError> {
    result.unwrap_or_else(|error| Err(AuditSyncError::Settings { reason: error.to_string() }))
}

fn path(tile: Tile) -> TilePath {
    let width = u16::try_from(tile.width()).unwrap_or(u16::MAX);
    TilePath { kind: TileKind::Hashes(tile.level()), index: tile.level_index(), width }
}

/// Reads hashes for the library, and keeps the reason why one could not be read.
struct TileHashReader<'a> {
    log: &'a SignedLog,
    /// Each tile is checked against the head first.
    is_checked: bool,
    failed: RefCell<Option<AuditSyncError>>,
}

impl TileHashReader<'_> {
    fn explained(&self, error: &tlog_tiles::Error) -> AuditSyncError {
        let failed = self.failed.borrow_mut().take();
        failed.unwrap_or_else(|| self.log.damaged("tile/", &format!("cannot be read: {error}")))
    }
}

impl HashReader for TileHashReader<'_> {
    fn read_hashes(&self, indexes: &[u64]) -> Result<Vec<Hash>, tlog_tiles::Error> {
        let mut hashes = Vec::with_capacity(indexes.len());
        for index in indexes {
            let tile = Tile::from_index(TILE_HEIGHT, *index);
            let tile = tile.parent(0, self.log.head.size).ok_or(tlog_tiles::Error::IndexesNotInTree)?;
            let read = if self.is_checked { self.log.checked(tile) } else { self.log.content(path(tile)) };
            let content = read.map_err(|error| {
                *self.failed.borrow_mut() = Some(error);
                tlog_tiles::Error::InvalidTile
            })?;
            hashes.push(tile.hash_at_index(&content, *index)?);
        }
        Ok(hashes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::AuditKey;
    use crate::layout::{changed, log_folder};
    use crate::log::AuditLog;
    use ledge_base::durable;

    #[test]
    fn a_log_gives_its_tiles_and_earlier_roots_and_no_tile_of_which_a_byte_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let device = "box-1".parse().unwrap();
        let (key, _) =
            AuditKey::load_or_create(folder.path(), &device, &ledge_identity::sealing::Sealer::none()).unwrap();
        let mut log = AuditLog::open(folder.path(), &device, &key).unwrap().log;
        let mut heads: Vec<SignedCheckpoint> = Vec::new();
        for size in [1, 255, 256, 257, 512, 600, 900, 66_000] {
            for record in log.size()..size {
                log.append(format!("record {record}").as_bytes()).unwrap();
            }
            log.commit().unwrap();
            heads.push(log.sign(&key).unwrap().clone());
        }
        let local = LocalAuditLog::open(&log_folder(folder.path(), 1));
        for (place, head) in heads.iter().enumerate() {
            let signed = SignedLog { generation: 1, local: local.clone(), head: Arc::new(head.clone()), sent: 0 };
            for earlier in &heads[..=place] {
                assert_eq!(signed.root_at(earlier.size).unwrap(), earlier.root, "{} {}", head.size, earlier.size);
            }
            let tiles = changed(0, head.size);
            let step = tiles.len() / 20 + 1;
            for tile in tiles.into_iter().step_by(step) {
                let content = signed.tile(tile).unwrap();
                let file = tile.local(local.folder());
                let whole = std::fs::read(&file).unwrap();
                for at in [0, content.len() / 2, content.len() - 1] {
                    let mut flipped = whole.clone();
                    flipped[at] ^= 1;
                    durable::replace(&file, &flipped).unwrap();
                    let error = signed.tile(tile).unwrap_err();
                    assert!(
                        matches!(error, AuditSyncError::Damaged { .. } | AuditSyncError::Missing { .. }),
                        "{error}"
                    );
                }
                durable::replace(&file, &whole).unwrap();
            }
        }
    }
}
