//! The upkeep's part that erases entities, and seals what was plain.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ledge_base::principal::Principal;
use ledge_service::audit_event::AuditEvent;

use super::super::catalog::StoredView;
use super::super::entity_keys::EntityKeys;
use super::super::journal;
use super::super::key::IndexKey;
use super::super::online::{Erased, FeatureError};
use super::super::record::{Damaged, Record, Stored};
use super::super::snapshot;
use super::super::store::{Index, IndexError};
use super::super::value::{Value, ValueType};
use super::super::view::ViewId;
use super::orders::Command;
use super::recovery::generation;
use super::upkeep::Upkeep;
use super::{Engine, State};

/// After how long sealing what was plain is tried again, and after how long at most.
const SEAL_AGAIN: Duration = Duration::from_mins(1);
const SEAL_AGAIN_AT_LAST: Duration = Duration::from_hours(1);

/// Join keys by name, as they were given.
pub type Entity = BTreeMap<String, serde_json::Value>;

/// What an erasure is about in one view.
struct Target {
    view: ViewId,
    /// The places of the given join keys in the view's, and their values.
    wanted: Vec<(usize, Value)>,
    /// The whole entity, when the view has no other join key.
    whole: Option<Vec<Value>>,
}

/// What was found of it.
#[derive(Default)]
struct Found {
    records: Vec<IndexKey>,
    views: BTreeSet<ViewId>,
    keys: BTreeSet<u32>,
}

/// `None` of a view that lacks one of the join keys. One that has it in a type that does not take the value, which is the
/// error, has no row of the entity either.
fn target(view: &StoredView, entity: &Entity) -> Option<Result<Target, FeatureError>> {
    let mut wanted = Vec::with_capacity(entity.len());
    for (name, given) in entity {
        let (at, (_, kind)) = view.join_keys.iter().enumerate().find(|(_, (key, _))| **key == **name)?;
        let value = Value::from_json(ValueType::Scalar(*kind), given);
        match value.and_then(|value| value.ok_or_else(|| "a join key cannot be null".into())) {
            Ok(value) => wanted.push((at, value)),
            Err(reason) => return Some(Err(FeatureError::Value { column: name.clone(), row: 0, reason })),
        }
    }
    wanted.sort_by_key(|(at, _)| *at);
    let whole = (wanted.len() == view.join_keys.len()).then(|| wanted.iter().map(|(_, value)| value.clone()).collect());
    Some(Ok(Target { view: view.id, wanted, whole }))
}

/// What an erasure is about in all views, one at least.
fn targets(views: &[StoredView], entity: &Entity) -> Result<Vec<Target>, FeatureError> {
    let names: Vec<_> = entity.keys().map(String::as_str).collect();
    let no_view = FeatureError::Columns { reason: format!("no feature view has the join keys {}", names.join(", ")) };
    if entity.is_empty() {
        // Every row has all of no join keys.
        return Err(no_view);
    }
    let (mut targets, mut refused) = (Vec::new(), no_view);
    for found in views.iter().filter_map(|view| target(view, entity)) {
        match found {
            Ok(target) => targets.push(target),
            Err(error) => refused = error,
        }
    }
    if targets.is_empty() { Err(refused) } else { Ok(targets) }
}

fn unavailable(reason: impl Into<String>) -> FeatureError {
    FeatureError::Unavailable { reason: reason.into() }
}

/// What the index has of the entity.
fn find(engine: &Engine, index: &Index, targets: &[Target]) -> Result<Found, IndexError> {
    let protection = &engine.protection;
    let mut found = Found::default();
    let mut take = |key: IndexKey, bytes: &[u8]| {
        found.records.push(key);
        found.views.insert(key.view());
        found.keys.extend(Stored::verify(&key, bytes).ok().map(|stored| stored.seal.key_id).filter(|id| *id != 0));
    };
    for target in targets {
        if let Some(whole) = &target.whole {
            let key = engine.hash_key.index_key(target.view, whole);
            if let Some(bytes) = index.get(&key)? {
                take(key, &bytes);
            }
            continue;
        }
        index.scan_prefix::<IndexError>(&target.view.0.to_be_bytes(), |key, bytes| {
            match protection.record(&key, bytes) {
                Ok(Record { row, .. }) => {
                    if target.wanted.iter().all(|(at, value)| row.entity.get(*at) == Some(value)) {
                        take(key, bytes);
                    }
                    Ok(())
                }
                Err(Damaged::Erased) => Ok(()),
                Err(error) => Err(IndexError::damaged(format!("of a record, {error}"))),
            }
        })?;
    }
    for target in targets {
        let whole = target.whole.iter().flat_map(|whole| protection.keys_of(target.view, whole));
        found.keys.extend(whole);
    }
    Ok(found)
}

