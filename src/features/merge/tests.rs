use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::key::HashKey;
use super::super::value::{ScalarType, Value};
use super::super::view::{FeatureView, FieldId, ViewId};
use super::super::window::{every_function, view};
use super::*;
use crate::view::WindowKind;

const SECOND: i64 = 1_000_000;

/// A view of one number with a ttl of ten seconds, and a lateness of ten.
fn plain() -> FeatureView {
    let view = view(&[ScalarType::Int64, ScalarType::String], Duration::from_secs(10));
    FeatureView { ttl: Some(Duration::from_secs(10)), ..view }
}

/// As [`plain`], with every function over a minute.
fn aggregated() -> FeatureView {
    let mut view = plain();
    let [minute, step] = [60, 5].map(Duration::from_secs);
    view.aggregations = every_function(0, minute, step, WindowKind::Sliding);
    view.aggregations.extend(every_function(0, minute, minute, WindowKind::Tumbling));
    view
}

fn row(event_us: i64, number: i64) -> FeatureRow {
    FeatureRow { entity: vec![Value::Int64(1)], event_us, values: vec![(FieldId(0), Value::Int64(number))] }
}

/// The record of an entity after some entries.
#[derive(Default, Clone, Debug, PartialEq)]
struct MergedEntity(Option<FeatureRecord>);

impl MergedEntity {
    fn push(&mut self, view: &FeatureView, seq: u64, row: &FeatureRow) -> MergeOutcome {
        self.push_at(view, seq, row, i64::MAX)
    }

    /// Pushes when event times up to `latest_us` are trusted.
    fn push_at(&mut self, view: &FeatureView, seq: u64, row: &FeatureRow, latest_us: i64) -> MergeOutcome {
        let (record, merged) = merge(view, self.0.as_ref(), row, seq, latest_us, SECOND).unwrap();
        assert_eq!(record.is_some(), merged == MergeOutcome::Accepted);
        if let Some(record) = record {
            assert_eq!(record.seq, seq);
            // Through bytes, as in the index.
            let key = HashKey::new([0; 32]).index_key(ViewId(0), &row.entity);
            assert_eq!(FeatureRecord::decode(&key, &record.encode(&key)), Ok(record.clone()));
            self.0 = Some(record);
        }
        merged
    }

    fn record(&self) -> &FeatureRecord {
        self.0.as_ref().unwrap()
    }

    /// The count of the minute as of `now_s`.
    fn count(&self, view: &FeatureView, now_s: i64) -> Value {
        WindowState::decode(&self.record().windows).unwrap().evaluate(view, 0, now_s * SECOND).unwrap()
    }
}

#[test]
fn the_first_row_of_an_entity_is_accepted_however_old() {
    for view in [plain(), aggregated()] {
        let mut entity = MergedEntity::default();
        assert_eq!(entity.push(&view, 7, &row(-1, 1)), MergeOutcome::Accepted);
        assert_eq!((entity.record().seq, &entity.record().row), (7, &row(-1, 1)));
    }
}

#[test]
fn without_aggregates_the_newest_row_counts() {
    let (view, mut entity) = (plain(), MergedEntity::default());
    assert_eq!(entity.push(&view, 1, &row(20, 1)), MergeOutcome::Accepted);
    assert_eq!(entity.push(&view, 2, &row(19, 2)), MergeOutcome::Outdated);
    assert_eq!((entity.record().seq, &entity.record().row), (1, &row(20, 1)));
    assert_eq!(entity.push(&view, 3, &row(20, 3)), MergeOutcome::Accepted, "of one moment, what was pushed later");
    assert_eq!(entity.record().row, row(20, 3));
    assert_eq!(entity.push(&view, 3, &row(30, 4)), MergeOutcome::Duplicate, "an entry that is in it");
    assert!(entity.record().windows.is_empty());
}

#[test]
fn a_late_row_enters_the_aggregates_and_is_not_the_newest() {
    let (view, mut entity) = (aggregated(), MergedEntity::default());
    entity.push(&view, 1, &row(20 * SECOND, 1));
    let purge_us = entity.record().purge_us;
    assert_eq!(entity.push(&view, 2, &row(10 * SECOND, 2)), MergeOutcome::Accepted);
    assert_eq!((entity.record().seq, &entity.record().row), (2, &row(20 * SECOND, 1)));
    assert_eq!(entity.record().purge_us, purge_us, "by the newest row");
    assert_eq!(entity.count(&view, 20), Value::Int64(2));
}

