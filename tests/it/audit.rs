//! The audit log of a daemon over its life: its content, its state after a kill, and the treatment of a damaged one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ledge::audit::layout::{FULL_WIDTH, TileKind, TilePath, log_folder, whole_entries};
use ledge::audit::local::{LocalAuditLog, generations};
use ledge::audit::record::AuditRecord;
use ledge::audit_event::AuditEvent;
use ledge::audit_event::inference::CallOutcome;
use serde_json::{Value, json};

use crate::client::Client;
use crate::core::add_sub_request;
use crate::daemon::{TestDaemon, TestRoot, data, write};

/// The folder of all logs.
pub fn audit(root: &TestRoot) -> PathBuf {
    root.folder.path().join("audit")
}

/// The file of a tile of records.
pub fn tile(root: &TestRoot, generation: u32, index: u64) -> PathBuf {
    TilePath { kind: TileKind::Entries, index, width: FULL_WIDTH }.local(&log_folder(&audit(root), generation))
}

/// The whole records of a log that are on the disk.
pub fn records(root: &TestRoot, generation: u32) -> Vec<AuditRecord> {
    let files = (0..5000).map(|index| std::fs::read(tile(root, generation, index)));
    let files = files.skip_while(Result::is_err).map_while(Result::ok);
    files
        .flat_map(|file| {
            whole_entries(&file).0.into_iter().map(|entry| AuditRecord::parse(entry).unwrap()).collect::<Vec<_>>()
        })
        .collect()
}

/// The number of records with an event of this kind.
pub fn count(records: &[AuditRecord], of: impl Fn(&AuditEvent) -> bool) -> usize {
    records.iter().filter(|record| of(&record.event)).count()
}

/// The number of inference calls in the records.
pub fn calls(records: &[AuditRecord]) -> u64 {
    let calls = |record: &AuditRecord| match record.event {
        AuditEvent::Inference { .. } => 1,
        AuditEvent::InferenceMinute { calls, .. } => calls,
        _ => 0,
    };
    records.iter().map(calls).sum()
}

/// The losses that records report, by cause: calls and events.
pub fn losses(records: &[AuditRecord]) -> BTreeMap<String, (u64, u64)> {
    let mut found = BTreeMap::<_, (u64, u64)>::new();
    for record in records {
        if let AuditEvent::RecordsLost { cause, calls, events, .. } = &record.event {
            let sum = found.entry(cause.to_string()).or_default();
            *sum = (sum.0 + calls, sum.1 + events);
        }
    }
    found
}

/// The number of records in the signed head of a log.
pub fn signed(root: &TestRoot, generation: u32) -> Option<u64> {
    let note = LocalAuditLog::open(&log_folder(&audit(root), generation)).checkpoint().unwrap()?;
    String::from_utf8(note).unwrap().lines().nth(1)?.parse().ok()
}

/// The exit code and the output of `ledge audit verify`.
pub fn verify(root: &TestRoot) -> (Option<i32>, Value) {
    let output = root.command(&["audit", "verify", "--json"]).output().unwrap();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}")))
}

/// Checks that there is one log, and that it is whole and signed to its end.
pub fn is_whole(root: &TestRoot) {
    assert_eq!(generations(&audit(root)).unwrap(), [1]);
    let (code, report) = verify(root);
    assert_eq!((code, &report["verdict"]), (Some(0), &json!("whole")), "{report}");
    assert_eq!(signed(root, 1).unwrap(), records(root, 1).last().unwrap().seq + 1);
}

/// Stops a daemon in order.
pub fn stop(mut daemon: TestDaemon) -> TestRoot {
    daemon.signal("TERM");
    assert!(daemon.wait().success());
    daemon.kill()
}

pub fn infer(client: &mut Client) {
    assert_eq!(client.post_json("/v2/models/add_sub/infer", &add_sub_request(1, 1)).status, 200);
}

/// Asks how the log does until it does so.
#[track_caller]
pub fn status(client: &mut Client, until: impl Fn(&Value) -> bool) -> Value {
    let begun = std::time::Instant::now();
    loop {
        let status = client.get("/audit/status").json();
        if until(&status) {
            return status;
        }
        assert!(begun.elapsed().as_secs() < 60, "{status}");
    }
}

