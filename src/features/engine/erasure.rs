//! Erasure of entities, and encryption of plain values: parts of the maintenance thread.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ledge_base::clock;
use ledge_base::principal::Principal;
use ledge_service::audit_event::AuditEvent;
use ledge_service::audit_event::erasure::{EntityNaming, ErasedEntity, ErasedView, ErasureStatement, SALT_BYTES};

use super::super::catalog::StoredView;
use super::super::entity_keys::EntityKeys;
use super::super::index::{EntityIndex, IndexError};
use super::super::journal;
use super::super::key::IndexKey;
use super::super::online::{ErasureCounts, ErasureResult, FeatureError, JoinKeyValues};
use super::super::profiles::EntityProfile;
use super::super::record::{self, DamagedBytes, FeatureRecord, StoredRecord};
use super::super::snapshot;
use super::super::value::{Value, ValueType};
use super::super::view::ViewId;
use super::commands::StoreWriterCommand;
use super::maintenance::Maintenance;
use super::recovery::generation;
use super::{StoreEngine, StoreState};

/// The first pause before encrypting plain values is tried again, and the longest.
const ENCRYPT_RETRY_MIN: Duration = Duration::from_mins(1);
const ENCRYPT_RETRY_MAX: Duration = Duration::from_hours(1);

/// The rows of an entity in one view.
pub(super) struct EntityTarget {
    pub view: ViewId,
    /// The positions of the given join keys among the view's, and their values.
    wanted: Vec<(usize, Value)>,
    /// The whole entity, when the view has no other join key.
    pub whole: Option<Vec<Value>>,
}

impl EntityTarget {
    /// True for the join keys of a row that is one of these.
    pub fn has(&self, entity: &[Value]) -> bool {
        self.wanted.iter().all(|(at, value)| entity.get(*at) == Some(value))
    }
}

/// The records, views and keys of an entity.
#[derive(Default)]
struct EntityErasure {
    records: Vec<IndexKey>,
    views: BTreeMap<ViewId, ErasedRecords>,
    keys: BTreeSet<u32>,
}

/// The records of an entity in one view.
struct ErasedRecords {
    records: u64,
    /// Event times, in microseconds since the Unix epoch.
    earliest_us: i64,
    latest_us: i64,
}

impl ErasedRecords {
    fn add(&mut self, event_us: i64) {
        self.records += 1;
        self.earliest_us = self.earliest_us.min(event_us);
        self.latest_us = self.latest_us.max(event_us);
    }
}

/// `None` for a view that lacks one of the join keys. An error for a view with a join key of a type that does not take
/// the value; that view has no row of the entity either.
fn target(view: &StoredView, entity: &JoinKeyValues) -> Option<Result<EntityTarget, FeatureError>> {
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
    Some(Ok(EntityTarget { view: view.id, wanted, whole }))
}

/// The rows of the entity in all views, at least one.
pub(super) fn targets(views: &[StoredView], entity: &JoinKeyValues) -> Result<Vec<EntityTarget>, FeatureError> {
    let names: Vec<_> = entity.keys().map(String::as_str).collect();
    let no_view = FeatureError::Columns { reason: format!("no feature view has the join keys {}", names.join(", ")) };
    if entity.is_empty() {
        // No join keys would match every row.
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

/// Finds the records of the entity in the index.
fn find(engine: &StoreEngine, index: &EntityIndex, targets: &[EntityTarget]) -> Result<EntityErasure, IndexError> {
    let protection = &engine.protection;
    let mut found = EntityErasure::default();
    let mut take = |key: IndexKey, bytes: &[u8]| {
        let none = ErasedRecords { records: 0, earliest_us: i64::MAX, latest_us: i64::MIN };
        found.records.push(key);
        found.views.entry(key.view()).or_insert(none).add(record::event_us(bytes));
        found
            .keys
            .extend(StoredRecord::verify(&key, bytes).ok().map(|stored| stored.seal.key_id).filter(|id| *id != 0));
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
                Ok(FeatureRecord { row, .. }) => {
                    if target.has(&row.entity) {
                        take(key, bytes);
                    }
                    Ok(())
                }
                Err(DamagedBytes::Erased) => Ok(()),
                Err(error) if error.is_undecryptable() => {
                    engine.leave_out(error);
                    Ok(())
                }
                Err(error) => Err(IndexError::damaged(format!("a record cannot be used: {error}"))),
            }
        })?;
    }

    for target in targets {
        let whole = target.whole.iter().flat_map(|whole| protection.keys_of(target.view, whole));
        found.keys.extend(whole);
    }

    Ok(found)
}

