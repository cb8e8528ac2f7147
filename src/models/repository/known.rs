//! The facts known about a version before its load, and the load. A version that this box has served loads in its usual
//! place; any other loads in a separate process first. The outcome is remembered.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::principal::Principal;
use ledge_engine::backend::Runtime;
use ledge_isolation::Isolation;
use ledge_service::audit_event::AuditEvent;

use super::folder::{VersionFile, VersionFolder};
use super::load_limit::{self, WALL_FACTOR};
use super::load_places::LoadHistory;
use super::load_records::file::LoadRecordFile;
use super::load_records::{CheckedVersion, FailedLoad, LoadFailureStreak, ServedVersion};
use super::loaded_model::LoadedModel;
use super::loading::{self, VersionLoadError, VersionToLoad};
use super::reader::ModelReader;
use super::{LoadMode, Repository, folder, version_files};
use crate::scheduling::engine::InferScheduler;
use crate::scheduling::load_terms::InstanceLoadLimit;

/// The interval at which the time of a first load is compared with its limit.
const LIMIT_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The CPU time after which a first load waits for the threads that answer requests. Most loads take less.
const PRIORITY_CPU_TIME: Duration = Duration::from_secs(10);

/// The facts known about a version before its load.
#[derive(Debug)]
pub(super) struct KnownVersion {
    class: LoadHistory,
    /// The digest of the files that this box has served.
    digest: Option<String>,
    /// The runtime in which all its checks passed, where no file of the model has changed since.
    checked_in: Option<Runtime>,
    /// `None` where loads are not recorded.
    recorded: Option<RecordedLoad>,
}

#[derive(Debug)]
struct RecordedLoad {
    /// Stands for its `model.toml`, the libraries and the CPU.
    conditions: String,
    /// Stands for its files, too.
    content: String,
    /// The last load, if it failed and the next try is not due.
    pause: Option<LoadFailureStreak>,
}

impl KnownVersion {
    /// True for a version that this box has served.
    pub fn is_served(&self) -> bool {
        matches!(self.class, LoadHistory::Served { .. })
    }

    /// Where loads are not recorded each counts as one of a served version.
    fn unrecorded() -> Self {
        Self { class: LoadHistory::Served { took: Duration::ZERO }, digest: None, checked_in: None, recorded: None }
    }
}

/// A version that was loaded.
struct LoadedVersion {
    model: LoadedModel,
    /// The time of everything, without the wait for its place.
    took: Duration,
    /// The time that its load would have taken if it had been known.
    usual: Duration,
}

impl Repository {
    /// Records each load from here on. The process that serves calls it before the first load.
    pub fn record_loads(&self, records: LoadRecordFile) {
        let recorded = self.shared.records.set(records);
        debug_assert!(recorded.is_ok(), "loads are recorded once");
    }

    /// The versions on this box with a failed last load.
    pub fn load_failures(&self) -> Vec<(ModelName, ModelVersion, LoadFailureStreak)> {
        let Some(records) = self.shared.records.get() else { return Vec::new() };
        let mut failures: Vec<_> = records.read(|records| {
            let failures = records.failures();
            failures.map(|(model, version, failure)| (model.clone(), version, failure.clone())).collect()
        });
        if !failures.is_empty() {
            // The record of a version that has left the box is kept until its next try would be due.
            let versions = self.index().into_iter().filter_map(|row| Some((row.model, row.version?)));
            let is_here: BTreeSet<_> = versions.collect();
            failures.retain(|(model, version, _)| is_here.contains(&(model.clone(), *version)));
        }
        failures
    }

