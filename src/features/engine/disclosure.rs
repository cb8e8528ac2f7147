//! Disclosure of everything that the store has on an entity: a part of the maintenance thread, which is the only one
//! that removes the files that are read.

use std::collections::BTreeMap;

use ledge_base::clock;
use ledge_base::principal::Principal;
use ledge_service::audit_event::AuditEvent;
use serde_json::Value as Json;

use super::super::catalog::StoredView;
use super::super::index::{EntityIndex, IndexError};
use super::super::journal::{self, JournalChange, JournalEntry, ReplayError};
use super::super::key::IndexKey;
use super::super::online::{DisclosedEntry, DisclosedRow, DisclosedView, Disclosure, FeatureError, JoinKeyValues};
use super::super::protection::RecordBody;
use super::super::record::{CipherHeader, DamagedBytes, FeatureRecord, FeatureRow};
use super::super::view::{FeatureView, FieldId, ViewId};
use super::super::window::WindowState;
use super::StoreEngine;
use super::erasure::{EntityTarget, targets};
use super::maintenance::Maintenance;

/// The most rows that are listed, those of the journal included, and the most bytes that they have in the store. Further
/// ones are counted.
const ROWS_MAX: u64 = 10_000;
const BYTES_MAX: usize = 4 << 20;

impl Maintenance {
    /// Collects everything on an entity, and records that it was disclosed.
    pub(super) fn disclose(&self, entity: &JoinKeyValues, principal: &Principal) -> Result<Disclosure, FeatureError> {
        let engine = &*self.engine;
        let unavailable = |reason: String| FeatureError::Unavailable { reason };
        let catalog = engine.registry.load_full();
        let views: Vec<StoredView> = catalog.catalog().stored_views().collect();
        let targets = targets(&views, entity)?;

        let index = engine.live().ok_or_else(|| unavailable(engine.state.load().reason()))?;
        let mut collected = Collected::new(engine, &targets);
        collected.read_index(&index).map_err(|error| {
            engine.give_up(&index, &error);
            unavailable(error.to_string())
        })?;
        collected.read_journal().map_err(unavailable)?;

        let records = collected.records;
        let disclosed = collected.finish();
        let in_views = disclosed.feature_views.iter().filter(|view| !view.rows.is_empty()).count() as u64;
        let join_keys = entity.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let tag = engine.audit.tag_key().map(|key| key.of_entity(&join_keys));
        engine.audit.record(principal, AuditEvent::FeatureEntityDisclosed { records, views: in_views, entity: tag });
        Ok(disclosed)
    }
}

/// The rows found so far.
struct Collected<'e> {
    engine: &'e StoreEngine,
    targets: &'e [EntityTarget],
    views: BTreeMap<ViewId, DisclosedView>,
    now_us: i64,
    /// The number of rows in the index.
    records: u64,
    journal_rows: u64,
    /// The rows that are listed, and their bytes.
    listed: u64,
    bytes: usize,
}

impl<'e> Collected<'e> {
    fn new(engine: &'e StoreEngine, targets: &'e [EntityTarget]) -> Self {
        let registry = engine.registry.load_full();
        let name =
            |id: ViewId| registry.catalog().views().find(|(_, known)| *known == id).map(|(name, _)| name.clone());
        let view = |target: &EntityTarget| {
            let view = DisclosedView {
                name: name(target.view).map_or_else(String::new, |name| name.to_string()),
                declared: registry.view_by_id(target.view).is_some(),
                rows: Vec::new(),
                journal: Vec::new(),
                profiles: registry.view_by_id(target.view).map_or_else(Vec::new, |view| {
                    engine.profiles.disclose(view, |profile| target.has(&profile.entity))
                }),
            };
            (target.view, view)
        };
        let views = targets.iter().map(view).collect();
        let now_us = clock::unix_micros();
        Self { engine, targets, views, now_us, records: 0, journal_rows: 0, listed: 0, bytes: 0 }
    }

    /// True if a row of so many bytes is to be listed, which counts it.
    fn has_room(&mut self, bytes: usize) -> bool {
        let has_room = self.listed < ROWS_MAX && self.bytes + bytes <= BYTES_MAX;
        if has_room {
            self.listed += 1;
            self.bytes += bytes;
        }
        has_room
    }

