//! The times that versions of models served.

use std::collections::BTreeMap;
use std::ops::Range;

use ledge_audit::record::AuditRecord;
use ledge_base::names::{ModelName, ModelVersion};
use ledge_service::audit_event::AuditEvent;

use crate::document::{Models, ServedVersion};
use crate::evidence::{Evidence, EvidenceCounter, RecordSelection};

/// The most times in a report.
const LISTED_MAX: usize = 2000;

/// The most versions that can be loaded at a time here. Further ones are counted.
const LIVE_MAX: usize = 4096;

/// Follows the versions from the beginning of the logs, because a version that serves in the month may have been loaded
/// long before.
pub struct ModelCollector {
    /// The moments of the month, in milliseconds since the Unix epoch.
    month: Range<u64>,
    live: BTreeMap<(ModelName, ModelVersion), Loaded>,
    served: Vec<ServedVersion>,
    unlisted: u64,
    /// The time of the last record.
    last_ms: u64,
}

struct Loaded {
    digest: String,
    from_ms: u64,
    log: u32,
    seq: u64,
}

impl ModelCollector {
    pub fn new(month: Range<u64>) -> Self {
        Self { month, live: BTreeMap::new(), served: Vec::new(), unlisted: 0, last_ms: 0 }
    }

    /// Takes a record of any time.
    pub fn take(&mut self, log: u32, record: &AuditRecord) {
        let (seq, at) = (record.seq, record.ts.0);
        match &record.event {
            AuditEvent::Started { .. } => self.end_all("restarted", self.last_ms, log, record),
            AuditEvent::Stopped => self.end_all("stopped", at, log, record),
            AuditEvent::ModelLoaded { model, version, digest } => {
                let key = (model.clone(), *version);
                self.end(&key, "replaced", at, log, record);
                if self.live.len() < LIVE_MAX {
                    self.live.insert(key, Loaded { digest: digest.clone(), from_ms: at, log, seq });
                } else {
                    self.unlisted += 1;
                }
            }
            AuditEvent::ModelUnloaded { model, version } => {
                self.end(&(model.clone(), *version), "unloaded", at, log, record);
            }
            AuditEvent::ModelCrashed { model, version, suspended: true } => {
                self.end(&(model.clone(), *version), "suspended", at, log, record);
            }
            _ => {}
        }
        self.last_ms = at;
    }

    fn end_all(&mut self, by: &'static str, at: u64, log: u32, record: &AuditRecord) {
        for key in self.live.keys().cloned().collect::<Vec<_>>() {
            self.end(&key, by, at, log, record);
        }
    }

    fn end(&mut self, key: &(ModelName, ModelVersion), by: &'static str, at: u64, log: u32, record: &AuditRecord) {
        let Some(loaded) = self.live.remove(key) else { return };
        if at < self.month.start || loaded.from_ms >= self.month.end {
            return;
        }
        let selection = RecordSelection::actions(&[record.event.action()]);
        let ended = EvidenceCounter::one(log, record.seq).finish(&selection).pop();
        let is_within = at < self.month.end;
        let (until, by, ended) = if is_within { (Some(super::time(at)), Some(by), ended) } else { (None, None, None) };
        self.list(key, &loaded, until, by, ended);
    }

    fn list(
        &mut self,
        (model, version): &(ModelName, ModelVersion),
        loaded: &Loaded,
        until: Option<String>,
        ended_by: Option<&'static str>,
        ended: Option<Evidence>,
    ) {
        let selection = RecordSelection::actions(&["model_loaded"]).model(model);
        let evidence = EvidenceCounter::one(loaded.log, loaded.seq).finish(&selection).pop();
        let (Some(evidence), true) = (evidence, self.served.len() < LISTED_MAX) else {
            self.unlisted += 1;
            return;
        };
        self.served.push(ServedVersion {
            model: model.to_string(),
            version: version.get(),
            digest: loaded.digest.clone(),
            from: super::time(loaded.from_ms),
            loaded: evidence,
            until,
            ended_by,
            ended,
        });
    }

    /// The times that overlap the month.
    pub fn finish(mut self) -> Models {
        for (key, loaded) in std::mem::take(&mut self.live) {
            if loaded.from_ms < self.month.end {
                self.list(&key, &loaded, None, None, None);
            }
        }
        self.served.sort_by(|one, next| (&one.model, &one.from).cmp(&(&next.model, &next.from)));
        Models { served: self.served, unlisted: self.unlisted }
    }
}
