//! Reads: from names to records to cells.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use ledge_base::clock;
use ledge_service::audit_event::feature::FeatureAction;

use super::caller::{FeatureCaller, TouchedRows};
use super::engine::{StoreEngine, StoreState};
use super::index::{EntityIndex, IndexError};
use super::key::IndexKey;
use super::online::{
    FeatureCell, FeatureCells, FeatureError, FieldStatus, FrameColumns, OnlineFeatures, OnlineFeaturesRequest,
};
use super::record::{DamagedBytes, FeatureRecord};
use super::statistics::{FieldStatusCounts, StoreCounters};

use super::typed;
use super::value::Value;
use super::view::{Feature, FeaturePosition, FeatureView};
use super::window::WindowState;

/// The longest expected time of a read that runs on the caller's thread, in nanoseconds. Waking another thread and
/// being woken by it costs more than that on a busy machine.
const BRIEF_READ_MAX_NS: u64 = 100_000;

/// The least time that is expected for one record, in nanoseconds: the last reads may have been unusually fast.
const GET_MIN_NS: u64 = 2_000;

/// The memory of an entity of a view that is read, in bytes, besides the values of its record.
const RECORD_BYTES: usize = size_of::<Option<EntityRecord>>() + size_of::<Vec<Value>>() + 2 * size_of::<Value>();

/// A read of features of entities.
#[derive(Debug)]
struct ReadRequest {
    entities: FrameColumns,
    /// The number of entities.
    count: usize,
    features: Vec<Feature>,
    views: Vec<Arc<FeatureView>>,
    caller: FeatureCaller,
}

/// A read that is prepared as far as possible without the index.
#[derive(Debug)]
pub struct FeatureReadPlan {
    wanted: ReadRequest,
    views: Vec<ViewRows>,
}

/// A read of many entities, one slice at a time.
#[derive(Debug)]
pub struct LongFeatureRead {
    engine: Arc<StoreEngine>,
    wanted: ReadRequest,
    /// The first entity that was not read yet.
    next: usize,
}

/// The entities to read from one view, and their index keys.
#[derive(Debug)]
struct ViewRows {
    view: Arc<FeatureView>,
    entities: Vec<Vec<Value>>,
    keys: Vec<IndexKey>,
}

/// The record of an entity, decoded as far as the read needs.
struct EntityRecord {
    record: FeatureRecord,
    windows: Option<WindowState>,
    expired: bool,
    /// Its memory, and that of the values that are copied out of it.
    bytes: usize,
}

impl ReadRequest {
    fn new(engine: &StoreEngine, request: OnlineFeaturesRequest, caller: FeatureCaller) -> Result<Self, FeatureError> {
        let features = engine.registry.load().select(&request.selection)?;
        let mut views: Vec<Arc<FeatureView>> = Vec::new();
        for feature in &features {
            if !views.iter().any(|view| view.id == feature.view.id) {
                views.push(feature.view.clone());
            }
        }
        caller.admit(views.iter(), &engine.audit)?;
        let count = typed::length(&request.entities)?;
        Ok(Self { entities: request.entities, count, features, views, caller })
    }

    /// The index keys of the entities of `range`, for each view.
    fn rows(&self, engine: &StoreEngine, range: &Range<usize>) -> Result<Vec<ViewRows>, FeatureError> {
        let rows = |view: &Arc<FeatureView>| {
            let entities = typed::entities(view, &self.entities, range.clone())?;
            let keys = entities.iter().map(|entity| engine.hash_key.index_key(view.id, entity)).collect();
            Ok(ViewRows { view: view.clone(), entities, keys })
        };
        self.views.iter().map(rows).collect()
    }

