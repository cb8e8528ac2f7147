//! The log to copy, and its destination.

use std::path::PathBuf;

use ledge_base::names::DeviceName;

use crate::config::SyncConfig;

/// The log to copy, and its destination.
#[derive(Debug, Clone)]
pub struct SyncSettings {
    /// The section `[audit.sync]`.
    pub config: SyncConfig,
    /// The folder of all logs.
    pub folder: PathBuf,
    /// The name of this box.
    pub device: DeviceName,
    /// The verifier key of its checkpoints.
    pub verifier_key: String,
}
