//! States as bytes, and the sketch's error.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::super::value::{ScalarType, Value};
use super::super::super::view::{FeatureView, FieldId};
use super::super::distinct::{DistinctValues, ENCODED_BYTES_MAX, EXACT_HASHES_MAX};
use super::super::fuzz::{every_function, fuzz_window, view};
use super::super::{DamagedWindow, WindowState, hash};
use super::{Random, SECOND};
use crate::view::WindowKind;

fn every_column(lateness_s: u64) -> FeatureView {
    let mut view = view(&[ScalarType::Float64, ScalarType::Int64, ScalarType::String], Duration::from_secs(lateness_s));
    for column in 0..3 {
        view.aggregations.extend(every_function(
            column,
            Duration::from_mins(1),
            Duration::from_secs(10),
            WindowKind::Sliding,
        ));
        view.aggregations.extend(every_function(
            column,
            Duration::from_mins(5),
            Duration::from_mins(5),
            WindowKind::Tumbling,
        ));
    }
    view
}

prop_compose! {
    fn event()(
        event_us in prop_oneof![0..600 * SECOND, Just(0), -SECOND..SECOND, i64::MAX - 9..=i64::MAX],
        float in proptest::option::of(-1e9..1e9),
        integer in proptest::option::of(any::<i64>()),
        text in proptest::option::of("[a-c]{0,2}"),
    ) -> (i64, Vec<(FieldId, Value)>) {
        let float = float.map(Value::Float64);
        let integer = integer.map(Value::Int64);
        let text = text.map(|text| Value::String(text.as_str().into()));
        let values = (0..).map(FieldId).zip([float, integer, text]);
        (event_us, values.filter_map(|(field, value)| Some((field, value?))).collect())
    }
}

prop_compose! {
    fn state()(lateness_s in 0_u64..1000, events in vec(event(), 0..80)) -> WindowState {
        let view = every_column(lateness_s);
        let mut state = WindowState::default();
        for (event_us, values) in events {
            state.add(&view, event_us, &values);
        }
        state
    }
}

fn encode(state: &WindowState) -> Vec<u8> {
    let mut bytes = Vec::new();
    state.encode(&mut bytes);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_state_reads_as_it_was_written(state in state()) {
        prop_assert_eq!(WindowState::decode(&encode(&state)), Ok(state));
    }

    #[test]
    fn changed_bytes_never_break_anything(state in state(), at in any::<prop::sample::Index>(), with in any::<u8>()) {
        let mut bytes = encode(&state);
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] ^= with;
            fuzz_window(&bytes);
            bytes.truncate(at);
            prop_assert_eq!(WindowState::decode(&bytes).is_ok(), at == 0);
        }
    }

    #[test]
    fn any_bytes_are_a_state_or_refused(mut bytes in vec(any::<u8>(), 0..200)) {
        fuzz_window(&bytes);
        if let Some(version) = bytes.first_mut() {
            *version = 1;
            fuzz_window(&bytes);
        }
    }

    #[test]
    fn the_order_of_events_makes_no_difference(
        events in vec((0..120 * SECOND, -1000_i64..1000), 1..40),
        swaps in vec(any::<prop::sample::Index>(), 40),
    ) {
        let view = every_column(3600);
        let mut other = events.clone();
        for (at, swap) in swaps.iter().enumerate() {
            let length = other.len();
            other.swap(at % length, swap.index(length));
        }

        let states = [events, other].map(|events| {
            let mut state = WindowState::default();
            for (event_us, number) in events {
                state.add(&view, event_us, &[(FieldId(1), Value::Int64(number))]);
            }
            state
        });

        for at in 16..32 {
            let function = view.aggregations[at].function;
            for now_us in (0..400 * SECOND).step_by(7_000_000) {
                match states.each_ref().map(|state| state.evaluate(&view, at, now_us)) {
                    [Some(Value::Float64(one)), Some(Value::Float64(other))] => {
                        prop_assert!((one - other).abs() <= one.abs() * 1e-9, "{function:?} {one} {other}");
                    }
                    // Of the same time the one that was pushed later is the last, in both states.
                    _ if function == crate::view::AggregateFunction::Last => {}
                    [one, other] => prop_assert_eq!(one, other),
                }
            }
        }
    }
}

#[test]
fn no_bytes_are_the_state_before_the_first_event() {
    assert_eq!(WindowState::decode(&[]), Ok(WindowState::default()));
    assert!(encode(&WindowState::default()).is_empty());
    assert_eq!(WindowState::decode(&[2]), Err(DamagedWindow));
}

/// Lengths beyond the available bytes are refused before memory is allocated for them.
#[test]
fn a_length_beyond_the_bytes_is_refused() {
    for length in [1, 2, 127, u64::from(u32::MAX), u64::MAX] {
        let mut bytes = vec![1, 0, 0];
        super::super::put_varint(&mut bytes, length);
        bytes.extend_from_slice(&[0; 6]);
        assert_eq!(WindowState::decode(&bytes), Err(DamagedWindow), "{length}");
    }
}

#[test]
fn the_estimate_is_within_its_stated_error() {
    let mut random = Random(7);
    for count in [30, 100, 300, 1000, 10_000, 100_000] {
        let rounds = if count > 10_000 { 100 } else { 400 };
        let (mut squares, mut sum) = (0.0, 0.0);
        for _ in 0..rounds {
            let salt = random.next();
            // Over several buckets, with every value in two of them.
            let mut parts: Vec<Option<DistinctValues>> = vec![None; 4];
            for number in 0..count {
                let hash = if count > 1000 { random.next() } else { hash(&(salt ^ number as u64).to_le_bytes()) };
                for at in [number % 4, (number + 1) % 4] {
                    match &mut parts[at] {
                        Some(distinct) => distinct.add(hash),
                        part @ None => *part = Some(DistinctValues::of(hash)),
                    }
                }
            }
            let estimate = DistinctValues::count(parts.iter().flatten()) as f64;
            let error = estimate / count as f64 - 1.0;
            squares += error * error;
            sum += error;
        }
        let (error, bias) = ((squares / f64::from(rounds)).sqrt(), sum / f64::from(rounds));
        println!("{count} different: standard error {error:.4}, bias {bias:.4}");
        assert!(error < 0.08 && bias.abs() < 0.03, "{count}: {error} {bias}");
    }
}

#[test]
fn few_values_are_counted_exactly_and_many_take_no_more_room() {
    let mut distinct = DistinctValues::of(0);
    for number in 1..100_000_u64 {
        let hash = hash(&number.to_le_bytes());
        distinct.add(hash);
        distinct.add(hash);
        if number < EXACT_HASHES_MAX as u64 {
            assert_eq!(DistinctValues::count([&distinct, &distinct].into_iter()), number + 1);
        }
        if !(100..99_000).contains(&number) {
            let mut bytes = Vec::new();
            distinct.encode(&mut bytes);
            assert!(bytes.len() <= ENCODED_BYTES_MAX);
            let mut reader = super::super::super::wire::ByteReader::new(&bytes);
            assert_eq!(DistinctValues::read(&mut reader).as_ref(), Ok(&distinct));
            assert!(reader.is_empty());
        }
    }
}
