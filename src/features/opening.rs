//! Opening the files of the store, and starting its threads.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use ledge_base::clock::ClockSettling;
use ledge_identity::sealing::Sealer;
use ledge_service::audit_event::AuditSink;
use tokio::sync::Semaphore;

use super::config::FeaturesConfig;
use super::engine::commands::{MaintenanceJob, StoreWriterCommand};
use super::engine::commit_watermark::{CommitWatermark, StoredWatermark};
use super::engine::files::FeatureStoreFiles;
use super::engine::maintenance::Maintenance;
use super::engine::tombstones::Tombstones;
use super::engine::writer::StoreWriter;
use super::engine::{StoreEngine, StoreState};
use super::entity_keys::{EntityKeys, EntityKeysError};
use super::journal::Journal;
use super::profiles::EntityProfiles;
use super::protection::RowCipher;
use super::registry::Registry;
use super::statistics::StoreCounters;
use super::{engine, entity_keys, journal, snapshot};

/// The size of a journal segment, in bytes: small, so that space is freed step by step after a snapshot.
const SEGMENT_BYTES: u64 = 32 << 20;

/// The most backups at a time: each keeps a thread busy, and the index that it reads open.
const BACKUPS_MAX: usize = 2;

#[derive(Debug)]
pub(super) struct OpenStore {
    pub(super) engine: Arc<StoreEngine>,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
    pub(super) _lock: File,
}

impl OpenStore {
    pub(super) fn new(
        config: &FeaturesConfig,
        registry: Arc<Registry>,
        audit: AuditSink,
        sealer: &Sealer,
    ) -> Result<Self, String> {
        let with_path = |error: &dyn std::fmt::Display| format!("{}: {error}", config.path.display());
        let files = FeatureStoreFiles::new(&config.path).map_err(|error| with_path(&error))?;
        let lock = files.lock().map_err(|error| with_path(&error))?;
        // Before anything judges how much room there is.
        if let Err(error) = files.remove_leftovers() {
            tracing::warn!(%error, "what an interrupted write of the feature store left cannot be removed");
        }
        let renamed = files.restore_names().map_err(|error| with_path(&error))?;

        let has_keys = EntityKeys::exist(files.folder()).map_err(|error| with_path(&error))?;
        if sealer.is_on() && !has_keys && files.is_sealed().map_err(|error| with_path(&error))? {
            return Err(with_path(&EntityKeysError::Missing { folder: files.folder().join("keys") }));
        }
        // Before the first row that uses the numbers, and before the first subfolder: after a power cut a subfolder
        // without a catalog is a store that lost its catalog.
        registry.save(files.folder()).map_err(|error| with_path(&error))?;

        let has_keys = has_keys || sealer.is_on();
        let keys = has_keys.then(|| EntityKeys::open(files.folder(), sealer.clone())).transpose();
        let keys = keys.map_err(|error| with_path(&error))?;

        let tombstones = Tombstones::open(files.folder(), sealer.clone()).map_err(|error| with_path(&error))?;
        if let Some(entity_keys::OpenedKeys { keys, .. }) = &keys {
            // Complete an interrupted erasure before anything else is encrypted with its keys.
            keys.mark(&tombstones.doomed());
            keys.destroy().map_err(|error| with_path(&error))?;
            tombstones.clear_doomed().map_err(|error| with_path(&error))?;
        }

        let (hash_key, _) = files.hash_key(sealer).map_err(|error| with_path(&error))?;
        let snapshots = snapshot::list(files.folder()).map_err(|error| with_path(&error))?;
        let least_seq = snapshots.first().map_or(1, |(replay_from, _)| *replay_from);

        let (acknowledged, known) = CommitWatermark::open(files.folder());
        let until = if let StoredWatermark::Until(next_seq) = known { next_seq } else { 0 };
        let mut opened =
            Journal::open(&files.journal(), SEGMENT_BYTES, least_seq, until).map_err(|error| with_path(&error))?;
        acknowledged.begin(opened.report.next_seq, opened.report.lacking.clone());
        if opened.report.lacking.is_some() {
            // If this fails, the next push tries again and reports the reason.
            let _ = opened.journal.ready();
        }

        let (commands, receiver) = tokio::sync::mpsc::channel(engine::WRITER_QUEUE_LENGTH);
        let (jobs, waiting) = mpsc::channel();

        let counters = StoreCounters::default();
        // A cautious value until reads have been timed.
        counters.usual_get_ns.store(20_000, Relaxed);
        counters.journal_next_seq.store(opened.journal.next_seq(), Relaxed);

        let (keys, repaired) = keys.map(|keys| (keys.keys, keys.repaired)).unzip();
        let protection = Arc::new(RowCipher::new(keys, registry.catalog()));
        let profiles = EntityProfiles::new(files.folder(), &registry);
        let engine = Arc::new(StoreEngine {
            config: config.clone(),
            files,
            registry: ArcSwap::new(registry),
            hash_key,
            protection,
            tombstones,
            profiles,
            acknowledged,
            state: ArcSwap::from_pointee(StoreState::Opening),
            opened: tokio::sync::watch::Sender::new(false),
            counters,
            stamped_us: AtomicI64::new(0),
            newest_us: AtomicI64::new(i64::MAX),
            settling: ClockSettling::begin(),
            generation: AtomicU64::new(0),
            is_syncing: AtomicBool::new(false),
            has_undecryptable: AtomicBool::new(false),
            snapshot_asked: AtomicBool::new(false),
            has_gap: AtomicBool::new(false),
            audit,
            commands,
            jobs,
            backups: Arc::new(Semaphore::new(BACKUPS_MAX)),
            restores: Arc::new(Semaphore::new(1)),
        });

        for renamed in &renamed {
            engine.alarm("a snapshot of the feature store is in the place of another one", renamed);
        }
        report_damage(&engine, repaired.as_ref(), &opened.report, known);
        let watching = EntityProfiles::start(&engine).map_err(|error| with_path(&error))?;
        let mut threads =
            spawn_threads(&engine, opened.journal, receiver, waiting).map_err(|error| with_path(&error))?;
        threads.extend(watching);
        Ok(Self { engine, threads: Mutex::new(threads), _lock: lock })
    }
}

