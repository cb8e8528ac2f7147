//! Inputs that are made of features: the caller sends entity keys, and the feature store has the values.

pub mod cells;
mod columns;
mod error;
mod feature_columns;
mod rows;

use std::collections::BTreeSet;

use ledge_base::memory_budget::MemoryAccount;
use ledge_base::principal::Principal;
use ledge_features::FeatureStore;
use ledge_features::registry::Registry;

use super::request::{CallInputs, FeatureRequest, UsedFeature};
use crate::repository::LoadedModel;
use crate::repository::model_config::PortConfig;
pub use error::FeatureInputError;
pub use feature_columns::join_keys;
use feature_columns::{FeatureColumns, features};

/// Adds the inputs that the caller left out and that are made of features. Returns the values that were used.
pub(super) async fn fill(
    store: &FeatureStore,
    model: &LoadedModel,
    inputs: CallInputs,
    mut request: FeatureRequest,
    (principal, account): (&Principal, &MemoryAccount),
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

/// Describes the features of a model that are not declared. Views may be declared later than a model is loaded.
pub fn undeclared_features(model: &LoadedModel, registry: &Registry) -> BTreeSet<String> {
    let missing = features(model).filter_map(|feature| registry.feature(feature.view(), feature.feature()).err());
    missing.map(|reason| reason.to_string()).collect()
}
