//! Events that are listed one by one, by section.

use std::collections::BTreeMap;

use ledge_audit::record::AuditRecord;
use ledge_service::audit_event::AuditEvent;
use serde_json::Value;

use super::CallerNames;
use crate::document::{ActionCount, EventRow, EventSection};
use crate::evidence::{EvidenceCounter, RecordSelection};

/// The most events that a section lists. All are in its counts.
const LISTED_MAX: usize = 200;

/// A section of the report that lists events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Section {
    Rollouts,
    Refusals,
    Subjects,
    Keys,
    Administration,
    Retention,
    Incidents,
}

impl Section {
    const ALL: [Self; 7] = [
        Self::Rollouts,
        Self::Refusals,
        Self::Subjects,
        Self::Keys,
        Self::Administration,
        Self::Retention,
        Self::Incidents,
    ];

    /// The section of an event; `None` for events that are only counted, or have a table of their own.
    fn of(event: &AuditEvent) -> Option<Self> {
        Some(match event {
            AuditEvent::UpdateMoved { .. }
            | AuditEvent::UpdateOrdered { .. }
            | AuditEvent::ModelAdded { .. }
            | AuditEvent::ModelRemoved { .. } => Self::Rollouts,
            AuditEvent::ModelRefused { .. } | AuditEvent::ModelFellBack { .. } | AuditEvent::MetadataRefused { .. } => {
                Self::Refusals
            }
            AuditEvent::FeatureEntityErased { .. }
            | AuditEvent::FeatureEntityDisclosed { .. }
            | AuditEvent::TagKeyDestroyed { .. } => Self::Subjects,
            AuditEvent::KeyCreated { .. }
            | AuditEvent::KeyRevoked { .. }
            | AuditEvent::KeyChanged { .. }
            | AuditEvent::SignInCodeMade { .. }
            | AuditEvent::SessionBegan { .. }
            | AuditEvent::SessionEnded { .. }
            | AuditEvent::MasterKeyChanged { .. }
            | AuditEvent::Resealed { .. }
            | AuditEvent::AuditKeyMade { .. }
            | AuditEvent::TagKeyMade { .. }
            | AuditEvent::CertificateIssued { .. } => Self::Keys,
            AuditEvent::ConfigurationChanged { .. }
            | AuditEvent::ListensUnencrypted { .. }
            | AuditEvent::FeatureStoreRestored { .. }
            | AuditEvent::FeatureStoreBackedUp { .. }
            | AuditEvent::QuestionAnswered { .. }
            | AuditEvent::MaintenanceRequested { .. }
            | AuditEvent::DriftReferenceFixed { .. }
            | AuditEvent::UnusualCalledNormal { .. }
            | AuditEvent::UnusualRowCalledNormal { .. }
            | AuditEvent::JobAdded { .. }
            | AuditEvent::JobEnded { .. }
            | AuditEvent::JobRemoved { .. }
            | AuditEvent::Started { .. }
            | AuditEvent::Stopped => Self::Administration,
            AuditEvent::RetentionEnforced { .. } | AuditEvent::RecordsPruned { .. } => Self::Retention,
            AuditEvent::ModelCrashed { .. }
            | AuditEvent::CallerRefused { .. }
            | AuditEvent::FeatureStoreDamaged
            | AuditEvent::MetadataDamaged
            | AuditEvent::TrustReset
            | AuditEvent::ConnectionRefused { .. }
            | AuditEvent::QuestionRefused { .. }
            | AuditEvent::AccessDenied { .. }
            | AuditEvent::AuthenticationFailed { .. }
            | AuditEvent::KeyStoreDamaged
            | AuditEvent::ClockJumped { .. }
            | AuditEvent::SpaceChanged { .. }
            | AuditEvent::BudgetReached { .. }
            | AuditEvent::FindingBegan { .. }
            | AuditEvent::FindingEnded { .. }
            | AuditEvent::UnusualBegan { .. }
            | AuditEvent::UnusualEnded { .. }
            | AuditEvent::RecordsLost { .. }
            | AuditEvent::LogBegun { .. } => Self::Incidents,
            AuditEvent::Idle
            | AuditEvent::ModelLoaded { .. }
            | AuditEvent::ModelUnloaded { .. }
            | AuditEvent::Inference { .. }
            | AuditEvent::InferenceMinute { .. }
            | AuditEvent::FeaturesRead { .. }
            | AuditEvent::FeaturesPushed { .. }
            | AuditEvent::MetadataAccepted { .. }
            | AuditEvent::ConnectionOpened { .. }
            | AuditEvent::EgressCounted { .. }
            | AuditEvent::PicturesPublished { .. }
            | AuditEvent::PicturesSeen { .. } => return None,
        })
    }

