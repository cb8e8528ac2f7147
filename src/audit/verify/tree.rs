//! The tree of a log, computed again record by record. It keeps the hashes of the partial tile of each level.
//!
//! It shares no code with the tree that the log is written with, so that a fault there cannot hide itself.

use tlog_tiles::{Hash, node_hash};

use crate::layout::TILE_WIDTH;

/// The Merkle tree (RFC 6962) of the records so far.
#[derive(Debug, Clone, Default)]
pub struct MerkleTree {
    size: u64,
    /// The hashes of the partial tile of each level.
    levels: Vec<Vec<Hash>>,
}

/// A tile of hashes, computed from the tree.
#[derive(Debug, Clone, PartialEq)]
pub struct HashTile {
    /// The level: 0 has the hashes of records.
    pub level: u8,
    pub index: u64,
    /// The hashes, 256 of them in a whole tile.
    pub hashes: Vec<Hash>,
}

impl MerkleTree {
    /// The number of records so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Appends the hash of the next record; returns the tiles that have become whole, the lowest first.
    pub fn push(&mut self, leaf: Hash) -> Vec<HashTile> {
        self.size += 1;
        self.append(0, leaf)
    }

    /// Appends the hash over the next 256 records, for a tile without its records. Only at the end of a tile.
    pub fn push_tile(&mut self, hash: Hash) -> Vec<HashTile> {
        self.size += TILE_WIDTH;
        if self.levels.is_empty() {
            self.levels.push(Vec::new());
        }
        self.append(1, hash)
    }

    fn append(&mut self, level: u8, hash: Hash) -> Vec<HashTile> {
        let mut whole = Vec::new();
        let (mut level, mut hash) = (level, hash);
        loop {
            let at = usize::from(level);
            if self.levels.len() <= at {
                self.levels.push(Vec::with_capacity(256));
            }
            let Some(tile) = self.levels.get_mut(at) else { return whole };
            tile.push(hash);
            if (tile.len() as u64) < TILE_WIDTH {
                return whole;
            }
            let hashes = std::mem::replace(tile, Vec::with_capacity(256));
            hash = subtree(&hashes);
            let index = self.size.checked_shr(8 * (u32::from(level) + 1)).unwrap_or(0).saturating_sub(1);
            whole.push(HashTile { level, index, hashes });
            level += 1;
        }
    }

    /// The partial tiles, the lowest first.
    pub fn partial(&self) -> impl Iterator<Item = HashTile> + '_ {
        (0..).zip(&self.levels).filter(|(_, hashes)| !hashes.is_empty()).map(|(level, hashes)| {
            let index = self.size.checked_shr(8 * (u32::from(level) + 1)).unwrap_or(0);
            HashTile { level, index, hashes: hashes.clone() }
        })
    }

    /// The root hash.
    pub fn root(&self) -> Hash {
        // The largest complete subtrees from the left, by the binary digits of the size, the most significant first.
        let mut complete = Vec::new();
        for hashes in self.levels.iter().rev() {
            let mut rest = hashes.as_slice();
            while let Some(largest) = rest.len().checked_ilog2() {
                let (first, after) = rest.split_at(1 << largest);
                complete.push(subtree(first));
                rest = after;
            }
        }
        complete.into_iter().rev().reduce(|right, left| node_hash(left, right)).unwrap_or(tlog_tiles::EMPTY_HASH)
    }
}

/// The hash over hashes of a level. Their number must be a power of two.
pub fn subtree(hashes: &[Hash]) -> Hash {
    match hashes {
        [] => tlog_tiles::EMPTY_HASH,
        [hash] => *hash,
        _ => {
            let (left, right) = hashes.split_at(hashes.len() / 2);
            node_hash(subtree(left), subtree(right))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{TileKind, changed};
    use tlog_tiles::record_hash;

    /// RFC 6962, section 2.1, word by word.
    fn merkle_tree_hash(leaves: &[Hash]) -> Hash {
        match leaves.len() {
            0 => tlog_tiles::EMPTY_HASH,
            1 => leaves[0],
            n => {
                let k = n.next_power_of_two() / 2;
                node_hash(merkle_tree_hash(&leaves[..k]), merkle_tree_hash(&leaves[k..]))
            }
        }
    }

    #[test]
    fn the_root_is_that_of_rfc_6962_at_every_size_and_the_tiles_are_those_of_the_layout() {
        let leaves: Vec<_> = (0..70_000_u32).map(|n| record_hash(&n.to_be_bytes())).collect();
        let (mut tree, mut tiles) = (MerkleTree::default(), Vec::new());
        for (size, leaf) in (0..).zip(&leaves) {
            if size < 1100 || size % 8191 == 0 || size > 69_995 {
                assert_eq!(tree.root(), merkle_tree_hash(&leaves[..size]), "{size}");
            }
            tiles.extend(tree.push(*leaf));
        }
        tiles.extend(tree.partial());
        assert_eq!((tree.size(), tree.root()), (70_000, merkle_tree_hash(&leaves)));
        let mut had: Vec<_> = tiles.iter().map(|tile| (tile.level, tile.index, tile.hashes.len())).collect();
        had.sort_unstable();
        let wanted = changed(0, 70_000).into_iter().filter_map(|tile| match tile.kind {
            TileKind::Hashes(level) => Some((level, tile.index, usize::from(tile.width))),
            TileKind::Entries => None,
        });
        let mut wanted: Vec<_> = wanted.collect();
        wanted.sort_unstable();
        assert_eq!(had, wanted);
    }

    #[test]
    fn a_tile_by_its_hash_is_as_good_as_its_records() {
        let leaves: Vec<_> = (0..1000_u32).map(|n| record_hash(&n.to_be_bytes())).collect();
        let mut tree = MerkleTree::default();
        for tile in leaves[..512].chunks(256) {
            tree.push_tile(subtree(tile));
        }
        leaves[512..].iter().for_each(|leaf| drop(tree.push(*leaf)));
        assert_eq!((tree.size(), tree.root()), (1000, merkle_tree_hash(&leaves)));
    }
}
