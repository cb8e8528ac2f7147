//! The section `[drift]` of the configuration.

use ledge_base::toml_check::in_range;
use ledge_part::section::ConfigSection;
use serde::{Deserialize, Serialize};

use crate::watch::WatchSettings;

/// The watch on the inputs and outputs of models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DriftConfig {
    /// Watches the models that are called.
    pub enabled: bool,
    /// The least length of a window, in seconds. A day has the cycle of the callers.
    #[serde(deserialize_with = "in_range::<1, 2_592_000, _, _>")]
    pub window_s: u64,
    /// The fewest calls of a window; with fewer it lasts longer.
    #[serde(deserialize_with = "in_range::<100, 1_000_000, _, _>")]
    pub calls_min: u64,
    /// The windows that the reference of a version is learnt of.
    #[serde(deserialize_with = "in_range::<2, 60, _, _>")]
    pub learning_windows: u32,
    /// The windows in a row that must drift before it is a finding.
    #[serde(deserialize_with = "in_range::<1, 60, _, _>")]
    pub persistence: u32,
}

impl Default for DriftConfig {
    fn default() -> Self {
        Self { enabled: true, window_s: 86_400, calls_min: 300, learning_windows: 7, persistence: 3 }
    }
}

impl DriftConfig {
    pub(crate) fn settings(&self) -> WatchSettings {
        let Self { window_s, calls_min, learning_windows, persistence, .. } = *self;
        WatchSettings { window_ms: window_s * 1_000, calls_min, learning_windows, persistence }
    }
}

impl ConfigSection for DriftConfig {}
