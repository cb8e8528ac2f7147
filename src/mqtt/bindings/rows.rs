//! Extracts rows and their entity keys for the feature store from a message. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use ledge_base::clock;
use ledge_base::names::{DeviceName, ModelName};
use ledge_features::online::FrameColumns;
use ledge_features::registry::Registry;
use ledge_features::value::Value;
use ledge_features::view::FeatureView;
use serde_json::Value as Json;

use super::config::BindingConfig;
use super::error::BindingError;
use super::event_time::MissingTime;
use super::extract::{find, kind, parse};
use super::key_source::JoinKeySource;
use super::value_kind::ValueKind;
use crate::field_path::FieldPath;

/// The origin of a message: the parts of its topic, and the time of arrival.
#[derive(Debug, Clone, Copy)]
pub struct MessageOrigin<'a> {
    /// The parts of the topic that the wildcards of the binding's filter match.
    pub captures: &'a [String],
    pub device: &'a DeviceName,
    /// The time of arrival, in microseconds since the Unix epoch.
    pub arrived_us: i64,
}

/// The part of a message that is for the feature store.
#[derive(Debug, Clone, PartialEq)]
pub struct ExtractedPushRows {
    pub columns: FrameColumns,
    /// Fields of the message that nothing uses, where columns are taken by name: one of them may be a misspelt column.
    pub unused: Vec<String>,
}

/// The rows to push, for all views of the target.
pub fn push_rows(
    config: &BindingConfig,
    views: &[Arc<FeatureView>],
    payload: &Bytes,
    origin: MessageOrigin<'_>,
) -> Result<ExtractedPushRows, BindingError> {
    let document = match &config.value {
        Some(name) => row_of_value(name, views, payload)?,
        None => parse("message", payload)?,
    };
    let rows = rows(&document)?;
    let mut columns = entity_columns(config, views, &rows, origin)?;

    for view in views {
        let keys = view.join_keys.iter().map(|key| &key.name);
        let fields = view.fields.iter().map(|field| &field.name).filter(|_| config.features.is_empty());
        for name in keys.chain(fields) {
            if columns.iter().all(|(known, _)| **known != **name) {
                columns.extend(column(name, &rows, |row| row.get(&**name)));
            }
        }
    }

    for (name, path) in &config.features {
        columns.extend(column(name, &rows, |row| path.find(row)));
    }
    for view in views {
        let name = &view.source.timestamp_field;
        if columns.iter().all(|(known, _)| **known != **name) {
            let times = rows.iter().map(|row| event_time(config, name, row, origin.arrived_us));
            columns.push((name.to_string(), times.collect::<Result<_, _>>()?));
        }
    }

    let unused = if config.features.is_empty() { unused(config, views, &rows) } else { Vec::new() };
    Ok(ExtractedPushRows { columns, unused })
}

/// The row of a message that is one value: the feature `name`, of the type that it has in the first of the views.
fn row_of_value(name: &str, views: &[Arc<FeatureView>], payload: &Bytes) -> Result<Json, BindingError> {
    let mut fields = views.iter().flat_map(|view| &view.fields);
    let field =
        fields.find(|field| &*field.name == name).ok_or_else(|| BindingError::NoFeature { name: name.into() })?;
    let kind = ValueKind::of_feature(field.value_type);
    let kind = kind.ok_or_else(|| BindingError::List { name: name.into(), kind: field.value_type.to_string() })?;
    Ok([(name.to_owned(), kind.read(name, payload)?)].into_iter().collect())
}

/// The most unused fields that are reported for one message.
const UNUSED_FIELDS_MAX: usize = 64;

/// The fields of rows that are not a column of any view, and that no path of the binding leads into.
fn unused(config: &BindingConfig, views: &[Arc<FeatureView>], rows: &[&Json]) -> Vec<String> {
    let keys = config.entities.values().filter_map(|source| match source {
        JoinKeySource::Field(path) => Some(path),
        JoinKeySource::Topic(_) => None,
    });
    let conditions = config.when.iter().filter_map(|(source, _)| match source {
        JoinKeySource::Field(path) => Some(path),
        JoinKeySource::Topic(_) => None,
    });
    let paths = keys
        .chain(conditions)
        .chain(&config.event_timestamp)
        .chain(&config.photograph)
        .chain(&config.text)
        .chain(config.inputs.values().flatten());
    let taken: BTreeSet<&str> = paths.filter_map(FieldPath::top).collect();
    let is_used = |name: &str| taken.contains(name) || views.iter().any(|view| view.has_column(name));
    let mut unused = BTreeSet::new();
    for name in rows.iter().filter_map(|row| row.as_object()).flat_map(serde_json::Map::keys) {
        if unused.len() < UNUSED_FIELDS_MAX && !is_used(name) {
            unused.insert(name.clone());
        }
    }
    unused.into_iter().collect()
}

