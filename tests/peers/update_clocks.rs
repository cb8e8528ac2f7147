//! Boxes with a wrong clock, or on which more time passes than a test has: the real daemon under `faketime`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use ledge::clock;
use serde_json::{Value, json};

use crate::daemon::{TestDaemon, TestRoot, model_folder, write};
use crate::platform::{Fleet, SHAPES, look, look_in_vain, shapes, status, subject, versions};

const DAY_MS: u64 = 86_400_000;

/// The environment in which a program believes that it is `when`: `+31d` from now, or `@1970-01-01 00:00:01`.
fn clock_at(when: &str) -> Vec<(&'static str, OsString)> {
    clock_set_by("FAKETIME", when.into())
}

/// The same with the words in a file, which may change while the program runs.
fn clock_in(file: &Path) -> Vec<(&'static str, OsString)> {
    [clock_set_by("FAKETIME_TIMESTAMP_FILE", file.into()), vec![("FAKETIME_CACHE_DURATION", "1".into())]].concat()
}

fn clock_set_by(variable: &'static str, value: OsString) -> Vec<(&'static str, OsString)> {
    // Time goes on as it does, or nothing that waits would end; and files keep their times.
    let unchanged = ["FAKETIME_DONT_FAKE_MONOTONIC", "DONT_FAKE_MONOTONIC", "NO_FAKE_STAT"];
    let mut environment = vec![("LD_PRELOAD", library().into()), (variable, value)];
    environment.extend(unchanged.map(|name| (name, "1".into())));
    environment
}

/// Debian's path of the library on this machine.
fn library() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").unwrap().map(|entry| entry.unwrap().path());
    let mut found = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).filter(|path| path.is_file());
    found.next().expect("faketime is not installed: `make test-peers` installs it, or says how")
}

