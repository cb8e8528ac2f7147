//! The online feature store, in Feast's words: keeps on the box the values that models need and callers do not send.
//! The journal is the truth, fsynced before a push is acknowledged. The index answers reads: the newest snapshot, read in
//! place, and over it in sled what changed since. It can be made again from an older snapshot and the journal at any
//! time.
//!
//! Files, in reading order:
//! * `view.rs` - entities, feature views and feature services, valid by construction
//! * `value.rs`, `value/` - values of Feast's types; `json.rs` and `text.rs` convert them
//! * `registry.rs` - `feature_views.d/*.toml`, with the mistakes of all files
//! * `registry/` - `file.rs` reads, `declared.rs` and `view_check.rs` check, `duration.rs` parses lengths of time
//! * `catalog.rs` - the number of each view and field
//! * `catalog/` - `translation.rs` converts the numbers of one store to those of another, by names
//! * `online.rs` - requests, answers and errors of the store, independent of the protocol
//! * `typed.rs`, `typed/` - columns of JSON to rows; event times in all their forms
//! * `incoming.rs` - checks a push against the declared views, and makes its rows for the writer
//! * `caller.rs` - the feature views that a caller may use, and the audit record of a read or push
//! * `wire.rs` - variable-length integers and values as bytes
//! * `record.rs` - rows and records as bytes: a row for the journal, a record for index and snapshots
//! * `record/` - `runs.rs` writes the values of a row, those of one type together
//! * `key.rs` - index keys: the number of the view and a keyed hash of the entity
//! * `seal.rs` - encrypts rows and records under the key of their entity
//! * `entity_keys.rs` - one key for each entity; destroying it erases the entity
//! * `entity_keys/` - `error.rs` says why there are none, `table.rs` holds the keys in memory, `form.rs` and `files.rs` on disk, each file twice
//! * `protection.rs` - encrypts and decrypts for the store: encrypted, plain, erased and missing values
//! * `merge.rs`, `merge/` - merges a row into a record, or says why not
//! * `window.rs` - aggregates over windows of event time, as bytes in the record of an entity
//! * `window/` - parts of the aggregates:
//!   * `bucket.rs`, `distinct.rs` - the values of one step, and counts of distinct values
//!   * `encoding.rs`, `limits.rs` - the state as bytes, and its largest size
//!   * `fuzz.rs`, `tests.rs`, `tests/` - properties and tests
//! * `journal.rs` - acknowledged pushes in order: segments of groups, one fsync for each group
//! * `journal/` - parts of the journal:
//!   * `entry.rs` - one entry
//!   * `format.rs` - the bytes of segments, groups and entries
//!   * `scan.rs`, `chain.rs` - reading one segment, and all segments of a folder in order
//!   * `damage.rs`, `replay.rs` - reports of damage, and reading the whole journal
//!   * `fuzz.rs`, `tests.rs`, `tests/` - properties and tests with damage and faults
//! * `snapshot.rs` - all records in one file or stream that proves that it is complete; a backup has the same bytes
//! * `snapshot/` - `form.rs` has the content of blocks; `write.rs` and `read.rs` a stream, `file.rs` files in a folder;
//!   `table.rs` and `scan.rs` read a file in place; `fuzz.rs` and tests
//! * `mem_table.rs` - what changed since a snapshot, in sled
//! * `index.rs` - the snapshot and the layers over it as one
//! * `engine/` - journal, index and snapshots together:
//!   * `mod.rs` - the state that threads and readers share: opening, ready, rebuilding, restoring, closed
//!   * `files.rs` - the folder of the store, its lock, the record of a clean stop, the reserved disk space
//!   * `manifest.rs` - what the last snapshots had, to count what is lost without them
//!   * `commit_watermark.rs` - the last acknowledged push, in two files next to the journal, to detect a loss
//!   * `applier.rs` - applies entries and records to an index, and counts its records; the folder has tests
//!   * `commands.rs` - commands of the writer thread and jobs of the upkeep thread
//!   * `writer.rs` - the writer thread: journal, index, acknowledgement
//!   * `maintenance.rs` - the upkeep thread: opening, rebuilding, restores
//!   * `recovery.rs` - opens, repairs or rebuilds the index, after any damage
//!   * `snapshots.rs` - snapshots, and the search for damage
//!   * `erasure.rs`, `erasure/`, `tombstones.rs` - erasing an entity, and the tombstones that keep backups from
//!     restoring it
//!   * `disk_space.rs` - frees space on a full disk
//!   * `backup.rs`, `restore.rs` - a snapshot as a stream; a backup received, checked, renumbered
//!   * `spool.rs` - the encrypted temporary file of a backup that is being received
//! * `backup_form.rs` - the form of a backup file: plain, or an age file
//! * `backup_cipher.rs` - encrypted backups as age files; `backup_cipher_left_out.rs` takes its place in a build
//!   without the feature `age`
//! * `backup_rows.rs` - the rows of one view in a backup, for readers without a store
//! * `encryption.rs` - the master keys of the store's files, and encrypting them again under another one
//! * `reading.rs` - reads: names to records to cells; large ones slice by slice
//! * `statistics.rs` - counters
//! * `config.rs` - `[features]`
//! * `part.rs` - the store as a part of the daemon; `http.rs`, `metrics.rs` and `doctor.rs` are its routes, metrics and
//!   findings
//! * `status.rs` - the HTTP status of each error
//! * `fuzz.rs` - properties that hold for any bytes
//!
//! The folders `merge/` and `typed/` hold tests, as do `tests.rs` and `tests/` in other folders.
//!
//! Invariants:
//! * A push is acknowledged when it is in the journal, fsynced, and in the index if there is one. The journal always
//!   comes first.
//! * Reads are errors while there is no index. `NOT_FOUND` means that a checked index has no such record.
//! * Every entry has a unique sequence number, and every record has that of its last entry. Any replay makes the same
//!   records.
//! * One index is in use, with one writer. It never changes its parts; another one takes its place.
//! * A snapshot has exactly the entries before its number, and a layer over it those from there on.
//! * Damaged files are set aside, not deleted; the last one of each kind is kept. A snapshot is read back before the
//!   files that it replaces are removed.
//! * One bad place in any file loses no acknowledged push, except in the newest entries of the journal when the layer
//!   does not have them: there are two snapshots, or a journal from the beginning, or a second one is due as soon as the
//!   disk has room, and a layer has a second copy of the journal's end.
//! * A loss is reported with its numbers, and the store continues. `commit_watermark.rs` is never ahead of the journal's
//!   fsync.
//! * A view and a field keep their numbers for ever, and no number is reused. Rows carry numbers, never names.
//! * A record has at most 64 KiB. The size of aggregates is bounded when they are declared.
//! * `merge.rs` and `window.rs` are pure. The clock is read once for each push and each read.
//! * Without a declared view there is no file and no thread.
//! * Only `mem_table.rs` knows sled, `seal.rs` the cipher, `backup_cipher.rs` age.
//! * The crate knows no model. Of HTTP it knows its own routes (`http.rs`) and the status of each error (`status.rs`).
//!
//! # Where it is decided
//!
//! * The memory that a read takes: `reading.rs`
//! * The rows that are lost with snapshots: `engine/manifest.rs`, reported by `engine/recovery.rs`
//! * The erasure of an entity: `engine/erasure.rs`; in backups: `engine/tombstones.rs` and `engine/restore.rs`
//!
//! # One push
//!
//! Two threads own the store. **The writer** owns the journal, and only it writes into the index in use; **the upkeep**
//! thread makes indexes and snapshots and hands them over. A third thread only fsyncs the position of the last
//! acknowledged push, once a second. All share `StoreEngine`, whose `StoreState` is swapped as a whole: `Opening`, `Ready`
//! with the index, `Rebuilding`, `Restoring`, `Closed`. From `POST /push` or a binding:
//!
//! 1. `typed.rs` makes rows of the columns, for every view of the push source. A value that does not fit its column
//!    ends the push here, for all rows, with column and row. Each row gets its index key.
//! 2. `FeatureStore::push` hands the rows to the writer's queue of 4096 pushes. Full means `Overloaded` now.
//! 3. The writer takes the waiting pushes, up to some 512 rows or 4 MiB, and checks the free disk space; below
//!    `min_free_mb` all are refused. With a master key each row is encrypted under the key of its entity, for its index
//!    key and its sequence number; new keys are written and fsynced first, in a file of their own, so that a push to
//!    known entities costs no additional fsync.
//! 4. `Journal::append` writes them as one group: one write, one fdatasync. From here on they survive a power cut. When
//!    it fails, none of them counts: the segment is cut back, and after a failed fsync never written to again. The
//!    group states up to when event times are trusted now (`StoreEngine::trusted_until`), so that a replay decides as the
//!    push did. `CommitWatermark::note` overwrites two small files with the next number.
//! 5. `Applier::apply` loads each record, `merge`s the row and writes 128 rows at a time into the top layer: records,
//!    then the number of the last entry. Without an index, or with one that turns out damaged, this step is skipped: the
//!    next index takes the rows from the journal.
//! 6. The caller gets the outcome of `merge` for each row.
//!
//! A read needs no thread of the store. `ReadPlan` resolves names, then takes the index out of `StoreState`; a record's
//! checksum and its entity are checked. A reader that finds damage swaps the state to `Rebuilding` (`StoreEngine::give_up`,
//! once), and all reads get 503 from then on. A read that is expected to take 100 µs at most, by the usual time of one
//! record, runs on the caller's thread; others run on a blocking thread, as do reads and pushes of more than 1000
//! values.
//!
//! Snapshots are due when the journal has grown by half of the last one, or when the layer no longer fits sled's cache:
//! sled takes 20 us for a record that is not in it, and never frees space. `Freeze` makes the writer begin a segment, and
//! a new layer on top; the one before does not change any more. The upkeep thread merges it into the snapshot below,
//! leaves out what expired, reads the new file back, counts and renames it. `Rebase` makes the index read from it, and
//! the frozen layer is removed. When a snapshot fails, the next attempt takes the same layer. Two snapshots are kept,
//! and the journal from the older one on.
//!
//! # One start of the store
//!
//! The declarations are read first, and the catalog has their numbers on disk before the first row uses them. Then the
//! lock, the hash key, and `Journal::open`: a torn end of the last segment is cut off, any other damage is reported and
//! stays. Pushes get 503 until the index is open, as it is unknown which entries it has; during a rebuild they are
//! accepted. Where the journal ends before the position in `CommitWatermark`, nothing is cut off: its end is damage, the
//! lacking entries are recorded on the disk before a new segment hides the gap, and recovery reports those as lost that
//! index and snapshot lack, too. The others stay recorded until a snapshot has them. The upkeep thread (`recovery.rs`)
//!
//! 1. removes the record of the clean stop, so that any later crash is not taken for a clean stop;
//! 2. opens the newest good snapshot: its end, with the index of its blocks; a block is checked whenever it is read. It
//!    opens the layer over that snapshot, on a thread that may panic or hang, and reads every record of it. A layer over
//!    an older snapshot is removed, and one over a later snapshot, which is damaged, is taken over value by value; one
//!    whose hash key is lost counts as damaged;
//! 3. after a clean stop compares the layer's tally with the recorded one. Any difference is damage;
//! 4. after any other stop applies the journal from the snapshot on. A record that has an entry in it already is left
//!    alone;
//! 5. on damage sets the layer aside as `index.damaged`, lets the daemon become ready, and fills a new one from the
//!    journal. Entries that the journal lacks raise an alarm, unless the layer is known to have them;
//! 6. hands the index to the writer, which applies the entries that arrived meanwhile and swaps the state;
//! 7. reads journal and snapshots (`scrub`), and replaces damaged files by a new snapshot. Where the index reads from
//!    the damaged one, another index takes its place first, over the snapshot before.
//!
//! A snapshot of an earlier version, or restored from another box, is not sorted as the index needs it: step 2 takes an
//! index of an earlier version as a layer with every record, or fills such a layer from the snapshot, and after step 7 a
//! new snapshot takes the place of both.
//!
//! With a master key the key files are read before anything else: `EntityKeys::open` takes whichever of two copies is
//! good. A row or record whose key was destroyed is skipped silently; one whose key number was never given, that does
//! not decrypt, or that is plain where everything is encrypted, raises an alarm. If there are no keys and `hash.key` is
//! encrypted, they are lost and no new ones are made. Keys that an erasure was about to destroy (`erased.json`) are
//! destroyed before anything else; unused keys once a day, after a scan that found every record, in a run that found no
//! damage. Plain values are encrypted after step 7 by two new snapshots, and then the older ones and the journal are
//! removed.
//!
//! An error of the system, such as a full disk or a snapshot that cannot be read now, is not damage: the step is tried
//! again every 10 s, and nothing is set aside or built without the missing part. Nor does an error of sled count as
//! damage while nothing can be written. On a full disk (`disk_space::free_space`) files set aside as damaged are
//! removed first, then the 16 MiB of `reserve`, in which sled can open.
//!
//! A restore works like a start: the backup is received into `restore.upload` and checked to its end, its records get
//! this store's numbers and keys and one sequence number that no entry has, the writer stops accepting pushes, and the
//! rename of the snapshot completes the restore. A layer from before it lies on an older snapshot, which step 2 detects.
#![forbid(unsafe_code)]

