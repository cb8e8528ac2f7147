//! `ledge backup` and `ledge restore` of a whole box.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use age::secrecy::ExposeSecret as _;
use ledge::audit::local::generations;
use ledge::audit_event::AuditEvent;
use ledge::identity::sealing::Sealer;
use ledge::membership::config::MembershipConfig;
use ledge::membership::folder::MembershipFolder;
use ledge::membership::join::PreparedMembership;
use ledge::membership::join_file::JoinFile;
use ledge::secret::SecretFile;
use serde_json::json;
use tempfile::TempDir;

use crate::audit::{infer, records, stop, verify};
use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot, write};
use crate::features::VIEWS;

/// Files outside of any box.
struct Shelf {
    folder: TempDir,
    recipient: String,
}

impl Shelf {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let identity = age::x25519::Identity::generate();
        write(&folder.path().join("key.txt"), identity.to_string().expose_secret().as_bytes());
        Self { folder, recipient: identity.to_public().to_string() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Takes a backup `name` with its file of keys, `NAME.keys`.
    #[track_caller]
    fn back_up(&self, root: &TestRoot, name: &str, more: &[&str]) -> String {
        let (file, keys) = (self.text(name), self.text(&format!("{name}.keys")));
        let words = [&["backup", &file, "--keys", &keys, "--to", &self.recipient], more].concat();
        done(&mut root.command(&words))
    }

    /// The command that restores it.
    fn restore(&self, root: &TestRoot, name: &str, with_keys: bool, more: &[&str]) -> Command {
        let (file, keys, identity) = (self.text(name), self.text(&format!("{name}.keys")), self.text("key.txt"));
        let mut words = vec!["restore", &file, "--identity", &identity];
        if with_keys {
            words.extend(["--keys", &keys]);
        }
        root.command(&[&words, more].concat())
    }
}

#[track_caller]
fn done(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The files below a folder with their contents, without links.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.insert(entry.path(), std::fs::read(entry.path()).unwrap());
            }
        }
    }
    let relative = |(path, content): (PathBuf, Vec<u8>)| (path.strip_prefix(folder).unwrap().to_owned(), content);
    found.into_iter().map(relative).collect()
}

fn push(client: &mut Client, driver: u64) {
    let row = json!({"driver_id": [driver], "conv_rate": [0.5], "trips": [driver]});
    let push = json!({"push_source_name": "driver_push", "df": row, "to": "online"});
    assert_eq!(client.post_json("/push", &push).status, 200);
}

/// The drivers among those up to `last` whose row is there.
fn drivers(client: &mut Client, last: u64) -> Vec<u64> {
    let all: Vec<_> = (0..=last).collect();
    let asked = json!({"features": ["driver_stats:trips"], "entities": {"driver_id": all}});
    let answer = client.post_json("/get-online-features", &asked).json();
    let values = answer["results"][1]["values"].as_array().unwrap().clone();
    values.iter().filter_map(serde_json::Value::as_u64).collect()
}

fn calls_with(daemon: &TestDaemon, key: &str) -> u16 {
    daemon.client().request("GET", "/v2/models/add_sub", &[("x-api-key", key)], b"").status
}

