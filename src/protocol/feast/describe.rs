//! Documents about the declared feature views, feature services and entities, in Feast's words.

use std::collections::BTreeMap;

use ledge_features::registry::Registry;
use ledge_features::view::{AggregateFunction, WindowKind};
use ledge_features::view::{Aggregation, FeatureService, FeatureView};
use serde::Serialize;

/// A feature view.
#[derive(Debug, Serialize)]
pub struct ViewDescription<'a> {
    name: &'a str,
    description: &'a str,
    entities: &'a [std::sync::Arc<str>],
    join_keys: Vec<JoinKeyDocument<'a>>,
    schema: Vec<FieldDocument<'a>>,
    aggregations: Vec<AggregationDocument<'a>>,
    /// 0: rows never expire.
    ttl_s: f64,
    source: SourceDocument<'a>,
    /// Present when the rows of this view are watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    unusual: Option<WatchedDocument<'a>>,
}

#[derive(Debug, Serialize)]
struct WatchedDocument<'a> {
    features: Vec<&'a str>,
    interval_s: f64,
    alarms_per_week: f64,
}

#[derive(Debug, Serialize)]
struct JoinKeyDocument<'a> {
    name: &'a str,
    value_type: &'static str,
}

#[derive(Debug, Serialize)]
struct FieldDocument<'a> {
    name: &'a str,
    dtype: String,
    optional: bool,
    description: &'a str,
}

#[derive(Debug, Serialize)]
struct AggregationDocument<'a> {
    name: &'a str,
    column: &'a str,
    function: &'static str,
    time_window_s: f64,
    slide_interval_s: f64,
    kind: &'static str,
    dtype: String,
}

#[derive(Debug, Serialize)]
struct SourceDocument<'a> {
    name: &'a str,
    timestamp_field: &'a str,
}

/// A feature service.
#[derive(Debug, Serialize)]
pub struct ServiceDocument<'a> {
    name: &'a str,
    description: &'a str,
    features: Vec<String>,
}

/// An entity.
#[derive(Debug, Serialize)]
pub struct EntityDocument<'a> {
    name: &'a str,
    join_key: &'a str,
    value_type: &'static str,
    feature_views: Vec<&'a str>,
}

impl<'a> From<&'a FeatureView> for ViewDescription<'a> {
    fn from(view: &'a FeatureView) -> Self {
        let join_keys = view.join_keys.iter();
        let fields = view.fields.iter();
        Self {
            name: &view.name,
            description: &view.description,
            entities: &view.entities,
            join_keys: join_keys
                .map(|key| JoinKeyDocument { name: &key.name, value_type: key.value_type.as_str() })
                .collect(),
            schema: fields
                .map(|field| FieldDocument {
                    name: &field.name,
                    dtype: field.value_type.to_string(),
                    optional: field.optional,
                    description: &field.description,
                })
                .collect(),
            aggregations: view.aggregations.iter().map(|aggregation| aggregation_document(view, aggregation)).collect(),
            ttl_s: view.ttl.map_or(0.0, |ttl| ttl.as_secs_f64()),
            source: SourceDocument { name: &view.source.name, timestamp_field: &view.source.timestamp_field },
            unusual: view.unusual.as_ref().map(|watched| WatchedDocument {
                features: watched.features.iter().map(|at| view.name_at(*at)).collect(),
                interval_s: watched.interval.as_secs_f64(),
                alarms_per_week: watched.alarms_per_week,
            }),
        }
    }
}

fn aggregation_document<'a>(view: &'a FeatureView, aggregation: &'a Aggregation) -> AggregationDocument<'a> {
    AggregationDocument {
        name: &aggregation.name,
        column: view.fields.get(aggregation.column).map_or("", |field| &field.name),
        function: match aggregation.function {
            AggregateFunction::Count => "count",
            AggregateFunction::Sum => "sum",
            AggregateFunction::Mean => "mean",
            AggregateFunction::Min => "min",
            AggregateFunction::Max => "max",
            AggregateFunction::Last => "last",
            AggregateFunction::Std => "std",
            AggregateFunction::CountDistinct => "count_distinct",
        },
        time_window_s: aggregation.time_window.as_secs_f64(),
        slide_interval_s: aggregation.slide_interval.as_secs_f64(),
        kind: match aggregation.kind {
            WindowKind::Sliding => "sliding",
            WindowKind::Tumbling => "tumbling",
        },
        dtype: aggregation.value_type.to_string(),
    }
}

impl<'a> From<&'a FeatureService> for ServiceDocument<'a> {
    fn from(service: &'a FeatureService) -> Self {
        let features = service.features.iter().map(|(view, feature)| format!("{view}:{feature}")).collect();
        Self { name: &service.name, description: &service.description, features }
    }
}

/// The entities that feature views have, by name.
pub fn entities(registry: &Registry) -> Vec<EntityDocument<'_>> {
    let mut entities: BTreeMap<&str, EntityDocument> = BTreeMap::new();
    for view in registry.views() {
        for (name, key) in view.entities.iter().zip(&view.join_keys) {
            let entity = entities.entry(name).or_insert_with(|| EntityDocument {
                name,
                join_key: &key.name,
                value_type: key.value_type.as_str(),
                feature_views: Vec::new(),
            });
            entity.feature_views.push(&view.name);
        }
    }
    entities.into_values().collect()
}
