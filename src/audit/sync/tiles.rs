//! The files of a log on this box, each checked against the signed head: what is sent stays on the platform for good.

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;
use tlog_tiles::{Hash, HashReader, Tile, TileHashReader, TileReader, record_hash, stored_hash_index, tree_hash};

use super::SyncError;
use crate::audit::key::SignedCheckpoint;
use crate::audit::layout::{HEIGHT, TileKind, TilePath, WIDTH, entries};
use crate::audit::local::LocalLog;

/// A log on this box, up to a signed head.
#[derive(Debug, Clone)]
pub struct SignedLog {
    /// Which of the logs of this box.
    pub generation: u32,
    /// Its files.
    pub local: LocalLog,
    /// Its head, which has at least one record.
    pub head: Arc<SignedCheckpoint>,
    /// How many records the platform has.
    pub sent: u64,
}

impl SignedLog {
    /// The root hash that the log had when it had `size` records. Waits for the disk.
    pub fn root_at(&self, size: u64) -> Result<Hash, SyncError> {
        let tiles = Tiles::of(self);
        let read = tree_hash(size, &TileHashReader::new(self.head.size, self.head.root, &tiles));
        read.map_err(|error| tiles.explained("tile/", &error))
    }

    /// A tile of the tree of the head. Waits for the disk.
    pub fn tile(&self, tile: TilePath) -> Result<Bytes, SyncError> {
        let tiles = Tiles::of(self);
        let content = tiles.read(tile)?;
        let level = match tile.kind {
            TileKind::Entries => 0,
            TileKind::Hashes(level) => level,
        };
        let first = tile.index * WIDTH;
        let indexes: Vec<u64> = (first..first + u64::from(tile.width))
            .map(|number| stored_hash_index(level.saturating_mul(HEIGHT), number))
            .collect();
        let signed = TileHashReader::new(self.head.size, self.head.root, &tiles).read_hashes(&indexes);
        let signed = signed.map_err(|error| tiles.explained(&tile.path(), &error))?;
        let is_signed = match tile.kind {
            TileKind::Entries => entries(&content).is_ok_and(|entries| entries.into_iter().map(record_hash).eq(signed)),
            TileKind::Hashes(_) => content.chunks(size_of::<Hash>()).eq(signed.iter().map(|hash| hash.0.as_slice())),
        };
        if is_signed { Ok(content.into()) } else { Err(self.damaged(&tile.path(), "is not what was signed")) }
    }

    /// [`Self::tile`], where it disturbs nobody.
    pub async fn read(&self, tile: TilePath) -> Result<Bytes, SyncError> {
        let log = self.clone();
        joined(tokio::task::spawn_blocking(move || log.tile(tile)).await)
    }

    /// [`Self::root_at`], where it disturbs nobody.
    pub async fn read_root(&self, size: u64) -> Result<Hash, SyncError> {
        let log = self.clone();
        joined(tokio::task::spawn_blocking(move || log.root_at(size)).await)
    }

    fn damaged(&self, path: &str, reason: &str) -> SyncError {
        SyncError::Damaged { generation: self.generation, path: path.to_owned(), reason: reason.to_owned() }
    }
}

fn joined<T>(result: Result<Result<T, SyncError>, tokio::task::JoinError>) -> Result<T, SyncError> {
    result.unwrap_or_else(|error| Err(SyncError::Settings { reason: error.to_string() }))
}

/// Reads tiles for the library, and remembers why one could not be read.
struct Tiles<'a> {
    log: &'a SignedLog,
    failed: RefCell<Option<SyncError>>,
}

impl<'a> Tiles<'a> {
    fn of(log: &'a SignedLog) -> Self {
        Self { log, failed: RefCell::default() }
    }

    fn read(&self, tile: TilePath) -> Result<Vec<u8>, SyncError> {
        let SignedLog { generation, local, sent, .. } = self.log;
        match local.tile(tile) {
            Ok(Some(content)) => Ok(content),
            Ok(None) => Err(SyncError::Missing { generation: *generation, size: *sent, path: tile.path() }),
            Err(error) => Err(SyncError::File { path: tile.local(local.folder()), error }),
        }
    }

    fn explained(&self, path: &str, error: &tlog_tiles::Error) -> SyncError {
        let failed = self.failed.borrow_mut().take();
        failed.unwrap_or_else(|| self.log.damaged(path, &format!("does not fit the signed head: {error}")))
    }
}

impl TileReader for Tiles<'_> {
    fn height(&self) -> u8 {
        HEIGHT
    }

    fn read_tiles(&self, tiles: &[Tile]) -> Result<Vec<Vec<u8>>, tlog_tiles::Error> {
        let read = tiles.iter().map(|tile| {
            let width = u16::try_from(tile.width()).unwrap_or(u16::MAX);
            self.read(TilePath { kind: TileKind::Hashes(tile.level()), index: tile.level_index(), width })
        });
        read.collect::<Result<_, _>>().map_err(|error| {
            *self.failed.borrow_mut() = Some(error);
            tlog_tiles::Error::InvalidTile
        })
    }

    fn save_tiles(&self, _: &[Tile], _: &[Vec<u8>]) {}
}
