//! A catalogue signed by `ledge-platform` on a web server or a stick, and the models that an owner adds from it.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::certificates::Authority;
use crate::daemon::{TestDaemon, TestRoot, copy, model_folder, write};
use crate::fault_rounds::{assert_models_are_sealed, wait_until};
use crate::nginx::Nginx;
use crate::platform::{Platform, wine};
use crate::tools::run;

/// The size of the weights for an interrupted download: some seconds at [`SLOW`].
const WEIGHTS_BYTES: usize = 6 << 20;

/// A server that sends a megabyte a second.
const SLOW: &str = "limit_rate 1m;";

/// The longest wait for a download to begin.
const BEGIN_TIMEOUT: Duration = Duration::from_mins(1);

/// A folder of models, and the catalogue that is made of them.
pub struct Kit {
    folder: TempDir,
    platform: Platform,
}

impl Kit {
    /// A catalogue of `wine_mlp`, and of a large model that is never loaded.
    pub fn new() -> Self {
        let kit = Self { folder: tempfile::tempdir().unwrap(), platform: Platform::new() };
        copy(&model_folder("wine_mlp"), &kit.models().join("wine_mlp"));
        let weights: Vec<u8> = (0..WEIGHTS_BYTES).map(|at| at.to_le_bytes()[at % 3]).collect();
        write(&kit.models().join("large/1/model.onnx"), &weights);
        write(&kit.models().join("large/model.toml"), b"description = \"Large\"\nlicense = \"MIT\"\n");
        kit.sign();
        kit
    }

    fn models(&self) -> PathBuf {
        self.folder.path().join("models")
    }

    /// The published folder.
    fn catalogue(&self) -> PathBuf {
        self.folder.path().join("catalogue")
    }

    /// Signs the models as they are now.
    #[track_caller]
    fn sign(&self) {
        let mut command = self.platform.python();
        command.args(["-m", "ledge_platform", "catalogue"]).arg(self.models()).arg(self.catalogue());
        run(command.arg("--keys").arg(self.folder.path().join("keys")));
    }

    /// Gives a box the root metadata, as the owner copies it.
    fn enrol(&self, root: TestRoot) -> TestRoot {
        std::fs::copy(self.catalogue().join("root.json"), root.folder.path().join("catalogue-root.json")).unwrap();
        root.set("updates.min_free_mb=0")
    }

    /// A box that adds from the folder itself.
    pub fn box_at_folder(&self) -> TestRoot {
        self.enrol(TestRoot::new()).set(&format!("catalogue.address=\"file://{}\"", self.catalogue().display()))
    }

    /// A box that adds from a web server, with a certificate of `authority`.
    fn box_at(&self, nginx: &Nginx, authority: &Authority) -> TestRoot {
        let identity = authority.issue("box-1");
        let mut root = self.enrol(TestRoot::new()).set(&format!("catalogue.address={:?}", nginx.url()));
        for (key, content) in
            [("ca_file", authority.pem()), ("certificate_file", &identity.certificate), ("key_file", &identity.key)]
        {
            write(&root.folder.path().join(key), content.as_bytes());
            root = root.set(&format!("catalogue.tls.{key}={key:?}"));
        }
        root
    }

    /// The published file of a target.
    fn target(&self, folder: &str, name: &str) -> PathBuf {
        let folder = self.catalogue().join("targets").join(folder);
        let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        entries.into_iter().find(|path| path.to_string_lossy().ends_with(&format!(".{name}"))).unwrap()
    }
}

fn models(root: &TestRoot, verb: &[&str]) -> Command {
    root.command(&[&["models"], verb].concat())
}

/// Runs a verb that must fail, and returns its message.
#[track_caller]
fn failure(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.stdin(Stdio::null()).output().unwrap();
    let message = String::from_utf8(stderr).unwrap();
    assert!(!status.success(), "{message}");
    message
}

fn reload(daemon: &TestDaemon) {
    daemon.signal("HUP");
    daemon.wait_for_event("repository.read");
}

fn listed(root: &TestRoot) -> Value {
    serde_json::from_str(&run(&mut models(root, &["catalogue", "--json"]))).unwrap()
}

