//! An index that can be used, whatever is found: opened and checked, mended, or built anew from snapshot and journal.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use super::super::journal::{self, Change, Entry, ReplayError};
use super::super::key::IndexKey;
use super::super::protection::Body;
use super::super::record::{Damaged, Seal, sequence_number};
use super::super::registry::Registry;
use super::super::snapshot::{self, SnapshotError, SnapshotReader};
use super::super::statistics::Counters;
use super::super::store::{Index, IndexError};
use super::applier::{Action, Applier, Content, Pending};
use super::files::{Clean, RESERVE};
use super::{Engine, State, room};

/// How many entries or records are taken at a time.
const BATCH: usize = 1024;

/// How long the readers of an index that goes may take.
const READERS: Duration = Duration::from_secs(1);

/// The generation whose folder this is.
pub fn generation(folder: &Path) -> Option<u64> {
    folder.file_name()?.to_str()?.strip_prefix("index-")?.parse().ok()
}

/// Opens the newest index, or builds one. An error is one of the system: the files cannot be read or written at all.
pub fn open(engine: &Engine) -> Result<Applier, String> {
    if engine.files.free().is_ok_and(|free| free < RESERVE) {
        room::make_way(engine);
    }
    let clean = engine.files.take_clean().map_err(|error| format!("the store's folder cannot be used: {error}"))?;
    let generations = engine.files.generations().map_err(|error| error.to_string())?;
    for generation in generations {
        match existing(engine, generation, clean) {
            Ok(applier) => {
                remove_others(engine, generation);
                return Ok(applier);
            }
            Err(Unusable::Unfinished) => {
                tracing::info!(generation, "an index that was not built to its end is removed");
                let _ = engine.files.remove_index(generation);
            }
            Err(Unusable::Behind) => {
                tracing::info!(generation, "an index from before the newest snapshot is removed");
                let _ = engine.files.remove_index(generation);
            }
            Err(Unusable::Damaged(error)) if !engine.files.has_room() => {
                // It may be for want of room, and there is none for another index either.
                return Err(format!("{error}, and the disk is full"));
            }
            Err(Unusable::Damaged(error)) => {
                engine
                    .alarm("the feature index is set aside and rebuilt from snapshot and journal", &error.to_string());
                Counters::count(&engine.counters.rebuilds);
                engine.state.store(Arc::new(State::Rebuilding { reason: error.to_string() }));
                // That may take a while, and models need not wait for it.
                engine.opened.send_replace(true);
                set_aside(engine, &engine.files.index(generation));
            }
            Err(Unusable::System(reason)) => return Err(reason),
        }
    }
    rebuild(engine)
}

/// Why an index cannot be used.
pub enum Unusable {
    Unfinished,
    /// It lacks entries that only the newest snapshot has; or that is a backup, which takes the place of everything.
    Behind,
    Damaged(IndexError),
    System(String),
}

impl From<IndexError> for Unusable {
    fn from(error: IndexError) -> Self {
        match error {
            // It would be the same with another index.
            IndexError::Io { reason } => Self::System(reason),
            damaged @ IndexError::Damaged { .. } => Self::Damaged(damaged),
        }
    }
}

impl From<Unusable> for String {
    fn from(unusable: Unusable) -> Self {
        match unusable {
            Unusable::Unfinished => "it was not built to its end".into(),
            Unusable::Behind => "it lacks what a snapshot has".into(),
            Unusable::Damaged(error) => error.to_string(),
            Unusable::System(reason) => reason,
        }
    }
}

/// Opens an index and looks at every record in it. After an orderly stop it must add up to what it was then; otherwise it is
/// mended: sled may have lost what it had, and it may not say so.
fn existing(engine: &Engine, generation: u64, clean: Option<Clean>) -> Result<Applier, Unusable> {
    let index = Arc::new(Index::open(&engine.files.index(generation), engine.config.cache_mb << 20)?);
    let clean = clean.filter(|clean| clean.generation == generation);
    checked(engine, index.clone(), clean).inspect_err(|_| close(index))
}

