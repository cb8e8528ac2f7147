//! Values of the features of inputs, for every row.

use std::collections::BTreeSet;

use ledge_base::memory_budget::MemoryAccount;
use ledge_base::principal::Principal;
use ledge_features::online::{FeatureSelection, FieldStatus, FrameColumns, OnlineFeaturesRequest};
use ledge_features::registry::Registry;
use ledge_features::value::Value;
use ledge_features::{FeatureCaller, FeatureStore};
use ledge_identity::access::ViewScope;

use crate::repository::LoadedModel;
use crate::repository::feature_config::FeatureReference;
use crate::repository::model_config::PortConfig;
use crate::serving::feature_inputs::error::FeatureInputError;
use crate::serving::request::{FeatureRequest, UsedCell, ValueSource};

/// Values of the features of inputs, for every row.
pub(super) struct FeatureColumns<'m> {
    pub(super) rows: usize,
    pub(super) columns: Vec<(&'m FeatureReference, Vec<UsedCell>)>,
}

impl<'m> FeatureColumns<'m> {
    /// Collects the values that the caller gives, and reads all others from the store at once.
    pub(super) async fn read(
        store: &FeatureStore,
        registry: &Registry,
        model: &LoadedModel,
        wanted: &[&'m PortConfig],
        request: &FeatureRequest,
        (principal, account): (&Principal, &MemoryAccount),
    ) -> Result<Self, FeatureInputError> {
        let mut columns: Vec<(&FeatureReference, Vec<UsedCell>)> = Vec::new();
        let mut asked: Vec<&FeatureReference> = Vec::new();
        for feature in wanted.iter().flat_map(|port| &port.features).map(|feature| &feature.feature) {
            if columns.iter().any(|(known, _)| *known == feature) || asked.contains(&feature) {
                continue;
            }
            match request.given.iter().find(|(name, _)| name == feature.as_str()) {
                Some((_, cells)) => columns.push((feature, given(model, registry, feature, cells)?)),
                None => asked.push(feature),
            }
        }

        let mut rows = columns.first().map(|(feature, cells)| (feature.as_str(), cells.len()));
        if !asked.is_empty() {
            let entities = entities(model, registry, wanted, &asked, &request.entities)?;
            let key = entities.first().and_then(|(key, _)| request.entities.iter().find(|(name, _)| name == key));
            rows = key.map(|(key, cells)| (key.as_str(), cells.len())).or(rows);

            let selection =
                FeatureSelection::Features(asked.iter().map(|feature| feature.as_str().to_owned()).collect());
            // A model reads the features of its inputs for every caller. Only a caller that wants to see them needs the
            // permission.
            let views = if request.values_wanted { request.views.clone() } else { ViewScope::ALL };
            let (principal, model_name) = (principal.clone(), Some(model.name.clone()));
            let caller = FeatureCaller { principal, views, model: model_name, account: account.clone() };
            let read = store.get_online_features(OnlineFeaturesRequest { selection, entities }, caller).await;
            let read = read.map_err(|reason| FeatureInputError::Store { model: model.name.to_string(), reason })?;
            for (feature, cells) in asked.into_iter().zip(read.into_columns()) {
                let cells = cells.into_iter().map(|cell| UsedCell {
                    value: cell.value,
                    status: cell.status,
                    event_us: cell.event_us,
                    source: ValueSource::Store,
                });
                columns.push((feature, cells.collect()));
            }
        }
        Self::of_one_length(model, rows, columns)
    }

    pub(super) fn of_one_length(
        model: &LoadedModel,
        rows: Option<(&str, usize)>,
        columns: Vec<(&'m FeatureReference, Vec<UsedCell>)>,
    ) -> Result<Self, FeatureInputError> {
        let Some((first, rows)) = rows else { return Ok(Self { rows: 0, columns }) };
        let column = |column: &str, reason: String| FeatureInputError::Column {
            model: model.name.to_string(),
            column: column.into(),
            reason,
        };
        if rows == 0 {
            return Err(column(first, "it is empty: expected an element for each batch element".into()));
        }
        match columns.iter().find(|(_, cells)| cells.len() != rows) {
            Some((other, cells)) => {
                let reason = format!("it has {} elements, but column '{first}' has {rows}", cells.len());
                Err(column(other.as_str(), reason))
            }
            None => Ok(Self { rows, columns }),
        }
    }
}

pub(super) fn features(model: &LoadedModel) -> impl Iterator<Item = &FeatureReference> {
    model.config.feature_inputs().flat_map(|port| &port.features).map(|feature| &feature.feature)
}

/// Converts a column that the caller gives into cells of the store.
fn given(
    model: &LoadedModel,
    registry: &Registry,
    feature: &FeatureReference,
    cells: &[serde_json::Value],
) -> Result<Vec<UsedCell>, FeatureInputError> {
    let declared = registry.feature(feature.view(), feature.feature());
    let declared = declared.map_err(|reason| FeatureInputError::Store { model: model.name.to_string(), reason })?;
    let kind = declared.value_type();
    let cell = |(row, json): (usize, &serde_json::Value)| {
        let value = Value::from_json(kind, json).map_err(|reason| FeatureInputError::Column {
            model: model.name.to_string(),
            column: feature.to_string(),
            reason: format!("row {row}: {reason}"),
        })?;
        let status = if value.is_some() { FieldStatus::Present } else { FieldStatus::NullValue };
        Ok(UsedCell { value, status, event_us: 0, source: ValueSource::Given })
    };
    cells.iter().enumerate().map(cell).collect()
}

/// The columns of the join keys that the requested features need.
fn entities(
    model: &LoadedModel,
    registry: &Registry,
    wanted: &[&PortConfig],
    asked: &[&FeatureReference],
    sent: &FrameColumns,
) -> Result<FrameColumns, FeatureInputError> {
    let mut keys = BTreeSet::new();
    for feature in asked {
        let declared = registry.feature(feature.view(), feature.feature());
        let declared = declared.map_err(|reason| FeatureInputError::Store { model: model.name.to_string(), reason })?;
        keys.extend(declared.view.join_keys.iter().map(|key| key.name.clone()));
    }
    let missing: Vec<String> =
        keys.iter().filter(|key| !sent.iter().any(|(name, _)| *name == ***key)).map(ToString::to_string).collect();
    if missing.is_empty() {
        return Ok(sent.iter().filter(|(name, _)| keys.contains(name.as_str())).cloned().collect());
    }
    let inputs = wanted.iter().map(|port| port.name.clone()).collect();
    Err(FeatureInputError::MissingEntities { model: model.name.to_string(), inputs, keys: missing })
}

/// The join keys that a model's features are looked up by, as far as they are declared.
pub fn join_keys(model: &LoadedModel, registry: &Registry) -> BTreeSet<String> {
    let views = features(model).filter_map(|feature| registry.view(feature.view()).ok());
    views.flat_map(|view| &view.join_keys).map(|key| key.name.to_string()).collect()
}
