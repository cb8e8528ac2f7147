//! The command line next to a daemon that runs as another user: the daemon can read the files that root writes, and any
//! other user gets an error.
//!
//! Without root all roles have one user, so only the commands are tried, and stderr reports it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::access_matrix::{client_of_user, is_root, key};
use crate::daemon::{TestDaemon, TestRoot};
use crate::features::VIEWS;
use crate::sealed_models::{Verb, faulty, status_field};

/// The user id of the service in these tests, where root runs them.
const SERVICE: u32 = 65_534;

/// The user id of a stranger.
const STRANGER: u32 = 60_100;

/// The users of a test.
struct Players {
    /// The user of the service.
    owner: u32,
    /// The users that may administer it: root, if this is root, and the owner.
    keepers: Vec<u32>,
    /// A user without permission.
    other: Option<u32>,
}

impl Players {
    /// Root, the service and a stranger; or only this user if the test cannot act as others, which is reported.
    fn of(root: &TestRoot) -> Self {
        if !can_play_others(root) {
            let owner = rustix::process::geteuid().as_raw();
            return Self { owner, keepers: vec![owner], other: None };
        }
        Self { owner: SERVICE, keepers: vec![0, SERVICE], other: Some(STRANGER) }
    }

    /// Gives a root to the user that the service runs as, with folders that only that one may enter.
    fn give(&self, root: &TestRoot) {
        let folder = root.folder.path();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                self.give_all(&path);
            }
        }
        chown(folder, Some(self.owner), None).unwrap();
    }

    fn give_all(&self, path: &Path) {
        chown(path, Some(self.owner), None).unwrap();
        if path.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                self.give_all(&entry.unwrap().path());
            }
        }
    }

    /// Files and folders below that the service could not use as its own.
    fn not_owned(&self, folder: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            if metadata.uid() != self.owner && !metadata.is_symlink() {
                found.push(path.clone());
            }
            if metadata.is_dir() {
                found.extend(self.not_owned(&path));
            }
        }
        found
    }

    /// A daemon that runs as the user of the service.
    fn start(&self, root: TestRoot) -> TestDaemon {
        if self.other.is_none() {
            return root.start();
        }
        // The runner becomes another user, as systemd would.
        let [user, group] = ["--reuid", "--regid"].map(|option| format!("{option}={}", self.owner));
        root.runner(&["setpriv", &user, &group, "--clear-groups"]).start()
    }
}

/// A command of the binary as another user.
fn as_user(root: &TestRoot, uid: u32, verb: &[&str]) -> Command {
    let mut command = root.command(verb);
    if uid != rustix::process::geteuid().as_raw() {
        command.uid(uid).gid(uid);
    }
    command
}

