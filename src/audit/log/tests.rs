//! Tests on a disk of what the log guarantees.

mod damage;
mod faults;
mod pruning;

use std::collections::BTreeMap;
use std::path::Path;

use ledge_base::names::DeviceName;
use ledge_service::audit_event::AuditEvent;
use proptest::prelude::*;
use tlog_tiles::{EMPTY_HASH, HashReader, Tile, node_hash, tree_hash};

use super::*;
use crate::layout::{FULL_WIDTH, TILE_HEIGHT, TileKind, TilePath, changed, entries};
use crate::local::{LocalAuditLog, generations};
use crate::record::{Actor, ActorKind, AuditRecord, Timestamp, VERSION};

/// The disk of a box.
struct BoxDisk {
    folder: tempfile::TempDir,
    device: DeviceName,
    key: AuditKey,
}

impl BoxDisk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let device: DeviceName = "box-1".parse().unwrap();
        let (key, _) =
            AuditKey::load_or_create(folder.path(), &device, &ledge_identity::sealing::Sealer::none()).unwrap();
        Self { folder, device, key }
    }

    /// With a log of `size` records, of which the first `signed` are signed.
    fn with(signed: u64, size: u64) -> Self {
        let this = Self::new();
        let mut log = this.open().log;
        fill(&mut log, signed);
        if signed > 0 {
            log.sign(&this.key).unwrap();
        }
        fill(&mut log, size);
        this
    }

    fn open(&self) -> OpenedAuditLog {
        AuditLog::open(self.folder.path(), &self.device, &self.key).unwrap()
    }

    /// A file of the first log.
    fn file(&self, kind: TileKind, index: u64) -> PathBuf {
        TilePath { kind, index, width: FULL_WIDTH }.local(&self.log(1))
    }

    fn log(&self, generation: u32) -> PathBuf {
        crate::layout::log_folder(self.folder.path(), generation)
    }

    /// The files of a log.
    fn content(&self, generation: u32) -> BTreeMap<PathBuf, Vec<u8>> {
        let (mut files, mut folders) = (BTreeMap::new(), vec![self.log(generation)]);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    files.insert(path.clone(), std::fs::read(&path).unwrap());
                }
            }
        }
        files
    }

    /// Puts a log back as it was.
    fn put_back(&self, generation: u32, content: &BTreeMap<PathBuf, Vec<u8>>) {
        std::fs::remove_dir_all(self.folder.path().join("logs")).unwrap();
        std::fs::create_dir_all(self.log(generation)).unwrap();
        for (path, content) in content {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            put(path, content);
        }
    }

    /// Checks that the log goes on with `size` records, and that all is in order with it.
    fn goes_on(&self, size: u64) -> AuditLog {
        let opened = self.open();
        assert_eq!(opened.begun, None);
        let mut log = opened.log;
        assert_eq!((log.size(), log.durable_size(), log.generation()), (size, size, 1));
        log.sign(&self.key).unwrap();
        check(&log);
        fill(&mut log, size + 1);
        log.sign(&self.key).unwrap();
        check(&log);
        log
    }

    /// Checks that the first log is left as it is, and that another one begins, once.
    fn is_left(&self, cause: &str, found: u64) -> LogBeginning {
        let before = self.content(1);
        let begun = self.open().begun.expect("another log");
        assert_eq!(begun.cause, cause, "{begun:?}");
        assert_eq!(begun.previous.as_ref().unwrap().found, found, "{begun:?}");
        // The daemon may be killed before the first record.
        let opened = self.open();
        assert_eq!(opened.begun.as_ref(), Some(&begun));
        let mut log = opened.log;
        assert_eq!((log.generation(), log.size(), log.first()), (2, 0, 0));
        fill(&mut log, 3);
        log.sign(&self.key).unwrap();
        drop(log);
        let opened = self.open();
        assert_eq!((opened.begun, opened.log.generation(), opened.log.size()), (None, 2, 3));
        assert_eq!(generations(self.folder.path()).unwrap(), [1, 2]);
        assert!(self.content(1) == before, "the log before is not as it was");
        begun
    }
}

#[expect(clippy::disallowed_methods, reason = "the tests damage files")]
fn put(path: &Path, content: &[u8]) {
    std::fs::write(path, content).unwrap();
}

fn record(seq: u64) -> Vec<u8> {
    let actor = Actor { kind: ActorKind::Local, tag: None };
    AuditRecord { v: VERSION, seq, ts: Timestamp(seq), actor, event: AuditEvent::Stopped }.to_line()
}

/// Appends up to a size, and commits.
fn fill(log: &mut AuditLog, size: u64) {
    for seq in log.size()..size {
        log.append(&record(seq)).unwrap();
    }
    log.commit().unwrap();
}