impl Upkeep {
    /// Erases entities, in every view, with whatever has the join keys of one among others. Where files have to be written
    /// anew for it, they are once.
    pub(super) fn erase(&mut self, entities: &[Entity], principal: &Principal) -> Result<Erased, FeatureError> {
        let catalog = self.engine.registry.load_full();
        let views: Vec<StoredView> = catalog.catalog().stored_views().collect();
        // Before the first is erased, so that a mistake in one of them changes nothing.
        let all: Result<Vec<_>, _> = entities.iter().map(|entity| Ok((entity, targets(&views, entity)?))).collect();
        let (all, mut records, mut in_views) = (all?, 0, BTreeSet::new());
        for (entity, targets) in &all {
            let found = self.erase_one(entity, targets, &views, principal)?;
            records += found.records.len() as u64;
            in_views.extend(found.views);
        }
        // Rows of which the index has nothing any more, and all rows where nothing is sealed, go with the files.
        let has_parts = all.iter().flat_map(|(_, targets)| targets).any(|target| target.whole.is_none());
        if has_parts || !self.engine.protection.is_complete() {
            self.forget_history().map_err(|error| match error {
                error @ FeatureError::NotErased { .. } => error,
                error => not_erased(error),
            })?;
        }
        let (entities, views) = (all.len(), in_views.len() as u64);
        tracing::info!(entities, records, views, "entities of the feature store were erased");
        Ok(Erased { records, views })
    }

    /// Erases an entity but for what older files have of it.
    fn erase_one(
        &self,
        entity: &Entity,
        targets: &[Target],
        views: &[StoredView],
        principal: &Principal,
    ) -> Result<Found, FeatureError> {
        let index = self.engine.live().ok_or_else(|| unavailable(self.engine.state.load().reason()))?;
        let found = find(&self.engine, &index, targets).map_err(|error| {
            self.engine.give_up(&index, &error);
            unavailable(error.to_string())
        })?;
        drop(index);
        // Before anything is gone: a restore after a power cut must know.
        let names: Vec<&str> = entity.keys().map(String::as_str).collect();
        let values = values(entity, targets, views);
        let keys: Vec<u32> = found.keys.iter().copied().collect();
        self.engine.erased.begin(&names, &values, self.engine.journal_end(), &keys).map_err(not_erased)?;
        let (reply, answer) = mpsc::channel();
        let command = Command::Erase { records: found.records.clone(), keys, reply };
        self.engine.commands.blocking_send(command).map_err(|_| unavailable(State::Closed.reason()))?;
        let removed_by = answer.recv().map_err(|_| unavailable(State::Closed.reason()))??;
        if let Some(keys) = self.engine.protection.keys() {
            keys.destroy().map_err(not_erased)?;
        }
        // A backup that was begun meanwhile may have it still.
        self.engine.erased.end(&names, &values, removed_by).map_err(not_erased)?;
        let (records, views) = (found.records.len() as u64, found.views.len() as u64);
        self.engine.audit.record(principal, AuditEvent::FeatureEntityErased { records, views });
        Ok(found)
    }

    /// Leaves nothing of what was but what the index has now: no older journal, snapshot or index, and nothing that was set
    /// aside. When this returns `Ok`, none of it is there, and that survives a power cut.
    fn forget_history(&mut self) -> Result<(), FeatureError> {
        self.compact()?;
        self.snapshot()?;
        let forgotten = self.remove_before(self.snapshot_at).and_then(|()| self.remove_the_rest());
        match forgotten.and_then(|()| self.find_history()) {
            Ok(None) => Ok(()),
            Ok(Some(left)) => Err(not_erased(format!("{} is still there", left.display()))),
            Err(error) => Err(not_erased(error)),
        }
    }

    /// Removes every other generation of the index, and what was set aside.
    fn remove_the_rest(&self) -> io::Result<()> {
        let (files, live) = (&self.engine.files, self.live_generation()?);
        for generation in files.generations()?.into_iter().filter(|generation| *generation != live) {
            files.remove_index(generation)?;
        }
        files.remove_damaged().map(drop)
    }

    /// A file that may have what the index has no more.
    fn find_history(&self) -> io::Result<Option<PathBuf>> {
        let (files, live) = (&self.engine.files, self.live_generation()?);
        if let Some(older) = files.generations()?.into_iter().find(|generation| *generation != live) {
            return Ok(Some(files.index(older)));
        }
        let older = snapshot::list(files.folder())?.into_iter().find(|(number, _)| *number != self.snapshot_at);
        let journal = journal::list(&files.journal())?.into_iter().find(|(first_seq, _)| *first_seq < self.snapshot_at);
        Ok(older.or(journal).map(|(_, path)| path).or(files.damaged()?.pop()))
    }

    fn live_generation(&self) -> io::Result<u64> {
        let live = self.engine.live().ok_or_else(|| io::Error::other(self.engine.state.load().reason()))?;
        generation(live.folder()).ok_or_else(|| io::Error::other("the index has no number"))
    }

