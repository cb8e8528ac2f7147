//! Checks a push against its views, and makes its rows for the writer.

use std::sync::Arc;

use bytes::Bytes;
use ledge_service::audit_event::tag::TagKey;
use ledge_service::off_thread::blocking;

use super::caller::TouchedRows;
use super::key::{HashKey, IndexKey};
use super::online::{FeatureError, FeaturePush};
use super::record::FeatureRow;
use super::view::FeatureView;
use super::{online, record, typed, window};

/// The most bytes of a row in a view with aggregates, which take the rest of the record.
const WINDOWED_ROW_BYTES_MAX: usize = 4 << 10;

/// The most bytes of rows in one push, as the journal keeps them.
pub(super) const PUSH_BYTES_MAX: usize = 24 << 20;

/// The most values of a call that is prepared on an async thread: each takes some 100 ns.
pub(super) const ASYNC_CELLS_MAX: usize = 1000;

/// A push that passed all checks.
#[derive(Debug)]
pub struct CheckedPush {
    /// Its target views.
    pub views: Vec<Arc<FeatureView>>,
    /// The columns that no target view has.
    pub unknown: Vec<String>,
    rows: Vec<(Arc<FeatureView>, FeatureRow, Bytes)>,
}

impl CheckedPush {
    /// Its rows for the writer.
    pub fn into_rows(self, hash_key: &HashKey) -> Vec<IncomingRow> {
        let incoming = |(view, row, bytes): (Arc<FeatureView>, FeatureRow, Bytes)| {
            let key = hash_key.index_key(view.id, &row.entity);
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
pub fn check(
    views: Vec<Arc<FeatureView>>,
    push: &FeaturePush,
    times: EventTimeLimits,
) -> Result<CheckedPush, FeatureError> {
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

/// One row to be written.
#[derive(Debug)]
pub struct IncomingRow {
    pub view: Arc<FeatureView>,
    pub key: IndexKey,
    pub row: FeatureRow,
    /// The row as the journal keeps it.
    pub bytes: Bytes,
}

/// Prepares a push, on another thread when it is large.
pub async fn prepare<T: Send + 'static>(push: FeaturePush, work: impl FnOnce(&FeaturePush) -> T + Send + 'static) -> T {
    if cells(&push.columns) <= ASYNC_CELLS_MAX { work(&push) } else { blocking(move || work(&push)).await }
}

/// The number of values in all columns.
pub(super) fn cells(columns: &online::FrameColumns) -> usize {
    columns.iter().map(|(_, cells)| cells.len()).sum()
}
