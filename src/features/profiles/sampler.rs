//! The rows that are judged: the writer thread takes at most one of an entity in an interval.

use std::collections::HashMap;
use std::sync::Arc;

use crate::key::IndexKey;
use crate::record::FeatureRecord;
use crate::value::Value;
use crate::view::{FeaturePosition, FeatureView, WatchedFeatures};
use crate::window::WindowState;

/// The most rows that wait to be judged. Each has some 300 bytes.
pub const SAMPLED_ROWS_MAX: usize = 2048;

/// The most entities whose last time is remembered, 40 bytes each. Beyond, the profiles themselves refuse rows that come
/// too early.
const ENTITIES_MAX: usize = 65_536;

/// A row to be judged, with its aggregates at its own time.
#[derive(Debug, Clone)]
pub struct SampledRow {
    /// Its entry in the journal.
    pub seq: u64,
    pub view: Arc<FeatureView>,
    pub key: IndexKey,
    pub entity: Vec<Value>,
    pub event_us: i64,
    /// The values of the watched features, in order.
    pub values: Vec<Option<f64>>,
}

/// Takes rows that are due.
#[derive(Debug, Default)]
pub struct RowSampler {
    last_us: HashMap<IndexKey, i64>,
    rows: Vec<SampledRow>,
}

impl RowSampler {
    /// True when the newest row of an entity is to be judged.
    pub fn is_due(&self, view: &FeatureView, key: &IndexKey, event_us: i64) -> bool {
        let Some(watched) = &view.unusual else { return false };
        self.rows.len() < SAMPLED_ROWS_MAX
            && self.last_us.get(key).is_none_or(|last_us| is_due(watched, *last_us, event_us))
    }

    /// Takes the record of a row that is due.
    pub fn take(&mut self, view: &Arc<FeatureView>, key: IndexKey, record: FeatureRecord) {
        let Some(watched) = &view.unusual else { return };
        if self.last_us.len() >= ENTITIES_MAX && !self.last_us.contains_key(&key) {
            self.last_us.clear();
        }
        self.last_us.insert(key, record.row.event_us);
        let values = values(view, watched, &record);
        let FeatureRecord { seq, row, .. } = record;
        let (entity, event_us) = (row.entity, row.event_us);
        self.rows.push(SampledRow { seq, view: view.clone(), key, entity, event_us, values });
    }

    /// The rows that were taken since the last call.
    pub fn drain(&mut self) -> Vec<SampledRow> {
        std::mem::take(&mut self.rows)
    }

    /// Forgets erased entities.
    pub fn forget(&mut self, keys: &[IndexKey]) {
        for key in keys {
            self.last_us.remove(key);
        }
    }
}

/// True for a row that comes an interval after the last one, less a quarter for the jitter of devices. A row that is
/// the newest although its time is earlier replaces one from a clock that was ahead.
pub fn is_due(watched: &WatchedFeatures, last_us: i64, event_us: i64) -> bool {
    let shortest_us = watched.interval_us() / 4 * 3;
    event_us < last_us || event_us.saturating_sub(last_us) >= shortest_us
}

fn values(view: &FeatureView, watched: &WatchedFeatures, record: &FeatureRecord) -> Vec<Option<f64>> {
    let has_aggregates = watched.features.iter().any(|position| matches!(position, FeaturePosition::Aggregation(_)));
    // A damaged state is found by the next read, and gives no values here.
    let windows = Some(&record.windows).filter(|windows| has_aggregates && !windows.is_empty());
    let windows = windows.and_then(|windows| WindowState::decode(windows).ok()).unwrap_or_default();
    let value = |position: &FeaturePosition| match *position {
        FeaturePosition::Field(at) => number(record.row.value(view.fields.get(at)?.id)?),
        FeaturePosition::Aggregation(at) => number(&windows.evaluate(view, at, record.row.event_us)?),
    };
    watched.features.iter().map(value).collect()
}

#[expect(clippy::cast_precision_loss, reason = "detectors take values of 53 bits")]
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Int32(number) => Some(f64::from(*number)),
        Value::Int64(number) => Some(*number as f64),
        Value::Float32(number) => Some(f64::from(*number)),
        Value::Float64(number) => Some(*number),
        _ => None,
    }
}
