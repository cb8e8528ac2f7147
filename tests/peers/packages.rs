//! The packages, installed, upgraded and removed by the tools of their distributions in separate roots. They hold the
//! program that the tests were built with; `make deb` and `make rpm` make them of an optimized one.

mod booted;
mod upgrades;
mod root;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::CHECKOUT;
use crate::daemon::{setup_root, write};
use crate::tools::{interpreter, path_of, run};
use root::{Root, Serving};

const VIEW: &str = r#"
[[entity]]
name = "machine"
join_key = "machine_id"

[[feature_view]]
name = "vibration"
entities = ["machine"]
ttl = "1h"
schema = [{ name = "rms", dtype = "Float32" }]
"#;

const PUBLISHER: &str = r#"
maintainer = "Example packages <packages@example.com>"
homepage = "https://example.com/ledge"

[catalogue]
address = "https://packages.example.com/catalogue"
root_file = "root.json"
"#;
const ROOT_METADATA: &str = r#"{"signed": {"_type": "root"}}"#;

/// Makes packages of this program into a folder.
#[track_caller]
fn build(kind: &str, folder: &TempDir, variants: &[&str]) {
    run(&mut builder(kind, folder, variants));
}

fn builder(kind: &str, folder: &TempDir, variants: &[&str]) -> Command {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = interpreter();
    command.arg(checkout.join("packaging/build")).args([
        kind,
        "--fast",
        "--any-glibc",
        "--binary",
        env!("CARGO_BIN_EXE_ledge"),
    ]);
    command.arg("--output").arg(folder.path());
    for variant in variants {
        command.args(["--variant", variant]);
    }
    command
}

/// The only package in a folder with a name that begins so.
#[track_caller]
fn package(folder: &TempDir, name: &str) -> PathBuf {
    let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<_> = files.filter(|file| file.file_name().unwrap().to_str().unwrap().starts_with(name)).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

/// The same package as of an earlier version, with another default in the reference of its settings, as versions
/// differ. With `LEDGE_PREVIOUS_BINARY` it has the program of one.
fn earlier(deb: &Path, folder: &TempDir, version: &str) -> PathBuf {
    let tree = folder.path().join("tree");
    run(Command::new(path_of("dpkg-deb")).arg("--raw-extract").args([deb, tree.as_path()]));
    let edit = |file: &Path, from: &str, to: &str| {
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.contains(from), "{text}");
        write(file, text.replacen(from, to, 1).as_bytes());
    };
    let now = format!("Version: {}-1", env!("CARGO_PKG_VERSION"));
    edit(&tree.join("DEBIAN/control"), &now, &format!("Version: {version}"));
    let reference = tree.join("usr/share/ledge/ledge.toml");
    edit(&reference, "The configuration of Ledge.", "The configuration of Ledge, as it was.");
    if let Some(previous) = std::env::var_os("LEDGE_PREVIOUS_BINARY") {
        std::fs::copy(previous, tree.join("usr/bin/ledge")).unwrap();
    }
    let made = folder.path().join(format!("earlier_{version}.deb"));
    run(Command::new(path_of("dpkg-deb"))
        .args(["--root-owner-group", "-Zgzip", "-z1", "--build"])
        .args([&tree, &made]));
    made
}

