//! The daemon's notifications to systemd, read from a socket of this test. `tests/peers/systemd.rs` has systemd itself.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use ledge::updates::artifact::Artifact;
use ledge::updates::persisted::PersistedStates;
use ledge::updates::sha256::sha256_hex;
use ledge::updates::state::{InstalledRelease, SubjectState};
use ledge::updates::store::UpdateStore;
use tempfile::TempDir;

use crate::daemon::{TestDaemon, TestRoot, write};

/// A test that waits longer than this for a message has found a hang.
const LIMIT: Duration = Duration::from_mins(1);

/// The other end of `NOTIFY_SOCKET`.
struct Manager {
    socket: UnixDatagram,
    _folder: TempDir,
}

impl Manager {
    /// Starts a daemon that has to give a sign of life each second.
    fn start(root: TestRoot) -> (Self, TestDaemon) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let root = root.variable("NOTIFY_SOCKET", path).variable("WATCHDOG_USEC", "1000000");
        (Self { socket, _folder: folder }, root.start_unready())
    }

    /// The next message: its assignments.
    fn next(&self) -> Vec<String> {
        let mut buffer = [0; 4096];
        let length = self.socket.recv(&mut buffer).expect("systemd was told nothing for a minute");
        String::from_utf8_lossy(&buffer[..length]).lines().map(str::to_owned).collect()
    }

    /// Waits for an assignment, and gives every message up to its own.
    #[track_caller]
    fn until(&self, wanted: &str) -> Vec<Vec<String>> {
        let (deadline, mut all) = (Instant::now() + LIMIT, Vec::new());
        loop {
            let message = self.next();
            let is_last = message.iter().any(|assignment| assignment == wanted);
            all.push(message);
            if is_last {
                return all;
            }
            assert!(Instant::now() < deadline, "no {wanted} in {all:?}");
        }
    }
}

fn has(messages: &[Vec<String>], start: &str) -> bool {
    messages.iter().flatten().any(|assignment| assignment.starts_with(start))
}

#[test]
fn systemd_hears_of_the_start_the_signs_of_life_a_reload_and_the_end() {
    let (manager, mut daemon) = Manager::start(TestRoot::new().models(&["add_sub", "broken_empty"]));
    let start = manager.until("READY=1");
    assert!(has(&start, "STATUS=starting: "), "{start:?}");
    manager.until("STATUS=1 model ready; degraded: not loaded: broken_empty");
    // A sign of life after another, without an end of the start to wait for.
    for _ in 0..3 {
        let message = manager.until("WATCHDOG=1").pop().unwrap();
        assert!(!message.iter().any(|assignment| assignment.starts_with("EXTEND_")), "{message:?}");
    }

    std::fs::remove_dir_all(daemon.root.model("broken_empty")).unwrap();
    daemon.signal("HUP");
    let message = manager.until("RELOADING=1").pop().unwrap();
    assert!(message.iter().any(|assignment| assignment.starts_with("MONOTONIC_USEC=")), "{message:?}");
    manager.until("READY=1");
    manager.until("STATUS=1 model ready");

    daemon.signal("TERM");
    let message = manager.until("STOPPING=1").pop().unwrap();
    // Ten seconds for calls in flight, and what follows them.
    assert!(message.contains(&"EXTEND_TIMEOUT_USEC=32000000".to_owned()), "{message:?}");
    assert!(daemon.wait().success());
}

#[test]
fn systemd_hears_that_the_start_goes_on_while_large_releases_are_read() {
    let root = TestRoot::new();
    let folder = root.folder.path().join("updates");
    let store = UpdateStore::open(&folder).unwrap();
    let files = [("large", vec![0; 40 << 20]), ("small", b"x".to_vec())].map(|(name, content)| {
        let sha256 = sha256_hex(&content);
        write(&folder.join("blobs").join(&sha256), &content);
        (name.parse().unwrap(), sha256)
    });
    let subject: Artifact = "models/minilm".parse().unwrap();
    let release = InstalledRelease { version: "1".parse().unwrap(), digest: "0".repeat(64) };
    store.assemble(&subject, &release, &files).unwrap();
    drop(store);
    let mut state = PersistedStates::empty(&folder);
    state.subjects.insert(subject, SubjectState { committed: Some(release), ..SubjectState::default() });
    state.write().unwrap();

    let (manager, _daemon) = Manager::start(root);
    // Twice within the large file, and at the end of each; before anything that could give a sign of life.
    for _ in 0..4 {
        assert_eq!(manager.next(), ["EXTEND_TIMEOUT_USEC=120000000"]);
    }
    manager.until("READY=1");
}

#[test]
fn a_start_that_fails_is_no_start() {
    let root = TestRoot::new();
    std::fs::remove_dir(root.folder.path().join("models")).unwrap();
    let (manager, mut daemon) = Manager::start(root);
    let told = manager.until("STOPPING=1");
    assert!(!has(&told, "READY=1"), "{told:?}");
    assert!(!daemon.wait().success());
    assert!(!daemon.log().contains("\"message\":\"ready\""), "{}", daemon.log());
}

#[test]
fn each_call_leaves_a_line_with_its_model_its_id_and_its_caller() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    let data = serde_json::json!([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]]);
    let input = |name: &str| serde_json::json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": data});
    let request = serde_json::json!({"id": "till-7", "inputs": [input("INPUT0"), input("INPUT1")]});
    let answer = daemon.client().post("/v2/models/add_sub/infer", &[], request.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{answer:?}");
    let line = daemon.wait_for_event("call.answered");
    assert_eq!(
        (line["model"].as_str(), line["request_id"].as_str(), line["principal"].as_str(), line["status"].as_u64()),
        (Some("add_sub"), Some("till-7"), Some("ip:127.0.0.1"), Some(200)),
        "{line}"
    );
    let answer = daemon.client().post("/v2/models/add_sub/infer", &[], br#"{"id": "till-8", "inputs": []}"#);
    assert_eq!(answer.status, 400, "{answer:?}");
    let line = daemon.wait_for_event("call.failed");
    assert_eq!((line["level"].as_str(), line["status"].as_u64()), (Some("DEBUG"), Some(400)), "{line}");
}
