//! The online feature store: what models need to know and callers do not send, kept on the box, in Feast's words.
//!
//! What is acknowledged is in the journal, fsynced. The index answers reads, and can be rebuilt from snapshot and journal
//! at any time.
#![forbid(unsafe_code)]

pub mod backup_cipher;
pub mod backup_rows;
mod caller;
pub mod catalog;
pub mod config;
mod engine;
pub mod entity_keys;
pub mod journal;
pub mod fuzz;
mod incoming;
mod key;
mod merge;
pub mod online;
mod protection;
mod reading;
mod record;
mod seal;
pub mod sealed;
pub mod registry;
pub mod snapshot;
pub mod statistics;
mod store;
mod typed;
pub mod value;
pub mod view;
pub mod window;
mod wire;

use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use ledge_base::clock::Settling;
use ledge_base::complaints::Complaints;
use ledge_base::principal::Principal;
use ledge_identity::sealing::Sealer;
use ledge_service::audit_event::{AuditEvent, AuditSink};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use backup_cipher::BackupRecipient;
pub use caller::FeatureCaller;
use caller::Pushing;
use config::FeaturesConfig;
use engine::acknowledged::{Acknowledged, Found as Known};
pub use engine::backup::Pieces;
use engine::erased::ErasedEntities;
pub use engine::erasure::Entity;
pub use engine::files::FORM;
use engine::files::Files;
use engine::orders::{Command, Job};
pub use engine::restore::Upload;
use engine::upkeep::Upkeep;
use engine::writer::Writer;
use engine::{Engine, State};
use entity_keys::{EntityKeys, KeysError};
use journal::Journal;
use online::{FeatureError, Ignored, OnlineFeatures, OnlineRequest, Push, PushOutcome};
use protection::Protection;
pub use reading::LongRead;
use registry::Registry;
use statistics::{Counters, FeatureStatistics, ViewStatistics};
use view::FeatureView;

/// The journal's segments, so that the room of what a snapshot has comes free bit by bit.
const SEGMENT_BYTES: u64 = 32 << 20;

/// How many backups are read at a time: each keeps a thread busy, and the index that it reads open.
const BACKUPS: usize = 2;

/// The most bytes of rows in one push, as the journal keeps them.
const MAX_PUSH: usize = 24 << 20;

/// Above so many values a call is not prepared on an async thread: each takes some 100 ns.
const BRIEF_CELLS: usize = 1000;

/// How long the store may take to write what waits and to close.
const CLOSING: Duration = Duration::from_secs(8);

/// A handle to the feature store. Clones share it.
#[derive(Debug, Clone)]
pub struct FeatureStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: FeaturesConfig,
    audit: AuditSink,
    sealer: Sealer,
    registry: ArcSwap<Registry>,
    /// Made when the first view is declared; or why it cannot be used until the next start.
    opened: OnceLock<Result<Opened, String>>,
    folder: Arc<str>,
    complaints: Mutex<Complaints>,
    /// Turns of long reads: half of the cores are for others.
    long_reads: Arc<Semaphore>,
}

#[derive(Debug)]
struct Opened {
    engine: Arc<Engine>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Keeps other daemons out.
    _lock: File,
}

impl FeatureStore {
    /// A store of what `registry` declares. Its files are opened and checked by threads of its own; until that is done reads
    /// say that it is not ready. Without a view there is neither a file nor a thread.
    pub fn open(config: &FeaturesConfig, registry: Registry, audit: AuditSink, sealer: Sealer) -> Self {
        let store = Self::without_files(config, registry, audit, sealer);
        store.open_if_declared();
        store
    }

    /// What is declared, without values: those belong to the daemon.
    pub fn without_values(config: &FeaturesConfig, registry: Registry) -> Self {
        Self::without_files(config, registry, AuditSink::to_nowhere(), Sealer::none())
    }

    fn without_files(config: &FeaturesConfig, registry: Registry, audit: AuditSink, sealer: Sealer) -> Self {
        let folder = config.views.display().to_string().into();
        let (config, registry) = (config.clone(), ArcSwap::from_pointee(registry));
        let (opened, complaints) = (OnceLock::new(), Mutex::default());
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let long_reads = Arc::new(Semaphore::new((cores / 2).max(1)));
        Self { shared: Arc::new(Shared { config, audit, sealer, registry, opened, folder, complaints, long_reads }) }
    }

