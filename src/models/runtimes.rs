//! The section `[runtimes]` of the configuration.
//!
//! Files of `runtimes/`: `doctor.rs` has the findings about the libraries, `sandbox.rs` the one about the sandbox of
//! the processes that run models.

pub(crate) mod doctor;
pub mod sandbox;

use std::path::PathBuf;

use ledge_base::toml_check::{ValueProblem, in_range};
use ledge_isolation::IsolationSetting;
use serde::{Deserialize, Serialize};

/// The folder of the runtimes, and the cores and memory that they may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuntimesConfig {
    /// The folder with the shared libraries of ONNX Runtime and OpenVINO.
    pub dir: PathBuf,
    /// The folder where OpenVINO keeps compiled models. It may be emptied at any time.
    pub cache: PathBuf,
    /// The process that models run in, unless their `model.toml` asks for more: `process` is one sandboxed process for
    /// all of them, and `own` one for each.
    pub isolation: IsolationSetting,
    /// The number of cores that all models share; 0 is every physical core that this process may use.
    #[serde(deserialize_with = "in_range::<0, 1024, _, _>")]
    pub threads: usize,
    /// The memory that all models may take together, in MiB; 0 is no limit. Above it, the least recently used models
    /// free their memory until they are called again.
    #[serde(deserialize_with = "in_range::<0, 16_777_216, _, _>")]
    pub memory_mb: u64,
    /// Measures a model in each runtime that accepts it when it is loaded, unless it was measured on this machine
    /// before.
    pub measure: bool,
    /// The time in seconds without a call after which a model frees its memory, until the next call loads it again; 0
    /// is never.
    #[serde(deserialize_with = "in_range::<0, 31_536_000, _, _>")]
    pub keep_alive_s: u64,
}

impl Default for RuntimesConfig {
    fn default() -> Self {
        Self {
            dir: "runtimes".into(),
            cache: "cache".into(),
            isolation: IsolationSetting::default(),
            threads: 0,
            memory_mb: 0,
            measure: true,
            keep_alive_s: 0,
        }
    }
}

impl RuntimesConfig {
    /// Settings with an outdated meaning. The daemon starts with them.
    pub fn warnings(&self) -> Vec<ValueProblem> {
        self.isolation
            .finding()
            .map(|finding| ValueProblem::new("isolation", finding.to_string()))
            .into_iter()
            .collect()
    }
}
