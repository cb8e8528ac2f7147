//! Requests of Feast's clients.
//!
//! Unknown keys are ignored, as in Feast's server: `transform_on_write`, `allow_registry_cache` and
//! `include_feature_view_version_metadata` have no meaning here, where nothing is transformed and the registry is
//! local.

use ledge_base::serde_messages::in_json;
use ledge_features::online::{
    EVENT_TIMESTAMP, FeaturePush, FeatureSelection, FrameColumns, OnlineFeaturesRequest, PushTarget, listed,
};
use ledge_features::registry::Registry;
use serde::Deserialize;

use super::ANSWER_CELLS_MAX;
use super::error::{FeastError, RequestMistake};
use super::frame::{DataFrame, FeatureReferences};

/// A decoded `/get-online-features`.
#[derive(Debug, PartialEq)]
pub struct OnlineFeaturesCall {
    pub request: OnlineFeaturesRequest,
    /// True when features are named `view__feature` in the answer.
    pub full_feature_names: bool,
}

#[derive(Deserialize)]
struct OnlineFeaturesBody {
    entities: DataFrame,
    feature_service: Option<String>,
    features: Option<FeatureReferences>,
    #[serde(default)]
    full_feature_names: bool,
}

#[derive(Deserialize)]
struct PushBody {
    push_source_name: String,
    df: DataFrame,
    to: Option<String>,
}

#[derive(Deserialize)]
struct WriteBody {
    feature_view_name: String,
    df: DataFrame,
}

/// Reads the body of `/get-online-features`. Feast takes the feature service when there are features as well.
pub fn decode_online_features(body: &[u8]) -> Result<OnlineFeaturesCall, FeastError> {
    let body: OnlineFeaturesBody = read(body)?;
    let selection = match (body.feature_service, body.features) {
        (Some(service), _) if !service.is_empty() => FeatureSelection::Service(service),
        (_, Some(FeatureReferences(features))) if !features.is_empty() => FeatureSelection::Features(features),
        _ => return Err(RequestMistake::new("missing", "features", "No features specified for retrieval").into()),
    };
    let request = OnlineFeaturesRequest { selection, entities: body.entities.0 };
    Ok(OnlineFeaturesCall { request, full_feature_names: body.full_feature_names })
}

impl OnlineFeaturesCall {
    /// Number of values that the answer has when no entity is missing. Refuses a request for too large an answer, and
    /// one with a column that is no join key. In Feast such a column is request data of an on-demand feature view, and
    /// the features of that view would be missing in the answer.
    pub fn check(&self, registry: &Registry) -> Result<usize, FeastError> {
        let is_join_key = |name: &str| registry.views().any(|view| view.has_join_key(name));
        let other: Vec<_> =
            self.request.entities.iter().map(|(name, _)| name).filter(|name| !is_join_key(name)).collect();
        // Without a view here, the store says so.
        if !other.is_empty() && !registry.is_empty() {
            let message = format!(
                "no feature view of this box has the join key {}. It computes no on-demand feature views, so it takes no \
                 request data: send join keys only, and compute such features from the answer",
                listed(&other)
            );
            return Err(RequestMistake::new("value_error", "entities", message).into());
        }
        let entities = self.request.entities.first().map_or(0, |(_, cells)| cells.len());
        let features = match &self.request.selection {
            FeatureSelection::Features(references) => {
                references.iter().map(|reference| count(registry, reference)).sum()
            }
            // The store refuses an unknown service.
            service @ FeatureSelection::Service(_) => registry.select(service).map_or(0, |features| features.len()),
        };
        let cells = features.saturating_mul(entities);
        if cells <= ANSWER_CELLS_MAX {
            return Ok(cells);
        }
        let message = format!(
            "{features} features of {entities} entities are more than {ANSWER_CELLS_MAX} values: ask for fewer entities at a time"
        );
        Err(RequestMistake::new("too_long", "entities", message).into())
    }
}

/// Number of features of a reference: one, or those of a whole view.
fn count(registry: &Registry, reference: &str) -> usize {
    if reference.contains(':') { 1 } else { registry.view(reference).map_or(1, |view| view.feature_names().count()) }
}

/// Reads the body of `/push`. A push that is also for an offline store is refused as a whole: a part that silently did
/// not happen would be missing in training data.
pub fn decode_push(body: &[u8]) -> Result<FeaturePush, FeastError> {
    let PushBody { push_source_name, df: DataFrame(columns), to } = read(body)?;
    match to.as_deref() {
        None | Some("online") => Ok(FeaturePush { target: PushTarget::Source(push_source_name), columns }),
        Some("offline" | "online_and_offline") => {
            let message = "Ledge has no offline store, so nothing of the push was stored: push with 'to': 'online'";
            Err(FeastError::new(501, message))
        }
        Some(_) => {
            let message = "Input should be 'online', 'offline' or 'online_and_offline'";
            Err(RequestMistake::new("literal_error", "to", message).into())
        }
    }
}

/// Reads the body of `/write-to-online-store`.
pub fn decode_write(body: &[u8], registry: &Registry) -> Result<FeaturePush, FeastError> {
    let WriteBody { feature_view_name: view, df: DataFrame(mut columns) } = read(body)?;
    if let Ok(view) = registry.view(&view) {
        name_timestamps(&mut columns, &view.source.timestamp_field);
    }
    Ok(FeaturePush { target: PushTarget::View(view), columns })
}

/// Renames the event times of Feast's client to the view's name for them.
fn name_timestamps(columns: &mut FrameColumns, field: &str) {
    if columns.iter().any(|(name, _)| name == field) {
        return;
    }
    if let Some((name, _)) = columns.iter_mut().find(|(name, _)| name == EVENT_TIMESTAMP) {
        field.clone_into(name);
    }
}

/// Reads a body, which is an object: serde's structs would take an array too.
fn read<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, FeastError> {
    let bad =
        |kind, error: &serde_json::Error| FeastError::from(RequestMistake::of_body(kind, in_json(&error.to_string())));
    let is_object = body.trim_ascii_start().first() == Some(&b'{');
    match serde_json::from_slice(body) {
        Ok(request) if is_object => Ok(request),
        Err(error) if !error.is_data() => Err(bad("json_invalid", &error)),
        Err(error) if is_object => Err(bad("value_error", &error)),
        _ => Err(RequestMistake::of_body("dict_type", "Input should be a valid dictionary").into()),
    }
}
