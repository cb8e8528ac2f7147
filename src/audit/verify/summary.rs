//! What records say, counted.

use std::collections::BTreeMap;

use ledge_service::audit_event::{AuditEvent, PreviousLog};
use serde::Serialize;

use crate::record::{AuditRecord, Timestamp};

/// How many records about lost ones are listed; beyond them they are only added up.
const LISTED: usize = 100;

/// What the records of a log say.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Summary {
    /// How many records were read.
    pub records: u64,
    /// The earliest time of one.
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    /// How many there are of each action.
    pub actions: BTreeMap<&'static str, u64>,
    /// Inference calls that never became records.
    pub lost_calls: u64,
    /// Other events that never did.
    pub lost_events: u64,
    /// The records that say so, a hundred at most.
    pub lost: Vec<Lost>,
    /// Below this sequence number records were removed from the box.
    pub pruned_below: u64,
    /// Why the log began, and what the one before it had.
    pub begun: Option<Begun>,
}

/// Events that never became records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// The record that says so.
    pub seq: u64,
    pub ts: Timestamp,
    pub cause: String,
    pub calls: u64,
    pub events: u64,
}

/// How a log began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Begun {
    /// `new`, `damaged`, `forked` or `renamed`.
    pub cause: String,
    /// What is known of the log before.
    pub previous: Option<PreviousLog>,
}

impl Summary {
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
                if self.lost.len() < LISTED {
                    let (seq, ts, cause) = (record.seq, record.ts, cause.to_string());
                    self.lost.push(Lost { seq, ts, cause, calls: *calls, events: *events });
                }
            }
            AuditEvent::RecordsPruned { below, .. } => self.pruned_below = self.pruned_below.max(*below),
            // Whatever says so later is not how this log began.
            AuditEvent::LogBegun { cause, previous } if record.seq == 0 => {
                self.begun = Some(Begun { cause: cause.to_string(), previous: previous.clone() });
            }
            _ => {}
        }
    }
}