#[cfg(feature = "age")]
pub mod backup_cipher;
#[cfg(not(feature = "age"))]
#[path = "backup_cipher_left_out.rs"]
pub mod backup_cipher;
pub mod backup_form;
pub mod backup_rows;
mod caller;
pub mod catalog;
pub mod config;
mod doctor;
mod engine;
pub mod entity_keys;
pub mod journal;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod http;
mod incoming;
mod index;
mod key;
mod mem_table;
mod merge;
mod metrics;
pub mod online;
mod part;
mod protection;
mod reading;
mod record;
mod seal;
pub mod encryption;
pub mod registry;
pub mod snapshot;
pub mod statistics;
mod status;
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
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use ledge_base::clock::Settling;
use ledge_base::log_limiter::LogLimiter;
use ledge_base::principal::Principal;
use ledge_identity::sealing::Sealer;
use ledge_service::audit_event::{AuditEvent, AuditSink};
use ledge_service::off_thread::blocking;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use backup_cipher::BackupRecipient;
pub use caller::FeatureCaller;
use caller::PushRecord;
use config::FeaturesConfig;
pub use engine::backup::BackupPieces;
use engine::commands::{UpkeepJob, WriterCommand};
use engine::commit_watermark::{AcknowledgedOnDisk, CommitWatermark};
pub use engine::erasure::JoinKeyValues;
pub use engine::files::FORMAT_VERSION;
use engine::files::StoreFiles;
use engine::maintenance::Maintenance;
pub use engine::restore::BackupUpload;
use engine::tombstones::Tombstones;
use engine::writer::StoreWriter;
use engine::{StoreEngine, StoreState};
use entity_keys::{EntityKeys, EntityKeysError};
use journal::Journal;
use online::{FeatureError, Ignored, OnlineFeatures, OnlineRequest, Push, PushOutcome};
use protection::Protection;
pub use reading::LongRead;
use registry::Registry;
use statistics::{FeatureStatistics, StoreCounters, ViewStatistics};
use view::FeatureView;