fn checked(engine: &Engine, index: Arc<Index>, clean: Option<Clean>) -> Result<Applier, Unusable> {
    if !index.is_complete()? {
        return Err(Unusable::Unfinished);
    }
    if !index.is_keyed_by(engine.hash_key.id())? {
        return Err(IndexError::damaged("the key that its keys were made with is lost").into());
    }
    let last = index.applied()?;
    if let Some((newest, path)) = snapshots(engine).map_err(Unusable::System)?.first()
        && last.saturating_add(1) < *newest
        && snapshot::verify_file(path).is_ok()
    {
        return Err(Unusable::Behind);
    }
    let mut content = Content::default();
    index.scan::<IndexError>(|key, record| {
        content.add(&key, record);
        Ok(())
    })?;
    let mut applier = Applier::new(index, content, last, engine.keep_us(), engine.protection.clone());
    match clean {
        Some(clean) if clean.tally == applier.content.tally && clean.applied == last => {
            tell_of_lacking(engine, last.max(applier.content.highest));
            let gaps = replay(engine, last + 1, engine.journal_end(), last, &mut applier);
            tell(engine, &gaps?);
        }
        Some(clean) => {
            let (had, has) = (clean.tally.records, applier.content.tally.records);
            return Err(IndexError::damaged(format!(
                "it had {had} records at its orderly stop, and now has {has}, or others"
            ))
            .into());
        }
        None => {
            tracing::info!(
                "the feature store was not closed in order: its index is compared with snapshot and journal"
            );
            let from = match load_snapshot(engine, &mut applier) {
                Ok(from) => from,
                // The index may still have everything; what the journal has is compared all the same.
                Err(LoadError::Damaged) => 1,
                Err(LoadError::Index(error)) => return Err(error.into()),
                Err(LoadError::System(reason)) => return Err(Unusable::System(reason)),
            };
            tell_of_lacking(engine, last.max(applier.content.highest).max(from - 1));
            // What sled says it has proves nothing here.
            let gaps = replay(engine, from, engine.journal_end(), 0, &mut applier)?;
            tell(engine, &gaps);
        }
    }
    Ok(applier)
}

/// Builds an index from the newest good snapshot and the journal.
pub fn rebuild(engine: &Engine) -> Result<Applier, String> {
    let mut applier = new_index(engine)?;
    let from = match load_snapshot(engine, &mut applier) {
        Ok(from) => from,
        Err(LoadError::Damaged) => 1,
        Err(LoadError::Index(error)) => return Err(error.to_string()),
        Err(LoadError::System(reason)) => return Err(reason),
    };
    // Before the index is complete: the next one to open it could not tell.
    tell_of_lacking(engine, from - 1);
    let lost = replay(engine, from, engine.journal_end(), 0, &mut applier).map_err(String::from)?;
    tell(engine, &lost);
    finish(engine, &applier)?;
    Ok(applier)
}

/// Builds an index from another one, which had every entry before `from` when this began: smaller, as sled never gives back
/// room. What is left of one that could not be finished is removed.
pub fn compact(engine: &Engine, live: &Index, from: u64, records: u64) -> Result<Applier, String> {
    let mut applier = new_index(engine)?;
    let (index, folder) = (applier.index.clone(), applier.index.folder().to_owned());
    let copied = copy(live, &mut applier).map_err(|error| error.to_string()).and_then(|()| {
        let copied = applier.content.tally.records;
        if copied < records {
            return Err(format!("the index should have {records} records, and only {copied} were found"));
        }
        applier.applied = from - 1;
        let lost = replay(engine, from, engine.journal_end(), 0, &mut applier).map_err(String::from)?;
        // The index that there is has them.
        lost.first().map_or(Ok(()), |lost| Err(lost.clone()))?;
        finish(engine, &applier)
    });
    match copied {
        Ok(()) => Ok(applier),
        Err(reason) => {
            drop(applier);
            close(index);
            let _ = std::fs::remove_dir_all(folder);
            Err(reason)
        }
    }
}

fn copy(live: &Index, applier: &mut Applier) -> Result<(), IndexError> {
    let mut batch: Vec<(IndexKey, Vec<u8>)> = Vec::with_capacity(BATCH);
    live.scan::<IndexError>(|key, record| {
        batch.push((key, record.to_vec()));
        if batch.len() == BATCH {
            applier.upsert(std::mem::take(&mut batch))?;
        }
        Ok(())
    })?;
    applier.upsert(batch)
}

fn new_index(engine: &Engine) -> Result<Applier, String> {
    let newest = engine.files.generations().map_err(|error| error.to_string())?.first().copied().unwrap_or(0);
    // No number twice: an index that was set aside may still be at work on what had its name.
    let next = engine.generation.fetch_max(newest, Relaxed).max(newest) + 1;
    engine.generation.store(next, Relaxed);
    let index = Index::open(&engine.files.index(next), engine.config.cache_mb << 20);
    let index = index.map_err(|error| error.to_string())?;
    Ok(Applier::new(Arc::new(index), Content::default(), 0, engine.keep_us(), engine.protection.clone()))
}

fn finish(engine: &Engine, applier: &Applier) -> Result<(), String> {
    let noted = applier.note_applied().and_then(|()| applier.index.set_complete(engine.hash_key.id()));
    noted.map_err(|error| error.to_string())
}

/// Removes every other generation.
fn remove_others(engine: &Engine, kept: u64) {
    for generation in engine.files.generations().unwrap_or_default() {
        if generation != kept
            && let Err(error) = engine.files.remove_index(generation)
        {
            tracing::warn!(generation, %error, "an old index cannot be removed");
        }
    }
}

