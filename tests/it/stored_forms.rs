//! Opens the stores that earlier versions left on the disk.
//!
//! A folder of `tests/data/stores/` is the root of a box as a version left it: the declarations of its owner, and every
//! store that the daemon keeps. Its name has the form of each store, as the file `formats` has it. No file in it is
//! ever changed.
//!
//! When a form changes on purpose, keep the folders that are there, since boxes upgrade from them. Raise the
//! `FORMAT_VERSION`, run `cargo nextest run --test it --run-ignored only stored_forms::leaves_a_box`, add the new
//! folder that it writes to `BOXES`, and commit it.

use std::fs::{File, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use ledge::daemon::formats;
use ledge::egress::EgressCounts;
use ledge::features::window::{fuzz_window, window_seeds};
use ledge::identity::sealing::{MASTER_KEY_BYTES, Sealer};
use ledge::repository::profile::RunProfile;
use serde_json::{Value, json};

use crate::audit::{is_whole, records, signed, stop};
use crate::client::Client;
use crate::daemon::{TestRoot, write};
use crate::encryption::{SETTING, flat, install};

/// The boxes that this version must open, from the oldest form on.
const BOXES: &[&str] = &[
    "audit-2,features-3,keys-1,updates-2",
    "audit-2,features-4,keys-1,updates-2",
    "audit-2,features-4,jobs-1,keys-1,updates-2",
];

/// As their owners declared them.
const VIEWS: &str = r#"
[[entity]]
name = "machine"
join_key = "machine_id"
value_type = "String"

[[feature_view]]
name = "sensors"
entities = ["machine"]
source = { name = "sensors_push" }
lateness = "30d"
schema = [
  { name = "temperature", dtype = "Float64", optional = true },
  { name = "labels", dtype = "Array(String)", optional = true },
  { name = "cycles", dtype = "Int64", optional = true },
]
aggregation = [
  { column = "cycles", function = "sum", time_window = "30d", slide_interval = "1d" },
  { column = "temperature", function = "std", time_window = "30d", slide_interval = "1d" },
]
"#;

/// The features that are looked at.
const FEATURES: [&str; 5] = [
    "sensors:temperature",
    "sensors:labels",
    "sensors:cycles",
    "sensors:sum_cycles_2592000s",
    "sensors:std_temperature_2592000s",
];

/// A folder for each way to keep a box.
const WAYS: [(&str, bool); 2] = [("plain", false), ("sealed", true)];

fn stores() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/stores")
}

fn root(is_sealed: bool) -> TestRoot {
    if is_sealed { TestRoot::new().set(SETTING) } else { TestRoot::new() }
}

fn read(client: &mut Client, machine: &str) -> Vec<(Value, Value)> {
    let request = json!({"features": FEATURES, "entities": {"machine_id": [machine]}});
    let answer = client.post_json("/get-online-features", &request);
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    let found = answer["results"].as_array().unwrap()[1..].iter();
    found.map(|vector| (vector["values"][0].clone(), vector["statuses"][0].clone())).collect()
}

#[test]
fn what_earlier_versions_left_is_read_by_this_one() {
    for name in BOXES {
        for (way, is_sealed) in WAYS {
            opens(&stores().join(name).join(way), is_sealed, true);
        }
    }
}

#[test]
fn journal_and_snapshot_of_earlier_versions_are_enough_for_the_features() {
    for name in BOXES {
        for (way, is_sealed) in WAYS {
            opens(&stores().join(name).join(way), is_sealed, false);
        }
    }
}

