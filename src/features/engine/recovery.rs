//! Recovery: opens the newest snapshot and the layer over it, and repairs the layer, or fills a new one, from the
//! journal.
//!
//! A snapshot that cannot be read in place (of an earlier version, or restored from another box) is loaded into a layer
//! with every record, until the next snapshot takes the place of both.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::super::index::{EntityIndex, IndexError, MemTable, MemTableValue};
use super::super::journal::{self, JournalChange, JournalEntry, ReplayError};
use super::super::key::IndexKey;
use super::super::protection::RecordBody;
use super::super::record::{CipherHeader, DamagedBytes, sequence_number};
use super::super::registry::Registry;
use super::super::snapshot::{self, SnapshotError, SnapshotReader, SortedTable};
use super::super::statistics::StoreCounters;
use super::super::view::ViewId;
use super::applier::{IndexApplier, IndexContent, PendingAction, PendingChange};
use super::commands::{MaintenanceJob, StoreWriterCommand};
use super::files::{CleanStopMark, RESERVE_BYTES};
use super::{StoreEngine, StoreState, disk_space};

/// The records that are applied at a time.
const BATCH_ENTRIES: usize = 1024;

/// The journal's entries that are sorted and applied at a time, and their bytes: some 30 MB of decoded rows with twenty
/// numbers each.
const REPLAY_ENTRIES: usize = 1 << 16;
const REPLAY_BYTES: usize = 16 << 20;

/// The longest wait for the last readers of an index that is removed.
const READERS_TIMEOUT: Duration = Duration::from_secs(1);

/// The generation number in the name of an index folder.
pub fn generation(folder: &Path) -> Option<u64> {
    folder.file_name()?.to_str()?.strip_prefix("index-")?.parse().ok()
}

/// Opens the newest index, or builds one. Errors come from the system: the files cannot be read or written at all.
pub fn open(engine: &StoreEngine) -> Result<IndexApplier, String> {
    if engine.files.free().is_ok_and(|free| free < RESERVE_BYTES) {
        disk_space::free_space(engine);
    }

    let clean = engine
        .files
        .take_clean()
        .map_err(|error| format!("the folder of the feature store cannot be used: {error}"))?;
    let generations = engine.files.generations().map_err(|error| error.to_string())?;

    let mut layers = Vec::new();
    for generation in generations {
        match open_layer(engine, generation) {
            Ok(layer) => layers.push((generation, layer)),
            Err(UnusableIndex::Locked(reason)) => {
                tracing::warn!(
                    generation,
                    reason,
                    "a feature index is still open, as in a backup; another one is made"
                );
            }
            Err(unusable) => dismiss(engine, generation, unusable)?,
        }
    }
    let begun: Option<Vec<u64>> = layers.iter().map(|(_, layer)| layer.begun().ok().flatten()).collect();
    if let Some(begun) = begun {
        // The entries of new pushes come after all of them.
        let from = begun.into_iter().max().unwrap_or(0) + 1;
        let _ = engine.commands.blocking_send(StoreWriterCommand::TakePushes { from });
    }

    let base = BaseSnapshot::newest(engine)?;
    let (mut fitting, mut ahead) = (None, Vec::new());
    for (generation, layer) in layers {
        match base.place(&layer) {
            Ok(MemTablePosition::Over) if fitting.is_none() => fitting = Some((generation, layer)),
            Ok(MemTablePosition::OverLater) => ahead.push(Arc::new(layer)),
            Ok(MemTablePosition::Over | MemTablePosition::Behind) => {
                tracing::info!(generation, "a feature index from before the newest snapshot is removed");
                drop(layer);
                let _ = engine.files.remove_index(generation);
            }
            Err(error) => dismiss(engine, generation, error.into())?,
        }
    }

    let mut opened = None;
    if let Some((generation, layer)) = fitting {
        let clean = clean.filter(|clean| clean.generation == generation);
        let index = Arc::new(EntityIndex::new(base.table.clone(), Arc::new(layer)));
        match checked(engine, index.clone(), clean, &ahead) {
            Ok(applier) => opened = Some(applier),
            Err(unusable) => {
                close(index);
                dismiss(engine, generation, unusable)?;
            }
        }
    }
    let applier = opened.map_or_else(|| rebuild(engine, base.table, &ahead), Ok)?;
    if !ahead.is_empty() {
        // Their values are nowhere else, if the journal lacks them.
        applier.index.top().flush().map_err(|error| error.to_string())?;
    }
    drop(ahead);
    if let Some(kept) = generation(applier.index.top().folder()) {
        remove_others(engine, kept);
    }
    Ok(applier)
}

