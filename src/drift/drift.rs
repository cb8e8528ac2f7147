//! All watched versions. One lock, held for some microseconds a call of the sample.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ledge_base::clock;
use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::principal::Principal;
use ledge_base::tensor::Tensor;
use ledge_models::repository::{LoadedModel, Repository};
use ledge_models::serving::call_observer::{CallObserver, ObservedInputs};
use ledge_part::check::{Finding, FindingStatus};
use ledge_part::finding_log::{FindingLog, RecordedFinding};
use ledge_service::audit_event::{AuditEvent, AuditSink};
use ledge_service::shutdown::Shutdown;
use tokio::sync::Notify;

use crate::config::DriftConfig;
use crate::http::{ColumnDocument, VersionDocument};
use crate::readings;
use crate::store::{DriftStore, VERSIONS_MAX, WatchedVersion};
use crate::watch::{VersionWatch, WatchChange, WatchSettings, WatchState};

/// The least time between two calls of the sample of a version: 50 a second.
const SAMPLE_INTERVAL_MS: u64 = 20;

/// The time between two looks at windows whose callers have stopped.
const TICK_INTERVAL: Duration = Duration::from_mins(1);

/// The time after which the counts of a window are written, so that a restart loses at most these.
const WRITE_INTERVAL_MS: u64 = 3_600_000;

/// The most columns that a finding names.
const NAMED_COLUMNS_MAX: usize = 3;

/// The watches as they are in the files of a state folder, also of a daemon that runs. Changes nothing.
pub fn stored_documents(config: &DriftConfig, state: &std::path::Path) -> Vec<VersionDocument> {
    let settings = config.settings();
    let document = |(version, state)| VersionDocument::new(&version, &VersionWatch::restored(settings, state));
    DriftStore::new(state).view().into_iter().map(document).collect()
}

/// The watches on all versions. Clones share them.
#[derive(Debug, Clone)]
pub struct Drift(Arc<DriftState>);

#[derive(Debug)]
struct DriftState {
    settings: WatchSettings,
    store: DriftStore,
    repository: Repository,
    audit: AuditSink,
    versions: Mutex<BTreeMap<WatchedVersion, Watched>>,
    /// The findings that were recorded.
    recorded: Mutex<FindingLog>,
    /// Set when a watch is to be written soon.
    unwritten: Notify,
    /// Held for a write, so that a later state is never replaced by an earlier one.
    writing: Mutex<()>,
}

#[derive(Debug)]
struct Watched {
    watch: VersionWatch,
    sampled_ms: u64,
    written_ms: u64,
    /// True after a change that must be written at once.
    is_due: bool,
}

impl Watched {
    fn new(watch: VersionWatch, now_ms: u64) -> Self {
        Self { watch, sampled_ms: 0, written_ms: now_ms, is_due: false }
    }
}