fn with(root: TestRoot, environment: Vec<(&'static str, OsString)>) -> TestRoot {
    environment.into_iter().fold(root, |root, (name, value)| root.variable(name, value))
}

/// A platform with two versions of a model, of which it rolls out the first.
fn fleet() -> Fleet {
    let fleet = Fleet::new("");
    for (version, model) in [(1, "release_good"), (2, "release_better")] {
        fleet.platform.add_model(SHAPES, version, &model_folder(model), &[]);
    }
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    fleet
}

/// A box that has the first version, and is switched off.
fn settled(fleet: &Fleet) -> TestRoot {
    let daemon = fleet.enrol(TestRoot::new()).start();
    daemon.wait_for_event("update.committed");
    daemon.kill()
}

#[track_caller]
fn answers(daemon: &TestDaemon, version: &str) {
    let answer = daemon.client().post_json("/v2/models/shapes/infer", &shapes());
    assert_eq!((answer.status, &answer.json()["model_version"]), (200, &json!(version)));
}

#[test]
fn a_box_whose_clock_starts_in_1970_takes_updates_over_mutual_tls() {
    let fleet = fleet();
    let root = with(fleet.enrol(TestRoot::new()), clock_at("@1970-01-01 00:00:01"));
    let daemon = root.start();
    daemon.wait_for_event("update.committed");
    assert!(daemon.log().contains("\"timestamp\":\"1970-01-01T"), "this is no test of a clock at 1970");
    answers(&daemon, "1");
    // It starts there again after a power cut.
    let daemon = daemon.kill().start();
    fleet.platform.start("r-2", "models/shapes/2", &[]);
    look(&daemon);
    daemon.wait_for_event("update.committed");
    answers(&daemon, "2");
    let checked = status(&daemon)["checked"].as_str().unwrap().to_owned();
    assert!(checked.as_str() > "2026", "{checked}");
}

#[test]
fn a_clock_at_2100_stops_updates_and_nothing_else_until_it_is_right() {
    let fleet = fleet();
    let root = with(settled(&fleet), clock_at("@2100-01-01 00:00:00"));
    fleet.platform.start("r-2", "models/shapes/2", &[]);
    let daemon = root.start();
    let error = look_in_vain(&daemon);
    assert!(error.contains("expired") && error.contains("2100-01-01"), "{error}");
    answers(&daemon, "1");
    assert_eq!(subject(&daemon, "models/shapes")["trial"], Value::Null);
    // Nothing of that time was kept.
    let daemon = with(daemon.kill(), clock_at("+0d")).start();
    look(&daemon);
    daemon.wait_for_event("update.committed");
    answers(&daemon, "2");
    assert_eq!(status(&daemon)["error"], Value::Null);
}

#[test]
fn after_a_month_without_a_network_everything_serves_and_updates_go_on() {
    let mut fleet = fleet();
    let mut root = with(settled(&fleet), clock_at("+31d"));
    fleet.nginx.stop();
    for _ in 0..2 {
        let daemon = root.start();
        let error = look_in_vain(&daemon);
        assert!(error.contains("refuses the connection"), "{error}");
        answers(&daemon, "1");
        let waits = subject(&daemon, "models/shapes")["waiting"]["reason"].as_str().unwrap().to_owned();
        assert!(waits.contains("the fleet's metadata expired"), "{waits}");
        root = daemon.kill();
    }
    // The network is back, and the metadata is a month old.
    fleet.nginx.start_again(None);
    let daemon = root.start();
    let error = look_in_vain(&daemon);
    assert!(error.contains("timestamp expired"), "{error}");
    answers(&daemon, "1");
    fleet.platform.set_environment(clock_at("+31d"));
    fleet.platform.run(&["refresh"], &[]);
    look(&daemon);
    assert_eq!(status(&daemon)["error"], Value::Null);
    assert_eq!(subject(&daemon, "models/shapes")["waiting"], Value::Null);
    fleet.platform.start("r-2", "models/shapes/2", &[]);
    look(&daemon);
    daemon.wait_for_event("update.committed");
    answers(&daemon, "2");
}

#[test]
fn metadata_that_expires_in_the_middle_of_a_soak_does_not_stop_it() {
    let fleet = fleet();
    fleet.platform.start("r-2", "models/shapes/2", &["--soak", "min_s=12,min_requests=0,max_s=60"]);
    let folder = tempfile::tempdir().unwrap();
    let clock = folder.path().join("clock");
    write(&clock, b"+0d\n");
    let daemon = with(fleet.enrol(TestRoot::new()), clock_in(&clock)).start();
    while daemon.wait_for_event("update.moved")["stage"] != "active" {}
    write(&clock, b"+31d\n");
    let mut client = daemon.client();
    let expired = |_| {
        let answer = client.post_json("/updates/check", &json!({}));
        answer.status == 502 && answer.error().contains("expired")
    };
    assert!((0..10_000).any(expired), "{}", status(&daemon));
    assert_eq!(subject(&daemon, "models/shapes")["stage"], "active", "the soak was over before");
    daemon.wait_for_event("update.committed");
    answers(&daemon, "2");
}

#[test]
fn an_expired_fleet_role_starts_nothing_new() {
    let mut fleet = fleet();
    let in_ten_days = clock::rfc3339(clock::unix_millis() + 10 * DAY_MS);
    fleet.platform.start("r-2", "models/shapes/2", &["--start", &in_ten_days]);
    let root = settled(&fleet);
    fleet.nginx.stop();
    // Its wave has come. The manifest that says so is here, and counts no more.
    let daemon = with(root, clock_at("+11d")).start();
    look_in_vain(&daemon);
    let told = subject(&daemon, "models/shapes");
    let waiting = &told["waiting"];
    assert_eq!((&told["trial"], &waiting["rollout"]), (&Value::Null, &json!("r-2")), "{told}");
    assert!(waiting["reason"].as_str().unwrap().contains("the fleet's metadata expired"), "{told}");
    assert_eq!(versions(&daemon, SHAPES), json!(["1"]));
    // It was that and nothing else.
    fleet.platform.set_environment(clock_at("+11d"));
    fleet.platform.run(&["refresh"], &[]);
    fleet.nginx.start_again(None);
    look(&daemon);
    daemon.wait_for_event("update.committed");
    answers(&daemon, "2");
}
