//! Attacks on a running box: each is refused, reported and audited, and the version from before answers. The names are
//! those of the TUF specification, section 1.5.2. `attacks.rs` has more attacks, on only the TUF client.

use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::boxes::wait_until;
use crate::daemon::{TestDaemon, TestRoot, copy, model_folder, write};
use crate::hostile::{endless, file, server};
use crate::platform::{Platform, SHAPES, look, look_in_vain, shapes, status, subject, until};
use crate::tools::run;

/// An attacker's answer to a path; `None` leaves it to the honest server.
type Answer = dyn Fn(&str, &mut TcpStream) -> Option<std::io::Result<()>> + Send + Sync;

/// A box with version 1 of a model, and an attacker between it and the platform.
struct Attacked {
    platform: Platform,
    attack: Arc<Mutex<Option<Arc<Answer>>>>,
    daemon: TestDaemon,
}

impl Attacked {
    fn new() -> Self {
        let platform = Platform::new();
        platform.add_model(SHAPES, 1, &model_folder("release_good"), &[]);
        platform.start("r-1", "models/shapes/1", &[]);
        let attack: Arc<Mutex<Option<Arc<Answer>>>> = Arc::default();
        let (folder, answers) = (platform.repository(), attack.clone());
        let address = server(move |path, stream| {
            let answer = answers.lock().unwrap().clone();
            answer.and_then(|answer| answer(path, stream)).unwrap_or_else(|| file(&folder, path, stream))
        });
        let daemon = platform.enrol(TestRoot::new(), &format!("http://{address}")).start();
        daemon.wait_for_event("update.committed");
        Self { platform, attack, daemon }
    }

    /// From now on the attacker answers; requests for which its answer is `None` go to the platform.
    fn answers(&self, answer: impl Fn(&str, &mut TcpStream) -> Option<std::io::Result<()>> + Send + Sync + 'static) {
        *self.attack.lock().unwrap() = Some(Arc::new(answer));
    }

    fn is_over(&self) {
        *self.attack.lock().unwrap() = None;
    }

    /// The platform rolls out the second version.
    fn publish_second(&self) {
        self.platform.add_model(SHAPES, 2, &model_folder("release_better"), &[]);
        self.platform.start("r-2", "models/shapes/2", &[]);
    }

    #[track_caller]
    fn serves(&self, version: &str) {
        let answer = self.daemon.client().post_json("/v2/models/shapes/infer", &shapes());
        assert_eq!((answer.status, &answer.json()["model_version"]), (200, &json!(version)));
    }

    /// The audit log has as many refusals of this cause, and no more.
    #[track_caller]
    fn is_audited(&self, cause: &str, number: usize) {
        let record = format!(r#"\"action\":\"metadata_refused\",\"cause\":\"{cause}\""#);
        let count = || self.daemon.log().lines().filter(|logged| logged.contains(&record)).count();
        wait_until(&record, || count() >= number);
        assert_eq!(count(), number, "{record}");
    }

    /// The rollout ends by its cause, and the status says so.
    #[track_caller]
    fn is_rolled_back(&self, rollout: &str, cause: &str) -> String {
        let line = self.daemon.wait_for_event("update.rolled_back");
        assert_eq!((&line["rollout"], &line["cause"]), (&json!(rollout), &json!(cause)), "{line}");
        let told = subject(&self.daemon, "models/shapes");
        let last = &told["last"];
        assert_eq!((&told["version"], &last["rollout"], &last["cause"]), (&json!(1), &json!(rollout), &json!(cause)));
        last["detail"].as_str().unwrap().to_owned()
    }

    /// The file is not taken, and nothing is refused for it: the server may be put right.
    #[track_caller]
    fn waits_for_a_right_file(&self) {
        self.daemon.wait_for_event("update.paused");
        let told = until(&self.daemon, |told| told["trial"]["fault"].is_object());
        let reason = told["trial"]["fault"]["reason"].as_str().unwrap();
        assert!(reason.contains("the file on the server is not the signed one"), "{told}");
        assert_eq!((&told["version"], &told["stage"]), (&json!(1), &json!("downloading")), "{told}");
    }

    /// The parts of the second version's model file that the box has.
    fn kept_of_second(&self) -> Vec<PathBuf> {
        let sha256 = self.second().file_name().unwrap().to_str().unwrap().split('.').next().unwrap().to_owned();
        let here = self.daemon.root.folder.path().join("updates/blobs");
        let files = std::fs::read_dir(here).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.to_str().unwrap().contains(&sha256)).collect()
    }