/// The size of a journal segment, in bytes: small, so that space is freed step by step after a snapshot.
const SEGMENT_BYTES: u64 = 32 << 20;

/// The most backups at a time: each keeps a thread busy, and the index that it reads open.
const BACKUPS_MAX: usize = 2;

/// The most bytes of rows in one push, as the journal keeps them.
const PUSH_BYTES_MAX: usize = 24 << 20;

/// The most values of a call that is prepared on an async thread: each takes some 100 ns.
const ASYNC_CELLS_MAX: usize = 1000;

/// The interval between attempts to open a store that could not be opened.
const REOPEN_INTERVAL: Duration = Duration::from_secs(10);

/// The longest time for writing the waiting pushes and closing.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(8);

/// A handle to the feature store. Clones share it.
#[derive(Debug, Clone)]
pub struct FeatureStore {
    inner: Arc<FeatureStoreInner>,
}

#[derive(Debug)]
struct FeatureStoreInner {
    config: FeaturesConfig,
    audit: AuditSink,
    sealer: Sealer,
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

#[derive(Debug)]
struct OpenStore {
    engine: Arc<StoreEngine>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    _lock: File,
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
                let sent = opened.engine.jobs.send(UpkeepJob::Snapshot { reply });
                let taken = sent.ok().and_then(|()| answer.blocking_recv().ok());
                let taken = taken.unwrap_or(Err(FeatureError::Unavailable { reason: StoreState::Closed.reason() }));
                taken.map_err(|error| {
                    io::Error::other(format!("aggregations changed, and the snapshot that this needs failed: {error}"))
                })?;
            }
            registry.save(&self.inner.config.path)?;
            opened.engine.protection.learn(registry.catalog());
            opened.engine.registry.store(Arc::new(registry.clone()));
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
        let sent = opened.engine.commands.send(WriterCommand::Ping { reply }).await;
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
        let _ = opened.engine.jobs.send(UpkeepJob::Stop);
        let mut command = WriterCommand::Close;
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

