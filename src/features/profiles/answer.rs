//! The answers about profiles: what is unusual, forecasts, and "this was normal".

use std::sync::Arc;

use ledge_anomaly::{ForecastError, ForecastPoint};
use ledge_base::clock;
use ledge_base::principal::Principal;
use ledge_part::api_error::ApiError;
use ledge_service::audit_event::AuditEvent;
use ledge_service::audit_event::feature::FeatureAction;
use serde::{Deserialize, Serialize};

use super::profile::{EntityProfile, ExplainedFeature, UnusualRow};
use super::set::ProfileCounts;
use crate::FeatureStore;
use crate::caller::{FeatureCaller, TouchedRows};
use crate::engine::StoreEngine;
use crate::online::{DisclosedProfile, FeatureError, JoinKeyValues, listed};
use crate::value::{ScalarType, Value, ValueType};
use crate::view::{FeatureView, JoinKey, WatchedFeatures};

/// The most entities that are listed of a view, those with the highest scores. Others are counted.
const LISTED_ENTITIES_MAX: usize = 1000;

/// The answer of `GET /features/unusual`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnusualRowsDocument {
    /// The views with `[feature_view.unusual]`.
    pub feature_views: Vec<UnusualViewDocument>,
}

/// A view, and its entities that are unusual now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnusualViewDocument {
    pub name: String,
    /// The features that are watched.
    pub features: Vec<String>,
    pub interval_s: f64,
    pub alarms_per_week: f64,
    #[serde(flatten)]
    pub counts: ProfileCounts,
    /// True when the last new entity found no memory: it is not watched.
    pub memory_full: bool,
    /// Those with the highest scores first.
    pub entities: Vec<UnusualEntityDocument>,
}

/// An unusual entity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnusualEntityDocument {
    pub join_keys: JoinKeyValues,
    /// The event times of its first unusual row and of its last one, in RFC 3339.
    pub since: String,
    pub event_timestamp: String,
    /// The score of its last unusual row. 1 is the threshold.
    pub score: f64,
    /// The features that explain that row, the largest share first.
    pub features: Vec<ExplainedFeatureDocument>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExplainedFeatureDocument {
    pub name: String,
    /// Its part of the score, from 0 to 1.
    pub share: f64,
    pub value: f64,
    /// The values that were usual.
    pub low: f64,
    pub high: f64,
}

/// The answer of `GET /features/forecast`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ForecastDocument {
    /// As `VIEW:FEATURE`.
    pub feature: String,
    pub interval_s: f64,
    /// The values that follow the last row that was learnt.
    pub values: Vec<ForecastValueDocument>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ForecastValueDocument {
    /// In RFC 3339.
    pub at: String,
    pub value: f64,
    /// The band that holds about nine values of ten.
    pub low: f64,
    pub high: f64,
}

/// A forecast that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForecastRequest {
    pub view: String,
    pub feature: String,
    /// The join keys and their values, as text.
    pub entity: Vec<(String, String)>,
    /// The number of values.
    pub count: usize,
}

/// Reasons for no answer. None names the entity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    #[error(transparent)]
    Store(#[from] FeatureError),
    #[error("feature view '{view}' is not watched: add [feature_view.unusual] to its declaration")]
    ViewNotWatched { view: String },
    #[error(
        "feature '{feature}' of feature view '{view}' is not watched: add it to the features of [feature_view.unusual]"
    )]
    FeatureNotWatched { view: String, feature: String },
    #[error("no row of this entity was learnt in feature view '{view}'")]
    UnknownEntity { view: String },
    #[error("no row of this entity was unusual, so none can be called normal")]
    NothingUnusual,
    #[error("{0}")]
    Forecast(ForecastError),
    #[error("it counts as normal until a restart, but cannot be written: {reason}")]
    NotWritten { reason: String },
}

impl From<ProfileError> for ApiError {
    fn from(error: ProfileError) -> Self {
        let status = match &error {
            ProfileError::Store(error) => return error.clone().into(),
            ProfileError::ViewNotWatched { .. }
            | ProfileError::FeatureNotWatched { .. }
            | ProfileError::UnknownEntity { .. } => 404,
            ProfileError::NothingUnusual | ProfileError::Forecast(ForecastError::TooFewSamples { .. }) => 409,
            ProfileError::Forecast(ForecastError::Length | ForecastError::Coverage) => 422,
            ProfileError::NotWritten { .. } => 500,
        };
        Self::with_code(status, error.to_string())
    }
}

