//! The files of a box with encryption on, and its behaviour when its master key changes or is missing.

use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use aho_corasick::AhoCorasick;
use aws_lc_rs::digest::{SHA256, digest};
use ledge::identity::sealing::{MASTER_KEY_BYTES, Sealer};
use ledge::updates::artifact::{Artifact, FileName};
use ledge::updates::config::RepositoryAddress;
use ledge::updates::download::{DownloadLimits, fetch};
use ledge::updates::persisted::PersistedStates;
use ledge::updates::source::RepositorySource;
use ledge::updates::state::{InstalledRelease, SubjectState};
use ledge::updates::store::UpdateStore;
use ledge::updates::trust::TufTarget;
use serde_json::{Value, json};

use crate::audit::{count, is_whole, records, status, stop};
use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot, model_folder, write};
use ledge::audit_event::AuditEvent;

pub const SETTING: &str = "encryption.master_key_file=\"master.key\"";

/// A model by its name, with its files.
pub type Model = (&'static str, Vec<(String, Vec<u8>)>);

/// A root with a master key.
fn sealed_root() -> TestRoot {
    let root = TestRoot::new();
    let made = encryption(&root, &["make-key", &key_file(&root).display().to_string()]);
    assert_eq!(made.0, Some(0), "{}", made.1);
    root.set(SETTING)
}

/// A root with stores that are encrypted under this master key.
pub fn encrypted(root: TestRoot, key: &[u8; MASTER_KEY_BYTES]) -> TestRoot {
    write(&key_file(&root), key);
    root.set(SETTING)
}

fn key_file(root: &TestRoot) -> PathBuf {
    root.folder.path().join("master.key")
}

/// The exit code and the output of a verb.
fn encryption(root: &TestRoot, verb: &[&str]) -> (Option<i32>, String) {
    let output = root.command(&[&["encryption"], verb].concat()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

/// The number of files of a part that `status` shows as encrypted under one key.
fn count_of(status: &str, part: &str) -> Option<u64> {
    let of_part = status.lines().find_map(|line| line.strip_prefix(part)?.strip_prefix(": "))?;
    let (count, key) = of_part.split_once(" encrypted with ")?;
    (!key.contains(' ')).then(|| count.parse().ok())?
}

/// The verifier key, as the command line shows it.
fn verifier_key(root: &TestRoot) -> String {
    let output = root.command(&["audit", "key"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn sha256(content: &[u8]) -> String {
    let digits: Vec<_> = digest(&SHA256, content).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    digits.concat()
}

/// The files of a model as a release has them, in one folder.
pub fn flat(model: &str) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    let folder = model_folder(model);
    for folder in [folder.clone(), folder.join("1"), folder.join("golden")] {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if path.is_file() && !name.starts_with('.') {
                let mut content = std::fs::read(&path).unwrap();
                if name == "model.toml" {
                    content = String::from_utf8(content).unwrap().replace("golden/", "").into_bytes();
                }
                files.push((name, content));
            }
        }
    }
    files
}

/// Puts a release of each model into the update store, as updates do, and makes it live.
pub fn install(root: &TestRoot, models: &[Model], sealer: &Sealer) {
    let folder = root.folder.path().join("updates");
    let store = UpdateStore::open_with(&folder, sealer).unwrap();
    let mut persisted = PersistedStates::empty(&folder);
    let repository = tempfile::tempdir().unwrap();
    let source = RepositorySource::new(&RepositoryAddress::Folder(repository.path().to_owned()), None);
    let limits =
        DownloadLimits { max_bytes_per_s: 0, min_free_bytes: 0, stall: Duration::from_mins(1), min_bytes_per_s: 0 };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (name, files) in models {
        let release = InstalledRelease { version: "2".parse().unwrap(), digest: sha256(name.as_bytes()) };
        let mut named = Vec::new();
        for (file, content) in files {
            let sha256 = sha256(content);
            write(&repository.path().join("targets").join(&sha256), content);
            let (path, location) = (format!("models/{name}/2/{file}"), sha256.clone());
            let target = TufTarget { path, length: content.len() as u64, location, sha256, custom: None };
            let progress = |_| ControlFlow::Continue(());
            runtime.block_on(fetch(&store, &source, &target, &limits, progress)).unwrap();
            named.push((file.parse::<FileName>().unwrap(), target.sha256));
        }
        let subject: Artifact = format!("models/{name}").parse().unwrap();
        store.assemble(&subject, &release, &named).unwrap();
        persisted.subjects.insert(subject, SubjectState { committed: Some(release), ..SubjectState::default() });
    }
    persisted.write().unwrap();
}

/// Pieces of model files that must not be on the disk.
fn canaries(models: &[Model]) -> Vec<Vec<u8>> {
    let files = models.iter().flat_map(|(_, files)| files);
    // Take a piece from the middle, where the weights are: the rest is small, and part of it is the owner's own text.
    let piece = |(_, content): &(String, Vec<u8>)| {
        let middle = content.len() / 2;
        content.get(middle..(middle + 48).min(content.len())).map(<[u8]>::to_vec)
    };
    files.filter_map(piece).filter(|piece| piece.len() >= 32 && piece.iter().any(|byte| *byte != piece[0])).collect()
}

/// The files below a root that hold any of these in plain.
fn plain(root: &TestRoot, canaries: &[Vec<u8>]) -> Vec<PathBuf> {
    fn walk(folder: &Path, searched: &AhoCorasick, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                walk(&entry.path(), searched, found);
            } else if entry.file_type().unwrap().is_file() {
                match std::fs::read(entry.path()) {
                    Ok(content) if searched.is_match(&content) => found.push(entry.path()),
                    // The daemon writes to temporary files meanwhile.
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{}", entry.path().display()),
                    Ok(_) => {}
                }
            }
        }
    }
    let mut found = Vec::new();
    walk(root.folder.path(), &AhoCorasick::new(canaries).unwrap(), &mut found);
    found
}

/// A model for every runtime and format, one of them with weights in a separate file, and one of 5 MB with golden
/// inputs.
fn models() -> Vec<Model> {
    let names = ["efficientnet_lite0", "release_good", "external_data", "ir_add", "tflite_blazeface"];
    names.iter().map(|name| (*name, flat(name))).collect()
}

fn ready(client: &mut Client, model: &str) {
    let answer = client.get(&format!("/v2/models/{model}/ready"));
    assert_eq!(answer.status, 200, "{model}: {answer:?}");
}

/// Asks a model with zeros, in the shape that it says itself.
#[track_caller]
fn infer_zeros(client: &mut Client, model: &str) {
    let metadata = client.get(&format!("/v2/models/{model}")).json();
    let input = |input: &Value| {
        let dims = input["shape"].as_array().unwrap().iter().map(|dim| dim.as_i64().unwrap().max(1));
        let shape: Vec<_> = dims.collect();
        let data = vec![0; usize::try_from(shape.iter().product::<i64>()).unwrap()];
        json!({"name": input["name"], "datatype": input["datatype"], "shape": shape, "data": data})
    };
    let inputs: Vec<_> = metadata["inputs"].as_array().unwrap().iter().map(input).collect();
    let answer = client.post_json(&format!("/v2/models/{model}/infer"), &json!({ "inputs": inputs }));
    assert_eq!(answer.status, 200, "{model}: {answer:?}");
}

fn key_of_root(root: &TestRoot) -> Sealer {
    let text = std::fs::read_to_string(key_file(root)).unwrap();
    let key: Vec<u8> =
        (0..MASTER_KEY_BYTES).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect();
    Sealer::with_keys(&[key.try_into().unwrap()])
}

/// The models that processes of this daemon hold open in shared memory.
fn opened(daemon: &TestDaemon) -> Vec<String> {
    let of_daemon = format!("-{}-", daemon.pid());
    let entries = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("ledge-opened-") && name.contains(&of_daemon)).collect()
}

#[test]
fn sealed_models_of_every_format_serve_and_nothing_of_them_is_plain_on_the_disk() {
    let (root, models) = (sealed_root(), models());
    let sealer = key_of_root(&root);
    install(&root, &models, &sealer);
    let canaries = canaries(&models);
    assert!(canaries.len() >= models.len());
    assert_eq!(plain(&root, &canaries), [""; 0].map(PathBuf::from));
    let daemon = root.set("runtimes.measure=true").start();
    for (model, _) in &models {
        ready(&mut daemon.client(), model);
    }
    daemon.wait_for_event_since_start("stores.encrypted");
    assert_eq!(opened(&daemon), [""; 0], "what was opened to be loaded is still in memory as files");
    assert_eq!(plain(&daemon.root, &canaries), [""; 0].map(PathBuf::from), "the cache of compiled models, perhaps");
    let root = stop(daemon);
    let (code, said) = encryption(&root, &["status"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(count_of(&said, "audit keys"), Some(2), "{said}");
    assert!(count_of(&said, "models of updates").is_some(), "{said}");

    // Without a key they are refused in words, nothing is thrown away, and with it all is as before.
    let root = root.set("encryption.master_key_file=\"\"");
    let daemon = root.start();
    let index = daemon.client().post_json("/v2/repository/index", &json!({})).json();
    let refused = index
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["reason"].as_str().is_some_and(|reason| reason.contains("encryption.master_key_file")));
    assert_eq!(refused.count(), models.len(), "{index}");
    let root = stop(daemon);
    let daemon = root.set(SETTING).start();
    for (model, _) in &models {
        ready(&mut daemon.client(), model);
    }
}

#[test]
fn what_was_plain_is_sealed_by_the_first_start_with_a_key() {
    let models = models();
    let root = TestRoot::new();
    install(&root, &models, &Sealer::none());
    let canaries = canaries(&models);
    let daemon = root.set("runtimes.measure=true").start();
    let root = stop(daemon);
    let key = verifier_key(&root);
    let seed = std::fs::read(root.folder.path().join("audit/key")).unwrap();
    let canaries = [canaries, vec![seed.trim_ascii().to_vec()]].concat();
    assert!(plain(&root, &canaries).len() > models.len());
    let (code, said) = encryption(&root, &["make-key", &key_file(&root).display().to_string()]);
    assert_eq!(code, Some(0), "{said}");
    let root = root.set(SETTING);
    let (code, said) = encryption(&root, &["status"]);
    assert_eq!((code, count_of(&said, "audit keys")), (Some(1), None), "{said}");
    let daemon = root.set("runtimes.keep_alive_s=1").start();
    daemon.wait_for_event_since_start("stores.encrypted");
    assert_eq!(plain(&daemon.root, &canaries), [""; 0].map(PathBuf::from));
    let mut given_up = daemon.wait_for_event_since_start("instance.unloaded")["instances"].as_u64().unwrap();
    while given_up < models.len() as u64 {
        given_up += daemon.wait_for_event("instance.unloaded")["instances"].as_u64().unwrap();
    }
    for (model, _) in &models {
        ready(&mut daemon.client(), model);
        // From the file that is encrypted now.
        infer_zeros(&mut daemon.client(), model);
    }
    let root = stop(daemon);
    assert_eq!(verifier_key(&root), key);
    assert_eq!(encryption(&root, &["status"]).0, Some(0));
    is_whole(&root);
    let resealed = |event: &AuditEvent| matches!(event, AuditEvent::Resealed { .. });
    assert_eq!(count(&records(&root, 1), resealed), 2);
    // Another key is no key.
    let master = std::fs::read(key_file(&root)).unwrap();
    let (code, said) = encryption(&root, &["make-key", &key_file(&root).display().to_string()]);
    assert_eq!((code, std::fs::read(key_file(&root)).unwrap()), (Some(1), master), "{said}");
    std::fs::remove_file(key_file(&root)).unwrap();
    encryption(&root, &["make-key", &key_file(&root).display().to_string()]);
    let sealed = std::fs::read(root.folder.path().join("audit/key")).unwrap();
    let daemon = root.start();
    let told = status(&mut daemon.client(), |status| status["error"].is_string());
    assert!(told["error"].as_str().unwrap().contains("which this box does not have"), "{told}");
    let root = stop(daemon);
    assert_eq!(std::fs::read(root.folder.path().join("audit/key")).unwrap(), sealed, "a new key was made");
    let (code, said) = encryption(&root, &["status"]);
    assert!(code == Some(1) && said.contains("encryption.old_key_files"), "{said}");
}

#[test]
fn a_rotation_under_load_loses_no_request_and_the_old_key_can_go() {
    let root = sealed_root().models(&["add_sub"]);
    let models: Vec<_> = models().into_iter().filter(|(name, _)| *name != "external_data").collect();
    install(&root, &models, &key_of_root(&root));
    let daemon = root.start();
    daemon.wait_for_event_since_start("stores.encrypted");
    let (stop_asking, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..2)
        .map(|_| {
            let (mut client, stop, answered) = (daemon.client(), stop_asking.clone(), answered.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    crate::audit::infer(&mut client);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut retired = Vec::new();
    for _ in 0..3 {
        let before = answered.load(Ordering::Relaxed);
        let (code, said) = encryption(&daemon.root, &["rotate"]);
        assert_eq!(code, Some(0), "{said}");
        let (code, said) = encryption(&daemon.root, &["retire"]);
        assert_eq!(code, Some(1), "{said}");
        daemon.signal("HUP");
        let line = daemon.wait_for_event("stores.encrypted");
        let (code, said) = encryption(&daemon.root, &["status"]);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains(line["key"].as_str().unwrap()), "{said}");
        let text = std::fs::read_to_string(key_file(&daemon.root)).unwrap();
        assert_eq!(text.lines().count(), 2);
        retired.push(text.lines().nth(1).unwrap().to_owned());
        assert_eq!(encryption(&daemon.root, &["retire"]).0, Some(0));
        assert!(answered.load(Ordering::Relaxed) > before, "nobody was answered meanwhile");
    }
    stop_asking.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.join().unwrap();
    }
    // It was killed, and never ran with the last key before.
    let daemon = daemon.kill().start();
    for (model, _) in &models {
        ready(&mut daemon.client(), model);
    }
    let root = stop(daemon);
    let changed = |event: &AuditEvent| matches!(event, AuditEvent::MasterKeyChanged { .. });
    assert_eq!(count(&records(&root, 1), changed), 3);
    is_whole(&root);
    let text = std::fs::read_to_string(key_file(&root)).unwrap();
    assert!(text.lines().count() == 1 && retired.iter().all(|old| !text.contains(old)));
}

#[test]
fn a_key_that_came_with_a_restart_is_audited_and_a_rotation_follows_a_link() {
    let root = sealed_root();
    let (link, vault) = (key_file(&root), root.folder.path().join("vault"));
    std::fs::create_dir(&vault).unwrap();
    let key = vault.join("key");
    std::fs::copy(&link, &key).unwrap();
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&key, &link).unwrap();
    let daemon = root.start();
    daemon.wait_for_event_since_start("stores.encrypted");
    let root = stop(daemon);
    // At once: none may take the place of another.
    let rotating: Vec<_> = (0..3).map(|_| root.command(&["encryption", "rotate"]).spawn().unwrap()).collect();
    for mut rotation in rotating {
        assert!(rotation.wait().unwrap().success());
    }
    assert!(link.symlink_metadata().unwrap().is_symlink(), "the key is beside the link now");
    assert_eq!(std::fs::read_to_string(&key).unwrap().lines().count(), 4);
    let daemon = root.start();
    daemon.wait_for_event_since_start("stores.encrypted");
    let root = stop(daemon);
    let changed = |event: &AuditEvent| matches!(event, AuditEvent::MasterKeyChanged { .. });
    assert_eq!(count(&records(&root, 1), changed), 1);
    assert_eq!(encryption(&root, &["retire"]).0, Some(0));
    assert_eq!(std::fs::read_to_string(&key).unwrap().lines().count(), 1);
}

#[test]
fn a_master_key_that_is_missing_or_none_ends_the_start_with_78_and_says_what_to_do() {
    for (content, words) in [(None, "cannot be read"), (Some("short"), "ledge encryption make-key")] {
        let root = TestRoot::new().set(SETTING);
        if let Some(content) = content {
            write(&key_file(&root), content.as_bytes());
        }
        for verb in [&["serve"][..], &["encryption", "status"]] {
            let output = root.command(verb).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(78), "{said}");
            assert!(said.contains(words) && said.contains("master.key"), "{said}");
            // The readable part is reported all the same.
            let told = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(verb == ["serve"], !told.lines().any(|line| line == "audit keys: none"), "{told}");
        }
        assert!(!root.folder.path().join("audit/key").exists(), "a key was made in plain");
    }
    let root = TestRoot::new().set("encryption.old_key_files=[\"master.key\"]");
    assert_eq!(root.command(&["serve"]).output().unwrap().status.code(), Some(78));
}

#[test]
fn a_key_of_another_box_opens_nothing_here() {
    let roots = [sealed_root(), sealed_root()];
    let roots = roots.map(|root| stop(root.start()));
    let file = |root: &TestRoot| root.folder.path().join("audit/key");
    let foreign = std::fs::read(file(&roots[0])).unwrap();
    write(&file(&roots[1]), &foreign);
    let [_, root] = roots;
    let daemon = root.start();
    let told = status(&mut daemon.client(), |status: &Value| status["error"].is_string());
    assert!(told["error"].as_str().unwrap().contains("audit/key"), "{told}");
    let root = stop(daemon);
    assert_eq!(std::fs::read(file(&root)).unwrap(), foreign);
}

/// A model of this many MB that answers as `release_good` does: the rest is documentation, which a runtime reads and
/// discards.
fn large(megabytes: usize) -> Vec<(String, Vec<u8>)> {
    let mut files = flat("release_good");
    let (_, model) = files.iter_mut().find(|(name, _)| name == "model.onnx").unwrap();
    // The field `doc_string` of an ONNX model, and its length in seven bits each.
    model.push(6 << 3 | 2);
    let mut length = megabytes << 20;
    while length > 127 {
        model.push(length.to_le_bytes()[0] | 128);
        length >>= 7;
    }
    model.push(length.to_le_bytes()[0]);
    model.extend((0..megabytes << 20).map(|at| b'a' + at.wrapping_mul(2_654_435_761).to_le_bytes()[2] % 26));
    files
}

#[test]
#[ignore = "figures: --run-ignored all --no-capture"]
fn what_sealing_costs() {
    let sealer = Sealer::with_keys(&[[7; MASTER_KEY_BYTES]]);
    let files = [("5 MB", flat("efficientnet_lite0")), ("100 MB", large(100))];
    for (what, files) in files {
        for sealed in [false, true] {
            let root = if sealed { sealed_root() } else { TestRoot::new() };
            let own = if sealed { key_of_root(&root) } else { Sealer::none() };
            let begun = std::time::Instant::now();
            install(&root, &[("m", files.clone())], &own);
            let fetched = begun.elapsed();
            let mut root = root;
            let mut starts = Vec::new();
            for _ in 0..5 {
                let begun = std::time::Instant::now();
                let daemon = root.start();
                starts.push(begun.elapsed().as_millis());
                let load = daemon.wait_for_event_since_start("model.loaded")["load_ms"].clone();
                println!("{what} sealed={sealed}: ready after {} ms, loaded in {load} ms", starts.last().unwrap());
                root = stop(daemon);
            }
            println!("{what} sealed={sealed}: fetched in {} ms", fetched.as_millis());
        }
    }
    let plain = vec![1; 100 << 20];
    let header = ledge::identity::sealing::EncryptedFileHeader { name: [7; 32], length: plain.len() as u64 };
    let (mut bytes, begun) = (Vec::with_capacity(101 << 20), std::time::Instant::now());
    let purpose = ledge::identity::sealing::EncryptionPurpose::Model;
    ledge::identity::sealing::seal_stream(&sealer, purpose, &header, &mut &*plain, &mut bytes).unwrap();
    println!("sealed at {:.0} MB/s", 104.9 / begun.elapsed().as_secs_f64());
    let begun = std::time::Instant::now();
    let mut rest = &bytes[ledge::identity::sealing::EncryptedFileHeader::BYTES..];
    ledge::identity::sealing::open_stream(&sealer, purpose, &header, &mut rest, |_| Ok(())).unwrap();
    println!("opened at {:.0} MB/s", 104.9 / begun.elapsed().as_secs_f64());
}
