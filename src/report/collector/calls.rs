//! Calls of inference and of features, by caller.

use std::collections::HashMap;

use ledge_audit::record::{Actor, AuditRecord};
use ledge_base::names::ModelName;
use ledge_service::audit_event::AuditEvent;
use ledge_service::audit_event::inference::CallOutcome;

use super::{CallerNames, actor_option};
use crate::document::{CallCounts, CallRow, Calls, FeatureCallRow, FeatureCalls};
use crate::evidence::{EvidenceCounter, RecordSelection};

/// The most rows in memory. The calls of further callers and models are counted together.
const ROWS_MAX: usize = 4096;

/// The most rows in a report, those with the most calls.
const LISTED_MAX: usize = 1000;

const INFERENCE: &[&str] = &["inference_minute", "inference"];

/// The calls of a month.
#[derive(Default)]
pub struct CallCollector {
    rows: HashMap<(ActorKey, Option<ModelName>), Counted<CallCounts>>,
    /// The calls of callers and models without a row.
    others: CallCounts,
    total: CallCounts,
    features: HashMap<(ActorKey, String, &'static str), Counted<FeatureCounts>>,
    unlisted_features: u64,
}

/// A caller, as records have it.
type ActorKey = (ledge_audit::record::ActorKind, Option<ledge_service::audit_event::tag::Tag>);

#[derive(Default)]
struct Counted<C> {
    counts: C,
    evidence: EvidenceCounter,
}

#[derive(Default)]
struct FeatureCounts {
    calls: u64,
    rows: u64,
}

impl CallCounts {
    fn add(&mut self, outcome: CallOutcome, calls: u64, us: u64, us_max: u64) {
        let add = |sum: &mut u64, count: u64| *sum = sum.saturating_add(count);
        add(&mut self.calls, calls);
        add(&mut self.us, us);
        self.us_max = self.us_max.max(us_max);
        add(
            match outcome {
                CallOutcome::Ok => &mut self.ok,
                CallOutcome::Failed => &mut self.failed,
                CallOutcome::Refused => &mut self.refused,
                CallOutcome::Late => &mut self.late,
                CallOutcome::Unavailable => &mut self.unavailable,
            },
            calls,
        );
    }

    fn merge(&mut self, other: Self) {
        let Self { calls, ok, failed, refused, late, unavailable, us, us_max } = other;
        for (sum, count) in [
            (&mut self.calls, calls),
            (&mut self.ok, ok),
            (&mut self.failed, failed),
            (&mut self.refused, refused),
            (&mut self.late, late),
            (&mut self.unavailable, unavailable),
            (&mut self.us, us),
        ] {
            *sum = sum.saturating_add(count);
        }
        self.us_max = self.us_max.max(us_max);
    }
}

impl CallCollector {
    /// Counts a record of calls; others are ignored.
    pub fn take(&mut self, log: u32, record: &AuditRecord) {
        let actor = (record.actor.kind, record.actor.tag);
        match &record.event {
            AuditEvent::InferenceMinute { model, outcome, calls, us, us_max, .. } => {
                self.take_calls(log, record.seq, (actor, model.clone()), (*outcome, *calls, *us, *us_max));
            }
            AuditEvent::Inference { model, outcome, us, .. } => {
                self.take_calls(log, record.seq, (actor, model.clone()), (*outcome, 1, *us, *us));
            }
            AuditEvent::FeaturesRead { feature_view, calls, rows, .. }
            | AuditEvent::FeaturesPushed { feature_view, calls, rows, .. } => {
                let key = (actor, feature_view.clone(), record.event.action());
                let is_known = self.features.contains_key(&key);
                if !is_known && self.features.len() >= ROWS_MAX {
                    self.unlisted_features += 1;
                    return;
                }
                let counted = self.features.entry(key).or_default();
                counted.counts.calls = counted.counts.calls.saturating_add(*calls);
                counted.counts.rows = counted.counts.rows.saturating_add(*rows);
                counted.evidence.add(log, record.seq);
            }
            _ => {}
        }
    }

    fn take_calls(
        &mut self,
        log: u32,
        seq: u64,
        key: (ActorKey, Option<ModelName>),
        (outcome, calls, us, us_max): (CallOutcome, u64, u64, u64),
    ) {
        self.total.add(outcome, calls, us, us_max);
        let has_room = self.rows.len() < ROWS_MAX || self.rows.contains_key(&key);
        if !has_room {
            self.others.add(outcome, calls, us, us_max);
            return;
        }
        let counted = self.rows.entry(key).or_default();
        counted.counts.add(outcome, calls, us, us_max);
        counted.evidence.add(log, seq);
    }

    /// The tables, the rows with the most calls first.
    pub fn finish(self, names: &CallerNames) -> (Calls, FeatureCalls) {
        let mut rows: Vec<CallRow> = Vec::with_capacity(self.rows.len());
        for (((kind, tag), model), counted) in self.rows {
            let actor = Actor { kind, tag };
            let mut selection = RecordSelection::actions(INFERENCE).actor(actor_option(&actor));
            if let Some(model) = &model {
                selection = selection.model(model);
            }
            rows.push(CallRow {
                caller: names.of(&actor),
                model: model.map(|model| model.to_string()),
                counts: counted.counts,
                evidence: counted.evidence.finish(&selection),
            });
        }
        rows.sort_by(|one, next| {
            let key = |row: &CallRow| (row.caller.clone(), row.model.clone());
            next.counts.calls.cmp(&one.counts.calls).then_with(|| key(one).cmp(&key(next)))
        });

        let mut others = self.others;
        rows.split_off(rows.len().min(LISTED_MAX)).iter().for_each(|row| others.merge(row.counts));

        let mut features: Vec<FeatureCallRow> = Vec::with_capacity(self.features.len());
        for (((kind, tag), feature_view, action), counted) in self.features {
            let actor = Actor { kind, tag };
            let selection = RecordSelection::actions(&[action]).actor(actor_option(&actor)).feature_view(&feature_view);
            let FeatureCounts { calls, rows } = counted.counts;
            let evidence = counted.evidence.finish(&selection);
            features.push(FeatureCallRow { caller: names.of(&actor), feature_view, action, calls, rows, evidence });
        }
        features.sort_by(|one, next| {
            let key = |row: &FeatureCallRow| (row.caller.clone(), row.feature_view.clone(), row.action);
            next.calls.cmp(&one.calls).then_with(|| key(one).cmp(&key(next)))
        });
        let more = features.split_off(features.len().min(LISTED_MAX)).len() as u64;
        let unlisted = self.unlisted_features + more;
        let others = (others.calls > 0).then_some(others);
        (Calls { rows, others, total: self.total }, FeatureCalls { rows: features, unlisted })
    }
}