/// The root hash as RFC 6962 defines it.
fn naive_root(leaves: &[Hash]) -> Hash {
    match leaves {
        [] => EMPTY_HASH,
        [one] => *one,
        more => {
            let (left, right) = more.split_at(more.len().next_power_of_two() / 2);
            node_hash(naive_root(left), naive_root(right))
        }
    }
}

fn leaves(size: u64) -> Vec<Hash> {
    (0..size).map(|seq| record_hash(&record(seq))).collect()
}

/// Reads hashes as a verifier does who has only the files.
struct FileHashes {
    log: LocalAuditLog,
    size: u64,
}

impl HashReader for FileHashes {
    fn read_hashes(&self, indexes: &[u64]) -> Result<Vec<Hash>, tlog_tiles::Error> {
        let hash = |index: &u64| {
            let tile = Tile::from_index(TILE_HEIGHT, *index);
            let count = (self.size >> (8 * tile.level())) - tile.level_index() * TILE_WIDTH;
            let width = u16::try_from(count.min(TILE_WIDTH)).unwrap();
            let path = TilePath { kind: TileKind::Hashes(tile.level()), index: tile.level_index(), width };
            let content = self.log.tile(path).unwrap().unwrap_or_else(|| panic!("there is no {}", path.path()));
            Tile::new(TILE_HEIGHT, tile.level(), tile.level_index(), width.into(), false)
                .hash_at_index(&content, *index)
        };
        indexes.iter().map(hash).collect()
    }
}

/// Checks the files of a log of our records, all of which are signed.
fn check(log: &AuditLog) {
    let (size, first) = (log.size(), log.first());
    let head = log.checkpoint().unwrap();
    assert_eq!((head.size, head.root), (size, naive_root(&leaves(size))));
    let local = LocalAuditLog::open(&log.folder);
    assert_eq!(local.checkpoint().unwrap().unwrap(), head.note);
    assert_eq!(local.first(size).unwrap(), first);
    assert_eq!(tree_hash(size, &FileHashes { log: local.clone(), size }).unwrap(), head.root);
    for tile in changed(0, size) {
        let content = local.tile(tile).unwrap();
        let is_lowest = matches!(tile.kind, TileKind::Entries | TileKind::Hashes(0));
        if is_lowest && tile.index * TILE_WIDTH < first {
            assert_eq!(content, None, "{}", tile.path());
            continue;
        }
        let content = content.unwrap_or_else(|| panic!("there is no {}", tile.path()));
        let seqs = (tile.index * TILE_WIDTH..).take(tile.width.into());
        match tile.kind {
            TileKind::Entries => assert_eq!(entries(&content).unwrap(), seqs.map(record).collect::<Vec<_>>()),
            TileKind::Hashes(0) => {
                assert_eq!(content, seqs.flat_map(|seq| record_hash(&record(seq)).0).collect::<Vec<_>>());
            }
            TileKind::Hashes(_) => assert_eq!(content.len(), usize::from(tile.width) * 32),
        }
    }
    assert_eq!(local.tile(TilePath { kind: TileKind::Hashes(9), index: 0, width: 1 }).unwrap(), None);
    let logs = log.audit.join("logs");
    assert_eq!(log.bytes(), files::bytes_in(&logs).unwrap());
}

#[test]
fn a_log_that_is_opened_again_goes_on_at_every_size_around_a_tile() {
    for size in [1, 2, 254, 255, 256, 257, 258, 511, 512, 513, 768] {
        for signed in [0, size / 2, size] {
            let disk = BoxDisk::with(signed, size);
            drop(disk.goes_on(size));
            drop(disk.goes_on(size + 1));
        }
    }
}

#[test]
fn a_log_goes_on_where_a_tile_of_the_second_level_is_whole() {
    let disk = BoxDisk::with(65_500, 65_535);
    drop(disk.goes_on(65_535));
    let mut log = disk.open().log;
    assert_eq!(log.size(), 65_536);
    fill(&mut log, 65_537);
    drop(log);
    let mut log = disk.open().log;
    let head = log.sign(&disk.key).unwrap().clone();
    let files = FileHashes { log: LocalAuditLog::open(&log.folder), size: head.size };
    assert_eq!((head.size, head.root), (65_537, tree_hash(65_537, &files).unwrap()));
    assert_eq!(head.root, node_hash(naive_root(&leaves(65_536)), record_hash(&record(65_536))));
}

