//! Records to the report, one after the other, from the beginning of the first log on. Pure: it reads no file and no
//! clock.

mod calls;
mod egress;
mod events;
mod findings;
mod models;

use std::collections::HashMap;
use std::ops::Range;

use ledge_audit::record::{Actor, AuditRecord};
use ledge_base::clock;
use ledge_base::principal::Principal;
use ledge_service::audit_event::tag::{Tag, TagKey};

use crate::document::{
    ActionCount, Calls, DriftOfMonth, EgressOfMonth, EventSection, FeatureCalls, Findings, Models, RecordPlace,
};

/// The names of callers, by their tags, as far as the box can tell them.
#[derive(Debug, Clone, Default)]
pub struct CallerNames {
    names: HashMap<Tag, String>,
}

impl CallerNames {
    /// The names of these callers, by the keys for tags that the box still has.
    pub fn new(keys: &[TagKey], callers: &[Principal]) -> Self {
        let names = callers.iter().map(ToString::to_string);
        let tagged = |name: String| keys.iter().map(move |key| (key.of_text(&name), name.clone())).collect::<Vec<_>>();
        Self { names: names.flat_map(tagged).collect() }
    }

    /// The name of a caller, or else how it reached the box, and its tag.
    pub fn of(&self, actor: &Actor) -> String {
        match &actor.tag {
            None => actor.kind.as_str().to_owned(),
            Some(tag) => match self.names.get(tag) {
                Some(name) => name.clone(),
                None => format!("{} {tag}", actor.kind.as_str()),
            },
        }
    }
}

/// A caller as `ledge audit show --actor` takes it.
fn actor_option(actor: &Actor) -> String {
    actor.tag.map_or_else(|| actor.kind.as_str().to_owned(), |tag| tag.to_string())
}

/// A moment, in RFC 3339.
fn time(unix_ms: u64) -> String {
    clock::rfc3339(unix_ms)
}

/// Collects the report of one month.
pub struct MonthCollector<'n> {
    /// The moments of the month, in milliseconds since the Unix epoch.
    month: Range<u64>,
    names: &'n CallerNames,
    calls: calls::CallCollector,
    models: models::ModelCollector,
    egress: egress::EgressCollector,
    events: events::EventCollector,
    findings: findings::FindingCollector,
    span: MonthSpan,
}

/// The records of the month, and what is before and after them.
#[derive(Debug, Clone, Default)]
pub struct MonthSpan {
    pub records: u64,
    pub unsigned: u64,
    pub first: Option<RecordPlace>,
    pub last: Option<RecordPlace>,
    /// True if there is a record from before the month.
    pub has_before: bool,
    /// True if the clock jumped in the month, so that records may be of another time than they say.
    pub has_jumps: bool,
    /// Events and calls that were lost in the month.
    pub lost: u64,
    /// True if bytes of another time may be among those of the month.
    pub has_uncertain_egress: bool,
}

/// Everything that was collected.
pub struct CollectedMonth {
    pub calls: Calls,
    pub features: FeatureCalls,
    pub models: Models,
    pub egress: EgressOfMonth,
    pub events: Vec<EventSection>,
    pub findings: Findings,
    pub drift: DriftOfMonth,
    pub records: Vec<ActionCount>,
    pub span: MonthSpan,
}

impl<'n> MonthCollector<'n> {
    pub fn new(month: Range<u64>, names: &'n CallerNames) -> Self {
        Self {
            names,
            calls: calls::CallCollector::default(),
            models: models::ModelCollector::new(month.clone()),
            egress: egress::EgressCollector::new(month.clone()),
            events: events::EventCollector::default(),
            findings: findings::FindingCollector::new(month.clone()),
            span: MonthSpan::default(),
            month,
        }
    }

    /// Takes the next record of the log with this number.
    pub fn take(&mut self, log: u32, record: &AuditRecord, is_signed: bool) {
        let in_month = self.month.contains(&record.ts.0);
        self.models.take(log, record);
        self.egress.take(log, record);
        self.findings.take(log, record);
        self.events.take(log, record, in_month, self.names);
        self.span.has_before |= record.ts.0 < self.month.start;
        if !in_month {
            return;
        }
        self.calls.take(log, record);
        let span = &mut self.span;
        span.records += 1;
        span.unsigned += u64::from(!is_signed);
        let place = RecordPlace { log, record: record.seq, at: time(record.ts.0) };
        span.first.get_or_insert_with(|| place.clone());
        span.last = Some(place);
        match &record.event {
            ledge_service::audit_event::AuditEvent::ClockJumped { .. } => span.has_jumps = true,
            ledge_service::audit_event::AuditEvent::RecordsLost { calls, events, .. } => {
                span.lost = span.lost.saturating_add(*calls).saturating_add(*events);
            }
            _ => {}
        }
    }

    /// The report, without what the log does not say.
    pub fn finish(self) -> CollectedMonth {
        let (calls, features) = self.calls.finish(self.names);
        let (events, records) = self.events.finish();
        let (findings, drift) = self.findings.finish();
        let span = MonthSpan { has_uncertain_egress: self.egress.is_uncertain, ..self.span };
        CollectedMonth {
            calls,
            features,
            models: self.models.finish(),
            egress: self.egress.finish(),
            events,
            findings,
            drift,
            records,
            span,
        }
    }
}

#[cfg(test)]
mod tests;
