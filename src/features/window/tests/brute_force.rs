//! Compares the aggregates with values computed from all events at once, by the rules that the module states.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::super::super::value::{ScalarType, Value};
use super::super::super::view::{Aggregation, FeatureView, FieldId};
use super::super::fuzz::{every_function, view};
use super::super::{WindowAddOutcome, WindowState};
use super::{Random, SECOND};
use crate::view::{AggregateFunction, WindowKind};

const HOUR: i64 = 3600 * SECOND;

/// The unit of floats, so that their sums are exact as integers.
const FLOAT_UNIT: f64 = 1024.0;

/// A value of each column: thousand-and-twenty-fourths, an integer, a text.
type Cells = [Option<i64>; 3];

#[derive(Debug, Clone)]
struct WindowEvent {
    event_us: i64,
    cells: Cells,
}

impl WindowEvent {
    fn values(&self) -> Vec<(FieldId, Value)> {
        let [float, integer, text] = self.cells;
        let values = [
            float.map(|number| Value::Float64(number as f64 / FLOAT_UNIT)),
            integer.map(Value::Int64),
            text.map(|number| Value::String(format!("text {number}").as_str().into())),
        ];
        (0..).map(FieldId).zip(values).filter_map(|(field, value)| Some((field, value?))).collect()
    }
}

/// One entity: the state, and every event that counts in the order of their arrival.
struct SimulatedEntity {
    state: WindowState,
    events: Vec<WindowEvent>,
    newest_us: Option<i64>,
    seen: HashSet<(i64, Cells)>,
    sent: Vec<WindowEvent>,
    clock_us: i64,
    variety: usize,
}

impl SimulatedEntity {
    /// The next event: sometimes late, sometimes too late, sometimes at a round time, sometimes a repeated one.
    fn next(&mut self, random: &mut Random, lateness_us: i64) -> WindowEvent {
        self.clock_us += random.up_to(60 * SECOND);
        if random.below(500) == 0 {
            self.clock_us += random.up_to(10 * HOUR);
        }
        if random.below(10) == 0 && !self.sent.is_empty() {
            let back = random.below(300.min(self.sent.len()));
            return self.sent[self.sent.len() - 1 - back].clone();
        }
        let delay = match random.below(20) {
            0..14 => random.up_to(5 * SECOND),
            14..19 => random.up_to(lateness_us),
            _ => random.up_to(lateness_us * 2 + 90 * SECOND),
        };
        let mut event_us = self.clock_us - delay;
        if random.below(5) == 0 {
            event_us -= event_us.rem_euclid(10 * SECOND);
        }
        let cells = [0; 3].map(|_| (random.below(10) > 0).then(|| random.below(self.variety) as i64 - 1000));
        let event = WindowEvent { event_us, cells };
        self.sent.push(event.clone());
        event
    }

    /// The outcome of an event by the rules.
    fn expect(&mut self, event: &WindowEvent, lateness_us: i64) -> WindowAddOutcome {
        if self.newest_us.is_some_and(|newest| event.event_us < newest - lateness_us) {
            return WindowAddOutcome::TooLate;
        }
        if !self.seen.insert((event.event_us, event.cells)) {
            return WindowAddOutcome::Duplicate;
        }
        self.newest_us = self.newest_us.max(Some(event.event_us));
        self.events.push(event.clone());
        WindowAddOutcome::New
    }
}

/// The values of a column in a window.
struct WindowValues {
    values: Vec<(i64, i64)>,
    sum: i128,
    squares: i128,
    distinct: i64,
    /// The most distinct values in a step.
    variety: usize,
}

impl WindowValues {
    fn of(events: &[WindowEvent], aggregation: &Aggregation, now_us: i64) -> Self {
        let window_us = aggregation.time_window.as_micros() as i64;
        let step_us = aggregation.slide_interval.as_micros() as i64;
        let end_us = match aggregation.kind {
            WindowKind::Sliding => now_us - now_us.rem_euclid(step_us) + step_us,
            WindowKind::Tumbling => now_us - now_us.rem_euclid(window_us),
        };
        let inside = events.iter().filter(|event| end_us - window_us <= event.event_us && event.event_us < end_us);
        let values: Vec<(i64, i64)> =
            inside.filter_map(|event| Some((event.event_us, event.cells[aggregation.column]?))).collect();
        let mut steps: HashMap<i64, HashSet<i64>> = HashMap::new();
        for (event_us, value) in &values {
            steps.entry(event_us.div_euclid(step_us)).or_default().insert(*value);
        }
        Self {
            sum: values.iter().map(|(_, value)| i128::from(*value)).sum(),
            squares: values.iter().map(|(_, value)| i128::from(*value) * i128::from(*value)).sum(),
            distinct: values.iter().map(|(_, value)| value).collect::<HashSet<_>>().len() as i64,
            variety: steps.values().map(HashSet::len).max().unwrap_or(0),
            values,
        }
    }
}

/// The relative errors of estimates.
#[derive(Default)]
struct Estimates(Vec<f64>);