#[test]
fn what_the_aggregates_refuse_leaves_the_record_as_it_is() {
    let (view, mut entity) = (aggregated(), MergedEntity::default());
    entity.push(&view, 1, &row(20 * SECOND, 1));
    entity.push(&view, 2, &row(20 * SECOND, 2));
    let before = entity.clone();
    assert_eq!(entity.push(&view, 3, &row(10 * SECOND - 1, 3)), MergeOutcome::TooLate);
    assert_eq!(entity.push(&view, 4, &row(20 * SECOND, 1)), MergeOutcome::Duplicate, "though of the newest moment");
    assert_eq!(entity, before);
    assert_eq!(entity.record().row, row(20 * SECOND, 2));
}

#[test]
fn a_moment_with_too_many_rows_is_over() {
    let (view, mut entity) = (aggregated(), MergedEntity::default());
    let merged: Vec<MergeOutcome> =
        (1..).zip(0..2100).map(|(seq, number)| entity.push(&view, seq, &row(0, number))).collect();
    let accepted = merged.iter().map(|merged| i64::from(*merged == MergeOutcome::Accepted)).sum();
    assert!(accepted < 2100 && merged.last() == Some(&MergeOutcome::TooLate));
    assert_eq!(entity.record().row, row(0, accepted - 1));
    assert_eq!(entity.count(&view, 0), Value::Int64(accepted));
}

#[test]
fn a_record_from_before_there_were_aggregates_gets_them_with_the_next_row() {
    let mut entity = MergedEntity::default();
    entity.push(&plain(), 1, &row(20 * SECOND, 1));
    let view = aggregated();
    assert_eq!(entity.count(&view, 20), Value::Int64(0));
    // No aggregate knows the first row, so this one is not too late.
    assert_eq!(entity.push(&view, 2, &row(SECOND, 2)), MergeOutcome::Accepted);
    assert_eq!((entity.count(&view, 20), &entity.record().row), (Value::Int64(1), &row(20 * SECOND, 1)));
    assert_eq!(entity.push(&plain(), 3, &row(30 * SECOND, 3)), MergeOutcome::Accepted);
    assert!(entity.record().windows.is_empty(), "and loses them when they are not declared");
}

#[test]
fn a_record_is_kept_until_its_row_and_its_aggregates_are_over() {
    let purge_s = |view: &FeatureView| {
        let mut entity = MergedEntity::default();
        entity.push(view, 1, &row(100 * SECOND, 1));
        let after = entity.record().purge_us;
        // Its aggregates are empty then.
        if !view.aggregations.is_empty() && after < i64::MAX {
            for at in [0, view.aggregations.len() / 2] {
                let state = WindowState::decode(&entity.record().windows).unwrap();
                assert_eq!(state.evaluate(view, at, after), Some(Value::Int64(0)));
            }
        }
        after / SECOND
    };
    assert_eq!(purge_s(&plain()), 100 + 10 + 1);
    assert_eq!(purge_s(&aggregated()), 100 + 2 * 60 + 10 + 1);
    assert_eq!(purge_s(&FeatureView { ttl: Some(Duration::from_secs(1000)), ..aggregated() }), 100 + 1000 + 1);
    assert_eq!(purge_s(&FeatureView { ttl: None, ..aggregated() }), i64::MAX / SECOND);
    assert_eq!(purge_s(&FeatureView { ttl: Some(Duration::MAX), ..plain() }), i64::MAX / SECOND);
}