#[track_caller]
fn told(mut command: Command) -> (bool, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.success(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

#[track_caller]
fn succeeds(command: Command) -> String {
    let (success, said) = told(command);
    assert!(success, "{said}");
    said
}

/// Returns `true` if root runs this, and other users may reach the binary and the runtimes. Otherwise reports it.
fn can_play_others(root: &TestRoot) -> bool {
    if !is_root() {
        return false;
    }
    fs::set_permissions(root.folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let said = match as_user(root, STRANGER, &["--version"]).output() {
        Ok(output) => String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        // The checkout lies in a folder that others may not enter.
        Err(error) => error.to_string(),
    };
    let can = said.contains(env!("CARGO_PKG_VERSION"));
    if !can {
        // A fresh clone in a temporary folder, which only its owner may enter, is no fault of the machine.
        eprintln!(
            "what another user of this machine may do is not tried here: put checkout and target where everybody may enter: \
             another user cannot run the binary ({said})"
        );
    }
    can
}

fn path(root: &TestRoot, name: &str) -> String {
    root.folder.path().join(name).display().to_string()
}

#[test]
fn what_root_writes_the_daemon_of_another_user_can_read() {
    let root = TestRoot::closed().models(&["add_sub"]).views(VIEWS).set("encryption.master_key_file=\"master.key\"");
    let players = Players::of(&root);
    let owner = players.owner;
    players.give(&root);
    fs::set_permissions(root.folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let made = Command::new(env!("CARGO_BIN_EXE_ledge"))
        .args(["encryption", "make-key", &path(&root, "master.key")])
        .status()
        .unwrap();
    assert!(made.success());
    let early = key(&root, &["early", "--role", "viewer"]);
    let mut daemon = players.start(root);
    daemon.root = std::mem::replace(&mut daemon.root, TestRoot::new()).runner(&[]);
    let get = |key: &str| {
        let bearer = format!("Bearer {key}");
        daemon.client().request("GET", "/audit/status", &[("authorization", &bearer)], b"").status
    };
    assert_eq!(get(&early), 200);
    let late = key(&daemon.root, &["late", "--role", "viewer"]);
    let begun = std::time::Instant::now();
    while get(&late) != 200 {
        // Between two looks, or two owners, no key that was good is refused.
        assert_eq!(get(&early), 200);
        assert!(begun.elapsed().as_secs() < 20, "{}", daemon.log());
    }
    // The service's own user may go on where root began.
    succeeds(as_user(&daemon.root, owner, &["keys", "revoke", "early"]));
    succeeds(daemon.root.command(&["encryption", "rotate"]));
    daemon.signal("HUP");
    daemon.wait_for_event("stores.encrypted");
    let mut periods = fs::read_dir(daemon.root.folder.path().join("audit/tags")).unwrap();
    let period = periods.find_map(|entry| Some(entry.unwrap().file_name().to_str()?.strip_suffix(".key")?.to_owned()));
    succeeds(daemon.root.command(&["audit", "forget", &period.unwrap(), "--yes"]));
    for verb in
        [&["audit", "verify"][..], &["features", "status"], &["features", "snapshot"], &["doctor"], &["tls", "show"]]
    {
        told(daemon.root.command(verb));
    }
    let root = crate::audit::stop(daemon);
    assert_eq!(players.not_owned(root.folder.path()), Vec::<PathBuf>::new());
    // Without a daemon root works on the folders themselves.
    fs::create_dir(root.folder.path().join("updates")).ok();
    players.give_all(&root.folder.path().join("updates"));
    succeeds(root.command(&["update", "reset-trust"]));
    let request = root.folder.path().join("request.json");
    crate::daemon::write(&request, crate::core::add_sub_request(1, 1).to_string().as_bytes());
    chown(&request, Some(owner), None).unwrap();
    succeeds(root.command(&["infer", "add_sub", &request.display().to_string()]));
    assert_eq!(players.not_owned(root.folder.path()), Vec::<PathBuf>::new());
    let daemon = players.start(root);
    let mut client = client_of_user(&daemon.root.folder.path().join("ledge.sock"), owner);
    let status = client.get("/audit/status").json();
    assert_eq!(status["error"], Value::Null, "{status}");
}

#[test]
fn verbs_reach_the_daemon_as_root_and_as_its_user_and_others_are_told_what_to_do() {
    let root = TestRoot::closed().models(&["add_sub"]).views(VIEWS);
    let players = Players::of(&root);
    players.give(&root);
    key(&root, &["viewer", "--role", "viewer"]);
    let mut daemon = players.start(root);
    daemon.root = std::mem::replace(&mut daemon.root, TestRoot::new()).runner(&[]);
    let root = &daemon.root;
    let verbs = [
        &["features", "status"][..],
        &["features", "list"],
        &["features", "snapshot"],
        &["features", "compact"],
        &["top", "--once"],
        &["audit", "show"],
        &["audit", "key"],
        &["audit", "verify"],
        &["keys", "list"],
        &["encryption", "status"],
        &["config", "check"],
    ];
    for verb in verbs {
        for &uid in &players.keepers {
            let (success, said) = told(as_user(root, uid, verb));
            assert!(success, "{uid}: {verb:?}: {said}");
        }
    }
    for &uid in &players.keepers {
        let backup = root.folder.path().join(format!("{uid}.backup")).display().to_string();
        succeeds(as_user(root, uid, &["features", "backup", &backup]));
        assert_eq!(fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
        for verb in [&["update", "status"][..], &["update", "check"], &["update", "pin", "add_sub"]] {
            let (success, said) = told(as_user(root, uid, verb));
            assert!(!success && said.contains("updates.repository"), "{uid}: {verb:?}: {said}");
        }
    }
    let Some(other) = players.other else { return };
    // Another user may not open the socket, and calls over loopback.
    let socket = format!("unix:{}", path(root, "ledge.sock"));
    let tcp = format!("http://{}", daemon.address);
    for verb in
        [&["features", "compact", "--url"][..], &["update", "check", "--url"], &["features", "snapshot", "--url"]]
    {
        let (success, said) = told(as_user(root, other, &[verb, &[&tcp]].concat()));
        assert!(!success && said.contains("sudo -u ledge"), "{verb:?}: {said}");
        let (success, said) = told(as_user(root, other, &[verb, &[&socket]].concat()));
        assert!(
            !success && said.contains("this user may not open") && said.contains("sudo -u ledge"),
            "{verb:?}: {said}"
        );
    }
    for verb in
        [&["audit", "show"][..], &["audit", "verify"], &["keys", "list"], &["keys", "create", "x", "--role", "admin"]]
    {
        let (success, said) = told(as_user(root, other, verb));
        assert!(!success && said.contains("Permission denied"), "{verb:?}: {said}");
    }
    for verb in [&["features", "status", "--url", &tcp][..], &["top", "--once", "--url", &tcp]] {
        succeeds(as_user(root, other, verb));
    }
}

#[test]
fn models_of_a_command_of_root_run_as_the_owner_of_the_box() {
    let root = faulty(b'l').set("serving.default_timeout_ms=600000");
    let players = Players::of(&root);
    players.give(&root);
    // As the daemon writes the files of an upload.
    fs::set_permissions(root.model("wine_mlp").join("1/model.onnx"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(root.folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    for verb in [&["models", "check"][..], &["doctor"]] {
        let verb = Verb::start(&mut root.command(verb));
        let process = verb.model_process();
        let [users, groups] = ["Uid", "Gid"].map(|name| status_field(process, name));
        let is_owner = |id: &str| id == players.owner.to_string();
        assert!(users.split_whitespace().all(is_owner), "{users}");
        if players.other.is_some() {
            assert_eq!(status_field(process, "Groups"), "", "{groups}");
        }
    }
}
