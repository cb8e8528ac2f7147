//! The findings of a part that are recorded in the audit log when they begin and end.

use std::collections::BTreeSet;

use ledge_base::names::{ModelName, ModelVersion};
use ledge_service::audit_event::{AuditEvent, AuditSink};

use crate::check::FindingStatus;

const DAY_MS: u64 = 86_400_000;

/// The most findings whose begin is recorded in a day, by UTC.
const BEGINS_A_DAY_MAX: u32 = 50;

/// A finding as it is recorded. Its name has only names that the owner of the box chose.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordedFinding {
    pub finding: String,
    pub model: Option<ModelName>,
    pub version: Option<ModelVersion>,
    pub status: FindingStatus,
}

impl RecordedFinding {
    fn began(self, others: u64) -> AuditEvent {
        let Self { finding, model, version, status } = self;
        let status = if status == FindingStatus::Fail { "fail" } else { "warn" };
        AuditEvent::FindingBegan { finding, model, version, status: status.into(), others }
    }

    fn ended(self) -> AuditEvent {
        let Self { finding, model, version, .. } = self;
        AuditEvent::FindingEnded { finding, model, version }
    }
}

/// The findings of one part.
#[derive(Debug, Default)]
pub struct FindingLog {
    /// Findings whose begin is recorded, and whose end is not.
    open: BTreeSet<RecordedFinding>,
    /// Findings beyond those of the day, which are recorded the next day if they last.
    held_back: BTreeSet<RecordedFinding>,
    /// Findings that ended while they were held back, since the last record.
    others: u64,
    day: u64,
    begins: u32,
}

impl FindingLog {
    /// Records the differences between `now` and the findings before.
    pub fn record(&mut self, now: BTreeSet<RecordedFinding>, now_ms: u64, audit: &AuditSink) {
        for event in self.changes(now, now_ms) {
            audit.record_own(event);
        }
    }

    fn changes(&mut self, now: BTreeSet<RecordedFinding>, now_ms: u64) -> Vec<AuditEvent> {
        if now_ms / DAY_MS != self.day {
            (self.day, self.begins) = (now_ms / DAY_MS, 0);
        }
        let ended: Vec<_> = self.open.extract_if(.., |open| !now.contains(open)).collect();
        let mut events: Vec<_> = ended.into_iter().map(RecordedFinding::ended).collect();
        self.others += self.held_back.extract_if(.., |held| !now.contains(held)).count() as u64;
        for finding in now {
            if self.open.contains(&finding) {
                continue;
            }
            if self.begins >= BEGINS_A_DAY_MAX {
                self.held_back.insert(finding);
                continue;
            }
            self.begins += 1;
            self.held_back.remove(&finding);
            events.push(finding.clone().began(std::mem::take(&mut self.others)));
            self.open.insert(finding);
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(names: std::ops::Range<u32>) -> BTreeSet<RecordedFinding> {
        let finding = |number| RecordedFinding {
            finding: format!("objective {number}"),
            model: None,
            version: None,
            status: FindingStatus::Warn,
        };
        names.map(finding).collect()
    }

    fn counts(events: &[AuditEvent]) -> (usize, usize, u64) {
        let began = events.iter().filter_map(|event| match event {
            AuditEvent::FindingBegan { others, .. } => Some(*others),
            _ => None,
        });
        let began: Vec<u64> = began.collect();
        (began.len(), events.len() - began.len(), began.iter().sum())
    }

    #[test]
    fn a_finding_is_recorded_once_when_it_begins_and_once_when_it_ends() {
        let mut log = FindingLog::default();
        assert_eq!(counts(&log.changes(findings(0..2), 0)), (2, 0, 0));
        assert_eq!(counts(&log.changes(findings(0..2), 1)), (0, 0, 0));
        assert_eq!(counts(&log.changes(findings(1..3), 2)), (1, 1, 0));
        assert_eq!(counts(&log.changes(findings(0..0), 3)), (0, 2, 0));
    }

    #[test]
    fn a_day_has_a_bounded_number_of_records_and_the_rest_is_counted() {
        let mut log = FindingLog::default();
        assert_eq!(counts(&log.changes(findings(0..70), 0)), (50, 0, 0));
        assert_eq!(counts(&log.changes(findings(0..70), 1)), (0, 0, 0));
        assert_eq!(counts(&log.changes(findings(60..70), 2)), (0, 50, 0));
        // The ten that last are recorded the next day, and the ten that ended unrecorded are counted.
        assert_eq!(counts(&log.changes(findings(60..70), DAY_MS)), (10, 0, 10));
        assert_eq!(counts(&log.changes(findings(0..0), DAY_MS)), (0, 10, 0));
    }
}