    /// Reads, and writes the audit record. The first slice of a call is recorded as a call, the others only as rows.
    fn cells(&self, engine: &StoreEngine, views: &[ViewRows], is_first: bool) -> Result<FeatureCells, FeatureError> {
        let state = engine.state.load();
        let StoreState::Ready(index) = &**state else {
            return Err(FeatureError::Unavailable { reason: state.reason() });
        };

        let now_us = clock::unix_micros();
        let believed = now_us..=engine.trusted_until(now_us);
        let started = Instant::now();
        let mut records = Vec::with_capacity(views.len());
        let entities = views.first().map_or(0, |rows| rows.keys.len());
        // Records may have many more bytes than cells, and are counted as they are read.
        let mut bytes = entities * (self.features.len() * size_of::<FeatureCell>() + views.len() * RECORD_BYTES);
        let mut memory = self.caller.account.take(bytes).map_err(FeatureError::NoRoom)?;

        for rows in views {
            let wants_windows = self.features.iter().any(|feature| {
                feature.view.id == rows.view.id && matches!(feature.index, FeaturePosition::Aggregation(_))
            });
            let mut found = Vec::with_capacity(rows.keys.len());
            for (key, entity) in rows.keys.iter().zip(&rows.entities) {
                let record = find(engine, index, key, entity, &rows.view, wants_windows, &believed);
                let record = record.map_err(|error| {
                    engine.give_up(index, &error);
                    FeatureError::Unavailable { reason: error.to_string() }
                })?;
                bytes += record.as_ref().map_or(0, |record| record.bytes);
                memory.cover(bytes).map_err(FeatureError::NoRoom)?;
                found.push(record);
            }
            records.push(found);
        }

        let keys: usize = views.iter().map(|rows| rows.keys.len()).sum();
        engine.counters.timed(keys, started.elapsed());

        let tag_key = engine.audit.tag_key();
        let touched =
            |rows: &ViewRows| TouchedRows::new(tag_key.as_deref(), &rows.view, rows.entities.iter().map(Vec::as_slice));
        let touched: Vec<_> = views.iter().map(touched).collect();
        self.caller.record(FeatureAction::Read, u64::from(is_first), &touched, &engine.audit);

        let mut counts = FieldStatusCounts::default();
        let mut cells = Vec::with_capacity(self.features.len() * entities);
        for feature in &self.features {
            let at = views.iter().position(|rows| rows.view.id == feature.view.id);
            let found = at.and_then(|at| records.get(at)).map_or(&[][..], Vec::as_slice);
            cells.extend(found.iter().map(|found| {
                let cell = cell(feature, found.as_ref(), now_us);
                counts.add(cell.status);
                cell
            }));
        }
        engine.counters.count_cells(&counts);
        FeatureCells::new(entities, cells).counted(memory).map_err(FeatureError::NoRoom)
    }

    /// The columns of the request that any view needs.
    fn join_keys(&self) -> impl Iterator<Item = &(String, Vec<serde_json::Value>)> {
        self.entities.iter().filter(|(name, _)| is_join_key(&self.views, name))
    }
}

fn is_join_key(views: &[Arc<FeatureView>], name: &str) -> bool {
    views.iter().any(|view| view.has_join_key(name))
}

impl LongFeatureRead {
    /// Resolves the names of a request.
    pub(super) fn new(
        engine: &Arc<StoreEngine>,
        request: OnlineFeaturesRequest,
        caller: FeatureCaller,
    ) -> Result<Self, FeatureError> {
        let wanted = ReadRequest::new(engine, request, caller)?;
        // Report missing columns before anything is read.
        wanted.rows(engine, &(0..0))?;
        StoreCounters::count(&engine.counters.reads);
        Ok(Self { engine: engine.clone(), wanted, next: 0 })
    }

    /// The requested features.
    pub fn features(&self) -> &[Feature] {
        &self.wanted.features
    }

    /// The number of entities.
    pub fn count(&self) -> usize {
        self.wanted.count
    }

    /// The join keys as they were given, those that any of the features needs.
    pub fn join_keys(&self) -> impl Iterator<Item = &(String, Vec<serde_json::Value>)> {
        self.wanted.join_keys()
    }

    /// Reads the features of the next entities, about as many as give `cells` cells; `None` after the last one.
    pub fn next(&mut self, cells: usize) -> Result<Option<FeatureCells>, FeatureError> {
        let ReadRequest { count, features, .. } = &self.wanted;
        if self.next == *count {
            return Ok(None);
        }
        let entities = (cells / features.len().max(1)).max(1);
        let range = self.next..self.next.saturating_add(entities).min(*count);
        let rows = self.wanted.rows(&self.engine, &range)?;
        let found = self.wanted.cells(&self.engine, &rows, self.next == 0)?;
        self.next = range.end;
        Ok(Some(found))
    }
}