/// Makes another index over the newest good snapshot, with the changes of an index that has a damaged snapshot.
pub fn make_anew(engine: &StoreEngine, index: &EntityIndex) -> Result<IndexApplier, String> {
    let applier = rebuild(engine, BaseSnapshot::newest(engine)?.table, &index.layers())?;
    applier.index.top().flush().map_err(|error| error.to_string())?;
    Ok(applier)
}

/// The snapshot that an index lies on.
struct BaseSnapshot {
    /// The number of the newest good snapshot; 0 without any.
    number: u64,
    /// That snapshot, if it can be read in place: it is of this version, sorted, and its keys were made with this
    /// store's hash key.
    table: Option<Arc<SortedTable>>,
}

/// The place of a layer.
enum MemTablePosition {
    Over,
    /// Over a later snapshot, which is damaged.
    OverLater,
    /// The snapshot has everything that it has, or is a restored backup.
    Behind,
}

impl BaseSnapshot {
    /// Finds and reads the newest good snapshot.
    fn newest(engine: &StoreEngine) -> Result<Self, String> {
        let mut unread = None;
        for (number, path) in snapshots(engine)? {
            match snapshot::verify_file(&path).and_then(|_| SortedTable::open(&path)) {
                Ok(table) => {
                    let table = table.filter(|table| table.header().hash_key_id == engine.hash_key.id());
                    return Ok(Self { number, table: table.map(Arc::new) });
                }
                Err(error) => {
                    unread = report_unusable(engine, &path, &error).or(unread);
                }
            }
        }
        unread.map_or(Ok(Self { number: 0, table: None }), Err)
    }

    fn place(&self, layer: &MemTable) -> Result<MemTablePosition, IndexError> {
        let over = if self.table.is_some() { self.number } else { 0 };
        Ok(match layer.snapshot()? {
            // One with every record may be older than a snapshot that cannot be read in place.
            0 if over == 0 && layer.applied()?.saturating_add(1) < self.number => MemTablePosition::Behind,
            snapshot if snapshot == over => MemTablePosition::Over,
            snapshot if snapshot > self.number => MemTablePosition::OverLater,
            _ => MemTablePosition::Behind,
        })
    }
}

/// Removes a layer that cannot be used, or sets it aside.
fn dismiss(engine: &StoreEngine, generation: u64, unusable: UnusableIndex) -> Result<(), String> {
    match unusable {
        UnusableIndex::Unfinished => {
            tracing::info!(generation, "a feature index is removed, because its build was interrupted");
            let _ = engine.files.remove_index(generation);
        }
        // The cause may be the full disk, and there is no room for another index either.
        UnusableIndex::Damaged(error) if !engine.files.has_room() => {
            return Err(format!("{error}, and the disk is full"));
        }
        UnusableIndex::Damaged(error) => {
            engine.alarm("the feature index is set aside and rebuilt from snapshot and journal", &error.to_string());
            StoreCounters::count(&engine.counters.rebuilds);
            engine.state.store(Arc::new(StoreState::Rebuilding { reason: error.to_string() }));
            // A rebuild may take a while, and models need not wait for it.
            engine.opened.send_replace(true);
            set_aside(engine, &engine.files.index(generation));
        }
        UnusableIndex::Locked(reason) | UnusableIndex::System(reason) => return Err(reason),
    }
    Ok(())
}

/// Reasons why an index cannot be used.
pub enum UnusableIndex {
    Unfinished,
    Damaged(IndexError),
    /// Somebody has it open.
    Locked(String),
    System(String),
}

