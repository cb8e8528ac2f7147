//! Logs whose oldest records were removed.

use tlog_tiles::{check_record, check_tree, prove_record, prove_tree};

use super::*;

#[test]
fn a_pruned_log_goes_on_and_proves_what_it_has() {
    let disk = BoxDisk::with(2000, 2100);
    let mut log = disk.open().log;
    let before = log.bytes();
    let freed = log.prune(1100).unwrap();
    assert_eq!((log.first(), log.bytes()), (1024, before - freed));
    assert!(freed > 4 * (8192 + 256 * 60));
    log.sign(&disk.key).unwrap();
    check(&log);
    drop(log);
    let log = disk.goes_on(2100);
    assert_eq!(log.first(), 1024);
    let size = log.size();
    let files = FileHashes { log: LocalAuditLog::open(&log.folder), size };
    let root = log.checkpoint().unwrap().root;
    for seq in [1024, 1500, 2099] {
        let proof = prove_record(size, seq, &files).unwrap();
        check_record(&proof, size, root, seq, record_hash(&record(seq))).unwrap();
    }
    for old in [1024, 1025, 2000] {
        let proof = prove_tree(size, old, &files).unwrap();
        check_tree(&proof, size, root, old, naive_root(&leaves(old))).unwrap();
    }
}

#[test]
fn what_the_head_ends_in_is_never_pruned() {
    for (signed, size, first) in [(0, 700, 0), (100, 700, 0), (512, 700, 256), (513, 700, 512), (700, 700, 512)] {
        let disk = BoxDisk::with(signed, size);
        let mut log = disk.open().log;
        log.prune(u64::MAX).unwrap();
        assert_eq!(log.first(), first);
        drop(log);
        let log = disk.goes_on(size);
        assert_eq!(log.first(), first);
    }
}

#[test]
fn a_daemon_that_is_killed_while_it_prunes_leaves_a_log_that_goes_on() {
    let disk = BoxDisk::with(700, 700);
    std::fs::remove_file(disk.file(TileKind::Entries, 0)).unwrap();
    let log = disk.goes_on(700);
    assert_eq!(log.first(), 256);
    assert!(!disk.file(TileKind::Hashes(0), 0).exists());
}

#[test]
fn hashes_of_a_pruned_log_are_made_anew_as_long_as_those_of_what_is_gone_are_right() {
    let disk = BoxDisk::with(1500, 1500);
    disk.open().log.prune(600).unwrap();
    let path = disk.file(TileKind::Hashes(1), 0);
    let file = std::fs::read(&path).unwrap();
    let flipped = |at: usize| {
        let mut flipped = file.clone();
        flipped[at] ^= 1;
        flipped
    };
    put(&path, &flipped(32 * 3));
    drop(disk.open());
    assert_eq!(std::fs::read(&path).unwrap(), file);
    put(&path, &flipped(32));
    disk.is_left("damaged", 1500);
}

#[test]
fn logs_before_this_one_are_pruned_first() {
    let disk = BoxDisk::with(600, 700);
    let log = disk.open().log;
    let mut log = log.begin_another("forked", &disk.device).unwrap().log;
    fill(&mut log, 600);
    log.sign(&disk.key).unwrap();
    let before = log.bytes();
    let freed = log.prune_older().unwrap();
    assert!(freed > 0 && log.bytes() == before - freed && log.first() == 0);
    check(&log);
    assert_eq!((log.prune_older().unwrap(), log.prune(0).unwrap()), (0, 0));
    // Of the log before, the tile with its last records stays, so its root can still be computed.
    let files = FileHashes { log: LocalAuditLog::open(&disk.log(1)), size: 600 };
    assert_eq!(tree_hash(600, &files).unwrap(), naive_root(&leaves(600)));
    assert_eq!(files.log.first(600).unwrap(), 512);
    assert!(log.prune(600).unwrap() > 0);
    assert_eq!(log.first(), 512);
}

#[test]
fn folders_of_a_thousand_tiles_go_with_their_last() {
    let disk = BoxDisk::with(1, 1);
    for index in [1998, 1999] {
        for kind in [TileKind::Entries, TileKind::Hashes(0)] {
            let path = disk.file(kind, index);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            put(&path, b"x");
        }
        assert_eq!(prune::tile(&disk.log(1), index).unwrap(), 2);
    }
    assert!(!disk.log(1).join("tile/entries/x001").exists() && !disk.log(1).join("tile/0/x001").exists());
    assert!(disk.log(1).join("tile/entries/000").exists());
}
