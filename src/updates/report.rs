//! The document that reports this box to its platform. The broker retains it on `ledge/v1/<device>/reported`.
//!
//! ```json
//! {"schema": 1, "device": "box-1", "group": null, "fleet": null, "ledge_version": "0.1.0",
//!  "package": {"name": "ledge-slim", "version": "0.1.0-1", "format": "deb", "architecture": "amd64"},
//!  "os": "Debian GNU/Linux 12 (bookworm)",
//!  "hardware": {"model": "Dell Inc. OptiPlex 3060", "cpu": "Intel(R) Core(TM) i5-8500", "architecture": "x86_64"},
//!  "certificate": {"from": "2025-12-01T00:00:00Z", "until": "2026-03-01T00:00:00Z"},
//!  "started": "2026-01-01T00:00:00Z", "at": "2026-01-01T00:01:00Z", "health": "degraded",
//!  "models": [{"name": "m", "origin": "own", "versions": [
//!    {"version": 1, "state": "READY", "runtime": "openvino", "digest": "…"},
//!    {"version": 2, "state": "UNAVAILABLE", "reason": "…"}]}],
//!  "versions_left_out": 0,
//!  "load": {"machine": {"cores": 4, "cpu_ratio": 0.25, "memory_total_bytes": 1, "memory_available_bytes": 1},
//!           "disk": {"total_bytes": 1, "available_bytes": 1},
//!           "process": {"cpu_seconds": 1.5, "memory_bytes": 1, "threads": 9}},
//!  "requests": {"ok": 10, "failed": 1, "refused": 1},
//!  "updates": {"checked": "2026-01-01T00:00:30Z", "error": null, "metadata": {"root": 3, "timestamp": 41},
//!    "subjects": [{"subject": "models/m", "version": 1, "digest": "…", "previous": null, "pinned": false,
//!      "stage": "staged", "trial": {"rollout": "r-2", "version": 2, "since_s": 7, "held": "paused by the platform"},
//!      "waiting": {"rollout": "r-2", "version": 2, "reason": "paused by the platform"},
//!      "error": null,
//!      "last": {"rollout": "r-1", "version": 1, "result": "committed", "stage": null, "cause": null, "detail": null}}],
//!    "subjects_left_out": 0},
//!  "audit": {"log": "ledge.audit/box-1/1", "verifier_key": "ledge.audit/box-1+…", "checkpoint": "…\n", "size": 4711,
//!    "synced": 4700, "lost": {"calls": 0, "events": 0}, "error": null, "alarm": null}}
//! ```
//!
//! The `checkpoint` of `audit` is the last signed head of the log, as it is published; `synced` is the number of its
//! records that the platform has, `null` where no platform gets a copy. `package` is that of this program, `null` for a
//! program from no package; `certificate` is that of the membership, and `disk` is that of the state folder. The `origin`
//! of a model is `updates`, `package` (of Ledge), `added` (from a catalogue or by an upload) or `own`. `updates` is present where a platform updates
//! this box; the `error` of a subject is the reason why its last attempt failed when another follows. Keys come in this
//! order, and models and versions in that of their names. An unknown figure is `null`; of a model, `origin`, and of a
//! version, `reason`, `runtime` and `digest` are present only where there is one. `requests` counts since the start, over the versions
//! that are live; the refused are among the failed. A key may be added; `schema` grows when one changes.

mod audit;
mod excerpt;
mod inventory;
#[cfg(test)]
mod tests;
mod updates;

use std::collections::BTreeMap;

use ledge_audit::status::AuditState;
use ledge_base::clock;
use ledge_base::names::{DeviceName, ModelName, ModelVersion};
use ledge_base::telemetry::machine::{MachineMonitor, MachineUsage};
use ledge_base::telemetry::service_usage::{self, ServiceUsage};
use ledge_base::telemetry::system::MachineMemory;
use ledge_engine::backend::Runtime;
use ledge_identity::device::DeviceIdentity;
use ledge_models::repository::statistics::RefusalReason;
use ledge_models::repository::{ModelIndexEntry, ModelState, Repository, VersionState};
use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;

use crate::status::UpdatesStatus;
pub use audit::AuditSnapshot;
use excerpt::{MAX_REASON_BYTES, excerpt};
pub use inventory::{BoxInventory, CertificateReader, CertificateValidity, InventorySnapshot, ModelOrigin};

/// The schema of the document above.
const SCHEMA: u32 = 1;

