//! An index that can be used, whatever is found: opened and checked, mended, or built anew from snapshot and journal.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use super::super::journal::{self, Change, ReplayError};
use super::super::key::IndexKey;
use super::super::record::Row;
use super::super::snapshot::{self, SnapshotReader};
use super::super::store::{Index, IndexError};
use super::applier::{Action, Applier, Content, Pending};
use super::files::Clean;
use super::{Engine, State};

/// How many entries or records are taken at a time.
const BATCH: usize = 1024;

/// The generation whose folder this is.
pub fn generation(folder: &Path) -> Option<u64> {
    folder.file_name()?.to_str()?.strip_prefix("index-")?.parse().ok()
}

/// Opens the newest index, or builds one. An error is one of the system: the files cannot be read or written at all.
pub fn open(engine: &Engine) -> Result<Applier, String> {
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
            Err(Unusable::Damaged(error)) => {
                engine
                    .alarm("the feature index is set aside and rebuilt from snapshot and journal", &error.to_string());
                engine.state.store(Arc::new(State::Rebuilding { reason: error.to_string() }));
                // That may take a while, and models need not wait for it.
                engine.opened.send_replace(true);
                set_aside(engine, &engine.files.index(generation));
            }
            Err(Unusable::Replay(reason)) => return Err(reason),
        }
    }
    rebuild(engine)
}

/// Why an index cannot be used.
enum Unusable {
    Unfinished,
    /// It lacks entries that only the newest snapshot has; or that is a backup, which takes the place of everything.
    Behind,
    Damaged(IndexError),
    Replay(String),
}

impl From<IndexError> for Unusable {
    fn from(error: IndexError) -> Self {
        Self::Damaged(error)
    }
}

/// Opens an index and looks at every record in it. After an orderly stop it must add up to what it was then; otherwise it is
/// mended: sled may have lost what it had, and it may not say so.
fn existing(engine: &Engine, generation: u64, clean: Option<Clean>) -> Result<Applier, Unusable> {
    let index = Arc::new(Index::open(&engine.files.index(generation), engine.config.cache_mb << 20)?);
    if !index.is_complete(engine.hash_key.id())? {
        return Err(Unusable::Unfinished);
    }
    let applied = index.applied()?;
    if let Some((newest, path)) = snapshot::list(engine.files.folder()).unwrap_or_default().first()
        && applied.saturating_add(1) < *newest
        && snapshot::verify_file(path).is_ok()
    {
        return Err(Unusable::Behind);
    }
    let mut content = Content::default();
    index.scan::<IndexError>(|key, record| {
        content.add(&key, record);
        Ok(())
    })?;
    let mut applier = Applier::new(index, content, applied, engine.keep_us());
    match clean.filter(|clean| clean.generation == generation) {
        Some(clean) if clean.tally == applier.content.tally && clean.applied == applied => {
            replay(engine, applied + 1, engine.journal_end(), &mut applier).map_err(Unusable::Replay)?;
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
                // The index may still have everything: what the journal lacks is told when it is read.
                Err(LoadError::Snapshots) => applied + 1,
                Err(LoadError::Index(error)) => return Err(error.into()),
            };
            replay(engine, from, engine.journal_end(), &mut applier).map_err(Unusable::Replay)?;
        }
    }
    Ok(applier)
}

/// Builds an index from the newest good snapshot and the journal.
pub fn rebuild(engine: &Engine) -> Result<Applier, String> {
    let mut applier = new_index(engine)?;
    let from = match load_snapshot(engine, &mut applier) {
        Ok(from) => from,
        Err(LoadError::Snapshots) => 1,
        Err(LoadError::Index(error)) => return Err(error.to_string()),
    };
    replay(engine, from, engine.journal_end(), &mut applier)?;
    finish(engine, &applier)?;
    Ok(applier)
}

/// Builds an index from another one, which had every entry before `from` when this began: smaller, as sled never gives back
/// room.
pub fn compact(engine: &Engine, live: &Index, from: u64) -> Result<Applier, String> {
    let mut applier = new_index(engine)?;
    let mut batch: Vec<(IndexKey, Vec<u8>)> = Vec::with_capacity(BATCH);
    live.scan::<IndexError>(|key, record| {
        batch.push((key, record.to_vec()));
        if batch.len() == BATCH {
            applier.upsert(&batch)?;
            batch.clear();
        }
        Ok(())
    })
    .and_then(|()| applier.upsert(&batch))
    .map_err(|error| error.to_string())?;
    applier.applied = from - 1;
    replay(engine, from, engine.journal_end(), &mut applier)?;
    finish(engine, &applier)?;
    Ok(applier)
}

