use std::time::Duration;

use ledge_audit::status::{AuditStatus, AuditSyncStatus, LocalLogFigures};
use ledge_base::durable;
use ledge_base::telemetry::machine::CoreUsage;
use ledge_base::telemetry::system::DiskSpace;
use ledge_models::repository::UnavailableReason;
use serde_json::{Value, json};

use super::*;
use crate::artifact::Artifact;
use crate::status::WaitingRollout;
use crate::status_example;
use crate::upgrade::package::{InstalledPackage, PackageFormat};

fn row(model: &str, version: Option<u64>, state: VersionState) -> ModelIndexEntry {
    let version = version.map(|version| ModelVersion::try_from(version).unwrap());
    ModelIndexEntry { model: model.parse().unwrap(), version, state, note: None }
}

fn snapshot() -> DeviceSnapshot {
    let core = |load| CoreUsage { core: "0".into(), load, frequency_hz: None };
    let live = |model: &str, version, requests| LiveVersion {
        model: model.parse().unwrap(),
        version: ModelVersion::try_from(version).unwrap(),
        runtime: Runtime::OnnxRuntime,
        digest: "ab".repeat(32),
        requests,
    };
    DeviceSnapshot {
        device: DeviceIdentity { id: "box-1".parse().unwrap(), group: Some("hall".parse().unwrap()), fleet: None },
        ledge_version: "1.2.3",
        started_ms: 1_767_225_600_999,
        at_ms: 1_767_225_660_000,
        index: vec![
            row("a", Some(1), VersionState::Ready),
            row("a", Some(2), VersionState::Loading),
            row("b", Some(1), VersionState::Unavailable(UnavailableReason::Unloaded)),
            row("c", None, VersionState::failed("no versions")),
            row("d", Some(7), VersionState::Ready),
        ],
        origins: [("a", ModelOrigin::Updates), ("b", ModelOrigin::Own), ("d", ModelOrigin::Added)]
            .map(|(name, origin)| (name.parse().unwrap(), origin))
            .into(),
        live: vec![
            live("a", 1, RequestCounts { ok: 10, failed: 3, refused: 2 }),
            live("d", 7, RequestCounts { ok: 1, failed: 1, refused: 0 }),
        ],
        machine: MachineUsage { cores: vec![core(Some(0.25)), core(Some(0.5)), core(None)], ..MachineUsage::default() },
        memory: Some(MachineMemory { total_bytes: 4000, available_bytes: 1000, swap_bytes: 0 }),
        service: Some(ServiceUsage { memory_bytes: 500, cpu: Duration::from_millis(1500), processes: 3, threads: 9 }),
        updates: None,
        audit: AuditSnapshot { status: audit(), checkpoint: Some(b"ledge.audit/box-1/2\n7\n".to_vec()) },
        inventory: inventory(),
    }
}

fn inventory() -> InventorySnapshot {
    InventorySnapshot {
        package: Some(package()),
        os: Some("Debian GNU/Linux 12 (bookworm)".into()),
        model: Some("Dell Inc. OptiPlex 3060".into()),
        cpu: Some("Intel(R) Core(TM) i5-8500".into()),
        disk: Some(DiskSpace { total_bytes: 9000, available_bytes: 2000 }),
        certificate: Some(CertificateValidity { from_ms: 1_764_547_200_000, until_ms: 1_772_323_200_000 }),
    }
}

fn package() -> InstalledPackage {
    InstalledPackage {
        name: "ledge-slim".parse().unwrap(),
        version: "1.2.3-1".into(),
        format: PackageFormat::Deb,
        architecture: "amd64".into(),
    }
}

fn audit() -> AuditStatus {
    AuditStatus {
        origin: "ledge.audit/box-1/2".into(),
        verifier_key: "ledge.audit/box-1+00+AA".into(),
        log: Some(LocalLogFigures { size: 8, ..LocalLogFigures::default() }),
        lost: (5, 1),
        sync: Some(AuditSyncStatus { size: 6, ..AuditSyncStatus::default() }),
        alarm: Some("the log before was cut".into()),
        ..AuditStatus::default()
    }
}

fn read(snapshot: &DeviceSnapshot) -> Value {
    serde_json::from_slice(&document(snapshot)).unwrap()
}

