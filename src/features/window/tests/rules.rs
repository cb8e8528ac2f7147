//! Each rule that the module states, by example.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::super::value::{ScalarType, Value, ValueType};
use super::super::super::view::{Aggregation, FeatureView, FieldId};
use super::super::fuzz::{every_function, view};
use super::super::limits::most_bytes;
use super::super::{WindowAddOutcome, WindowState, state_limit_problem, value_problem};
use super::SECOND;
use crate::view::{AggregateFunction, WindowKind};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Every function of one column over the last minute, by ten seconds.
fn minute(column: ScalarType, lateness: Duration) -> FeatureView {
    let mut view = view(&[column], lateness);
    view.aggregations = every_function(0, seconds(60), seconds(10), WindowKind::Sliding);
    view
}

fn float(number: f64) -> Vec<(FieldId, Value)> {
    vec![(FieldId(0), Value::Float64(number))]
}

fn integer(number: i64) -> Vec<(FieldId, Value)> {
    vec![(FieldId(0), Value::Int64(number))]
}

fn get(state: &WindowState, view: &FeatureView, function: AggregateFunction, now_s: i64) -> Option<Value> {
    let at = view.aggregations.iter().position(|aggregation| aggregation.function == function).unwrap();
    state.evaluate(view, at, now_s * SECOND)
}

