//! Versions of models that updates brought.

use std::path::PathBuf;

use ledge_base::names::ModelVersion;

/// A version of a model that an update brought. Its files lie in one folder: `model.toml`, labels and golden inputs
/// next to the model's own.
#[derive(Debug, Clone, PartialEq)]
pub struct ManagedVersion {
    pub version: ModelVersion,
    /// The folder of the release.
    pub folder: PathBuf,
    /// The least share of the golden inputs that must be answered right, from 0 to 1; `None` is all of them.
    pub golden_min: Option<f64>,
}

/// State of a managed model.
#[derive(Debug, Clone, PartialEq)]
pub struct ManagedState {
    /// The version that updates want to be live.
    pub release: ManagedVersion,
    /// Reason why it is not live, for example after damage to the disk; the owner's version is served then, if there is
    /// one.
    pub fault: Option<String>,
}