impl FeatureStore {
    /// The entities that are unusual now, of one view or of all that the caller may read.
    pub fn unusual_rows(
        &self,
        view: Option<&str>,
        caller: &FeatureCaller,
    ) -> Result<UnusualRowsDocument, ProfileError> {
        let engine = self.ready_engine()?;
        let registry = engine.registry.load();
        let views: Vec<Arc<FeatureView>> = match view {
            Some(name) => vec![registry.view(name)?.clone()],
            None => registry
                .views()
                .filter(|view| view.unusual.is_some() && caller.views.has(&view.name))
                .cloned()
                .collect(),
        };
        caller.admit(views.iter(), &engine.audit)?;
        let feature_views = views.iter().map(|view| engine.unusual_of(view, caller)).collect::<Result<_, _>>()?;
        Ok(UnusualRowsDocument { feature_views })
    }

    /// The next values of a feature of an entity, with a band.
    pub fn forecast(
        &self,
        request: &ForecastRequest,
        caller: &FeatureCaller,
    ) -> Result<ForecastDocument, ProfileError> {
        let engine = self.ready_engine()?;
        let ForecastRequest { view, feature, entity, count } = request;
        let (view_name, feature_name) = (view.clone(), feature.clone());
        let view = engine.registry.load().view(view)?.clone();
        caller.admit([&view].into_iter(), &engine.audit)?;
        let unknown = || FeatureError::UnknownFeature { view: view_name.clone(), feature: feature_name.clone() };
        let position = view.feature(feature).ok_or_else(unknown)?;
        let watched = watched(&view)?;
        let not_watched = || ProfileError::FeatureNotWatched { view: view_name.clone(), feature: feature_name.clone() };
        let place = watched.features.iter().position(|known| *known == position).ok_or_else(not_watched)?;

        let entity = entity_of(&view, entity, |kind, text| Value::from_text(kind, text))?;
        let key = engine.hash_key.index_key(view.id, &entity);
        let found = engine.profiles.with(|set| set.get(&key).map(|profile| profile.forecast(place, *count)));
        let points = found.ok_or_else(|| ProfileError::UnknownEntity { view: view_name.clone() })?;
        let points = points.map_err(ProfileError::Forecast)?;

        let touched = TouchedRows::new(engine.audit.tag_key().as_deref(), &view, [entity.as_slice()].into_iter());
        caller.record(FeatureAction::Read, 1, &[touched], &engine.audit);
        let value = |point: ForecastPoint| ForecastValueDocument {
            at: clock::rfc3339_micros(point.time_ms.saturating_mul(1000)),
            value: point.value,
            low: point.low,
            high: point.high,
        };
        Ok(ForecastDocument {
            feature: format!("{view_name}:{feature_name}"),
            interval_s: watched.interval.as_secs_f64(),
            values: points.into_iter().map(value).collect(),
        })
    }

    /// Teaches that the last unusual row of an entity is normal, and writes that. The record does not name the entity.
    /// It may block for as long as the disk takes.
    pub fn call_row_normal(
        &self,
        view: &str,
        entity: &JoinKeyValues,
        principal: &Principal,
    ) -> Result<(), ProfileError> {
        let engine = self.ready_engine()?;
        let view = engine.registry.load().view(view)?.clone();
        let watched = watched(&view)?;
        let given: Vec<(String, serde_json::Value)> =
            entity.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let entity = entity_of(&view, &given, |kind, json| {
            let value = Value::from_json(ValueType::Scalar(kind), json)?;
            value.ok_or_else(|| "a join key cannot be null".to_owned())
        })?;
        let key = engine.hash_key.index_key(view.id, &entity);
        match engine.profiles.teach_normal(engine, &key) {
            None => return Err(ProfileError::UnknownEntity { view: view.name.to_string() }),
            Some(false) => return Err(ProfileError::NothingUnusual),
            Some(true) => {}
        }
        let features = watched.features.len() as u64;
        let record = AuditEvent::UnusualRowCalledNormal { feature_view: view.name.to_string(), features };
        engine.audit.record(principal, record);
        engine.profiles.write(engine).map_err(|error| ProfileError::NotWritten { reason: error.to_string() })
    }

    fn ready_engine(&self) -> Result<&Arc<StoreEngine>, FeatureError> {
        let engine = self.engine()?;
        if engine.live().is_some() {
            Ok(engine)
        } else {
            Err(FeatureError::Unavailable { reason: engine.state.load().reason() })
        }
    }
}