fn count(state: &WindowState, view: &FeatureView, now_s: i64) -> i64 {
    match get(state, view, AggregateFunction::Count, now_s) {
        Some(Value::Int64(count)) => count,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sliding_window_ends_with_the_step_that_now_is_in() {
    let view = minute(ScalarType::Float64, seconds(60));
    let mut state = WindowState::default();
    for at in [100, 109, 110, 169] {
        assert_eq!(state.add(&view, at * SECOND, &float(1.0)), WindowAddOutcome::New);
    }
    // Within the step of 110 to 120, before the event at 169.
    assert_eq!(count(&state, &view, 115), 3);
    assert_eq!(count(&state, &view, 109), 2, "the step from 110 on has not begun");
    assert_eq!(count(&state, &view, 159), 3);
    assert_eq!(count(&state, &view, 160), 2, "from 110 to 170");
    assert_eq!(count(&state, &view, 170), 1);
    assert_eq!(count(&state, &view, 219), 1);
    assert_eq!(count(&state, &view, 220), 0, "from 170 to 230");
}

#[test]
fn a_tumbling_window_is_the_last_one_that_is_over() {
    let mut view = view(&[ScalarType::Float64], seconds(0));
    view.aggregations = every_function(0, seconds(60), seconds(60), WindowKind::Tumbling);
    let mut state = WindowState::default();
    for at in [0, 59, 60] {
        assert_eq!(state.add(&view, at * SECOND, &float(1.0)), WindowAddOutcome::New);
    }
    assert_eq!([59, 60, 119, 120, 179, 180].map(|now| count(&state, &view, now)), [0, 2, 2, 1, 1, 0]);
    assert_eq!(state.evaluate(&view, 0, 60 * SECOND - 1), Some(Value::Int64(0)));
}

#[test]
fn of_nothing_the_counts_are_zero_and_the_rest_is_null() {
    let view = minute(ScalarType::Float64, seconds(0));
    let mut state = WindowState::default();
    for event_us in 0..2 {
        for (at, aggregation) in view.aggregations.iter().enumerate() {
            let counts = matches!(aggregation.function, AggregateFunction::Count | AggregateFunction::CountDistinct);
            assert_eq!(state.evaluate(&view, at, 0), counts.then_some(Value::Int64(0)), "{aggregation:?}");
        }
        // Null and NaN are nothing.
        assert_eq!(state.add(&view, event_us, &[]), WindowAddOutcome::New);
        assert_eq!(state.add(&view, event_us, &float(f64::NAN)), WindowAddOutcome::New);
    }
    state.add(&view, 1, &float(2.0));
    assert_eq!(get(&state, &view, AggregateFunction::Std, 0), None, "of one value");
    assert_eq!(get(&state, &view, AggregateFunction::Mean, 0), Some(Value::Float64(2.0)));
}

#[test]
fn with_no_lateness_the_moment_of_the_watermark_is_still_open() {
    let view = minute(ScalarType::Int64, seconds(0));
    let mut state = WindowState::default();
    let mut add = |at, number| state.add(&view, at, &integer(number));
    assert_eq!(add(5, 1), WindowAddOutcome::New);
    assert_eq!(add(5, 1), WindowAddOutcome::Duplicate);
    assert_eq!(add(5, 2), WindowAddOutcome::New, "another event of the same microsecond");
    assert_eq!(add(5, 1), WindowAddOutcome::Duplicate);
    assert_eq!(add(5, 2), WindowAddOutcome::Duplicate);
    assert_eq!(add(4, 3), WindowAddOutcome::TooLate);
    assert_eq!(add(6, 1), WindowAddOutcome::New);
    assert_eq!(add(5, 1), WindowAddOutcome::TooLate);
    assert_eq!(get(&state, &view, AggregateFunction::Sum, 0), Some(Value::Float64(4.0)));
}

#[test]
fn what_is_refused_changes_nothing() {
    let view = minute(ScalarType::Int64, seconds(10));
    let mut state = WindowState::default();
    state.add(&view, 100 * SECOND, &integer(1));
    let before = state.clone();
    assert_eq!(state.add(&view, 100 * SECOND, &integer(1)), WindowAddOutcome::Duplicate);
    assert_eq!(state.add(&view, 90 * SECOND - 1, &integer(1)), WindowAddOutcome::TooLate);
    assert_eq!(state, before);
    assert_eq!(state.add(&view, 90 * SECOND, &integer(1)), WindowAddOutcome::New, "as late as can be");
}

#[test]
fn of_one_moment_the_last_is_what_came_later() {
    let view = minute(ScalarType::Int64, seconds(10));
    let mut state = WindowState::default();
    for (at, number) in [(15, 1), (15, 2), (14, 3), (9, 4)] {
        state.add(&view, at * SECOND, &integer(number));
    }
    assert_eq!(get(&state, &view, AggregateFunction::Last, 19), Some(Value::Int64(2)));
    assert_eq!(get(&state, &view, AggregateFunction::Last, 9), Some(Value::Int64(4)));
}

#[test]
fn sums_of_integers_are_exact_and_those_of_floats_nearly() {
    let view = minute(ScalarType::Int64, seconds(0));
    let mut state = WindowState::default();
    for (at, number) in [i64::MAX, 1, i64::MIN, i64::MAX, -i64::MAX, 7].into_iter().enumerate() {
        state.add(&view, at as i64, &integer(number));
    }
    assert_eq!(get(&state, &view, AggregateFunction::Sum, 0), Some(Value::Float64(7.0)));

    let view = minute(ScalarType::Float64, seconds(0));
    let mut state = WindowState::default();
    for (at, number) in [1e100, 1.0, -1e100].into_iter().enumerate() {
        state.add(&view, at as i64 * 10 * SECOND, &float(number));
    }
    assert_eq!(get(&state, &view, AggregateFunction::Sum, 20), Some(Value::Float64(1.0)));
}

#[test]
fn infinities_count() {
    let view = minute(ScalarType::Float64, seconds(0));
    let mut state = WindowState::default();
    state.add(&view, 0, &float(1.0));
    state.add(&view, 1, &float(f64::INFINITY));
    assert_eq!(get(&state, &view, AggregateFunction::Sum, 0), Some(Value::Float64(f64::INFINITY)));
    assert_eq!(get(&state, &view, AggregateFunction::Min, 0), Some(Value::Float64(1.0)));
    assert_eq!(get(&state, &view, AggregateFunction::Std, 0), None);
    state.add(&view, 2, &float(f64::NEG_INFINITY));
    assert_eq!(get(&state, &view, AggregateFunction::Sum, 0), None);
    assert_eq!(count(&state, &view, 0), 3);
}

#[test]
fn the_two_zeros_are_one_value() {
    let view = minute(ScalarType::Float64, seconds(0));
    let mut state = WindowState::default();
    state.add(&view, 0, &float(0.0));
    state.add(&view, 1, &float(-0.0));
    assert_eq!(get(&state, &view, AggregateFunction::CountDistinct, 0), Some(Value::Int64(1)));
}

#[test]
fn an_aggregation_declared_later_begins_with_the_next_event() {
    let all = minute(ScalarType::Int64, seconds(10));
    let only = |function| {
        let aggregations = all.aggregations.iter().filter(|aggregation| aggregation.function == function);
        FeatureView { aggregations: aggregations.cloned().collect(), ..all.clone() }
    };
    let mut state = WindowState::default();
    state.add(&only(AggregateFunction::Count), 0, &integer(5));
    state.add(&only(AggregateFunction::Count), 1, &integer(6));
    assert_eq!(count(&state, &all, 0), 2);
    assert_eq!(get(&state, &all, AggregateFunction::Sum, 0), None);
    state.add(&all, 2, &integer(7));
    assert_eq!(count(&state, &all, 0), 3);
    assert_eq!(get(&state, &all, AggregateFunction::Sum, 0), Some(Value::Float64(7.0)));
    assert_eq!(get(&state, &all, AggregateFunction::Mean, 0), Some(Value::Float64(7.0)));
    // Parts that are no longer declared are dropped with the next event, and do not come back.
    state.add(&only(AggregateFunction::Max), 3, &integer(8));
    assert_eq!(count(&state, &all, 0), 0);
    assert_eq!(get(&state, &all, AggregateFunction::Max, 0), Some(Value::Float64(8.0)));
    // A repeated event is recognized throughout.
    assert_eq!(state.add(&all, 0, &integer(5)), WindowAddOutcome::Duplicate);
}

#[test]
fn a_longer_lateness_lets_no_old_event_in_twice() {
    let [short, long] = [seconds(1), seconds(1000)].map(|lateness| minute(ScalarType::Int64, lateness));
    let mut state = WindowState::default();
    state.add(&short, 0, &integer(1));
    state.add(&short, 50 * SECOND, &integer(1));
    assert_eq!(state.add(&long, 0, &integer(1)), WindowAddOutcome::TooLate);
    assert_eq!(state.add(&long, 1, &integer(1)), WindowAddOutcome::New, "newer than all that is forgotten");
    assert_eq!(count(&state, &long, 59), 3);
}

#[test]
fn too_many_identities_cost_lateness_and_not_exactness() {
    let mut view = view(&[ScalarType::Int64], seconds(3600));
    view.aggregations = every_function(0, seconds(3600), seconds(600), WindowKind::Sliding);
    view.aggregations.truncate(1);
    let mut state = WindowState::default();
    // Two events a moment, three passes over all of them.
    for pass in 0..3 {
        for event in 0..5000 {
            let added = state.add(&view, event / 2 * 1000, &integer(event));
            assert_eq!(added == WindowAddOutcome::New, pass == 0, "{event}: {added:?}");
            assert!(state.identities.len() <= 2048);
        }
    }
    assert_eq!(count(&state, &view, 0), 5000);
    // Newer than the dropped ones, and not repeated.
    assert_eq!(state.add(&view, 2490 * 1000, &integer(-1)), WindowAddOutcome::New);
    assert_eq!(state.add(&view, 2490 * 1000, &integer(-1)), WindowAddOutcome::Duplicate);
    assert_eq!(state.add(&view, 100, &integer(-2)), WindowAddOutcome::TooLate, "within the lateness as declared");
    assert_eq!(count(&state, &view, 0), 5001);
}

#[test]
fn many_events_of_one_moment_are_never_counted_twice() {
    let view = minute(ScalarType::Int64, seconds(0));
    let mut state = WindowState::default();
    let mut added = 0;
    for _ in 0..2 {
        for event in 0..3000 {
            added += i64::from(state.add(&view, 0, &integer(event)) == WindowAddOutcome::New);
        }
    }
    // When the first is dropped, events of that time are too late.
    assert_eq!(added, 2049);
    assert_eq!(count(&state, &view, 0), 2049);
    assert_eq!(state.add(&view, 1, &integer(0)), WindowAddOutcome::New);
}

#[test]
fn only_buckets_that_a_window_may_need_are_kept() {
    let view = minute(ScalarType::Int64, seconds(25));
    let mut state = WindowState::default();
    for at in 0..100_000 {
        state.add(&view, at * SECOND, &integer(at));
    }
    // The current step is that of 99,990. The horizon is in the step of 99,970, and the window of that step begins at
    // 99,920.
    assert_eq!(state.tracks[0].buckets.len(), 8);
}

#[test]
fn aggregations_share_buckets() {
    let mut view = minute(ScalarType::Int64, seconds(0));
    view.aggregations.extend(every_function(0, seconds(600), seconds(10), WindowKind::Sliding));
    view.aggregations.extend(every_function(0, seconds(10), seconds(10), WindowKind::Tumbling));
    let mut state = WindowState::default();
    state.add(&view, 0, &integer(1));
    assert_eq!(state.tracks.len(), 1);
}

#[test]
fn no_state_is_larger_than_what_the_configuration_is_told() {
    const INTEGER: ScalarType = ScalarType::Int64;
    const FLOAT: ScalarType = ScalarType::Float64;
    const TEXT: ScalarType = ScalarType::String;

    let functions = |column, seconds: [u64; 2], count: usize, lateness: u64| {
        let mut view = view(&[column], Duration::from_secs(lateness));
        let [window, step] = seconds.map(Duration::from_secs);
        view.aggregations = every_function(0, window, step, WindowKind::Sliding);
        view.aggregations.rotate_right(count);
        view.aggregations.truncate(count);
        view
    };

    for (column, window, count, lateness) in [
        (INTEGER, [600, 10], 8, 60),
        (FLOAT, [3600, 60], 8, 600),
        (FLOAT, [24 * 3600, 3600], 8, 7200),
        (INTEGER, [100, 1], 1, 0),
        (TEXT, [3600, 60], 3, 3600),
    ] {
        let view = functions(column, window, count, lateness);
        let mut state = WindowState::default();

        let step_us = (window[1] as i64 * SECOND / 300).max(1);
        let mut most = 0;

        for event in 0..(window[0] / window[1]) as i64 * 300 * 2 {
            let value = match column {
                INTEGER => Value::Int64(i64::MAX - event),
                FLOAT => Value::Float64((event as f64 + 0.1) * 1e300),
                _ => Value::String(format!("{event:0>124}").as_str().into()),
            };
            let values = vec![(FieldId(0), value)];
            assert_eq!(value_problem(&view, &values), None);
            // Far from the epoch, where numbers are long.
            state.add(&view, i64::MIN / 2 + event * step_us, &values);
            if event % 50 == 0 {
                let mut bytes = Vec::new();
                state.encode(&mut bytes);
                most = most.max(bytes.len() as u64);
            }
        }

        let told = most_bytes(&view);
        println!("{column} {window:?} {count} {lateness}: {most} of {told}");
        assert!(most <= told && most * 3 > told, "{most} of {told}");
        assert_eq!(state_limit_problem(&view).is_some(), told > 60_000);
    }
}

#[test]
fn aggregations_that_take_too_much_are_refused_with_the_figures() {
    let mut view = view(&[ScalarType::Float64], seconds(60));
    view.aggregations = every_function(0, seconds(30 * 86400), seconds(60), WindowKind::Sliding);
    let problem = state_limit_problem(&view).unwrap();
    assert!(problem.contains("bytes an entity, and the limit is 60000: make slide_interval longer"), "{problem}");
    view.aggregations = every_function(0, seconds(30 * 86400), seconds(86400), WindowKind::Sliding);
    assert_eq!(state_limit_problem(&view), None);
    // Mean and count of a day by minutes are fine.
    view.aggregations = every_function(0, seconds(86400), seconds(60), WindowKind::Sliding);
    view.aggregations
        .retain(|aggregation| matches!(aggregation.function, AggregateFunction::Count | AggregateFunction::Mean));
    assert_eq!(state_limit_problem(&view), None);
    // No declaration is too large to be calculated.
    view.lateness = Duration::MAX;
    view.aggregations = every_function(0, Duration::MAX, Duration::from_micros(1), WindowKind::Sliding);
    assert!(state_limit_problem(&view).is_some());
}

#[test]
fn a_text_that_is_too_long_for_last_is_refused() {
    let mut view = minute(ScalarType::String, seconds(0));
    let values = |length: usize| vec![(FieldId(0), Value::String("x".repeat(length).as_str().into()))];
    assert_eq!(value_problem(&view, &values(120)), None);
    assert!(value_problem(&view, &values(200)).unwrap().contains("'column_0' has 203 bytes"));
    view.aggregations.retain(|aggregation: &Aggregation| aggregation.function != AggregateFunction::Last);
    assert_eq!(value_problem(&view, &values(200)), None);
}

#[test]
fn a_last_of_another_type_is_null() {
    let view = minute(ScalarType::Int64, seconds(0));
    let mut state = WindowState::default();
    state.add(&view, 0, &integer(1));
    let mut other = view.clone();
    other.fields[0].value_type = ValueType::Scalar(ScalarType::String);
    assert_eq!(get(&state, &view, AggregateFunction::Last, 0), Some(Value::Int64(1)));
    assert_eq!(get(&state, &other, AggregateFunction::Last, 0), None);
}

#[test]
fn of_the_step_that_now_is_in_only_the_newest_value_is_taken_back() {
    let mut view = minute(ScalarType::Float64, seconds(60));
    view.aggregations = every_function(0, seconds(600), seconds(300), WindowKind::Sliding);
    let mut state = WindowState::default();
    for (at, number) in [(10, 1.0), (200, 2.0)] {
        assert_eq!(state.add(&view, at * SECOND, &float(number)), WindowAddOutcome::New);
    }
    state.take_back(100 * SECOND, 50 * SECOND);
    assert_eq!(get(&state, &view, AggregateFunction::Last, 50), None);
    // The other functions cannot be separated within a step.
    assert_eq!(get(&state, &view, AggregateFunction::Count, 50), Some(Value::Int64(2)));
    assert_eq!(state.add(&view, 50 * SECOND, &float(3.0)), WindowAddOutcome::New);
    assert_eq!(get(&state, &view, AggregateFunction::Last, 50), Some(Value::Float64(3.0)));
    assert_eq!(state.add(&view, 50 * SECOND, &float(3.0)), WindowAddOutcome::Duplicate);
}

proptest! {
    /// For a clock that was ahead by any time, and any number of pushes with it.
    #[test]
    fn a_future_that_was_taken_back_counts_nowhere_and_makes_nothing_count_twice(
        past in vec(0..60_i64, 0..12),
        ahead in vec(200..4000_i64, 1..8),
        mut now in vec(61..90_i64, 1..8),
    ) {
        let view = minute(ScalarType::Float64, seconds(60));
        now.sort_unstable();
        // Each value once, so that no two of them are one event.
        let numbered = |events: &[i64], from: usize| -> Vec<(i64, Vec<(FieldId, Value)>)> {
            events.iter().zip(from..).map(|(at, number)| (at * SECOND, float(number as f64))).collect()
        };

        let (past, ahead, now) = (numbered(&past, 0), numbered(&ahead, 100), numbered(&now, 200));
        let (mut state, mut right) = (WindowState::default(), WindowState::default());

        for (at, values) in past.iter().chain(&ahead) {
            state.add(&view, *at, values);
        }
        for (at, values) in &now {
            state.take_back(100 * SECOND, *at);
            prop_assert_eq!(state.add(&view, *at, values), WindowAddOutcome::New);
        }

        for (at, values) in past.iter().chain(&now) {
            right.add(&view, *at, values);
            // A device without a reply sends the event again.
            state.add(&view, *at, values);
            let mut bytes = Vec::new();
            state.encode(&mut bytes);
            prop_assert_eq!(WindowState::decode(&bytes), Ok(state.clone()));
        }

        let counted = count(&state, &view, 99);
        prop_assert!(counted >= now.len() as i64, "{counted} of {}", now.len());
        prop_assert!(counted <= count(&right, &view, 99), "{counted}");
        prop_assert_eq!(count(&state, &view, 4000), 0);
    }
}
