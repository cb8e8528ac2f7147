//! Only the daemon's user may read the files that it writes, with any umask.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;

use crate::daemon::TestRoot;
use crate::features::VIEWS;

/// The files and folders below that others than their user may look into.
fn open_to_others(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = path.symlink_metadata().unwrap();
        // A link itself has no permissions, and the socket has its setting.
        if metadata.is_file() || metadata.is_dir() {
            if metadata.permissions().mode() & 0o077 != 0 {
                found.push(path.display().to_string());
            }
            if metadata.is_dir() {
                open_to_others(&path, found);
            }
        }
    }
}

#[test]
fn nothing_that_the_daemon_writes_is_open_to_others() {
    let root = TestRoot::new().models(&["add_sub", "ir_add"]).views(VIEWS);
    // The files from before are the owner's: these tests have the umask of a shell.
    let mut before = Vec::new();
    open_to_others(root.folder.path(), &mut before);
    assert!(before.iter().any(|path| path.ends_with("models")), "this shell keeps its files private: {before:?}");

    let daemon = root.set("runtimes.measure=true").start();
    let client = &mut daemon.client();
    let push = json!({"push_source_name": "driver_push", "to": "online", "df": {"driver_id": [1], "conv_rate": [0.5], "trips": [7]}});
    assert_eq!(client.post_json("/push", &push).status, 200);
    let made = daemon.root.command(&["keys", "create", "till", "--role", "infer"]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let root = daemon.kill();
    let mut after = Vec::new();
    open_to_others(root.folder.path(), &mut after);
    // Files of models have a second name where a process of models reads them, in a folder that is private.
    let is_second_name = |path: &str| path.contains("/cache/.instances/");
    after.retain(|path| !before.contains(path) && !is_second_name(path));
    assert_eq!(after, [""; 0]);
    let written = ["features", "audit", "keys.json", "cache"].map(|name| root.folder.path().join(name).exists());
    assert!(written.iter().filter(|there| **there).count() >= 3, "{written:?}");
}
