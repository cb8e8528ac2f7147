//! Signed updates of a box with encryption on: nothing of a model is ever plain on its disk.

use std::path::Path;

use crate::boxes::wait_until;
use crate::daemon::TestRoot;
use crate::platform::{Callers, Fleet, SHAPES, look, shapes};
use crate::releases::{add, answered, model_file};

/// A model that takes some seconds to come.
const LARGE_KB: usize = 8 << 10;

/// A rate of nginx that leaves time to kill the daemon.
const SLOW: &str = "limit_rate 2m;";

/// The files below a folder that hold a piece of the model's file in plain.
fn plain(folder: &Path, piece: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(plain(&entry.path(), piece));
        // One that is renamed meanwhile is found under its other name, the next time.
        } else if let Ok(content) = std::fs::read(entry.path())
            && kind.is_file()
            && content.windows(piece.len()).any(|window| window == piece)
        {
            found.push(entry.path().display().to_string());
        }
    }
    found
}

#[test]
fn a_sealed_update_is_killed_in_its_middle_rotated_under_load_and_never_plain() {
    let fleet = Fleet::new(SLOW);
    add(&fleet.platform, 1, 1);
    add(&fleet.platform, 2, LARGE_KB);
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    let root = fleet.enrol(TestRoot::new()).set("encryption.master_key_file=\"master.key\"");
    let key = root.folder.path().join("master.key").display().to_string();
    assert!(root.command(&["encryption", "make-key", &key]).output().unwrap().status.success());
    let daemon = root.start();
    daemon.wait_for_event("update.committed");

    fleet.platform.start("r-2", "models/shapes/2", &[]);
    look(&daemon);
    let blobs = daemon.root.folder.path().join("updates/blobs");
    let part = || {
        let entries = std::fs::read_dir(&blobs).unwrap().map(Result::unwrap);
        let parts = entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "part"));
        parts.filter_map(|entry| Some(entry.metadata().ok()?.len())).max().unwrap_or(0)
    };
    wait_until("two of eight MiB are there", || part() > 2 << 20);
    let root = daemon.kill();
    let here = part();
    let model = std::fs::read(model_file(&fleet.platform, 2)).unwrap();
    // Of what has come already.
    let piece = &model[1 << 20..(1 << 20) + 64];
    assert_eq!(plain(root.folder.path(), piece), [""; 0]);

    let daemon = root.start();
    let callers = Callers::start(&daemon, 2, SHAPES, &shapes());
    assert!(daemon.root.command(&["encryption", "rotate"]).output().unwrap().status.success());
    daemon.signal("HUP");
    daemon.wait_for_event_since_start("update.committed");
    assert_eq!(answered(&mut daemon.client()), 2);
    assert!(callers.stop_unharmed().iter().all(|answers| answers.answered > 0));
    let came: u64 = fleet.nginx.transfers(SHAPES, 2).iter().map(|answered| answered.bytes).sum();
    let most = model.len() as u64 + (1 << 20);
    assert!(came <= most + (3 << 20) && here > 2 << 20, "{came} bytes came for {}", model.len());
    // Parts that came while the key changed are under either key until the release is complete.
    wait_until("everything is sealed under the new key", || {
        daemon.root.command(&["encryption", "status"]).output().unwrap().status.success()
    });
    assert_eq!(plain(daemon.root.folder.path(), piece), [""; 0]);
    assert!(daemon.root.command(&["encryption", "retire"]).output().unwrap().status.success());
    let daemon = daemon.kill().start();
    assert_eq!(answered(&mut daemon.client()), 2);
}