/// The files of a log.
pub fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    found
}

#[test]
fn what_was_answered_is_in_the_log_once_after_a_kill() {
    let mut root = TestRoot::new().models(&["add_sub"]);
    for round in 1..=3 {
        let daemon = root.start();
        let mut client = daemon.client();
        assert_eq!(client.post_json("/v2/repository/models/add_sub/unload", &json!({})).status, 200);
        root = daemon.kill();
        let found = records(&root, 1);
        assert_eq!(count(&found, |event| matches!(event, AuditEvent::ModelUnloaded { .. })), round);
        assert_eq!(count(&found, |event| matches!(event, AuditEvent::Started { .. })), round);
        assert_eq!(count(&found, |event| *event == AuditEvent::Stopped), 0);
    }
    let root = stop(root.start());
    is_whole(&root);
    assert!(records(&root, 1).iter().map(|record| record.seq).eq(0..records(&root, 1).len() as u64));
}

#[test]
fn inference_by_minutes_is_a_record_a_caller_model_and_outcome_and_no_name_that_a_caller_made_up() {
    let daemon = TestRoot::new().models(&["add_sub", "scalar_out"]).start();
    let (mut tcp, mut unix) = (daemon.client(), daemon.unix_client());
    for _ in 0..3 {
        infer(&mut tcp);
        infer(&mut unix);
    }
    assert_eq!(tcp.post_json("/v2/models/add_sub/infer", &json!({"inputs": []})).status, 400);
    let secret = "a-name-that-nobody-knows";
    for _ in 0..2 {
        let path = format!("/v2/models/{secret}/infer");
        assert_eq!(tcp.post_json(&path, &add_sub_request(1, 1)).status, 404);
    }
    let root = stop(daemon);
    is_whole(&root);
    let mut minutes = Vec::new();
    for record in records(&root, 1) {
        if let AuditEvent::InferenceMinute { model, outcome, calls, us, us_max, .. } = record.event {
            let took = outcome != CallOutcome::Ok || us_max > 0;
            assert!(us >= us_max && took && record.actor.tag.is_some(), "{us} {us_max}");
            minutes.push((model.map(|model| model.to_string()), record.actor.kind.as_str(), outcome, calls));
        }
    }
    let of = |model: &str| Some(model.to_owned());
    // A minute may end between two calls.
    let sum = |model: Option<String>, kind: &str, outcome: CallOutcome| {
        let alike = |minute: &&(_, &str, _, u64)| (&minute.0, minute.1, minute.2) == (&model, kind, outcome);
        minutes.iter().filter(alike).map(|minute| minute.3).sum::<u64>()
    };
    assert_eq!(sum(of("add_sub"), "ip", CallOutcome::Ok), 3, "{minutes:?}");
    assert_eq!(sum(of("add_sub"), "uid", CallOutcome::Ok), 3, "{minutes:?}");
    assert_eq!(sum(of("add_sub"), "ip", CallOutcome::Failed), 1, "{minutes:?}");
    assert_eq!(sum(None, "ip", CallOutcome::Unavailable), 2, "{minutes:?}");
    assert!((4..=8).contains(&minutes.len()), "{minutes:?}");
    for (path, content) in files(&audit(&root)) {
        assert!(!content.windows(secret.len()).any(|part| part == secret.as_bytes()), "{}", path.display());
    }
}