impl FeatureReadPlan {
    /// Resolves the names of a request.
    pub fn new(
        engine: &StoreEngine,
        request: OnlineFeaturesRequest,
        caller: FeatureCaller,
    ) -> Result<Self, FeatureError> {
        let wanted = ReadRequest::new(engine, request, caller)?;
        let views = wanted.rows(engine, &(0..wanted.count))?;
        Ok(Self { wanted, views })
    }

    /// True when the read takes no longer than waking another thread.
    pub fn is_inline(&self, engine: &StoreEngine) -> bool {
        // sled has one lock for all its stores, and syncing one of them holds it.
        if engine.is_syncing.load(Relaxed) {
            return false;
        }
        let keys: usize = self.views.iter().map(|rows| rows.keys.len()).sum();
        (keys as u64).saturating_mul(engine.counters.usual_get_ns.load(Relaxed).max(GET_MIN_NS)) <= BRIEF_READ_MAX_NS
    }

    pub fn answer(self, engine: &StoreEngine) -> Result<OnlineFeatures, FeatureError> {
        let cells = self.wanted.cells(engine, &self.views, true)?;
        StoreCounters::count(&engine.counters.reads);
        let ReadRequest { entities: mut join_keys, features, views, .. } = self.wanted;
        join_keys.retain(|(name, _)| is_join_key(&views, name));
        Ok(OnlineFeatures { join_keys, features, cells })
    }
}

fn find(
    engine: &StoreEngine,
    index: &EntityIndex,
    key: &IndexKey,
    entity: &[Value],
    view: &FeatureView,
    wants_windows: bool,
    believed: &RangeInclusive<i64>,
) -> Result<Option<EntityRecord>, IndexError> {
    let Some(bytes) = index.get(key)? else { return Ok(None) };
    let damaged = |error: &dyn std::fmt::Display| IndexError::damaged(format!("a record cannot be used: {error}"));
    let record = match engine.protection.record(key, &bytes) {
        Ok(record) => record,
        Err(DamagedBytes::Erased) => return Ok(None),
        Err(error) if error.is_undecryptable() => {
            engine.leave_out(error);
            return Ok(None);
        }
        Err(error) => return Err(damaged(&error)),
    };

    // Two entities with the same hash were never seen, but would give a caller the values of somebody else.
    if record.row.entity != entity {
        return Ok(None);
    }

    let windows = if wants_windows && !record.windows.is_empty() {
        Some(WindowState::decode(&record.windows).map_err(|error| damaged(&error))?)
    } else {
        None
    };

    // The age of a row from a future that the clock left again is unknown.
    let event_us = record.row.event_us;
    let expired =
        view.ttl_us().is_some_and(|ttl| event_us.saturating_add(ttl) < *believed.start() || event_us > *believed.end());
    Ok(Some(EntityRecord { record, windows, expired, bytes: 3 * bytes.len() }))
}

/// One feature of one entity.
fn cell(feature: &Feature, found: Option<&EntityRecord>, now_us: i64) -> FeatureCell {
    let Some(found) = found else { return FeatureCell { value: None, status: FieldStatus::NotFound, event_us: 0 } };
    let event_us = found.record.row.event_us;
    if found.expired {
        return FeatureCell { value: None, status: FieldStatus::OutsideMaxAge, event_us };
    }
    let value = match feature.index {
        FeaturePosition::Field(at) => {
            feature.view.fields.get(at).and_then(|field| found.record.row.value(field.id)).cloned()
        }
        // A record from before the view had aggregates has none: no event has entered them.
        FeaturePosition::Aggregation(at) => match &found.windows {
            Some(windows) => windows.evaluate(&feature.view, at, now_us),
            None => WindowState::default().evaluate(&feature.view, at, now_us),
        },
    };
    let status = if value.is_some() { FieldStatus::Present } else { FieldStatus::NullValue };
    FeatureCell { value, status, event_us }
}
