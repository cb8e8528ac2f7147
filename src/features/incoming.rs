//! Checks a push against its views, and makes its rows for the writer.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use ledge_base::clock;
use ledge_service::audit_event::tag::TagKey;
use ledge_service::off_thread::blocking;

use super::caller::TouchedRows;
use super::engine::StoreEngine;
use super::engine::commands::IncomingRow;
use super::online::{FeatureError, Ignored, Push};
use super::record::Row;
use super::view::FeatureView;
use super::{ASYNC_CELLS_MAX, FeatureStore, PUSH_BYTES_MAX, cells, record, typed, window};

/// The most bytes of a row in a view with aggregates, which take the rest of the record.
const WINDOWED_ROW_BYTES_MAX: usize = 4 << 10;

/// A push that passed all checks.
#[derive(Debug)]
pub struct CheckedPush {
    /// Its target views.
    pub views: Vec<Arc<FeatureView>>,
    /// The columns that no target view has.
    pub unknown: Vec<String>,
    rows: Vec<(Arc<FeatureView>, Row, Bytes)>,
}

impl CheckedPush {
    /// Its rows for the writer.
    pub fn into_rows(self, engine: &StoreEngine) -> Vec<IncomingRow> {
        let incoming = |(view, row, bytes): (Arc<FeatureView>, Row, Bytes)| {
            let key = engine.hash_key.index_key(view.id, &row.entity);
            IncomingRow { view, key, row, bytes }
        };
        self.rows.into_iter().map(incoming).collect()
    }

    /// Its entities, by view.
    pub fn touched(&self, key: Option<&TagKey>) -> Vec<TouchedRows> {
        let touched = |view: &Arc<FeatureView>| {
            let rows = self.rows.iter().filter(|(of, ..)| of.id == view.id);
            TouchedRows::new(key, view, rows.map(|(_, row, _)| row.entity.as_slice()))
        };
        self.views.iter().map(touched).collect()
    }

    /// The number of its rows with this event time.
    pub fn rows_at(&self, event_us: i64) -> usize {
        self.rows.iter().filter(|(_, row, _)| row.event_us == event_us).count()
    }
}

/// The event time limits of a push.
#[derive(Debug, Clone, Copy)]
pub struct EventTimeLimits {
    /// The event time of a row without one.
    pub stamp_us: i64,
    /// The latest event time that is accepted.
    pub latest_us: i64,
    /// True when a row without an event time gets one ahead of the clock, because the clock is behind.
    pub is_ahead: bool,
}

/// Checks a push against its target views. A dry run uses the same function.
pub fn check(views: Vec<Arc<FeatureView>>, push: &Push, times: EventTimeLimits) -> Result<CheckedPush, FeatureError> {
    let unknown = typed::unknown(&views, &push.columns);
    let (mut checked, mut total) = (Vec::new(), 0);

    for view in &views {
        let most = if view.aggregations.is_empty() { record::ROW_BYTES_MAX } else { WINDOWED_ROW_BYTES_MAX };
        let rows = typed::rows(view, &push.columns, times.stamp_us, times.latest_us).map_err(|error| match error {
            FeatureError::MissingColumn { column, view, .. } => {
                FeatureError::MissingColumn { column, view, unknown: unknown.clone() }
            }
            error => error,
        })?;
        for (at, row) in rows.into_iter().enumerate() {
            let bytes = Bytes::from(row.encode());
            if bytes.len() > most {
                let view = view.name.to_string();
                return Err(FeatureError::TooLarge { view, row: at, bytes: bytes.len(), most });
            }
            total += bytes.len();
            if total > PUSH_BYTES_MAX {
                let reason =
                    format!("the rows of the push exceed {} MiB: send several smaller pushes", PUSH_BYTES_MAX >> 20);
                return Err(FeatureError::Columns { reason });
            }
            if let Some(problem) = window::value_problem(view, &row.values) {
                return Err(FeatureError::Columns { reason: format!("row {at}: {problem}") });
            }
            checked.push((view.clone(), row, bytes));
        }
    }

    // Last, since a missing required column gives a better message.
    typed::require_feature(&views, &push.columns, &unknown)?;
    Ok(CheckedPush { views, unknown, rows: checked })
}

/// Prepares a push, on another thread when it is large.
pub async fn prepare<T: Send + 'static>(push: Push, work: impl FnOnce(&Push) -> T + Send + 'static) -> T {
    if cells(&push.columns) <= ASYNC_CELLS_MAX { work(&push) } else { blocking(move || work(&push)).await }
}

impl FeatureStore {
    /// Does the checks of [`Self::push`] without writing. Returns the columns that would be ignored.
    pub async fn check(&self, push: Push) -> Result<Vec<String>, FeatureError> {
        let registry = self.registry();
        if registry.is_empty() {
            return Err(FeatureError::Disabled { folder: self.inner.folder.clone() });
        }
        let now_us = clock::unix_micros();
        let accepted_until = |engine: &Arc<StoreEngine>| engine.accepted_until(now_us);
        let latest_us = self.engine().map_or_else(|_| self.inner.config.accepted_until(now_us), accepted_until);
        let times = EventTimeLimits { stamp_us: now_us, latest_us, is_ahead: false };
        let check =
            move |push: &Push| check(registry.targets(&push.target)?, push, times).map(|checked| checked.unknown);
        prepare(push, check).await
    }

    /// Counts the ignored columns of a push to `views`, and logs them, at most once a minute for each view. The log has
    /// no names: in a transposed table they are entity keys.
    pub fn note_ignored(&self, views: &[Arc<FeatureView>], ignored: Ignored) {
        let (kind, count) = match ignored {
            Ignored::Columns(count) => ("ignored columns", count),
            Ignored::Fields(count) => ("ignored fields", count),
        };
        let (Ok(engine), Some(first), 1..) = (self.engine(), views.first(), count) else { return };

        engine.counters.with_views(|counted| {
            for view in views {
                counted.entry(view.id).or_default().ignored += count as u64;
            }
        });

        let complaints = || self.inner.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(suppressed) = complaints().take((kind, first.id.0), Instant::now()) else { return };

        let view = &*first.name;
        match ignored {
            Ignored::Columns(columns) => tracing::warn!(
                feature_view = view,
                columns,
                suppressed,
                "columns of a push are ignored: the feature view has no columns of these names"
            ),
            Ignored::Fields(fields) => tracing::info!(
                feature_view = view,
                fields,
                suppressed,
                "fields of a message are ignored: they are no columns of the feature view; `ledge mqtt try` lists them"
            ),
        }
    }
}