/// The join keys of a message without rows to push, for a model that looks up their features. All views are searched
/// for the type of a join key, which is the same wherever it is used.
pub fn entities(
    config: &BindingConfig,
    registry: &Registry,
    payload: &Bytes,
    origin: MessageOrigin<'_>,
) -> Result<FrameColumns, BindingError> {
    let views: Vec<_> = registry.views().cloned().collect();
    if config.entities.values().all(|source| matches!(source, JoinKeySource::Topic(_))) {
        return entity_columns(config, &views, &[&Json::Null], origin);
    }
    let document = parse("message", payload)?;
    let rows = rows(&document)?;
    entity_columns(config, &views, &rows, origin)
}

/// The columns that are join keys.
pub fn join_keys(columns: &FrameColumns, views: &[Arc<FeatureView>]) -> FrameColumns {
    let is_key = |name: &str| views.iter().any(|view| view.has_join_key(name));
    columns.iter().filter(|(name, _)| is_key(name)).cloned().collect()
}

/// The rows of a message: an object is one row, an array of objects has a row in each.
fn rows(document: &Json) -> Result<Vec<&Json>, BindingError> {
    const EXPECTED: &str = "an object, or an array of objects";
    let rows = match document {
        Json::Array(rows) => rows.iter().collect(),
        row => vec![row],
    };
    let root = || "$".parse().map_err(|_| BindingError::Absent { what: "message", path: "$".into() });
    if rows.is_empty() {
        return Err(BindingError::Absent { what: "message", path: "$[0]".into() });
    }
    match rows.iter().find(|row| !row.is_object()) {
        Some(other) => Err(kind(&root()?, other, EXPECTED)),
        None => Ok(rows),
    }
}

fn entity_columns(
    config: &BindingConfig,
    views: &[Arc<FeatureView>],
    rows: &[&Json],
    origin: MessageOrigin<'_>,
) -> Result<FrameColumns, BindingError> {
    let column = |(name, source): (&String, &JoinKeySource)| {
        let cells: Vec<Json> = match source {
            JoinKeySource::Field(path) => {
                rows.iter().map(|row| find("message", path, row).cloned()).collect::<Result<_, _>>()?
            }
            JoinKeySource::Topic(template) => {
                let text = template
                    .text(origin.captures, origin.device, config.model.as_ref().map(ModelName::as_str))
                    .map_err(|error| BindingError::Topic { reason: error.to_string() })?;
                vec![typed(views, name, text)?; rows.len()]
            }
        };
        Ok((name.clone(), cells))
    };
    config.entities.iter().map(column).collect()
}

/// A text of a topic as a value of the join key's type.
fn typed(views: &[Arc<FeatureView>], name: &str, text: String) -> Result<Json, BindingError> {
    let mut keys = views.iter().flat_map(|view| &view.join_keys);
    let Some(key) = keys.find(|key| &*key.name == name) else { return Ok(text.into()) };
    let value = Value::from_text(key.value_type, &text);
    value.map(|value| value.to_json()).map_err(|reason| BindingError::Topic { reason })
}

/// A cell for each row, null where a row has none; no column when no row has one.
fn column<'v>(
    name: &str,
    rows: &[&'v Json],
    find: impl Fn(&'v Json) -> Option<&'v Json>,
) -> Option<(String, Vec<Json>)> {
    let cells: Vec<Option<&Json>> = rows.iter().map(|row| find(row)).collect();
    let is_there = cells.iter().any(Option::is_some);
    is_there.then(|| (name.to_owned(), cells.into_iter().map(|cell| cell.cloned().unwrap_or_default()).collect()))
}

/// The event time of a row: its own, or else the time of arrival. `field` is the column of the view for it.
pub(super) fn event_time(
    config: &BindingConfig,
    field: &str,
    row: &Json,
    arrived_us: i64,
) -> Result<Json, BindingError> {
    let said = match (&config.event_timestamp, config.event_timestamp_missing) {
        // Null is the time at which the store takes the row.
        (Some(path), MissingTime::Refuse) => Some(find("message", path, row)?),
        (Some(path), MissingTime::Arrival) => path.find(row).filter(|said| !said.is_null()),
        (None, _) => row.get(field).filter(|said| !said.is_null()),
    };
    let moment = match (said, &config.timezone) {
        (None, _) => Some(arrived_us),
        (Some(Json::String(text)), Some(zone)) => clock::parse_local_micros(text, &zone.zone, arrived_us),
        (Some(_), _) => None,
    };
    // Any other value stays as it came: the store reads it, or says what is wrong with it.
    Ok(moment.map(|moment| clock::rfc3339_micros(moment).into()).or_else(|| said.cloned()).unwrap_or_default())
}
