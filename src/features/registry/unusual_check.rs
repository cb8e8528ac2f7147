//! Checks `[feature_view.unusual]`.

use std::time::Duration;

use ledge_anomaly::FEATURES_MAX;

use super::declared::{DeclaredRegistry, TomlPlace};
use super::duration::shown;
use super::file::UnusualToml;
use crate::value::{ScalarType, ValueType};
use crate::view::{Aggregation, FeaturePosition, ViewField, WatchedFeatures};

/// The shortest and the longest interval.
const INTERVAL_RANGE: [Duration; 2] = [Duration::from_secs(1), Duration::from_hours(24)];
const INTERVAL_DEFAULT: Duration = Duration::from_mins(1);

const ALARMS_PER_WEEK_DEFAULT: f64 = 1.0;

/// The features of the view that is checked.
pub struct WatchedView<'v> {
    pub fields: &'v [ViewField],
    pub aggregations: &'v [Aggregation],
    /// False when features with mistakes are missing here.
    pub is_whole: bool,
}

/// A feature that may be watched.
struct Candidate<'v> {
    name: &'v str,
    position: FeaturePosition,
    value_type: ValueType,
    /// Its name, and of an aggregation what it is computed from.
    declaration: String,
}

impl WatchedView<'_> {
    fn candidates(&self) -> impl Iterator<Item = Candidate<'_>> {
        let fields = self.fields.iter().enumerate().map(|(at, field)| Candidate {
            name: &field.name,
            position: FeaturePosition::Field(at),
            value_type: field.value_type,
            declaration: field.name.to_string(),
        });
        let aggregations = self.aggregations.iter().enumerate().map(|(at, aggregation)| {
            let column = self.fields.get(aggregation.column).map_or("", |field| &field.name);
            let Aggregation { name, function, time_window, slide_interval, kind, .. } = aggregation;
            let (window, slide) = (shown(*time_window), shown(*slide_interval));
            Candidate {
                name,
                position: FeaturePosition::Aggregation(at),
                value_type: aggregation.value_type,
                declaration: format!("{name}={function:?}({column},{window},{slide},{kind:?})"),
            }
        });
        fields.chain(aggregations)
    }
}

fn is_number(value_type: ValueType) -> bool {
    let numbers = [ScalarType::Int32, ScalarType::Int64, ScalarType::Float32, ScalarType::Float64];
    matches!(value_type, ValueType::Scalar(scalar) if numbers.contains(&scalar))
}

impl DeclaredRegistry<'_> {
    pub(super) fn unusual(
        &mut self,
        toml: &UnusualToml,
        place: &TomlPlace<'_>,
        view: &WatchedView<'_>,
    ) -> Option<WatchedFeatures> {
        let before = self.mistakes.len();
        let interval = toml.interval.map_or(INTERVAL_DEFAULT, |interval| interval.0);
        let [shortest, longest] = INTERVAL_RANGE;
        if !(shortest..=longest).contains(&interval) {
            let message = format!("{} is out of range: expected 1s to 1d", shown(interval));
            self.report(&place.at("interval"), message);
        }
        let alarms_per_week = toml.alarms_per_week.unwrap_or(ALARMS_PER_WEEK_DEFAULT);
        if !(0.001..=1000.0).contains(&alarms_per_week) {
            self.report(
                &place.at("alarms_per_week"),
                format!("{alarms_per_week} is out of range: expected 0.001 to 1000"),
            );
        }

        let chosen = match &toml.features {
            Some(names) => self.named(names, place, view),
            None => self.all_numbers(place, view),
        };
        let declared: Vec<&str> = chosen.iter().map(|candidate| candidate.declaration.as_str()).collect();
        let declaration = format!("{} {alarms_per_week} {}", shown(interval), declared.join(" ")).into();
        let features = chosen.iter().map(|candidate| candidate.position).collect();
        (self.mistakes.len() == before).then_some(WatchedFeatures { features, interval, alarms_per_week, declaration })
    }

    fn named<'v>(&mut self, names: &[String], place: &TomlPlace<'_>, view: &'v WatchedView<'_>) -> Vec<Candidate<'v>> {
        if !(1..=FEATURES_MAX).contains(&names.len()) {
            let message = format!("has {} features: expected 1 to {FEATURES_MAX}", names.len());
            self.report(&place.at("features"), message);
        }
        let mut chosen = Vec::with_capacity(names.len());
        for (at, name) in names.iter().enumerate() {
            let place = place.element("features", at);
            if names.iter().take(at).any(|earlier| earlier == name) {
                self.report(&place, format!("'{name}' is in this list twice"));
            }
            match view.candidates().find(|candidate| candidate.name == name) {
                Some(candidate) if is_number(candidate.value_type) => chosen.push(candidate),
                Some(candidate) => {
                    let message = format!("'{name}' is {}, and only numbers can be watched", candidate.value_type);
                    self.report(&place, message);
                }
                None if view.is_whole => self.report(&place, format!("this view has no feature '{name}'")),
                None => {}
            }
        }
        chosen
    }

    fn all_numbers<'v>(&mut self, place: &TomlPlace<'_>, view: &'v WatchedView<'_>) -> Vec<Candidate<'v>> {
        let numbers: Vec<_> = view.candidates().filter(|candidate| is_number(candidate.value_type)).collect();
        if numbers.is_empty() && view.is_whole {
            self.report(place, "this view has no feature that is a number");
        }
        if numbers.len() > FEATURES_MAX {
            let message = format!(
                "this view has {} features that are numbers, and at most {FEATURES_MAX} can be watched: name them in features",
                numbers.len()
            );
            self.report(place, message);
        }
        numbers
    }
}
