//! Obstacles to an update that pass: a full disk, a network that goes away, a busy server. Meanwhile the live version
//! answers and the status shows the reason, and the update goes on by itself.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::daemon::{TestDaemon, TestRoot, write};
use crate::faults::shim::Shim;
use crate::platform::{Callers, Fleet, SHAPES, look, shapes, status, subject, until};
use crate::releases::{add, answered, model_file, new_bytes};

/// The size of a model that takes a while to come.
const LARGE_KB: usize = 3 << 10;

/// A box with version 1; version 2 is signed and not wanted yet.
fn looked_after(fleet: &Fleet, root: TestRoot) -> TestDaemon {
    add(&fleet.platform, 1, 1);
    add(&fleet.platform, 2, LARGE_KB);
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    let daemon = fleet.enrol(root).start();
    daemon.wait_for_event("update.committed");
    daemon
}

/// Waits until the box says why nothing moves, with these words.
#[track_caller]
fn told(daemon: &TestDaemon, words: &str) {
    until(daemon, |told| told["error"].as_str().is_some_and(|error| error.contains(words)));
}

#[track_caller]
fn committed(daemon: &TestDaemon) {
    let told = until(daemon, |told| told["version"] == 2 && told["stage"] == "idle");
    assert_eq!(told["last"]["result"], "committed", "{told}");
}

#[test]
fn a_full_disk_is_told_and_the_update_goes_on_when_there_is_room() {
    let (fleet, shim, root) = (Fleet::new(""), Shim::build(), TestRoot::new());
    let path = shim.file("budget");
    let file = std::fs::File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
    let allow = |bytes: i64| file.write_all_at(&bytes.to_ne_bytes(), 0).unwrap();
    allow(1 << 40);
    let folder = root.folder.path().canonicalize().unwrap().join("updates");
    let root = root.variable("LD_PRELOAD", shim.library()).variable("FAULT_FOLDER", folder);
    let daemon = looked_after(&fleet, root.variable("FAULT_BUDGET", path));
    let callers = Callers::start(&daemon, 1, SHAPES, &shapes());
    allow(1 << 20);
    fleet.platform.start("r-2", "models/shapes/2", &[]);
    look(&daemon);
    told(&daemon, "no room on the disk");
    assert_eq!(answered(&mut daemon.client()), 1);
    allow(1 << 40);
    committed(&daemon);
    callers.stop_unharmed();
    let resumed = fleet.nginx.transfers(SHAPES, 2).iter().map(|answered| answered.from).max();
    assert!(resumed > Some(256 << 10), "what had come before the disk was full was not used: {resumed:?}");
}

#[test]
fn a_step_that_cannot_be_written_down_is_taken_when_it_can() {
    let fleet = Fleet::new("");
    let daemon = looked_after(&fleet, TestRoot::new());
    let folder = daemon.root.folder.path().join("updates");
    let files = ["state.0.json", "state.1.json"].map(|name| folder.join(name));
    // Nothing is renamed over a folder.
    let block = || {
        for file in &files {
            if file.exists() {
                std::fs::remove_file(file).unwrap();
            }
            std::fs::create_dir(file).unwrap();
        }
    };
    let release = || files.iter().for_each(|file| std::fs::remove_dir(file).unwrap());
    let callers = Callers::start(&daemon, 1, SHAPES, &shapes());
    // The rollout that is not begun, and is not said again by the platform.
    block();
    fleet.platform.start("r-2", "models/shapes/2", &["--canary", "share=0.5,min_s=2,min_requests=1,max_s=60"]);
    look(&daemon);
    daemon.wait_for_event("update.state_not_written");
    assert_eq!(subject(&daemon, "models/shapes")["trial"], Value::Null, "{}", status(&daemon));
    release();
    while daemon.wait_for_event("update.moved")["stage"] != "canary" {}
    // A stage that is passed.
    block();
    told(&daemon, "the state of updates cannot be written");
    let stays = subject(&daemon, "models/shapes");
    assert_eq!((&stays["stage"], &stays["version"]), (&json!("canary"), &json!(1)), "{stays}");
    release();
    committed(&daemon);
    let versions = callers.stop_unharmed().remove(0).versions;
    assert_eq!(versions.last().map(String::as_str), Some("2"), "{versions:?}");
    // It is on the disk by now.
    let daemon = daemon.kill().start();
    assert_eq!(answered(&mut daemon.client()), 2);
}

#[test]
fn a_network_that_goes_away_in_the_middle_costs_nothing_that_had_come() {
    let mut fleet = Fleet::new("limit_rate 1m;");
    let daemon = looked_after(&fleet, TestRoot::new());
    fleet.platform.start("r-2", "models/shapes/2", &[]);
    look(&daemon);
    let fetched = || status(&daemon)["fetched_bytes"].as_u64().unwrap();
    let (before, mut came) = (fetched(), 0);
    while came < 1 << 20 {
        came = fetched() - before;
        std::thread::sleep(Duration::from_millis(20));
    }
    fleet.nginx.stop();
    told(&daemon, "models/shapes/2/model.onnx");
    assert_eq!(answered(&mut daemon.client()), 1);
    fleet.nginx.start_again(Some(""));
    committed(&daemon);
    let transfers = fleet.nginx.transfers(SHAPES, 2);
    let model = transfers.iter().rfind(|answered| answered.path.ends_with("model.onnx")).unwrap();
    assert!(model.status == 206 && model.from >= came, "{came} bytes had come: {model:?}");
    // Every byte once, as the box counts them.
    assert_eq!(fetched() - before, new_bytes(&fleet.platform, 2));
}

