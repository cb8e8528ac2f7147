//! The rollout manifest: the versions that a fleet should run, from when, and on which boxes. A signed target,
//! `fleet/FLEET/rollout.json`:
//!
//! ```text
//! {"schema": 1, "fleet": "default", "published": "2026-11-20T00:00:00Z",
//!  "rollouts": [{"id": "r-0042", "target": "models/minilm/2/model.onnx", "start": "2026-11-20T00:00:00Z",
//!     "waves": "default" | "accelerated" | "ohno" | "all" | [{"seed_below": 20, "after_s": 3600}, ...],
//!     "paused": false, "groups": ["kitchen"], "devices": ["box-1"],          (absent: every box; both: either)
//!     "window": {"timezone": "Asia/Dubai", "days": ["mon"], "from": "01:00", "to": "05:00"},     (absent: any time)
//!     "gate": {"golden_min": 0.9, "agreement_min": 0.95, "p95_ratio_max": 1.25, "error_rate_max": 0.01,
//!              "memory_ratio_max": 1.5, "psi_max": 0.25},
//!     "shadow": {"share": 0.1, "min_s": 0, "min_requests": 100, "max_s": 3600, "quiet": "pass" | "roll_back"},
//!                                              (absent: the defaults of `plan.rs`; null: no limit)
//!     "canary": {...}, "soak": {...}, "max_attempts": 5, "byte_budget": 100000000, "allow_downgrade": false,
//!     "requires_ledge": "0.1.0"}],
//!  "pins": {"box-7": {"models/minilm": 1}}, "revoked": ["models/minilm/1"], "minimum": {"models/minilm": 2}}
//! ```
//!
//! Pure. An unknown field is refused and not skipped: a box that ignores a condition would run a wrong version.

use std::collections::{BTreeMap, BTreeSet};

use ledge_base::clock;
use ledge_base::names::{DeviceName, ModelVersion};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::waves::{SEED_COUNT, Wave, WavePreset};
use super::window::{RolloutWindow, WindowForm};
use crate::artifact::{Artifact, TargetPath};
use crate::plan::{RolloutGate, RolloutPlan, StagePlan, StagePlanForm};

mod validate;

#[cfg(any(test, feature = "fuzzing"))]
pub(super) use validate::MAX_WAVES;

/// The only schema that this version reads.
const SCHEMA: u32 = 1;

/// Largest manifest, in bytes. It bounds every list in it.
pub const MANIFEST_MAX_BYTES: u64 = 1 << 20;

/// The most rollouts of a manifest.
pub(super) const MAX_ROLLOUTS: usize = 256;

/// Most mistakes in an error message.
pub(super) const MISTAKES_MAX: usize = 20;

/// The versions that a fleet should run.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutManifest {
    pub fleet: DeviceName,
    /// The time at which the platform wrote it, in milliseconds since the Unix epoch.
    pub published_ms: u64,
    /// Rollouts; of several for the same subject a later one takes precedence over an earlier one.
    pub rollouts: Vec<Rollout>,
    /// Boxes that must have one version, regardless of rollouts.
    pub pins: BTreeMap<DeviceName, BTreeMap<Artifact, ModelVersion>>,
    /// Versions that must not run any more.
    pub revoked: BTreeMap<Artifact, BTreeSet<ModelVersion>>,
    /// The lowest versions that may run.
    pub minimum: BTreeMap<Artifact, ModelVersion>,
}

/// One release on its way to a fleet.
#[derive(Debug, Clone, PartialEq)]
pub struct Rollout {
    /// The plan of a box that is reached: the name of the rollout, its release, its stages.
    pub plan: RolloutPlan,
    /// The start of its waves, in milliseconds since the Unix epoch.
    pub start_ms: u64,
    /// Its waves: the times at which it reaches shares of the fleet.
    pub waves: Vec<Wave>,
    /// Set to stop all progress for now.
    pub paused: bool,
    /// The groups that it is for. When this and [`Self::devices`] are `None`, it is for every box.
    pub groups: Option<BTreeSet<DeviceName>>,
    /// The boxes that it is for, besides those of the groups.
    pub devices: Option<BTreeSet<DeviceName>>,
    /// The maintenance window; `None` is any time.
    pub window: Option<RolloutWindow>,
    /// The oldest version of Ledge that takes part.
    pub requires_ledge: Option<LedgeVersion>,
}