impl From<IndexError> for UnusableIndex {
    fn from(error: IndexError) -> Self {
        match error {
            // Another index would fail the same way.
            IndexError::Io { reason } => Self::System(reason),
            IndexError::Locked { reason } => Self::Locked(reason),
            damaged @ IndexError::Damaged { .. } => Self::Damaged(damaged),
        }
    }
}

impl From<UnusableIndex> for String {
    fn from(unusable: UnusableIndex) -> Self {
        match unusable {
            UnusableIndex::Unfinished => "its build was interrupted".into(),
            UnusableIndex::Damaged(error) => error.to_string(),
            UnusableIndex::Locked(reason) | UnusableIndex::System(reason) => reason,
        }
    }
}

fn open_layer(engine: &StoreEngine, generation: u64) -> Result<MemTable, UnusableIndex> {
    let layer = MemTable::open(&engine.files.index(generation), engine.config.cache_mb << 20)?;
    if !layer.is_complete()? {
        return Err(UnusableIndex::Unfinished);
    }
    if !layer.is_keyed_by(engine.hash_key.id())? {
        return Err(IndexError::damaged("the hash key that its entries were made with (hash.key) is lost").into());
    }
    Ok(layer)
}

/// Reads every value of the layer. After a clean stop its checksum must be the one noted then. Otherwise it is
/// repaired: sled may have lost records without reporting it.
fn checked(
    engine: &StoreEngine,
    index: Arc<EntityIndex>,
    clean: Option<CleanStopMark>,
    ahead: &[Arc<MemTable>],
) -> Result<IndexApplier, UnusableIndex> {
    let last = index.top().applied()?;
    let mut content = IndexContent::over(index.snapshot().map(|snapshot| snapshot.statistics()));
    let mut values = index.top().scan(&[]);
    while let Some((key, value)) = values.next()? {
        content.add(&key, &value);
    }

    let mut applier = IndexApplier::new(index, content, last, engine.keep_us(), engine.protection.clone());
    let had = last.max(applier.content.highest);
    match clean {
        Some(clean) if clean.checksum == applier.content.top.checksum && clean.applied == last => {
            report_gone_snapshots(engine, had + 1, had, ahead);
            report_lacking(engine, had);
            let gaps = replay(engine, last + 1, engine.journal_end(), last, &mut applier);
            report_lost(engine, &gaps?);
        }
        Some(clean) => {
            let (had, has) = (clean.checksum.records, applier.content.top.checksum.records);
            return Err(IndexError::damaged(format!(
                "it had {had} records at the last clean stop, and now has {has}, or different ones"
            ))
            .into());
        }
        None => {
            tracing::info!("the feature store was not closed cleanly: its index is compared with snapshot and journal");
            let from = fill(engine, &mut applier, ahead).map_err(|error| match error {
                IndexLoadError::Index(error) => error.into(),
                IndexLoadError::System(reason) => UnusableIndex::System(reason),
            })?;
            let all = applier.content.highest.max(had).max(last_of(ahead)).max(from - 1);
            report_gone_snapshots(engine, from.max(had + 1), all, ahead);
            report_lacking(engine, all);
            // sled's own statement of its content proves nothing here.
            let gaps = replay(engine, from, engine.journal_end(), 0, &mut applier)?;
            report_lost(engine, &gaps);
        }
    }

    Ok(applier)
}