#[test]
fn a_box_that_was_backed_up_under_load_is_restored_with_and_without_its_identity() {
    let shelf = Shelf::new();
    let daemon = TestRoot::new().models(&["add_sub"]).views(VIEWS).start();
    let key = done(&mut daemon.root.command(&["keys", "create", "till", "--role", "infer"]));
    let key = key.split_whitespace().find(|word| word.starts_with("ledge_")).unwrap().to_owned();
    let mut client = daemon.client();
    infer(&mut client);
    (0..40).for_each(|driver| push(&mut client, driver));

    let is_over = AtomicBool::new(false);
    let (said, last) = std::thread::scope(|scope| {
        let pushing = scope.spawn(|| {
            let mut client = daemon.client();
            let mut driver = 40;
            while !is_over.load(Ordering::Relaxed) {
                push(&mut client, driver);
                driver += 1;
            }
            driver
        });
        let said = shelf.back_up(&daemon.root, "box", &["--plain"]);
        is_over.store(true, Ordering::Relaxed);
        (said, pushing.join().unwrap())
    });
    assert!(said.contains("the private keys, encrypted"), "{said}");
    let verifier = done(&mut daemon.root.command(&["audit", "key"]));
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(shelf.path("box")).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    let main = std::fs::read(shelf.path("box")).unwrap();
    let seed = std::fs::read(daemon.root.folder.path().join("audit/key")).unwrap();
    assert!(!main.windows(seed.len()).any(|window| window == seed), "no private key is in it");
    // The old hardware goes on for a moment, and is lost.
    infer(&mut client);
    drop(daemon.kill());

    let running = TestRoot::new().start();
    assert!(refused(&mut shelf.restore(&running.root, "box", true, &[])).contains("systemctl stop ledge"));
    let used = stop(running);
    assert!(refused(&mut shelf.restore(&used, "box", true, &[])).contains("--replace"));

    let root = TestRoot::new();
    let said = done(&mut shelf.restore(&root, "box", true, &[]));
    assert!(said.contains("the old hardware must not run any more"), "{said}");
    assert!(!root.folder.path().with_extension("before").exists(), "an empty folder is not kept");
    let daemon = root.start();
    let mut client = daemon.client();
    infer(&mut client);
    let found = drivers(&mut client, last);
    assert!((0..40).all(|driver| found.contains(&driver)), "{found:?}");
    assert_eq!(found, (0..found.len() as u64).collect::<Vec<_>>(), "the pushes up to one moment");
    assert_eq!((calls_with(&daemon, &key), calls_with(&daemon, &format!("{key}x"))), (200, 401));
    assert_eq!(done(&mut daemon.root.command(&["audit", "key"])), verifier);
    let root = stop(daemon);
    assert_eq!(generations(&root.folder.path().join("audit")).unwrap(), [1, 2]);
    let AuditEvent::LogBegun { cause, previous } = &records(&root, 2)[0].event else { panic!("no beginning") };
    assert_eq!(cause.as_str(), "restored");
    assert!(previous.as_ref().unwrap().size > 0 && previous.as_ref().unwrap().origin.ends_with("/1"));
    let (code, report) = verify(&root);
    assert_eq!((code, &report["verdict"]), (Some(0), &json!("whole")), "{report}");

    // The same over a box that was used, which stays beside it.
    let before = files(used.folder.path());
    let said = done(&mut shelf.restore(&used, "box", false, &["--replace"]));
    assert!(said.contains("identity: a new one"), "{said}");
    let kept = used
        .folder
        .path()
        .with_file_name(format!("{}.before", used.folder.path().file_name().unwrap().to_str().unwrap()));
    assert_eq!(files(&kept), before);
    std::fs::remove_dir_all(kept).unwrap();
    let daemon = used.start();
    infer(&mut daemon.client());
    assert!(drivers(&mut daemon.client(), 39).len() == 40);
    assert_eq!(calls_with(&daemon, &key), 200);
    assert_ne!(done(&mut daemon.root.command(&["audit", "key"])), verifier);
    let used = stop(daemon);
    let audit = used.folder.path().join("audit");
    assert_eq!(generations(&audit).unwrap(), [2]);
    let AuditEvent::LogBegun { cause, previous } = &records(&used, 2)[0].event else { panic!("no beginning") };
    assert_eq!((cause.as_str(), previous.is_some()), ("restored", true));
    // The log that it names has another key.
    let (code, report) = verify(&used);
    assert_eq!((code, &report["verdict"]), (Some(0), &json!("whole")), "{report}");
    let earlier = audit.join("earlier/before-2");
    let (logs, key) = (earlier.join("logs"), earlier.join("verifier.vkey"));
    let words = ["audit", "verify", logs.to_str().unwrap(), "--key", key.to_str().unwrap()];
    done(&mut used.command(&words));
}

