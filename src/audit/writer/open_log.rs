//! The log that is open, with its keys.

use std::time::Instant;

use super::super::key::AuditKey;
use super::super::log::AuditLog;
use super::super::tags::AuditTagKeys;

/// The open log, with its keys.
pub struct OpenAuditLog {
    pub key: AuditKey,
    pub tags: AuditTagKeys,
    pub log: AuditLog,
    pub signed: Instant,
    /// Set if the next head should be sent at once.
    pub is_urgent: bool,
}