#[test]
fn a_first_log_is_new_and_a_second_owner_is_refused() {
    let disk = BoxDisk::new();
    let opened = disk.open();
    assert_eq!(opened.begun, Some(LogBeginning { cause: "new", reason: None, previous: None }));
    assert_eq!((opened.log.origin(), opened.log.generation()), ("ledge.audit/box-1/1", 1));
    let second = AuditLog::open(disk.folder.path(), &disk.device, &disk.key);
    assert!(matches!(second, Err(AuditLogError::Locked { .. })));
    drop(opened);
    // Nothing was recorded.
    assert_eq!(disk.open().begun.unwrap().cause, "new");
}

#[test]
fn only_what_is_durable_is_signed() {
    let disk = BoxDisk::with(10, 10);
    let mut log = disk.open().log;
    log.append(&record(10)).unwrap();
    assert_eq!((log.size(), log.durable_size(), log.sign(&disk.key).unwrap().size), (11, 10, 10));
    log.commit().unwrap();
    assert_eq!((log.durable_size(), log.sign(&disk.key).unwrap().size), (11, 11));
    let too_long = vec![b'x'; RECORD_BYTES_MAX + 1];
    assert!(matches!(log.append(&too_long), Err(AuditLogError::TooLong { length }) if length == RECORD_BYTES_MAX + 1));
    assert_eq!(log.size(), 11);
}

#[test]
fn a_log_that_forked_is_followed_by_another() {
    let disk = BoxDisk::with(300, 301);
    let log = disk.open().log;
    let opened = log.begin_another("forked", &disk.device).unwrap();
    let begun = opened.begun.unwrap();
    let previous = begun.previous.clone().unwrap();
    assert_eq!((begun.cause, previous.origin.as_str()), ("forked", "ledge.audit/box-1/1"));
    assert_eq!((previous.size, previous.found, previous.root), (300, 301, naive_root(&leaves(300)).to_string()));
    assert_eq!((opened.log.generation(), opened.log.size()), (2, 0));
    drop(opened.log);
    // Killed before it had a record, it still knows.
    disk.is_left("forked", 301);
}

#[test]
fn one_who_reads_while_records_come_finds_every_head_whole() {
    let disk = BoxDisk::with(1, 1);
    let mut log = disk.open().log;
    let local = LocalAuditLog::open(&log.folder);
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for size in (1..2000).step_by(7) {
                fill(&mut log, size);
                log.sign(&disk.key).unwrap();
            }
            ended.store(true, std::sync::atomic::Ordering::Release);
        });
        let mut last = 0;
        loop {
            let is_last = ended.load(std::sync::atomic::Ordering::Acquire);
            let note = local.checkpoint().unwrap().unwrap();
            let head = SignedCheckpoint::open(&note, disk.key.verifier_key()).unwrap();
            assert!(head.size >= last);
            let files = FileHashes { log: local.clone(), size: head.size };
            assert_eq!(tree_hash(head.size, &files).unwrap(), head.root);
            let index = (head.size - 1) / TILE_WIDTH;
            let width = u16::try_from(head.size - index * TILE_WIDTH).unwrap();
            let bundle = local.tile(TilePath { kind: TileKind::Entries, index, width }).unwrap().unwrap();
            assert_eq!(entries(&bundle).unwrap().last().unwrap(), &record(head.size - 1));
            last = head.size;
            if is_last {
                break;
            }
        }
        assert!(last > 1990);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_root_is_that_of_rfc_6962(size in 0..1500_usize, tiles in 0..4_usize) {
        let all: Vec<Hash> = (0..size as u64).map(|number| record_hash(&number.to_be_bytes())).collect();
        let (mut edge, mut grown) = (TreeFrontier::default(), AddedTreeHashes::new());
        // The same by whole tiles first, and by records.
        let by_tile = (tiles * 256).min(size / 256 * 256);
        for tile in all[..by_tile].chunks(256) {
            edge.push_tile(naive_root(tile), &mut grown);
        }
        for leaf in &all[by_tile..] {
            edge.push(*leaf, &mut grown);
        }
        prop_assert_eq!(edge.root(), naive_root(&all));
        prop_assert_eq!(edge.size(), size as u64);
    }

    #[test]
    fn however_records_come_the_files_are_the_same(steps in prop::collection::vec((0..400_u64, 0..4_u8), 1..6)) {
        let disk = BoxDisk::new();
        let mut log = disk.open().log;
        fill(&mut log, 1);
        for (more, then) in steps {
            let size = log.size() + more;
            fill(&mut log, size);
            if then > 0 {
                log.sign(&disk.key).unwrap();
            }
            if then == 2 {
                drop(log);
                log = disk.open().log;
            }
        }
        log.sign(&disk.key).unwrap();
        check(&log);
    }
}
