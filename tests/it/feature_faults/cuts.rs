//! Power cuts at random moments under full-rate writes, over one store that is never wiped.

use std::time::Duration;

use super::books::{Books, VIEWS};
use super::disk::{Disk, Log};
use super::seed::Random;
use super::shim::Shim;
use super::writers::{Report, Writers, start};
use crate::daemon::TestRoot;
use crate::encryption::encrypted;

/// `lies`: the disk also forgets fsynced bytes of the journal; ends with the first loss.
fn rounds(rounds: usize, lies: bool, is_sealed: bool, test: &str) -> (Report, Books) {
    let (mut random, shim) = (Random::new(test), Shim::build());
    let root = TestRoot::new().views(VIEWS).set("features.snapshot_mb=1").set("log.level=\"info\"");
    let root = if is_sealed { encrypted(root, &[7; 32]) } else { root };
    let store = root.folder.path().canonicalize().unwrap().join("features");
    std::fs::create_dir(&store).unwrap();
    let mut root = root.variable("LD_PRELOAD", shim.library()).variable("FAULT_FOLDER", &store);
    let (mut report, mut books) = (Report::default(), Books::new(500));
    for round in 0..=rounds {
        let log = shim.file(&format!("log-{round}"));
        let mut disk = Disk::of(&store);
        disk.lies = lies;
        let started = start(root.variable("FAULT_LOG", &log));
        if round > 0 {
            println!("round {round}: recovered in {:?}", started.recovery);
            report.add(&started, &store);
            let findings = books.check(&mut started.daemon.client()).unwrap().unwrap();
            if !(findings.lost.is_empty() && findings.wrong.is_empty()) {
                assert!(lies, "{findings:#?}\n{}", started.daemon.log());
                report.lost = true;
                return (report, books);
            }
            let status = started.daemon.client().get("/features/status").json();
            assert!(lies || status["entries_lost"] == 0, "a loss is reported that did not happen: {status}");
        }
        let writers = Writers::new(books, Some(&log));
        let (acknowledged, daemon) = (1 + random.below(300), started.daemon);
        root = std::thread::scope(|scope| {
            writers.write(scope, daemon.address, &mut random);
            writers.wait(acknowledged, Duration::from_mins(1));
            report.read(&daemon);
            daemon.kill()
        });
        books = writers.books.into_inner().unwrap();
        // The power goes when the process does, or after any call before, one that recovery made included.
        let log_read = Log::read(&log);
        let calls = if random.one_in(2) { log_read.calls() } else { random.below(log_read.calls() + 1) };
        books.settle(log_read.length(calls));
        disk.run(&log_read, calls);
        report.torn += disk.cut_power(&mut random);
        std::fs::remove_file(&log).unwrap();
    }
    (report, books)
}

#[test]
fn what_was_acknowledged_survives_power_cuts() {
    let (report, _) = rounds(8, false, false, "power cuts");
    assert!(report.recoveries.len() == 8 && report.torn > 0, "{} files came out torn", report.torn);
}

#[test]
fn what_was_acknowledged_and_sealed_survives_power_cuts() {
    let (report, _) = rounds(8, false, true, "power cuts sealed");
    assert!(report.recoveries.len() == 8 && report.torn > 0, "{} files came out torn", report.torn);
}

#[test]
fn a_disk_that_forgets_what_was_fsynced_is_found_out() {
    let (report, _) = rounds(20, true, false, "a disk that lies");
    assert!(report.lost, "these tests would not notice a loss");
}

#[test]
#[ignore = "200 rounds: make soak"]
fn what_was_acknowledged_survives_200_power_cuts() {
    let (mut report, books) = rounds(200, false, false, "power cuts");
    report.print("power cuts", &books);
}

#[test]
#[ignore = "50 rounds: make soak"]
fn what_was_acknowledged_and_sealed_survives_50_power_cuts() {
    let (mut report, books) = rounds(50, false, true, "power cuts sealed");
    report.print("power cuts, sealed", &books);
}