#[test]
fn inference_by_calls_is_a_record_each_that_is_found_by_its_photograph() {
    let root = TestRoot::new().models(&["efficientnet_lite0"]).set("audit.inference=\"calls\"");
    let daemon = root.start();
    let mut client = daemon.client();
    for photograph in ["photos/chelsea.jpg", "photos/camera_orientation6.jpg", "photos/chelsea.jpg"] {
        let headers = [("content-type", "image/jpeg")];
        let answer = client.post("/v2/models/efficientnet_lite0/infer", &headers, &data(photograph));
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let root = stop(daemon);
    is_whole(&root);
    let found = records(&root, 1);
    let has_tags = |event: &AuditEvent| matches!(event, AuditEvent::Inference { input: Some(_), output: Some(_), .. });
    assert_eq!((calls(&found), count(&found, has_tags)), (3, 3));
    let photograph = root.folder.path().join("photograph");
    write(&photograph, &data("photos/chelsea.jpg"));
    let output =
        root.command(&["audit", "show", "--json", "--input", &photograph.display().to_string()]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 2, "{found:?}");
}

#[test]
fn a_changed_setting_is_recorded_once_by_its_key_and_never_by_its_value() {
    let root = stop(TestRoot::new().start());
    let root = stop(root.set("audit.min_free_mb=17").start());
    // The same again.
    let root = stop(root.start());
    is_whole(&root);
    let mut changes = Vec::new();
    for record in records(&root, 1) {
        if let AuditEvent::ConfigurationChanged { keys } = record.event {
            changes.push(keys);
        }
    }
    let with_it: Vec<_> = changes.iter().filter(|keys| keys.contains(&"audit.min_free_mb".to_owned())).collect();
    assert_eq!(with_it, [&["audit.min_free_mb"]], "{changes:?}");
}

#[test]
fn a_cut_tail_is_an_alarm_and_another_log_begins_once() {
    let root = stop(TestRoot::new().start());
    let size = signed(&root, 1).unwrap();
    let path = tile(&root, 1, 0);
    let file = std::fs::read(&path).unwrap();
    let last = whole_entries(&file).0.last().unwrap().len() + 2;
    write(&path, &file[..file.len() - last]);
    let before = files(&log_folder(&audit(&root), 1));

    let daemon = root.start();
    let mut client = daemon.client();
    // The alarm comes before the log that follows is open.
    let told = status(&mut client, |status| {
        status["alarm"].is_string() && status["origin"].as_str().is_some_and(|origin| origin.ends_with("/2"))
    });
    let line = daemon.wait_for_event_since_start("audit.log_replaced");
    assert_eq!((&line["level"], &line["cause"]), (&json!("ERROR"), &json!("damaged")), "{line}");
    let words = format!("it has {} records, but its checkpoint has {size}", size - 1);
    assert!(told["alarm"].as_str().unwrap().contains(&words), "{told}");
    assert!(told["error"].is_null(), "{told}");
    assert_eq!((daemon.metric("ledge_audit_alarm"), daemon.metric("ledge_audit_failed")), (1, 0));
    let root = stop(daemon);
    assert_eq!(files(&log_folder(&audit(&root), 1)), before);
    let second = records(&root, 2);
    let AuditEvent::LogBegun { cause, previous: Some(previous) } = &second[0].event else { panic!("{second:?}") };
    assert_eq!((cause.as_str(), previous.size, previous.found), ("damaged", size, size - 1));

    let (code, report) = verify(&root);
    assert_eq!((code, &report["verdict"]), (Some(3), &json!("gap")), "{report}");
    let logs = report["logs"].as_array().unwrap();
    let is_clean = |log: &Value| log["findings"].as_array().unwrap().is_empty();
    assert_eq!(logs.iter().map(is_clean).collect::<Vec<_>>(), [false, true], "{report}");

    let daemon = root.start();
    let told =
        status(&mut daemon.client(), |status| status["origin"].as_str().is_some_and(|origin| origin.ends_with("/2")));
    assert!(told["alarm"].as_str().unwrap().contains(&words), "the alarm outlives a restart: {told}");
    let root = stop(daemon);
    assert_eq!(generations(&audit(&root)).unwrap(), [1, 2]);
    assert_eq!(files(&log_folder(&audit(&root), 1)), before);
    assert_eq!(count(&records(&root, 2), |event| matches!(event, AuditEvent::LogBegun { .. })), 1);
    assert_eq!(signed(&root, 2).unwrap(), records(&root, 2).len() as u64);
}

/// Starts and stops a daemon on what `change` made of the log of another; why the second log began.
fn begun_after(root: TestRoot, change: impl FnOnce(TestRoot) -> TestRoot) -> (TestRoot, String) {
    let root = stop(change(stop(root.start())).start());
    assert_eq!(generations(&audit(&root)).unwrap(), [1, 2]);
    let AuditEvent::LogBegun { cause, previous: Some(_) } = &records(&root, 2)[0].event else { panic!("no beginning") };
    let cause = cause.to_string();
    (root, cause)
}

#[test]
fn a_box_of_another_name_begins_another_log() {
    let root = TestRoot::new().set("device.id=\"box-1\"");
    let (root, cause) = begun_after(root, |root| root.set("device.id=\"box-2\""));
    assert_eq!(cause, "renamed");
    let (_, report) = verify(&root);
    assert_eq!(report["logs"][1]["origin"], "ledge.audit/box-2/2", "{report}");
}

#[test]
fn a_lost_key_begins_another_log_that_says_so() {
    let (root, cause) = begun_after(TestRoot::new(), |root| {
        std::fs::remove_file(audit(&root).join("key")).unwrap();
        root
    });
    assert_eq!(cause, "damaged");
    assert_eq!(count(&records(&root, 2), |event| matches!(event, AuditEvent::AuditKeyMade { .. })), 1);
}

#[test]
fn a_log_without_its_checkpoint_goes_on_and_is_signed_again() {
    // It cannot be distinguished from the log of a daemon that was killed before it signed.
    let root = stop(TestRoot::new().start());
    let before = records(&root, 1);
    std::fs::remove_file(log_folder(&audit(&root), 1).join("checkpoint")).unwrap();
    let root = stop(root.start());
    is_whole(&root);
    assert_eq!(records(&root, 1)[..before.len()], before);
}

#[test]
fn a_folder_that_comes_later_is_taken_up_without_a_restart_and_what_was_lost_is_told() {
    let root = TestRoot::new().models(&["add_sub"]).set("audit.inference=\"calls\"");
    write(&audit(&root), b"");
    let daemon = root.start();
    let mut client = daemon.client();
    let told = status(&mut client, |status| status["error"].is_string());
    assert!(told["error"].as_str().unwrap().contains(audit(&daemon.root).to_str().unwrap()), "{told}");
    for _ in 0..5 {
        infer(&mut client);
    }
    let refused = client.post_json("/v2/repository/models/add_sub/unload", &json!({}));
    assert_eq!(refused.status, 503, "{refused:?}");
    std::fs::remove_file(daemon.root.folder.path().join("audit")).unwrap();
    status(&mut client, |status| status["error"].is_null());
    assert_eq!(client.post_json("/v2/repository/models/add_sub/unload", &json!({})).status, 200);
    assert_eq!(client.post_json("/v2/repository/models/add_sub/load", &json!({})).status, 200);
    infer(&mut client);
    let root = stop(daemon);
    is_whole(&root);
    let found = records(&root, 1);
    assert!(matches!(found[0].event, AuditEvent::LogBegun { .. }), "{found:?}");
    let lost = losses(&found)["log"];
    assert!(lost.0 == 5 && lost.1 >= 2 && calls(&found) == 1, "{lost:?} {found:?}");
    assert_eq!(count(&found, |event| matches!(event, AuditEvent::ModelUnloaded { .. })), 2, "one is that of the stop");
}

#[test]
fn a_second_daemon_on_the_same_root_does_not_touch_the_log() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    let mut second = daemon.root.command(&["serve"]);
    second.args(["--set", "http.listen=[\"127.0.0.1:0\"]", "--set", "log.format=\"json\""]);
    let mut second = second.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let told = std::io::BufReader::new(second.stderr.take().unwrap());
    let line =
        std::io::BufRead::lines(told).map_while(Result::ok).find(|line| line.contains("in use by another process"));
    let _ = second.kill();
    second.wait().unwrap();
    assert!(line.unwrap().contains("ERROR"));
    infer(&mut daemon.client());
    let root = stop(daemon);
    is_whole(&root);
    assert_eq!(count(&records(&root, 1), |event| matches!(event, AuditEvent::Started { .. })), 1);
    assert_eq!(calls(&records(&root, 1)), 1);
}
