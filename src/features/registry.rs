//! The declared entities, feature views and feature services: `feature_views.d/*.toml`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::online::{FeatureError, Selection};
use super::value::{ScalarType, ValueType};
use super::view::{Feature, FeatureIndex, FeatureService, FeatureView, Field, FieldId, JoinKey, Source, ViewId};
use crate::toml_check::{self, Mistake};

/// What is declared.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    views: BTreeMap<Arc<str>, Arc<FeatureView>>,
    services: BTreeMap<Arc<str>, Arc<FeatureService>>,
}

impl Registry {
    /// Reads every `*.toml` of `folder`; a folder that does not exist declares nothing.
    pub fn load(folder: &Path) -> Result<Self, Vec<Mistake>> {
        let mut registry = Self::default();
        let Ok(entries) = std::fs::read_dir(folder) else { return Ok(registry) };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "toml") {
                continue;
            }
            let source = path.display().to_string();
            let text = std::fs::read_to_string(&path).map_err(|error| vec![Mistake::new(&source, "", error)])?;
            registry.add(toml_check::parse(&source, &text)?);
        }
        Ok(registry)
    }

    fn add(&mut self, file: File) {
        for view in file.feature_view {
            let id = ViewId(u32::try_from(self.views.len()).unwrap_or(0));
            let name: Arc<str> = view.name.as_str().into();
            let keys = file.entity.iter().filter(|entity| view.entities.contains(&entity.name));
            let keys = keys.map(|entity| JoinKey {
                name: entity.join_key.clone().unwrap_or_else(|| entity.name.clone()).as_str().into(),
                value_type: if entity.value_type == "String" { ScalarType::String } else { ScalarType::Int64 },
            });
            let fields = view.schema.iter().enumerate().map(|(at, field)| Field {
                id: FieldId(u16::try_from(at).unwrap_or(0)),
                name: field.name.as_str().into(),
                value_type: ScalarType::ALL
                    .into_iter()
                    .find(|kind| kind.as_str() == field.dtype)
                    .map_or(ValueType::Scalar(ScalarType::Float64), ValueType::Scalar),
                optional: field.optional,
                description: String::new(),
            });
            let view = FeatureView {
                id,
                name: name.clone(),
                description: String::new(),
                entities: view.entities.iter().map(|name| name.as_str().into()).collect(),
                join_keys: keys.collect(),
                fields: fields.collect(),
                aggregations: Vec::new(),
                ttl: (view.ttl_s > 0).then(|| Duration::from_secs(view.ttl_s)),
                lateness: Duration::ZERO,
                source: Source {
                    name: view.source.unwrap_or_else(|| format!("{name}_push")).as_str().into(),
                    timestamp_field: "event_timestamp".into(),
                },
            };
            self.views.insert(name, Arc::new(view));
        }
        for service in file.feature_service {
            let name: Arc<str> = service.name.as_str().into();
            let features = self.references(&service.features).unwrap_or_default();
            let features = features.iter().map(|feature| (feature.view.name.clone(), feature.name().clone())).collect();
            let service = FeatureService { name: name.clone(), description: String::new(), features };
            self.services.insert(name, Arc::new(service));
        }
    }

    /// Whether nothing is declared.
    pub fn is_empty(&self) -> bool {
        self.views.is_empty()
    }

    /// Every view, by name.
    pub fn views(&self) -> impl Iterator<Item = &Arc<FeatureView>> {
        self.views.values()
    }

    /// Every feature service, by name.
    pub fn services(&self) -> impl Iterator<Item = &Arc<FeatureService>> {
        self.services.values()
    }

    /// A view.
    pub fn view(&self, name: &str) -> Result<&Arc<FeatureView>, FeatureError> {
        self.views.get(name).ok_or_else(|| FeatureError::UnknownView { view: name.into() })
    }

    /// A view by its number in the store; `None` when it is declared no more.
    pub fn view_by_id(&self, id: ViewId) -> Option<&Arc<FeatureView>> {
        self.views.values().find(|view| view.id == id)
    }

    /// The views of a push source.
    pub fn source(&self, name: &str) -> Result<Vec<Arc<FeatureView>>, FeatureError> {
        let views: Vec<_> = self.views.values().filter(|view| &*view.source.name == name).cloned().collect();
        if views.is_empty() { Err(FeatureError::UnknownSource { source_name: name.into() }) } else { Ok(views) }
    }

    /// The features that a selection means, in its order.
    pub fn select(&self, selection: &Selection) -> Result<Vec<Feature>, FeatureError> {
        match selection {
            Selection::Features(references) => self.references(references),
            Selection::Service(name) => {
                let service = self.services.get(name.as_str());
                let service = service.ok_or_else(|| FeatureError::UnknownService { service: name.clone() })?;
                service.features.iter().map(|(view, feature)| self.feature(view, feature)).collect()
            }
        }
    }

    /// One feature.
    pub fn feature(&self, view: &str, feature: &str) -> Result<Feature, FeatureError> {
        let view = self.view(view)?;
        let unknown = || FeatureError::UnknownFeature { view: view.name.to_string(), feature: feature.into() };
        Ok(Feature { view: view.clone(), index: view.feature(feature).ok_or_else(unknown)? })
    }

    fn references(&self, references: &[String]) -> Result<Vec<Feature>, FeatureError> {
        let mut features = Vec::with_capacity(references.len());
        for reference in references {
            match reference.split_once(':') {
                Some((view, feature)) => features.push(self.feature(view, feature)?),
                None => {
                    let view = self.view(reference)?;
                    let columns = (0..view.fields.len()).map(FeatureIndex::Field);
                    let aggregates = (0..view.aggregations.len()).map(FeatureIndex::Aggregation);
                    features.extend(columns.chain(aggregates).map(|index| Feature { view: view.clone(), index }));
                }
            }
        }
        Ok(features)
    }
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct File {
    entity: Vec<EntityToml>,
    feature_view: Vec<ViewToml>,
    feature_service: Vec<ServiceToml>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct EntityToml {
    name: String,
    join_key: Option<String>,
    value_type: String,
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct ViewToml {
    name: String,
    entities: Vec<String>,
    ttl_s: u64,
    source: Option<String>,
    schema: Vec<FieldToml>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct FieldToml {
    name: String,
    dtype: String,
    optional: bool,
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct ServiceToml {
    name: String,
    features: Vec<String>,
}