/// Most versions in a document, so that brokers accept it: the smallest limit among the usual ones is 128 KiB.
const MAX_VERSIONS: usize = 128;

/// The state of this box at one moment, of which the document is made.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceSnapshot {
    pub device: DeviceIdentity,
    pub ledge_version: &'static str,
    /// The start of this process, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// The time of this snapshot, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Every version that is known.
    pub index: Vec<ModelIndexEntry>,
    /// The origin of each model that has one.
    pub origins: BTreeMap<ModelName, ModelOrigin>,
    /// The versions that answer.
    pub live: Vec<LiveVersion>,
    /// The load of the machine.
    pub machine: MachineUsage,
    pub memory: Option<MachineMemory>,
    /// The resources of all processes of the service.
    pub service: Option<ServiceUsage>,
    /// The status of updates; `None` where no platform updates this box.
    pub updates: Option<UpdatesStatus>,
    /// The status of the audit log.
    pub audit: AuditSnapshot,
    pub inventory: InventorySnapshot,
}

/// A version that answers requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveVersion {
    pub model: ModelName,
    pub version: ModelVersion,
    pub runtime: Runtime,
    /// BLAKE3 of its files.
    pub digest: String,
    /// The outcomes of its requests.
    pub requests: RequestCounts,
}

/// Outcomes of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct RequestCounts {
    /// Answered.
    pub ok: u64,
    /// Not answered with a result.
    pub failed: u64,
    /// Refused, or given up at their deadline; they are among the failed.
    pub refused: u64,
}

impl DeviceSnapshot {
    /// Collects the state from all parts. The machine's sensors may take milliseconds: not for an async thread.
    pub fn gather(
        device: &DeviceIdentity,
        started_ms: u64,
        repository: &Repository,
        machine: &MachineMonitor,
        updates: Option<UpdatesStatus>,
        audit: &AuditState,
        inventory: &BoxInventory,
    ) -> Self {
        let index = repository.index();
        let names = index.iter().take(MAX_VERSIONS).map(|row| &row.model);
        let origins = names.filter_map(|name| Some((name.clone(), ModelOrigin::find(name, repository)?))).collect();
        let live = repository.all_live().into_iter().map(|model| {
            let counters = model.statistics.snapshot();
            LiveVersion {
                model: model.name.clone(),
                version: model.version,
                runtime: model.runtime(),
                digest: model.digest.clone(),
                requests: RequestCounts {
                    ok: counters.success.count,
                    failed: counters.fail.count,
                    refused: RefusalReason::ALL.into_iter().map(|why| counters.refusals.of(why)).sum(),
                },
            }
        });
        Self {
            device: device.clone(),
            ledge_version: env!("CARGO_PKG_VERSION"),
            started_ms,
            at_ms: clock::unix_millis(),
            index,
            origins,
            live: live.collect(),
            machine: machine.read(),
            memory: MachineMemory::read(),
            service: service_usage::usage(),
            updates,
            audit: AuditSnapshot::gather(audit),
            inventory: inventory.snapshot(),
        }
    }

    /// Returns true if every model that should answer does.
    pub fn is_healthy(&self) -> bool {
        !self.index.iter().any(|row| matches!(&row.state, VersionState::Unavailable(reason) if reason.is_failure()))
    }
}

/// Encodes the document as JSON.
pub fn document(snapshot: &DeviceSnapshot) -> Vec<u8> {
    let requests = snapshot.live.iter().fold(RequestCounts::default(), |sum, live| RequestCounts {
        ok: sum.ok + live.requests.ok,
        failed: sum.failed + live.requests.failed,
        refused: sum.refused + live.requests.refused,
    });

    let document = ReportDocument {
        schema: SCHEMA,
        device: &snapshot.device.id,
        group: snapshot.device.group.as_ref(),
        fleet: snapshot.device.fleet.as_ref(),
        ledge_version: snapshot.ledge_version,
        package: snapshot.inventory.package.as_ref().map(Into::into),
        os: snapshot.inventory.reported_os(),
        hardware: snapshot.inventory.reported_hardware(),
        certificate: snapshot.inventory.reported_certificate(),
        started: clock::rfc3339(snapshot.started_ms),
        at: clock::rfc3339(snapshot.at_ms),
        health: if snapshot.is_healthy() { "ok" } else { "degraded" },
        models: models(snapshot),
        versions_left_out: snapshot.index.len().saturating_sub(MAX_VERSIONS),
        load: ReportedLoad {
            machine: MachineFigures {
                cores: snapshot.machine.cores.len(),
                cpu_ratio: mean_load(&snapshot.machine),
                memory_total_bytes: snapshot.memory.map(|memory| memory.total_bytes),
                memory_available_bytes: snapshot.memory.map(|memory| memory.available_bytes),
            },
            disk: snapshot.inventory.reported_disk(),
            process: snapshot.service.map(|service| ServiceProcess {
                cpu_seconds: service.cpu.as_secs_f64(),
                memory_bytes: service.memory_bytes,
                threads: service.threads,
            }),
        },
        requests,
        updates: snapshot.updates.as_ref().map(Into::into),
        audit: (&snapshot.audit).into(),
    };
    // It has only texts, numbers and lists of them, so encoding does not fail.
    serde_json::to_vec(&document).unwrap_or_default()
}