impl StoreEngine {
    fn unusual_of(&self, view: &Arc<FeatureView>, caller: &FeatureCaller) -> Result<UnusualViewDocument, ProfileError> {
        let watched = watched(view)?;
        let (mut unusual, counts, memory_full) = self.profiles.with(|set| {
            let of_view = set.iter().map(|(_, profile)| profile).filter(|profile| profile.view == view.id);
            let unusual = of_view.filter_map(|profile| Some((profile.entity.clone(), profile.unusual.clone()?)));
            let counts = set.counts().remove(&view.id).unwrap_or_default();
            (unusual.collect::<Vec<(Vec<Value>, UnusualRow)>>(), counts, set.is_full())
        });
        unusual.sort_by(|(_, one), (_, next)| next.score.total_cmp(&one.score));
        unusual.truncate(LISTED_ENTITIES_MAX);
        if !unusual.is_empty() {
            let entities = unusual.iter().map(|(entity, _)| entity.as_slice());
            let touched = TouchedRows::new(self.audit.tag_key().as_deref(), view, entities);
            caller.record(FeatureAction::Read, 1, &[touched], &self.audit);
        }
        Ok(UnusualViewDocument {
            name: view.name.to_string(),
            features: watched.features.iter().map(|position| view.name_at(*position).to_owned()).collect(),
            interval_s: watched.interval.as_secs_f64(),
            alarms_per_week: watched.alarms_per_week,
            counts,
            memory_full,
            entities: unusual.iter().map(|(entity, row)| entity_document(view, watched, entity, row)).collect(),
        })
    }
}

fn watched(view: &FeatureView) -> Result<&WatchedFeatures, ProfileError> {
    view.unusual.as_ref().ok_or_else(|| ProfileError::ViewNotWatched { view: view.name.to_string() })
}

fn entity_document(
    view: &FeatureView,
    watched: &WatchedFeatures,
    entity: &[Value],
    row: &UnusualRow,
) -> UnusualEntityDocument {
    let features = row.features.iter().filter_map(|explained| {
        let name = view.name_at(*watched.features.get(usize::from(explained.feature))?).to_owned();
        let ExplainedFeature { share, value, low, high, .. } = *explained;
        Some(ExplainedFeatureDocument { name, share, value, low, high })
    });
    UnusualEntityDocument {
        join_keys: join_keys(view, entity),
        since: clock::rfc3339_micros(row.since_us),
        event_timestamp: clock::rfc3339_micros(row.event_us),
        score: row.score,
        features: features.collect(),
    }
}

/// A profile, for a disclosure.
pub fn disclosed(view: &FeatureView, profile: &EntityProfile) -> DisclosedProfile {
    let watched = view.unusual.iter().flat_map(|watched| &watched.features);
    let usual = watched.zip(profile.rows.bands());
    let features = usual.map(|(position, band)| (view.name_at(*position).to_owned(), band));
    DisclosedProfile {
        join_keys: join_keys(view, &profile.entity),
        rows: profile.rows.rows(),
        last_event_timestamp: clock::rfc3339_micros(profile.last_us),
        unusual_since: profile.unusual.as_ref().map(|row| clock::rfc3339_micros(row.since_us)),
        features: features.collect(),
    }
}

fn join_keys(view: &FeatureView, entity: &[Value]) -> JoinKeyValues {
    view.join_keys.iter().zip(entity).map(|(key, value)| (key.name.to_string(), value.to_json())).collect()
}

/// The entity of these join keys, which must be those of the view.
fn entity_of<T>(
    view: &FeatureView,
    given: &[(String, T)],
    value: impl Fn(ScalarType, &T) -> Result<Value, String>,
) -> Result<Vec<Value>, FeatureError> {
    if let Some((name, _)) = given.iter().find(|(name, _)| !view.has_join_key(name)) {
        let reason = format!("feature view '{}' has no join key {}", view.name, listed(&[name]));
        return Err(FeatureError::Columns { reason });
    }
    let of_key = |key: &JoinKey| {
        let column = || key.name.to_string();
        let found = given.iter().find(|(name, _)| **name == *key.name);
        let (_, found) = found.ok_or_else(|| FeatureError::MissingColumn {
            column: column(),
            view: view.name.to_string(),
            unknown: Vec::new(),
        })?;
        value(key.value_type, found).map_err(|reason| FeatureError::Value { column: column(), row: 0, reason })
    };
    view.join_keys.iter().map(of_key).collect()
}
