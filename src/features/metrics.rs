//! The metrics of the feature store.

use std::fmt::Error;

use ledge_part::metrics::{family, gauge_value, label, single};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::statistics::{FeatureStatistics, ViewStatistics};

/// The states of a store.
const STORE_STATES: [&str; 5] = ["opening", "ready", "rebuilding", "restoring", "closed"];

/// The states of the encryption of a store.
const ENCRYPTION_STATES: [&str; 3] = ["off", "pending", "on"];

/// Writes the metrics of the feature store as of `now_s`.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, found: &FeatureStatistics, now_s: f64) -> Result<(), Error> {
    let states = STORE_STATES.map(|state| (label("state", state), ConstGauge::new(i64::from(state == found.state))));
    family(encoder, "feature_store_state", "1 for the state that the feature store is in, 0 for the others", states)?;
    of_views(encoder, &found.views)?;

    let mut counter = |name, help, value: u64| single(encoder, name, help, &ConstCounter::new(value));
    counter("feature_reads", "Reads of online features answered", found.reads)?;
    counter("feature_journal_writes", "Groups of pushes written to the journal, each with one fsync", found.groups)?;
    counter("feature_rows_purged", "Rows removed after their ttl", found.purged)?;
    counter("feature_index_rebuilds", "Times that the feature index was rebuilt", found.rebuilds)?;
    counter("feature_damage_found", "Places where files of the feature store were found damaged", found.damage_found)?;
    let help =
        "Acknowledged journal entries that neither journal nor index nor a snapshot had when the store was opened";
    counter("feature_entries_lost", help, found.entries_lost)?;
    let help = "Rows that replaced one with a later event time, from a future that the clock took back";
    counter("feature_future_rows_replaced", help, found.taken_back)?;

    let sealing =
        ENCRYPTION_STATES.map(|state| (label("state", state), ConstGauge::new(i64::from(state == found.sealing))));
    let help = "1 for how far the feature store is sealed: off, pending (what was there before is being sealed), on";
    family(encoder, "feature_store_encryption", help, sealing)?;
    single(encoder, "feature_entity_keys", "Keys of entities", &ConstGauge::new(gauge_value(found.keys)))?;

    let cells = found.cells.iter();
    let cells = cells.map(|(status, count)| (label("status", status.as_str()), ConstCounter::new(*count)));
    family(encoder, "feature_values_read", "Feature values answered, by status", cells)?;
    let refused = found.refused().map(|(reason, count)| (label("reason", reason), ConstCounter::new(count)));
    family(encoder, "feature_pushes_refused", "Pushes refused, by reason", refused)?;
    let bytes = [("journal", found.journal_bytes), ("index", found.index_bytes), ("snapshots", found.snapshot_bytes)];
    let bytes = bytes.map(|(kind, bytes)| (label("kind", kind), ConstGauge::new(gauge_value(bytes))));
    family(encoder, "feature_store_bytes", "Bytes on the disk, by kind of file", bytes)?;
    if found.snapshot_created_ms != 0 {
        let age = (now_s - seconds(found.snapshot_created_ms, 1e3)).max(0.0);
        single(encoder, "feature_snapshot_age_seconds", "Age of the newest snapshot", &ConstGauge::new(age))?;
    }
    let recovery = ConstGauge::new(seconds(found.last_recovery_us, 1e6));
    single(encoder, "feature_recovery_seconds", "How long the last opening or rebuild of the index took", &recovery)
}

fn of_views(encoder: &mut DescriptorEncoder<'_>, views: &[ViewStatistics]) -> Result<(), Error> {
    let view = |view: &ViewStatistics| label("feature_view", &view.view);
    let rows = views.iter().map(|found| (view(found), ConstGauge::new(gauge_value(found.rows))));
    family(encoder, "feature_rows", "Entities with a row, by feature view", rows)?;
    let newest = views.iter().filter_map(|found| {
        let newest_us = u64::try_from(found.newest_us).ok().filter(|newest_us| *newest_us != 0)?;
        Some((view(found), ConstGauge::new(seconds(newest_us, 1e6))))
    });
    let help = "Newest event pushed since the start, by feature view, in seconds since the Unix epoch";
    family(encoder, "feature_newest_event_seconds", help, newest)?;
    let pushed = views.iter().flat_map(|found| {
        found.pushed.outcomes().map(|(outcome, count)| {
            let labels = vec![("feature_view", found.view.clone()), ("outcome", outcome.to_owned())];
            (labels, ConstCounter::new(count as u64))
        })
    });
    family(encoder, "feature_rows_pushed", "Rows pushed, by feature view and what came of them", pushed)?;
    let ignored = views.iter().map(|found| (view(found), ConstCounter::new(found.ignored)));
    let help = "Columns pushed that the feature view does not have, and that were ignored";
    family(encoder, "feature_columns_ignored", help, ignored)
}