    fn finish(self) -> Disclosure {
        let listed = |of: fn(&DisclosedView) -> usize| self.views.values().map(of).sum::<usize>() as u64;
        let (rows, earlier) = (listed(|view| view.rows.len()), listed(|view| view.journal.len()));
        let (unlisted_rows, unlisted_earlier_rows) = (self.records - rows, self.journal_rows - earlier);
        let mut feature_views: Vec<_> = self.views.into_values().collect();
        feature_views.sort_by(|one, next| one.name.cmp(&next.name));
        Disclosure { feature_views, unlisted_rows, unlisted_earlier_rows }
    }

    fn read_index(&mut self, index: &EntityIndex) -> Result<(), IndexError> {
        for target in self.targets {
            if let Some(whole) = &target.whole {
                let key = self.engine.hash_key.index_key(target.view, whole);
                if let Some(bytes) = index.get(&key)? {
                    self.take_record(target, &key, &bytes)?;
                }
            } else {
                index.scan_prefix::<IndexError>(&target.view.0.to_be_bytes(), |key, bytes| {
                    self.take_record(target, &key, bytes)
                })?;
            }
        }
        Ok(())
    }

    fn take_record(&mut self, target: &EntityTarget, key: &IndexKey, bytes: &[u8]) -> Result<(), IndexError> {
        let record = match self.engine.protection.record(key, bytes) {
            Ok(record) if target.has(&record.row.entity) => record,
            Ok(_) | Err(DamagedBytes::Erased) => return Ok(()),
            Err(error) if error.is_undecryptable() => {
                self.engine.leave_out(error);
                return Ok(());
            }
            Err(error) => return Err(IndexError::damaged(format!("a record cannot be used: {error}"))),
        };
        self.records += 1;
        if self.has_room(bytes.len()) {
            let row = self.row(target.view, &record)?;
            self.views.entry(target.view).and_modify(|view| view.rows.push(row));
        }
        Ok(())
    }

    fn row(&self, id: ViewId, record: &FeatureRecord) -> Result<DisclosedRow, IndexError> {
        let registry = self.engine.registry.load();
        let view = registry.view_by_id(id).map(|view| &**view);
        let stored = registry.catalog().stored_views().find(|stored| stored.id == id);
        let names = stored.iter().flat_map(|stored| &stored.join_keys);
        let join_keys = names.zip(&record.row.entity).map(|((name, _), value)| (name.to_string(), value.to_json()));
        let windows = if record.windows.is_empty() {
            WindowState::default()
        } else {
            WindowState::decode(&record.windows)
                .map_err(|error| IndexError::damaged(format!("a record cannot be used: {error}")))?
        };
        let aggregations = view.into_iter().flat_map(|view| {
            let value = |at| windows.evaluate(view, at, self.now_us).map_or(Json::Null, |it| it.to_json());
            view.aggregations.iter().enumerate().map(|(at, of)| (of.name.to_string(), value(at))).collect::<Vec<_>>()
        });
        Ok(DisclosedRow {
            join_keys: join_keys.collect(),
            event_timestamp: clock::rfc3339_micros(record.row.event_us),
            kept_until: (record.purge_us != i64::MAX).then(|| clock::rfc3339_micros(record.purge_us)),
            features: features(view, &record.row),
            aggregations: aggregations.collect(),
        })
    }