#[test]
fn a_future_that_the_clock_took_back_does_not_win() {
    const DAY: i64 = 86_400 * SECOND;
    for view in [plain(), aggregated()] {
        let mut entity = MergedEntity::default();
        entity.push_at(&view, 1, &row(100 * SECOND, 1), 110 * SECOND);
        for (seq, at) in [(2, 0), (3, 1), (4, 60)] {
            assert_eq!(entity.push_at(&view, seq, &row(30 * DAY + at * SECOND, 2), 31 * DAY), MergeOutcome::Accepted);
        }

        // Within the trusted times nothing changes.
        let mut ahead = entity.clone();
        assert_ne!(ahead.push_at(&view, 5, &row(101 * SECOND, 3), 31 * DAY), MergeOutcome::Accepted);
        // Of two in the future the later one counts, as ever.
        assert_ne!(ahead.push_at(&view, 6, &row(20 * DAY, 3), 110 * SECOND), MergeOutcome::Accepted);

        assert_eq!(entity.push_at(&view, 7, &row(101 * SECOND, 3), 110 * SECOND), MergeOutcome::Accepted);
        assert_eq!(entity.record().row, row(101 * SECOND, 3));
        assert_eq!(entity.push_at(&view, 8, &row(102 * SECOND, 4), 112 * SECOND), MergeOutcome::Accepted);
        assert_eq!(entity.record().row, row(102 * SECOND, 4));

        if !view.aggregations.is_empty() {
            assert_eq!(
                entity.count(&view, 102),
                Value::Int64(2),
                "and what there was before the future was too long ago for it"
            );
            assert_eq!(entity.count(&view, 30 * 86_400), Value::Int64(0));
            let again = entity.push_at(&view, 9, &row(102 * SECOND, 4), 112 * SECOND);
            assert_eq!(again, MergeOutcome::Duplicate);
        }
    }
}

#[test]
fn damaged_aggregates_are_an_error_and_no_empty_ones() {
    let mut entity = MergedEntity::default();
    entity.push(&aggregated(), 1, &row(0, 1));
    let mut record = entity.record().clone();
    record.windows.pop();
    assert_eq!(merge(&aggregated(), Some(&record), &row(1, 1), 2, i64::MAX, 0), Err(DamagedWindow));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A snapshot may have a record as of any time, and the journal is replayed from any earlier one.
    #[test]
    fn replaying_from_anywhere_makes_the_same_record(
        rows in vec((0..40_i64, 0..3_i64, prop_oneof![Just(i64::MAX), 0..40 * SECOND]), 1..60),
        from in any::<prop::sample::Index>(),
        had in any::<prop::sample::Index>(),
        aggregates in any::<bool>(),
    ) {
        let view = if aggregates { aggregated() } else { plain() };
        let rows: Vec<_> = rows.into_iter().map(|(at, number, latest)| (row(at * SECOND, number), latest)).collect();
        let mut entity = MergedEntity::default();
        let mut history = vec![entity.clone()];
        let mut outcomes = Vec::new();
        for (seq, (row, latest_us)) in (1..).zip(&rows) {
            outcomes.push(entity.push_at(&view, seq, row, *latest_us));
            history.push(entity.clone());
        }
        let had = had.index(history.len());
        let from = from.index(had + 1);
        let mut replayed = history[had].clone();
        let in_it = replayed.0.as_ref().map_or(0, |record| record.seq);
        for ((seq, (row, latest_us)), outcome) in (1..).zip(&rows).zip(outcomes).skip(from) {
            let again = replayed.push_at(&view, seq, row, *latest_us);
            // Refused rows are refused for the same reason, unless the record has later entries.
            prop_assert_eq!(again, if seq > in_it { outcome } else { MergeOutcome::Duplicate });
        }
        prop_assert_eq!(replayed, entity);
    }

    /// Rows that are pushed again, in any order, change nothing.
    #[test]
    fn pushing_rows_again_changes_no_aggregate(
        rows in vec((0..20_i64, 0..3_i64), 1..40),
        again in vec(any::<prop::sample::Index>(), 0..80),
    ) {
        let view = aggregated();
        let rows: Vec<FeatureRow> = rows.into_iter().map(|(at, number)| row(at * SECOND, number)).collect();
        let mut entity = MergedEntity::default();
        let mut seq = 0;
        let mut push = |entity: &mut MergedEntity, row: &FeatureRow| {
            seq += 1;
            entity.push(&view, seq, row)
        };
        let accepted: Vec<&FeatureRow> = rows.iter().filter(|row| push(&mut entity, row) == MergeOutcome::Accepted).collect();
        let before = entity.clone();
        for row in again.iter().map(|again| accepted[again.index(accepted.len())]) {
            let merged = push(&mut entity, row);
            prop_assert!(matches!(merged, MergeOutcome::Duplicate | MergeOutcome::TooLate), "{merged:?}");
        }
        prop_assert_eq!(&entity, &before);
        // And the newest row is the newest, as the one that was accepted last among them.
        let newest = accepted.iter().max_by_key(|row| row.event_us);
        prop_assert_eq!(Some(&&before.record().row), newest);
    }
}
