//! The section `[upgrades]` of the configuration.

use std::path::{Path, PathBuf};

use ledge_base::config_path;
use ledge_part::section::ConfigSection;
use serde::{Deserialize, Serialize};

/// Upgrades of Ledge itself by the platform.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpgradesConfig {
    /// Lets the platform of `[updates]` upgrade Ledge itself, with packages that its offline role signed.
    pub enable: bool,
    /// The folder of root's service, in which only root writes. The daemon reads its state there.
    pub path: PathBuf,
}

impl Default for UpgradesConfig {
    fn default() -> Self {
        Self { enable: false, path: "upgrades".into() }
    }
}

impl ConfigSection for UpgradesConfig {
    fn resolve(&mut self, root: &Path) {
        config_path::resolve(&mut self.path, root);
    }
}
