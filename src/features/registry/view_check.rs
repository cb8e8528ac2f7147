//! Checks one `[[feature_view]]`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::declared::{DeclaredRegistry, TomlPlace};
use super::duration::shown;
use super::file::{AggregateFunctionText, AggregationToml, FieldToml, ViewToml};
use super::unusual_check::WatchedView;
use crate::value::{ScalarType, ValueType};
use crate::view::{AggregateFunction, WindowKind};
use crate::view::{Aggregation, FeatureView, FieldId, JoinKey, PushSource, ViewField, ViewId};
use crate::window;

/// The most features of a view, aggregates included.
pub const FEATURES_MAX: usize = 512;

/// The shortest and the longest window.
const WINDOW_RANGE: [Duration; 2] = [Duration::from_mins(1), Duration::from_hours(30 * 24)];

/// The number of steps of a sliding window without a `slide_interval`, at most.
const DEFAULT_STEPS_MAX: u64 = 60;

/// The columns and features of one view, to detect repeated names.
#[derive(Default)]
struct UsedNames(HashMap<Arc<str>, &'static str>);

impl UsedNames {
    /// Takes a name, or reports the declaration that has it already.
    fn take(&mut self, name: &Arc<str>, what: &'static str) -> Option<String> {
        let other = self.0.insert(name.clone(), what)?;
        Some(format!("'{name}' is {other} of this view already: give one of them another name"))
    }
}

impl<'s> DeclaredRegistry<'s> {
    pub(super) fn view(&mut self, view: &ViewToml, place: TomlPlace<'s>) {
        let before = self.mistakes.len();
        let name = self.name("a feature view", &place, view.name.as_ref());
        if let Some(name) = &name
            && (name.contains("__") || name.ends_with('_'))
        {
            let message = "has \"__\" in it or \"_\" at its end: full feature names are VIEW__FEATURE";
            self.report(&place.at("name"), message);
        }

        let mut columns = UsedNames::default();
        let join_keys = self.join_keys(view, &place, &mut columns);
        let source = self.source(view, &place, name.as_ref(), &mut columns);
        let (fields, field_places) = self.schema(view, &place, &mut columns);
        // A column without a name is not reported as unknown.
        let whole = fields.len() == view.schema.len();

        let lateness = view.lateness.unwrap_or_default().0;
        let [_, longest] = WINDOW_RANGE;
        if lateness > longest {
            self.report(&place.at("lateness"), "is longer than the longest window, 30d");
        }
        if lateness > Duration::ZERO && view.aggregation.is_empty() {
            self.report(&place.at("lateness"), "is only for aggregations, and this view has none: remove it");
        }

        let mut aggregations = Vec::with_capacity(view.aggregation.len());
        for (at, aggregation) in view.aggregation.iter().enumerate() {
            let place = place.element("aggregation", at);
            let Some(made) = self.aggregation(aggregation, &place, &fields, whole) else { continue };
            if let Some(problem) = columns.take(&made.name, "an aggregation") {
                self.report(&place, problem);
            }
            aggregations.push(made);
        }

        let count = view.schema.len() + view.aggregation.len();
        if count > FEATURES_MAX {
            self.report(
                &place,
                format!("has {count} features, and the limit is {FEATURES_MAX}: split it into several views"),
            );
        }

        let unusual = view.unusual.as_ref().and_then(|toml| {
            // A view with other mistakes may lack features that are named here.
            let is_whole = self.mistakes.len() == before;
            self.unusual(
                toml,
                &place.at("unusual"),
                &WatchedView { fields: &fields, aggregations: &aggregations, is_whole },
            )
        });

        let flawless = |declared: &Self| declared.mistakes.len() == before;
        let (Some(name), Some(source), true) = (name, source, flawless(self)) else { return };
        let view = FeatureView {
            id: ViewId(0),
            name,
            description: view.description.clone(),
            entities: view.entities.iter().map(|entity| entity.as_str().into()).collect(),
            join_keys,
            fields,
            aggregations,
            ttl: view.ttl.map(|ttl| ttl.0).filter(|ttl| *ttl > Duration::ZERO),
            lateness,
            source,
            unusual,
        };

        match window::state_limit_problem(&view) {
            Some(problem) => self.report(&place, problem),
            None => self.views.push((view, place, field_places)),
        }
    }

    fn join_keys(&mut self, view: &ViewToml, place: &TomlPlace<'_>, columns: &mut UsedNames) -> Vec<JoinKey> {
        if view.entities.is_empty() {
            self.report(place, "needs the key entities: the entities that its rows describe");
        }
        let mut join_keys = Vec::with_capacity(view.entities.len());
        for (at, name) in view.entities.iter().enumerate() {
            let place = place.element("entities", at);
            let Some(entity) = self.entities.get(name.as_str()).cloned() else {
                self.report(&place, format!("there is no entity '{name}': declare it with [[entity]]"));
                continue;
            };
            if let Some(problem) = columns.take(&entity.join_key, "a join key") {
                self.report(&place, problem);
            }
            join_keys.push(JoinKey { name: entity.join_key, value_type: entity.value_type });
        }
        join_keys.sort_by(|one, other| one.name.cmp(&other.name));
        join_keys
    }

    fn source(
        &mut self,
        view: &ViewToml,
        place: &TomlPlace<'_>,
        view_name: Option<&Arc<str>>,
        columns: &mut UsedNames,
    ) -> Option<PushSource> {
        let named = view.source.name.as_ref().map(|name| name.as_str().into());
        let timestamp_field: Arc<str> =
            view.source.timestamp_field.as_ref().map_or("event_timestamp", |name| name.as_str()).into();
        let place = place.at("source");
        if let Some(problem) = columns.take(&timestamp_field, "the event time") {
            self.report(&place.at("timestamp_field"), problem);
        }
        let source = PushSource { name: named.or_else(|| view_name.cloned())?, timestamp_field };
        let key = if view.source.timestamp_field.is_some() { "timestamp_field" } else { "name" };
        self.timestamp(&source.name, &source.timestamp_field, &place.at(key));
        Some(source)
    }

    fn schema(
        &mut self,
        view: &ViewToml,
        place: &TomlPlace<'s>,
        columns: &mut UsedNames,
    ) -> (Vec<ViewField>, Vec<TomlPlace<'s>>) {
        if view.schema.is_empty() {
            self.report(place, "needs the key schema: the columns that are pushed, such as [{ name = \"temperature\", dtype = \"Float32\" }]");
        }
        let (mut fields, mut places) = (Vec::with_capacity(view.schema.len()), Vec::with_capacity(view.schema.len()));
        for (at, field) in view.schema.iter().enumerate() {
            let place = place.element("schema", at);
            let FieldToml { name, dtype, optional, description } = field;
            let name = self.required(&place, "name", name.as_ref());
            let dtype = self.required(&place, "dtype", dtype.as_ref());
            let (Some(name), Some(value_type)) = (name, dtype) else { continue };
            let name: Arc<str> = name.as_str().into();
            if let Some(problem) = columns.take(&name, "a feature") {
                self.report(&place.at("name"), problem);
            }
            let (optional, description) = (*optional, description.clone());
            fields.push(ViewField { id: FieldId(0), name, value_type, optional, description });
            places.push(place);
        }
        (fields, places)
    }

    fn aggregation(
        &mut self,
        toml: &AggregationToml,
        place: &TomlPlace<'_>,
        fields: &[ViewField],
        whole: bool,
    ) -> Option<Aggregation> {
        let before = self.mistakes.len();
        let column = self.required(place, "column", toml.column.as_ref());
        let function = self.required(place, "function", toml.function.as_ref());
        let time_window = self.required(place, "time_window", toml.time_window.as_ref()).map(|window| window.0);
        let kind = toml.kind.map_or(WindowKind::Sliding, |kind| kind.0);

        if let Some(window) = time_window {
            self.window(window, place);
        }
        let slide_interval = self.slide(toml, time_window, kind, place);

        let (column_name, function, time_window) = (column?, function?, time_window?);
        let Some(column) = fields.iter().position(|field| *field.name == *column_name) else {
            if whole {
                let message = format!("there is no column '{column_name}' in the schema of this view");
                self.report(&place.at("column"), message);
            }
            return None;
        };

        let column_type = fields.get(column)?.value_type;
        let value_type = match result_type(function.0, column_type) {
            Ok(value_type) => value_type,
            Err(problem) => {
                self.report(
                    &place.at("function"),
                    format!("{function} takes {problem}, and '{column_name}' is {column_type}"),
                );
                return None;
            }
        };

        let name = match &toml.name {
            Some(name) => name.as_str().into(),
            // Feast's default name.
            None => feast_name(function, &column_name, time_window, place, self)?,
        };

        let slide_interval = slide_interval?;
        let function = function.0;
        (self.mistakes.len() == before).then_some(Aggregation {
            name,
            column,
            function,
            time_window,
            slide_interval,
            kind,
            value_type,
        })
    }

    fn window(&mut self, window: Duration, place: &TomlPlace<'_>) {
        let [shortest, longest] = WINDOW_RANGE;
        let place = place.at("time_window");
        if !(shortest..=longest).contains(&window) {
            let message = format!("{} is out of range: expected 1m to 30d", shown(window));
            self.report(&place, message);
        } else if window.subsec_nanos() != 0 {
            self.report(&place, format!("{} is not a whole number of seconds", shown(window)));
        }
    }

    /// The length of the steps of a window.
    fn slide(
        &mut self,
        toml: &AggregationToml,
        window: Option<Duration>,
        kind: WindowKind,
        place: &TomlPlace<'_>,
    ) -> Option<Duration> {
        let place = place.at("slide_interval");
        match (kind, toml.slide_interval) {
            (WindowKind::Tumbling, Some(_)) => {
                self.report(
                    &place,
                    "is only for sliding windows, and a tumbling one moves by its whole length: remove it",
                );
                None
            }
            (WindowKind::Tumbling, None) => window,
            (WindowKind::Sliding, Some(slide)) => {
                let (slide_ms, window) = (slide.0.as_millis(), window?);
                if slide_ms == 0 || !window.as_millis().is_multiple_of(slide_ms) {
                    let message = format!("{} does not divide the window of {}", shown(slide.0), shown(window));
                    self.report(&place, message);
                }
                Some(slide.0)
            }
            (WindowKind::Sliding, None) => Some(usual_slide(window?)),
        }
    }
}

/// The longest step of whole milliseconds that divides a window into at most 60 steps: a sixtieth of every window of
/// whole minutes.
fn usual_slide(window: Duration) -> Duration {
    let ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
    let steps = (1..=DEFAULT_STEPS_MAX).rev().find(|&steps| ms.is_multiple_of(steps)).unwrap_or(1);
    Duration::from_millis(ms / steps)
}

/// Feast's default name of an aggregation.
fn feast_name(
    function: AggregateFunctionText,
    column: &str,
    window: Duration,
    place: &TomlPlace<'_>,
    declared: &mut DeclaredRegistry<'_>,
) -> Option<Arc<str>> {
    let name = format!("{function}_{column}_{}s", window.as_secs());
    if name.len() > ledge_base::names::MAX_NAME_LENGTH {
        declared.report(place, format!("'{name}' is longer than 128 bytes: give it a name"));
        return None;
    }
    Some(name.into())
}

/// The type of an aggregate, or an error that names the columns that its function takes.
fn result_type(function: AggregateFunction, column: ValueType) -> Result<ValueType, &'static str> {
    let ValueType::Scalar(scalar) = column else { return Err("columns that are not lists") };
    let is_number = matches!(scalar, ScalarType::Int32 | ScalarType::Int64 | ScalarType::Float32 | ScalarType::Float64);
    match function {
        AggregateFunction::Count | AggregateFunction::CountDistinct => Ok(ValueType::Scalar(ScalarType::Int64)),
        AggregateFunction::Last => Ok(column),
        AggregateFunction::Sum
        | AggregateFunction::Mean
        | AggregateFunction::Min
        | AggregateFunction::Max
        | AggregateFunction::Std
            if is_number =>
        {
            Ok(ValueType::Scalar(ScalarType::Float64))
        }
        AggregateFunction::Sum
        | AggregateFunction::Mean
        | AggregateFunction::Min
        | AggregateFunction::Max
        | AggregateFunction::Std => Err("numbers"),
    }
}
