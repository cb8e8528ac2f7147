//! `[documents]`: the model that reads documents for the interfaces of other services, and the limits of their
//! operations.

use std::time::Duration;

use ledge_base::names::ModelName;
use ledge_base::toml_check::in_range;
use ledge_part::section::ConfigSection;
use serde::{Deserialize, Serialize};

/// The section `[documents]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DocumentsConfig {
    /// The model of `/documentintelligence` and of `/process`.
    pub model: ModelName,
    /// The most operations of a caller at a time, those with a result that is kept included.
    #[serde(deserialize_with = "in_range::<1, 10_000, _, _>")]
    pub max_operations: usize,
    /// The time that the result of an operation is kept for its caller, in seconds.
    #[serde(deserialize_with = "in_range::<1, 86_400, _, _>")]
    pub keep_results_s: u64,
}

impl Default for DocumentsConfig {
    fn default() -> Self {
        Self { model: ModelName::constant("document_reader"), max_operations: 32, keep_results_s: 600 }
    }
}

impl DocumentsConfig {
    /// [`Self::keep_results_s`].
    pub fn keep_results(&self) -> Duration {
        Duration::from_secs(self.keep_results_s)
    }
}

impl ConfigSection for DocumentsConfig {}
