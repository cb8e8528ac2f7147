//! A release in the update store.

use ledge_base::names::ModelVersion;
use serde::{Deserialize, Serialize};

/// A release in the update store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledRelease {
    pub version: ModelVersion,
    /// SHA-256 of its signed content, in hexadecimal: its files and their description.
    pub digest: String,
}