impl Maintenance {
    /// Erases entities in every view, including rows that have the join keys of one among others. If files have to be
    /// rewritten for it, that happens once for all. With `naming`, the result has the statement of each entity.
    pub(super) fn erase(
        &mut self,
        entities: &[JoinKeyValues],
        naming: Option<EntityNaming>,
        principal: &Principal,
    ) -> Result<ErasureResult, FeatureError> {
        let catalog = self.engine.registry.load_full();
        let views: Vec<StoredView> = catalog.catalog().stored_views().collect();
        // Check all of them before the first is erased, so that a mistake in one changes nothing.
        let all: Result<Vec<_>, _> = entities.iter().map(|entity| Ok((entity, targets(&views, entity)?))).collect();
        let (all, mut records, mut in_views) = (all?, 0, BTreeSet::new());
        let mut statements = Vec::new();
        for (entity, targets) in &all {
            let (found, statement) = self.erase_one(entity, targets, &views, naming, principal)?;
            records += found.records.len() as u64;
            in_views.extend(found.views.into_keys());
            statements.extend(statement);
        }
        // A file may also have profiles that made room for others since it was written.
        self.engine.profiles.rewrite(&self.engine).map_err(not_erased)?;
        // Rows that the index has replaced, and all rows where nothing is encrypted, are removed with the files.
        let has_parts = all.iter().flat_map(|(_, targets)| targets).any(|target| target.whole.is_none());
        if has_parts || !self.engine.protection.is_complete() {
            self.remove_history().map_err(|error| match error {
                error @ FeatureError::NotErased { .. } => error,
                error => not_erased(error),
            })?;
        }
        let (entities, views) = (all.len(), in_views.len() as u64);
        tracing::info!(entities, records, views, "entities of the feature store were erased");
        Ok(ErasureResult { counts: ErasureCounts { records, views }, statements })
    }

    /// Erases an entity, except from older files. With `naming`, also returns the statement of the erasure.
    fn erase_one(
        &self,
        entity: &JoinKeyValues,
        targets: &[EntityTarget],
        views: &[StoredView],
        naming: Option<EntityNaming>,
        principal: &Principal,
    ) -> Result<(EntityErasure, Option<String>), FeatureError> {
        let index = self.engine.live().ok_or_else(|| unavailable(self.engine.state.load().reason()))?;
        let found = find(&self.engine, &index, targets).map_err(|error| {
            self.engine.give_up(&index, &error);
            unavailable(error.to_string())
        })?;
        drop(index);

        // Before anything is removed: a restore after a power cut must know of the erasure.
        let names: Vec<&str> = entity.keys().map(String::as_str).collect();
        let values = values(entity, targets, views);
        let keys: Vec<u32> = found.keys.iter().copied().collect();
        self.engine.tombstones.begin(&names, &values, self.engine.journal_end(), &keys).map_err(not_erased)?;

        let (reply, answer) = mpsc::channel();
        let command = StoreWriterCommand::Erase { records: found.records.clone(), keys, reply };
        self.engine.commands.blocking_send(command).map_err(|_| unavailable(StoreState::Closed.reason()))?;
        let removed_by = answer.recv().map_err(|_| unavailable(StoreState::Closed.reason()))??;
        let is_erased = |profile: &EntityProfile| {
            targets.iter().any(|target| target.view == profile.view && target.has(&profile.entity))
        };
        self.engine.profiles.erase(&self.engine, is_erased, removed_by);
        if let Some(keys) = self.engine.protection.keys() {
            keys.destroy().map_err(not_erased)?;
        }

        // A backup that was begun meanwhile may still have the entity.
        self.engine.tombstones.end(&names, &values, removed_by).map_err(not_erased)?;
        let statement = naming.map(|naming| self.statement(&names, &values, naming, &found)).transpose()?;
        let (records, views) = (found.records.len() as u64, found.views.len() as u64);
        let hash = statement.as_deref().map(ErasureStatement::hash_of);
        self.engine.audit.record(principal, AuditEvent::FeatureEntityErased { records, views, statement: hash });
        Ok((found, statement))
    }