/// Fills a new layer from the journal, and from the newest good snapshot where that cannot be read in place.
fn rebuild(
    engine: &StoreEngine,
    base: Option<Arc<SortedTable>>,
    ahead: &[Arc<MemTable>],
) -> Result<IndexApplier, String> {
    let layer = new_layer(engine)?;
    let (hash_key, over) = (engine.hash_key.id(), base.as_ref().map(|table| table.header().replay_from));
    if let Some(over) = over {
        layer.begin(over, hash_key).map_err(|error| error.to_string())?;
    }
    let content = IndexContent::over(base.as_ref().map(|table| table.statistics()));
    let index = Arc::new(EntityIndex::new(base, Arc::new(layer)));
    let mut applier = IndexApplier::new(index, content, 0, engine.keep_us(), engine.protection.clone());

    let from = fill(engine, &mut applier, ahead).map_err(|error| match error {
        IndexLoadError::Index(error) => error.to_string(),
        IndexLoadError::System(reason) => reason,
    })?;
    // Before the layer is marked complete: a later start could not report it.
    let had = applier.content.highest.max(last_of(ahead)).max(from - 1);
    let reported = report_gone_snapshots(engine, from, had, ahead);
    report_lacking(engine, had);
    let lost = replay(engine, from, engine.journal_end(), reported.saturating_sub(1), &mut applier);
    report_lost(engine, &lost.map_err(String::from)?);
    let noted = applier.note_applied();
    let noted = noted.and_then(|()| if over.is_none() { applier.index.top().set_complete(hash_key) } else { Ok(()) });
    noted.map_err(|error| error.to_string())?;
    Ok(applier)
}

/// Brings everything into the layer that neither it, nor a snapshot below it, nor the journal may have. Returns the
/// journal entry from which to continue.
fn fill(engine: &StoreEngine, applier: &mut IndexApplier, ahead: &[Arc<MemTable>]) -> Result<u64, IndexLoadError> {
    let from = match applier.index.snapshot() {
        Some(snapshot) => snapshot.header().replay_from,
        None => load_snapshot(engine, applier)?,
    };
    for layer in ahead {
        // Over a later snapshot, which cannot be read.
        let mut values = layer.scan(&[]);
        let mut batch: Vec<(IndexKey, MemTableValue)> = Vec::new();
        // A damaged layer costs nothing: the journal has its entries too.
        while let Ok(Some(value)) = values.next() {
            batch.push(value);
            if batch.len() >= BATCH_ENTRIES {
                applier.absorb(std::mem::take(&mut batch)).map_err(IndexLoadError::Index)?;
            }
        }
        applier.absorb(batch).map_err(IndexLoadError::Index)?;
    }
    applier.applied = applier.applied.max(from - 1);
    Ok(from)
}

/// The last journal entry that any of these layers has.
fn last_of(layers: &[Arc<MemTable>]) -> u64 {
    layers.iter().filter_map(|layer| layer.applied().ok()).max().unwrap_or(0)
}

/// Creates a layer of the next generation.
pub fn new_layer(engine: &StoreEngine) -> Result<MemTable, String> {
    let newest = engine.files.generations().map_err(|error| error.to_string())?.first().copied().unwrap_or(0);
    // Never reuse a number: a layer that was set aside may still write under its old name.
    let next = engine.generation.fetch_max(newest, Relaxed).max(newest) + 1;
    engine.generation.store(next, Relaxed);
    MemTable::open(&engine.files.index(next), engine.config.cache_mb << 20).map_err(|error| error.to_string())
}

/// Removes every other generation.
fn remove_others(engine: &StoreEngine, kept: u64) {
    for generation in engine.files.generations().unwrap_or_default() {
        if generation != kept
            && let Err(error) = engine.files.remove_index(generation)
        {
            tracing::warn!(generation, %error, "an old feature index cannot be removed");
        }
    }
}

/// Waits briefly for the last reader of an index, so that it is closed before its files are removed.
pub fn close(index: Arc<EntityIndex>) {
    let until = Instant::now() + READERS_TIMEOUT;
    while Arc::strong_count(&index) > 1 && Instant::now() < until {
        thread::park_timeout(Duration::from_millis(1));
    }
    // A reader that takes longer, such as a backup, closes it at its end.
    drop(index);
}

/// Sets a damaged file or folder aside for inspection.
pub fn set_aside(engine: &StoreEngine, path: &Path) {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let kind = name.split(['-', '.']).next().unwrap_or("file");
    match engine.files.set_aside(path, kind) {
        Ok(aside) => {
            tracing::warn!(damaged = %path.display(), kept = %aside.display(), "a damaged file of the feature store is set aside");
        }
        Err(error) => {
            tracing::error!(damaged = %path.display(), %error, "a damaged file of the feature store cannot be set aside");
        }
    }
}

