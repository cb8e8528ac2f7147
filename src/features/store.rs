//! The feature store: its declarations, and the calls that read and write.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use arc_swap::ArcSwap;
use ledge_base::clock;
use ledge_base::log_limiter::LogLimiter;
use ledge_base::principal::Principal;
use ledge_identity::sealing::Sealer;
use ledge_service::audit_event::{AuditEvent, AuditSink};
use ledge_service::off_thread::blocking;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::backup_cipher::BackupRecipient;
use super::caller::{FeatureCaller, PushRecord};
use super::config::FeaturesConfig;
use super::engine::backup::BackupPieces;
use super::engine::commands::{MaintenanceJob, StoreWriterCommand};
use super::engine::restore::BackupUpload;
use super::engine::{StoreEngine, StoreState};
use super::entity_keys::EntityKeys;
use super::incoming::{ASYNC_CELLS_MAX, EventTimeLimits, cells};
use super::online::{FeatureError, FeaturePush, IgnoredPushPart, OnlineFeatures, OnlineFeaturesRequest, PushOutcome};
use super::opening::OpenStore;
use super::profiles::EntityProfiles;
use super::reading::LongFeatureRead;
use super::registry::Registry;
use super::statistics::{FeatureStatistics, StoreCounters, ViewStatistics};
use super::view::FeatureView;
use super::{engine, incoming, reading, statistics};

/// The interval between attempts to open a store that could not be opened.
const REOPEN_INTERVAL: Duration = Duration::from_secs(10);

/// The longest time for writing the waiting pushes and closing.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(8);

/// A handle to the feature store. Clones share it.
#[derive(Debug, Clone)]
pub struct FeatureStore {
    pub(super) inner: Arc<FeatureStoreInner>,
}

#[derive(Debug)]
pub(super) struct FeatureStoreInner {
    pub(super) config: FeaturesConfig,
    pub(super) audit: AuditSink,
    pub(super) sealer: Sealer,
    registry: ArcSwap<Registry>,
    /// Set when the first view is declared and the files can be used.
    opened: OnceLock<OpenStore>,
    /// Locked while they are opened.
    opening: Mutex<()>,
    /// The reason why they could not be used at the last attempt.
    failure: Mutex<Option<String>>,
    folder: Arc<str>,
    complaints: Mutex<LogLimiter>,
    /// Permits for slices of long reads: half of the cores remain for other work.
    long_reads: Arc<Semaphore>,
}

impl FeatureStore {
    /// Opens the store for the views of `registry`. Its own threads open and check the files; until that is done, reads
    /// fail as not ready. Without a view there is neither a file nor a thread.
    pub fn open(config: &FeaturesConfig, registry: Registry, audit: AuditSink, sealer: Sealer) -> Self {
        let store = Self::without_files(config, registry, audit, sealer);
        store.open_if_declared();
        store
    }

    /// The declarations without values, for processes other than the daemon.
    pub fn without_values(config: &FeaturesConfig, registry: Registry) -> Self {
        Self::without_files(config, registry, AuditSink::to_nowhere(), Sealer::none())
    }

    fn without_files(config: &FeaturesConfig, registry: Registry, audit: AuditSink, sealer: Sealer) -> Self {
        let folder = config.views.display().to_string().into();
        let (config, registry) = (config.clone(), ArcSwap::from_pointee(registry));
        let (opened, complaints) = (OnceLock::new(), Mutex::default());
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let long_reads = Arc::new(Semaphore::new((cores / 2).max(1)));
        Self {
            inner: Arc::new(FeatureStoreInner {
                config,
                audit,
                sealer,
                registry,
                opened,
                opening: Mutex::default(),
                failure: Mutex::default(),
                folder,
                complaints,
                long_reads,
            }),
        }
    }

