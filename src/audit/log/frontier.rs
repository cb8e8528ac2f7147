//! The right edge of the tree: the hashes needed to append records and to compute the root.

use tlog_tiles::{EMPTY_HASH, Hash, node_hash};

use super::super::layout::{TILE_HEIGHT, TILE_WIDTH};

/// The partial tile at the right of each level.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TreeFrontier {
    size: u64,
    levels: Vec<Vec<Hash>>,
}

/// Hashes that were added to the levels, the lowest level first.
pub type AddedTreeHashes = Vec<Vec<Hash>>;

impl TreeFrontier {
    /// The number of leaves.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The hashes of the partial tile of a level.
    pub fn level(&self, level: u8) -> &[Hash] {
        self.levels.get(usize::from(level)).map_or(&[], Vec::as_slice)
    }

    /// The edge of a tree of whole tiles, from the partial tiles of its levels. The tile of level 0 is empty.
    pub fn of_tiles(tiles: u64, levels: Vec<Vec<Hash>>) -> Self {
        Self { size: tiles * TILE_WIDTH, levels }
    }

    /// Appends a leaf.
    pub fn push(&mut self, leaf: Hash, grown: &mut AddedTreeHashes) {
        self.size += 1;
        self.push_at(0, leaf, grown);
    }

    /// Appends a whole tile of leaves, by its hash. The tree consists of whole tiles.
    pub fn push_tile(&mut self, hash: Hash, grown: &mut AddedTreeHashes) {
        self.size += TILE_WIDTH;
        self.push_at(1, hash, grown);
    }

    fn push_at(&mut self, level: usize, hash: Hash, grown: &mut AddedTreeHashes) {
        at(grown, level).push(hash);
        let tile = at(&mut self.levels, level);
        tile.push(hash);
        if tile.len() >= 1 << TILE_HEIGHT {
            let whole = subtree(tile);
            tile.clear();
            self.push_at(level + 1, whole, grown);
        }
    }

    /// The root hash (RFC 6962).
    pub fn root(&self) -> Hash {
        // The tree consists of whole subtrees: from the right, the smallest first.
        let mut root: Option<Hash> = None;
        for tile in &self.levels {
            let mut end = tile.len();
            while end > 0 {
                let width = 1 << end.trailing_zeros();
                let left = subtree(tile.get(end - width..end).unwrap_or_default());
                root = Some(root.map_or(left, |right| node_hash(left, right)));
                end -= width;
            }
        }
        root.unwrap_or(EMPTY_HASH)
    }
}

/// Level `level`, added together with those below it if it is missing.
#[expect(clippy::indexing_slicing, reason = "the level was made")]
fn at(levels: &mut Vec<Vec<Hash>>, level: usize) -> &mut Vec<Hash> {
    if levels.len() <= level {
        levels.resize_with(level + 1, Vec::new);
    }
    &mut levels[level]
}

/// The hash over neighbouring hashes. Their number must be a power of two.
pub fn subtree(hashes: &[Hash]) -> Hash {
    let mut hashes = hashes.to_vec();
    while hashes.len() > 1 {
        hashes = hashes.chunks_exact(2).filter_map(|pair| Some(node_hash(*pair.first()?, *pair.last()?))).collect();
    }
    hashes.first().copied().unwrap_or(EMPTY_HASH)
}