/// The snapshots of the store, newest first.
fn snapshots(engine: &StoreEngine) -> Result<Vec<(u64, PathBuf)>, String> {
    snapshot::list(engine.files.folder()).map_err(|error| format!("the snapshots cannot be listed: {error}"))
}

/// Reports a snapshot that cannot be used. Returns the reason if it is no damage: the file may be good.
fn report_unusable(engine: &StoreEngine, path: &Path, error: &SnapshotError) -> Option<String> {
    let reason = format!("{}: {}", path.display(), with_cause(error));
    engine.alarm("a snapshot of the feature store cannot be used", &reason);
    (!error.is_damage()).then_some(reason)
}

enum IndexLoadError {
    /// The index cannot store the records.
    Index(IndexError),
    /// No good snapshot, and at least one that cannot be read now, or not by this version. Continuing would lose its
    /// content.
    System(String),
}

/// Loads the records of the newest good snapshot that are newer than those of the index. Returns the journal entry from
/// which to continue: the first one where no snapshot is good, as the journal may still be complete.
fn load_snapshot(engine: &StoreEngine, applier: &mut IndexApplier) -> Result<u64, IndexLoadError> {
    let mut unread = None;
    for (replay_from, path) in snapshots(engine).map_err(IndexLoadError::System)? {
        match load(engine, replay_from, &path, applier) {
            Ok(()) => {
                applier.applied = applier.applied.max(replay_from - 1);
                return Ok(replay_from);
            }
            Err(SnapshotFailure::Index(error)) => return Err(IndexLoadError::Index(error)),
            Err(SnapshotFailure::Snapshot(error)) => {
                unread = report_unusable(engine, &path, &error).or(unread);
            }
        }
    }
    unread.map_or(Ok(1), |reason| Err(IndexLoadError::System(reason)))
}

enum SnapshotFailure {
    Snapshot(SnapshotError),
    Index(IndexError),
}

impl From<SnapshotError> for SnapshotFailure {
    fn from(error: SnapshotError) -> Self {
        Self::Snapshot(error)
    }
}

fn load(engine: &StoreEngine, named: u64, path: &Path, applier: &mut IndexApplier) -> Result<(), SnapshotFailure> {
    let file = File::open(path).map_err(SnapshotError::Read)?;
    let mut reader = SnapshotReader::new(BufReader::with_capacity(1 << 18, file))?;
    let number = reader.header().replay_from;
    if number != named {
        return Err(SnapshotError::Misplaced { number }.into());
    }
    let same_keys = reader.header().hash_key_id == engine.hash_key.id();
    let mut skipped = SkippedEntries::default();
    let mut is_done = false;
    while !is_done {
        let mut batch = Vec::with_capacity(BATCH_ENTRIES);
        while batch.len() < BATCH_ENTRIES && !is_done {
            match reader.next()? {
                Some((key, bytes)) => batch.extend(loaded(engine, key, bytes, same_keys, &mut skipped)?),
                None => is_done = true,
            }
        }
        applier.upsert(batch).map_err(SnapshotFailure::Index)?;
    }
    skipped.report(engine, "records of a snapshot are left out");
    Ok(())
}

/// Records and rows that cannot be decrypted although their checksums are right. Without the file with its key that may
/// be every row, so they are reported once.
#[derive(Default)]
struct SkippedEntries {
    count: u64,
    first: Option<(u64, DamagedBytes)>,
}

impl SkippedEntries {
    fn add(&mut self, seq: u64, reason: DamagedBytes) {
        self.count += 1;
        self.first.get_or_insert((seq, reason));
    }

    fn report(&self, engine: &StoreEngine, what: &str) {
        if let Some((seq, reason)) = &self.first {
            engine.alarm(what, &format!("{} in total; the first is of entry {seq}: {reason}", self.count));
        }
    }
}

