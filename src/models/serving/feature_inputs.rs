//! Inputs that are made of features: the caller sends entity keys, and the feature store has the values.

pub mod cells;
mod columns;
mod rows;

use std::collections::BTreeSet;
use std::time::Duration;

use ledge_base::memory_budget::Account;
use ledge_base::principal::Principal;
use ledge_features::online::{FeatureError, FeatureSelection, FieldStatus, FrameColumns, OnlineRequest};
use ledge_features::registry::Registry;
use ledge_features::value::Value;
use ledge_features::{FeatureCaller, FeatureStore};
use ledge_identity::access::ViewScope;

use super::request::{CallInputs, FeatureRequest, UsedCell, UsedFeature, ValueSource};
use crate::repository::LoadedModel;
use crate::repository::feature_config::FeatureReference;
use crate::repository::feature_elements::Unconvertible;
use crate::repository::model_config::PortConfig;

/// Reason why the inputs cannot be made of features.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FeatureInputError {
    /// Entity keys for a model without features.
    #[error("model '{model}' takes no entities or features: no input in its model.toml has features. Send its inputs")]
    NoFeatures { model: String },
    #[error(
        "model '{model}' needs {} to look up the features of its input(s) {}: send \"entities\": {{{}}} next to \"inputs\", \
         or an input tensor of that name for each",
        quoted(keys),
        quoted(inputs),
        example(keys)
    )]
    MissingEntities {
        model: String,
        /// The inputs that were not sent.
        inputs: Vec<String>,
        /// The join keys that are missing.
        keys: Vec<String>,
    },
    #[error("column '{column}' for model '{model}': {reason}")]
    Column {
        model: String,
        /// The entity or feature.
        column: String,
        reason: String,
    },
    /// A feature without a value, for a model that refuses such rows.
    #[error(
        "feature '{feature}' of model '{model}' is {} for entity row {row}, and its model.toml has no default for that",
        status.as_str()
    )]
    Refused {
        model: String,
        feature: String,
        /// The row, from 0.
        row: usize,
        status: FieldStatus,
    },
    #[error("feature '{feature}' of model '{model}', entity row {row}: {reason}, the datatype of input '{input}'")]
    Unconvertible {
        model: String,
        input: String,
        feature: String,
        /// The row, from 0.
        row: usize,
        reason: Unconvertible,
    },
    #[error(
        "input '{input}' of model '{model}': entity row {row} has {got} elements, but the first row has {expected}"
    )]
    Ragged {
        model: String,
        input: String,
        /// The row, from 0.
        row: usize,
        /// Elements of the first row.
        expected: usize,
        /// Elements of this one.
        got: usize,
    },
    #[error("cannot read the features of model '{model}': {reason}")]
    Store { model: String, reason: FeatureError },
}

impl FeatureInputError {
    /// Time after which another try may succeed, if it may.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Store {
                reason: FeatureError::Unavailable { .. } | FeatureError::Overloaded { .. } | FeatureError::NoRoom(_),
                ..
            } => Some(Duration::from_secs(1)),
            _ => None,
        }
    }
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")
}

fn example(keys: &[String]) -> String {
    keys.iter().map(|key| format!("\"{key}\": [...]")).collect::<Vec<_>>().join(", ")
}

/// Adds the inputs that the caller left out and that are made of features. Returns the values that were used.
pub(super) async fn fill(
    store: &FeatureStore,
    model: &LoadedModel,
    inputs: CallInputs,
    mut request: FeatureRequest,
    (principal, account): (&Principal, &Account),
) -> Result<(CallInputs, Vec<UsedFeature>), FeatureInputError> {
    // A raw request is the model's only input, whole.
    let CallInputs::Named(named) = inputs else { return Ok((inputs, Vec::new())) };
    let registry = store.registry();
    let mut named = columns::take(model, &registry, named, &mut request)?;
    let is_sent = |port: &&PortConfig| named.iter().any(|(name, _)| *name == port.name);
    let wanted: Vec<&PortConfig> = model.config.feature_inputs().filter(|port| !is_sent(port)).collect();
    let known = FeatureColumns::read(store, &registry, model, &wanted, &request, (principal, account)).await?;
    let mut made = Vec::with_capacity(wanted.len());
    let mut used = Vec::new();
    for config in wanted {
        // The signature has every input of the model config, or the model would not have loaded.
        let Some(port) = model.signature.inputs.iter().find(|port| port.name == config.name) else { continue };
        let used = request.values_wanted.then_some(&mut used);
        made.push((port.name.clone(), rows::tensor(model, port, config, &known, used)?));
    }
    named.append(&mut made);
    Ok((CallInputs::Named(named), used))
}

/// Values of the features of inputs, for every row.
pub(super) struct FeatureColumns<'m> {
    rows: usize,
    columns: Vec<(&'m FeatureReference, Vec<UsedCell>)>,
}

impl<'m> FeatureColumns<'m> {
    /// Collects the values that the caller gives, and reads all others from the store at once.
    async fn read(
        store: &FeatureStore,
        registry: &Registry,
        model: &LoadedModel,
        wanted: &[&'m PortConfig],
        request: &FeatureRequest,
        (principal, account): (&Principal, &Account),
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
            let read = store.get_online_features(OnlineRequest { selection, entities }, caller).await;
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

    fn of_one_length(
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

/// Describes the features of a model that are not declared. Views may be declared later than a model is loaded.
pub fn undeclared_features(model: &LoadedModel, registry: &Registry) -> BTreeSet<String> {
    let missing = features(model).filter_map(|feature| registry.feature(feature.view(), feature.feature()).err());
    missing.map(|reason| reason.to_string()).collect()
}

/// The join keys that a model's features are looked up by, as far as they are declared.
pub fn join_keys(model: &LoadedModel, registry: &Registry) -> BTreeSet<String> {
    let views = features(model).filter_map(|feature| registry.view(feature.view()).ok());
    views.flat_map(|view| &view.join_keys).map(|key| key.name.to_string()).collect()
}

fn features(model: &LoadedModel) -> impl Iterator<Item = &FeatureReference> {
    model.config.feature_inputs().flat_map(|port| &port.features).map(|feature| &feature.feature)
}
