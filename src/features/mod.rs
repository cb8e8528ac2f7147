//! The online feature store: what models need to know and callers do not send, kept on the box, in Feast's words.
//!
//! What is acknowledged is in the journal, fsynced. The index answers reads, and can be rebuilt from snapshot and journal
//! at any time.

pub mod catalog;
pub mod config;
pub mod fuzz;
mod key;
mod merge;
pub mod online;
mod record;
pub mod registry;
mod typed;
pub mod value;
pub mod view;
pub mod window;
mod wire;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock;
use key::{HashKey, IndexKey};
use merge::Merged;
use online::{Cell, FeatureColumn, FeatureError, FieldStatus, OnlineFeatures, OnlineRequest, Push, PushTarget, Pushed};
use record::Record;
use registry::Registry;
use view::{Feature, FeatureIndex};
use window::WindowState;

/// A handle to the feature store. Clones share it.
#[derive(Debug, Clone)]
pub struct FeatureStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    registry: Arc<Registry>,
    folder: Arc<str>,
    hash_key: HashKey,
    rows: Mutex<HashMap<IndexKey, Vec<u8>>>,
}

impl FeatureStore {
    /// A store of what `registry` declares.
    pub fn new(registry: Registry, views: &Path) -> Self {
        let folder = views.display().to_string().into();
        let hash_key = HashKey::new([7; 32]);
        Self { shared: Arc::new(Shared { registry: registry.into(), folder, hash_key, rows: Mutex::default() }) }
    }

    /// None: every call is told that nothing is declared in `views`.
    pub fn none(views: &Path) -> Self {
        Self::new(Registry::default(), views)
    }

    /// What is declared.
    pub fn registry(&self) -> Arc<Registry> {
        self.shared.registry.clone()
    }

    /// What is declared, when anything is.
    fn declared(&self) -> Result<Arc<Registry>, FeatureError> {
        let registry = self.registry();
        if registry.is_empty() {
            Err(FeatureError::Disabled { folder: self.shared.folder.clone() })
        } else {
            Ok(registry)
        }
    }

    /// Reads features of entities. Every feature has a cell for every entity, with a status.
    pub async fn get_online_features(&self, request: OnlineRequest) -> Result<OnlineFeatures, FeatureError> {
        let registry = self.declared()?;
        let features = registry.select(&request.selection)?;
        let now_us = clock::unix_micros();
        let mut views: Vec<&Arc<view::FeatureView>> = Vec::new();
        for feature in &features {
            if !views.iter().any(|view| view.id == feature.view.id) {
                views.push(&feature.view);
            }
        }
        let mut records = HashMap::new();
        for view in &views {
            let entities = typed::entities(view, &request.entities)?;
            let found: Result<Vec<_>, FeatureError> =
                entities.iter().map(|entity| self.get(self.shared.hash_key.index_key(view.id, entity))).collect();
            records.insert(view.id, found?);
        }
        let is_key = |name: &str| views.iter().any(|view| view.join_keys.iter().any(|key| &*key.name == name));
        let join_keys = request.entities.iter().filter(|(name, _)| is_key(name)).cloned().collect();
        let columns = features
            .into_iter()
            .map(|feature| {
                let rows = records.get(&feature.view.id).map_or(&[][..], Vec::as_slice);
                let cells = rows.iter().map(|record| cell(&feature, record.as_ref(), now_us)).collect();
                FeatureColumn { feature, cells }
            })
            .collect();
        Ok(OnlineFeatures { join_keys, columns })
    }

    /// Writes rows. When this returns `Ok`, every row survives a power cut; otherwise none is there.
    #[expect(clippy::unused_async, reason = "in memory for now")]
    pub async fn push(&self, push: Push) -> Result<Pushed, FeatureError> {
        let registry = self.declared()?;
        let views = match &push.target {
            PushTarget::Source(name) => registry.source(name)?,
            PushTarget::View(name) => vec![registry.view(name)?.clone()],
        };
        let now_us = clock::unix_micros();
        let mut pushed = Pushed::default();
        for view in views {
            for row in typed::rows(&view, &push.columns, now_us, i64::MAX)? {
                let key = self.shared.hash_key.of_row(view.id, &row);
                let old = self.get(key)?;
                let seq = old.as_ref().map_or(1, |old| old.seq + 1);
                let (record, merged) = merge::merge(&view, old.as_ref(), &row, seq, 0)
                    .map_err(|error| FeatureError::NotWritten { reason: error.to_string() })?;
                match merged {
                    Merged::Accepted => pushed.accepted += 1,
                    Merged::Outdated => pushed.outdated += 1,
                    Merged::Duplicate => pushed.duplicate += 1,
                    Merged::TooLate => pushed.too_late += 1,
                }
                if let Some(record) = record {
                    let mut rows = self.shared.rows.lock().unwrap_or_else(PoisonError::into_inner);
                    rows.insert(key, record.encode(&key));
                }
            }
        }
        Ok(pushed)
    }

    fn get(&self, key: IndexKey) -> Result<Option<Record>, FeatureError> {
        let rows = self.shared.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let record = rows.get(&key).map(|bytes| Record::decode(&key, bytes)).transpose();
        record.map_err(|error| FeatureError::Unavailable { reason: error.to_string() })
    }
}

/// One feature out of a record.
fn cell(feature: &Feature, record: Option<&Record>, now_us: i64) -> Cell {
    let Some(record) = record else { return Cell { value: None, status: FieldStatus::NotFound, event_us: 0 } };
    let event_us = record.row.event_us;
    let expired = feature.view.ttl_us().is_some_and(|ttl| event_us.saturating_add(ttl) < now_us);
    let value = match feature.index {
        _ if expired => return Cell { value: None, status: FieldStatus::OutsideMaxAge, event_us },
        FeatureIndex::Field(at) => feature.view.fields.get(at).and_then(|field| record.row.value(field.id)).cloned(),
        FeatureIndex::Aggregation(at) => {
            WindowState::decode(&record.windows).ok().and_then(|state| state.evaluate(&feature.view, at, now_us))
        }
    };
    let status = if value.is_some() { FieldStatus::Present } else { FieldStatus::NullValue };
    Cell { value, status, event_us }
}
