//! Properties that hold for a state of any bytes.

use std::time::Duration;

use super::super::value::{ScalarType, Value, ValueType};
use super::super::view::{Aggregation, FeatureView, FieldId, PushSource, ViewField, ViewId};
use super::WindowState;
use crate::view::{AggregateFunction, WindowKind};

/// Every function.
pub const FUNCTIONS: [AggregateFunction; 8] = [
    AggregateFunction::Count,
    AggregateFunction::Sum,
    AggregateFunction::Mean,
    AggregateFunction::Min,
    AggregateFunction::Max,
    AggregateFunction::Last,
    AggregateFunction::Std,
    AggregateFunction::CountDistinct,
];

/// A view with an optional column of each of `types`, numbered from 0, and without aggregations.
pub fn view(types: &[ScalarType], lateness: Duration) -> FeatureView {
    let field = |(at, scalar): (u16, &ScalarType)| ViewField {
        id: FieldId(at),
        name: format!("column_{at}").as_str().into(),
        value_type: ValueType::Scalar(*scalar),
        optional: true,
        description: String::new(),
    };
    FeatureView {
        id: ViewId(0),
        name: "view".into(),
        description: String::new(),
        entities: Vec::new(),
        join_keys: Vec::new(),
        fields: (0..).zip(types).map(field).collect(),
        aggregations: Vec::new(),
        ttl: None,
        lateness,
        source: PushSource { name: "source".into(), timestamp_field: "event_timestamp".into() },
        unusual: None,
    }
}

/// Every function over the window.
pub fn every_function(
    column: usize,
    time_window: Duration,
    slide_interval: Duration,
    kind: WindowKind,
) -> Vec<Aggregation> {
    let aggregation = |function| Aggregation {
        name: format!("{function:?}").as_str().into(),
        column,
        function,
        time_window,
        slide_interval,
        kind,
        value_type: ValueType::Scalar(ScalarType::Float64),
    };
    FUNCTIONS.into_iter().map(aggregation).collect()
}

fn every_column() -> FeatureView {
    let mut view = view(&[ScalarType::Float64, ScalarType::Int64, ScalarType::String], Duration::from_mins(1));
    for column in 0..3 {
        let [minute, second] = [Duration::from_mins(1), Duration::from_secs(1)];
        view.aggregations.extend(every_function(column, minute, second, WindowKind::Sliding));
        view.aggregations.extend(every_function(column, minute, minute, WindowKind::Tumbling));
    }
    view
}

/// Seeds for the fuzzer: states of few events and of many, before the epoch and after.
pub fn window_seeds() -> Vec<Vec<u8>> {
    let view = every_column();
    let seed = |(events, from_us): (i32, i64)| {
        let mut state = WindowState::default();
        for event in 0..events {
            let text = format!("text {event}");
            let values = [
                Value::Float64(f64::from(event) / 3.0),
                Value::Int64(event.into()),
                Value::String(text.as_str().into()),
            ];
            let values: Vec<_> = (0..).map(FieldId).zip(values).collect();
            state.add(&view, from_us + i64::from(event) * 20_000, &values);
        }
        let mut bytes = Vec::new();
        state.encode(&mut bytes);
        bytes
    };
    [(1, 0), (3, -30_000), (100, 1_700_000_000_000_000)].map(seed).into()
}

/// Reads any bytes as a state, adds events, and evaluates all aggregations. True when the bytes were a state.
///
/// # Panics
///
/// When a state that was read is different after it was written and read again.
pub fn fuzz_window(bytes: &[u8]) -> bool {
    let Ok(mut state) = WindowState::decode(bytes) else { return false };
    let view = every_column();
    let watermark_us = state.watermark_us.unwrap_or(0);
    for event_us in [watermark_us, watermark_us.saturating_add(90_000_000), 0, i64::MIN, i64::MAX] {
        let mut bytes = Vec::new();
        state.encode(&mut bytes);
        let mut again = Vec::new();
        // Equal bytes, as a NaN equals nothing.
        WindowState::decode(&bytes).expect("what was written can be read").encode(&mut again);
        assert_eq!(bytes, again, "what was read is written the same");
        for at in 0..view.aggregations.len() {
            for now_us in [event_us, watermark_us, i64::MIN, i64::MAX] {
                state.evaluate(&view, at, now_us);
            }
        }
        let values = [Value::Float64(-0.5), Value::Int64(i64::MIN), Value::String("text".into())];
        let values: Vec<_> = (0..).map(FieldId).zip(values).collect();
        state.add(&view, event_us, &values);
    }
    true
}
