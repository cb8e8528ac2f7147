//! The status of updates in the report to the platform.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::status::UpdatesStatus;
use crate::status_report::{SubjectReport, UpdatesReport};

/// Most subjects in a document, so that it fits the broker with the smallest limit.
const MAX_SUBJECTS: usize = 24;

/// Longest text of a subject, in bytes.
const MAX_TEXT_BYTES: usize = 160;

/// The part `updates` of the document.
#[derive(Serialize, JsonSchema)]
pub(super) struct ReportedUpdates {
    checked: Option<String>,
    error: Option<String>,
    metadata: BTreeMap<String, u64>,
    subjects: Vec<SubjectReport>,
    subjects_left_out: usize,
}

impl From<&UpdatesStatus> for ReportedUpdates {
    fn from(status: &UpdatesStatus) -> Self {
        let UpdatesReport { checked, error, mut subjects, .. } = status.into();
        let subjects_left_out = subjects.len().saturating_sub(MAX_SUBJECTS);
        subjects.truncate(MAX_SUBJECTS);
        for subject in &mut subjects {
            let (held, fault) = match &mut subject.trial {
                Some(trial) => (trial.held.as_mut(), trial.fault.as_mut().map(|fault| &mut fault.reason)),
                None => (None, None),
            };
            let reason = subject.waiting.as_mut().map(|waiting| &mut waiting.reason);
            let detail = subject.last.as_mut().and_then(|last| last.detail.as_mut());
            for text in [held, fault, reason, detail, subject.error.as_mut()].into_iter().flatten() {
                *text = super::excerpt(text, MAX_TEXT_BYTES);
            }
        }
        Self {
            checked,
            error: error.map(|error| super::excerpt(&error, super::MAX_REASON_BYTES)),
            metadata: status.check.roles.iter().map(|(role, status)| (role.clone(), status.version)).collect(),
            subjects,
            subjects_left_out,
        }
    }
}
