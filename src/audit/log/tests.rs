//! What the log promises, tried on a disk.

use super::*;
use crate::audit::layout::{TilePath, changed, entries};
use crate::audit::local::LocalLog;
use crate::audit::record::{Actor, ActorKind, AuditRecord, Timestamp, VERSION};
use crate::audit_event::AuditEvent;

struct Box {
    folder: tempfile::TempDir,
    device: DeviceName,
    key: AuditKey,
}

impl Box {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let device: DeviceName = "box-1".parse().unwrap();
        let (key, _) = AuditKey::load_or_create(folder.path(), &device).unwrap();
        Self { folder, device, key }
    }

    fn open(&self) -> Opened {
        Log::open(self.folder.path(), &self.device, &self.key).unwrap()
    }

    /// A log of so many records, signed.
    fn with(size: u64) -> Self {
        let this = Self::new();
        let mut log = this.open().log;
        fill(&mut log, size);
        log.sign(&this.key).unwrap();
        this
    }
}

fn record(seq: u64) -> Vec<u8> {
    let actor = Actor { kind: ActorKind::Local, tag: None };
    AuditRecord { v: VERSION, seq, ts: Timestamp(seq), actor, event: AuditEvent::Stopped }.to_line()
}

/// Appends up to a size, and commits.
fn fill(log: &mut Log, size: u64) {
    for seq in log.size()..size {
        log.append(&record(seq)).unwrap();
    }
    log.commit().unwrap();
}

/// The root hash as RFC 6962 defines it.
fn root(records: &[Vec<u8>]) -> Hash {
    match records {
        [] => tlog_tiles::EMPTY_HASH,
        [one] => record_hash(one),
        more => {
            let (left, right) = more.split_at(more.len().next_power_of_two() / 2);
            tlog_tiles::node_hash(root(left), root(right))
        }
    }
}

fn records(size: u64) -> Vec<Vec<u8>> {
    (0..size).map(record).collect()
}

/// Checks that the files of a log are those of so many of our records.
fn check_files(folder: &Path, size: u64, first: u64) {
    let log = LocalLog::open(folder);
    for tile in changed(0, size) {
        let content = log.tile(tile).unwrap();
        let lowest =
            matches!(tile.kind, crate::audit::layout::TileKind::Entries | crate::audit::layout::TileKind::Hashes(0));
        if lowest && tile.index * WIDTH < first {
            assert_eq!(content, None, "{}", tile.path());
            continue;
        }
        let content = content.unwrap_or_else(|| panic!("{} of {size}", tile.path()));
        if tile.kind == crate::audit::layout::TileKind::Entries {
            let expected: Vec<_> = (tile.index * WIDTH..).take(tile.width.into()).map(record).collect();
            assert_eq!(entries(&content).unwrap(), expected);
        } else {
            assert_eq!(content.len(), usize::from(tile.width) * 32);
        }
    }
}

#[test]
fn a_log_that_is_opened_again_goes_on_at_every_size_around_a_tile() {
    for size in [1, 2, 255, 256, 257, 511, 512, 513] {
        let this = Box::new();
        let opened = this.open();
        assert_eq!(opened.begun.unwrap().cause, "new");
        let mut log = opened.log;
        fill(&mut log, size);
        assert_eq!(log.sign(&this.key).unwrap().root, root(&records(size)));
        drop(log);
        for more in [0, 1, 3] {
            let opened = this.open();
            assert_eq!(opened.begun, None);
            let mut log = opened.log;
            assert_eq!((log.size(), log.durable_size(), log.generation()), (size + more / 3, size + more / 3, 1));
            check_files(&log.folder, log.size(), 0);
            let next = size + more;
            fill(&mut log, next);
            let size = log.size();
            assert_eq!(log.sign(&this.key).unwrap().root, root(&records(size)));
            check_files(&log.folder, log.size(), 0);
            assert_eq!(log.bytes(), files::bytes_in(&this.folder.path().join("logs")).unwrap());
        }
    }
}
