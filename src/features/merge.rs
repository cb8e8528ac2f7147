//! Merges a pushed row into an entity's record. Pure: the same rows in the same order make the same record, so that the
//! journal can be replayed, and replaying entries that are in the record already changes nothing.

use std::time::Duration;

use super::record::{FeatureRecord, FeatureRow, RecordHeader};
use super::view::FeatureView;
use super::window::{DamagedWindow, WindowAddOutcome, WindowState};

/// The outcome of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeOutcome {
    /// It is the newest of its entity, or entered its aggregates.
    Accepted,
    /// It is older than the newest row of the entity.
    Outdated,
    /// It had entered the aggregates before.
    Duplicate,
    /// It is too late for the aggregates.
    TooLate,
}

/// Merges the row of journal entry `seq` into the record. `None` leaves the record unchanged.
///
/// Of two rows the one with the later event time counts; of two with the same time the one that was pushed later. An
/// older row still enters the aggregates, within the view's lateness, and the record then has its entry as well. A row
/// that the aggregates refuse does not become the newest row either: it is a duplicate, or older than the newest one,
/// or of the same time after too many rows to detect duplicates.
///
/// `latest_us` is the latest event time that was trusted when the row was written. A record of a later time is from a
/// future that the clock left again: any row with a trusted time replaces it, and the parts of its aggregates from that
/// future are removed.
///
/// A record that has the entry already is not changed. Entries behind the last one that is in it were refused, and are
/// refused again for the same reasons when the journal is replayed. `keep_us` is how long a row is kept after its ttl
/// has passed.
pub fn merge(
    view: &FeatureView,
    old: Option<&FeatureRecord>,
    row: &FeatureRow,
    seq: u64,
    latest_us: i64,
    keep_us: i64,
) -> Result<(Option<FeatureRecord>, MergeOutcome), DamagedWindow> {
    let plain = supersede(old.map(FeatureRecord::header), row.event_us, seq, latest_us);
    if plain == MergeOutcome::Duplicate {
        return Ok((None, plain));
    }

    let older = old.filter(|old| is_older(row.event_us, old.row.event_us, latest_us));
    let mut windows = Vec::new();
    if view.aggregations.is_empty() {
        if plain == MergeOutcome::Outdated {
            return Ok((None, plain));
        }
    } else {
        let mut state = old.map_or_else(|| Ok(WindowState::default()), |old| WindowState::decode(&old.windows))?;
        if row.event_us <= latest_us {
            state.take_back(latest_us, row.event_us);
        }
        match state.add(view, row.event_us, &row.values) {
            WindowAddOutcome::New => state.encode(&mut windows),
            WindowAddOutcome::Duplicate => return Ok((None, MergeOutcome::Duplicate)),
            WindowAddOutcome::TooLate => return Ok((None, MergeOutcome::TooLate)),
        }
    }

    let newest = older.map_or(row, |old| &old.row).clone();
    let purge_us = purge_us(view, newest.event_us, keep_us);
    Ok((Some(FeatureRecord { seq, purge_us, row: newest, windows }), MergeOutcome::Accepted))
}

/// The outcome of a row of a view without aggregates; an accepted row replaces the record. The record's header is
/// enough to decide.
pub fn supersede(old: Option<RecordHeader>, event_us: i64, seq: u64, latest_us: i64) -> MergeOutcome {
    match old {
        Some(old) if old.seq >= seq => MergeOutcome::Duplicate,
        Some(old) if is_older(event_us, old.event_us, latest_us) => MergeOutcome::Outdated,
        _ => MergeOutcome::Accepted,
    }
}

/// True when a row is older than the current one, as far as both times are trusted.
pub fn is_older(event_us: i64, old_us: i64, latest_us: i64) -> bool {
    event_us < old_us && (old_us <= latest_us || event_us > latest_us)
}

/// The time from which a row may be removed. Its aggregates are empty by then: a window with its event ends within
/// twice its length.
pub fn purge_us(view: &FeatureView, event_us: i64, keep_us: i64) -> i64 {
    let Some(ttl_us) = view.ttl_us() else { return i64::MAX };
    let longest = view.aggregations.iter().map(|aggregation| aggregation.time_window).max();
    let windows = longest.map_or(Duration::ZERO, |longest| longest.saturating_mul(2).saturating_add(view.lateness));
    let windows_us = i64::try_from(windows.as_micros()).unwrap_or(i64::MAX);
    event_us.saturating_add(ttl_us.max(windows_us)).saturating_add(keep_us)
}

#[cfg(test)]
mod tests;