#[test]
fn the_document_has_its_shape() {
    let digest = "ab".repeat(32);
    let expected = json!({
        "schema": 1,
        "device": "box-1",
        "group": "hall",
        "fleet": null,
        "ledge_version": "1.2.3",
        "package": {"name": "ledge-slim", "version": "1.2.3-1", "format": "deb", "architecture": "amd64"},
        "os": "Debian GNU/Linux 12 (bookworm)",
        "hardware": {
            "model": "Dell Inc. OptiPlex 3060",
            "cpu": "Intel(R) Core(TM) i5-8500",
            "architecture": std::env::consts::ARCH,
        },
        "certificate": {"from": "2025-12-01T00:00:00Z", "until": "2026-03-01T00:00:00Z"},
        "started": "2026-01-01T00:00:00Z",
        "at": "2026-01-01T00:01:00Z",
        "health": "degraded",
        "models": [
            {"name": "a", "origin": "updates", "versions": [
                {"version": 1, "state": "READY", "runtime": "onnxruntime", "digest": digest},
                {"version": 2, "state": "LOADING"},
            ]},
            {"name": "b", "origin": "own", "versions": [{"version": 1, "state": "UNAVAILABLE", "reason": "unloaded"}]},
            {"name": "c", "versions": [{"version": null, "state": "UNAVAILABLE", "reason": "no versions"}]},
            {"name": "d", "origin": "added", "versions": [
                {"version": 7, "state": "READY", "runtime": "onnxruntime", "digest": digest},
            ]},
        ],
        "versions_left_out": 0,
        "load": {
            "machine": {"cores": 3, "cpu_ratio": 0.375, "memory_total_bytes": 4000, "memory_available_bytes": 1000},
            "disk": {"total_bytes": 9000, "available_bytes": 2000},
            "process": {"cpu_seconds": 1.5, "memory_bytes": 500, "threads": 9},
        },
        "requests": {"ok": 11, "failed": 4, "refused": 2},
        "audit": {
            "log": "ledge.audit/box-1/2",
            "verifier_key": "ledge.audit/box-1+00+AA",
            "checkpoint": "ledge.audit/box-1/2\n7\n",
            "size": 8,
            "synced": 6,
            "lost": {"calls": 5, "events": 1},
            "error": null,
            "alarm": "the log before was cut",
        },
    });
    assert_eq!(read(&snapshot()), expected);
}

#[test]
fn keys_keep_their_order() {
    let text = String::from_utf8(document(&snapshot())).unwrap();
    let keys = [
        "schema",
        "device",
        "group",
        "fleet",
        "ledge_version",
        "package",
        "os",
        "hardware",
        "certificate",
        "started",
        "at",
        "health",
        "models",
        "load",
        "requests",
        "audit",
    ];
    let places: Vec<_> = keys.iter().map(|key| text.find(&format!("\"{key}\":")).unwrap()).collect();
    assert!(places.is_sorted(), "{places:?}");
    assert_eq!(document(&snapshot()), document(&snapshot()));
}

#[test]
fn a_model_that_was_unloaded_on_request_is_no_fault() {
    let with = |state| DeviceSnapshot { index: vec![row("a", Some(1), state)], ..snapshot() };
    for state in [
        VersionState::Ready,
        VersionState::Loading,
        VersionState::Unloading,
        VersionState::Unavailable(UnavailableReason::Unloaded),
        VersionState::Unavailable(UnavailableReason::NotLoadedYet),
    ] {
        assert_eq!(read(&with(state))["health"], "ok");
    }
    assert_eq!(read(&with(VersionState::failed("cut off")))["health"], "degraded");
}

#[test]
fn what_the_system_does_not_tell_is_null() {
    let (machine, inventory) = (MachineUsage::default(), InventorySnapshot::default());
    let snapshot = DeviceSnapshot { machine, inventory, memory: None, service: None, ..snapshot() };
    let document = read(&snapshot);
    for key in ["package", "os", "certificate"] {
        assert_eq!(document[key], Value::Null, "{key}");
    }
    assert_eq!(document["hardware"], json!({"model": null, "cpu": null, "architecture": std::env::consts::ARCH}));
    let load = &document["load"];
    let machine = json!({"cores": 0, "cpu_ratio": null, "memory_total_bytes": null, "memory_available_bytes": null});
    assert_eq!(*load, json!({"machine": machine, "disk": null, "process": null}));
}

