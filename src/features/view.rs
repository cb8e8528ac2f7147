//! The declarations: entities, feature views, feature services, in Feast's words. Valid by construction: only
//! [`super::registry`] makes them.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::value::{ScalarType, ValueType};

/// The number of a feature view in the store, which its name keeps for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ViewId(pub u32);

/// The number of a field in its view, which its name keeps for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldId(pub u16);

/// A feature view: rows of features for each entity, of which the newest by event time counts.
#[derive(Debug, Clone, PartialEq)]
pub struct FeatureView {
    /// Its number in the store.
    pub id: ViewId,
    pub name: Arc<str>,
    pub description: String,
    pub entities: Vec<Arc<str>>,
    /// The join keys, by name: together they are the entity key of a row.
    pub join_keys: Vec<JoinKey>,
    /// The columns that are pushed, each a feature.
    pub fields: Vec<ViewField>,
    /// Aggregates over the events that are pushed, each a feature.
    pub aggregations: Vec<Aggregation>,
    /// The time for which a row counts after its event; `None` is for ever.
    pub ttl: Option<Duration>,
    /// The most by which an event may be older than the newest event of its entity and still enter the aggregates.
    pub lateness: Duration,
    /// The push source of the rows.
    pub source: PushSource,
    /// The features that are watched for unusual rows; `None`: none.
    pub unusual: Option<WatchedFeatures>,
}

/// The features of a view whose rows are compared with what is usual of their entity.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchedFeatures {
    /// From 1 to 32, each a number.
    pub features: Vec<FeaturePosition>,
    /// One row of an entity is judged in this time.
    pub interval: Duration,
    /// The false alarms of one entity in a week that the owner accepts.
    pub alarms_per_week: f64,
    /// The same as a text. What was learnt under another one is dropped.
    pub declaration: Arc<str>,
}

impl WatchedFeatures {
    /// The interval, in milliseconds and in microseconds.
    pub fn interval_ms(&self) -> i64 {
        i64::try_from(self.interval.as_millis()).unwrap_or(i64::MAX)
    }

    pub fn interval_us(&self) -> i64 {
        self.interval_ms().saturating_mul(1000)
    }
}

/// A part of an entity key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinKey {
    /// The name of the column.
    pub name: Arc<str>,
    pub value_type: ScalarType,
}

/// A column of a feature view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewField {
    /// Its number in the view.
    pub id: FieldId,
    pub name: Arc<str>,
    pub value_type: ValueType,
    /// True when a push may omit the column, which is then null.
    pub optional: bool,
    pub description: String,
}

/// An aggregate over a window of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aggregation {
    /// The name of the feature; Feast's is `FUNCTION_COLUMN_SECONDSs`.
    pub name: Arc<str>,
    /// The index of the column in [`FeatureView::fields`].
    pub column: usize,
    pub function: AggregateFunction,
    /// The length of the window.
    pub time_window: Duration,
    /// The length of the steps in which the window moves.
    pub slide_interval: Duration,
    /// The end of the window: now, or the end of the last complete window.
    pub kind: WindowKind,
    /// The type of the result.
    pub value_type: ValueType,
}

/// The function computed over a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AggregateFunction {
    /// The number of values that are not null. Int64.
    Count,
    /// Their sum. Float64.
    Sum,
    /// Their mean. Float64.
    Mean,
    /// The least. Float64.
    Min,
    /// The greatest. Float64.
    Max,
    /// The newest by event time. The column's type.
    Last,
    /// The sample standard deviation (n - 1); null below two values. Float64.
    Std,
    /// An estimate of the number of distinct values. Int64.
    CountDistinct,
}

/// The end of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WindowKind {
    /// The end of the current step: the last `time_window`, the present included.
    #[default]
    Sliding,
    /// The end of the last complete window: windows of `time_window` one after the other since the epoch.
    Tumbling,
}

/// The source of a view's rows: Feast's push source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushSource {
    /// The name that pushes use.
    pub name: Arc<str>,
    /// The column with the event time; a push without it counts as of now.
    pub timestamp_field: Arc<str>,
}

/// A feature service: a named choice of features, usually what one model needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureService {
    pub name: Arc<str>,
    pub description: String,
    /// `VIEW:FEATURE`, in order, whole views spelled out.
    pub features: Vec<(Arc<str>, Arc<str>)>,
}

/// The position of a feature in its view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FeaturePosition {
    /// An index into [`FeatureView::fields`].
    Field(usize),
    /// An index into [`FeatureView::aggregations`].
    Aggregation(usize),
}

/// One feature of one view.
#[derive(Debug, Clone)]
pub struct Feature {
    pub view: Arc<FeatureView>,
    pub index: FeaturePosition,
}

impl FeatureView {
    /// The position of a feature by its name.
    pub fn feature(&self, name: &str) -> Option<FeaturePosition> {
        let field = self.fields.iter().position(|field| &*field.name == name).map(FeaturePosition::Field);
        field.or_else(|| {
            let at = self.aggregations.iter().position(|aggregation| &*aggregation.name == name);
            at.map(FeaturePosition::Aggregation)
        })
    }

    /// The name of the feature at a position of this view.
    pub fn name_at(&self, position: FeaturePosition) -> &str {
        match position {
            FeaturePosition::Field(at) => self.fields.get(at).map_or("", |field| &field.name),
            FeaturePosition::Aggregation(at) => self.aggregations.get(at).map_or("", |aggregation| &aggregation.name),
        }
    }

    /// The names of all features, columns first.
    pub fn feature_names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.fields.iter().map(|field| &field.name).chain(self.aggregations.iter().map(|aggregate| &aggregate.name))
    }

    /// True for the name of a join key.
    pub fn has_join_key(&self, name: &str) -> bool {
        self.join_keys.iter().any(|key| &*key.name == name)
    }

    /// True when a push may have a column of this name: a join key, a feature, or the event time.
    pub fn has_column(&self, name: &str) -> bool {
        self.has_join_key(name)
            || self.fields.iter().any(|field| &*field.name == name)
            || &*self.source.timestamp_field == name
    }

    /// The time for which a row counts after its event, in microseconds.
    pub fn ttl_us(&self) -> Option<i64> {
        self.ttl.map(|ttl| i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX))
    }
}

#[expect(clippy::indexing_slicing, reason = "an index is of its view: only the registry makes features")]
impl Feature {
    /// Its name within the view.
    pub fn name(&self) -> &Arc<str> {
        match self.index {
            FeaturePosition::Field(at) => &self.view.fields[at].name,
            FeaturePosition::Aggregation(at) => &self.view.aggregations[at].name,
        }
    }

    /// Its type.
    pub fn value_type(&self) -> ValueType {
        match self.index {
            FeaturePosition::Field(at) => self.view.fields[at].value_type,
            FeaturePosition::Aggregation(at) => self.view.aggregations[at].value_type,
        }
    }
}
