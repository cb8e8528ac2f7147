//! Counts of the content of records.

use std::collections::BTreeMap;

use ledge_service::audit_event::{AuditEvent, PreviousLog};
use serde::Serialize;

use crate::record::{AuditRecord, Timestamp};

/// Number of reports of losses that are listed. Further ones are only added up.
const LOST_LISTED_MAX: usize = 100;

/// A summary of the records of a log.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct LogSummary {
    /// The number of records.
    pub records: u64,
    /// The earliest time of a record.
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    /// The number of records of each action.
    pub actions: BTreeMap<&'static str, u64>,
    /// Inference calls that never became records.
    pub lost_calls: u64,
    /// Other events that never became records.
    pub lost_events: u64,
    /// The records that report losses, a hundred at most.
    pub lost: Vec<LossSummary>,
    /// The sequence number below which records were removed from the box.
    pub pruned_below: u64,
    /// The reason why the log began, and the log before it.
    pub begun: Option<LogStart>,
}

/// Events that never became records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LossSummary {
    /// The record that reports it.
    pub seq: u64,
    pub ts: Timestamp,
    pub cause: String,
    pub calls: u64,
    pub events: u64,
}

/// The beginning of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogStart {
    /// `new`, `damaged`, `forked` or `renamed`.
    pub cause: String,
    /// The log before it, as far as it is known.
    pub previous: Option<PreviousLog>,
}

impl LogSummary {
    /// Counts a record.
    pub fn count(&mut self, record: &AuditRecord) {
        self.records += 1;
        self.since = Some(self.since.map_or(record.ts, |since| since.min(record.ts)));
        self.until = Some(self.until.map_or(record.ts, |until| until.max(record.ts)));
        *self.actions.entry(record.event.action()).or_default() += 1;
        match &record.event {
            AuditEvent::RecordsLost { cause, calls, events, .. } => {
                self.lost_calls = self.lost_calls.saturating_add(*calls);
                self.lost_events = self.lost_events.saturating_add(*events);
                if self.lost.len() < LOST_LISTED_MAX {
                    let (seq, ts, cause) = (record.seq, record.ts, cause.to_string());
                    self.lost.push(LossSummary { seq, ts, cause, calls: *calls, events: *events });
                }
            }
            AuditEvent::RecordsPruned { below, .. } => self.pruned_below = self.pruned_below.max(*below),
            // A later record of this kind is not the beginning of this log.
            AuditEvent::LogBegun { cause, previous } if record.seq == 0 => {
                self.begun = Some(LogStart { cause: cause.to_string(), previous: previous.clone() });
            }
            _ => {}
        }
    }
}