#[test]
fn a_document_fits_the_brokers_that_take_least() {
    // Every name of the greatest length, and reasons that JSON has to escape.
    let reason = "\"\\\n".repeat(10_000);
    let name = |n: usize| format!("{n:0128}");
    let row = |n| row(&name(n), Some(u64::try_from(n).unwrap() + 1), VersionState::failed(&reason));
    // Updates with equally long texts.
    let mut updates = status_example::status();
    let (_, mut state) = updates.subjects.pop_first().unwrap();
    let waiting = updates.check.waiting.pop_last().unwrap().1;
    let long = name(1).parse::<DeviceName>().unwrap();
    state.outcome.as_mut().unwrap().rolled_back.as_mut().unwrap().1.detail = reason.clone();
    (state.trial.as_mut().unwrap().plan.rollout, state.outcome.as_mut().unwrap().rollout) =
        (long.clone(), long.clone());
    updates.check.error = Some(reason.clone());
    for number in 0..100 {
        let subject: Artifact = format!("configurations/{}", name(number)).parse().unwrap();
        let waiting = WaitingRollout { rollout: long.clone(), reason: reason.clone(), ..waiting.clone() };
        updates.check.waiting.insert(subject.clone(), waiting);
        updates.subjects.insert(subject, state.clone());
    }
    let origins = (0..1000).map(|n| (name(n).parse().unwrap(), ModelOrigin::Updates)).collect();
    let long_name = Some(reason.clone());
    let package = InstalledPackage {
        version: reason.clone(),
        architecture: reason.clone(),
        name: name(1).parse().unwrap(),
        ..package()
    };
    let inventory = InventorySnapshot {
        package: Some(package),
        os: long_name.clone(),
        model: long_name.clone(),
        cpu: long_name,
        ..inventory()
    };
    let index = (0..1000).map(row).collect();
    let snapshot = DeviceSnapshot { index, origins, inventory, updates: Some(updates), ..snapshot() };
    let (error, alarm) = (Some(reason.clone()), Some(reason.clone()));
    let status = AuditStatus { origin: name(1), verifier_key: name(2), error, alarm, ..audit() };
    let snapshot =
        DeviceSnapshot { audit: AuditSnapshot { status, checkpoint: Some(name(3).repeat(4).into()) }, ..snapshot };
    let bytes = document(&snapshot);
    assert!(bytes.len() < 128 * 1024 - 1000, "{}", bytes.len());
    let document = read(&snapshot);
    assert_eq!(document["models"].as_array().unwrap().len(), MAX_VERSIONS);
    assert_eq!(document["versions_left_out"], 1000 - MAX_VERSIONS);
    assert_eq!(document["health"], "degraded");
    assert_eq!(document["updates"]["subjects"].as_array().unwrap().len(), 24);
    assert_eq!(document["updates"]["subjects_left_out"], 77);
}

#[test]
fn how_updates_do_is_told_where_a_platform_looks_after_the_box() {
    assert!(!read(&snapshot()).as_object().unwrap().contains_key("updates"));
    let updates = read(&DeviceSnapshot { updates: Some(status_example::status()), ..snapshot() })["updates"].take();
    assert_eq!(updates["metadata"], json!({"root": 3, "timestamp": 41}));
    assert_eq!((&updates["checked"], &updates["error"]), (&json!("2026-11-20T00:00:00Z"), &json!("no way")));
    let subject = &updates["subjects"][1];
    assert_eq!((&subject["version"], &subject["stage"]), (&json!(2), &json!("staged")));
    assert_eq!(subject["trial"]["held"], "paused by the platform");
    assert_eq!(subject["last"]["cause"], "golden");
}

#[test]
fn a_long_reason_is_cut_between_characters() {
    assert_eq!(excerpt("no\nsuch file", MAX_REASON_BYTES), "no such file");
    let cut = excerpt(&"é".repeat(1000).replacen('é', "x", 1), MAX_REASON_BYTES);
    assert!(cut.ends_with("é…") && cut.len() <= MAX_REASON_BYTES + '…'.len_utf8(), "{}", cut.len());
}

#[test]
fn the_package_is_known_to_the_program_that_it_brought_and_to_no_other() {
    let root = tempfile::tempdir().unwrap();
    let program = root.path().join("usr/bin/ledge");
    let inventory = |program: &std::path::Path| {
        BoxInventory::read(root.path(), program, root.path(), std::sync::Arc::new(|| None)).snapshot()
    };
    assert_eq!(inventory(&program).package, None, "a program in an image");
    std::fs::create_dir_all(root.path().join("usr/share/ledge")).unwrap();
    let text = serde_json::to_vec(&package()).unwrap();
    durable::replace(&root.path().join("usr/share/ledge/package.json"), &text).unwrap();
    assert_eq!(inventory(&program).package, Some(package()));
    assert_eq!(inventory(&root.path().join("home/ledge")).package, None, "a program that was built here");
    durable::replace(&root.path().join("usr/share/ledge/package.json"), b"{").unwrap();
    let found = inventory(&program);
    assert_eq!((found.package, found.certificate), (None, None));
    assert!(found.disk.unwrap().total_bytes > 0);
}