    /// The statement of an erasure. The entity has the types of its join keys, also where the caller wrote them in
    /// another way.
    fn statement(
        &self,
        names: &[&str],
        values: &[Vec<Value>],
        naming: EntityNaming,
        found: &EntityErasure,
    ) -> Result<String, FeatureError> {
        let mut salt = [0; SALT_BYTES];
        getrandom::fill(&mut salt).map_err(not_erased)?;
        let values = values.first().map(Vec::as_slice).unwrap_or_default();
        let entity: ErasedEntity =
            names.iter().zip(values).map(|(name, value)| ((*name).to_owned(), value.to_json())).collect();

        let registry = self.engine.registry.load_full();
        let view = |(name, id): (&std::sync::Arc<str>, ViewId)| {
            let ErasedRecords { records, earliest_us, latest_us } = found.views.get(&id)?;
            let (earliest, latest) = (clock::rfc3339_micros(*earliest_us), clock::rfc3339_micros(*latest_us));
            Some(ErasedView { name: name.to_string(), records: *records, earliest, latest })
        };
        let mut views: Vec<ErasedView> = registry.catalog().views().filter_map(view).collect();
        views.sort_by(|one, next| one.name.cmp(&next.name));
        Ok(ErasureStatement::new(entity, naming, salt, views).to_text())
    }

    /// Removes all files but those with the current content of the index: older journal segments, snapshots and
    /// indexes, and files set aside. When this returns `Ok`, all of them are removed, and that survives a power cut.
    fn remove_history(&mut self) -> Result<(), FeatureError> {
        self.snapshot()?;
        let first = self.snapshot_at;
        // A second copy of everything.
        self.snapshot()?;
        let forgotten = self.remove_before(first).and_then(|()| self.remove_old_files());
        match forgotten.and_then(|()| self.find_old_file(first)) {
            Ok(None) => Ok(()),
            Ok(Some(left)) => Err(not_erased(format!("{} could not be removed", left.display()))),
            Err(error) => Err(not_erased(error)),
        }
    }

    /// Removes every other generation of the index, and files set aside.
    fn remove_old_files(&self) -> io::Result<()> {
        let (files, live) = (&self.engine.files, self.live_generation()?);
        for generation in files.generations()?.into_iter().filter(|generation| *generation != live) {
            files.remove_index(generation)?;
        }
        files.remove_damaged().map(drop)
    }

    /// A file that may still have content that the index no longer has: from before the snapshot of the number `kept`.
    fn find_old_file(&self, kept: u64) -> io::Result<Option<PathBuf>> {
        let (files, live) = (&self.engine.files, self.live_generation()?);
        if let Some(older) = files.generations()?.into_iter().find(|generation| *generation != live) {
            return Ok(Some(files.index(older)));
        }
        let older = snapshot::list(files.folder())?.into_iter().find(|(number, _)| *number < kept);
        let journal = journal::list(&files.journal())?.into_iter().find(|(first_seq, _)| *first_seq < kept);
        Ok(older.or(journal).map(|(_, path)| path).or(files.damaged()?.pop()))
    }

    fn live_generation(&self) -> io::Result<u64> {
        let live = self.engine.live().ok_or_else(|| io::Error::other(self.engine.state.load().reason()))?;
        generation(live.top().folder())
            .ok_or_else(|| io::Error::other("the folder of the index has no generation number"))
    }