#[test]
fn a_model_is_added_over_https_served_after_a_reload_and_removed() {
    let (kit, authority) = (Kit::new(), Authority::new());
    let nginx = Nginx::start(&kit.catalogue(), &authority, "");
    let daemon = kit.box_at(&nginx, &authority).start();
    let root = &daemon.root;

    let text = run(&mut models(root, &["catalogue"]));
    assert!(text.contains("wine_mlp (") && text.contains("not added"), "{text}");
    assert!(text.contains("licence   Apache-2.0"), "{text}");
    let text = run(&mut models(root, &["add", "wine_mlp"]));
    assert!(text.contains("systemctl reload ledge"), "{text}");
    run(&mut models(root, &["check", "wine_mlp"]));
    assert_eq!(daemon.client().post_json("/v2/models/wine_mlp/infer", &wine()).status, 404);
    reload(&daemon);
    assert_eq!(daemon.client().post_json("/v2/models/wine_mlp/infer", &wine()).status, 200);
    let states: Vec<_> = listed(root).as_array().unwrap().iter().map(|row| row["state"].clone()).collect();
    assert_eq!(states, [json!("not added"), json!("added")]);

    run(&mut models(root, &["remove", "wine_mlp"]));
    reload(&daemon);
    assert_eq!(daemon.client().post_json("/v2/models/wine_mlp/infer", &wine()).status, 404);
}

#[test]
fn a_model_of_the_catalogue_that_asks_for_the_daemon_runs_in_a_sealed_process() {
    let kit = Kit::new();
    write(
        &kit.models().join("wine_mlp/model.toml"),
        b"isolation = \"none\"\nruntime = \"onnxruntime\"\nlicense = \"MIT\"\n",
    );
    kit.sign();
    let daemon = kit.box_at_folder().start();
    let mut client = daemon.client();
    let added = client.post("/catalogue/models/wine_mlp/add", &[], b"");
    assert!(added.status < 300, "{added:?}");
    wait_until("it serves", Duration::from_mins(1), || {
        daemon.client().post_json("/v2/models/wine_mlp/infer", &wine()).status == 200
    });
    assert_models_are_sealed(&daemon);
}

#[test]
fn an_interrupted_download_goes_on_where_it_stopped() {
    let (kit, authority) = (Kit::new(), Authority::new());
    let mut nginx = Nginx::start(&kit.catalogue(), &authority, SLOW);
    let root = kit.box_at(&nginx, &authority);

    let mut command: Child = models(&root, &["add", "large"]).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while part(&root) < 2 << 20 {
        assert!(begun.elapsed() < BEGIN_TIMEOUT, "no download began");
        assert!(command.try_wait().unwrap().is_none(), "the command ended");
        std::thread::sleep(Duration::from_millis(10));
    }
    command.kill().unwrap();
    command.wait().unwrap();
    assert!(!root.model("large").exists());

    nginx.start_again(Some(""));
    run(&mut models(&root, &["add", "large"]));
    let second = nginx.requests().lines().rfind(|line| line.contains("model.onnx")).unwrap().to_owned();
    let from: u64 = second.rsplit_once("bytes=").unwrap().1.trim_end_matches('-').parse().unwrap();
    assert!(from >= 1 << 20, "{second}");
    assert_eq!(std::fs::read(root.model("large").join("1/model.onnx")).unwrap().len(), WEIGHTS_BYTES);
}

/// Bytes of the unfinished download.
fn part(root: &TestRoot) -> u64 {
    let Ok(entries) = std::fs::read_dir(root.folder.path().join("catalogue/blobs")) else { return 0 };
    let parts = entries.map(|entry| entry.unwrap()).filter(|entry| entry.path().extension() == Some("part".as_ref()));
    parts.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
}