#[test]
fn a_stopped_box_is_backed_up_encrypted_and_opens_only_for_its_recipient() {
    let shelf = Shelf::new();
    let daemon = TestRoot::new().views(VIEWS).start();
    push(&mut daemon.client(), 7);
    let root = stop(daemon);
    shelf.back_up(&root, "box", &[]);
    let file = shelf.text("box");
    assert!(std::fs::read(&file).unwrap().starts_with(b"age-encryption.org/v1"));
    let again = ["backup", &file, "--to", &shelf.recipient];
    assert!(refused(&mut root.command(&again)).contains("exists already"));
    let inside = root.folder.path().join("box");
    assert!(refused(&mut root.command(&["backup", inside.to_str().unwrap()])).contains("another place"));
    let plain_keys = ["backup", &shelf.text("more"), "--keys", &shelf.text("keys")];
    assert!(refused(&mut root.command(&plain_keys)).contains("only encrypted"));

    let other = Shelf::new();
    let new = TestRoot::new();
    let wrong = ["restore", &file, "--identity", &other.text("key.txt")];
    let without = ["restore", &file];
    for (words, says) in [(&wrong[..], "does not open"), (&without[..], "--identity FILE")] {
        let said = refused(&mut new.command(words));
        assert!(said.contains(says), "{said}");
    }
    shelf.back_up(&root, "second", &[]);
    let mixed = ["restore", &file, "--keys", &shelf.text("second.keys"), "--identity", &shelf.text("key.txt")];
    assert!(refused(&mut new.command(&mixed)).contains("another backup"));
    let swapped = ["restore", &shelf.text("box.keys"), "--identity", &shelf.text("key.txt")];
    refused(&mut new.command(&swapped));

    let whole = std::fs::read(&file).unwrap();
    for length in (0..16).map(|part| whole.len() * part / 16).chain([whole.len() - 1]) {
        write(&shelf.path("cut"), &whole[..length]);
        let said = refused(&mut shelf.restore(&new, "cut", false, &[]));
        assert!(said.contains("cannot be restored"), "{length}: {said}");
    }
    assert!(files(new.folder.path()).is_empty());

    done(&mut shelf.restore(&new, "box", true, &["--check"]));
    assert!(files(new.folder.path()).is_empty(), "a check changes nothing");
    done(&mut shelf.restore(&new, "box", true, &[]));
    let daemon = new.start();
    assert_eq!(drivers(&mut daemon.client(), 9), [7]);
}

#[test]
fn settings_in_their_own_folder_come_with_the_box_and_named_files_elsewhere_are_listed() {
    let shelf = Shelf::new();
    let elsewhere = shelf.text("broker.password");
    write(Path::new(&elsewhere), b"secret");
    let with_settings = |root: TestRoot| {
        let file = root.folder.path().with_extension("etc").join("ledge/ledge.toml");
        let text = file.to_str().unwrap().to_owned();
        (root.variable("LEDGE_CONFIG", text), file)
    };
    let (root, file) = with_settings(TestRoot::new());
    let settings = format!("[mqtt]\nuser = \"box\"\npassword_file = \"{elsewhere}\"\n[audit]\nmin_free_mb = 17\n");
    write(&file, settings.as_bytes());
    let plain = shelf.text("plain");
    let said = done(&mut root.command(&["backup", &plain]));
    assert!(said.contains(&format!("not in the backup: {elsewhere}")), "{said}");
    assert!(said.contains("the private keys are not in it"), "{said}");

    let (new, place) = with_settings(TestRoot::new());
    write(&place, b"[audit]\nmin_free_mb = 18\n");
    let said = done(&mut new.command(&["restore", &plain]));
    assert!(said.contains("the settings before are in"), "{said}");
    assert_eq!(std::fs::read_to_string(&place).unwrap(), settings);
    for file in [file, place] {
        std::fs::remove_dir_all(file.parent().unwrap().parent().unwrap()).unwrap();
    }
}

#[test]
fn a_backup_of_a_later_version_is_refused_with_the_reason() {
    use ledge::cli::backup::archive::{ArchiveKind, ArchiveWriter, BackupManifest, FORMAT_VERSION};
    let shelf = Shelf::new();
    let manifest = BackupManifest {
        format: FORMAT_VERSION,
        kind: ArchiveKind::Box,
        pair: "0".repeat(32),
        ledge: "9.0.0".to_owned(),
        device: "till-7".to_owned(),
        created: "2030-01-01T00:00:00Z".to_owned(),
        formats: "audit 99\n".to_owned(),
        audit_key: None,
        platform: None,
        has_feature_backup: false,
        left_out: Vec::new(),
        entries: Vec::new(),
    };
    let file = ArchiveWriter::new(Vec::new(), 7).unwrap().finish(manifest).unwrap();
    write(&shelf.path("later"), &file);
    let root = TestRoot::new();
    let said = refused(&mut root.command(&["restore", &shelf.text("later")]));
    assert!(said.contains("9.0.0") && said.contains("audit 99"), "{said}");
}

