//! What is declared: entities, feature views, feature services, in Feast's words. Valid by construction: only
//! [`super::registry`] makes them.

use std::sync::Arc;
use std::time::Duration;

use super::value::{ScalarType, ValueType};

/// The number of a feature view in the store, which its name keeps for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    /// What a row is for, by name: together they are the entity key.
    pub join_keys: Vec<JoinKey>,
    /// The columns that are pushed, each a feature.
    pub fields: Vec<Field>,
    /// Aggregates over the events that are pushed, each a feature.
    pub aggregations: Vec<Aggregation>,
    /// How long a row counts after its event; `None` is for ever.
    pub ttl: Option<Duration>,
    /// How late an event may come, measured from the newest event of its entity, and still enter the aggregates.
    pub lateness: Duration,
    /// Where rows come from.
    pub source: Source,
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
pub struct Field {
    /// Its number in the view.
    pub id: FieldId,
    pub name: Arc<str>,
    pub value_type: ValueType,
    /// Whether a push may leave the column out, which is then null.
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
    pub function: Function,
    /// How long the window is.
    pub time_window: Duration,
    /// The steps in which it moves.
    pub slide_interval: Duration,
    /// Whether it ends now or with the last whole window.
    pub kind: Kind,
    /// The type of the result.
    pub value_type: ValueType,
}

/// What is computed over a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Function {
    /// How many values that are not null. Int64.
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
    /// An estimate of how many different ones. Int64.
    CountDistinct,
}

/// Where a window ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Kind {
    /// With the step that now is in: the last `time_window`, the present included.
    #[default]
    Sliding,
    /// With the last window that is over: windows of `time_window` one after the other since the epoch.
    Tumbling,
}

/// Where the rows of a view come from: Feast's push source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
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

/// Where in a view a feature is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FeatureIndex {
    /// An index into [`FeatureView::fields`].
    Field(usize),
    /// An index into [`FeatureView::aggregations`].
    Aggregation(usize),
}

/// One feature of one view.
#[derive(Debug, Clone)]
pub struct Feature {
    pub view: Arc<FeatureView>,
    pub index: FeatureIndex,
}

impl FeatureView {
    /// The place of a feature by its name.
    pub fn feature(&self, name: &str) -> Option<FeatureIndex> {
        let field = self.fields.iter().position(|field| &*field.name == name).map(FeatureIndex::Field);
        field.or_else(|| {
            let at = self.aggregations.iter().position(|aggregation| &*aggregation.name == name);
            at.map(FeatureIndex::Aggregation)
        })
    }

    /// The names of all features, columns first.
    pub fn feature_names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.fields.iter().map(|field| &field.name).chain(self.aggregations.iter().map(|aggregate| &aggregate.name))
    }

    /// Tells whether a push may have a column of this name: a join key, a feature, or the event time.
    pub fn has_column(&self, name: &str) -> bool {
        self.join_keys.iter().any(|key| &*key.name == name)
            || self.fields.iter().any(|field| &*field.name == name)
            || &*self.source.timestamp_field == name
    }

    /// How long a row counts after its event, in microseconds.
    pub fn ttl_us(&self) -> Option<i64> {
        self.ttl.map(|ttl| i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX))
    }
}

#[expect(clippy::indexing_slicing, reason = "an index is of its view: only the registry makes features")]
impl Feature {
    /// Its name within the view.
    pub fn name(&self) -> &Arc<str> {
        match self.index {
            FeatureIndex::Field(at) => &self.view.fields[at].name,
            FeatureIndex::Aggregation(at) => &self.view.aggregations[at].name,
        }
    }

    /// Its type.
    pub fn value_type(&self) -> ValueType {
        match self.index {
            FeatureIndex::Field(at) => self.view.fields[at].value_type,
            FeatureIndex::Aggregation(at) => self.view.aggregations[at].value_type,
        }
    }
}