/// Waits a little for the last reader of an index, so that it is closed when its files go.
pub fn close(index: Arc<Index>) {
    let until = Instant::now() + READERS;
    while Arc::strong_count(&index) > 1 && Instant::now() < until {
        thread::park_timeout(Duration::from_millis(1));
    }
    // One that reads for longer, as a backup does, closes it.
    drop(index);
}

/// Keeps a damaged file or folder for later.
pub fn set_aside(engine: &Engine, path: &Path) {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let kind = name.split(['-', '.']).next().unwrap_or("file");
    match engine.files.set_aside(path, kind) {
        Ok(aside) => tracing::warn!(damaged = %path.display(), kept = %aside.display(), "set aside"),
        Err(error) => tracing::error!(damaged = %path.display(), %error, "cannot be set aside"),
    }
}

/// The snapshots there are, newest first.
fn snapshots(engine: &Engine) -> Result<Vec<(u64, PathBuf)>, String> {
    snapshot::list(engine.files.folder()).map_err(|error| format!("the snapshots cannot be listed: {error}"))
}

enum LoadError {
    Damaged,
    /// The index does not take it.
    Index(IndexError),
    /// There is no good one, and one that cannot be read now, or by this version. Going on would be forgetting it.
    System(String),
}

/// Brings the records of the newest good snapshot into the index, those that are newer than what it has. The number of the
/// journal entry from which to go on.
fn load_snapshot(engine: &Engine, applier: &mut Applier) -> Result<u64, LoadError> {
    let snapshots = snapshots(engine).map_err(LoadError::System)?;
    let none = snapshots.is_empty();
    let mut unread = None;
    for (replay_from, path) in snapshots {
        match load(engine, &path, applier) {
            Ok(()) => {
                applier.applied = applier.applied.max(replay_from - 1);
                return Ok(replay_from);
            }
            Err(Failed::Index(error)) => return Err(LoadError::Index(error)),
            Err(Failed::Snapshot(error)) => {
                let reason = format!("{}: {}", path.display(), with_cause(&error));
                engine.alarm("a snapshot of the feature store cannot be used", &reason);
                if !error.is_damage() {
                    unread = Some(reason);
                }
            }
        }
    }
    match unread {
        _ if none => Ok(1),
        Some(reason) => Err(LoadError::System(reason)),
        None => Err(LoadError::Damaged),
    }
}

enum Failed {
    Snapshot(SnapshotError),
    Index(IndexError),
}

impl From<SnapshotError> for Failed {
    fn from(error: SnapshotError) -> Self {
        Self::Snapshot(error)
    }
}

fn load(engine: &Engine, path: &Path, applier: &mut Applier) -> Result<(), Failed> {
    let file = File::open(path).map_err(SnapshotError::Read)?;
    let mut reader = SnapshotReader::new(BufReader::with_capacity(1 << 18, file))?;
    let same_keys = reader.header().hash_key_id == engine.hash_key.id();
    let mut left_out = LeftOut::default();
    let mut is_done = false;
    while !is_done {
        let mut batch = Vec::with_capacity(BATCH);
        while batch.len() < BATCH && !is_done {
            match reader.next()? {
                Some((key, bytes)) => batch.extend(loaded(engine, key, bytes, same_keys, &mut left_out)?),
                None => is_done = true,
            }
        }
        applier.upsert(batch).map_err(Failed::Index)?;
    }
    left_out.tell(engine, "records of a snapshot are left out");
    Ok(())
}

/// What cannot be opened though its bytes are as they were written: without the file with its key that may be every row, and
/// is told once.
#[derive(Default)]
struct LeftOut {
    count: u64,
    first: Option<(u64, Damaged)>,
}

impl LeftOut {
    fn add(&mut self, seq: u64, reason: Damaged) {
        self.count += 1;
        self.first.get_or_insert((seq, reason));
    }

    fn tell(&self, engine: &Engine, what: &str) {
        if let Some((seq, reason)) = &self.first {
            engine.alarm(what, &format!("{} of them; the first is of entry {seq}: {reason}", self.count));
        }
    }
}