    /// Loads versions that failed again, each when its pause is over.
    pub async fn retry_failed(&self) {
        let Some(records) = self.shared.records.get() else { return };
        let mut retries = FuturesUnordered::new();
        let mut in_progress = BTreeSet::<ModelName>::new();
        loop {
            let mut changes = self.shared.changes.subscribe();
            let tries = records.next_tries().into_iter().filter(|(name, _)| !in_progress.contains(name));
            let next = tries.min_by_key(|(_, wait)| *wait);
            let due = async {
                match next {
                    Some((name, wait)) => {
                        tokio::time::sleep(wait).await;
                        name
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                name = due => {
                    in_progress.insert(name.clone());
                    retries.push(async move {
                        self.retry(records, &name).await;
                        name
                    });
                }
                Some(name) = retries.next() => {
                    in_progress.remove(&name);
                }
                _ = changes.changed() => {}
            }
        }
    }

    async fn retry(&self, records: &LoadRecordFile, name: &ModelName) {
        if let Some(model) = self.model(name) {
            tracing::debug!(model = %name, "a model that failed to load is tried again");
            if let Err(error) = self.load_model(&model, &Principal::Local, LoadMode::Due).await
                && !model.has_known_fault()
            {
                tracing::warn!(model = %name, %error, "a model failed to load again");
            }
        }
        // Still due, so that no load found its files.
        if records.next_tries().get(name).is_some_and(Duration::is_zero) {
            self.forget_failures(name).await;
        }
    }

    /// True when the next try of a version that failed is due.
    pub(super) fn is_due(&self, model: &ModelName, version: ModelVersion) -> bool {
        self.shared.records.get().is_some_and(|records| records.is_due(model, version))
    }

    /// The reason why a version is not loaded, and the next step.
    pub(super) fn failure_text(&self, model: &ModelName, version: ModelVersion, error: &VersionLoadError) -> String {
        let recorded = self.shared.records.get().and_then(|records| records.describe_failure(model, version));
        recorded.unwrap_or_else(|| error.to_string())
    }

    /// Forgets that loads of a model failed.
    pub(super) async fn forget_failures(&self, name: &ModelName) {
        let name = name.clone();
        self.with_records(move |records| records.forget_failures(&name)).await;
    }

    /// Forgets the loads of models that are gone.
    pub(super) async fn forget_gone(&self) {
        let names: BTreeSet<_> = self.models().iter().map(|model| model.name.clone()).collect();
        self.with_records(move |records| records.retain(|name, _| names.contains(name))).await;
    }

    /// Changes the records, which waits for the disk; `None` where loads are not recorded.
    async fn with_records<T: Send + 'static>(
        &self,
        change: impl FnOnce(&LoadRecordFile) -> T + Send + 'static,
    ) -> Option<T> {
        let records = self.shared.records.get()?.clone();
        tokio::task::spawn_blocking(move || change(&records)).await.ok()
    }

    /// Collects the facts known about a version. Its files are hashed, and not parsed.
    pub(super) async fn known(&self, source: &VersionToLoad<'_>, mode: LoadMode) -> KnownVersion {
        let (name, version, parts) = (source.name.clone(), source.version, source.config.chain_models());
        let (folder, files, text) = (source.folder.to_owned(), source.files.to_owned(), source.config_text.to_owned());
        let home = source.sealed.map(|sealed| sealed.home().to_owned());
        let (profiles, runtimes) = (self.shared.defaults.profiles.clone(), self.runtimes());
        let known = self.with_records(move |records| {
            let conditions = profiles.conditions(&text, &runtimes);
            // The files of an encrypted version are other ones each time that they are opened.
            let (folder, own) = home.as_ref().map_or((&folder, &files), |home| (home, home));
            let content = format!("{conditions} {}", version_files::stamp(folder, own));
            let (served, failure) = records.read(|records| {
                let (served, failure) = (records.served(&name, version), records.failure(&name, version, &content));
                (served.cloned(), failure.cloned())
            });
            let is_same = |served: &ServedVersion| {
                let same = || folder::is_unchanged(&files, parts, &served.files, &served.digest);
                served.conditions == conditions && same().unwrap_or(false)
            };
            let served = served.filter(is_same);
            let is_due = mode.is_explicit() || records.is_due(&name, version);
            let class = match (&failure, &served) {
                (Some(_), _) if !mode.is_explicit() => LoadHistory::Again,
                (None, Some(served)) => LoadHistory::Served { took: served.took() },
                _ => LoadHistory::New,
            };
            let pause = failure.filter(|_| !is_due);
            // A load on request runs all checks.
            let checked = served.as_ref().and_then(|served| served.checked.as_ref());
            let checked = checked.filter(|checked| !mode.is_explicit() && checked.content == content);
            let checked_in = checked.map(|checked| checked.runtime);
            let digest = served.map(|served| served.digest);
            KnownVersion { class, digest, checked_in, recorded: Some(RecordedLoad { conditions, content, pause }) }
        });
        known.await.unwrap_or_else(KnownVersion::unrecorded)
    }

    /// Loads a version, and remembers the outcome.
    pub(super) async fn load_version(
        &self,
        source: VersionToLoad<'_>,
        principal: &Principal,
        mode: LoadMode,
    ) -> Result<LoadedModel, VersionLoadError> {
        let known = self.known(&source, mode).await;
        if let Some(model) = self.model(source.name).filter(|_| !known.is_served()) {
            model.settle();
        }
        self.load_known(source, &known, principal).await
    }

    /// As [`Self::load_version`], with the facts known about it.
    pub(super) async fn load_known(
        &self,
        source: VersionToLoad<'_>,
        known: &KnownVersion,
        principal: &Principal,
    ) -> Result<LoadedModel, VersionLoadError> {
        let (name, version, on_trial) = (source.name.clone(), source.version, source.on_trial);
        if let Some(pause) = known.recorded.as_ref().and_then(|recorded| recorded.pause.as_ref()) {
            self.set_known_fault(&name, true);
            return Err(VersionLoadError::Paused(pause.describe(&name)));
        }
        match self.load_in_place(source, known).await {
            Ok(LoadedVersion { model, took, usual }) => {
                tracing::info!(
                    name: "model.loaded",
                    model = %name,
                    %version,
                    runtime = %model.runtime(),
                    load_ms = took.as_millis(),
                    "model ready"
                );
                self.set_known_fault(&name, false);
                self.record_served(&model, known, usual).await;
                if model.scale().min == 0 {
                    model.evict();
                }
                Ok(model)
            }
            Err(error) => {
                // Updates record failures on trial themselves.
                let is_news = on_trial || self.record_failure(&name, version, known, &error).await;
                self.set_known_fault(&name, !is_news);
                if is_news {
                    let cause = if error.is_wrong() { "golden" } else { "load" };
                    let event = AuditEvent::ModelRefused { model: name, version, cause: Some(cause.into()) };
                    self.shared.audit.record(principal, event);
                }
                Err(error)
            }
        }
    }

    fn set_known_fault(&self, name: &ModelName, is_known: bool) {
        if let Some(model) = self.model(name) {
            model.set_known_fault(is_known);
        }
    }

    async fn record_served(&self, model: &LoadedModel, known: &KnownVersion, usual: Duration) {
        let Some(RecordedLoad { conditions, content, .. }) = &known.recorded else { return };
        let served = ServedVersion {
            conditions: conditions.clone(),
            digest: model.digest.clone(),
            files: model.files.clone(),
            took_ms: u64::try_from(usual.as_millis()).unwrap_or(u64::MAX),
            checked: model.checked_in().map(|runtime| CheckedVersion { content: content.clone(), runtime }),
        };
        let (name, version) = (model.name.clone(), model.version);
        self.with_records(move |records| records.record_served(&name, version, served)).await;
    }

    /// Records a load that failed. Returns true when it is news.
    async fn record_failure(
        &self,
        name: &ModelName,
        version: ModelVersion,
        known: &KnownVersion,
        error: &VersionLoadError,
    ) -> bool {
        let Some(RecordedLoad { content, .. }) = &known.recorded else { return true };
        let failed = FailedLoad {
            content: content.clone(),
            reason: error.to_string(),
            is_timeout: matches!(error, VersionLoadError::TimedOut(_)),
            // Somebody killed the process of a version that served before.
            is_of_box: error.is_of_box() || known.is_served() && error.is_interrupted(),
        };
        let name = name.clone();
        self.with_records(move |records| records.record_failure(&name, version, failed)).await.unwrap_or(true)
    }

    async fn load_in_place(
        &self,
        source: VersionToLoad<'_>,
        known: &KnownVersion,
    ) -> Result<LoadedVersion, VersionLoadError> {
        let mut class = known.class;
        // The loads are large.
        if known.is_served() {
            let load = Box::pin(self.load_served(source.clone(), known));
            if let Some(loaded) = self.shared.places.run(class, load).await {
                return loaded;
            }
            // Its files were changed a moment ago.
            class = LoadHistory::New;
        }
        self.shared.places.run(class, Box::pin(self.load_new(source, known))).await
    }

    /// Loads a version that this box has served where it is to run; `None` when its files are other ones.
    async fn load_served(
        &self,
        source: VersionToLoad<'_>,
        known: &KnownVersion,
    ) -> Option<Result<LoadedVersion, VersionLoadError>> {
        let started = Instant::now();
        let reader = loading::reader(&source, &self.shared.engine, &self.shared.defaults);
        let read = match loading::read(source.files, source.config, reader).await {
            Ok(read) => read,
            Err(error) => return Some(Err(error)),
        };
        if known.digest.as_ref().is_some_and(|digest| *digest != read.digest) {
            return None;
        }
        let loaded = self.load_where_it_runs(source, &read, known, known.checked_in).await;
        let took = started.elapsed();
        Some(loaded.map(|model| LoadedVersion { model, took, usual: took }))
    }

    /// Loads a version for the first time: in a separate process, with a limit and soon at low priority, and then where
    /// it is to run. A crash or a hang at the load, or with the first inputs, affects no other model.
    async fn load_new(
        &self,
        source: VersionToLoad<'_>,
        known: &KnownVersion,
    ) -> Result<LoadedVersion, VersionLoadError> {
        let started = Instant::now();
        let (engine, defaults) = (&self.shared.engine, &self.shared.defaults);
        // A version that an update tries has passed its preflight, which is the same.
        let first = (!source.on_trial).then(|| engine.for_first_load());
        let reader = match &first {
            Some(first) => ModelReader::of(first, Isolation::Own, source.name, source.version),
            None => loading::reader(&source, engine, defaults),
        };
        let read = loading::read(source.files, source.config, reader).await?;
        let reading = started.elapsed();
        let mut checked_in = None;
        if let Some(first) = &first {
            let limit = self.limit(&source, &read, known);
            let terms = Arc::new(InstanceLoadLimit::new(limit.saturating_mul(WALL_FACTOR)));
            let load = loading::try_first(source.clone(), &read, first, defaults, &terms);
            checked_in = within(first, limit, &terms, load).await?;
        }
        let begun = Instant::now();
        let model = self.load_where_it_runs(source, &read, known, checked_in).await?;
        Ok(LoadedVersion { model, took: started.elapsed(), usual: reading + begun.elapsed() })
    }

    async fn load_where_it_runs(
        &self,
        source: VersionToLoad<'_>,
        read: &VersionFolder,
        known: &KnownVersion,
        checked_in: Option<Runtime>,
    ) -> Result<LoadedModel, VersionLoadError> {
        let limit = self.limit(&source, read, known).saturating_mul(WALL_FACTOR);
        let terms = Arc::new(InstanceLoadLimit::new(limit));
        loading::load_read(source, read, &self.shared.engine, &self.shared.defaults, &terms, checked_in).await
    }

    /// The limit of the load of a version.
    fn limit(&self, source: &VersionToLoad<'_>, read: &VersionFolder, known: &KnownVersion) -> Duration {
        let bytes = read.files.iter().fold(0, |bytes: u64, file: &VersionFile| bytes.saturating_add(file.bytes));
        match (self.shared.records.get(), &known.recorded) {
            (Some(records), Some(RecordedLoad { content, .. })) => {
                records.read(|records| records.limit(source.name, source.version, content, bytes))
            }
            _ => load_limit::limit(bytes, std::iter::empty(), 0),
        }
    }
}

/// Does the first load of a version, and ends its process when that is over its limit.
async fn within<T>(
    engine: &InferScheduler,
    limit: Duration,
    terms: &InstanceLoadLimit,
    load: impl Future<Output = Result<T, VersionLoadError>>,
) -> Result<T, VersionLoadError> {
    let begun = Instant::now();
    let over = async {
        loop {
            tokio::time::sleep(LIMIT_CHECK_INTERVAL).await;
            let cpu: Duration = engine.processes().iter().map(|process| process.cpu).sum();
            if load_limit::is_over(limit, begun.elapsed(), cpu) {
                return;
            }
            if cpu >= PRIORITY_CPU_TIME {
                engine.children().lower_priority();
            }
        }
    };
    let mut load = std::pin::pin!(load);
    tokio::select! {
        loaded = &mut load => return loaded,
        () = over => {}
    }
    let reason = format!("its load took longer than {} s", limit.as_secs());
    terms.give_up(reason.clone());
    engine.children().end_all(&reason);
    // A load that is cut off half-way would leave its state behind.
    load.await.map_err(|_| VersionLoadError::TimedOut(reason))
}

#[cfg(test)]
mod tests {
    use ledge_engine::Runtimes;
    use ledge_isolation::{ChildSettings, ChildStarter};

    use super::*;

    #[tokio::test]
    async fn a_first_load_over_its_limit_is_given_up_and_one_within_it_is_not() {
        let children = ChildSettings {
            starter: ChildStarter::Unavailable("there are no models".into()),
            folder: "instances".into(),
            memory_folder: None,
            memory_bytes: None,
            content_bytes: 0,
            is_yielding: true,
            is_trial: false,
        };
        let engine = InferScheduler::new(Runtimes::new("/nowhere".into()), vec![0], None, children);
        let (limit, terms) = (Duration::from_millis(1), InstanceLoadLimit::new(Duration::ZERO));
        assert!(matches!(within(&engine, limit, &terms, async { Ok(1) }).await, Ok(1)));
        let endless = async {
            // Behaves like a load after the end of its process.
            while terms.given_up().is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err::<(), _>(VersionLoadError::Sealed("the process was ended".to_owned()))
        };
        let given_up = within(&engine, limit, &terms, endless).await.unwrap_err();
        assert_eq!(given_up.to_string(), "its load took longer than 0 s");
        assert!(matches!(given_up, VersionLoadError::TimedOut(_)) && given_up.may_pass());
    }
}