/// A record under this store's own hash key; `None` when its entity was erased, or it was tampered with.
fn loaded(
    engine: &StoreEngine,
    key: IndexKey,
    bytes: Vec<u8>,
    same_keys: bool,
    skipped: &mut SkippedEntries,
) -> Result<Option<(IndexKey, Vec<u8>)>, SnapshotError> {
    if same_keys && engine.protection.keys().is_none() {
        return Ok(Some((key, bytes)));
    }
    let record = match engine.protection.record(&key, &bytes) {
        Ok(_) if same_keys => return Ok(Some((key, bytes))),
        Ok(record) => record,
        Err(DamagedBytes::Erased) => return Ok(None),
        Err(error) if error.is_undecryptable() => {
            // Its checksum is right: this is no disk error, and no other copy of the snapshot would help.
            skipped.add(sequence_number(&bytes), error);
            return Ok(None);
        }
        Err(reason) => return Err(SnapshotError::Damaged { offset: 0, reason }),
    };
    let key = engine.hash_key.index_key(key.view(), &record.row.entity);
    let bytes =
        engine.protection.encode(&key, &record).map_err(|error| SnapshotError::Read(io::Error::other(error)))?;
    Ok(Some((key, bytes)))
}

/// Applies the journal's entries from `from` on, and stops before `to`, the journal's next entry at some earlier
/// moment. Returns the reasons of entries that cannot be read, except where the index is known to have everything up to
/// `had`. Entries behind a damaged place are applied too, as each row carries its own sequence number.
pub fn replay(
    engine: &StoreEngine,
    from: u64,
    to: u64,
    had: u64,
    applier: &mut IndexApplier,
) -> Result<Vec<String>, UnusableIndex> {
    let folder = &engine.files.journal();
    let registry = engine.registry.load_full();
    let (mut from, mut lost, mut skipped) = (from, Vec::new(), SkippedEntries::default());

    while from < to {
        let (mut batch, mut bytes): (Vec<PendingChange>, usize) = (Vec::new(), 0);
        let replayed = journal::replay(folder, from, Some(to), |entry| {
            bytes += entry.change.bytes();
            batch.extend(pending(engine, &registry, entry, &mut skipped)?);
            if batch.len() >= REPLAY_ENTRIES || bytes >= REPLAY_BYTES {
                bytes = 0;
                applier.replay(std::mem::take(&mut batch))?;
            }
            Ok::<(), IndexError>(())
        });
        applier.replay(batch)?;

        let (reason, from_seq, to_seq) = match replayed {
            Ok(_) => break,
            Err(ReplayError::Each(error)) => return Err(error.into()),
            Err(error @ ReplayError::Read { .. }) => return Err(UnusableIndex::System(with_cause(&error))),
            Err(ReplayError::Damaged(damage)) => (damage.to_string(), damage.from_seq, damage.to_seq.unwrap_or(to)),
            Err(error @ ReplayError::Gap { from_seq, to_seq }) => (error.to_string(), from_seq, to_seq),
        };

        let end = to_seq.min(to);
        if end > from_seq && end > had.saturating_add(1) {
            lost.push(reason);
        }
        from = end.max(from + 1);
    }

    skipped.report(engine, "entries of the feature store's journal are left out");
    applier.applied = applier.applied.max(to.saturating_sub(1));
    Ok(lost)
}

/// The change that a journal entry makes to the index of today.
fn pending(
    engine: &StoreEngine,
    registry: &Registry,
    entry: JournalEntry,
    skipped: &mut SkippedEntries,
) -> Result<Option<PendingChange>, IndexError> {
    let (seq, latest_us) = (entry.seq, entry.latest_us);
    let mut body = match entry.change {
        JournalChange::Delete => {
            return Ok(Some(PendingChange { seq, key: entry.key, action: PendingAction::Delete, latest_us }));
        }
        JournalChange::Put(bytes) => RecordBody::plain(bytes),
        JournalChange::PutSealed(key_id, bytes) => RecordBody { seal: CipherHeader::of_entity(key_id), bytes },
    };

    let row = match engine.protection.row(&entry.key, seq, &body) {
        Ok(row) => row,
        Err(DamagedBytes::Erased) => return Ok(None),
        Err(error) if error.is_undecryptable() => {
            skipped.add(seq, error);
            return Ok(None);
        }
        Err(error) => return Err(IndexError::damaged(format!("a row cannot be used: {error}"))),
    };

    let view = entry.key.view();
    // Computed again: the hash key may have changed since.
    let key = engine.hash_key.index_key(view, &row.entity);
    if key != entry.key && body.seal != CipherHeader::default() {
        // A body encrypted for one key does not open under another.
        body = RecordBody::plain(row.encode().into());
    }
    Ok(Some(PendingChange { seq, key, action: PendingAction::of_row(registry, view, row, body), latest_us }))
}

