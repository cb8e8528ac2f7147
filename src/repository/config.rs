//! The section `[repository]` of the configuration.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::toml_check::in_range;

/// Where models are and how they are loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RepositoryConfig {
    /// The model repository: a folder with one folder a model.
    pub path: PathBuf,
    /// How many models load at the same time.
    #[serde(deserialize_with = "in_range::<1, 64, _, _>")]
    pub parallel_loads: usize,
}

impl Default for RepositoryConfig {
    fn default() -> Self {
        Self { path: "models".into(), parallel_loads: 2 }
    }
}
