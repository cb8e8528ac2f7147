//! The state of root's service: `state.json` in its folder. Root writes it before each step; the daemon reads and reports it.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use ledge_base::durable;
use ledge_base::names::{DeviceName, ModelVersion};
use serde::{Deserialize, Serialize};

/// The file within the folder.
pub const STATE_FILE: &str = "state.json";

/// The only schema that this version reads.
const SCHEMA: u32 = 1;

/// Replaces a file of root's service that the daemon reads.
pub fn replace_readable(path: &Path, content: &[u8]) -> io::Result<()> {
    durable::replace(path, content)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644))
}

/// The state of root's service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpgradeRecord {
    pub(super) schema: u32,
    /// The release that is installed; `None` for a package that came by another way.
    pub release: Option<ModelVersion>,
    pub phase: UpgradePhase,
    pub last: Option<UpgradeOutcome>,
    /// The releases that were taken back here. They are not tried again.
    pub refused: BTreeSet<ModelVersion>,
}

impl Default for UpgradeRecord {
    fn default() -> Self {
        Self { schema: SCHEMA, release: None, phase: UpgradePhase::Idle, last: None, refused: BTreeSet::new() }
    }
}

/// The step that root's service has reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum UpgradePhase {
    Idle,
    /// The package manager installs the new package, or was interrupted.
    Installing {
        job: UpgradeJob,
        attempts: u32,
    },
    /// The new version runs on trial since this time, in milliseconds since the Unix epoch.
    Watching {
        job: UpgradeJob,
        since_ms: u64,
        starts: u32,
    },
    /// The package manager installs the previous package.
    Returning {
        job: UpgradeJob,
        cause: UpgradeFault,
        detail: String,
        attempts: u32,
    },
}

/// An upgrade under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpgradeJob {
    pub rollout: DeviceName,
    pub release: ModelVersion,
    pub package: StoredPackage,
    /// The package that was installed before.
    pub previous: StoredPackage,
    pub previous_release: Option<ModelVersion>,
    /// The time for which the new version is watched, in seconds.
    pub soak_s: u64,
    /// The most memory of the service, as a multiple of that before.
    pub memory_ratio_max: Option<f64>,
    /// The service before the upgrade.
    pub before: ServiceFigures,
}

/// A package in the folder of root's service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredPackage {
    /// The name of the file in `packages/`.
    pub file: String,
    /// The version of the package.
    pub version: String,
}

/// The service, as it is compared before and after an upgrade.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceFigures {
    /// Bytes.
    pub memory: u64,
    /// The models that answer.
    pub ready_models: BTreeSet<String>,
}

/// The outcome of an upgrade.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpgradeOutcome {
    pub rollout: DeviceName,
    pub release: ModelVersion,
    /// The cause for which it was taken back, and words for people; `None` after a success.
    pub fault: Option<(UpgradeFault, String)>,
}

/// The cause for which an upgrade is taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpgradeFault {
    /// The package manager could not install it.
    Install,
    /// The service did not start, or ended by itself.
    Start,
    /// A model that answered before does not.
    Models,
    Memory,
    /// The audit log cannot be verified.
    Audit,
}

impl UpgradeFault {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Install => "install",
            Self::Start => "start",
            Self::Models => "models",
            Self::Memory => "memory",
            Self::Audit => "audit",
        }
    }
}

impl UpgradeRecord {
    /// Reads the state in `folder`; that of a box without an upgrade if there is none.
    pub fn load(folder: &Path) -> io::Result<Self> {
        let content = match std::fs::read(folder.join(STATE_FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            read => read?,
        };
        let record: Self = serde_json::from_slice(&content).map_err(io::Error::other)?;
        if record.schema == SCHEMA { Ok(record) } else { Err(io::Error::other(format!("schema {}", record.schema))) }
    }

    /// Replaces it. When this returns, the state survives a power cut.
    pub fn save(&self, folder: &Path) -> io::Result<()> {
        replace_readable(&folder.join(STATE_FILE), &serde_json::to_vec(self).map_err(io::Error::other)?)
    }
}
