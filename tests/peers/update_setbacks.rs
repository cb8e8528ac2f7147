//! Events that must not stop updates: orders at a bad moment, files that cannot be read, a stick that is pulled.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::daemon::{TestDaemon, TestRoot, model_folder};
use crate::platform::{Fleet, SHAPES, look, shapes, status, subject, until};

/// A fleet with two good versions of the model, and a box that runs the first.
fn first() -> (Fleet, TestDaemon) {
    let fleet = Fleet::new("");
    for (version, model) in [(1, "release_good"), (2, "release_better")] {
        fleet.platform.add_model(SHAPES, version, &model_folder(model), &[]);
    }
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    let daemon = fleet.enrol(TestRoot::new()).start();
    daemon.wait_for_event("update.committed");
    (fleet, daemon)
}

fn order(daemon: &TestDaemon, order: &str) {
    let answer = daemon.client().post_json(&format!("/updates/models/shapes/{order}"), &json!({}));
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
}

fn status_of_call(daemon: &TestDaemon) -> u16 {
    daemon.client().post_json("/v2/models/shapes/infer", &shapes()).status
}

#[test]
fn an_order_is_carried_out_while_the_new_version_is_being_loaded() {
    let (fleet, daemon) = first();
    fleet.platform.add_model(SHAPES, 3, &model_folder("release_slow"), &[]);
    // It is timed for more than a second next to the live version.
    fleet.platform.start("r-3", "models/shapes/3", &["--gate", "p95_ratio_max=1000000"]);
    look(&daemon);
    while daemon.wait_for_event("update.moved")["stage"] != "staged" {}
    order(&daemon, "cancel");
    let told = subject(&daemon, "models/shapes");
    assert_eq!((&told["trial"], &told["last"]["cause"]), (&Value::Null, &json!("operator")), "{told}");
    // And so is the next rollout.
    fleet.platform.start("r-2", "models/shapes/2", &["--allow-downgrade"]);
    look(&daemon);
    until(&daemon, |told| told["version"] == 2 && told["stage"] == "idle");
}

#[test]
fn who_orders_the_update_of_a_model_is_shown_no_other() {
    let (fleet, daemon) = first();
    fleet.platform.add_model("wine_mlp", 2, &model_folder("wine_mlp"), &[]);
    fleet.platform.start("r-9", "models/wine_mlp/2", &[]);
    look(&daemon);
    daemon.wait_for_event("update.committed");
    assert_eq!(status(&daemon)["subjects"].as_array().map(Vec::len), Some(2));
    let made =
        daemon.root.command(&["keys", "create", "ops", "--role", "operator", "--model", SHAPES]).output().unwrap();
    let key = String::from_utf8(made.stdout).unwrap();
    let begun = std::time::Instant::now();
    let told = loop {
        let pinned = daemon.client().post("/updates/models/shapes/pin", &[("x-api-key", key.trim())], b"");
        if pinned.status == 200 {
            break pinned.json();
        }
        assert!(begun.elapsed().as_secs() < 20, "{pinned:?}");
    };
    let subjects: Vec<_> = told["subjects"].as_array().unwrap().iter().map(|subject| &subject["subject"]).collect();
    assert_eq!(subjects, ["models/shapes"], "{told}");
}

#[test]
fn what_waited_for_a_pinned_box_begins_when_it_is_unpinned() {
    let (fleet, daemon) = first();
    order(&daemon, "pin");
    fleet.platform.start("r-2", "models/shapes/2", &[]);
    look(&daemon);
    assert_eq!(subject(&daemon, "models/shapes")["trial"], Value::Null);
    order(&daemon, "unpin");
    until(&daemon, |told| told["version"] == 2 && told["stage"] == "idle");
}

#[test]
fn a_version_on_trial_that_does_not_load_after_a_restart_is_no_success() {
    let (fleet, daemon) = first();
    fleet.platform.start("r-2", "models/shapes/2", &["--soak", "min_s=3000,max_s=3000"]);
    look(&daemon);
    until(&daemon, |told| told["stage"] == "active");
    let daemon = daemon.kill().set("runtimes.dir=\"/nonexistent\"").start();
    let line = daemon.wait_for_event("update.rolled_back");
    assert_eq!((&line["cause"], &line["stage"]), (&json!("load"), &json!("active")), "{line}");
    assert_eq!(subject(&daemon, "models/shapes")["version"], 1);
}

#[test]
fn a_state_or_a_lock_that_cannot_be_opened_takes_no_model_away() {
    let (_fleet, daemon) = first();
    let updates = daemon.root.folder.path().join("updates");
    let mut root = daemon.kill();
    for name in ["state.0.json", "state.1.json", ".lock"] {
        let file = updates.join(name);
        let aside = Blocked::new(&file);
        let daemon = root.start();
        assert_eq!(status_of_call(&daemon), 200, "{name}");
        root = daemon.kill();
        drop(aside);
    }
    assert_eq!(status_of_call(&root.start()), 200);
}

/// A file that is replaced by a folder, so that opening it fails: put back when dropped.
struct Blocked(PathBuf);

impl Blocked {
    fn new(file: &Path) -> Self {
        ledge::durable::rename(file, &file.with_extension("aside")).unwrap();
        std::fs::create_dir(file).unwrap();
        Self(file.to_owned())
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).unwrap();
        ledge::durable::rename(&self.0.with_extension("aside"), &self.0).unwrap();
    }
}

#[test]
fn a_stick_that_is_pulled_during_a_download_refuses_nothing() {
    let mut fleet = Fleet::new("");
    fleet.platform.add_model("efficientnet_lite0", 2, &model_folder("efficientnet_lite0"), &[]);
    fleet.platform.start("r-1", "models/efficientnet_lite0/2", &[]);
    fleet.nginx.stop();
    let daemon = fleet.enrol(TestRoot::new()).set("updates.max_bytes_per_s=1000000").start();
    let stick = tempfile::tempdir().unwrap();
    let copy = stick.path().join("stick");
    assert!(Command::new("cp").arg("-r").arg(fleet.platform.repository()).arg(&copy).status().unwrap().success());
    let from = json!({ "from": format!("file://{}", copy.display()) });
    assert_eq!(daemon.client().post_json("/updates/check", &from).status, 200);
    // Wait until a part has arrived.
    while daemon.client().get("/updates").json()["fetched_bytes"] == 0 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    ledge::durable::rename(&copy, &stick.path().join("pulled")).unwrap();
    daemon.wait_for_event("update.paused");
    fleet.nginx.start_again(None);
    look(&daemon);
    while daemon.wait_for_event("update.moved")["stage"] != "verified" {}
}