/// Starts this version on a copy of a box, and looks at each thing in it.
fn opens(left: &Path, is_sealed: bool, with_index: bool) {
    let root = root(is_sealed);
    put_back(left, root.folder.path());
    let state = root.folder.path().to_owned();
    if !with_index {
        for entry in std::fs::read_dir(state.join("features")).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_str().unwrap().starts_with("index-") {
                std::fs::remove_dir_all(path).unwrap();
            }
        }
    }
    let before = records(&root, 1);
    assert!(before.len() > 5 && signed(&root, 1).is_some(), "{} records", before.len());
    let counts = EgressCounts::read(&state).unwrap().unwrap();
    assert_eq!((counts.destinations[0].destination.as_str(), counts.after_damage), ("broker.example:8883", false));
    for profile in std::fs::read_dir(state.join("profiles")).unwrap() {
        let text = std::fs::read(profile.unwrap().path()).unwrap();
        assert_eq!(serde_json::from_slice::<RunProfile>(&text).unwrap().goal, "latency");
    }
    let verifier_key = std::fs::read_to_string(state.join("verifier_key")).unwrap();
    let api_key = std::fs::read_to_string(state.join("api_key")).unwrap();

    let daemon = root.start();
    // Records of loads that ended the daemon mean nothing any more.
    assert!(!state.join("load_attempts.jsonl").exists());
    let client = &mut daemon.unix_client();
    let values = |pairs: Vec<(Value, Value)>| pairs.into_iter().map(|(value, _)| value).collect::<Vec<_>>();
    let found = values(read(client, "m1"));
    assert_eq!(found[..3], [json!(3.5), json!(["a", "b"]), json!(5)]);
    // Pushed behind the last stop: only the journal has it.
    assert_eq!(values(read(client, "m2"))[..3], [json!(-1.0), json!(null), json!(7)]);
    for (value, status) in read(client, "gone") {
        assert_eq!((value, status), (json!(null), json!("NOT_FOUND")), "it was erased");
    }

    // The aggregates continue, although the values pushed then are outside of their window by now.
    push(client, &json!({"machine_id": ["m1"], "temperature": [2.5], "labels": [["c"]], "cycles": [100]}));
    let found = values(read(client, "m1"));
    assert_eq!(found, [json!(2.5), json!(["c"]), json!(100), json!(100.0), json!(null)]);

    let status = |key: &str| daemon.client().request("GET", "/v2/models/kept", &[("x-api-key", key)], b"").status;
    assert_eq!((status(&api_key), status("ledge_0123abcd_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8")), (200, 401));
    let model = client.get("/v2/models/kept").json();
    assert_eq!(model["versions"], json!(["2"]), "{model}");

    let output = daemon.root.command(&["audit", "key"]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), verifier_key);
    let root = stop(daemon);
    is_whole(&root);
    let after = records(&root, 1);
    assert!(after.len() > before.len() && after[..before.len()] == before[..], "the log goes on where it ended");
    let log = std::fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let damaged: Vec<_> = log.filter(|name| name.contains("damaged") || name.contains("aside")).collect();
    assert_eq!(damaged, [""; 0]);
}

#[test]
fn aggregates_of_earlier_versions_are_read_and_the_newest_are_written_as_they_are() {
    for name in BOXES {
        let found: Vec<_> =
            (0..window_seeds().len()).map(|number| std::fs::read(window(name, number)).unwrap()).collect();
        assert!(found.iter().all(|state| fuzz_window(state)), "{name}");
        if Some(name) == BOXES.last() {
            assert!(found == window_seeds(), "{name}: other bytes for the same events");
        }
    }
}

/// The aggregates of a few events: see [`window_seeds`].
fn window(name: &str, number: usize) -> PathBuf {
    stores().join(name).join(format!("windows/{number}"))
}

#[test]
fn there_is_a_box_of_each_form() {
    let now = formats::STORE_FORMATS.map(|(store, form)| format!("{store}-{form}")).join(",");
    assert_eq!(BOXES.last(), Some(&now.as_str()), "a form has changed: the head of this file says what to do");
    for name in BOXES {
        for (way, _) in WAYS {
            assert!(stores().join(name).join(way).is_dir(), "{name}/{way}");
        }
    }
}