/// A version of Ledge: three numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LedgeVersion([u32; 3]);

/// Reasons why a manifest cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error("the rollout manifest has {bytes} bytes, and {MANIFEST_MAX_BYTES} at most are allowed")]
    TooLarge { bytes: usize },
    #[error("the rollout manifest cannot be read: {reason}")]
    Form { reason: String },
    #[error("the rollout manifest is wrong: {}", mistakes.join("; "))]
    Wrong { mistakes: Vec<String> },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ManifestForm<'a> {
    #[serde(rename = "schema")]
    _schema: IgnoredAny,
    fleet: DeviceName,
    published: String,
    #[serde(borrow)]
    rollouts: Vec<&'a RawValue>,
    #[serde(default)]
    pins: BTreeMap<DeviceName, BTreeMap<Artifact, ModelVersion>>,
    #[serde(default)]
    revoked: Vec<String>,
    #[serde(default)]
    minimum: BTreeMap<Artifact, ModelVersion>,
}

/// The field that is read first: an unknown schema may have other fields.
#[derive(Deserialize)]
struct SchemaForm {
    schema: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RolloutForm {
    id: DeviceName,
    target: TargetPath,
    start: String,
    waves: Option<WavesForm>,
    #[serde(default)]
    paused: bool,
    groups: Option<BTreeSet<DeviceName>>,
    devices: Option<BTreeSet<DeviceName>>,
    window: Option<WindowForm>,
    #[serde(default)]
    gate: RolloutGate,
    #[serde(default)]
    shadow: StagePlanForm,
    #[serde(default)]
    canary: StagePlanForm,
    #[serde(default)]
    soak: StagePlanForm,
    #[serde(default = "five")]
    max_attempts: u32,
    byte_budget: Option<u64>,
    #[serde(default)]
    allow_downgrade: bool,
    requires_ledge: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WavesForm {
    Named(String),
    Listed(Vec<Wave>),
}

fn five() -> u32 {
    5
}

impl RolloutManifest {
    /// Reads a manifest, or reports all its mistakes.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() as u64 > MANIFEST_MAX_BYTES {
            return Err(ManifestError::TooLarge { bytes: bytes.len() });
        }
        let form = |error: serde_json::Error| ManifestError::Form { reason: error.to_string() };
        let SchemaForm { schema } = serde_json::from_slice(bytes).map_err(form)?;
        if schema != SCHEMA {
            let reason = format!("schema {schema} is not known, this version of Ledge reads {SCHEMA}");
            return Err(ManifestError::Form { reason });
        }

        let read: ManifestForm<'_> = serde_json::from_slice(bytes).map_err(form)?;
        let mut mistakes = Vec::new();
        let published_ms = moment("published", &read.published, &mut mistakes);
        if read.rollouts.len() > MAX_ROLLOUTS {
            mistakes.push(format!("{} rollouts, {MAX_ROLLOUTS} at most", read.rollouts.len()));
        }

        let mut rollouts: Vec<Rollout> = Vec::new();
        for (index, raw) in read.rollouts.iter().take(MAX_ROLLOUTS).enumerate() {
            match serde_json::from_str::<RolloutForm>(raw.get()) {
                Ok(form) => {
                    let mut found = Vec::new();
                    let rollout = form.check(&mut found);
                    let id = &rollout.plan.rollout;
                    if rollouts.iter().any(|before| before.plan.rollout == *id) {
                        found.push("another rollout has this id".to_owned());
                    }
                    mistakes.extend(found.into_iter().map(|mistake| format!("rollout {id}: {mistake}")));
                    rollouts.push(rollout);
                }
                Err(error) => mistakes.push(format!("rollouts[{index}]: {error}")),
            }
        }

        let mut revoked: BTreeMap<Artifact, BTreeSet<ModelVersion>> = BTreeMap::new();
        for text in &read.revoked {
            match release(text) {
                Some((subject, version)) => _ = revoked.entry(subject).or_default().insert(version),
                None => mistakes.push(format!("revoked: {:?} is not of the form models/NAME/VERSION", excerpt(text))),
            }
        }

        if mistakes.is_empty() {
            let ManifestForm { fleet, pins, minimum, .. } = read;
            return Ok(Self { fleet, published_ms, rollouts, pins, revoked, minimum });
        }

        if mistakes.len() > MISTAKES_MAX {
            let more = mistakes.len() - MISTAKES_MAX;
            mistakes.truncate(MISTAKES_MAX);
            mistakes.push(format!("and {more} more"));
        }
        Err(ManifestError::Wrong { mistakes })
    }

