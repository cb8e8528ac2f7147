//! Administration of a working feature store: backups, restores, snapshots, and their commands.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot};

const VIEWS: &str = r#"
[[entity]]
name = "machine"
join_key = "machine_id"
value_type = "String"

[[feature_view]]
name = "sensors"
entities = ["machine"]
source = { name = "sensors_push" }
schema = [
  { name = "temperature", dtype = "Float64" },
  { name = "cycles", dtype = "Int64", optional = true },
]
aggregation = [
  { column = "cycles", function = "sum", time_window = "1h", slide_interval = "1m" },
]

[[feature_view]]
name = "plain"
entities = ["machine"]
source = { name = "plain_push" }
schema = [
  { name = "note", dtype = "String" },
  { name = "level", dtype = "Int32", optional = true },
]
"#;

/// The same names, so that they get other numbers.
const OTHER_ORDER: &str = r#"
[[entity]]
name = "machine"
join_key = "machine_id"
value_type = "String"

[[feature_view]]
name = "another"
entities = ["machine"]
source = { name = "another_push" }
schema = [{ name = "x", dtype = "Bool" }]

[[feature_view]]
name = "plain"
entities = ["machine"]
source = { name = "plain_push" }
schema = [
  { name = "level", dtype = "Int32", optional = true },
  { name = "note", dtype = "String" },
]

[[feature_view]]
name = "sensors"
entities = ["machine"]
source = { name = "sensors_push" }
schema = [
  { name = "new", dtype = "Bytes", optional = true },
  { name = "cycles", dtype = "Int64", optional = true },
  { name = "temperature", dtype = "Float64" },
]
aggregation = [
  { column = "cycles", function = "sum", time_window = "1h", slide_interval = "1m" },
]
"#;

fn start(views: &str) -> TestDaemon {
    TestRoot::new().views(views).start()
}

#[track_caller]
fn push(client: &mut Client, source: &str, df: &Value) {
    let answer = client.post_json("/push", &json!({"push_source_name": source, "df": df}));
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// The values of features of machines, feature by feature.
#[track_caller]
fn values(client: &mut Client, features: &[&str], machines: &[String]) -> Vec<Value> {
    let request = json!({"features": features, "entities": {"machine_id": machines}});
    let answer = client.post_json("/get-online-features", &request);
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    answer["results"].as_array().unwrap()[1..].iter().map(|vector| vector["values"].clone()).collect()
}

fn machines(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("m{number}")).collect()
}

/// Fills `plain` for this many machines.
fn fill(client: &mut Client, count: usize, note: &str) {
    let notes: Vec<_> = (0..count).map(|number| format!("{note}{number}")).collect();
    push(client, "plain_push", &json!({"machine_id": machines(count), "note": notes, "level": vec![7; count]}));
}

#[track_caller]
fn backup(client: &mut Client) -> Vec<u8> {
    let answer = client.get("/features/backup");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/octet-stream")), "{answer:?}");
    assert!(answer.header("content-disposition").unwrap().contains(".ledge"), "{:?}", answer.headers);
    answer.body
}

fn restore(client: &mut Client, backup: &[u8]) -> Response {
    client.post("/features/restore", &[], backup)
}

#[track_caller]
fn restored(client: &mut Client, backup: &[u8]) -> u64 {
    let answer = restore(client, backup);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["records"].as_u64().unwrap()
}

#[test]
fn a_backup_has_everything_acknowledged_before_it_and_restores_elsewhere_by_name() {
    let daemon = start(VIEWS);
    let client = &mut daemon.client();
    fill(client, 500, "a");
    let events = json!({"machine_id": ["m0", "m0", "m1"], "temperature": [1.0, 2.0, 3.5], "cycles": [10, 5, null]});
    push(client, "sensors_push", &events);
    // Others go on to push while it is taken.
    let (over, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let (taken, before) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let client = &mut daemon.client();
            while !over.load(Ordering::Relaxed) {
                let number = acknowledged.load(Ordering::Relaxed);
                push(client, "plain_push", &json!({"machine_id": [format!("p{number}")], "note": ["p"]}));
                acknowledged.fetch_add(1, Ordering::Release);
            }
        });
        while acknowledged.load(Ordering::Acquire) < 10 {
            std::thread::yield_now();
        }
        let before = acknowledged.load(Ordering::Acquire);
        let taken = backup(&mut daemon.client());
        over.store(true, Ordering::Relaxed);
        (taken, before)
    });

    let other = start(OTHER_ORDER);
    let client = &mut other.client();
    push(client, "another_push", &json!({"machine_id": ["m0"], "x": [true]}));
    let records = restored(client, &taken);
    assert!(records >= 502 + before, "{records} records, {before} pushes before");
    let pushed: Vec<_> = (0..before).map(|number| format!("p{number}")).collect();
    assert_eq!(values(client, &["plain:note"], &pushed), [json!(vec!["p"; pushed.len()])]);
    let found = values(client, &["plain:note", "plain:level"], &machines(500));
    assert_eq!((&found[0][499], &found[1]), (&json!("a499"), &json!(vec![7; 500])));
    let features = ["sensors:temperature", "sensors:cycles", "sensors:sum_cycles_3600s", "sensors:new"];
    assert_eq!(
        values(client, &features, &machines(2)),
        [json!([2.0, 3.5]), json!([5, null]), json!([15.0, null]), json!([null, null])]
    );
    assert_eq!(values(client, &["another:x"], &machines(1)), [json!([null])], "what was there before is replaced");

    // Later pushes are newer, and all of them are there after a crash.
    push(client, "sensors_push", &json!({"machine_id": ["m0"], "temperature": [9.0], "cycles": [100]}));
    push(client, "plain_push", &json!({"machine_id": ["m0"], "note": ["after"]}));
    let root = other.kill();
    let again = root.start();
    let client = &mut again.client();
    wait_until_ready(client);
    assert_eq!(values(client, &features[..3], &machines(1)), [json!([9.0]), json!([100]), json!([115.0])]);
    assert_eq!(values(client, &["plain:note"], &machines(2)), [json!(["after", "a1"])]);
    assert!(!again.log().contains("damaged"), "{}", again.log());
}