    fn open_if_declared(&self) {
        let registry = self.shared.registry.load_full();
        if registry.is_empty() {
            return;
        }
        self.shared.opened.get_or_init(|| {
            Opened::new(&self.shared.config, registry, self.shared.audit.clone(), &self.shared.sealer).inspect_err(
                |reason| {
                    tracing::error!(reason, "the feature store cannot be opened; models are served without it");
                },
            )
        });
    }

    /// Takes what is declared now. What was declared before and is no more keeps its rows until they expire. When the
    /// numbers of what is new cannot be kept, everything stays as it is. It waits for a snapshot when aggregates change, and
    /// must not be called on an async thread.
    pub fn reload(&self, registry: Registry) -> io::Result<()> {
        if let Some(Ok(opened)) = self.shared.opened.get() {
            if aggregates_change(&opened.engine.registry.load(), &registry) {
                // What was pushed until now was aggregated by the old declaration, and the journal would be by the new one.
                let (reply, answer) = oneshot::channel();
                let sent = opened.engine.jobs.send(Job::Snapshot { reply });
                let taken = sent.ok().and_then(|()| answer.blocking_recv().ok());
                let taken = taken.unwrap_or(Err(FeatureError::Unavailable { reason: State::Closed.reason() }));
                taken.map_err(|error| io::Error::other(format!("no snapshot of the old ones' aggregates: {error}")))?;
            }
            registry.save(&self.shared.config.path)?;
            opened.engine.protection.learn(registry.catalog());
            opened.engine.registry.store(Arc::new(registry.clone()));
        }
        self.shared.registry.store(Arc::new(registry));
        self.open_if_declared();
        Ok(())
    }

    /// What is declared.
    pub fn registry(&self) -> Arc<Registry> {
        self.shared.registry.load_full()
    }

    /// Waits until the index was opened and checked, or is found to need a rebuild.
    pub async fn opened(&self) {
        if let Some(Ok(opened)) = self.shared.opened.get() {
            // The sender lives as long as this does.
            let _ = opened.engine.opened.subscribe().wait_for(|opened| *opened).await;
        }
    }

    /// Waits until the writer has done what it was asked for before. Where its disk stands still that is never; without a
    /// store, and after its end, at once.
    pub async fn turned(&self) {
        let Some(Ok(opened)) = self.shared.opened.get() else { return };
        let (reply, answer) = oneshot::channel();
        let sent = opened.engine.commands.send(Command::Turn { reply }).await;
        let answered = sent.is_ok() && answer.await.is_ok();
        if !answered && !matches!(&**opened.engine.state.load(), State::Closed) {
            // Its thread died.
            std::future::pending::<()>().await;
        }
    }

    /// Writes what waits, and closes the files. No call is answered afterwards.
    pub fn close(&self) {
        let Some(Ok(opened)) = self.shared.opened.get() else { return };
        let until = Instant::now() + CLOSING;
        let _ = opened.engine.jobs.send(Job::Stop);
        let mut command = Command::Close;
        while let Err(tokio::sync::mpsc::error::TrySendError::Full(again)) = opened.engine.commands.try_send(command) {
            if Instant::now() > until {
                tracing::warn!("the feature store did not close in time; the next start checks it");
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
                tracing::warn!("the feature store did not close in time; the next start checks it");
            }
        }
    }

    /// Whether it was opened here; else its values belong to another process.
    pub fn is_open(&self) -> bool {
        self.shared.opened.get().is_some()
    }

    fn engine(&self) -> Result<&Arc<Engine>, FeatureError> {
        match self.shared.opened.get() {
            None if self.shared.registry.load().is_empty() => {
                Err(FeatureError::Disabled { folder: self.shared.folder.clone() })
            }
            None => Err(FeatureError::Unavailable { reason: "its values belong to the daemon".into() }),
            Some(Err(reason)) => Err(FeatureError::Unavailable { reason: reason.clone() }),
            Some(Ok(opened)) => Ok(&opened.engine),
        }
    }