    fn open_if_declared(&self) {
        // So that two attempts at a time do not open it twice.
        let _attempt = self.inner.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let registry = self.inner.registry.load_full();
        if registry.is_empty() || self.inner.opened.get().is_some() {
            return;
        }
        match OpenStore::new(&self.inner.config, registry, self.inner.audit.clone(), &self.inner.sealer) {
            Ok(opened) => {
                let _ = self.inner.opened.set(opened);
                if self.failure().take().is_some() {
                    tracing::info!("the feature store can be opened now");
                }
            }
            Err(reason) => {
                let before = self.failure().replace(reason.clone());
                if before.as_ref() != Some(&reason) {
                    tracing::error!(
                        reason,
                        "the feature store cannot be opened; models are served without it, and it is tried again"
                    );
                }
            }
        }
    }

    fn failure(&self) -> MutexGuard<'_, Option<String>> {
        // Nothing panics under this lock.
        self.inner.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a store that could not be opened, for instance because the disk was read-only, as soon as it can. Does not
    /// return.
    pub(crate) async fn reopen(&self) {
        loop {
            tokio::time::sleep(REOPEN_INTERVAL).await;
            if self.failure().is_some() {
                let store = self.clone();
                blocking(move || store.open_if_declared()).await;
            }
        }
    }

    /// The reason why the store could not be opened at the last attempt.
    pub(crate) fn why_not_open(&self) -> Option<String> {
        self.failure().clone()
    }

    /// Applies new declarations. Views that are no longer declared keep their rows until they expire. When the numbers
    /// of new views cannot be saved, nothing changes. Waits for a snapshot when aggregates change, and must not be
    /// called on an async thread.
    pub fn reload(&self, registry: Registry) -> io::Result<()> {
        if let Some(opened) = self.inner.opened.get() {
            if aggregates_change(&opened.engine.registry.load(), &registry) {
                // Rows pushed until now were aggregated by the old declaration; a replay of the journal would use the
                // new one.
                let (reply, answer) = oneshot::channel();
                let sent = opened.engine.jobs.send(MaintenanceJob::Snapshot { reply });
                let taken = sent.ok().and_then(|()| answer.blocking_recv().ok());
                let taken = taken.unwrap_or(Err(FeatureError::Unavailable { reason: StoreState::Closed.reason() }));
                taken.map_err(|error| {
                    io::Error::other(format!("aggregations changed, and the snapshot that this needs failed: {error}"))
                })?;
            }
            registry.save(&self.inner.config.path)?;
            opened.engine.protection.learn(registry.catalog());
            opened.engine.registry.store(Arc::new(registry.clone()));
            opened.engine.profiles.declare(&opened.engine, &registry);
            let watching = EntityProfiles::start(&opened.engine)?;
            opened.threads.lock().unwrap_or_else(PoisonError::into_inner).extend(watching);
        }
        self.inner.registry.store(Arc::new(registry));
        self.open_if_declared();
        Ok(())
    }

    /// The current declarations.
    pub fn registry(&self) -> Arc<Registry> {
        self.inner.registry.load_full()
    }

    /// Waits until the index was opened and checked, or was found to need a rebuild.
    pub async fn opened(&self) {
        if let Some(opened) = self.inner.opened.get() {
            // The sender lives as long as the store.
            let _ = opened.engine.opened.subscribe().wait_for(|opened| *opened).await;
        }
    }

    /// Waits until the writer has done all commands before this one: a liveness check. Never returns while its disk
    /// hangs; returns at once without a store, and after it was closed.
    pub async fn wait_for_writer(&self) {
        let Some(opened) = self.inner.opened.get() else { return };
        let (reply, answer) = oneshot::channel();
        let sent = opened.engine.commands.send(StoreWriterCommand::Ping { reply }).await;
        let answered = sent.is_ok() && answer.await.is_ok();
        if !answered && !matches!(&**opened.engine.state.load(), StoreState::Closed) {
            // Its thread died.
            std::future::pending::<()>().await;
        }
    }

