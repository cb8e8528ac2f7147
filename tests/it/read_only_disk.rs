//! A start on a file system that cannot be written, as the kernel mounts it after an error of the disk, until it can be
//! written again; and on one that has no room.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::audit::{infer, stop};
use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot};
use crate::features::VIEWS;

/// Runs a program in a mount namespace in which its root folder, `$0`, is read-only.
const READ_ONLY: &str = r#"mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@""#;

/// Runs a program in a mount namespace in which its root folder, `$0`, lies on a disk without any room.
const FULL: &str = r#"
copy=$(mktemp -d) && cp -a "$0/." "$copy" && mount -t tmpfs -o size=32m none "$0" && cp -a "$copy/." "$0" &&
rm -r "$copy" && ! head -c 64M /dev/zero > "$0/fill" 2> /dev/null && exec "$@""#;

fn push(client: &mut Client) -> Response {
    let rows = json!({"driver_id": [1], "conv_rate": [0.5], "trips": [7]});
    client.post_json("/push", &json!({"push_source_name": "driver_push", "to": "online", "df": rows}))
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed().as_secs() < 60, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// Runs a program in the namespaces of the daemon, and returns its output.
fn nsenter(daemon: &TestDaemon, program: &[&str]) -> String {
    let mut command = Command::new("nsenter");
    command.args(["-t", &daemon.pid().to_string(), "-U", "-m", "--preserve-credentials", "--"]).args(program);
    let output = command.output().expect("nsenter, of util-linux");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The findings of `ledge doctor`.
fn doctor(daemon: &TestDaemon) -> String {
    let command = daemon.root.command(&["doctor"]);
    let binary = env!("CARGO_BIN_EXE_ledge");
    // Without the runner, which would make the folder read-only again.
    let arguments = command.get_args().skip_while(|argument| *argument != binary);
    nsenter(daemon, &arguments.map(|argument| argument.to_str().unwrap()).collect::<Vec<_>>())
}

#[test]
fn models_serve_at_a_start_on_a_read_only_disk_and_the_rest_recovers_by_itself() {
    let root = TestRoot::new().models(&["add_sub", "ir_add"]).views(VIEWS);
    let daemon = root.start();
    assert_eq!(push(&mut daemon.client()).status, 200);
    let root = stop(daemon);

    let path = root.folder.path().to_str().unwrap().to_owned();
    let root = root.set("http.listen=[\"127.0.0.1:0\"]");
    let daemon = root.runner(&["unshare", "-Urm", "sh", "-c", READ_ONLY, &path]).start();
    let client = &mut daemon.client();
    infer(client);
    assert_eq!(client.get("/v2/models/ir_add/ready").status, 200);
    assert_eq!(client.get("/v2/health/ready").status, 200);
    // Calls that need the disk are refused, and say why.
    for refused in [push(client), client.get("/features/backup")] {
        let reason = String::from_utf8_lossy(&refused.body);
        assert!(refused.status == 503 && reason.contains("Read-only file system"), "{reason}");
    }
    let found = doctor(&daemon);
    assert!(found.contains("the file system is read-only"), "{found}");

    nsenter(&daemon, &["mount", "-o", "remount,bind,rw", &path]);
    wait_until("pushes are accepted", || push(client).status == 200);
    wait_until("the audit log is written", || client.get("/features/backup").status == 200);
    infer(client);
    let found = doctor(&daemon);
    assert!(!found.contains("read-only"), "{found}");
    let root = stop(daemon);
    assert!(root.folder.path().join("cache").read_dir().unwrap().count() > 0);
}

#[test]
fn a_disk_that_stays_full_is_logged_once_and_not_at_each_attempt() {
    let root = stop(TestRoot::new().models(&["add_sub"]).start());
    let path = root.folder.path().to_str().unwrap().to_owned();
    // The box has written none since its installation.
    std::fs::remove_file(root.folder.path().join("egress.json")).unwrap();
    let root = root.set("http.listen=[\"127.0.0.1:0\"]");
    let daemon = root.runner(&["unshare", "-Urm", "sh", "-c", FULL, &path]).start();
    let client = &mut daemon.client();
    // A write that fails is tried again every ten seconds.
    let until = Instant::now() + Duration::from_secs(25);
    while Instant::now() < until {
        infer(client);
        std::thread::sleep(Duration::from_millis(250));
    }

    let mut messages = BTreeMap::new();
    for line in daemon.complaints() {
        *messages.entry(line["message"].to_string()).or_insert(0) += 1;
    }
    assert!(messages.keys().any(|message| message.contains("the egress counts cannot be written")), "{messages:#?}");
    assert!(messages.values().all(|times| *times == 1), "{messages:#?}");
}