/// Reports the damage that was found when the store was opened.
fn report_damage(
    engine: &StoreEngine,
    repaired: Option<&Vec<String>>,
    report: &journal::OpenReport,
    known: StoredWatermark,
) {
    for repaired in repaired.into_iter().flatten() {
        engine.alarm("a key file of the feature store was damaged, and is restored from its copy", repaired);
    }
    for damage in &report.damage {
        engine.alarm("the journal of the feature store is damaged", &damage.to_string());
    }

    if known == StoredWatermark::Damaged {
        let reason = "neither acknowledged nor acknowledged.copy can be read; both are written again from now on";
        engine.alarm("the position of the last acknowledged push to the feature store is lost; a loss of pushes before this start cannot be detected", reason);
    }
    if report.cut_off > 0 {
        tracing::warn!(
            bytes = report.cut_off,
            "the end of the feature store's journal is incomplete, as after a power cut during a write that was not acknowledged yet; it is cut off"
        );
    }
}

/// Starts the threads of the store. One that panics closes the store.
fn spawn_threads(
    engine: &Arc<StoreEngine>,
    journal: Journal,
    commands: tokio::sync::mpsc::Receiver<StoreWriterCommand>,
    jobs: mpsc::Receiver<MaintenanceJob>,
) -> std::io::Result<Vec<JoinHandle<()>>> {
    let writer = StoreWriter::new(engine.clone(), journal);
    let maintenance = Maintenance::new(engine.clone());
    let marked = engine.clone();
    let _ = engine.jobs.send(MaintenanceJob::Open);

    let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
        let engine = engine.clone();
        let watched = move || {
            if catch_unwind(AssertUnwindSafe(work)).is_err() {
                engine.acknowledged.close();
                engine.profiles.stop();
                engine.alarm("a thread of the feature store panicked; the store is closed", "restart ledge");
                engine.state.store(Arc::new(StoreState::Closed));
                engine.opened.send_replace(true);
            }
        };
        thread::Builder::new().name(name.into()).spawn(watched)
    };

    let threads = [
        spawn("features", Box::new(move || writer.run(commands))),
        spawn("features-upkeep", Box::new(move || maintenance.run(&jobs))),
        spawn("features-mark", Box::new(move || marked.acknowledged.keep_durable())),
    ];
    threads.into_iter().collect()
}
