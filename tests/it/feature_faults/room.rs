//! Starts on a full disk: reads work again, nothing is mistaken for damage, and files kept only as evidence are removed
//! first.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use super::books::Books;
use super::full::{ROOM, goes_on, root};
use super::seed::Random;
use super::shim::Shim;
use super::writers::{Writers, check, start};
use crate::daemon::{TestRoot, write};

#[test]
fn a_start_without_any_room_answers_reads_and_takes_nothing_for_damage() {
    let (mut random, shim) = (Random::new("no room"), Shim::build());
    let root = root().set("features.min_free_mb=16");
    let store = root.folder.path().canonicalize().unwrap().join("features");
    let budget = shim.number("budget", ROOM);
    let root = root.variable("LD_PRELOAD", shim.library()).variable("FAULT_FOLDER", &store);
    let daemon = root.variable("FAULT_BUDGET", &budget.path).start();
    let writers = Writers::new(Books::new(500), None);
    let mut client = daemon.client();
    for _ in 0..100 {
        assert_eq!(writers.push(&mut client, &mut random, false).unwrap(), 200);
    }
    let mut root = daemon.kill();
    // Twice: the room that the first one left must be enough for the second.
    for _ in 0..2 {
        budget.set(0);
        let daemon = start(root).daemon;
        daemon.wait_for_event_since_start("daemon.ready");
        goes_on(&daemon, &writers, Duration::ZERO);
        let status = daemon.client().get("/features/status").json();
        assert_eq!(
            (&status["damage_found"], &status["rebuilds"]),
            (&0.into(), &0.into()),
            "{status}\n{}",
            daemon.log()
        );
        root = daemon.kill();
        let damaged = fs::read_dir(&store).unwrap().map(|entry| entry.unwrap().path());
        let damaged: Vec<_> = damaged.filter(|path| path.extension().is_some_and(|end| end == "damaged")).collect();
        assert!(damaged.is_empty(), "{damaged:?}");
    }
    budget.set(ROOM);
    let daemon = start(root).daemon;
    assert_eq!(writers.push(&mut daemon.client(), &mut random, false).unwrap(), 200);
    let mut books = writers.books.into_inner().unwrap();
    books.settle(u64::MAX);
    check(&daemon, &mut books);
}

#[test]
fn what_was_set_aside_as_damaged_goes_when_room_is_short() {
    // More than any disk here has.
    let root = start(root().set("features.min_free_mb=1048576")).daemon.kill();
    let store = root.folder.path().join("features");
    let (index, segment) = (store.join("index.damaged/db"), store.join("journal/journal-0.log.damaged"));
    write(&index, b"evidence");
    write(&segment, b"evidence");
    let daemon = start(root).daemon;
    for _ in 0..2 {
        let line = daemon.wait_for_event_since_start("features.damaged_removed");
        assert!(line["removed"].as_str().unwrap().ends_with(".damaged"), "{line}");
    }
    assert!(!store.join("index.damaged").exists() && !segment.exists());
}

/// The rest of a snapshot.
fn unfinished(store: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(store).unwrap().map(|entry| entry.unwrap().path());
    files.into_iter().find(|path| path.to_str().unwrap().ends_with(".ledge.tmp"))
}

#[test]
fn what_a_killed_snapshot_left_takes_no_room_from_the_next_start() {
    let (mut random, shim) = (Random::new("killed snapshot"), Shim::build());
    let root = root().set("features.min_free_mb=16");
    let store = root.folder.path().canonicalize().unwrap().join("features");
    let budget = shim.number("budget", ROOM);
    let root = root.variable("LD_PRELOAD", shim.library()).variable("FAULT_FOLDER", &store);
    let mut root = root.variable("FAULT_BUDGET", &budget.path);
    let rows: Vec<i64> = (0..5_000).collect();
    let numbers = json!({"device": rows, "number": rows, "proof": vec!["proof".repeat(20); rows.len()]});
    let left = (0..200).find_map(|_| {
        let daemon = std::mem::replace(&mut root, TestRoot::new()).start();
        let body = json!({"feature_view_name": "direct", "df": numbers});
        assert_eq!(daemon.client().post_json("/write-to-online-store", &body).status, 200);
        let mut client = daemon.client();
        let found = std::thread::scope(|scope| {
            let asked = scope.spawn(move || client.try_post_json("/features/snapshot", &json!({})));
            while !asked.is_finished() && unfinished(&store).is_none() {
                std::thread::yield_now();
            }
            root = daemon.kill();
            drop(asked.join().unwrap());
            unfinished(&store)
        });
        found.filter(|path| path.metadata().unwrap().len() > 0)
    });
    let left = left.expect("no snapshot of 200 was killed before its end");
    // The rest of the disk is not even enough for a push.
    budget.set(0);
    let daemon = start(root).daemon;
    assert!(!left.exists());
    let writers = Writers::new(Books::new(500), None);
    assert_eq!(writers.push(&mut daemon.client(), &mut random, false).unwrap(), 200);
    assert_eq!(daemon.client().get("/features/status").json()["damage_found"], 0);
}
