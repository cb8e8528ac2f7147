//! The log to copy, and its destination.

use std::path::PathBuf;

use ledge_base::names::DeviceName;

use crate::config::AuditSyncConfig;

/// The log to copy, and its destination.
#[derive(Debug, Clone)]
pub struct AuditSyncSettings {
    /// The section `[audit.sync]`.
    pub config: AuditSyncConfig,
    /// The folder of all logs.
    pub folder: PathBuf,
    /// The name of this box.
    pub device: DeviceName,
    /// The verifier key of its checkpoints.
    pub verifier_key: String,
}