    /// Encrypts values from before encryption was turned on. Afterwards no file has them in plain. All data is
    /// rewritten, so after each failure the pause is doubled.
    pub(super) fn encrypt_plain_values(&mut self) {
        let Some(keys) = self.engine.protection.keys() else { return };
        if keys.is_complete() || self.engine.live().is_none() {
            return;
        }
        let pause = (self.encrypt_retry.1 * 2).clamp(ENCRYPT_RETRY_MIN, ENCRYPT_RETRY_MAX);
        self.encrypt_retry = (Instant::now() + pause, pause);
        let engine = self.engine.clone();
        let Some(keys) = engine.protection.keys() else { return };
        let sealed = self.remove_history().map_err(|error| error.to_string());
        let sealed = sealed.and_then(|()| engine.profiles.rewrite(&engine).map_err(|error| error.to_string()));
        let sealed = sealed.and_then(|()| engine.tombstones.rekey().map_err(|error| error.to_string()));
        match sealed.and_then(|()| keys.set_complete().map_err(|error| error.to_string())) {
            Ok(()) => tracing::info!(name: "features.encrypted", "everything in the feature store is encrypted"),
            Err(error) => {
                let retry_s = pause.as_secs();
                tracing::warn!(
                    error,
                    retry_s,
                    "values from before encryption was turned on are not encrypted yet; another attempt follows"
                );
            }
        }
    }

    /// Destroys the keys of entities that have no record, because their rows expired. Runs once a day, and only when a
    /// tenth of all keys is unused. Skipped after any damage: records that the index lacks for it may still be
    /// restored, and need their keys.
    pub(super) fn destroy_unused_keys(&self) -> Result<usize, FeatureError> {
        let engine = &self.engine;
        let Some(keys) = engine.protection.keys().filter(|keys| keys.is_complete()) else { return Ok(0) };
        if engine.counters.damage_found.load(Relaxed) > 0 {
            return Ok(0);
        }
        keys.begin_census();
        // Rows acknowledged from here on are counted when they are encrypted.
        let counted = self.count_used_keys(keys);
        let forget = counted.is_ok() && keys.unused() > keys.count() / 10;
        let (reply, answer) = mpsc::channel();
        let sent = engine.commands.blocking_send(StoreWriterCommand::EndCensus { forget, reply });
        let forgotten = sent.ok().and_then(|()| answer.recv().ok()).unwrap_or(0);
        counted?;
        if forget {
            keys.destroy().map_err(not_erased)?;
        }
        Ok(forgotten)
    }

    /// Counts the key of every record as used. sled may lose records without reporting it: then the index is given up.
    fn count_used_keys(&self, keys: &EntityKeys) -> Result<(), FeatureError> {
        let (index, _, records) = self.index_position()?;
        let mut found = 0;
        let counted = index.scan::<IndexError>(|key, bytes| {
            let stored = StoredRecord::verify(&key, bytes);
            keys.use_key(
                stored.map_err(|error| IndexError::damaged(format!("a record cannot be used: {error}")))?.seal.key_id,
            );
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
        if let Some(Err(error)) = keys.map(super::super::entity_keys::EntityKeys::compact) {
            tracing::warn!(%error, "the added keys of the feature store could not be written into their shards");
        }
    }

    /// Encrypts all keys, the hash key and the tombstones again under the current master key. Returns the number of
    /// keys.
    pub(super) fn rekey(&self) -> Result<u64, FeatureError> {
        let failed = |error: &dyn std::fmt::Display| FeatureError::NotWritten { reason: error.to_string() };
        let Some(keys) = self.engine.protection.keys() else { return Ok(0) };
        let count = keys.rekey().map_err(|error| failed(&error))?;
        self.engine.files.rekey(keys.sealer()).map_err(|error| failed(&error))?;
        self.engine.tombstones.rekey().map_err(|error| failed(&error))?;
        Ok(count)
    }
}

/// The values of the given join keys, in the order of their names, once for each type that they have in some view.
fn values(entity: &JoinKeyValues, targets: &[EntityTarget], views: &[StoredView]) -> Vec<Vec<Value>> {
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
pub(crate) mod tests;
