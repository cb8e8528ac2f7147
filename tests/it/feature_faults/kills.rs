//! `kill -9` at random moments under full-rate writes, over one store that is never wiped.

use std::process::Stdio;
use std::time::Duration;

use super::books::{Books, VIEWS};
use super::seed::Random;
use super::writers::{Report, Writers, check, start};
use crate::daemon::TestRoot;
use crate::encryption::encrypted;

fn rounds(rounds: usize, test: &str, is_sealed: bool) -> (Report, Books) {
    let mut random = Random::new(test);
    let mut root = TestRoot::new().views(VIEWS).set("features.snapshot_mb=1").set("log.level=\"info\"");
    if is_sealed {
        root = encrypted(root, &[7; 32]);
    }
    let store = root.folder.path().join("features");
    let (mut report, mut books) = (Report::default(), Books::new(500));
    let mut started = start(root);
    for round in 0..rounds {
        let writers = Writers::new(books, None);
        let (acknowledged, limit) = (1 + random.below(400), Duration::from_millis(1 + random.next() % 800));
        // Some end after a number of acknowledgements, some after a time.
        let limit = if random.one_in(4) { limit } else { Duration::from_mins(1) };
        // One in eight is asked to end in order, while writers push to the end.
        let in_order = random.one_in(8);
        let (daemon, random) = (started.daemon, &mut random);
        let root = std::thread::scope(|scope| {
            writers.write(scope, daemon.address, random);
            writers.wait(acknowledged, limit);
            let mut daemon = daemon;
            if in_order {
                daemon.signal("TERM");
                daemon.wait();
            }
            report.read(&daemon);
            daemon.kill()
        });
        books = writers.books.into_inner().unwrap();
        books.settle(u64::MAX);
        // Recovery is killed as well, up to three times in a row.
        for _ in 0..random.below(4) {
            let mut child = root
                .command(&["serve"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_micros(random.next() % 120_000));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        started = start(root);
        println!("round {round}: recovered in {:?}", started.recovery);
        report.add(&started, &store);
        check(&started.daemon, &mut books);
        let status = started.daemon.client().get("/features/status").json();
        assert_eq!(status["entries_lost"], 0, "a loss is reported that did not happen: {status}");
    }
    report.read(&started.daemon);
    (report, books)
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    let (report, _) = rounds(8, "kill -9", false);
    assert!(report.snapshots > 0, "no snapshot was taken meanwhile");
}

#[test]
fn what_was_acknowledged_and_sealed_survives_kill_9() {
    let (report, _) = rounds(8, "kill -9 sealed", true);
    assert!(report.snapshots > 0, "no snapshot was taken meanwhile");
}

#[test]
#[ignore = "50 rounds: make soak"]
fn what_was_acknowledged_and_sealed_survives_50_times_kill_9() {
    let (mut report, books) = rounds(50, "kill -9 sealed", true);
    report.print("kill -9, sealed", &books);
}

#[test]
#[ignore = "200 rounds: make soak"]
fn what_was_acknowledged_survives_200_times_kill_9() {
    let (mut report, books) = rounds(200, "kill -9", false);
    report.print("kill -9", &books);
}
