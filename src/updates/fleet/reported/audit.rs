//! The head of the audit log, which the broker keeps: a witness beside the platform. A box that tells the platform another
//! history later cannot take back what it told here.

use ledge_audit::status::{AuditState, AuditStatus};
use schemars::JsonSchema;
use serde::Serialize;

/// How the audit log does, and its last signed head.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditFacts {
    pub status: AuditStatus,
    /// The checkpoint as it is published; `None` while nothing was signed.
    pub checkpoint: Option<Vec<u8>>,
}

impl AuditFacts {
    /// Those of now.
    pub fn gather(audit: &AuditState) -> Self {
        let checkpoint = audit.heads().borrow().as_ref().map(|head| head.checkpoint.note.clone());
        Self { status: audit.status(), checkpoint }
    }
}

/// The part `audit` of the document.
#[derive(Serialize, JsonSchema)]
pub(super) struct Audit<'a> {
    log: &'a str,
    verifier_key: &'a str,
    checkpoint: Option<String>,
    size: Option<u64>,
    synced: Option<u64>,
    lost: Lost,
    error: Option<String>,
    alarm: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Lost {
    calls: u64,
    events: u64,
}

impl<'a> From<&'a AuditFacts> for Audit<'a> {
    fn from(AuditFacts { status, checkpoint }: &'a AuditFacts) -> Self {
        let excerpt = |text: &Option<String>| text.as_ref().map(|text| super::excerpt(text, super::MAX_REASON));
        let (calls, events) = status.lost;
        Self {
            log: &status.origin,
            verifier_key: &status.verifier_key,
            checkpoint: checkpoint.as_ref().map(|note| String::from_utf8_lossy(note).into_owned()),
            size: status.log.map(|log| log.size),
            synced: status.sync.as_ref().map(|sync| sync.size),
            lost: Lost { calls, events },
            error: excerpt(&status.error),
            alarm: excerpt(&status.alarm),
        }
    }
}