#[test]
fn a_stick_is_enough_and_a_file_on_it_that_was_not_signed_is_refused() {
    let kit = Kit::new();
    let root = kit.enrol(TestRoot::new());
    let message = failure(&mut models(&root, &["catalogue"]));
    assert!(message.contains("set `[catalogue] address`") && message.contains("--from"), "{message}");
    let from = kit.catalogue().display().to_string();
    let model = kit.target("wine_mlp/1", "model.onnx");
    let signed = std::fs::read(&model).unwrap();
    let mut other = signed.clone();
    *other.last_mut().unwrap() ^= 1;
    write(&model, &other);
    let message = failure(&mut models(&root, &["add", "wine_mlp", "--from", &from]));
    assert!(message.contains("1/model.onnx"), "{message}");
    assert!(!root.model("wine_mlp").exists());

    write(&model, &signed);
    run(&mut models(&root, &["add", "wine_mlp", "--from", &from]));
    run(&mut models(&root, &["check", "wine_mlp"]));
    let message = failure(&mut models(&root, &["add", "wine_mlp", "--from", &from]));
    assert!(message.contains("exists already"), "{message}");
    let message = failure(&mut models(&root, &["add", "cats", "--from", &from]));
    assert!(message.contains("has no model cats: it has large, wine_mlp"), "{message}");
}

#[test]
fn an_older_catalogue_and_one_of_other_keys_are_refused() {
    let kit = Kit::new();
    let root = kit.box_at_folder();
    let old = kit.folder.path().join("old");
    copy(&kit.catalogue(), &old);
    std::fs::remove_dir_all(kit.models().join("large")).unwrap();
    kit.sign();
    assert_eq!(listed(&root).as_array().unwrap().len(), 1);
    let message = failure(&mut models(&root, &["catalogue", "--from", &old.display().to_string()]));
    assert!(message.contains("version"), "{message}");

    let others = Kit::new();
    let message = failure(&mut models(&root, &["catalogue", "--from", &others.catalogue().display().to_string()]));
    assert!(message.contains("the catalogue at file:///") && message.contains("signature threshold"), "{message}");
    std::fs::copy(others.catalogue().join("root.json"), root.folder.path().join("catalogue-root.json")).unwrap();
    let message = failure(&mut models(&root, &["catalogue"]));
    assert!(message.contains("if the catalogue was made anew, remove"), "{message}");
}

#[test]
fn what_root_adds_belongs_to_the_user_of_the_service() {
    let kit = Kit::new();
    let root = kit.box_at_folder();
    // Without root the owner is the user of this test.
    let owner = if rustix::process::geteuid().is_root() { 65_534 } else { rustix::process::geteuid().as_raw() };
    for path in [root.folder.path().to_owned(), root.folder.path().join("models"), kit.folder.path().to_owned()] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    for path in [root.folder.path().to_owned(), root.folder.path().join("models")] {
        std::os::unix::fs::chown(&path, Some(owner), None).unwrap();
    }
    run(&mut models(&root, &["add", "wine_mlp"]));
    for path in ["models/wine_mlp/1/model.onnx", "catalogue", "models/wine_mlp"] {
        assert_eq!(std::fs::metadata(root.folder.path().join(path)).unwrap().uid(), owner, "{path}");
    }
}

#[test]
fn a_server_that_no_rule_of_egress_names_is_not_asked() {
    let kit = Kit::new();
    let root = kit.enrol(TestRoot::new()).set("catalogue.address=\"https://models.example.com/\"");
    let message = failure(&mut models(&root, &["catalogue"]));
    assert!(message.contains("egress"), "{message}");
    let message = failure(&mut models(&root, &["add", "x", "--from", "https://models.example.com/"]));
    assert!(message.contains("egress"), "{message}");
}

#[test]
fn a_model_with_a_link_out_of_its_folder_is_not_signed() {
    let kit = Kit::new();
    std::os::unix::fs::symlink("/etc/hostname", kit.models().join("large/labels.txt")).unwrap();
    let mut command = kit.platform.python();
    command.args(["-m", "ledge_platform", "catalogue"]).arg(kit.models()).arg(kit.catalogue());
    let message = failure(command.arg("--keys").arg(kit.folder.path().join("keys")));
    assert!(message.contains("labels.txt"), "{message}");
    assert!(!kit.catalogue().join("targets/large/labels.txt").exists());
}
