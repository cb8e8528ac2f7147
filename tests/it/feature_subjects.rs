//! The rights of a person whose data is in the feature store: disclosure, and erasure with a certificate.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::daemon::{TestDaemon, TestRoot, write};
use crate::features::VIEWS;

/// A box with rows of two drivers, and its verifier key.
struct Box1 {
    daemon: TestDaemon,
    key: String,
    folder: tempfile::TempDir,
}

impl Box1 {
    fn start() -> Self {
        let daemon = TestRoot::new().views(VIEWS).start();
        for push in [
            &["push", "driver_stats", "driver_id=7", "conv_rate=0.25", "trips=3"][..],
            &["push", "driver_stats", "driver_id=8", "conv_rate=0.5", "trips=4"],
            &["push", "pairs", "driver_id=7", "line=north", "conv_rate=1"],
        ] {
            done(daemon.root.command(&[&["features"], push].concat()).output().unwrap());
        }
        let key = done(daemon.root.command(&["audit", "key"]).output().unwrap()).trim_end().to_owned();
        Self { daemon, key, folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ledge(&self, arguments: &[&str]) -> Output {
        self.daemon.root.command(arguments).output().unwrap()
    }

    fn erase(&self, entity: &str, name: &str, more: &[&str]) -> PathBuf {
        let path = self.path(name);
        let erase = ["features", "erase", entity, "--certificate", text(&path)];
        done(self.ledge(&[&erase, more].concat()));
        path
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[track_caller]
fn done(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Checks a certificate in a process that has neither the box nor its files.
fn verify(certificate: &Path, key: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ledge"));
    let empty = tempfile::tempdir().unwrap();
    command.arg("--root").arg(empty.path()).args(["audit", "verify-certificate", text(certificate), "--key", key]);
    command.args(more).output().unwrap()
}

#[track_caller]
fn refused(output: &Output, reason: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(5) && error.contains(reason), "{output:?}");
}

#[test]
fn a_disclosure_has_the_rows_of_all_views_the_journal_and_the_records_of_the_log_and_is_recorded() {
    let driver = Box1::start();
    let read = json!({"features": ["driver_stats:trips"], "entities": {"driver_id": [7]}});
    assert_eq!(driver.daemon.client().post_json("/get-online-features", &read).status, 200);

    let disclosed = done(driver.ledge(&["features", "disclose", "driver_id=7", "--json"]));
    let disclosed: Value = serde_json::from_str(&disclosed).unwrap();
    assert_eq!(disclosed["entity"], json!({"driver_id": 7}));
    let views = disclosed["feature_views"].as_array().unwrap();
    let view = |name: &str| views.iter().find(|view| view["name"] == name).unwrap();
    assert_eq!(view("driver_stats")["rows"][0]["features"], json!({"conv_rate": 0.25, "trips": 3}));
    assert_eq!(view("driver_stats")["journal"][0]["features"]["trips"], json!(3));
    assert_eq!(view("pairs")["rows"][0]["join_keys"], json!({"driver_id": 7, "line": "north"}));
    assert!(!disclosed.to_string().contains("0.5"), "no value of another driver: {disclosed}");

    // The disclosure is in the log before its answer, and the next one shows it.
    let again = done(driver.ledge(&["features", "disclose", "driver_id=7", "--json"]));
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(again["audit"]["logs"][0]["actions"]["feature_entity_disclosed"], json!(2), "{again}");
    let readable = done(driver.ledge(&["features", "disclose", "driver_id=7"]));
    for part in ["driver_stats: 1 rows", "conv_rate", "line=\"north\"", "feature_entity_disclosed", "in the journal"] {
        assert!(readable.contains(part), "{part}: {readable}");
    }
}

#[test]
fn a_certificate_of_erasure_is_verified_without_the_box_and_every_change_of_it_is_refused() {
    let driver = Box1::start();
    let certificate = driver.erase("driver_id=7", "7.erasure", &["--name-entity"]);
    assert!(!driver.path("7.erasure.statement").exists());
    let verified = done(verify(&certificate, &driver.key, &["--entity", "driver_id=7"]));
    for part in ["erased: 2 records of 2 feature views", "driver_stats: 1 records", "entity: {\"driver_id\":7}"] {
        assert!(verified.contains(part), "{part}: {verified}");
    }
    let json: Value = serde_json::from_str(&done(verify(&certificate, &driver.key, &["--json"]))).unwrap();
    let record = json["record"]["seq"].as_u64().unwrap();
    let shown = done(driver.ledge(&["audit", "show", "--json", "--seq", &record.to_string()]));
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), json["record"]);
    refused(&verify(&certificate, &driver.key, &["--entity", "driver_id=8"]), "another entity");

    let whole = std::fs::read(&certificate).unwrap();
    let changed = driver.path("changed");
    for at in (0..whole.len()).step_by(whole.len() / 40) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        write(&changed, &flipped);
        refused(&verify(&changed, &driver.key, &[]), "not valid");
    }

    // A valid proof of another record does not fit the statement.
    let other = driver.path("other.tlog-proof");
    done(driver.ledge(&["audit", "prove", &(record - 1).to_string(), "--out", text(&other)]));
    let mut forged: Value = serde_json::from_slice(&whole).unwrap();
    forged["proof"] = std::fs::read_to_string(&other).unwrap().into();
    let order = ["form", "statement", "proof", "verifier_key"];
    let fields: Vec<_> = order.iter().map(|name| format!("  \"{name}\": {}", forged[*name])).collect();
    write(&changed, format!("{{\n{}\n}}\n", fields.join(",\n")).as_bytes());
    refused(&verify(&changed, &driver.key, &[]), "is not that of this erasure");

    // Nor is it valid with the key of another box.
    let other = Box1::start();
    refused(&verify(&certificate, &other.key, &[]), "of another box");
}

#[test]
fn a_certificate_names_the_entity_only_if_asked_and_never_overwrites_a_file() {
    let driver = Box1::start();
    let certificate = driver.erase("driver_id=7", "7.erasure", &[]);
    let content = std::fs::read_to_string(&certificate).unwrap();
    assert!(!content.contains("driver_id"), "{content}");
    let unnamed = done(verify(&certificate, &driver.key, &[]));
    assert!(unnamed.contains("not named in the certificate"), "{unnamed}");
    done(verify(&certificate, &driver.key, &["--entity", "driver_id=7"]));

    let again = driver.ledge(&["features", "erase", "driver_id=8", "--certificate", text(&certificate)]);
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("exists already"), "{again:?}");
    let nowhere = driver.ledge(&["features", "erase", "driver_id=8", "--certificate", "/proc/nowhere/8.erasure"]);
    assert!(!nowhere.status.success(), "{nowhere:?}");
    let kept = done(driver.ledge(&["features", "get", "driver_stats:trips", "--entity", "driver_id=8"]));
    assert!(kept.contains("PRESENT"), "nothing is erased where the certificate cannot be written: {kept}");
}

#[test]
fn a_certificate_is_completed_from_its_statement() {
    let driver = Box1::start();
    let erase = json!({"entity": {"driver_id": 7}, "certificate": "hashed"});
    let answer = driver.daemon.unix_client().post_json("/features/erase", &erase);
    let statement = driver.path("7.erasure.statement");
    write(&statement, answer.json()["statements"][0].as_str().unwrap().as_bytes());
    let certificate = driver.path("7.erasure");
    done(driver.ledge(&["features", "certificate", text(&statement), text(&certificate)]));
    done(verify(&certificate, &driver.key, &["--entity", "driver_id=7"]));
    assert!(!statement.exists());
}
