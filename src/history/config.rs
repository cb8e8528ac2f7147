//! `[history]`

use std::path::{Path, PathBuf};

use ledge_base::config_path;
use ledge_base::toml_check::in_range;
use ledge_part::section::ConfigSection;
use serde::{Deserialize, Serialize};

/// The section `[history]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HistoryConfig {
    /// Keeps the figures on the disk. Without it they are kept in memory, those of the box alone, for a day.
    pub enabled: bool,
    /// The folder of the figures.
    pub path: PathBuf,
    /// The false alarms a week that the owner accepts of what is unusual, of the whole box; 0 looks for nothing.
    #[serde(deserialize_with = "in_range::<0, 1000, _, _>")]
    pub unusual_alarms_per_week: u32,
    /// Publishes what is unusual now at the broker of `[mqtt]`.
    pub unusual_mqtt: bool,
}

impl Default for HistoryConfig {
    fn default() -> Self {
        Self { enabled: true, path: "history".into(), unusual_alarms_per_week: 1, unusual_mqtt: false }
    }
}

impl ConfigSection for HistoryConfig {
    fn resolve(&mut self, root: &Path) {
        config_path::resolve(&mut self.path, root);
    }
}
