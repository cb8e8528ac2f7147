//! `[history]`

use std::path::{Path, PathBuf};

use ledge_base::config_path;
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
}

impl Default for HistoryConfig {
    fn default() -> Self {
        Self { enabled: true, path: "history".into() }
    }
}

impl ConfigSection for HistoryConfig {
    fn resolve(&mut self, root: &Path) {
        config_path::resolve(&mut self.path, root);
    }
}
