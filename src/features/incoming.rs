//! A push as the writer takes it.

use std::sync::Arc;

use bytes::Bytes;

use super::engine::Engine;
use super::engine::orders::Incoming;
use super::online::{FeatureError, Push, PushTarget};
use super::registry::Registry;
use super::view::FeatureView;
use super::{MAX_PUSH, record, typed, window};
use crate::clock;

/// Event times are held against this box's clock only when that was set: before 2026 it was not.
const CLOCK_IS_SET_US: i64 = 1_767_225_600_000_000;

/// The most bytes of a row in a view with aggregates; they take the rest of the record.
const MAX_ROW_BESIDE_WINDOWS: usize = 4 << 10;

/// The views that a push is for.
fn targets(registry: &Registry, push: &Push) -> Result<Vec<Arc<FeatureView>>, FeatureError> {
    match &push.target {
        PushTarget::Source(name) => registry.source(name),
        PushTarget::View(name) => Ok(vec![registry.view(name)?.clone()]),
    }
}

/// The rows of a push, as the writer takes them.
pub fn rows(engine: &Engine, push: &Push) -> Result<Vec<Incoming>, FeatureError> {
    let now_us = clock::unix_micros();
    let ahead = i64::try_from(engine.config.max_ahead_s).unwrap_or(i64::MAX).saturating_mul(1_000_000);
    let latest_us = if now_us < CLOCK_IS_SET_US { i64::MAX } else { now_us.saturating_add(ahead) };
    let (mut incoming, mut total) = (Vec::new(), 0);
    for view in targets(&engine.registry.load(), push)? {
        let most = if view.aggregations.is_empty() { record::MAX_ROW } else { MAX_ROW_BESIDE_WINDOWS };
        for (at, row) in typed::rows(&view, &push.columns, now_us, latest_us)?.into_iter().enumerate() {
            let bytes = Bytes::from(row.encode());
            if bytes.len() > most {
                let view = view.name.to_string();
                return Err(FeatureError::TooLarge { view, row: at, bytes: bytes.len(), most });
            }
            total += bytes.len();
            if total > MAX_PUSH {
                let reason = format!("a push has at most {} MiB of rows: send several", MAX_PUSH >> 20);
                return Err(FeatureError::Columns { reason });
            }
            if let Some(problem) = window::value_problem(&view, &row.values) {
                return Err(FeatureError::Columns { reason: format!("row {at}: {problem}") });
            }
            let key = engine.hash_key.index_key(view.id, &row.entity);
            incoming.push(Incoming { view: view.clone(), key, row, bytes });
        }
    }
    Ok(incoming)
}
