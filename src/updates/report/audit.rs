//! The head of the audit log, which the broker retains: a witness besides the platform. A box that shows the platform
//! another history later cannot take back the head that it reported here.

use ledge_audit::status::{AuditState, AuditStatus};
use schemars::JsonSchema;
use serde::Serialize;

/// The status of the audit log, and its last signed head.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditSnapshot {
    pub status: AuditStatus,
    /// The checkpoint as it is published; `None` while nothing was signed.
    pub checkpoint: Option<Vec<u8>>,
}

impl AuditSnapshot {
    /// Reads the current status and head.
    pub fn gather(audit: &AuditState) -> Self {
        let checkpoint = audit.heads().borrow().as_ref().map(|head| head.checkpoint.note.clone());
        Self { status: audit.status(), checkpoint }
    }
}

/// The part `audit` of the document.
#[derive(Serialize, JsonSchema)]
pub(super) struct ReportedAudit<'a> {
    log: &'a str,
    verifier_key: &'a str,
    checkpoint: Option<String>,
    size: Option<u64>,
    synced: Option<u64>,
    lost: LostCounts,
    error: Option<String>,
    alarm: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct LostCounts {
    calls: u64,
    events: u64,
}

impl<'a> From<&'a AuditSnapshot> for ReportedAudit<'a> {
    fn from(AuditSnapshot { status, checkpoint }: &'a AuditSnapshot) -> Self {
        let excerpt = |text: &Option<String>| text.as_ref().map(|text| super::excerpt(text, super::MAX_REASON_BYTES));
        let (calls, events) = status.lost;
        Self {
            log: &status.origin,
            verifier_key: &status.verifier_key,
            checkpoint: checkpoint.as_ref().map(|note| String::from_utf8_lossy(note).into_owned()),
            size: status.log.map(|log| log.size),
            synced: status.sync.as_ref().map(|sync| sync.size),
            lost: LostCounts { calls, events },
            error: excerpt(&status.error),
            alarm: excerpt(&status.alarm),
        }
    }
}
