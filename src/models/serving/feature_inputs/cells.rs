//! Cells of rows that are made of features: a row has the entity keys, and the feature store has the values.

use std::collections::{BTreeMap, BTreeSet};

use ledge_base::memory_budget::MemoryAccount;
use ledge_base::principal::Principal;
use ledge_engine::pipeline::content::rows::RowsText;
use ledge_engine::pipeline::kind::FeatureColumn;
use ledge_features::online::{FeatureSelection, FrameColumns, OnlineFeaturesRequest};
use ledge_features::registry::Registry;
use ledge_features::value::ScalarType;
use ledge_features::{FeatureCaller, FeatureStore};
use ledge_identity::access::ViewScope;
use ledge_service::off_thread::off_thread;
use serde_json::{Map, Value};

use crate::repository::LoadedModel;
use crate::serving::feature_inputs::error::FeatureInputError;

/// The most bytes of JSON that are read on an async thread.
const INLINE_BYTES_MAX: usize = 64 << 10;

/// A row as it came.
type RowMembers = Map<String, Value>;

/// The rows with the values of features in the columns that they leave out, and without their entity keys. A feature
/// without a value stays left out, and the rule of its column applies. `rows` that cannot be read stay as they are: the
/// pipeline reports the mistake.
pub async fn fill(
    store: &FeatureStore,
    model: &LoadedModel,
    rows: &RowsText,
    columns: &[FeatureColumn],
    principal: &Principal,
    account: &MemoryAccount,
) -> Result<Option<RowsText>, FeatureInputError> {
    let registry = store.registry();
    let (json, bytes) = (rows.json().clone(), rows.json().len());
    let Some(mut read) = large_off_thread(bytes, account, move || parse(&json)).await else { return Ok(None) };
    let keys = join_keys(model, &registry, columns)?;
    let places: Vec<usize> = read
        .iter()
        .enumerate()
        .filter_map(|(place, row)| Some((place, row.as_object()?)))
        .filter(|(_, row)| columns.iter().any(|column| lacks(row, &column.name)))
        .map(|(place, _)| place)
        .collect();

    let mut entities: FrameColumns = Vec::new();
    for (key, kind) in &keys {
        let cell = |place: &usize| {
            let row = || read.get(*place).and_then(Value::as_object);
            let cell = row().and_then(|row| row.get(key)).filter(|cell| !cell.is_null());
            cell.map(|cell| typed(cell, *kind)).ok_or_else(|| {
                let missing = columns.iter().find(|column| row().is_some_and(|row| lacks(row, &column.name)));
                FeatureInputError::Column {
                    model: model.name.to_string(),
                    column: missing.map(|column| column.name.clone()).unwrap_or_default(),
                    reason: format!(
                        "row {} has neither it nor the entity key '{key}' of its feature",
                        rows.first() + place
                    ),
                }
            })
        };
        entities.push((key.clone(), places.iter().map(cell).collect::<Result<_, _>>()?));
    }
    if !places.is_empty() {
        let selection = FeatureSelection::Features(columns.iter().map(|column| column.feature.clone()).collect());
        // A model reads the features of its inputs for every caller.
        let (principal, model_name, account) = (principal.clone(), Some(model.name.clone()), account.clone());
        let caller = FeatureCaller { principal, views: ViewScope::ALL, model: model_name, account };
        let found = store.get_online_features(OnlineFeaturesRequest { selection, entities }, caller).await;
        let found = found.map_err(|reason| FeatureInputError::Store { model: model.name.to_string(), reason })?;
        for (column, cells) in columns.iter().zip(found.into_columns()) {
            for (&place, cell) in places.iter().zip(cells) {
                if let (Some(row), Some(value)) = (read.get_mut(place).and_then(Value::as_object_mut), cell.value)
                    && lacks(row, &column.name)
                {
                    row.insert(column.name.clone(), value.to_json());
                }
            }
        }
    }

    for row in read.iter_mut().filter_map(Value::as_object_mut) {
        for key in keys.keys().filter(|key| !model.pipeline.as_ref().is_some_and(|pipeline| pipeline.has_column(key))) {
            row.remove(key);
        }
    }
    let write = move || Value::Array(read).to_string();
    let json = large_off_thread(bytes, account, write).await;
    let json = account.force_reserve(json.len()).attach(json.into());
    Ok(Some(RowsText::part(json, rows.count(), rows.first())))
}

/// Does `work` on this many bytes of JSON, off the async thread if they are many.
async fn large_off_thread<T: Send + 'static>(
    bytes: usize,
    account: &MemoryAccount,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if bytes <= INLINE_BYTES_MAX { work() } else { off_thread(account, work).await }
}

/// The rows of a list, or a single row.
fn parse(json: &[u8]) -> Option<Vec<Value>> {
    match serde_json::from_slice(json).ok()? {
        Value::Array(rows) => Some(rows),
        row => Some(vec![row]),
    }
}

fn lacks(row: &RowMembers, column: &str) -> bool {
    row.get(column).is_none_or(Value::is_null)
}

/// The join keys of the features, each with its type.
fn join_keys(
    model: &LoadedModel,
    registry: &Registry,
    columns: &[FeatureColumn],
) -> Result<BTreeMap<String, ScalarType>, FeatureInputError> {
    let views: BTreeSet<&str> =
        columns.iter().filter_map(|column| column.feature.split_once(':')).map(|(view, _)| view).collect();
    let mut keys = BTreeMap::new();
    for view in views {
        let view = registry.view(view);
        let view = view.map_err(|reason| FeatureInputError::Store { model: model.name.to_string(), reason })?;
        keys.extend(view.join_keys.iter().map(|key| (key.name.to_string(), key.value_type)));
    }
    Ok(keys)
}

/// A cell of CSV is a text, and a key may be a number.
fn typed(cell: &Value, kind: ScalarType) -> Value {
    match cell {
        Value::String(text) if kind != ScalarType::String => {
            serde_json::from_str(text).ok().filter(Value::is_number).unwrap_or_else(|| cell.clone())
        }
        cell => cell.clone(),
    }
}
