//! Untyped columns into rows of a view.

use super::online::{Columns, FeatureError};
use super::record::Row;
use super::value::{ScalarType, Value, ValueType};
use super::view::{FeatureView, FieldId};
use crate::clock;

/// The rows of a push to `view`. A row without an event time happened at `now_us`.
pub fn rows(view: &FeatureView, columns: &Columns, now_us: i64) -> Result<Vec<Row>, FeatureError> {
    let count = length(columns)?;
    let column = |name: &str| columns.iter().find(|(column, _)| column == name).map(|(_, cells)| cells);
    let missing = |name: &str| FeatureError::MissingColumn { column: name.into(), view: view.name.to_string() };
    let mut rows = Vec::with_capacity(count);
    let times = column(&view.source.timestamp_field);
    for row in 0..count {
        let bad = |name: &str, reason: String| FeatureError::Value { column: name.into(), row, reason };
        let event_us = match times.and_then(|cells| cells.get(row)) {
            None => now_us,
            Some(cell) => event_time(cell).map_err(|reason| bad(&view.source.timestamp_field, reason))?,
        };
        let entity = entity(view, &column, row)?;
        let mut values: Vec<(FieldId, Value)> = Vec::with_capacity(view.fields.len());
        for field in &view.fields {
            let Some(cell) = column(&field.name).and_then(|cells| cells.get(row)) else {
                if field.optional {
                    continue;
                }
                return Err(missing(&field.name));
            };
            let value = Value::from_json(field.value_type, cell).map_err(|reason| bad(&field.name, reason))?;
            values.extend(value.map(|value| (field.id, value)));
        }
        values.sort_by_key(|(field, _)| *field);
        rows.push(Row { entity, event_us, values });
    }
    Ok(rows)
}

/// The entity keys of a read.
pub fn entities(view: &FeatureView, columns: &Columns) -> Result<Vec<Vec<Value>>, FeatureError> {
    let column = |name: &str| columns.iter().find(|(column, _)| column == name).map(|(_, cells)| cells);
    (0..length(columns)?).map(|row| entity(view, &column, row)).collect()
}

fn entity<'c>(
    view: &FeatureView,
    column: &impl Fn(&str) -> Option<&'c Vec<serde_json::Value>>,
    row: usize,
) -> Result<Vec<Value>, FeatureError> {
    let join_key = |key: &super::view::JoinKey| {
        let cell = column(&key.name).and_then(|cells| cells.get(row));
        let missing = || FeatureError::MissingColumn { column: key.name.to_string(), view: view.name.to_string() };
        let bad = |reason: String| FeatureError::Value { column: key.name.to_string(), row, reason };
        let value = Value::from_json(ValueType::Scalar(key.value_type), cell.ok_or_else(missing)?).map_err(bad)?;
        value.ok_or_else(|| bad("a join key cannot be null".into()))
    };
    view.join_keys.iter().map(join_key).collect()
}

/// The number of rows, which all columns share.
fn length(columns: &Columns) -> Result<usize, FeatureError> {
    let Some((first, cells)) = columns.first() else {
        return Err(FeatureError::Columns { reason: "there is no column".into() });
    };
    match columns.iter().find(|(_, other)| other.len() != cells.len()) {
        Some((name, other)) => Err(FeatureError::Columns {
            reason: format!("column '{first}' has {} rows, and column '{name}' has {}", cells.len(), other.len()),
        }),
        None => Ok(cells.len()),
    }
}

fn event_time(cell: &serde_json::Value) -> Result<i64, String> {
    let text = cell.as_str().ok_or_else(|| "expected a time in RFC 3339".to_owned())?;
    clock::parse_micros(text).ok_or_else(|| format!("{text:?} is no time in RFC 3339"))
}

impl Value {
    /// The value that a JSON value means where `kind` is expected; `None` is null. The error says what was expected.
    pub fn from_json(kind: ValueType, json: &serde_json::Value) -> Result<Option<Self>, String> {
        let wrong = || format!("{json} is no {kind}");
        if json.is_null() {
            return Ok(None);
        }
        let ValueType::Scalar(scalar) = kind else { return Err(wrong()) };
        let value = match scalar {
            ScalarType::String => json.as_str().map(|text| Self::String(text.into())),
            ScalarType::Int32 => json.as_i64().and_then(|number| i32::try_from(number).ok()).map(Self::Int32),
            ScalarType::Int64 => json.as_i64().map(Self::Int64),
            ScalarType::Float32 => json.as_f64().map(|number| Self::Float32(number as f32)),
            ScalarType::Float64 => json.as_f64().map(Self::Float64),
            ScalarType::Bool => json.as_bool().map(Self::Bool),
            ScalarType::UnixTimestamp => json.as_i64().map(Self::UnixTimestamp),
            ScalarType::Bytes => None,
        };
        value.map(Some).ok_or_else(wrong)
    }
}
