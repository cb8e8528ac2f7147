//! What a pushed row makes of an entity's record. Pure: the same rows in the same order make the same record, so that the
//! journal can be replayed, and replaying what is in the record already changes nothing.

use super::record::{Record, Row};
use super::view::FeatureView;
use super::window::{Added, Damaged, WindowState};

/// What came of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merged {
    /// It is the newest of its entity, or entered its aggregates.
    Accepted,
    /// It is older than what the entity had.
    Outdated,
    /// It had entered the aggregates before.
    Duplicate,
    /// It is too late for the aggregates.
    TooLate,
}

/// Merges the row of journal entry `seq` into what there was. `None` leaves the record as it is.
///
/// Of two rows the one with the later event counts; of two for the same moment the one that was pushed later. A record
/// that has the entry in it already is left alone. `keep_us` is how long a row is kept after its ttl has passed.
pub fn merge(
    view: &FeatureView,
    old: Option<&Record>,
    row: &Row,
    seq: u64,
    keep_us: i64,
) -> Result<(Option<Record>, Merged), Damaged> {
    if old.is_some_and(|old| old.seq >= seq) {
        return Ok((None, Merged::Duplicate));
    }
    let newest = old.is_none_or(|old| row.event_us >= old.row.event_us);
    let (windows, merged) = if view.aggregations.is_empty() {
        (Vec::new(), if newest { Merged::Accepted } else { Merged::Outdated })
    } else {
        let mut state = old.map_or_else(|| Ok(WindowState::default()), |old| WindowState::decode(&old.windows))?;
        let merged = match state.add(view, row.event_us, &row.values) {
            Added::New => Merged::Accepted,
            Added::Duplicate => Merged::Duplicate,
            Added::TooLate => Merged::TooLate,
        };
        let mut bytes = Vec::new();
        state.encode(&mut bytes);
        (bytes, merged)
    };
    if merged != Merged::Accepted {
        return Ok((None, merged));
    }
    let row = match old {
        Some(old) if !newest => old.row.clone(),
        _ => row.clone(),
    };
    let purge_us = purge_us(view, row.event_us, keep_us);
    Ok((Some(Record { seq, purge_us, row, windows }), merged))
}

/// When a row may be removed. Its aggregates are over by then.
fn purge_us(view: &FeatureView, event_us: i64, keep_us: i64) -> i64 {
    let Some(ttl) = view.ttl_us() else { return i64::MAX };
    let windows = view.aggregations.iter().map(|aggregation| aggregation.time_window * 2 + view.lateness).max();
    let windows = windows.map_or(0, |longest| i64::try_from(longest.as_micros()).unwrap_or(i64::MAX));
    event_us.saturating_add(ttl.max(windows)).saturating_add(keep_us)
}
