//! Findings that began and ended, and drift by version: references, and releases that were rolled back because of it.

use std::collections::BTreeMap;
use std::ops::Range;

use ledge_audit::record::AuditRecord;
use ledge_base::names::{ModelName, ModelVersion};
use ledge_service::audit_event::AuditEvent;

use crate::document::{DriftOfMonth, FindingRow, Findings, ReferenceRow, RollbackRow};
use crate::evidence::{Evidence, EvidenceCounter, RecordSelection};

/// The most rows of each table.
const ROWS_MAX: usize = 500;

pub struct FindingCollector {
    /// The moments of the month, in milliseconds since the Unix epoch.
    month: Range<u64>,
    findings: BTreeMap<FindingKey, FindingCounts>,
    /// The last reference of each version up to the end of the month.
    references: BTreeMap<(ModelName, ModelVersion), Reference>,
    rollbacks: Vec<RollbackRow>,
    unlisted_findings: u64,
    unlisted_drift: u64,
}

type FindingKey = (String, Option<ModelName>, Option<ModelVersion>);

#[derive(Default)]
struct FindingCounts {
    first_ms: u64,
    is_failure: bool,
    began: EvidenceCounter,
    ended: EvidenceCounter,
    begins: u64,
    ends: u64,
}

struct Reference {
    origin: String,
    at_ms: u64,
    log: u32,
    seq: u64,
}

impl FindingCollector {
    pub fn new(month: Range<u64>) -> Self {
        Self {
            month,
            findings: BTreeMap::new(),
            references: BTreeMap::new(),
            rollbacks: Vec::new(),
            unlisted_findings: 0,
            unlisted_drift: 0,
        }
    }

    /// Takes a record of any time.
    pub fn take(&mut self, log: u32, record: &AuditRecord) {
        let (seq, at_ms) = (record.seq, record.ts.0);
        let in_month = self.month.contains(&at_ms);
        match &record.event {
            AuditEvent::FindingBegan { finding, model, version, status, .. } if in_month => {
                if let Some(counts) = self.counts((finding.clone(), model.clone(), *version), at_ms) {
                    counts.begins += 1;
                    counts.is_failure |= status.as_str() == "fail";
                    counts.began.add(log, seq);
                }
            }
            AuditEvent::FindingEnded { finding, model, version } if in_month => {
                if let Some(counts) = self.counts((finding.clone(), model.clone(), *version), at_ms) {
                    counts.ends += 1;
                    counts.ended.add(log, seq);
                }
            }
            AuditEvent::DriftReferenceFixed { model, version, origin } if at_ms < self.month.end => {
                let key = (model.clone(), *version);
                if self.references.len() < ROWS_MAX || self.references.contains_key(&key) {
                    self.references.insert(key, Reference { origin: origin.to_string(), at_ms, log, seq });
                } else {
                    self.unlisted_drift += 1;
                }
            }
            AuditEvent::UpdateMoved { subject, version, cause: Some(cause), .. }
                if in_month && cause.as_str() == "drift" =>
            {
                if self.rollbacks.len() >= ROWS_MAX {
                    self.unlisted_drift += 1;
                    return;
                }
                let (subject, version, at) = (subject.clone(), version.get(), super::time(at_ms));
                self.rollbacks.push(RollbackRow { subject, version, at, evidence: one("update_moved", log, seq) });
            }
            _ => {}
        }
    }

    fn counts(&mut self, key: FindingKey, at_ms: u64) -> Option<&mut FindingCounts> {
        if self.findings.len() >= ROWS_MAX && !self.findings.contains_key(&key) {
            self.unlisted_findings += 1;
            return None;
        }
        let new = FindingCounts { first_ms: at_ms, ..FindingCounts::default() };
        Some(self.findings.entry(key).or_insert(new))
    }

    pub fn finish(self) -> (Findings, DriftOfMonth) {
        let finding = |((finding, model, version), counts): (FindingKey, FindingCounts)| {
            let selection = |action| match &model {
                Some(model) => RecordSelection::actions(&[action]).model(model),
                None => RecordSelection::actions(&[action]),
            };
            FindingRow {
                began_evidence: counts.began.finish(&selection("finding_began")),
                ended_evidence: counts.ended.finish(&selection("finding_ended")),
                model: model.as_ref().map(ToString::to_string),
                version: version.map(ModelVersion::get),
                finding,
                worst: if counts.is_failure { "fail" } else { "warn" },
                first: super::time(counts.first_ms),
                began: counts.begins,
                ended: counts.ends,
            }
        };
        let reference = |((model, version), of): ((ModelName, ModelVersion), Reference)| ReferenceRow {
            model: model.to_string(),
            version: version.get(),
            reference: of.origin,
            fixed: super::time(of.at_ms),
            evidence: one("drift_reference_fixed", of.log, of.seq),
        };
        let findings = self.findings.into_iter().map(finding).collect();
        let references = self.references.into_iter().map(reference).collect();
        (
            Findings { rows: findings, unlisted: self.unlisted_findings },
            DriftOfMonth { references, rollbacks: self.rollbacks, unlisted: self.unlisted_drift },
        )
    }
}

fn one(action: &'static str, log: u32, seq: u64) -> Vec<Evidence> {
    EvidenceCounter::one(log, seq).finish(&RecordSelection::actions(&[action]))
}