    fn engine(&self) -> Result<&Arc<StoreEngine>, FeatureError> {
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
        request: OnlineRequest,
        caller: FeatureCaller,
    ) -> Result<OnlineFeatures, FeatureError> {
        let engine = self.engine()?;
        if cells(&request.entities) > ASYNC_CELLS_MAX {
            let engine = engine.clone();
            return blocking(move || reading::ReadPlan::new(&engine, request, caller)?.answer(&engine)).await;
        }
        let read = reading::ReadPlan::new(engine, request, caller)?;
        if read.is_brief(engine) {
            return read.answer(engine);
        }
        let engine = engine.clone();
        blocking(move || read.answer(&engine)).await
    }

    /// Begins a read of many entities, one slice at a time.
    pub fn long_read(&self, request: OnlineRequest, caller: FeatureCaller) -> Result<LongRead, FeatureError> {
        LongRead::new(self.engine()?, request, caller)
    }

    /// Waits for the permit for one slice of a long read.
    pub async fn long_read_turn(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        self.inner.long_reads.clone().acquire_owned().await.ok()
    }

    /// Writes rows. When this returns `Ok`, every row survives a power cut and is visible to later reads; otherwise
    /// none is stored, unless the power failed before this could return.
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
        let (views, ignored, touched, rows) = incoming::prepare(push, prepare).await?;
        if rows.is_empty() {
            return Ok(PushOutcome::default());
        }

