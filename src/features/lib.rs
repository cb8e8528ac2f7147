//! The online feature store, in Feast's words: keeps on the box the values that models need and callers do not send.
//! The journal is the truth, fsynced before a push is acknowledged. The index answers reads, and can be built again
//! from a snapshot and the journal at any time.
//!
//! Files, in reading order:
//! * `view.rs` - entities, feature views and feature services, valid by construction
//! * `value.rs`, `value/` - values of Feast's types; `json.rs` and `text.rs` convert them
//! * `registry.rs` - `feature_views.d/*.toml`, with every mistake at once
//! * `registry/` - `file.rs` reads, `declared.rs` and `view_check.rs` check, `duration.rs` has lengths of time
//! * `catalog.rs` - the number of each view and field
//! * `catalog/` - `translation.rs` converts the numbers of one store to those of another, by names
//! * `online.rs` - requests to the store and its answers, whatever the protocol
//! * `typed.rs`, `typed/` - columns of JSON to rows; event times in all their forms
//! * `incoming.rs` - a push compared with the declared views, and its rows for the writer
//! * `caller.rs` - the feature views that a caller may use, and the audit record of a read or push
//! * `wire.rs` - variable-length integers and values as bytes
//! * `record.rs`, `record/` - rows and records as bytes: a row for the journal, a record for index and snapshots
//! * `key.rs` - index keys: the number of the view and a keyed hash of the entity
//! * `seal.rs` - encrypts rows and records under the key of their entity
//! * `entity_keys.rs` - one key for each entity; destroying it erases the entity
//! * `entity_keys/` - `table.rs` holds the keys in memory, `form.rs` and `files.rs` on disk, each file twice
//! * `protection.rs` - between the store and its keys: encrypted, plain, erased and missing values
//! * `merge.rs`, `merge/` - a record and a row to the next record, or the reason why not
//! * `window.rs` - aggregates over windows of event time, as bytes in the record of an entity
//! * `window/` - parts of the aggregates:
//!   * `bucket.rs`, `distinct.rs` - the values of one step, and counts of different values
//!   * `encoding.rs`, `limits.rs` - the state as bytes, and its largest size
//!   * `fuzz.rs`, `tests.rs`, `tests/` - properties and tests
//! * `journal.rs` - acknowledged pushes in order: segments of groups, one fsync for each group
//! * `journal/` - parts of the journal:
//!   * `format.rs` - the bytes of segments, groups and entries
//!   * `scan.rs`, `chain.rs` - reading one segment, and all segments of a folder in order
//!   * `damage.rs`, `replay.rs` - reports of damage, and reading the whole journal
//!   * `fuzz.rs`, `tests.rs`, `tests/` - properties and tests with damage and faults
//! * `snapshot.rs` - all records in one file or stream that proves that it is whole; a backup has the same bytes
//! * `snapshot/` - `write.rs`, `read.rs`, `file.rs`; `fuzz.rs` and tests
//! * `store.rs` - the index, in sled
//! * `engine/` - journal, index and snapshots together:
//!   * `mod.rs` - the state that threads and readers share: opening, ready, rebuilding, restoring, closed
//!   * `files.rs` - the folder of the store, its lock, the clean marker, the reserve of disk space
//!   * `acknowledged.rs` - the last acknowledged push, in two files next to the journal, to detect a loss
//!   * `applier.rs` - entries and records into an index, and the count of its records
//!   * `orders.rs` - orders to the threads
//!   * `writer.rs` - the writer thread: journal, index, acknowledgement
//!   * `upkeep.rs` - the upkeep thread: opening, rebuilding, expiry, restores
//!   * `recovery.rs` - an index that can be used, after any damage
//!   * `snapshots.rs` - snapshots, the search for damage, compaction
//!   * `erasure.rs`, `erasure/`, `erased.rs` - erasing an entity, and the list that keeps backups from restoring it
//!   * `room.rs` - files that go on a full disk
//!   * `backup.rs`, `restore.rs` - a snapshot as a stream; a backup received, checked, renumbered
//!   * `spool.rs` - a backup on its way in, encrypted in a temporary file
//! * `backup_form.rs` - the form of a backup file: plain, or an age file
//! * `backup_cipher.rs` - encrypted backups as age files; `backup_cipher_left_out.rs` takes its place in a build
//!   without the feature `age`
//! * `backup_rows.rs` - the rows of one view in a backup, for readers without a store
//! * `sealed.rs` - the keys of the store, encrypted again under another master key
//! * `reading.rs` - reads: names to records to cells; large ones slice by slice
//! * `statistics.rs` - counters
//! * `config.rs` - `[features]`
//! * `part.rs` - the store as a part of the daemon; `http.rs`, `metrics.rs` and `doctor.rs` are its routes, metrics and
//!   findings
//! * `status.rs` - the HTTP status of each error
//! * `fuzz.rs` - properties that hold for any bytes
//!
//! The folders `merge/`, `record/` and `typed/` hold tests, as do `tests.rs` and `tests/` in other folders.
//!
//! Invariants:
//! * A push is acknowledged when it is in the journal, fsynced, and in the index if there is one. The journal always
//!   comes first.
//! * Reads are errors while there is no index. `NOT_FOUND` means that a checked index has no such record.
//! * Every entry has a sequence number of its own, and every record that of its last entry. Any replay makes the same
//!   records.
//! * One index is in use, with one writer. A new generation counts when it is complete and marked so on disk.
//! * Damaged files are set aside, not deleted; the last one of each kind is kept. A snapshot is read back before the
//!   files that it replaces go.
//! * One bad place in any file loses no acknowledged push, except in the newest entries of the journal when the index
//!   does not have them.
//! * A loss is reported with its numbers, and the store continues. `acknowledged.rs` is never ahead of the journal's
//!   fsync.
//! * A view and a field keep their numbers for ever. No number is given twice. Rows carry numbers, never names.
//! * A record has at most 64 KiB. The size of aggregates is bounded when they are declared.
//! * `merge.rs` and `window.rs` are pure. The clock is read once for each push and each read.
//! * Without a declared view there is no file and no thread.
//! * Only `store.rs` knows sled, `seal.rs` the cipher, `backup_cipher.rs` age.
//! * The crate knows no model and no transport.
//!
//! # One push
//!
//! Two threads own the store. **The writer** owns the journal, and alone writes into the index in use; **the upkeep**
//! thread makes indexes and snapshots and hands them over. A third does nothing but fsync how far pushes were
//! acknowledged, once a second. All share `Engine`, whose `State` is swapped as a whole: `Opening`, `Ready` with the
//! index, `Rebuilding`, `Restoring`, `Closed`. From `POST /push` or a binding:
//!
//! 1. `typed.rs` makes rows of the columns, for every view of the push source. What does not fit ends here, with
//!    column and row, for all rows. Each row gets its index key.
//! 2. `FeatureStore::push` hands the rows to the writer's queue of 4096 pushes. Full means `Overloaded` now.
//! 3. The writer takes what waits, up to some 512 rows or 4 MiB, and asks the file system for room; below
//!    `min_free_mb` all are refused. With a master key each row is sealed under the key of its entity, for its index
//!    key and its sequence number; new keys are written and fsynced first, in a file of their own, so that a push to
//!    known entities costs no fsync more.
//! 4. `Journal::append` writes them as one group: one write, one fdatasync. From here on they survive a power cut.
//!    When it fails, none of them counts: the segment is cut back, and after a failed fsync never written to again.
//!    The group says until when event times are believed just now (`Engine::believed_until`), so that a replay decides
//!    as the push did. `Acknowledged::note` overwrites two small files with the next number.
//! 5. `Applier::apply` loads each record, `merge`s the row and writes 128 rows at a time: expiry entries, records,
//!    then the number of the last entry. Without an index, or with one that turns out damaged, this step is left out:
//!    the next index takes the rows from the journal.
//! 6. The caller is answered, with what `merge` said of each row.
//!
//! A read needs no thread of the store. `Plan` resolves names, then takes the index out of `State`; a record's
//! checksum and its entity are checked. Who finds it damaged swaps the state to `Rebuilding` (`Engine::give_up`,
//! once), and everybody gets 503 from there on. A read whose records are expected to take 100 µs at most, by the usual
//! time of one, is done on the caller's thread; others go to a blocking thread, as do reads and pushes of more than
//! 1000 values.
//!
//! Snapshots: `Mark` makes the writer begin a segment, and tell its next entry and how many records there are. The
//! upkeep thread scans the index while pushes go on, reads the file back, counts, renames it, and has the writer
//! remove older segments. Two snapshots are kept, and the journal from the older one on. The file is fuzzy: it has
//! every entry before its number, and some later ones.
//!
//! # One start of the store
//!
//! What is declared is read first, and the catalog has its numbers on disk before the first row has them. Then the
//! lock, the hash key, and `Journal::open`: a torn end of the last segment is cut off, anything else that is wrong is
//! told and stays. Pushes get 503 until the index is open, as nobody knows which entries it has; during a rebuild they
//! are taken. Where the journal ends before what `Acknowledged` says, nothing is cut off: its end is damage, what it
//! lacks is noted on the disk before a new segment hides it, and recovery tells what of it index and snapshot lack,
//! too, as lost. The rest stays noted until a snapshot has it. The upkeep thread (`recovery.rs`)
//!
//! 1. takes the clean marker away, so that whatever comes next is not a clean stop;
//! 2. opens the newest generation of the index, on a thread that may panic or hang, and reads every record. One that
//!    was not built to its end, or lacks what only the newest good snapshot has, is removed; one whose hash key is
//!    lost is as good as damaged;
//! 3. after an orderly stop compares the tally with the marker's. Anything else than equal is damage;
//! 4. after any other stop lays the newest good snapshot and the journal over the index. A record that has an entry in
//!    it already is left alone;
//! 5. on damage sets the index aside as `index.damaged`, lets the daemon become ready, and builds the next generation
//!    from that snapshot and the journal. What the journal lacks is an alarm, unless the index is known to have it;
//! 6. hands the index to the writer, which applies what came meanwhile and swaps the state;
//! 7. reads journal and snapshots (`scrub`). The index has what they have, so a snapshot takes the place of what is
//!    damaged.
//!
//! With a master key the key files are read before anything else: `EntityKeys::open` takes whichever of two copies is
//! good. A row or record whose key was destroyed is left out without a word; one whose number was never given, that
//! does not open, or that is plain where everything is sealed, is an alarm. Where there are no keys and `hash.key` is
//! sealed they are lost, not new. Keys that an erasure was about to destroy (`erased.json`) are destroyed before
//! anything else; those that nothing uses once a day, after a scan that found every record, in a run that found no
//! damage. What was plain is sealed after step 7 by a new index and snapshot, and then the older ones and the journal
//! go.
//!
//! An error of the system, such as a full disk or a snapshot that cannot be read just now, is no damage: it is tried
//! again every 10 s, and nothing is set aside or built without it. Nor is anything that sled says of its files while
//! nothing can be written. Without room (`room::make_way`) what was set aside as damaged goes first, then the 16 MiB
//! of `reserve`, in which sled can open.
//!
//! A restore is a start, too: the backup is received into `restore.upload` and checked to its end, its records get
//! this store's numbers and keys and one sequence number that no entry has, the writer stops taking pushes, and the
//! snapshot's rename is the moment it happens. An index from before it is behind, which step 2 sees.
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
pub mod fuzz;
pub mod http;
mod incoming;
mod key;
mod merge;
mod metrics;
pub mod online;
mod part;
mod protection;
mod reading;
mod record;
mod seal;
pub mod sealed;
pub mod registry;
pub mod snapshot;
pub mod statistics;
mod status;
mod store;
mod typed;
pub mod value;
pub mod view;
pub mod window;
mod wire;

use ledge_service::off_thread::blocking;
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
            return blocking(move || reading::Plan::new(&engine, request, caller)?.answer(&engine)).await;
        }
        let read = reading::Plan::new(engine, request, caller)?;
        if read.is_brief(engine) {
            return read.answer(engine);
        }
        let engine = engine.clone();
        blocking(move || read.answer(&engine)).await
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