#[test]
fn a_store_that_was_restored_stops_and_starts_in_order() {
    let mut daemon = start(VIEWS);
    let client = &mut daemon.client();
    fill(client, 10, "old");
    let taken = backup(client);
    fill(client, 20, "new");
    assert_eq!(restored(client, &taken), 10);
    daemon.signal("TERM");
    assert!(daemon.wait().success());
    let again = daemon.kill().start();
    let found = values(&mut again.client(), &["plain:note"], &machines(11));
    assert_eq!((&found[0][9], &found[0][10]), (&json!("old9"), &Value::Null));
    for word in ["damaged", "set aside", "is removed", "not closed cleanly"] {
        assert!(!again.log().contains(word), "{word}: {}", again.log());
    }
}

#[test]
fn a_backup_that_is_cut_or_flipped_or_does_not_fit_is_refused_and_the_old_rows_stay() {
    let daemon = start(VIEWS);
    let client = &mut daemon.client();
    fill(client, 300, "theirs");
    let taken = backup(client);
    fill(client, 300, "ours");
    let flipped = |at: usize| {
        let mut bytes = taken.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let one_view = client.get("/features/backup?feature_view=plain").body;
    assert!(one_view.len() > 1000);
    let mut tried = 0;
    for wrong in [
        Vec::new(),
        b"not a backup".to_vec(),
        taken[..taken.len() - 1].to_vec(),
        taken[..taken.len() / 2].to_vec(),
        [&taken[..], b"x"].concat(),
        flipped(5),
        flipped(60),
        flipped(taken.len() / 2),
        flipped(taken.len() - 3),
        one_view,
    ] {
        let answer = restore(client, &wrong);
        assert_eq!(answer.status, 422, "{} bytes: {answer:?}", wrong.len());
        assert!(answer.error().starts_with("the backup cannot be restored, and nothing has changed: "), "{answer:?}");
        tried += 1;
    }
    assert_eq!(tried, 10);
    assert_eq!(values(client, &["plain:note"], &machines(1)), [json!(["ours0"])]);
    fill(client, 1, "later");
    assert_eq!(values(client, &["plain:note"], &machines(1)), [json!(["later0"])]);
    assert_eq!(client.get("/features/status").json()["state"], "ready");

    let other = start(&VIEWS.replace("\"plain\"", "\"renamed\"").replace("plain_push", "renamed_push"));
    let message = restore(&mut other.client(), &taken).error();
    assert!(message.contains("'plain'") && message.contains("feature_views.d"), "{message}");
    let other = start(&VIEWS.replace("\"Int32\"", "\"Int64\""));
    let message = restore(&mut other.client(), &taken).error();
    assert!(["'level'", "'plain'", "Int32", "Int64"].iter().all(|name| message.contains(name)), "{message}");
    let answer = client.post("/features/restore", &[("content-encoding", "gzip")], &taken);
    assert_eq!(answer.status, 415, "{answer:?}");
    assert_eq!(client.get("/features/backup?feature_view=absent").status, 404);
    assert_eq!(client.get("/features/backup?view=plain").status, 400);
}

/// Decides from the names in the store's folder, before and now, that the moment to kill has come.
type Reached<'a> = &'a dyn Fn(&[String], &[String]) -> bool;

#[test]
fn a_kill_in_the_middle_of_a_restore_leaves_the_old_rows_or_the_new() {
    const ROWS: usize = 4000;
    let daemon = start(VIEWS);
    let client = &mut daemon.client();
    fill(client, ROWS, "new");
    let taken = backup(client);
    drop(daemon);
    let mut root = TestRoot::new().views(VIEWS);
    let mut seen = [0, 0];
    // Each round is killed as soon as the folder shows how far the restore is.
    let upload = |names: &[String], _: &[String]| names.iter().any(|name| name == "restore.upload");
    let unfinished = |names: &[String], _: &[String]| names.iter().any(|name| name.ends_with(".ledge.tmp"));
    let finished = |names: &[String], before: &[String]| added(names, before, "snapshot-", ".ledge");
    let indexing = |names: &[String], before: &[String]| added(names, before, "index-", "");
    let moments: [(&str, Reached<'_>); 4] =
        [("upload", &upload), ("unfinished", &unfinished), ("finished", &finished), ("indexing", &indexing)];
    for (moment, is_reached) in moments.into_iter().chain(moments) {
        let daemon = root.start();
        let client = &mut daemon.client();
        fill(client, ROWS, "old");
        push(client, "plain_push", &json!({"machine_id": ["extra"], "note": ["old"]}));
        let folder = daemon.root.folder.path().join("features");
        let before = names(&folder);
        std::thread::scope(|scope| {
            let restoring = scope.spawn(|| {
                let mut client = daemon.client();
                let length = taken.len();
                client.send(
                    format!("POST /features/restore HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n")
                        .as_bytes(),
                );
                client.send(&taken);
                client.finish();
            });
            while !is_reached(&names(&folder), &before) && !restoring.is_finished() {
                std::hint::spin_loop();
            }
            daemon.signal("KILL");
        });
        root = daemon.kill();
        let daemon = root.start();
        let client = &mut daemon.client();
        wait_until_ready(client);
        let found = values(client, &["plain:note"], &machines(ROWS));
        let all = |word: &str| (0..ROWS).all(|number| found[0][number] == format!("{word}{number}"));
        let (old, new) = (all("old"), all("new"));
        assert!(old != new, "{moment}: {}", found[0]);
        let extra = values(client, &["plain:note"], &["extra".to_owned()]);
        assert_eq!(extra[0][0], if old { json!("old") } else { Value::Null }, "{moment}");
        assert!(new || moment != "indexing", "{moment}");
        assert!(!daemon.log().contains("damaged"), "{}", daemon.log());
        assert!(!names(&folder).iter().any(|name| name == "restore.upload"));
        seen[usize::from(new)] += 1;
        root = daemon.kill();
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Returns `true` if there is a new name of this form.
fn added(names: &[String], before: &[String], start: &str, end: &str) -> bool {
    names.iter().any(|name| name.starts_with(start) && name.ends_with(end) && !before.contains(name))
}

/// A daemon is ready while it still rebuilds an index.
fn wait_until_ready(client: &mut Client) {
    let until = Instant::now() + Duration::from_secs(30);
    while client.get("/features/status").json()["state"] != "ready" {
        assert!(Instant::now() < until, "the store does not become ready");
    }
}

#[test]
fn the_state_and_the_metrics_tell_of_rows_and_files() {
    let daemon = start(VIEWS);
    let client = &mut daemon.client();
    fill(client, 30, "a");
    let (before, after) = {
        assert_eq!(client.post("/features/snapshot", &[], b"").status, 200);
        let answer = client.post("/features/compact", &[], b"");
        assert_eq!(answer.status, 200, "{answer:?}");
        (answer.json()["bytes_before"].as_u64().unwrap(), answer.json()["bytes_after"].as_u64().unwrap())
    };
    assert!(before > 0 && after > 0);
    assert_eq!(values(client, &["plain:level"], &machines(1)), [json!([7])]);
    let status = client.get("/features/status").json();
    assert_eq!((&status["state"], &status["feature_views"][0]["name"]), (&json!("ready"), &json!("plain")));
    assert_eq!(status["feature_views"][0]["rows"], 30);
    assert_eq!(status["feature_views"][0]["pushed"]["accepted"], 30);
    assert!(status["bytes"]["snapshots"].as_u64().unwrap() > 0 && status["snapshot"].is_string(), "{status}");
    let metrics = String::from_utf8(client.get("/metrics").body).unwrap();
    for sample in [
        "ledge_feature_store_state{state=\"ready\"} 1",
        "ledge_feature_rows{feature_view=\"plain\"} 30",
        "ledge_feature_rows_pushed_total{feature_view=\"plain\",outcome=\"accepted\"} 30",
        "ledge_feature_values_read_total{status=\"PRESENT\"} 1",
    ] {
        assert!(metrics.lines().any(|line| line == sample), "no {sample} in\n{metrics}");
    }
    let without = TestRoot::new().start();
    let client = &mut without.client();
    assert_eq!(client.get("/features/status").json(), json!({"state": "disabled"}));
    assert_eq!(client.get("/features/backup").status, 404);
    assert_eq!(restore(client, b"x").status, 404);
    assert!(!String::from_utf8(client.get("/metrics").body).unwrap().contains("ledge_feature_"));
}