fn new_index(engine: &Engine) -> Result<Applier, String> {
    let newest = engine.files.generations().map_err(|error| error.to_string())?.first().copied().unwrap_or(0);
    let index = Index::open(&engine.files.index(newest + 1), engine.config.cache_mb << 20);
    let index = index.map_err(|error| error.to_string())?;
    Ok(Applier::new(Arc::new(index), Content::default(), 0, engine.keep_us()))
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

/// Keeps a damaged file or folder for later.
pub fn set_aside(engine: &Engine, path: &Path) {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let kind = name.split(['-', '.']).next().unwrap_or("file");
    match engine.files.set_aside(path, kind) {
        Ok(aside) => tracing::warn!(damaged = %path.display(), kept = %aside.display(), "set aside"),
        Err(error) => tracing::error!(damaged = %path.display(), %error, "cannot be set aside"),
    }
}

enum LoadError {
    /// There is no snapshot that can be read.
    Snapshots,
    /// The index does not take it.
    Index(IndexError),
}

/// Brings the records of the newest good snapshot into the index, those that are newer than what it has. The number of the
/// journal entry from which to go on.
fn load_snapshot(engine: &Engine, applier: &mut Applier) -> Result<u64, LoadError> {
    let snapshots = snapshot::list(engine.files.folder()).unwrap_or_default();
    let none = snapshots.is_empty();
    for (replay_from, path) in snapshots {
        match load(engine, &path, applier) {
            Ok(()) => {
                applier.applied = applier.applied.max(replay_from - 1);
                return Ok(replay_from);
            }
            Err(Failed::Index(error)) => return Err(LoadError::Index(error)),
            Err(Failed::Snapshot(reason)) => {
                engine
                    .alarm("a snapshot of the feature store cannot be used", &format!("{}: {reason}", path.display()));
            }
        }
    }
    if none { Ok(1) } else { Err(LoadError::Snapshots) }
}

enum Failed {
    Snapshot(String),
    Index(IndexError),
}

fn load(engine: &Engine, path: &Path, applier: &mut Applier) -> Result<(), Failed> {
    let failed = |error: &dyn std::fmt::Display| Failed::Snapshot(error.to_string());
    let file = File::open(path).map_err(|error| failed(&error))?;
    let mut reader = SnapshotReader::new(BufReader::new(file)).map_err(|error| failed(&error))?;
    let same_keys = reader.header().hash_key_id == engine.hash_key.id();
    loop {
        let mut batch = Vec::with_capacity(BATCH);
        while batch.len() < BATCH {
            let Some((key, bytes)) = reader.next().map_err(|error| failed(&error))? else { break };
            batch.push(if same_keys {
                (key, bytes)
            } else {
                rekeyed(engine, &key, &bytes).map_err(|error| failed(&error))?
            });
        }
        let done = batch.len() < BATCH;
        applier.upsert(&batch).map_err(Failed::Index)?;
        if done {
            return Ok(());
        }
    }
}

/// A record under this store's own hash key.
fn rekeyed(
    engine: &Engine,
    key: &IndexKey,
    bytes: &[u8],
) -> Result<(IndexKey, Vec<u8>), super::super::record::Damaged> {
    let record = super::super::record::Record::decode(key, bytes)?;
    let key = engine.hash_key.of_row(key.view(), &record.row);
    let bytes = record.encode(&key);
    Ok((key, bytes))
}

/// Brings the journal's entries from `from` on into the index. Entries that cannot be read are told, and what stands behind
/// them is taken all the same: each row says by itself what it is.
/// Stops before `to`, the journal's next entry at some moment before.
pub fn replay(engine: &Engine, from: u64, to: u64, applier: &mut Applier) -> Result<(), String> {
    let folder = &engine.files.journal();
    let registry = engine.registry.load_full();
    let had = applier.applied;
    let mut from = from;
    let mut lost: Vec<String> = Vec::new();
    loop {
        let mut batch: Vec<Pending> = Vec::new();
        let replayed = journal::replay(folder, from, Some(to), |entry| {
            let view = entry.key.view();
            let pending = match entry.change {
                Change::Delete => Pending { seq: entry.seq, key: entry.key, action: Action::Delete },
                Change::Put(bytes) => {
                    let row = Row::decode(&bytes).map_err(|error| IndexError::damaged(format!("of a row, {error}")))?;
                    // Not the key that it had: the hash key may be another one by now.
                    let key = engine.hash_key.of_row(view, &row);
                    Pending { seq: entry.seq, key, action: Action::of_row(&registry, view, row) }
                }
            };
            batch.push(pending);
            if batch.len() >= BATCH {
                applier.apply(&batch)?;
                batch.clear();
            }
            Ok::<(), IndexError>(())
        });
        applier.apply(&batch).map_err(|error| error.to_string())?;
        match replayed {
            Ok(next) => {
                applier.applied = applier.applied.max(next.saturating_sub(1));
                break;
            }
            Err(ReplayError::Each(error)) => return Err(error.to_string()),
            Err(error @ ReplayError::Read { .. }) => return Err(error.to_string()),
            // What cannot be read may be in the index all the same.
            Err(ReplayError::Damaged(damage)) => {
                let end = damage.to_seq.unwrap_or(to).min(to);
                if end > had + 1 && end > damage.from_seq {
                    lost.push(damage.to_string());
                }
                from = end.max(from);
            }
            Err(ref error @ ReplayError::Gap { to_seq, .. }) => {
                let end = to_seq.min(to);
                if end > had + 1 {
                    lost.push(error.to_string());
                }
                from = end.max(from);
            }
        }
        if from >= to {
            applier.applied = applier.applied.max(to - 1);
            break;
        }
    }
    for reason in &lost {
        engine.alarm("entries of the feature store's journal are lost", reason);
    }
    Ok(())
}