/// Returns the JSON Schema of the document.
pub fn schema() -> Schema {
    schema_for!(ReportDocument<'static>)
}

#[derive(Serialize, JsonSchema)]
struct ReportDocument<'a> {
    schema: u32,
    device: &'a DeviceName,
    group: Option<&'a DeviceName>,
    fleet: Option<&'a DeviceName>,
    ledge_version: &'static str,
    package: Option<inventory::ReportedPackage<'a>>,
    /// The name of the operating system.
    os: Option<String>,
    hardware: inventory::ReportedHardware,
    certificate: Option<inventory::ReportedCertificate>,
    started: String,
    at: String,
    health: &'static str,
    models: Vec<ReportedModel<'a>>,
    versions_left_out: usize,
    load: ReportedLoad,
    requests: RequestCounts,
    #[serde(skip_serializing_if = "Option::is_none")]
    updates: Option<updates::ReportedUpdates>,
    audit: audit::ReportedAudit<'a>,
}

#[derive(Serialize, JsonSchema)]
struct ReportedModel<'a> {
    name: &'a ModelName,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<ModelOrigin>,
    versions: Vec<ReportedVersion<'a>>,
}

#[derive(Serialize, JsonSchema)]
struct ReportedVersion<'a> {
    /// `None` for a model of which no version is known.
    version: Option<u64>,
    state: ModelState,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<&'a str>,
}

#[derive(Serialize, JsonSchema)]
struct ReportedLoad {
    machine: MachineFigures,
    disk: Option<inventory::ReportedDisk>,
    process: Option<ServiceProcess>,
}

#[derive(Serialize, JsonSchema)]
struct MachineFigures {
    cores: usize,
    cpu_ratio: Option<f64>,
    memory_total_bytes: Option<u64>,
    memory_available_bytes: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
struct ServiceProcess {
    cpu_seconds: f64,
    memory_bytes: u64,
    threads: u64,
}

fn models(snapshot: &DeviceSnapshot) -> Vec<ReportedModel<'_>> {
    let mut models: Vec<ReportedModel<'_>> = Vec::new();
    for row in snapshot.index.iter().take(MAX_VERSIONS) {
        let version = version(row, &snapshot.live);
        match models.last_mut() {
            Some(model) if *model.name == row.model => model.versions.push(version),
            _ => {
                let origin = snapshot.origins.get(&row.model).copied();
                models.push(ReportedModel { name: &row.model, origin, versions: vec![version] });
            }
        }
    }
    models
}

fn version<'a>(row: &'a ModelIndexEntry, live: &'a [LiveVersion]) -> ReportedVersion<'a> {
    let reason = match &row.state {
        VersionState::Unavailable(reason) => Some(excerpt(&reason.to_string(), MAX_REASON_BYTES)),
        VersionState::Ready | VersionState::Loading | VersionState::Unloading => None,
    };
    let live = live.iter().find(|live| live.model == row.model && Some(live.version) == row.version);
    ReportedVersion {
        version: row.version.map(ModelVersion::get),
        state: ModelState::from(&row.state),
        reason,
        runtime: live.map(|live| live.runtime.to_string()),
        digest: live.map(|live| live.digest.as_str()),
    }
}

/// Returns the mean load to three digits: more would change the document for nothing.
fn mean_load(machine: &MachineUsage) -> Option<f64> {
    let loads: Vec<f64> = machine.cores.iter().filter_map(|core| core.load).collect();
    #[expect(clippy::cast_precision_loss, reason = "a count of cores")]
    let mean = (!loads.is_empty()).then(|| loads.iter().sum::<f64>() / loads.len() as f64)?;
    Some((mean * 1e3).round() / 1e3)
}
