//! Several faults at once, which leave nothing to restore a push from: the loss is reported with its size, and the
//! store goes on.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::books::VIEWS;
use super::writers::start;
use crate::daemon::{TestDaemon, TestRoot};

const ROWS: i64 = 500;

/// A daemon with this many rows in one view, each with a different entity and journal entry, fifty in a push.
fn filled() -> TestDaemon {
    let daemon = start(TestRoot::new().views(VIEWS).set("log.level=\"info\"")).daemon;
    for first in (0..ROWS).step_by(50) {
        push(&daemon, first..first + 50);
    }
    daemon
}

fn push(daemon: &TestDaemon, entities: std::ops::Range<i64>) {
    let numbers: Vec<i64> = entities.collect();
    let proofs = vec!["proof"; numbers.len()];
    let df = json!({"device": numbers, "number": numbers, "proof": proofs});
    let body = json!({"feature_view_name": "direct", "df": df});
    assert_eq!(daemon.client().post_json("/write-to-online-store", &body).status, 200);
}

/// The entities that have no row. Every other one has its own.
fn missing(daemon: &TestDaemon) -> Vec<i64> {
    let entities: Vec<i64> = (0..ROWS).collect();
    let request = json!({"features": ["direct:number"], "entities": {"device": entities}});
    let answer = daemon.client().post_json("/get-online-features", &request);
    assert_eq!(answer.status, 200, "{answer:?}");
    let column = answer.json()["results"][1].clone();
    let is_missing = |entity: &i64| {
        let at = usize::try_from(*entity).unwrap();
        if column["statuses"][at] == "PRESENT" {
            assert_eq!(column["values"][at], *entity);
            return false;
        }
        column["statuses"][at] == "NOT_FOUND"
    };
    entities.into_iter().filter(is_missing).collect()
}

fn status(daemon: &TestDaemon) -> Value {
    daemon.client().get("/features/status").json()
}

fn remove_index(store: &Path) {
    for entry in fs::read_dir(store).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap().starts_with("index-") {
            fs::remove_dir_all(path).unwrap();
        }
    }
}

fn segment(store: &Path) -> std::path::PathBuf {
    let mut segments: Vec<_> =
        fs::read_dir(store.join("journal")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(segments.len(), 1, "{segments:?}");
    segments.remove(0)
}

fn snapshot(daemon: &TestDaemon) {
    assert_eq!(daemon.client().post_json("/features/snapshot", &json!({})).status, 200);
}

/// The snapshots, the newest first.
fn snapshots(store: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(store).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "ledge")).collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found
}

/// A store with the last two of its snapshots of 100, 200, 400 and 500 rows, and the folder with the first two.
fn with_snapshots() -> (TestRoot, PathBuf, PathBuf) {
    let daemon = start(TestRoot::new().views(VIEWS).set("log.level=\"info\"")).daemon;
    let store = daemon.root.folder.path().join("features");
    let kept = daemon.root.folder.path().join("kept");
    fs::create_dir(&kept).unwrap();
    for (from, to) in [(0, 100), (100, 200), (200, 400), (400, 500)] {
        push(&daemon, from..to);
        snapshot(&daemon);
        if to <= 200 {
            let newest = snapshots(&store).remove(0);
            fs::copy(&newest, kept.join(newest.file_name().unwrap())).unwrap();
        }
    }
    assert_eq!(snapshots(&store).len(), 2);
    (daemon.kill(), store, kept)
}

/// The number of lost entries is in the log, the status, the metrics and `ledge doctor`, and the next start is one in
/// order.
fn is_told(daemon: TestDaemon, lost: usize) -> TestDaemon {
    let told = daemon.events("features.entries_lost");
    assert!(told.len() == 1 && told[0]["entries"] == lost, "{told:#?}\n{}", daemon.log());
    let found = status(&daemon);
    assert_eq!(found["entries_lost"], lost, "{found}");
    assert!(found["damage_found"].as_u64().unwrap() > 0, "{found}");
    let metrics = String::from_utf8(daemon.client().get("/metrics").body).unwrap();
    assert!(metrics.contains(&format!("ledge_feature_entries_lost_total {lost}\n")), "{metrics}");
    let doctor = daemon.root.command(&["doctor"]).output().unwrap();
    assert!(!doctor.status.success());
    let doctor = String::from_utf8(doctor.stdout).unwrap();
    assert!(doctor.contains(&format!("at least {lost} acknowledged entries are lost")), "{doctor}");
    // It goes on by itself, with numbers that no entry had.
    assert!(found["journal_next_seq"].as_i64().unwrap() > ROWS, "{found}");
    push(&daemon, 0..ROWS);
    assert!(missing(&daemon).is_empty());
    let daemon = start(daemon.kill()).daemon;
    assert!(missing(&daemon).is_empty());
    let found = status(&daemon);
    assert_eq!((&found["entries_lost"], &found["damage_found"]), (&json!(0), &json!(0)), "{found}");
    daemon
}

#[test]
fn journal_and_index_that_are_gone_before_the_first_snapshot_are_told_as_a_loss() {
    let root = filled().kill();
    let store = root.folder.path().join("features");
    fs::remove_dir_all(store.join("journal")).unwrap();
    remove_index(&store);
    let daemon = start(root).daemon;
    assert_eq!(missing(&daemon).len(), 500);
    is_told(daemon, 500);
}

