//! A fleet of boxes that copy their audit logs to one server, as documented, and the findings of the platform's kit:
//! while all is well, and when one log is changed there, one box comes back from an older image of its disk, and one is
//! silent.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::audit_kit::Kit;
use crate::audit_sync::{Server, files_below, nginx};
use crate::certificates::Authority;
use crate::daemon::{TestDaemon, TestRoot, copy, write};
use crate::tools::run;

/// Timeout of every wait.
const LIMIT: Duration = Duration::from_mins(1);

/// A part of a record, and its replacement.
const NAMED: &[u8] = b"\"model_unloaded\",\"model\":\"add_sub\"";
const RENAMED: &[u8] = b"\"model_unloaded\",\"model\":\"sub_add\"";

/// The server, its boxes' certificates, and those who verify.
struct Fleet {
    folder: TempDir,
    authority: Authority,
    server: Server,
    kit: Kit,
    /// The platform's own certificate, which may read the logs of all.
    tls: [PathBuf; 3],
}

impl Fleet {
    fn new() -> Self {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        let server = nginx(folder.path(), &authority);
        let tls = certificate(&folder.path().join("platform"), &authority, "platform");
        Self { folder, authority, server, kit: Kit::new(), tls }
    }

    /// A box of the fleet, which runs and has its log on the server.
    fn enrolled(&self, device: &str) -> TestDaemon {
        let root = TestRoot::new().models(&["add_sub"]).set(&format!("device.id={device:?}"));
        certificate(&root.folder.path().join("tls"), &self.authority, device);
        let daemon = root
            .set(&format!("audit.sync.url=\"https://127.0.0.1:{}/audit\"", self.server.port))
            .set("audit.sync.tls.ca_file=\"tls/ca.pem\"")
            .set("audit.sync.tls.certificate_file=\"tls/box.pem\"")
            .set("audit.sync.tls.key_file=\"tls/box.key\"")
            .set("audit.sync.interval_s=1")
            .set("log.level=\"info\"")
            .start();
        self.kit.enroll(device, run(&mut daemon.root.command(&["audit", "key"])).trim());
        until_copied(&daemon, 1);
        daemon
    }

    /// The logs of a box on the server.
    fn logs(&self, device: &str) -> PathBuf {
        self.folder.path().join("boxes/audit").join(device)
    }

    fn verify(&self, options: &[&str]) -> (i32, String) {
        let url = format!("https://127.0.0.1:{}/audit", self.server.port);
        let [ca, certificate, key] = self.tls.each_ref().map(|path| path.to_str().unwrap());
        let arguments = [url.as_str(), "--ca", ca, "--certificate", certificate, "--key", key];
        self.kit.verify(arguments.into_iter().chain(options.iter().copied()))
    }
}

/// Writes the authority's certificate, and one for a name with its key.
fn certificate(folder: &Path, authority: &Authority, name: &str) -> [PathBuf; 3] {
    let identity = authority.issue(name);
    let contents = [("ca.pem", authority.pem()), ("box.pem", &identity.certificate), ("box.key", &identity.key)];
    contents.map(|(name, content)| {
        write(&folder.join(name), content.as_bytes());
        folder.join(name)
    })
}

/// Waits until the platform has all of the log of this number.
#[track_caller]
fn until_copied(daemon: &TestDaemon, generation: u32) {
    let (deadline, end) = (Instant::now() + LIMIT, format!("/{generation}"));
    loop {
        let status: Value = daemon.client().get("/audit/status").json();
        let (sync, size) = (&status["sync"], status["size"].as_u64());
        let is_copied = size > Some(0) && sync["size"].as_u64() == size && sync["waiting_since"].is_null();
        if is_copied && status["origin"].as_str().is_some_and(|origin| origin.ends_with(&end)) {
            return;
        }
        assert!(Instant::now() < deadline, "{status}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Has a box record something.
#[track_caller]
fn administer(daemon: &TestDaemon) {
    for verb in ["unload", "load"] {
        let answer = daemon.client().post_json(&format!("/v2/repository/models/add_sub/{verb}"), &json!({}));
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[test]
fn the_platform_tells_boxes_that_are_well_from_one_changed_one_set_back_and_one_silent() {
    let fleet = Fleet::new();
    let [first, second, third] = ["box-1", "box-2", "box-3"].map(|device| fleet.enrolled(device));
    let (status, told) = fleet.verify(&[]);
    assert_eq!(status, 0, "{told}");
    assert!(told.contains("\n3 boxes: 3 whole; "), "{told}");

    // One is silent: its last checkpoint is of the day before yesterday.
    drop(third);
    let checkpoint = std::fs::File::options().append(true).open(fleet.logs("box-3").join("1/checkpoint")).unwrap();
    let before = checkpoint.metadata().unwrap().modified().unwrap() - Duration::from_hours(30);
    checkpoint.set_modified(before).unwrap();
    let (status, told) = fleet.verify(&[]);
    assert_eq!(status, 6, "{told}");
    assert!(told.contains("box-3: stale, ") && told.contains("nothing has come for more than "), "{told}");
    assert!(told.contains("\n3 boxes: 2 whole, 1 stale; "), "{told}");

    // One comes back from an older image of its disk.
    let root = second.kill();
    let (audit, image) = (root.folder.path().join("audit"), tempfile::tempdir().unwrap());
    copy(&audit, image.path());
    let second = root.start();
    for _ in 0..10 {
        administer(&second);
    }
    until_copied(&second, 1);
    assert_eq!(fleet.verify(&[]).0, 6);
    let root = second.kill();
    std::fs::remove_dir_all(&audit).unwrap();
    copy(image.path(), &audit);
    let second = root.start();
    until_copied(&second, 2);
    let (status, told) = fleet.verify(&[]);
    assert_eq!(status, 4, "{told}");
    let is_told = |text: &str| told.contains("box-2: fork, log 2, ") && told.contains(text);
    assert!(is_told("the box found another history of its log here, and began another"), "{told}");
    assert!(is_told("records of the log before it, and") && is_told("it was set back"), "{told}");
    assert!(told.contains("\n3 boxes: 1 whole, 1 fork, 1 stale; "), "{told}");
    // The box says so itself.
    let alarm = second.client().get("/audit/status").json()["alarm"].clone();
    assert!(alarm.as_str().is_some_and(|alarm| alarm.contains("the platform has another history of ")), "{alarm}");

    // One log is changed on the server.
    administer(&first);
    until_copied(&first, 1);
    // Stop the box: otherwise its next upload would restore the tile.
    drop(first);
    let (entries, mut changed) = (fleet.logs("box-1").join("1/tile/entries"), 0);
    for (name, mut content) in files_below(&entries) {
        let at = content.windows(NAMED.len()).position(|window| window == NAMED);
        if let Some(at) = at {
            content[at..at + NAMED.len()].copy_from_slice(RENAMED);
            write(&entries.join(name), &content);
            changed += 1;
        }
    }
    assert!(changed > 0);
    let (status, told) = fleet.verify(&["--full"]);
    assert_eq!(status, 5, "{told}");
    assert!(told.contains("box-1: tampered, ") && told.contains("its records do not lead to the root"), "{told}");
    assert!(told.contains("\n3 boxes: 1 tampered, 1 fork, 1 stale; "), "{told}");
    // Reported for each separately, too.
    for (device, expected) in [("box-1", 5), ("box-2", 4), ("box-3", 6)] {
        let (status, told) = fleet.verify(&["--device", device, "--full"]);
        assert_eq!(status, expected, "{told}");
    }
}