/// Writes the box that later versions have to open, if no box has these forms yet.
#[test]
#[ignore = "it writes tests/data/stores, once for each form"]
fn leaves_a_box() {
    let name = formats::STORE_FORMATS.map(|(store, form)| format!("{store}-{form}")).join(",");
    for (number, state) in window_seeds().iter().enumerate() {
        write(&window(&name, number), state);
    }
    for (way, is_sealed) in WAYS {
        let to = stores().join(&name).join(way);
        assert!(!to.exists(), "{} is there, and is never changed", to.display());
        let root = root(is_sealed).views(VIEWS);
        let state = root.folder.path().to_owned();
        let sealer = if is_sealed {
            write(&state.join("master.key"), "ab".repeat(MASTER_KEY_BYTES).as_bytes());
            Sealer::with_keys(&[[0xab; MASTER_KEY_BYTES]])
        } else {
            Sealer::none()
        };
        install(&root, &[("kept", flat("add_sub"))], &sealer);

        let allowed = "egress.allow=[{ host = 'broker.example:8883', region = 'eu' }]";
        // A damaged history costs figures only, and its files are large.
        let daemon = root.set("runtimes.measure=true").set("history.enabled=false").set(allowed).start();
        let client = &mut daemon.unix_client();
        push(
            client,
            &json!({"machine_id": ["m1", "m1", "gone"], "temperature": [1.5, 3.5, 9.0],
            "labels": [["x"], ["a", "b"], null], "cycles": [7, 5, 1],
            "event_timestamp": ["2020-01-01T00:00:00Z", "2020-01-01T00:00:01Z", "2020-01-01T00:00:00Z"]}),
        );
        let erased = client.post_json("/features/erase", &json!({"entity": {"machine_id": "gone"}}));
        assert_eq!(erased.status, 200, "{erased:?}");
        let made = daemon
            .root
            .command(&["keys", "create", "till", "--role", "viewer", "--expires", "never", "--json"])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let made: Value = serde_json::from_slice(&made.stdout).unwrap();
        write(&state.join("api_key"), made["key"].as_str().unwrap().as_bytes());
        let key = daemon.root.command(&["audit", "key"]).output().unwrap();
        write(&state.join("verifier_key"), &key.stdout);
        assert_eq!(client.post_json("/features/snapshot", &json!({})).status, 200);
        let daemon = stop(daemon).start();
        let client = &mut daemon.unix_client();
        push(
            client,
            &json!({"machine_id": ["m2"], "temperature": [-1.0], "labels": [null], "cycles": [7],
            "event_timestamp": ["2020-01-01T00:00:02Z"]}),
        );
        let root = daemon.kill();

        leave(root.folder.path(), &to);
    }
}

/// Copies the stores of a box, without other files. The index of the features is mostly zeros.
fn leave(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        let name = name.to_str().unwrap();
        if path.is_symlink() || matches!(name, "cache" | "ledge.sock" | "reserve" | "lock" | ".lock") {
            continue;
        }
        if path.is_dir() {
            leave(&path, &to.join(name));
        } else if name == "db" {
            let mut packed = GzEncoder::new(Vec::new(), Compression::best());
            packed.write_all(&std::fs::read(&path).unwrap()).unwrap();
            write(&to.join("db.gz"), &packed.finish().unwrap());
        } else {
            write(&to.join(name), &std::fs::read(&path).unwrap());
        }
    }
}

/// Restores a box as it was, readable only for its user.
fn put_back(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        let mut target = to.join(&name);
        if path.is_dir() {
            put_back(&path, &target);
            continue;
        }
        let mut content = std::fs::read(&path).unwrap();
        if name == "db.gz" {
            target = to.join("db");
            content.clear();
            GzDecoder::new(File::open(&path).unwrap()).read_to_end(&mut content).unwrap();
        }
        write(&target, &content);
        std::fs::set_permissions(&target, Permissions::from_mode(0o600)).unwrap();
    }
}

fn push(client: &mut Client, rows: &Value) {
    let answer = client.post_json("/push", &json!({"push_source_name": "sensors_push", "df": rows, "to": "online"}));
    assert_eq!(answer.status, 200, "{answer:?}");
}