fn check(window: &WindowValues, aggregation: &Aggregation, got: Option<&Value>, estimates: &mut Estimates) {
    let unit = if aggregation.column == 0 { FLOAT_UNIT } else { 1.0 };
    let &WindowValues { ref values, sum, squares, distinct, variety } = window;
    let count = values.len() as i128;
    let numbers = || values.iter().map(|(_, value)| *value as f64 / unit);

    let near = |expected: Option<f64>| match (got, expected) {
        (None, None) => true,
        (Some(Value::Float64(got)), Some(expected)) => (got - expected).abs() <= expected.abs() * 1e-9,
        _ => false,
    };

    let right = match aggregation.function {
        AggregateFunction::Count => got == Some(&Value::Int64(count as i64)),
        AggregateFunction::Sum => near((count > 0).then(|| sum as f64 / unit)),
        AggregateFunction::Mean => near((count > 0).then(|| sum as f64 / unit / count as f64)),
        AggregateFunction::Min => got == numbers().reduce(f64::min).map(Value::Float64).as_ref(),
        AggregateFunction::Max => got == numbers().reduce(f64::max).map(Value::Float64).as_ref(),
        AggregateFunction::Std => {
            let variance = |count: i128| (count * squares - sum * sum) as f64 / (count * (count - 1)) as f64;
            near((count > 1).then(|| variance(count).sqrt() / unit))
        }
        AggregateFunction::Last => {
            // Of the greatest, `max_by_key` takes the one that came last.
            let last = values.iter().max_by_key(|(event_us, _)| *event_us).map(|(_, value)| *value);
            let last = last.map(|value| match aggregation.column {
                0 => Value::Float64(value as f64 / FLOAT_UNIT),
                1 => Value::Int64(value),
                _ => Value::String(format!("text {value}").as_str().into()),
            });
            got == last.as_ref()
        }
        AggregateFunction::CountDistinct => match got {
            Some(Value::Int64(got)) if variety > 24 => {
                let error = (*got - distinct) as f64 / distinct as f64;
                estimates.0.push(error);
                error.abs() < 4.0 * 0.065
            }
            _ => got == Some(&Value::Int64(distinct)),
        },
    };

    assert!(right, "{aggregation:?}: {got:?} of {values:?}");
}

/// Every function over sliding and tumbling windows, of a minute to 30 days.
fn every_window(lateness: Duration) -> FeatureView {
    let mut view = view(&[ScalarType::Float64, ScalarType::Int64, ScalarType::String], lateness);
    let minutes = Duration::from_mins;
    let days = |days: u64| Duration::from_hours(24 * days);
    for (column, window, step) in [
        (0, minutes(1), Duration::from_secs(10)),
        (0, days(1), minutes(60)),
        (0, days(3), minutes(60)),
        (0, minutes(5), minutes(5)),
        (1, minutes(360), minutes(15)),
        (1, days(30), days(1)),
        (1, minutes(60), minutes(60)),
        (2, minutes(60), minutes(5)),
        (2, days(1), days(1)),
    ] {
        let kind = if window == step { WindowKind::Tumbling } else { WindowKind::Sliding };
        view.aggregations.extend(every_function(column, window, step, kind));
    }
    let counts = |function| {
        matches!(function, AggregateFunction::Count | AggregateFunction::Last | AggregateFunction::CountDistinct)
    };
    view.aggregations.retain(|aggregation| aggregation.column < 2 || counts(aggregation.function));
    view
}

#[test]
fn aggregates_are_those_of_all_events_at_once() {
    let mut random = Random(1);
    let mut estimates = Estimates::default();
    let (mut checked, mut outcomes) = (0, [0; 3]);

    // The second one goes over the epoch.
    for (lateness_us, start_us) in
        [(0, 1_700_000_000 * SECOND), (2 * 60 * SECOND, -20 * HOUR), (HOUR, 1_800_000_000 * SECOND)]
    {
        let view = every_window(Duration::from_micros(lateness_us as u64));
        let entity = |variety| SimulatedEntity {
            state: WindowState::default(),
            events: Vec::new(),
            newest_us: None,
            seen: HashSet::new(),
            sent: Vec::new(),
            clock_us: start_us,
            variety,
        };
        let mut entities = [5, 50, 500, 5000, 500_000, 5_000_000, 50_000_000].map(entity);

        for _ in 0..33_400 {
            let at = random.below(entities.len());
            let entity = &mut entities[at];
            let event = entity.next(&mut random, lateness_us);
            let expected = entity.expect(&event, lateness_us);
            assert_eq!(entity.state.add(&view, event.event_us, &event.values()), expected);
            outcomes[expected as usize] += 1;

            if random.below(50) == 0 {
                let mut bytes = Vec::new();
                entity.state.encode(&mut bytes);
                assert_eq!(WindowState::decode(&bytes).as_ref(), Ok(&entity.state));
                entity.state = WindowState::decode(&bytes).unwrap();
            }

            if random.below(200) > 0 {
                continue;
            }

            let horizon_us = entity.newest_us.unwrap() - lateness_us;
            let later_us = [lateness_us, 60 * SECOND, 2 * HOUR, 50 * HOUR][random.below(4)];
            let now_us = horizon_us + random.up_to(later_us);

            let mut window = None;
            for (at, aggregation) in view.aggregations.iter().enumerate() {
                let got = entity.state.evaluate(&view, at, now_us);
                let same = (aggregation.column, aggregation.time_window, aggregation.slide_interval, aggregation.kind);
                if window.as_ref().is_none_or(|(key, _)| *key != same) {
                    window = Some((same, WindowValues::of(&entity.events, aggregation, now_us)));
                }
                let (_, window) = window.as_ref().unwrap();
                check(window, aggregation, got.as_ref(), &mut estimates);
                checked += 1;
            }
        }
    }

    let squares: f64 = estimates.0.iter().map(|error| error * error).sum();
    let error = (squares / estimates.0.len() as f64).sqrt();
    println!(
        "{checked} aggregates, outcomes {outcomes:?}, {} estimates with a standard error of {error:.4}",
        estimates.0.len()
    );
    assert!(error < 0.07, "{error}");
    assert!(outcomes.iter().all(|count| *count > 1000), "every outcome was met: {outcomes:?}");
    assert!(checked > 25_000 && estimates.0.len() > 1000);
}