#[test]
fn a_membership_whose_keys_were_encrypted_for_the_old_machine_opens_on_the_new_one() {
    const KEY: [u8; 32] = [9; 32];
    let shelf = Shelf::new();
    let credentials = tempfile::tempdir().unwrap();
    write(&credentials.path().join("ledge-membership"), &KEY);
    let root = TestRoot::new().variable("CREDENTIALS_DIRECTORY", credentials.path());
    let join_file = include_bytes!("../data/membership/box-2.join");
    // 2026-12-03, when it is good.
    let file = JoinFile::open(join_file, 1_796_256_000_000).unwrap();
    let config = MembershipConfig {
        path: root.folder.path().join("membership"),
        key_file: Some(SecretFile::Path(credentials.path().join("ledge-membership"))),
        ..MembershipConfig::default()
    };
    let sealer = Sealer::with_keys(&[KEY]);
    let name = "box-2".parse().unwrap();
    let joined = PreparedMembership::write(&config, &file, &name, false, Some(sealer.clone()), |_| true).unwrap();
    joined.commit().unwrap();
    let old = MembershipFolder::new(&config.path, sealer);
    old.save_identity("CERTIFICATE", "PRIVATE").unwrap();
    let stored = std::fs::read(old.identity_file()).unwrap();
    assert!(Sealer::is_sealed(&stored));
    shelf.back_up(&root, "box", &[]);

    let locked = TestRoot::new();
    done(&mut shelf.restore(&locked, "box", false, &[]));
    assert!(!locked.folder.path().join("membership").exists(), "a new identity is no member");

    let new = TestRoot::new();
    let said = done(&mut shelf.restore(&new, "box", true, &[]));
    assert!(said.contains("protected only by the permissions"), "{said}");
    let folder = MembershipFolder::new(&new.folder.path().join("membership"), Sealer::none());
    assert_eq!(folder.identity().unwrap().unwrap().as_slice(), old.identity().unwrap().unwrap().as_slice());
    assert_eq!(folder.membership().unwrap().unwrap().device, name);
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(folder.identity_file()).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    assert!(!std::fs::read_to_string(folder.settings_file()).unwrap().contains("key_file = \"credential:"));
    let shown = done(&mut new.command(&["config", "show"]));
    assert!(shown.contains("box-2"), "{shown}");
}

#[test]
fn a_restore_that_is_killed_at_any_moment_leaves_the_old_state_or_the_new_one() {
    const ROUNDS: u32 = 12;
    let shelf = Shelf::new();
    let daemon = TestRoot::new().models(&["add_sub"]).views(VIEWS).start();
    (0..30).for_each(|driver| push(&mut daemon.client(), driver));
    let root = stop(daemon);
    shelf.back_up(&root, "box", &["--plain"]);

    let new = TestRoot::new().file("old/model.toml", "# of the old state");
    let begun = Instant::now();
    done(&mut shelf.restore(&new, "box", true, &["--replace"]));
    let whole = begun.elapsed();
    let place = new.folder.path().to_owned();
    let complete = files(&place);
    let has_old = |found: &BTreeMap<PathBuf, Vec<u8>>| found.contains_key(Path::new("models/old/model.toml"));
    assert!(!has_old(&complete));

    for round in 0..ROUNDS {
        write(&place.join("models/old/model.toml"), format!("# {round}").as_bytes());
        let mut before = files(&place);
        before.remove(Path::new(".restoring"));
        let mut restoring = shelf
            .restore(&new, "box", true, &["--replace"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Moments over the whole time that it takes, each a little later.
        std::thread::sleep(whole * round / ROUNDS);
        let _ = restoring.kill();
        let _: Output = restoring.wait_with_output().unwrap();
        let mut after = files(&place);
        after.remove(Path::new(".restoring"));
        if has_old(&after) {
            assert_eq!(after, before, "round {round}: the old state is unchanged");
        } else {
            assert_eq!(after.keys().collect::<Vec<_>>(), complete.keys().collect::<Vec<_>>(), "round {round}");
        }
    }
    done(&mut shelf.restore(&new, "box", true, &["--replace"]));
    let name = place.file_name().unwrap().to_str().unwrap().to_owned();
    let beside = || std::fs::read_dir(place.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let of_this = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{name}."));
    assert!(!beside().any(|path| of_this(&path) && path.extension().unwrap() == "restoring"), "nothing is left over");
    let daemon = new.start();
    assert_eq!(drivers(&mut daemon.client(), 40).len(), 30);
    infer(&mut daemon.client());
    drop(daemon);
    for path in beside().filter(of_this) {
        std::fs::remove_dir_all(path).unwrap();
    }
}