impl Drift {
    /// The watches as they were stored.
    pub fn open(config: &DriftConfig, state: &std::path::Path, repository: &Repository, audit: &AuditSink) -> Self {
        let (settings, store, now) = (config.settings(), DriftStore::new(state), clock::unix_millis());
        let restored = |(version, state)| (version, Watched::new(VersionWatch::restored(settings, state), now));
        // A version without bins begins anew, and takes over what it can from the version before.
        let stored = store.read().into_iter().filter(|(_, state)| !state.columns.is_empty());
        let versions = Mutex::new(stored.map(restored).collect());
        Self(Arc::new(DriftState {
            settings,
            store,
            repository: repository.clone(),
            audit: audit.clone(),
            versions,
            recorded: Mutex::default(),
            unwritten: Notify::new(),
            writing: Mutex::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<WatchedVersion, Watched>> {
        // Counts that a panic left behind are still counts.
        self.0.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acts on a change of a watch, under the lock.
    fn changed(&self, version: &WatchedVersion, watched: &mut Watched, change: WatchChange) {
        if change == WatchChange::Nothing {
            return;
        }
        if let WatchChange::Fixed(origin) = change {
            let (model, version) = version.clone();
            tracing::info!(name: "drift.reference_fixed", %model, %version, origin = origin.as_str(),
                "the reference that calls of this version are compared with is complete");
            self.0.audit.record_own(AuditEvent::DriftReferenceFixed { model, version, origin: origin.as_str().into() });
        }
        watched.is_due = true;
        self.0.unwritten.notify_one();
    }

    /// Makes the present window the reference. `None` for a version that is not watched, or has no window yet. Once it
    /// returns, the reference is on the disk. Blocks.
    pub fn accept(&self, model: &ModelName, version: ModelVersion, principal: &Principal) -> io::Result<Option<()>> {
        let key = (model.clone(), version);
        {
            let mut versions = self.lock();
            let accepted = versions.get_mut(&key).is_some_and(|watched| {
                watched.is_due = true;
                watched.watch.accept(clock::unix_millis())
            });
            if !accepted {
                return Ok(None);
            }
        }
        let (model, origin) = (model.clone(), crate::watch::ReferenceOrigin::Accepted.as_str().into());
        self.0.audit.record(principal, AuditEvent::DriftReferenceFixed { model, version, origin });
        self.write().map(Some)
    }

    /// Writes the watches that are due. Blocks.
    fn write(&self) -> io::Result<()> {
        let _one = self.0.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::unix_millis();
        let due: Vec<(WatchedVersion, WatchState)> = (self.lock().iter_mut())
            .filter(|(_, watched)| {
                let has_calls = watched.sampled_ms > watched.written_ms;
                watched.is_due || (has_calls && now.saturating_sub(watched.written_ms) >= WRITE_INTERVAL_MS)
            })
            .map(|(version, watched)| {
                (watched.is_due, watched.written_ms) = (false, now);
                (version.clone(), watched.watch.state().clone())
            })
            .collect();
        let mut written = Ok(());
        for (version, state) in due {
            if let Err(error) = self.0.store.write(&version, &state) {
                let (model, number) = &version;
                tracing::warn!(name: "drift.not_written", %model, version = %number, %error,
                    "the reference of a model cannot be written; it is tried again");
                if let Some(watched) = self.lock().get_mut(&version) {
                    watched.is_due = true;
                }
                written = Err(error);
            }
        }
        written
    }

    /// Closes windows whose callers have stopped.
    fn tick(&self) {
        let now = clock::unix_millis();
        for (version, watched) in self.lock().iter_mut() {
            let change = watched.watch.tick(now);
            self.changed(version, watched, change);
        }
        self.record_findings(now);
    }

    /// Records findings that began or ended since the last time.
    fn record_findings(&self, now_ms: u64) {
        let drifting = self.documents(None).into_iter().filter(|document| document.drifting);
        let recorded = |document: VersionDocument| RecordedFinding {
            finding: finding_name(&document.model),
            model: document.model.parse().ok(),
            version: document.version.try_into().ok(),
            status: FindingStatus::Warn,
        };
        let findings: BTreeSet<_> = drifting.map(recorded).collect();
        let mut log = self.0.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        log.record(findings, now_ms, &self.0.audit);
    }

    /// Closes windows and writes watches until the shutdown, and once more then.
    pub(crate) async fn run(self, shutdown: Shutdown) {
        while !shutdown.is_requested() {
            tokio::select! {
                () = self.0.unwritten.notified() => {}
                () = tokio::time::sleep(TICK_INTERVAL) => {}
                () = shutdown.requested() => self.lock().values_mut().for_each(|watched| watched.is_due = true),
            }
            let own = self.clone();
            let work = move || {
                own.tick();
                own.write()
            };
            // The error is in the log.
            if let Ok(Err(_)) = tokio::task::spawn_blocking(work).await {
                tokio::select! {
                    () = tokio::time::sleep(TICK_INTERVAL) => {}
                    () = shutdown.requested() => {}
                }
            }
        }
    }

    /// The watched versions of `model` that answer now, or of all models.
    pub fn documents(&self, model: Option<&ModelName>) -> Vec<VersionDocument> {
        let live = self.0.repository.all_live();
        let live = live.iter().filter(|live| model.is_none_or(|model| live.name == *model));
        let versions = self.lock();
        let document = |live: &Arc<LoadedModel>| {
            let key = (live.name.clone(), live.version);
            Some(VersionDocument::new(&key, &versions.get(&key)?.watch))
        };
        live.filter_map(document).collect()
    }

    /// True for a model of which a version answers now.
    pub(crate) fn serves(&self, model: &ModelName) -> bool {
        self.0.repository.all_live().iter().any(|live| live.name == *model)
    }

    /// The versions that answer now with a drift that lasts.
    pub fn findings(&self) -> Vec<Finding> {
        self.documents(None).iter().filter_map(finding).collect()
    }
}

fn finding_name(model: &str) -> String {
    format!("drift {model}")
}

fn finding(document: &VersionDocument) -> Option<Finding> {
    let mut drifting: Vec<&ColumnDocument> = document.columns.iter().filter(|column| column.drifting).collect();
    drifting.sort_by(|a, b| b.index.total_cmp(&a.index));
    let described = |column: &&ColumnDocument| {
        let kind = if column.side == "input" { "column" } else { "output" };
        format!("{kind} `{}`: {}", column.name, column.change.as_deref().unwrap_or("another distribution"))
    };
    let named: Vec<String> = drifting.iter().take(NAMED_COLUMNS_MAX).map(described).collect();
    let more = drifting.len().checked_sub(NAMED_COLUMNS_MAX).filter(|more| *more > 0);
    let more = more.map(|more| format!("; and {more} more")).unwrap_or_default();
    let detail = format!("version {}: {}{more}", document.version, named.join("; "));
    let advice = format!(
        "see `ledge models drift {model}`: correct what calls send, or go back to an earlier version (`ledge update \
         rollback`); if it is the new normal, `ledge models drift {model} --accept`",
        model = document.model
    );
    (!named.is_empty()).then(|| Finding::warn(&finding_name(&document.model), detail, advice))
}

impl CallObserver for Drift {
    fn wants(&self, model: &LoadedModel) -> bool {
        let now = clock::unix_millis();
        let mut versions = self.lock();
        let key = (model.name.clone(), model.version);
        let watched = if let Some(watched) = versions.get_mut(&key) {
            watched
        } else {
            if versions.len() >= VERSIONS_MAX
                && let Some(oldest) =
                    versions.iter().min_by_key(|(_, watched)| watched.sampled_ms).map(|(key, _)| key.clone())
            {
                versions.remove(&oldest);
                let store = self.0.store.clone();
                tokio::task::spawn_blocking(move || store.remove(&oldest));
            }
            let of_model = versions.range((model.name.clone(), lowest())..).take_while(|(key, _)| key.0 == model.name);
            let before = of_model.filter(|(key, _)| key.1 < model.version).last();
            let watch = VersionWatch::new(self.0.settings, before.map(|(_, watched)| watched.watch.state()), now);
            versions.entry(key).or_insert(Watched::new(watch, now))
        };
        // A clock that was set back begins again.
        let is_due = now >= watched.sampled_ms + SAMPLE_INTERVAL_MS || now < watched.sampled_ms;
        if is_due {
            watched.sampled_ms = now;
        }
        is_due
    }

    fn on_answer(&self, model: &LoadedModel, inputs: &ObservedInputs, outputs: &[(String, Tensor)]) {
        let rows = readings::of_call(model, inputs, outputs);
        let (key, now) = ((model.name.clone(), model.version), clock::unix_millis());
        let mut versions = self.lock();
        let Some(watched) = versions.get_mut(&key) else { return };
        for row in rows {
            let change = watched.watch.observe(&row, now);
            self.changed(&key, watched, change);
        }
    }
}

/// The lowest version that there can be.
fn lowest() -> ModelVersion {
    ModelVersion::try_from(1).unwrap_or_else(|_| unreachable!("1 is a version"))
}