    /// Writes the waiting pushes, and closes the files. Later calls fail.
    pub fn close(&self) {
        let Some(opened) = self.inner.opened.get() else { return };
        let until = Instant::now() + CLOSE_TIMEOUT;
        let _ = opened.engine.jobs.send(MaintenanceJob::Stop);
        let mut command = StoreWriterCommand::Close;
        while let Err(tokio::sync::mpsc::error::TrySendError::Full(again)) = opened.engine.commands.try_send(command) {
            if Instant::now() > until {
                tracing::warn!("the feature store did not close in time; the next start checks its index");
                return;
            }
            command = again;
            thread::park_timeout(Duration::from_millis(1));
        }
        for thread in opened.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            while !thread.is_finished() && Instant::now() < until {
                thread::park_timeout(Duration::from_millis(1));
            }
            if !thread.is_finished() {
                tracing::warn!("the feature store did not close in time; the next start checks its index");
            }
        }
    }

    /// True when this process opened the store; otherwise its values belong to another process.
    pub fn is_open(&self) -> bool {
        self.inner.opened.get().is_some() || self.failure().is_some()
    }

    pub(super) fn engine(&self) -> Result<&Arc<StoreEngine>, FeatureError> {
        match self.inner.opened.get() {
            Some(opened) => Ok(&opened.engine),
            None if self.inner.registry.load().is_empty() => {
                Err(FeatureError::Disabled { folder: self.inner.folder.clone() })
            }
            None => {
                let reason = self.failure().clone().unwrap_or_else(|| "only the daemon opens it".into());
                Err(FeatureError::Unavailable { reason })
            }
        }
    }

    /// Reads features of entities. The result has a cell with a status for every feature of every entity.
    pub async fn get_online_features(
        &self,
        request: OnlineFeaturesRequest,
        caller: FeatureCaller,
    ) -> Result<OnlineFeatures, FeatureError> {
        let engine = self.engine()?;
        if cells(&request.entities) > ASYNC_CELLS_MAX {
            let engine = engine.clone();
            return blocking(move || reading::FeatureReadPlan::new(&engine, request, caller)?.answer(&engine)).await;
        }
        let read = reading::FeatureReadPlan::new(engine, request, caller)?;
        if read.is_inline(engine) {
            return read.answer(engine);
        }
        let engine = engine.clone();
        blocking(move || read.answer(&engine)).await
    }

    /// Begins a read of many entities, one slice at a time.
    pub fn long_read(
        &self,
        request: OnlineFeaturesRequest,
        caller: FeatureCaller,
    ) -> Result<LongFeatureRead, FeatureError> {
        LongFeatureRead::new(self.engine()?, request, caller)
    }

    /// Waits for the permit for one slice of a long read.
    pub async fn long_read_turn(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        self.inner.long_reads.clone().acquire_owned().await.ok()
    }

    /// Writes rows. When this returns `Ok`, every row survives a power cut and is visible to later reads; otherwise
    /// none is stored, unless the power failed before this could return.
    pub async fn push(&self, push: FeaturePush, caller: FeatureCaller) -> Result<PushOutcome, FeatureError> {
        let engine = self.engine()?;
        let (preparing, asking) = (engine.clone(), caller.clone());
        let prepare = move |push: &FeaturePush| {
            let times = preparing.times();
            let views = preparing.registry.load().targets(&push.target)?;
            asking.admit(views.iter(), &preparing.audit)?;
            let checked = incoming::check(views, push, times)?;
            let touched = checked.touched(preparing.audit.tag_key().as_deref());
            if times.is_ahead {
                let stamped = checked.rows_at(times.stamp_us) as u64;
                preparing.counters.stamped_ahead.fetch_add(stamped, Relaxed);
            }
            Ok((checked.views.clone(), checked.unknown.clone(), touched, checked.into_rows(&preparing.hash_key)))
        };
        let (views, ignored, touched, rows) = incoming::prepare(push, prepare).await?;
        if rows.is_empty() {
            return Ok(PushOutcome::default());
        }

        let (reply, answer) = oneshot::channel();
        let sent = engine.commands.try_send(StoreWriterCommand::Push { rows, reply });
        sent.map_err(|error| match error {
            tokio::sync::mpsc::error::TrySendError::Full(_) => {
                StoreCounters::count(&engine.counters.refused_overload);
                FeatureError::Overloaded { waiting: engine::WRITER_QUEUE_LENGTH }
            }
            tokio::sync::mpsc::error::TrySendError::Closed(_) => {
                FeatureError::Unavailable { reason: StoreState::Closed.reason() }
            }
        })?;

        let pushing = PushRecord::new(caller, touched, &engine.audit);
        let written = answer.await.map_err(|_| FeatureError::Unavailable { reason: StoreState::Closed.reason() })?;
        let rows = match written {
            Ok(rows) => rows,
            Err(error) => {
                pushing.failed();
                return Err(error);
            }
        };

        drop(pushing);
        self.note_ignored(&views, IgnoredPushPart::Columns(ignored.len()));
        Ok(PushOutcome { rows, ignored })
    }

    /// Does the checks of [`Self::push`] without writing. Returns the columns that would be ignored.
    pub async fn check(&self, push: FeaturePush) -> Result<Vec<String>, FeatureError> {
        let registry = self.registry();
        if registry.is_empty() {
            return Err(FeatureError::Disabled { folder: self.inner.folder.clone() });
        }
        let now_us = clock::unix_micros();
        let accepted_until = |engine: &Arc<StoreEngine>| engine.accepted_until(now_us);
        let latest_us = self.engine().map_or_else(|_| self.inner.config.accepted_until(now_us), accepted_until);
        let times = EventTimeLimits { stamp_us: now_us, latest_us, is_ahead: false };
        let check = move |push: &FeaturePush| {
            incoming::check(registry.targets(&push.target)?, push, times).map(|checked| checked.unknown)
        };
        incoming::prepare(push, check).await
    }

    /// Counts the ignored columns of a push to `views`, and logs them, at most once a minute for each view. The log has
    /// no names: in a transposed table they are entity keys.
    pub fn note_ignored(&self, views: &[Arc<FeatureView>], ignored: IgnoredPushPart) {
        let (kind, count) = match ignored {
            IgnoredPushPart::Columns(count) => ("ignored columns", count),
            IgnoredPushPart::Fields(count) => ("ignored fields", count),
        };
        let (Ok(engine), Some(first), 1..) = (self.engine(), views.first(), count) else { return };

        engine.counters.with_views(|counted| {
            for view in views {
                counted.entry(view.id).or_default().ignored += count as u64;
            }
        });

        let complaints = || self.inner.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(suppressed) = complaints().take((kind, first.id.0), Instant::now()) else { return };

        let view = &*first.name;
        match ignored {
            IgnoredPushPart::Columns(columns) => tracing::warn!(name: "features.columns_ignored",
                feature_view = view,
                columns,
                suppressed,
                "columns of a push are ignored: the feature view has no columns of these names"
            ),
            IgnoredPushPart::Fields(fields) => tracing::info!(
                feature_view = view,
                fields,
                suppressed,
                "fields of a message are ignored: they are no columns of the feature view; `ledge mqtt try` lists them"
            ),
        }
    }

    /// Takes a snapshot, so that a start after a crash has less to replay.
    pub async fn snapshot(&self) -> Result<(), FeatureError> {
        let (reply, answer) = oneshot::channel();
        self.maintenance(MaintenanceJob::Snapshot { reply }, answer).await
    }

    /// Writes all changes into a new snapshot. Returns the bytes of the changes before and after.
    pub async fn compact(&self) -> Result<(u64, u64), FeatureError> {
        let (reply, answer) = oneshot::channel();
        self.maintenance(MaintenanceJob::Compact { reply }, answer).await
    }

    /// Takes a backup, of everything or of the rows of one view. Every push acknowledged before this call is included.
    /// The values are plain unless the backup is encrypted to a recipient.
    pub async fn backup(
        &self,
        view: Option<&str>,
        recipient: Option<BackupRecipient>,
        principal: &Principal,
    ) -> Result<BackupPieces, FeatureError> {
        let engine = self.engine()?;
        let view = view.map(|name| engine.registry.load().view(name).cloned()).transpose()?;
        let closed = |_| FeatureError::Unavailable { reason: StoreState::Closed.reason() };
        let permit = engine.backups.clone().acquire_owned().await.map_err(closed)?;
        let pieces = engine::backup::start(engine, view.as_ref().map(|view| view.id), recipient, permit).await?;
        let feature_view = view.map(|view| view.name.to_string());
        self.inner.audit.record(principal, AuditEvent::FeatureStoreBackedUp { feature_view });
        Ok(pieces)
    }

    /// Begins the upload of a backup to restore. There is one at a time.
    pub fn upload(&self) -> Result<BackupUpload, FeatureError> {
        let engine = self.engine()?;
        let busy = |_| FeatureError::Unavailable {
            reason: "another backup is being uploaded; wait until it is restored".into(),
        };
        let permit = engine.restores.clone().try_acquire_owned().map_err(busy)?;
        BackupUpload::new(engine.clone(), permit)
    }

    /// Replaces everything by a backup. Returns how many records it has. When this returns `Ok`, reads see it and it
    /// survives a power cut. When the backup is refused, nothing has changed.
    pub async fn restore(&self, mut upload: BackupUpload, principal: Principal) -> Result<u64, FeatureError> {
        let received = upload.finish().await?;
        let (reply, answer) = oneshot::channel();
        self.maintenance(MaintenanceJob::Restore { received, principal, reply }, answer).await
    }

    pub(super) async fn maintenance<T>(
        &self,
        job: MaintenanceJob,
        answer: oneshot::Receiver<Result<T, FeatureError>>,
    ) -> Result<T, FeatureError> {
        let closed = || FeatureError::Unavailable { reason: StoreState::Closed.reason() };
        self.engine()?.jobs.send(job).map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// The figures of the store; `None` without one.
    pub fn statistics(&self) -> Option<FeatureStatistics> {
        let engine = self.engine().ok()?;
        let registry = engine.registry.load();
        let counters = &engine.counters;
        let views = counters.with_views(|views| {
            let view = |view: &Arc<FeatureView>| {
                let found = views.get(&view.id).copied().unwrap_or_default();
                let statistics::ViewCounters { rows, newest_us, pushed, ignored, lost, profiles } = found;
                let profiles = view.unusual.as_ref().map(|_| profiles);
                ViewStatistics { view: view.name.to_string(), rows, newest_us, pushed, ignored, lost, profiles }
            };
            registry.views().map(view).collect()
        });

        let state = engine.state.load();
        Some(FeatureStatistics {
            state: state.as_str(),
            reason: (!matches!(&**state, StoreState::Ready(_))).then(|| state.reason()),
            views,
            reads: counters.reads.load(Relaxed),
            cells: counters.cells(),
            groups: counters.groups.load(Relaxed),
            refused_disk_full: counters.refused_disk_full.load(Relaxed),
            refused_overload: counters.refused_overload.load(Relaxed),
            not_written: counters.not_written.load(Relaxed),
            purged: counters.purged.load(Relaxed),
            rebuilds: counters.rebuilds.load(Relaxed),
            damage_found: counters.damage_found.load(Relaxed),
            entries_lost: counters.entries_lost.load(Relaxed),
            taken_back: counters.taken_back.load(Relaxed),
            journal_bytes: counters.journal_bytes.load(Relaxed),
            index_bytes: counters.index_bytes.load(Relaxed),
            snapshot_bytes: counters.snapshot_bytes.load(Relaxed),
            snapshot_created_ms: counters.snapshot_created_ms.load(Relaxed),
            journal_next_seq: counters.journal_next_seq.load(Relaxed),
            last_recovery_us: counters.last_recovery_us.load(Relaxed),
            sealing: engine.protection.as_str(),
            keys: engine.protection.keys().map_or(0, EntityKeys::count) as u64,
        })
    }

    /// The folder of the store.
    pub fn folder(&self) -> PathBuf {
        self.inner.config.path.clone()
    }
}

/// True when a view with aggregates was removed, or has other ones.
fn aggregates_change(old: &Registry, new: &Registry) -> bool {
    let changed = |view: &Arc<FeatureView>| {
        let same = |new: &Arc<FeatureView>| new.aggregations == view.aggregations && new.lateness == view.lateness;
        !view.aggregations.is_empty() && !new.view_by_id(view.id).is_some_and(same)
    };
    old.views().any(changed)
}