    /// The model file of the second version in the repository.
    fn second(&self) -> PathBuf {
        let files = std::fs::read_dir(self.platform.repository().join("targets/models/shapes/2")).unwrap();
        files.map(|entry| entry.unwrap().path()).find(|path| path.to_str().unwrap().ends_with(".model.onnx")).unwrap()
    }
}

fn is_second(path: &str) -> bool {
    path.starts_with("/targets/models/shapes/2/") && path.ends_with(".model.onnx")
}

#[test]
fn stolen_fleet_key_naming_an_unauthorised_model() {
    let attacked = Attacked::new();
    // The thief of a key above `models` gets no further.
    for (number, role) in (1..).zip(["fleet", "targets"]) {
        let evil = format!("models/shapes/{}", 7 + number);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/clients/stolen_fleet_key.py");
        let mut theft = attacked.platform.python();
        theft.arg("-B").arg(script).arg(attacked.platform.repository()).arg(attacked.platform.keys());
        run(theft.args([role, "models/shapes/1", &evil]));
        look(&attacked.daemon);
        let detail = attacked.is_rolled_back(&format!("r-{role}"), "signature");
        assert!(detail.contains(&format!("is listed by the role \"{role}\"")), "{detail}");
        attacked.serves("1");
        attacked.is_audited("unauthorised", number);
        assert!(!attacked.daemon.root.folder.path().join("updates/releases").join(evil).exists());
    }
}

#[test]
fn endless_data_attack_on_a_target() {
    let attacked = Attacked::new();
    attacked.answers(|path, stream| is_second(path).then(|| endless(stream)));
    attacked.publish_second();
    look(&attacked.daemon);
    attacked.waits_for_a_right_file();
    attacked.serves("1");
    assert_eq!(attacked.kept_of_second(), [] as [PathBuf; 0]);
    // Of what never ends no more than was signed was taken, and a piece of what lay in the buffers.
    let signed = std::fs::metadata(attacked.second()).unwrap().len();
    let fetched = status(&attacked.daemon)["fetched_bytes"].as_u64().unwrap();
    assert!(fetched < 2 * (signed + (1 << 20)), "{fetched} of {signed}");
    attacked.is_over();
    look(&attacked.daemon);
    attacked.daemon.wait_for_event("update.committed");
}

#[test]
fn slow_retrieval_attack_on_a_target() {
    let attacked = Attacked::new();
    attacked.publish_second();
    let signed = std::fs::read(attacked.second()).unwrap();
    // The right bytes, never silent for long, but not within the minute that a server is given.
    let pause = Duration::from_mins(3) / u32::try_from(signed.len()).unwrap();
    attacked.answers(move |path, stream| {
        let mut drip = || {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", signed.len())?;
            for byte in &signed {
                stream.write_all(&[*byte])?;
                std::thread::sleep(pause);
            }
            Ok(())
        };
        is_second(path).then(&mut drip)
    });
    look(&attacked.daemon);
    let begun = Instant::now();
    // Meanwhile orders are carried out, the platform is asked, and the model answers.
    let mut client = attacked.daemon.client();
    while begun.elapsed() < Duration::from_secs(20) {
        let asked = Instant::now();
        assert_eq!(client.post_json("/updates/models/shapes/unpin", &json!({})).status, 200);
        assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
        look(&attacked.daemon);
        attacked.serves("1");
        assert_eq!(subject(&attacked.daemon, "models/shapes")["stage"], "downloading");
        std::thread::sleep(Duration::from_millis(500));
    }
    let given_up = || !attacked.daemon.events("update.paused").is_empty();
    while !given_up() {
        assert!(begun.elapsed() < Duration::from_secs(100), "the attacker is still listened to");
        std::thread::sleep(Duration::from_millis(100));
    }
    attacked.is_over();
    attacked.daemon.wait_for_event("update.committed");
    attacked.serves("2");
}

#[test]
fn mix_and_match_attack() {
    let attacked = Attacked::new();
    let old = tempfile::tempdir().unwrap();
    copy(&attacked.platform.repository(), old.path());
    attacked.publish_second();
    for (number, role) in (1..).zip(["snapshot", "models"]) {
        let newest = newest(old.path(), role);
        attacked.answers(move |path, stream| {
            let mixed = path.starts_with("/metadata/") && path.ends_with(&format!(".{role}.json"));
            mixed.then(|| send(&newest, stream))
        });
        if role == "snapshot" {
            let error = look_in_vain(&attacked.daemon);
            assert!(error.contains("metadata was refused"), "{error}");
        } else {
            // The manifest is right, and the files that it names cannot be verified.
            look(&attacked.daemon);
            attacked.daemon.wait_for_event("update.paused");
            assert_eq!(subject(&attacked.daemon, "models/shapes")["stage"], "downloading");
        }
        attacked.serves("1");
        attacked.is_audited("mismatch", number);
    }
    attacked.is_over();
    attacked.daemon.wait_for_event("update.committed");
    attacked.serves("2");
}

