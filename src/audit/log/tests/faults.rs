//! Commits that fail. The system itself makes them fail: a write to `/dev/full` ends with ENOSPC, and an fsync of
//! `/dev/null` with EINVAL.

use std::os::unix::fs::symlink;

use super::*;

/// A log of 200 records whose next commit fails. Only the records of that commit are lost.
fn fails(break_it: impl Fn(&BoxDisk), repair: impl Fn(&BoxDisk)) -> AuditLogError {
    let disk = BoxDisk::with(200, 200);
    let mut log = disk.open().log;
    let mut failed = None;
    // It fails again while the disk fails.
    for _ in 0..2 {
        break_it(&disk);
        for seq in 200..700 {
            log.append(&record(seq)).unwrap();
        }
        failed = log.commit().err();
        assert!(failed.is_some());
        assert_eq!((log.size(), log.durable_size()), (200, 200));
    }
    repair(&disk);
    fill(&mut log, 201);
    log.sign(&disk.key).unwrap();
    check(&log);
    fill(&mut log, 700);
    log.sign(&disk.key).unwrap();
    check(&log);
    drop(log);
    drop(disk.goes_on(700));
    failed.unwrap()
}

fn nothing(_: &BoxDisk) {}

#[test]
fn a_full_disk_loses_what_was_not_committed_and_nothing_else() {
    for (kind, index) in
        [(TileKind::Entries, 1), (TileKind::Entries, 2), (TileKind::Hashes(0), 1), (TileKind::Hashes(1), 0)]
    {
        let full = |disk: &BoxDisk| {
            std::fs::create_dir_all(disk.file(kind, index).parent().unwrap()).unwrap();
            let _ = symlink("/dev/full", disk.file(kind, index));
        };
        let error = fails(full, nothing);
        assert!(error.is_full(), "{kind:?} {index}: {error}");
    }
}

#[test]
fn a_failed_fsync_loses_what_was_not_committed_and_nothing_else() {
    for (kind, index) in
        [(TileKind::Entries, 1), (TileKind::Entries, 2), (TileKind::Hashes(0), 1), (TileKind::Hashes(1), 0)]
    {
        let lost = |disk: &BoxDisk| {
            std::fs::create_dir_all(disk.file(kind, index).parent().unwrap()).unwrap();
            let _ = symlink("/dev/null", disk.file(kind, index));
        };
        let error = fails(lost, nothing);
        assert!(error.to_string().contains("tile/"), "{kind:?} {index}: {error}");
    }
}

#[test]
fn what_cannot_be_cut_off_at_once_is_cut_off_before_the_next_commit() {
    let blocked = |disk: &BoxDisk| {
        let _ = std::fs::create_dir(disk.file(TileKind::Entries, 1));
    };
    fails(blocked, |disk| std::fs::remove_dir(disk.file(TileKind::Entries, 1)).unwrap());
}

#[test]
fn a_file_that_lost_durable_records_is_not_written_to() {
    let disk = BoxDisk::with(200, 200);
    let mut log = disk.open().log;
    symlink("/dev/full", disk.file(TileKind::Entries, 1)).unwrap();
    let path = disk.file(TileKind::Entries, 0);
    let mut file = std::fs::read(&path).unwrap();
    file[10] ^= 1;
    put(&path, &file);
    for seq in 200..300 {
        log.append(&record(seq)).unwrap();
    }
    assert!(log.commit().unwrap_err().is_full());
    log.append(&record(200)).unwrap();
    assert!(log.commit().unwrap_err().to_string().contains("its content is not what was written"));
    drop(log);
    disk.is_left("damaged", 200);
}

#[test]
fn a_head_that_cannot_be_kept_leaves_the_one_before() {
    let disk = BoxDisk::with(10, 10);
    let mut log = disk.open().log;
    fill(&mut log, 20);
    let before = log.checkpoint().cloned();
    let path = disk.log(1).join(CHECKPOINT);
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(log.sign(&disk.key).is_err());
    assert_eq!(log.checkpoint().cloned(), before);
    std::fs::remove_dir(&path).unwrap();
    assert_eq!(log.sign(&disk.key).unwrap().size, 20);
}
