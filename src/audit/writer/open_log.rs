//! The log that is open, with its keys.

use std::time::Instant;

use super::super::key::AuditKey;
use super::super::log::Log;
use super::super::tags::Tags;

/// The open log, with its keys.
pub struct OpenLog {
    pub key: AuditKey,
    pub tags: Tags,
    pub log: Log,
    pub signed: Instant,
    /// Set if the next head should be sent at once.
    pub is_urgent: bool,
}
