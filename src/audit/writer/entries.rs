//! Makes recorded entries into the events of records.

use std::collections::HashMap;
use std::sync::Arc;

use ledge_base::principal::Principal;
use ledge_service::audit_event::feature::{FeatureAction, FeatureCounts, FeatureKey};
use ledge_service::audit_event::inference::{AuditCallGroup, CallCounts, CallRecord, Taggable};
use ledge_service::audit_event::sink::{AuditItem, LostEntries, QueuedEntry};
use ledge_service::audit_event::tag::{Tag, TagKey};
use ledge_service::audit_event::{AuditEvent, AuditQueue};

/// The counts of a minute as events of now, sorted by model and caller.
pub fn of_counts(counts: HashMap<AuditCallGroup, CallCounts>, at_ms: u64) -> Vec<QueuedEntry> {
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_cached_key(|(key, _)| (key.model.clone(), key.version, key.principal.to_string()));
    let entry = |(key, counts): (AuditCallGroup, CallCounts)| {
        let AuditCallGroup { model, version, digest, principal, outcome } = key;
        let CallCounts { calls, us, us_max } = counts;
        let digest = digest.map(|digest| digest.to_string());
        let event = AuditEvent::InferenceMinute { model, version, digest, outcome, calls, us, us_max };
        QueuedEntry { at_ms, what: AuditItem::Event(principal, event) }
    };
    counts.into_iter().map(entry).collect()
}

/// The reads and pushes of features in a minute as events of now, sorted by feature view and caller.
pub fn of_features(counts: HashMap<FeatureKey, FeatureCounts>, at_ms: u64) -> Vec<QueuedEntry> {
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_cached_key(|(key, _)| (key.view.clone(), key.principal.to_string(), key.action, key.model.clone()));
    let entry = |(key, counts): (FeatureKey, FeatureCounts)| {
        let FeatureKey { action, view, model, principal } = key;
        let FeatureCounts { calls, rows, entities, unlisted } = counts;
        let feature_view = view.to_string();
        // Sorted, so that the order of the calls stays unknown.
        let mut entities: Vec<_> = entities.into_iter().collect();
        entities.sort_unstable();
        let event = match action {
            FeatureAction::Read => AuditEvent::FeaturesRead { feature_view, model, calls, rows, entities, unlisted },
            FeatureAction::Push => AuditEvent::FeaturesPushed { feature_view, calls, rows, entities, unlisted },
        };
        QueuedEntry { at_ms, what: AuditItem::Event(principal, event) }
    };
    counts.into_iter().map(entry).collect()
}

/// The denials without a separate record.
pub fn of_denials(denials: Vec<(Principal, AuditEvent)>, at_ms: u64) -> impl Iterator<Item = QueuedEntry> {
    denials.into_iter().map(move |(principal, event)| QueuedEntry { at_ms, what: AuditItem::Event(principal, event) })
}

/// The number of inference calls in an entry; `None` for an event of another kind.
pub fn calls(entry: &QueuedEntry) -> Option<u64> {
    match &entry.what {
        AuditItem::Call(_) => Some(1),
        AuditItem::Event(_, event) => event.calls(),
    }
}

/// The loss when these entries are dropped.
pub fn sum(entries: &[QueuedEntry], since_ms: u64) -> LostEntries {
    let mut lost = LostEntries { since_ms, calls: 0, events: 0 };
    for entry in entries {
        match calls(entry) {
            Some(calls) => lost.calls += calls,
            None => lost.events += 1,
        }
    }
    lost
}

/// The caller and the event of an entry. Contents are replaced by their tags, and their memory is released.
pub fn resolve(what: AuditItem, key: Option<&Arc<TagKey>>, queue: &AuditQueue) -> (Principal, AuditEvent) {
    match what {
        AuditItem::Event(principal, event) => (principal, event),
        AuditItem::Call(call) => {
            let CallRecord { key: AuditCallGroup { model, version, digest, principal, outcome }, us, input, output } =
                *call;
            let tag = |taggable: Option<Taggable>| -> Option<Tag> {
                match taggable? {
                    Taggable::Tag(tag) => Some(tag),
                    Taggable::Content(content) => {
                        let tag = key.map(|key| key.of(&content));
                        queue.tagged(content.size());
                        tag
                    }
                }
            };
            let (input, output) = (tag(input), tag(output));
            let digest = digest.map(|digest| digest.to_string());
            (principal, AuditEvent::Inference { model, version, digest, outcome, us, input, output })
        }
    }
}

/// Releases the memory of an entry that is dropped.
pub fn forget(entry: &QueuedEntry, queue: &AuditQueue) {
    let AuditItem::Call(call) = &entry.what else { return };
    for taggable in [&call.input, &call.output].into_iter().flatten() {
        if let Taggable::Content(content) = taggable {
            queue.tagged(content.size());
        }
    }
}