#[test]
fn a_file_that_is_not_there_is_waited_for_and_the_status_says_so() {
    let fleet = Fleet::new("");
    let daemon = looked_after(&fleet, TestRoot::new());
    let (file, aside) = (model_file(&fleet.platform, 2), fleet.platform.repository().join("aside"));
    ledge::durable::rename(&file, &aside).unwrap();
    fleet.platform.start("r-2", "models/shapes/2", &[]);
    look(&daemon);
    let told = until(&daemon, |told| told["trial"]["fault"]["attempts"].as_u64() >= Some(2));
    let fault = &told["trial"]["fault"];
    assert!(fault["reason"].as_str().unwrap().contains("the server answers status 404"), "{told}");
    assert!(fault["since"].as_str() < fault["next"].as_str(), "{told}");
    assert_eq!(answered(&mut daemon.client()), 1);
    // A start changes nothing: neither since when it is so, nor how often it was tried.
    let daemon = daemon.kill().start();
    let again = until(&daemon, |told| told["trial"]["fault"]["attempts"].as_u64() >= fault["attempts"].as_u64());
    assert_eq!(again["trial"]["fault"]["since"], fault["since"], "{again}");
    ledge::durable::rename(&aside, &file).unwrap();
    // After the repair a check continues at once.
    look(&daemon);
    committed(&daemon);
}

#[test]
fn one_wrong_byte_of_a_server_costs_one_transfer_and_ends_no_rollout() {
    let fleet = Fleet::new("");
    let daemon = looked_after(&fleet, TestRoot::new());
    let file = model_file(&fleet.platform, 2);
    let right = std::fs::read(&file).unwrap();
    let mut wrong = right.clone();
    wrong[right.len() / 2] ^= 1;
    write(&file, &wrong);
    fleet.platform.start("r-2", "models/shapes/2", &[]);
    look(&daemon);
    told(&daemon, "the file on the server is not the signed one");
    let told = subject(&daemon, "models/shapes");
    assert_eq!((&told["stage"], &told["trial"]["fault"]["attempts"]), (&json!("downloading"), &json!(1)), "{told}");
    let said = String::from_utf8(
        daemon
            .root
            .command(&["update", "status", "--url", &format!("http://{}", daemon.address)])
            .output()
            .unwrap()
            .stdout,
    );
    let said = said.unwrap();
    assert!(said.contains("1 attempts failed since") && said.contains("the next one is due"), "{said}");
    // All of it came once: the next time is a pause away, which a poll of the platform does not end.
    let transfers = || {
        let transfers = fleet.nginx.transfers(SHAPES, 2);
        transfers.iter().filter(|answered| answered.path.ends_with("model.onnx")).count()
    };
    assert_eq!(transfers(), 1);
    write(&file, &right);
    look(&daemon);
    committed(&daemon);
    assert_eq!(transfers(), 2);
}

#[test]
fn a_server_with_too_much_to_do_is_asked_again_when_it_said() {
    let mut fleet = Fleet::new("");
    let daemon = looked_after(&fleet, TestRoot::new());
    fleet.nginx.start_again(Some("location /targets/models/ {\nadd_header Retry-After 3 always;\nreturn 503;\n}"));
    fleet.platform.start("r-2", "models/shapes/2", &[]);
    look(&daemon);
    told(&daemon, "503");
    let line = daemon.wait_for_event("update.retry_planned");
    assert!(line["retry_in_s"].as_u64().unwrap() >= 3, "{line}");
    fleet.nginx.start_again(Some(""));
    committed(&daemon);
    let told = subject(&daemon, "models/shapes");
    assert_eq!(told["error"], Value::Null, "{told}");
}

#[test]
fn downloads_keep_to_their_bandwidth() {
    const PER_S: u64 = 1 << 20;
    let fleet = Fleet::new("");
    let daemon = looked_after(&fleet, TestRoot::new().set(&format!("updates.max_bytes_per_s={PER_S}")));
    let before = status(&daemon)["fetched_bytes"].as_u64().unwrap();
    fleet.platform.start("r-2", "models/shapes/2", &[]);
    let begun = Instant::now();
    look(&daemon);
    let length = new_bytes(&fleet.platform, 2);
    loop {
        let fetched = status(&daemon)["fetched_bytes"].as_u64().unwrap() - before;
        // A quarter of a second is saved up for each file, and bytes that come in one piece count as a whole.
        let allowed = u64::try_from(begun.elapsed().as_millis()).unwrap() * PER_S / 1000 + PER_S / 4 + (64 << 10);
        assert!(fetched <= allowed, "{fetched} bytes came while {allowed} may");
        if fetched == length {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    committed(&daemon);
}
