//! The section `[repository]` of the configuration.

use std::path::{Path, PathBuf};

use ledge_base::config_path;
use ledge_base::toml_check::in_range;
use ledge_part::section::ConfigSection;
use serde::{Deserialize, Serialize};

/// Folders of models, and how they are loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RepositoryConfig {
    /// The model repository: a folder with one folder a model.
    pub path: PathBuf,
    /// The folder of the models that the package brought, laid out in the same way and never written to. Empty: no
    /// packaged models.
    pub packaged: PathBuf,
    /// The most models that this box has served that load at the same time, and the most new ones.
    #[serde(deserialize_with = "in_range::<1, 64, _, _>")]
    pub parallel_loads: usize,
}

impl RepositoryConfig {
    /// Takes the models of this folder only.
    pub fn use_only(&mut self, folder: PathBuf) {
        self.path = folder;
        self.packaged = PathBuf::new();
    }
}

impl Default for RepositoryConfig {
    fn default() -> Self {
        Self { path: "models".into(), packaged: PathBuf::new(), parallel_loads: 2 }
    }
}

impl ConfigSection for RepositoryConfig {
    fn resolve(&mut self, root: &Path) {
        config_path::resolve(&mut self.path, root);
        config_path::resolve_if_set(&mut self.packaged, root);
    }
}