    /// Returns every subject that it mentions.
    pub fn subjects(&self) -> BTreeSet<&Artifact> {
        let rolled_out = self.rollouts.iter().map(|rollout| &rollout.plan.target.subject);
        rolled_out.chain(self.revoked.keys()).chain(self.minimum.keys()).collect()
    }
}

impl RolloutForm {
    /// Makes the rollout, and adds its mistakes to `mistakes`.
    fn check(self, mistakes: &mut Vec<String>) -> Rollout {
        let start_ms = moment("start", &self.start, mistakes);
        let waves = match self.waves {
            None => WavePreset::Default.waves(),
            Some(WavesForm::Named(name)) => {
                let preset = WavePreset::named(&name);
                if preset.is_none() {
                    let known = WavePreset::ALL.map(WavePreset::name).join(", ");
                    mistakes.push(format!("waves {:?} are not known: there are {known}, or a list", excerpt(&name)));
                }
                preset.map(WavePreset::waves).unwrap_or_default()
            }
            Some(WavesForm::Listed(waves)) => waves,
        };

        validate::waves(&waves, mistakes);

        let window = self.window.as_ref().and_then(|form| match RolloutWindow::new(form) {
            Ok(window) => Some(window),
            Err(found) => {
                mistakes.extend(found.into_iter().map(|mistake| format!("window.{mistake}")));
                None
            }
        });

        let requires_ledge = self.requires_ledge.as_deref().and_then(|text| {
            let version = LedgeVersion::parse(text);
            if version.is_none() {
                mistakes.push(format!("requires_ledge {:?} is not a version such as 0.1.0", excerpt(text)));
            }
            version
        });

        let plan = RolloutPlan {
            rollout: self.id,
            target: self.target,
            shadow: self.shadow.over(StagePlan::SHADOW),
            canary: self.canary.over(StagePlan::CANARY),
            soak: self.soak.over(StagePlan::SOAK),
            gate: self.gate,
            max_attempts: self.max_attempts,
            byte_budget: self.byte_budget,
            allow_downgrade: self.allow_downgrade,
        };
        validate::plan(&plan, mistakes);

        let Self { paused, groups, devices, .. } = self;
        Rollout { plan, start_ms, waves, paused, groups, devices, window, requires_ledge }
    }
}

impl LedgeVersion {
    /// Reads `MAJOR.MINOR.PATCH`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| {
            let digits = !part.is_empty() && part.len() <= 9 && part.bytes().all(|byte| byte.is_ascii_digit());
            part.parse().ok().filter(|_| digits)
        });
        let version = [parts.next()??, parts.next()??, parts.next()??];
        parts.next().is_none().then_some(Self(version))
    }
}

impl std::fmt::Display for LedgeVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// Parses `models/NAME/VERSION`.
fn release(text: &str) -> Option<(Artifact, ModelVersion)> {
    let (subject, version) = text.rsplit_once('/')?;
    Some((subject.parse().ok()?, version.parse().ok()?))
}

fn moment(key: &str, text: &str, mistakes: &mut Vec<String>) -> u64 {
    let moment = clock::parse_micros(text).and_then(|micros| u64::try_from(micros / 1000).ok());
    moment.unwrap_or_else(|| {
        mistakes.push(format!("{key} {:?} is not a time such as 2026-11-20T00:00:00Z", excerpt(text)));
        0
    })
}

fn excerpt(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests;
