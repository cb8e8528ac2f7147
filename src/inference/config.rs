//! The section `[runtimes]` of the configuration.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::toml_check::in_range;

/// Where the runtimes are and what they may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuntimesConfig {
    /// The folder with the shared libraries of ONNX Runtime and OpenVINO.
    pub dir: PathBuf,
    /// The folder where OpenVINO keeps compiled models. It may be emptied at any time.
    pub cache: PathBuf,
    /// How many cores all models share; 0 is every core this process may use.
    #[serde(deserialize_with = "in_range::<0, 1024, _, _>")]
    pub threads: usize,
}

impl Default for RuntimesConfig {
    fn default() -> Self {
        Self { dir: "runtimes".into(), cache: "cache".into(), threads: 0 }
    }
}