#[expect(clippy::cast_precision_loss, reason = "exact for hundreds of years of microseconds")]
fn seconds(units: u64, unit: f64) -> f64 {
    units as f64 / unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::online::{FieldStatus, PushCounts};

    #[test]
    fn every_figure_has_a_sample() {
        let pushed = PushCounts { accepted: 1, outdated: 2, duplicate: 3, too_late: 4 };
        let found = FeatureStatistics {
            state: "ready",
            reason: None,
            views: vec![ViewStatistics {
                view: "v".into(),
                rows: 5,
                newest_us: 6_500_000,
                pushed,
                ignored: 24,
                lost: 0,
                profiles: None,
            }],
            reads: 7,
            cells: FieldStatus::ALL.into_iter().zip(8..).collect(),
            groups: 12,
            refused_disk_full: 13,
            refused_overload: 14,
            not_written: 15,
            purged: 16,
            rebuilds: 17,
            damage_found: 18,
            entries_lost: 24,
            taken_back: 25,
            journal_bytes: 19,
            index_bytes: 20,
            snapshot_bytes: 21,
            snapshot_created_ms: 1_000_000,
            journal_next_seq: 22,
            last_recovery_us: 23_000_000,
            sealing: "on",
            keys: 3,
        };
        let samples = ledge_part::metrics::samples(move |encoder| encode(encoder, &found, 1100.0));
        let expected = [
            "ledge_feature_store_state{state=\"opening\"} 0",
            "ledge_feature_store_state{state=\"ready\"} 1",
            "ledge_feature_store_state{state=\"rebuilding\"} 0",
            "ledge_feature_store_state{state=\"restoring\"} 0",
            "ledge_feature_store_state{state=\"closed\"} 0",
            "ledge_feature_rows{feature_view=\"v\"} 5",
            "ledge_feature_newest_event_seconds{feature_view=\"v\"} 6.5",
            "ledge_feature_rows_pushed_total{feature_view=\"v\",outcome=\"accepted\"} 1",
            "ledge_feature_rows_pushed_total{feature_view=\"v\",outcome=\"outdated\"} 2",
            "ledge_feature_rows_pushed_total{feature_view=\"v\",outcome=\"duplicate\"} 3",
            "ledge_feature_rows_pushed_total{feature_view=\"v\",outcome=\"too_late\"} 4",
            "ledge_feature_columns_ignored_total{feature_view=\"v\"} 24",
            "ledge_feature_reads_total 7",
            "ledge_feature_journal_writes_total 12",
            "ledge_feature_rows_purged_total 16",
            "ledge_feature_index_rebuilds_total 17",
            "ledge_feature_damage_found_total 18",
            "ledge_feature_entries_lost_total 24",
            "ledge_feature_future_rows_replaced_total 25",
            "ledge_feature_store_encryption{state=\"off\"} 0",
            "ledge_feature_store_encryption{state=\"pending\"} 0",
            "ledge_feature_store_encryption{state=\"on\"} 1",
            "ledge_feature_entity_keys 3",
            "ledge_feature_values_read_total{status=\"PRESENT\"} 8",
            "ledge_feature_values_read_total{status=\"NULL_VALUE\"} 9",
            "ledge_feature_values_read_total{status=\"NOT_FOUND\"} 10",
            "ledge_feature_values_read_total{status=\"OUTSIDE_MAX_AGE\"} 11",
            "ledge_feature_pushes_refused_total{reason=\"disk_full\"} 13",
            "ledge_feature_pushes_refused_total{reason=\"overload\"} 14",
            "ledge_feature_pushes_refused_total{reason=\"not_written\"} 15",
            "ledge_feature_store_bytes{kind=\"journal\"} 19",
            "ledge_feature_store_bytes{kind=\"index\"} 20",
            "ledge_feature_store_bytes{kind=\"snapshots\"} 21",
            "ledge_feature_snapshot_age_seconds 100.0",
            "ledge_feature_recovery_seconds 23.0",
        ];
        assert_eq!(samples, expected);
    }
}