    /// Reads features of entities. Every feature has a cell for every entity, with a status.
    pub async fn get_online_features(
        &self,
        request: OnlineRequest,
        caller: FeatureCaller,
    ) -> Result<OnlineFeatures, FeatureError> {
        let engine = self.engine()?;
        if cells(&request.entities) > BRIEF_CELLS {
            let engine = engine.clone();
            return off_thread(move || reading::Plan::new(&engine, request, caller)?.answer(&engine)).await;
        }
        let read = reading::Plan::new(engine, request, caller)?;
        if read.is_brief(engine) {
            return read.answer(engine);
        }
        let engine = engine.clone();
        off_thread(move || read.answer(&engine)).await
    }

    /// Begins a read of many entities, which is made a slice at a time.
    pub fn long_read(&self, request: OnlineRequest, caller: FeatureCaller) -> Result<LongRead, FeatureError> {
        LongRead::new(self.engine()?, request, caller)
    }

    /// A turn for one slice of a long read, until it is dropped.
    pub async fn long_read_turn(&self) -> Option<OwnedSemaphorePermit> {
        // It is never closed.
        self.shared.long_reads.clone().acquire_owned().await.ok()
    }

    /// Writes rows. When this returns `Ok`, every row survives a power cut and is seen by the reads that come after;
    /// otherwise none is there, unless the power went before this could tell.
    pub async fn push(&self, push: Push, caller: FeatureCaller) -> Result<PushOutcome, FeatureError> {
        let engine = self.engine()?;
        let (preparing, asking) = (engine.clone(), caller.clone());
        let prepare = move |push: &Push| {
            let times = preparing.times();
            let views = preparing.registry.load().targets(&push.target)?;
            asking.admit(views.iter(), &preparing.audit)?;
            let checked = incoming::check(views, push, times)?;
            let touched = checked.touched(preparing.audit.tag_key().as_deref());
            if times.is_ahead {
                let stamped = checked.rows_at(times.stamp_us) as u64;
                preparing.counters.stamped_ahead.fetch_add(stamped, Relaxed);
            }
            Ok((checked.views.clone(), checked.unknown.clone(), touched, checked.into_rows(&preparing)))
        };
        let (views, ignored, touched, rows) = incoming::prepared(push, prepare).await?;
        if rows.is_empty() {
            return Ok(PushOutcome::default());
        }
        let (reply, answer) = oneshot::channel();
        let sent = engine.commands.try_send(Command::Push { rows, reply });
        sent.map_err(|error| match error {
            tokio::sync::mpsc::error::TrySendError::Full(_) => {
                Counters::count(&engine.counters.refused_overload);
                FeatureError::Overloaded { waiting: engine::QUEUE }
            }
            tokio::sync::mpsc::error::TrySendError::Closed(_) => {
                FeatureError::Unavailable { reason: State::Closed.reason() }
            }
        })?;
        let pushing = Pushing::new(caller, touched, &engine.audit);
        let written = answer.await.map_err(|_| FeatureError::Unavailable { reason: State::Closed.reason() })?;
        let rows = match written {
            Ok(rows) => rows,
            Err(error) => {
                pushing.failed();
                return Err(error);
            }
        };
        drop(pushing);
        self.note_ignored(&views, Ignored::Columns(ignored.len()));
        Ok(PushOutcome { rows, ignored })
    }

    /// Takes a snapshot, so that a start after a crash has less to read.
    pub async fn snapshot(&self) -> Result<(), FeatureError> {
        let (reply, answer) = oneshot::channel();
        self.upkeep(Job::Snapshot { reply }, answer).await
    }

    /// Builds the index anew in less room; the bytes it took before, and takes now.
    pub async fn compact(&self) -> Result<(u64, u64), FeatureError> {
        let (reply, answer) = oneshot::channel();
        self.upkeep(Job::Compact { reply }, answer).await
    }

    /// A backup of now, or of the rows of one view: every push acknowledged before this was called is in it. The values are
    /// in it as they are, unless it is encrypted to a recipient.
    pub async fn backup(
        &self,
        view: Option<&str>,
        recipient: Option<BackupRecipient>,
        principal: &Principal,
    ) -> Result<Pieces, FeatureError> {
        let engine = self.engine()?;
        let view = view.map(|name| engine.registry.load().view(name).cloned()).transpose()?;
        let closed = |_| FeatureError::Unavailable { reason: State::Closed.reason() };
        let permit = engine.backups.clone().acquire_owned().await.map_err(closed)?;
        let pieces = engine::backup::start(engine, view.as_ref().map(|view| view.id), recipient, permit).await?;
        let feature_view = view.map(|view| view.name.to_string());
        self.shared.audit.record(principal, AuditEvent::FeatureStoreBackedUp { feature_view });
        Ok(pieces)
    }