        let (reply, answer) = oneshot::channel();
        let sent = engine.commands.try_send(WriterCommand::Push { rows, reply });
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
        self.note_ignored(&views, Ignored::Columns(ignored.len()));
        Ok(PushOutcome { rows, ignored })
    }

    /// Takes a snapshot, so that a start after a crash has less to replay.
    pub async fn snapshot(&self) -> Result<(), FeatureError> {
        let (reply, answer) = oneshot::channel();
        self.upkeep(UpkeepJob::Snapshot { reply }, answer).await
    }

    /// Writes all changes into a new snapshot. Returns the bytes of the changes before and after.
    pub async fn compact(&self) -> Result<(u64, u64), FeatureError> {
        let (reply, answer) = oneshot::channel();
        self.upkeep(UpkeepJob::Compact { reply }, answer).await
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
        self.upkeep(UpkeepJob::Restore { received, principal, reply }, answer).await
    }

    async fn upkeep<T>(
        &self,
        job: UpkeepJob,
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
                let statistics::ViewCounters { rows, newest_us, pushed, ignored, lost } = found;
                ViewStatistics { view: view.name.to_string(), rows, newest_us, pushed, ignored, lost }
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

/// The number of values in all columns.
fn cells(columns: &online::FrameColumns) -> usize {
    columns.iter().map(|(_, cells)| cells.len()).sum()
}

impl OpenStore {
    fn new(
        config: &FeaturesConfig,
        registry: Arc<Registry>,
        audit: AuditSink,
        sealer: &Sealer,
    ) -> Result<Self, String> {
        let with_path = |error: &dyn std::fmt::Display| format!("{}: {error}", config.path.display());
        let files = StoreFiles::new(&config.path).map_err(|error| with_path(&error))?;
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
        // Before the first row that uses the numbers, and before the first subfolder: after a power cut a subfolder without
        // a catalog is a store that lost its catalog.
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
        let until = if let AcknowledgedOnDisk::Until(next_seq) = known { next_seq } else { 0 };
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
        let protection = Arc::new(Protection::new(keys, registry.catalog()));
        let engine = Arc::new(StoreEngine {
            config: config.clone(),
            files,
            registry: ArcSwap::new(registry),
            hash_key,
            protection,
            tombstones,
            acknowledged,
            state: ArcSwap::from_pointee(StoreState::Opening),
            opened: tokio::sync::watch::Sender::new(false),
            counters,
            stamped_us: AtomicI64::new(0),
            newest_us: AtomicI64::new(i64::MAX),
            settling: Settling::begin(),
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
        let threads = spawn_threads(&engine, opened.journal, receiver, waiting).map_err(|error| with_path(&error))?;
        Ok(Self { engine, threads: Mutex::new(threads), _lock: lock })
    }
}

/// Reports the damage that was found when the store was opened.
fn report_damage(
    engine: &StoreEngine,
    repaired: Option<&Vec<String>>,
    report: &journal::OpenReport,
    known: AcknowledgedOnDisk,
) {
    for repaired in repaired.into_iter().flatten() {
        engine.alarm("a key file of the feature store was damaged, and is restored from its copy", repaired);
    }
    for damage in &report.damage {
        engine.alarm("the journal of the feature store is damaged", &damage.to_string());
    }

    if known == AcknowledgedOnDisk::Damaged {
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
    commands: tokio::sync::mpsc::Receiver<WriterCommand>,
    jobs: mpsc::Receiver<UpkeepJob>,
) -> std::io::Result<Vec<JoinHandle<()>>> {
    let writer = StoreWriter::new(engine.clone(), journal);
    let upkeep = Maintenance::new(engine.clone());
    let marked = engine.clone();
    let _ = engine.jobs.send(UpkeepJob::Open);

    let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
        let engine = engine.clone();
        let watched = move || {
            if catch_unwind(AssertUnwindSafe(work)).is_err() {
                engine.acknowledged.close();
                engine.alarm("a thread of the feature store panicked; the store is closed", "restart ledge");
                engine.state.store(Arc::new(StoreState::Closed));
                engine.opened.send_replace(true);
            }
        };
        thread::Builder::new().name(name.into()).spawn(watched)
    };

    let threads = [
        spawn("features", Box::new(move || writer.run(commands))),
        spawn("features-upkeep", Box::new(move || upkeep.run(&jobs))),
        spawn("features-mark", Box::new(move || marked.acknowledged.keep_durable())),
    ];
    threads.into_iter().collect()
}