#[test]
fn a_journal_cut_in_the_middle_beside_a_lost_index_is_told_to_the_entry() {
    let root = filled().kill();
    let store = root.folder.path().join("features");
    remove_index(&store);
    let segment = segment(&store);
    let length = segment.metadata().unwrap().len();
    fs::File::options().write(true).open(&segment).unwrap().set_len(length / 2).unwrap();
    let daemon = start(root).daemon;
    let lost = missing(&daemon).len();
    assert!((100..400).contains(&lost), "{lost}");
    assert_eq!(segment.metadata().unwrap().len(), length / 2, "the damaged end was cut off");
    is_told(daemon, lost);
}

#[test]
fn what_a_snapshot_has_is_not_told_as_lost() {
    let daemon = filled();
    assert_eq!(daemon.client().post_json("/features/snapshot", &json!({})).status, 200);
    push(&daemon, 490..500);
    let root = daemon.kill();
    let store = root.folder.path().join("features");
    fs::remove_dir_all(store.join("journal")).unwrap();
    remove_index(&store);
    let daemon = start(root).daemon;
    assert_eq!(missing(&daemon), Vec::<i64>::new());
    is_told(daemon, 10);
}

#[test]
fn a_journal_that_lost_its_end_is_made_good_by_the_index() {
    let mut daemon = filled();
    daemon.signal("TERM");
    assert!(daemon.wait().success());
    let root = daemon.kill();
    let store = root.folder.path().join("features");
    let segment = segment(&store);
    let length = segment.metadata().unwrap().len();
    fs::File::options().write(true).open(&segment).unwrap().set_len(length - 1).unwrap();
    let daemon = start(root).daemon;
    daemon.wait_for_event_since_start("features.snapshot_taken");
    assert_eq!(missing(&daemon), Vec::<i64>::new());
    let found = status(&daemon);
    assert_eq!(found["entries_lost"], 0, "{found}");
    assert!(found["damage_found"].as_u64().unwrap() > 0, "{found}");
    // The snapshot has the entries that the journal lacks.
    let root = daemon.kill();
    remove_index(&store);
    let daemon = start(root).daemon;
    assert_eq!(missing(&daemon), Vec::<i64>::new());
    assert_eq!(status(&daemon)["damage_found"], 0);
}

#[test]
fn one_of_the_two_files_that_know_of_a_loss_may_be_lost_with_it() {
    for gone in ["acknowledged", "acknowledged.copy"] {
        let root = filled().kill();
        let store = root.folder.path().join("features");
        fs::remove_dir_all(store.join("journal")).unwrap();
        remove_index(&store);
        fs::remove_file(store.join(gone)).unwrap();
        is_told(start(root).daemon, 500);
    }
}

#[test]
fn a_store_of_a_version_that_noted_nothing_opens_without_an_alarm() {
    let root = filled().kill();
    let store = root.folder.path().join("features");
    for name in ["acknowledged", "acknowledged.copy", "reserve"] {
        fs::remove_file(store.join(name)).unwrap();
    }
    let daemon = start(root).daemon;
    assert_eq!((missing(&daemon).len(), &status(&daemon)["damage_found"]), (0, &json!(0)));
    push(&daemon, 0..10);
    let root = daemon.kill();
    fs::remove_dir_all(store.join("journal")).unwrap();
    remove_index(&store);
    is_told(start(root).daemon, 510);
}

#[test]
fn two_snapshots_that_older_ones_replace_are_told_as_a_loss_of_their_views() {
    for under_their_names in [true, false] {
        let (root, store, kept) = with_snapshots();
        for (newer, older) in snapshots(&store).into_iter().zip(snapshots(&kept)) {
            let name = if under_their_names { older.file_name() } else { newer.file_name() };
            let place = store.join(name.unwrap());
            fs::remove_file(&newer).unwrap();
            fs::copy(&older, place).unwrap();
        }
        let daemon = start(root).daemon;
        daemon.wait_for_event_since_start("features.snapshot_taken");
        // The journal goes back to the older of the two that were there.
        assert_eq!(missing(&daemon), (200..400).collect::<Vec<_>>(), "{under_their_names}\n{}", daemon.log());
        let found = status(&daemon);
        let of_views: Vec<_> = found["feature_views"].as_array().unwrap().iter().collect();
        let lost = |name: &str| of_views.iter().find(|view| view["name"] == name).unwrap()["entries_lost"].clone();
        assert_eq!(lost("direct"), 200, "{found}");
        let told = daemon.wait_for_event_since_start("features.entries_lost");
        let finding = daemon.root.finding("feature store");
        for words in [&told["reason"], &finding["detail"]] {
            assert!(words.as_str().unwrap().contains("direct"), "{words}");
        }
        assert_eq!(daemon.client().get("/v2/health/ready").status, 200, "models go on");
        is_told(daemon, 200);
    }
}

#[test]
fn a_snapshot_that_an_older_one_replaces_loses_nothing_beside_a_good_one() {
    for replaced in 0..2 {
        for under_its_name in [true, false] {
            let (root, store, kept) = with_snapshots();
            let newer = snapshots(&store).remove(replaced);
            let older = snapshots(&kept).remove(0);
            fs::remove_file(&newer).unwrap();
            let name = if under_its_name { older.file_name() } else { newer.file_name() };
            fs::copy(&older, store.join(name.unwrap())).unwrap();
            let daemon = start(root).daemon;
            assert_eq!(missing(&daemon), Vec::<i64>::new(), "{replaced}, {under_its_name}\n{}", daemon.log());
            assert_eq!(status(&daemon)["entries_lost"], 0);
        }
    }
}