    /// Reads the whole journal. Damaged places are skipped: the index has what was in them, or its loss was reported.
    fn read_journal(&mut self) -> Result<(), String> {
        let folder = self.engine.files.journal();
        let to = self.engine.journal_end();
        let segments = journal::list(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut from = segments.first().map_or(to, |(first_seq, _)| *first_seq);
        while from < to {
            let replayed = journal::replay(&folder, from, Some(to), |entry| {
                self.take_entry(&entry);
                Ok::<(), std::convert::Infallible>(())
            });
            let end = match replayed {
                Ok(_) => return Ok(()),
                Err(ReplayError::Each(never)) => match never {},
                Err(error @ ReplayError::Read { .. }) => return Err(error.to_string()),
                Err(ReplayError::Damaged(damage)) => damage.to_seq.unwrap_or(to),
                Err(ReplayError::Gap { to_seq, .. }) => to_seq,
            };
            // Entries before the damaged place were taken already.
            from = end.max(from + 1);
        }
        Ok(())
    }

    fn take_entry(&mut self, entry: &JournalEntry) {
        let Some(target) = self.targets.iter().find(|target| target.view == entry.key.view()) else { return };
        let whole = target.whole.as_ref().map(|whole| self.engine.hash_key.index_key(target.view, whole));
        if whole.is_some_and(|whole| whole != entry.key) {
            return;
        }
        let (seal, bytes) = match &entry.change {
            JournalChange::Put(bytes) => (CipherHeader::default(), bytes),
            JournalChange::PutSealed(key_id, bytes) => (CipherHeader::of_entity(*key_id), bytes),
            JournalChange::Delete => return,
        };
        let body = RecordBody { seal, bytes: bytes.clone() };
        let row = match self.engine.protection.row(&entry.key, entry.seq, &body) {
            Ok(row) if target.has(&row.entity) => row,
            Err(error) if error.is_undecryptable() => return self.engine.leave_out(error),
            // Another entity, an erased one, or a damaged row, which the search for damage reports.
            Ok(_) | Err(_) => return,
        };
        self.journal_rows += 1;
        if self.has_room(entry.change.bytes()) {
            let registry = self.engine.registry.load();
            let view = registry.view_by_id(target.view).map(|view| &**view);
            let event_timestamp = clock::rfc3339_micros(row.event_us);
            let entry = DisclosedEntry { seq: entry.seq, event_timestamp, features: features(view, &row) };
            self.views.entry(target.view).and_modify(|view| view.journal.push(entry));
        }
    }
}

/// The values of a row by the names of their columns. A column that is not declared any more has its number.
fn features(view: Option<&FeatureView>, row: &FeatureRow) -> JoinKeyValues {
    let name = |id: FieldId| {
        let field = view.and_then(|view| view.fields.iter().find(|field| field.id == id));
        field.map_or_else(|| format!("column {}", id.0), |field| field.name.to_string())
    };
    let nulls = view.into_iter().flat_map(|view| &view.fields).map(|field| (field.name.to_string(), Json::Null));
    let values = row.values.iter().map(|(id, value)| (name(*id), value.to_json()));
    nulls.chain(values).collect()
}

#[cfg(test)]
mod tests {
    use ledge_identity::sealing::Sealer;
    use serde_json::{Value as Json, json};

    use super::super::erasure::tests::ErasureStore;

    fn disclosed(store: &ErasureStore, customer: i64) -> Json {
        serde_json::to_value(store.disclose(&json!({ "customer": customer })).unwrap()).unwrap()
    }

    #[test]
    fn a_disclosure_has_the_row_and_its_earlier_values_and_none_of_others() {
        for sealer in [Sealer::none(), Sealer::with_keys(&[[5; 32]])] {
            let store = ErasureStore::ready(sealer);
            store.push(0..3);
            store.push_columns(vec![
                ("customer".into(), vec![json!(1)]),
                ("note".into(), vec![json!("moved to Al Ain")]),
            ]);
            let found = disclosed(&store, 1);
            let [view] = found["feature_views"].as_array().unwrap().as_slice() else { panic!("{found}") };
            assert_eq!(view["rows"][0]["features"], json!({ "note": "moved to Al Ain" }));
            assert_eq!((&view["rows"][0]["join_keys"], &view["name"]), (&json!({ "customer": 1 }), &json!("profile")));
            let journal: Vec<_> =
                view["journal"].as_array().unwrap().iter().map(|row| &row["features"]["note"]).collect();
            assert_eq!(journal, ["note of 1", "moved to Al Ain"]);
            assert!(!found.to_string().contains("note of 2"));

            let absent = disclosed(&store, 99);
            assert_eq!(absent["feature_views"][0]["rows"], json!([]));
            store.erase(&json!({ "customer": 1 })).unwrap();
            let gone = disclosed(&store, 1);
            assert_eq!(
                (&gone["feature_views"][0]["rows"], &gone["feature_views"][0]["journal"]),
                (&json!([]), &json!([]))
            );
            store.close();
        }
    }

    #[test]
    fn a_disclosure_of_an_entity_that_no_view_has_is_refused() {
        let store = ErasureStore::ready(Sealer::none());
        for wrong in [json!({}), json!({ "machine": 1 }), json!({ "customer": [1] })] {
            assert!(store.disclose(&wrong).is_err(), "{wrong}");
        }
        store.close();
    }
}