    /// A place for a backup that is to be restored. There is one at a time.
    pub fn upload(&self) -> Result<Upload, FeatureError> {
        let engine = self.engine()?;
        let busy = |_| FeatureError::Unavailable { reason: "a backup is on its way in already".into() };
        let alone = engine.restores.clone().try_acquire_owned().map_err(busy)?;
        Upload::new(engine.clone(), alone)
    }

    /// Puts a backup in the place of everything; how many records it has. When this returns `Ok`, reads see it and it
    /// survives a power cut. When a backup is refused, nothing has changed.
    pub async fn restore(&self, mut upload: Upload, principal: Principal) -> Result<u64, FeatureError> {
        let received = upload.finish().await?;
        let (reply, answer) = oneshot::channel();
        self.upkeep(Job::Restore { received, principal, reply }, answer).await
    }

    async fn upkeep<T>(&self, job: Job, answer: oneshot::Receiver<Result<T, FeatureError>>) -> Result<T, FeatureError> {
        let closed = || FeatureError::Unavailable { reason: State::Closed.reason() };
        self.engine()?.jobs.send(job).map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// What it counts; `None` without a store.
    pub fn statistics(&self) -> Option<FeatureStatistics> {
        let engine = self.engine().ok()?;
        let registry = engine.registry.load();
        let counters = &engine.counters;
        let views = counters.with_views(|views| {
            let view = |view: &Arc<FeatureView>| {
                let found = views.get(&view.id).copied().unwrap_or_default();
                let statistics::OfView { rows, newest_us, pushed, ignored } = found;
                ViewStatistics { view: view.name.to_string(), rows, newest_us, pushed, ignored }
            };
            registry.views().map(view).collect()
        });
        let state = engine.state.load();
        Some(FeatureStatistics {
            state: state.as_str(),
            reason: (!matches!(&**state, State::Ready(_))).then(|| state.reason()),
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

    /// Where the store lies.
    pub fn folder(&self) -> PathBuf {
        self.shared.config.path.clone()
    }
}

/// Whether a view that has aggregates is gone, or has others.
fn aggregates_change(old: &Registry, new: &Registry) -> bool {
    let changed = |view: &Arc<FeatureView>| {
        let same = |new: &Arc<FeatureView>| new.aggregations == view.aggregations && new.lateness == view.lateness;
        !view.aggregations.is_empty() && !new.view_by_id(view.id).is_some_and(same)
    };
    old.views().any(changed)
}

/// How many values there are.
fn cells(columns: &online::Columns) -> usize {
    columns.iter().map(|(_, cells)| cells.len()).sum()
}

/// Does what would keep other callers waiting on another thread.
async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let working = tokio::task::spawn_blocking(work);
    working.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

impl Opened {
    fn new(
        config: &FeaturesConfig,
        registry: Arc<Registry>,
        audit: AuditSink,
        sealer: &Sealer,
    ) -> Result<Self, String> {
        let told = |error: &dyn std::fmt::Display| format!("{}: {error}", config.path.display());
        let files = Files::new(&config.path).map_err(|error| told(&error))?;
        let lock = files.lock().map_err(|error| told(&error))?;
        let has_keys = EntityKeys::exist(files.folder()).map_err(|error| told(&error))?;
        if sealer.is_on() && !has_keys && files.is_sealed().map_err(|error| told(&error))? {
            return Err(told(&KeysError::Missing { folder: files.folder().join("keys") }));
        }
        let has_keys = has_keys || sealer.is_on();
        let keys = has_keys.then(|| EntityKeys::open(files.folder(), sealer.clone())).transpose();
        let keys = keys.map_err(|error| told(&error))?;
        let erased = ErasedEntities::open(files.folder(), sealer.clone()).map_err(|error| told(&error))?;
        if let Some(entity_keys::Opened { keys, .. }) = &keys {
            // An erasure that was cut off comes to its end before anything else is sealed with its keys.
            keys.doom(&erased.doomed());
            keys.destroy().map_err(|error| told(&error))?;
            erased.settle().map_err(|error| told(&error))?;
        }
        // Before the first row that has the numbers in it.
        registry.save(files.folder()).map_err(|error| told(&error))?;
        // What a restore left that did not come to its end.
        let _ = std::fs::remove_file(files.folder().join(engine::restore::UPLOAD));
        let (hash_key, _) = files.hash_key(sealer).map_err(|error| told(&error))?;
        let snapshots = snapshot::list(files.folder()).map_err(|error| told(&error))?;
        let least_seq = snapshots.first().map_or(1, |(replay_from, _)| *replay_from);
        let (acknowledged, known) = Acknowledged::open(files.folder());
        let until = if let Known::Until(next_seq) = known { next_seq } else { 0 };
        let mut opened =
            Journal::open(&files.journal(), SEGMENT_BYTES, least_seq, until).map_err(|error| told(&error))?;
        acknowledged.begin(opened.report.next_seq, opened.report.lacking.clone());
        if opened.report.lacking.is_some() {
            // When this fails the next push tries again, and says why.
            let _ = opened.journal.ready();
        }
        let (commands, receiver) = tokio::sync::mpsc::channel(engine::QUEUE);
        let (jobs, waiting) = mpsc::channel();
        let counters = Counters::default();
        // Until it is known better: not near.
        counters.usual_get_ns.store(20_000, Relaxed);
        counters.journal_next_seq.store(opened.journal.next_seq(), Relaxed);
        let (keys, mended) = keys.map(|keys| (keys.keys, keys.mended)).unzip();
        let protection = Arc::new(Protection::new(keys, registry.catalog()));
        let engine = Arc::new(Engine {
            config: config.clone(),
            files,
            registry: ArcSwap::new(registry),
            hash_key,
            protection,
            erased,
            acknowledged,
            state: ArcSwap::from_pointee(State::Opening),
            opened: tokio::sync::watch::Sender::new(false),
            counters,
            stamped_us: AtomicI64::new(0),
            newest_us: AtomicI64::new(i64::MAX),
            settling: Settling::begin(),
            generation: AtomicU64::new(0),
            compacting: AtomicBool::new(false),
            snapshot_asked: AtomicBool::new(false),
            audit,
            commands,
            jobs,
            backups: Arc::new(Semaphore::new(BACKUPS)),
            restores: Arc::new(Semaphore::new(1)),
        });
        for mended in mended.iter().flatten() {
            engine.alarm("a key file of the feature store is mended from its copy", mended);
        }
        for damage in &opened.report.damage {
            engine.alarm("the journal of the feature store is damaged", &damage.to_string());
        }
        if known == Known::Damaged {
            let reason = "neither copy can be read; from now on they say again what is acknowledged";
            engine.alarm("how far pushes to the feature store were acknowledged is not known any more", reason);
        }
        if opened.report.cut_off > 0 {
            tracing::warn!(
                bytes = opened.report.cut_off,
                "the end of the journal is not whole, as after a write that was cut off before it was acknowledged; it is left out"
            );
        }
        let writer = Writer::new(engine.clone(), opened.journal);
        let upkeep = Upkeep::new(engine.clone());
        let marked = engine.clone();
        let _ = engine.jobs.send(Job::Open);
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let engine = engine.clone();
            let watched = move || {
                if catch_unwind(AssertUnwindSafe(work)).is_err() {
                    engine.acknowledged.close();
                    engine.alarm("a thread of the feature store ended; the store is closed", "it panicked");
                    engine.state.store(Arc::new(State::Closed));
                    engine.opened.send_replace(true);
                }
            };
            thread::Builder::new().name(name.into()).spawn(watched)
        };
        let threads = [
            spawn("features", Box::new(move || writer.run(receiver))),
            spawn("features-upkeep", Box::new(move || upkeep.run(&waiting))),
            spawn("features-mark", Box::new(move || marked.acknowledged.keep_durable())),
        ];
        let threads: Result<Vec<_>, _> = threads.into_iter().collect();
        Ok(Self { engine, threads: Mutex::new(threads.map_err(|error| told(&error))?), _lock: lock })
    }
}