/// A record under this store's own hash key; `None` when its entity was erased, or it was meddled with.
fn loaded(
    engine: &Engine,
    key: IndexKey,
    bytes: Vec<u8>,
    same_keys: bool,
    left_out: &mut LeftOut,
) -> Result<Option<(IndexKey, Vec<u8>)>, SnapshotError> {
    if same_keys && engine.protection.keys().is_none() {
        return Ok(Some((key, bytes)));
    }
    let record = match engine.protection.record(&key, &bytes) {
        Ok(_) if same_keys => return Ok(Some((key, bytes))),
        Ok(record) => record,
        Err(Damaged::Erased) => return Ok(None),
        Err(error @ (Damaged::Forged | Damaged::Plain | Damaged::KeyMissing)) => {
            // Its checksum is right: no bad place of the disk, and nothing that another copy of the snapshot would mend.
            left_out.add(sequence_number(&bytes), error);
            return Ok(None);
        }
        Err(reason) => return Err(SnapshotError::Damaged { offset: 0, reason }),
    };
    let key = engine.hash_key.index_key(key.view(), &record.row.entity);
    let bytes =
        engine.protection.encode(&key, &record).map_err(|error| SnapshotError::Read(io::Error::other(error)))?;
    Ok(Some((key, bytes)))
}

/// Brings the journal's entries from `from` on into the index, and stops before `to`, the journal's next entry at some moment
/// before. What cannot be read is answered, unless the index is known to have everything up to `had`; what stands behind it
/// is taken all the same, as each row says by itself what it is.
pub fn replay(engine: &Engine, from: u64, to: u64, had: u64, applier: &mut Applier) -> Result<Vec<String>, Unusable> {
    let folder = &engine.files.journal();
    let registry = engine.registry.load_full();
    let (mut from, mut lost, mut left_out) = (from, Vec::new(), LeftOut::default());
    while from < to {
        let mut batch: Vec<Pending> = Vec::new();
        let replayed = journal::replay(folder, from, Some(to), |entry| {
            batch.extend(pending(engine, &registry, entry, &mut left_out)?);
            if batch.len() >= BATCH {
                applier.apply(&batch)?;
                batch.clear();
            }
            Ok::<(), IndexError>(())
        });
        applier.apply(&batch)?;
        let (reason, from_seq, to_seq) = match replayed {
            Ok(_) => break,
            Err(ReplayError::Each(error)) => return Err(error.into()),
            Err(error @ ReplayError::Read { .. }) => return Err(Unusable::System(with_cause(&error))),
            Err(ReplayError::Damaged(damage)) => (damage.to_string(), damage.from_seq, damage.to_seq.unwrap_or(to)),
            Err(error @ ReplayError::Gap { from_seq, to_seq }) => (error.to_string(), from_seq, to_seq),
        };
        let end = to_seq.min(to);
        if end > from_seq && end > had.saturating_add(1) {
            lost.push(reason);
        }
        from = end.max(from + 1);
    }
    left_out.tell(engine, "entries of the feature store's journal are left out");
    applier.applied = applier.applied.max(to.saturating_sub(1));
    Ok(lost)
}

/// What an entry of the journal does now.
fn pending(
    engine: &Engine,
    registry: &Registry,
    entry: Entry,
    left_out: &mut LeftOut,
) -> Result<Option<Pending>, IndexError> {
    let (seq, latest_us) = (entry.seq, entry.latest_us);
    let mut body = match entry.change {
        Change::Delete => return Ok(Some(Pending { seq, key: entry.key, action: Action::Delete, latest_us })),
        Change::Put(bytes) => Body::plain(bytes),
        Change::PutSealed(key_id, bytes) => Body { seal: Seal::of_entity(key_id), bytes },
    };
    let row = match engine.protection.row(&entry.key, seq, &body) {
        Ok(row) => row,
        Err(Damaged::Erased) => return Ok(None),
        Err(error @ (Damaged::Forged | Damaged::Plain | Damaged::KeyMissing)) => {
            left_out.add(seq, error);
            return Ok(None);
        }
        Err(error) => return Err(IndexError::damaged(format!("of a row, {error}"))),
    };
    let view = entry.key.view();
    // Not the key that it had: the hash key may be another one by now.
    let key = engine.hash_key.index_key(view, &row.entity);
    if key != entry.key && body.seal != Seal::default() {
        // What is sealed for the one does not open as the other.
        body = Body::plain(row.encode().into());
    }
    Ok(Some(Pending { seq, key, action: Action::of_row(registry, view, row, body), latest_us }))
}

/// Tells of entries that are lost.
pub fn tell(engine: &Engine, lost: &[String]) {
    for reason in lost {
        engine.alarm("entries of the feature store's journal may be lost", reason);
    }
}

/// Tells what became of acknowledged entries that the journal lacks at its end: `had` is the last one that index or snapshot
/// has, before the journal is replayed. What they have is in no danger once a snapshot has it.
fn tell_of_lacking(engine: &Engine, had: u64) {
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
    engine.counters.entries_lost.fetch_add(count, Relaxed);
    let reason = format!(
        "{count} at least, those from {} to {}: neither journal nor index nor a snapshot has them. Push their rows again, or \
         restore a backup",
        lost.start,
        lost.end - 1
    );
    engine.alarm("acknowledged entries of the feature store are lost", &reason);
    engine.acknowledged.told_from(lost.start);
}

fn with_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
