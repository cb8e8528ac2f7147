//! `Books`: the records that a test has read of a log so far. Its tree is that of another maker's library.

use std::path::Path;

use ledge::audit::key::SignedCheckpoint;
use ledge::audit::layout::{TILE_WIDTH, TileKind, TilePath, entries, log_folder};
use ledge::audit::local::{LocalAuditLog, generations};
use ledge::audit::record::AuditRecord;
use tlog_tiles::{Hash, HashReader, stored_hashes, tree_hash};

/// All that was read of a log, from its first record on.
#[derive(Default)]
pub struct Books {
    pub size: u64,
    hashes: Hashes,
}

#[derive(Default)]
struct Hashes(Vec<Hash>);

impl HashReader for Hashes {
    fn read_hashes(&self, indexes: &[u64]) -> Result<Vec<Hash>, tlog_tiles::Error> {
        Ok(indexes.iter().map(|index| self.0[usize::try_from(*index).unwrap()]).collect())
    }
}

impl Books {
    /// Reads on from the log in a folder, until it has `size` records, each of which must be where it says.
    #[track_caller]
    pub fn read(&mut self, audit: &Path, size: u64) -> Vec<AuditRecord> {
        assert_eq!(generations(audit).unwrap(), [1], "the log did not go on");
        let (local, mut new) = (LocalAuditLog::open(&log_folder(audit, 1)), Vec::new());
        while self.size < size {
            let (index, first) = (self.size / TILE_WIDTH, self.size % TILE_WIDTH);
            let width = u16::try_from((size - index * TILE_WIDTH).min(TILE_WIDTH)).unwrap();
            let bundle = local.tile(TilePath { kind: TileKind::Entries, index, width }).unwrap();
            let bundle = bundle.unwrap_or_else(|| panic!("of {size} records, those of tile {index} are not there"));
            for entry in &entries(&bundle).unwrap()[usize::try_from(first).unwrap()..] {
                let record = AuditRecord::parse(entry).unwrap();
                assert_eq!(record.seq, self.size);
                let hashes = stored_hashes(self.size, entry, &self.hashes).unwrap();
                self.hashes.0.extend(hashes);
                self.size += 1;
                new.push(record);
            }
        }
        new
    }

    /// A head must be one of this log, of records that were read.
    #[track_caller]
    pub fn assert_contain(&self, head: &SignedCheckpoint) {
        assert!(head.size <= self.size, "the checkpoint has {} records, and the log {}", head.size, self.size);
        assert_eq!(head.root, tree_hash(head.size, &self.hashes).unwrap(), "not the log of {head:?}");
    }
}