    fn name(self) -> (&'static str, &'static str) {
        match self {
            Self::Rollouts => ("rollouts", "Rollouts, rollbacks, and models that were added or removed"),
            Self::Refusals => ("refusals", "Refused releases and metadata, and fallbacks"),
            Self::Subjects => ("subjects", "Erasures and disclosures"),
            Self::Keys => ("keys", "Keys and certificates"),
            Self::Administration => ("administration", "Starts, settings and administration"),
            Self::Retention => ("retention", "Removal by retention and quota"),
            Self::Incidents => ("incidents", "Incidents"),
        }
    }
}

/// The events of a month, and the number of records of each action.
#[derive(Default)]
pub struct EventCollector {
    sections: BTreeMap<Section, Listed>,
    actions: BTreeMap<&'static str, Counted>,
    /// True after a start, until an orderly stop.
    is_running: bool,
}

#[derive(Default)]
struct Listed {
    counts: BTreeMap<&'static str, Counted>,
    rows: Vec<EventRow>,
    events: u64,
}

#[derive(Default)]
struct Counted {
    records: u64,
    events: u64,
    evidence: EvidenceCounter,
}

impl Counted {
    fn add(&mut self, log: u32, record: &AuditRecord) {
        self.records += 1;
        self.events = self.events.saturating_add(events_of(&record.event));
        self.evidence.add(log, record.seq);
    }

    fn finish(&self, action: &'static str) -> ActionCount {
        let evidence = self.evidence.finish(&RecordSelection::actions(&[action]));
        ActionCount { action, records: self.records, events: self.events, evidence }
    }
}

/// The number of events that a record stands for.
fn events_of(event: &AuditEvent) -> u64 {
    match event {
        AuditEvent::ConnectionOpened { others, .. }
        | AuditEvent::AccessDenied { others, .. }
        | AuditEvent::AuthenticationFailed { others, .. }
        | AuditEvent::FindingBegan { others, .. } => others.saturating_add(1),
        AuditEvent::PicturesPublished { pictures, .. } | AuditEvent::PicturesSeen { pictures, .. } => *pictures,
        AuditEvent::RecordsLost { calls, events, .. } => calls.saturating_add(*events),
        event => event.calls().unwrap_or(1),
    }
}

impl EventCollector {
    /// Takes a record of any time; `in_month` says whether it is listed.
    pub fn take(&mut self, log: u32, record: &AuditRecord, in_month: bool, names: &CallerNames) {
        let mut note = None;
        let mut section = Section::of(&record.event);
        match &record.event {
            AuditEvent::Started { .. } => {
                if self.is_running {
                    note = Some("without an orderly stop before: a crash, a kill or a power cut");
                    section = Some(Section::Incidents);
                }
                self.is_running = true;
            }
            AuditEvent::Stopped => self.is_running = false,
            AuditEvent::LogBegun { cause, .. } if cause.as_str() == "new" => section = Some(Section::Administration),
            AuditEvent::SpaceChanged { enough: true, .. } => section = Some(Section::Administration),
            _ => {}
        }
        if !in_month {
            return;
        }
        let action = record.event.action();
        self.actions.entry(action).or_default().add(log, record);
        let Some(section) = section else { return };
        let listed = self.sections.entry(section).or_default();
        listed.counts.entry(action).or_default().add(log, record);
        listed.events += 1;
        if listed.rows.len() < LISTED_MAX {
            listed.rows.push(row(log, record, note, names));
        }
    }

    /// The sections that have events, and the records of each action.
    pub fn finish(mut self) -> (Vec<EventSection>, Vec<ActionCount>) {
        let section = |section: Section| {
            let listed = self.sections.remove(&section)?;
            let (name, title) = section.name();
            let unlisted = listed.events - listed.rows.len() as u64;
            let counts = listed.counts.iter().map(|(action, counted)| counted.finish(action)).collect();
            Some(EventSection { name, title, counts, rows: listed.rows, unlisted })
        };
        let sections = Section::ALL.into_iter().filter_map(section).collect();
        (sections, self.actions.iter().map(|(action, counted)| counted.finish(action)).collect())
    }
}

fn row(log: u32, record: &AuditRecord, note: Option<&'static str>, names: &CallerNames) -> EventRow {
    let fields = match serde_json::to_value(&record.event) {
        Ok(Value::Object(fields)) => {
            fields.into_iter().filter(|(name, value)| name != "action" && !value.is_null()).collect()
        }
        _ => BTreeMap::new(),
    };
    EventRow {
        at: super::time(record.ts.0),
        log,
        record: record.seq,
        caller: names.of(&record.actor),
        action: record.event.action(),
        fields,
        note,
    }
}