/// Reports lost entries.
pub fn report_lost(engine: &StoreEngine, lost: &[String]) {
    for reason in lost {
        engine.alarm("entries of the feature store's journal may be lost", reason);
    }
}

/// Reports acknowledged entries that were in snapshots which are gone, where the journal begins after them: older
/// snapshots are in their place, or none. `from` is the first entry that neither the snapshot in use nor the layer over
/// it has, `had` the last one that anything has, and `ahead` are layers over later snapshots. Returns the first entry
/// that the journal has, if any before it are lost; otherwise 0.
fn report_gone_snapshots(engine: &StoreEngine, from: u64, had: u64, ahead: &[Arc<MemTable>]) -> u64 {
    let Ok(begin) = journal::begin(&engine.files.journal()) else { return 0 };
    let mut until = begin.as_ref().map_or(u64::MAX, |begin| begin.first_seq);
    if engine.acknowledged.lacking().is_some_and(|lacking| lacking.start < until) {
        // Those beyond are counted with the journal's end.
        until = until.min(had.saturating_add(1));
    }
    let later = ahead.iter().filter_map(|layer| layer.snapshot().ok()).min().unwrap_or(u64::MAX);
    let lost = engine.files.manifest().lost(from, until.min(later));
    // The journal's first segment states the one before it.
    let before = begin.as_ref().map_or(0, |begin| begin.before.end.saturating_sub(begin.before.start.max(from)));
    let count = lost.values().sum::<u64>().max(if ahead.is_empty() { before } else { 0 });
    if count == 0 {
        return 0;
    }

    engine.counters.with_views(|views| {
        for (view, entries) in &lost {
            views.entry(*view).or_default().lost += entries;
        }
    });
    let registry = engine.registry.load();
    let named = |(view, entries): (&ViewId, &u64)| match registry.view_by_id(*view) {
        Some(view) => format!("{entries} of {}", view.name),
        None => format!("{entries} of a view that is not declared"),
    };
    let views: Vec<_> = lost.iter().map(named).collect();
    let of_views = if views.is_empty() { String::new() } else { format!(" ({})", views.join(", ")) };
    let reason = format!(
        "at least {count} entries, from {from} on{of_views}: the snapshots that had them are gone, and the journal begins \
         later. Push their rows again, or restore a backup"
    );
    engine.alarm_lost(count, &reason);
    // Make a snapshot of the remaining data, so that the journal is complete from there on.
    engine.has_gap.store(true, Relaxed);
    let _ = engine.jobs.send(MaintenanceJob::Snapshot { reply: oneshot::channel().0 });
    begin.map_or(0, |begin| begin.first_seq)
}

/// Reports acknowledged entries that are missing at the journal's end. `had` is the last one that index or snapshot
/// has, before the journal is replayed. Entries up to `had` are safe once a snapshot has them.
fn report_lacking(engine: &StoreEngine, had: u64) {
    let Some(lacking) = engine.acknowledged.lacking() else { return };
    let lost = lacking.start.max(had.saturating_add(1))..lacking.end;
    if lost.is_empty() {
        let (from, to) = (lacking.start, lacking.end - 1);
        tracing::warn!(
            from,
            to,
            "the journal of the feature store lacks its end, which the index has; a snapshot takes its place"
        );
        return;
    }
    let count = lost.end - lost.start;
    let reason = format!(
        "at least {count} entries, from {} to {}: neither journal nor index nor a snapshot has them. Push their rows again, \
         or restore a backup",
        lost.start,
        lost.end - 1
    );
    engine.alarm_lost(count, &reason);
    engine.acknowledged.reported_lost_from(lost.start);
}

fn with_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