    /// Seals what was there before sealing was turned on. What was plain is in no file afterwards. It writes everything
    /// anew, so that after a failure the next attempt waits, and each time for twice as long.
    pub(super) fn seal_the_rest(&mut self) {
        let Some(keys) = self.engine.protection.keys() else { return };
        if keys.is_complete() || self.engine.live().is_none() {
            return;
        }
        let pause = (self.seal_again.1 * 2).clamp(SEAL_AGAIN, SEAL_AGAIN_AT_LAST);
        self.seal_again = (Instant::now() + pause, pause);
        let engine = self.engine.clone();
        let Some(keys) = engine.protection.keys() else { return };
        let sealed = self.forget_history().map_err(|error| error.to_string());
        let sealed = sealed.and_then(|()| engine.erased.reseal().map_err(|error| error.to_string()));
        match sealed.and_then(|()| keys.set_complete().map_err(|error| error.to_string())) {
            Ok(()) => tracing::info!("everything in the feature store is sealed"),
            Err(error) => {
                let retry_s = pause.as_secs();
                tracing::warn!(error, retry_s, "what was in the feature store before is not sealed yet");
            }
        }
    }

    /// Destroys the keys of entities of which no record is left: their rows expired. Once a day, when they are a tenth. Not
    /// where anything was found damaged: what the index lacks for it may still be put back, and needs its keys.
    pub(super) fn forget_unused_keys(&self) -> Result<usize, FeatureError> {
        let engine = &self.engine;
        let Some(keys) = engine.protection.keys().filter(|keys| keys.is_complete()) else { return Ok(0) };
        if engine.counters.damage_found.load(Relaxed) > 0 {
            return Ok(0);
        }
        keys.begin_census();
        // Whatever is acknowledged from here on is counted where it is sealed.
        let counted = self.count_used_keys(keys);
        let forget = counted.is_ok() && keys.unused() > keys.count() / 10;
        let (reply, answer) = mpsc::channel();
        let sent = engine.commands.blocking_send(Command::EndCensus { forget, reply });
        let forgotten = sent.ok().and_then(|()| answer.recv().ok()).unwrap_or(0);
        counted?;
        if forget {
            keys.destroy().map_err(not_erased)?;
        }
        Ok(forgotten)
    }

    /// Takes note of the key of every record. sled may lack what it had, and not say so: then the index is given up.
    fn count_used_keys(&self, keys: &EntityKeys) -> Result<(), FeatureError> {
        let (index, _, records) = self.mark(false)?;
        let mut found = 0;
        let counted = index.scan::<IndexError>(|key, bytes| {
            let stored = Stored::verify(&key, bytes);
            keys.use_key(stored.map_err(|error| IndexError::damaged(format!("of a record, {error}")))?.seal.key_id);
            found += 1;
            Ok(())
        });
        // Nothing is removed meanwhile but by this thread.
        let whole = counted.and_then(|()| {
            let lacks = || format!("it should have {records} records, and only {found} were found");
            if found < records { Err(IndexError::damaged(lacks())) } else { Ok(()) }
        });
        whole.map_err(|error| {
            self.engine.give_up(&index, &error);
            unavailable(error.to_string())
        })
    }

    /// Folds the keys that were added into their files.
    pub(super) fn fold_keys(&self) {
        let keys = self.engine.protection.keys();
        if let Some(Err(error)) = keys.map(super::super::entity_keys::EntityKeys::fold) {
            tracing::warn!(%error, "the keys of the feature store were not put into order");
        }
    }

    /// Seals all keys, and the hash key, under the current master key; how many keys.
    pub(super) fn reseal(&self) -> Result<u64, FeatureError> {
        let failed = |error: &dyn std::fmt::Display| FeatureError::NotWritten { reason: error.to_string() };
        let Some(keys) = self.engine.protection.keys() else { return Ok(0) };
        let count = keys.reseal().map_err(|error| failed(&error))?;
        self.engine.files.reseal(keys.sealer()).map_err(|error| failed(&error))?;
        self.engine.erased.reseal().map_err(|error| failed(&error))?;
        Ok(count)
    }
}

/// The values of the given join keys, in the order of their names, in each type that they have in some view.
fn values(entity: &Entity, targets: &[Target], views: &[StoredView]) -> Vec<Vec<Value>> {
    let mut found: Vec<Vec<Value>> = Vec::new();
    for target in targets {
        let Some(view) = views.iter().find(|view| view.id == target.view) else { continue };
        let value = |name: &String| {
            let at = view.join_keys.iter().position(|(key, _)| **key == **name)?;
            target.wanted.iter().find(|(wanted, _)| *wanted == at).map(|(_, value)| value.clone())
        };
        let values: Option<Vec<Value>> = entity.keys().map(value).collect();
        found.extend(values.filter(|values| !found.contains(values)));
    }
    found
}

fn not_erased(error: impl std::fmt::Display) -> FeatureError {
    FeatureError::NotErased { reason: error.to_string() }
}

#[cfg(test)]
mod tests;
