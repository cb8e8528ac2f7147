//! A push as the writer takes it.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use ledge_base::clock;
use ledge_service::audit_event::tag::TagKey;
use ledge_service::off_thread::blocking;

use super::caller::Touched;
use super::engine::Engine;
use super::engine::orders::Incoming;
use super::online::{FeatureError, Ignored, Push};
use super::record::Row;
use super::view::FeatureView;
use super::{BRIEF_CELLS, FeatureStore, MAX_PUSH, cells, record, typed, window};

/// The most bytes of a row in a view with aggregates; they take the rest of the record.
const MAX_ROW_BESIDE_WINDOWS: usize = 4 << 10;

/// A push that fits its views.
#[derive(Debug)]
pub struct Checked {
    /// The views that it is for.
    pub views: Vec<Arc<FeatureView>>,
    /// The columns that none of them has.
    pub unknown: Vec<String>,
    rows: Vec<(Arc<FeatureView>, Row, Bytes)>,
}

impl Checked {
    /// Its rows, as the writer takes them.
    pub fn into_rows(self, engine: &Engine) -> Vec<Incoming> {
        let incoming = |(view, row, bytes): (Arc<FeatureView>, Row, Bytes)| {
            let key = engine.hash_key.index_key(view.id, &row.entity);
            Incoming { view, key, row, bytes }
        };
        self.rows.into_iter().map(incoming).collect()
    }

    /// Its entities, by view.
    pub fn touched(&self, key: Option<&TagKey>) -> Vec<Touched> {
        let touched = |view: &Arc<FeatureView>| {
            let rows = self.rows.iter().filter(|(of, ..)| of.id == view.id);
            Touched::new(key, view, rows.map(|(_, row, _)| row.entity.as_slice()))
        };
        self.views.iter().map(touched).collect()
    }

    /// How many of its rows happened then.
    pub fn rows_at(&self, event_us: i64) -> usize {
        self.rows.iter().filter(|(_, row, _)| row.event_us == event_us).count()
    }
}

/// The clock's part in a push.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// When a row without an event time happened.
    pub stamp_us: i64,
    /// The latest event time that is taken.
    pub latest_us: i64,
    /// Whether a row without an event time gets a later one than the clock's, as that is behind.
    pub is_ahead: bool,
}

/// Checks a push by the views that it is for. A trial of a push asks the same function.
pub fn check(views: Vec<Arc<FeatureView>>, push: &Push, times: Times) -> Result<Checked, FeatureError> {
    let unknown = typed::unknown(&views, &push.columns);
    let (mut checked, mut total) = (Vec::new(), 0);
    for view in &views {
        let most = if view.aggregations.is_empty() { record::MAX_ROW } else { MAX_ROW_BESIDE_WINDOWS };
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
            if total > MAX_PUSH {
                let reason = format!("a push has at most {} MiB of rows: send several", MAX_PUSH >> 20);
                return Err(FeatureError::Columns { reason });
            }
            if let Some(problem) = window::value_problem(view, &row.values) {
                return Err(FeatureError::Columns { reason: format!("row {at}: {problem}") });
            }
            checked.push((view.clone(), row, bytes));
        }
    }
    // After the columns that are required, whose absence says more.
    typed::require_feature(&views, &push.columns, &unknown)?;
    Ok(Checked { views, unknown, rows: checked })
}

/// Does the work on a push that comes before its rows are written, for a large push on another thread.
pub async fn prepared<T: Send + 'static>(push: Push, work: impl FnOnce(&Push) -> T + Send + 'static) -> T {
    if cells(&push.columns) <= BRIEF_CELLS { work(&push) } else { blocking(move || work(&push)).await }
}

impl FeatureStore {
    /// Does all that [`Self::push`] does before it writes. Gives the columns that would be ignored.
    pub async fn check(&self, push: Push) -> Result<Vec<String>, FeatureError> {
        let registry = self.registry();
        if registry.is_empty() {
            return Err(FeatureError::Disabled { folder: self.shared.folder.clone() });
        }
        let now_us = clock::unix_micros();
        let taken_until = |engine: &Arc<Engine>| engine.taken_until(now_us);
        let latest_us = self.engine().map_or_else(|_| self.shared.config.taken_until(now_us), taken_until);
        let times = Times { stamp_us: now_us, latest_us, is_ahead: false };
        let check =
            move |push: &Push| check(registry.targets(&push.target)?, push, times).map(|checked| checked.unknown);
        prepared(push, check).await
    }

    /// Counts the columns that were pushed to `views` and ignored, and logs them, at most once a minute for each view. The log
    /// has no names: those of a table that was turned on its side are keys of entities.
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
        let complaints = || self.shared.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(suppressed) = complaints().take((kind, first.id.0), Instant::now()) else { return };
        let view = &*first.name;
        match ignored {
            Ignored::Columns(columns) => tracing::warn!(
                feature_view = view,
                columns,
                suppressed,
                "columns of a push are ignored, since the feature view has none of that name"
            ),
            Ignored::Fields(fields) => tracing::info!(
                feature_view = view,
                fields,
                suppressed,
                "fields of a message are no columns of the feature view; ledge mqtt try names them"
            ),
        }
    }
}