#[test]
fn rollback_attack_with_an_old_copy_of_the_whole_repository() {
    let attacked = Attacked::new();
    let old = tempfile::tempdir().unwrap();
    copy(&attacked.platform.repository(), old.path());
    attacked.publish_second();
    look(&attacked.daemon);
    attacked.daemon.wait_for_event("update.committed");
    let folder = old.path().to_owned();
    attacked.answers(move |path, stream| Some(file(&folder, path, stream)));
    for _ in 0..3 {
        let error = look_in_vain(&attacked.daemon);
        assert!(error.contains("an old copy was put in place of a newer one"), "{error}");
        attacked.serves("2");
    }
    // Asked again and again, it is one event.
    attacked.is_audited("rollback", 1);
    let Attacked { platform, attack, daemon } = attacked;
    let attacked = Attacked { platform, attack, daemon: daemon.kill().start() };
    look_in_vain(&attacked.daemon);
    attacked.serves("2");
    attacked.is_over();
    look(&attacked.daemon);
    assert_eq!(status(&attacked.daemon)["error"], Value::Null);
}

#[test]
fn flipped_byte_in_a_target() {
    let attacked = Attacked::new();
    attacked.publish_second();
    let (file, mut content) = (attacked.second(), std::fs::read(attacked.second()).unwrap());
    let middle = content.len() / 2;
    content[middle] ^= 1;
    // It may be one file with those of other versions.
    std::fs::remove_file(&file).unwrap();
    write(&file, &content);
    look(&attacked.daemon);
    attacked.waits_for_a_right_file();
    attacked.serves("1");
    assert_eq!(attacked.kept_of_second(), [] as [PathBuf; 0]);
}

#[test]
fn flipped_byte_in_the_trusted_metadata_is_an_alarm_until_it_is_reset() {
    let Attacked { platform, attack, daemon } = Attacked::new();
    let reset = |root: &TestRoot| run(&mut root.command(&["update", "reset-trust"]));
    let flipped = |root: TestRoot| {
        let file = root.folder.path().join("updates/tuf/trusted.json");
        let mut content = std::fs::read(&file).unwrap();
        let middle = content.len() / 2;
        content[middle] ^= 1;
        write(&file, &content);
        root
    };
    let attacked = Attacked { platform, attack, daemon: flipped(daemon.kill()).start() };
    let error = look_in_vain(&attacked.daemon);
    assert!(error.contains("was damaged") && error.contains("ledge update reset-trust"), "{error}");
    wait_until("the damage is recorded", || attacked.daemon.log().contains("metadata_damaged"));
    attacked.serves("1");
    // By the daemon.
    assert!(reset(&attacked.daemon.root).contains("begins with the root file"));
    wait_until("the reset is recorded", || attacked.daemon.log().contains("trust_reset"));
    look(&attacked.daemon);
    assert_eq!(status(&attacked.daemon)["error"], Value::Null);
    attacked.serves("1");
    // Without one.
    let Attacked { platform, attack, daemon } = attacked;
    let root = flipped(daemon.kill());
    reset(&root);
    let attacked = Attacked { platform, attack, daemon: root.start() };
    look(&attacked.daemon);
    assert!(!attacked.daemon.log().contains("metadata_damaged"));
    attacked.publish_second();
    look(&attacked.daemon);
    attacked.daemon.wait_for_event("update.committed");
    attacked.serves("2");
}

/// The newest metadata of a role in a copy of a repository.
fn newest(repository: &Path, role: &str) -> PathBuf {
    let version = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?;
        name.strip_suffix(&format!(".{role}.json"))?.parse::<u64>().ok()
    };
    let files = std::fs::read_dir(repository.join("metadata")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| version(path).is_some()).max_by_key(version).unwrap()
}

fn send(path: &Path, stream: &mut TcpStream) -> std::io::Result<()> {
    file(path.parent().unwrap(), path.file_name().unwrap().to_str().unwrap(), stream)
}