/// Adds the files of an owner to those of the package.
fn furnish(root: &Root, serving: Serving<'_>) {
    serving.stop();
    write(&root.path("/etc/ledge/feature_views.d/shop.toml"), VIEW.as_bytes());
    let own = root.path("/etc/ledge/ledge.toml");
    let text = std::fs::read_to_string(&own).unwrap() + "\n[shutdown]\ngrace_ms = 4711\n";
    write(&own, text.as_bytes());
    root.run(&["cp", "-a", "/usr/share/ledge/models/wine_mlp", "/var/lib/ledge/models/own_wine"]);
    let serving = root.serve();
    serving.post("/push", r#"{"push_source_name":"vibration","df":{"machine_id":["press-7"],"rms":[3.5]}}"#);
    serving.stop();
}

#[track_caller]
fn assert_furnished(root: &Root) {
    let serving = root.serve();
    let answer =
        serving.post("/get-online-features", r#"{"features":["vibration:rms"],"entities":{"machine_id":["press-7"]}}"#);
    assert!(answer.contains("[3.5]") && answer.contains("PRESENT"), "{answer}");
    let index: Value = serde_json::from_str(&serving.post("/v2/repository/index", "")).unwrap();
    let ready = |row: &&Value| row["state"] == "READY";
    let names: Vec<_> =
        index.as_array().unwrap().iter().filter(ready).map(|row| row["name"].as_str().unwrap()).collect();
    let expected = [
        "bike_demand",
        "coco_detector",
        "document_reader",
        "efficientnet_lite0",
        "face_detector",
        "own_wine",
        "wine_mlp",
    ];
    assert_eq!(names, expected);
    assert_coffee(&serving);
    serving.stop();
    let shown = root.run(&["ledge", "config", "show"]);
    assert!(shown.contains("grace_ms = 4711"), "{shown}");
    root.run(&["ledge", "audit", "verify"]);
}

#[track_caller]
fn assert_coffee(serving: &Serving<'_>) {
    let answer: Value = serde_json::from_str(&serving.classify()).unwrap();
    assert_eq!(answer["labels"][0]["label"], "espresso", "{answer}");
}

#[test]
fn a_deb_is_installed_upgraded_not_downgraded_removed_and_purged_without_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    build("deb", &folder, &["full", "slim", "sentences"]);
    let (full, slim) = (package(&folder, "ledge_"), package(&folder, "ledge-slim_"));
    let sentences = package(&folder, "ledge-sentences_");
    let root = Root::debian();
    let before = root.files();
    let (full, old) = (root.bring(&full), root.bring(&earlier(&full, &folder, "0.0.9-1")));
    let (slim, sentences) = (root.bring(&slim), root.bring(&sentences));

    // Into a Debian that has nothing, without a network.
    root.run(&["apt-get", "install", "--yes", &old]);
    let installed = root.files();
    assert!(installed.contains("usr/share/man/man1/ledge.1.gz"), "{installed:?}");
    let wanted = root.path("/etc/systemd/system/multi-user.target.wants/ledge.service");
    assert!(wanted.is_symlink(), "the service is not enabled");
    let serving = root.serve();
    assert_coffee(&serving);
    furnish(&root, serving);

    // An upgrade touches nothing that the box remembers and nothing that its owner wrote.
    let (state, settings) = (root.content("/var/lib/ledge"), root.content("/etc/ledge"));
    assert!(state.len() > 10, "{:?}", state.keys());
    // And asks nothing: there is no terminal.
    root.run(&["dpkg", "--install", &full]);
    assert!(root.content("/var/lib/ledge") == state, "an upgrade changed the state");
    assert!(root.content("/etc/ledge") == settings, "an upgrade changed the settings");
    let reference = std::fs::read_to_string(root.path("/usr/share/ledge/ledge.toml")).unwrap();
    assert!(!reference.contains("as it was"), "{reference}");
    assert_furnished(&root);

    // A model with a package of its own.
    root.run(&["dpkg", "--install", &sentences]);
    let serving = root.serve();
    let answer = serving.post("/v1/embeddings", r#"{"model":"use_multilingual_v3","input":"Guten Morgen"}"#);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["data"][0]["embedding"].as_array().map(Vec::len), Some(512), "{answer}");
    serving.stop();
    root.run(&["dpkg", "--purge", "ledge-sentences"]);

    // Neither the package nor the program goes back to a version that cannot read the stored files.
    let formats = root.path("/var/lib/ledge/formats");
    let known = std::fs::read_to_string(&formats).unwrap();
    write(&formats, known.replace("features ", "features 99").as_bytes());
    let refused = root.output(&["dpkg", "--install", &old]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("its store 'features' is of form 99"), "{said}");
    let status = root.run(&["dpkg-query", "--show", "--showformat=${Status} ${Version}", "ledge"]);
    assert_eq!(status, format!("install ok installed {}-1", env!("CARGO_PKG_VERSION")));
    let refused = root.output(&["ledge", "serve"]);
    assert_eq!(refused.status.code(), Some(78), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("features 99"), "{refused:?}");
    write(&formats, known.as_bytes());

    // Removed, everything that the box remembers stays; the slim package goes on with it.
    root.run(&["dpkg", "--remove", "ledge"]);
    assert!(!root.path("/usr/bin/ledge").exists() && root.path("/var/lib/ledge/models/own_wine/1").is_dir());
    root.run(&["dpkg", "--install", &slim]);
    root.run(&["dpkg", "--purge", "ledge"]);
    assert!(root.path("/var/lib/ledge/models/own_wine/1").is_dir(), "purging one package took the other's state");
    // The state may be a link: the link is removed, and its target stays.
    root.run(&["mv", "/var/lib/ledge", "/srv/ledge"]);
    root.run(&["ln", "-s", "/srv/ledge", "/var/lib/ledge"]);
    let elsewhere = root.content("/srv/ledge");
    root.run(&["dpkg", "--purge", "ledge-slim"]);
    assert!(root.content("/srv/ledge") == elsewhere, "a purge removed what a link leads to");
    root.run(&["rm", "-r", "/srv/ledge"]);
    let after = root.files();
    let left: Vec<_> = after.symmetric_difference(&before).collect();
    assert!(left.is_empty(), "{left:?}");
    for file in ["/etc/passwd", "/etc/group", "/etc/shadow"] {
        assert!(!std::fs::read_to_string(root.path(file)).unwrap().contains("ledge"), "{file}");
    }
}

/// By apt of Debian 12 and 13, and by dnf; see the comment at the top of that folder's `test_installed.py`.
#[test]
fn packages_come_from_a_signed_repository_into_bare_roots() {
    let folder = tempfile::tempdir().unwrap();
    build("deb", &folder, &["full", "slim"]);
    build("rpm", &folder, &["full", "slim"]);
    let python = setup_root().join("platform/bin/python3");
    assert!(python.exists(), "{} is missing: `make test-platform` makes it", python.display());
    let mut command = Command::new(python);
    command.arg("-B").arg(Path::new(CHECKOUT).join("tests/unittests"));
    command.arg(Path::new(CHECKOUT).join("packaging/platform/tests/installed"));
    run(command.env("LEDGE_PACKAGES", folder.path()).env("LEDGE_TEST_ROOT", setup_root()));
}

#[test]
fn packages_name_their_publisher_and_contain_the_catalogue_and_the_list_of_components() {
    let folder = tempfile::tempdir().unwrap();
    let publisher = folder.path().join("publisher.toml");
    write(&publisher, PUBLISHER.as_bytes());
    write(&folder.path().join("root.json"), ROOT_METADATA.as_bytes());
    for kind in ["deb", "rpm"] {
        run(builder(kind, &folder, &["slim"]).arg("--publisher").arg(&publisher));
    }
    let (deb, rpm) = (package(&folder, "ledge-slim_"), package(&folder, "ledge-slim-"));

    let field = |name: &str| run(Command::new(path_of("dpkg-deb")).arg("--field").arg(&deb).arg(name));
    assert_eq!(field("Maintainer").trim_end(), "Example packages <packages@example.com>");
    assert_eq!(field("Homepage").trim_end(), "https://example.com/ledge");
    let query = ["--query", "--queryformat", "%{VENDOR} %{URL}", "--package"];
    let named = run(Command::new(path_of("rpm")).args(query).arg(&rpm));
    assert_eq!(named, "Example packages https://example.com/ledge");

    let tree = folder.path().join("tree");
    run(Command::new(path_of("dpkg-deb")).arg("--extract").args([&deb, &tree]));
    let read = |file: &str| std::fs::read_to_string(tree.join(file)).unwrap();
    let settings: toml::Table = read("usr/share/ledge/publisher.toml").parse().unwrap();
    assert_eq!(settings["catalogue"]["address"].as_str(), Some("https://packages.example.com/catalogue"));
    assert_eq!(settings["catalogue"]["root_file"].as_str(), Some("/usr/share/ledge/catalogue-root.json"));
    assert_eq!(read("usr/share/ledge/catalogue-root.json"), ROOT_METADATA);
    let named: Value = serde_json::from_str(&read("usr/share/ledge/package.json")).unwrap();
    let found = ["name", "version", "format", "architecture"].map(|key| named[key].as_str().unwrap().to_owned());
    let expected = ["Package", "Version", "Architecture"].map(|name| field(name).trim_end().to_owned());
    assert_eq!(found, [expected[0].as_str(), &expected[1], "deb", &expected[2]]);
    let components: Value = serde_json::from_str(&read("usr/share/doc/ledge/ledge.cdx.json")).unwrap();
    assert_eq!(components["metadata"]["supplier"]["name"], "Example packages");
    let files = run(Command::new(path_of("rpm")).args(["--query", "--list", "--package"]).arg(&rpm));
    for file in
        ["/usr/share/doc/ledge/ledge.cdx.json", "/usr/share/ledge/publisher.toml", "/usr/share/ledge/package.json"]
    {
        assert!(files.lines().any(|line| line == file), "{files}");
    }
}

#[test]
fn an_rpm_is_installed_into_a_root_upgraded_not_downgraded_swapped_and_erased() {
    let folder = tempfile::tempdir().unwrap();
    build("rpm", &folder, &["full", "slim"]);
    let (full, slim) = (package(&folder, "ledge-0"), package(&folder, "ledge-slim-"));
    let root = Root::debian();
    // Nothing is booted in there; the calls of systemd are written to a file.
    root.run(&["mkdir", "-p", "/run/systemd/system"]);
    let systemctl = "echo \"$*\" >>/tmp/systemctl; case $* in *is-failed*) exit 1 ;; esac";
    write(&root.path("/usr/bin/systemctl"), format!("#!/bin/sh\n{systemctl}\n").as_bytes());
    root.run(&["chmod", "755", "/usr/bin/systemctl"]);
    let told = || std::fs::read_to_string(root.path("/tmp/systemctl")).unwrap();
    let before = root.files();
    // The root is Debian's, so rpm does not know the files there; the requirements of the package are checked
    // separately.
    let rpm = |arguments: &[&str]| {
        let mut command = Command::new(path_of("rpm"));
        command.arg("--root").arg(root.path("/")).args(["--dbpath", "/var/lib/rpm", "--nodeps"]).args(arguments);
        command
    };
    let full = full.to_str().unwrap();
    let asked = run(Command::new(path_of("rpm")).args(["--query", "--package", "--requires", full]));
    let known = ["/bin/sh", "config(ledge)", "glibc", "libgcc", "libstdc++", "rpmlib(", "shadow-utils"];
    for line in asked.lines() {
        assert!(known.iter().any(|name| line.starts_with(name)), "{line}");
    }

    run(&mut rpm(&["--install", full]));
    // Presets say whether it is enabled, and its administrator starts it.
    assert_eq!(told(), "--no-reload preset ledge.service ledge-upgrade.path ledge-upgrade.service\ndaemon-reload\n");
    let serving = root.serve();
    assert_coffee(&serving);
    furnish(&root, serving);

    // The same version once more: every script of an upgrade runs.
    let (state, settings) = (root.content("/var/lib/ledge"), root.content("/etc/ledge"));
    write(&root.path("/tmp/systemctl"), b"");
    run(&mut rpm(&["--upgrade", "--replacepkgs", "--replacefiles", full]));
    assert!(!told().contains("preset") && !told().contains("disable"), "{}", told());
    assert!(told().ends_with("try-restart ledge.service\n"), "{}", told());
    assert!(root.content("/var/lib/ledge") == state, "an upgrade changed the state");
    assert!(root.content("/etc/ledge") == settings, "an upgrade changed the settings");
    assert_furnished(&root);

    let formats = root.path("/var/lib/ledge/formats");
    let known = std::fs::read_to_string(&formats).unwrap();
    write(&formats, known.replace("audit ", "audit 99").as_bytes());
    let refused = rpm(&["--upgrade", "--replacepkgs", "--oldpackage", full]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("its store 'audit' is of form 99"), "{said}");
    write(&formats, known.as_bytes());

    // As `dnf swap` has it: the one that comes, and then the one that goes.
    write(&root.path("/tmp/systemctl"), b"");
    run(&mut rpm(&["--install", "--replacefiles", slim.to_str().unwrap()]));
    run(&mut rpm(&["--erase", "ledge"]));
    assert!(root.path("/usr/bin/ledge").exists() && !root.path("/usr/lib/ledge").exists());
    assert!(!told().contains("preset") && !told().contains("disable"), "{}", told());
    assert!(told().ends_with("try-restart ledge.service\n"), "{}", told());
    assert!(!root.path("/run/ledge-package-swap").exists(), "the next removal would be taken for a swap");

    write(&root.path("/tmp/systemctl"), b"");
    run(&mut rpm(&["--erase", "ledge-slim"]));
    assert_eq!(
        told(),
        "--no-reload disable --now ledge.service ledge-upgrade.path ledge-upgrade.service ledge-join.service\ndaemon-reload\n"
    );
    let after = root.files();
    let is_owners = |path: &&String| {
        ["var/lib/ledge", "var/lib/rpm", "etc/ledge", "run/ledge"].iter().any(|kept| path.starts_with(kept))
    };
    // Folders that it shares with other packages, such as those of the shells, stay.
    let is_its = |path: &&String| path.contains("ledge") || !root.path(path).is_dir();
    let strange: Vec<_> = after.difference(&before).filter(|path| is_its(path) && !is_owners(path)).collect();
    assert!(strange.is_empty(), "{strange:?}");
    assert!(root.path("/var/lib/ledge/models/own_wine/1").is_dir(), "erasing took what is the owner's");
}
