//! Converts untyped columns to rows of a view.

use std::ops::Range;
use std::sync::Arc;

use ledge_base::clock;
use serde_json::Value as Json;

use super::online::{EVENT_TIMESTAMP, FeatureError, FrameColumns, listed};
use super::record::FeatureRow;
use super::value::{Value, ValueType};
use super::view::{FeatureView, JoinKey, ViewField};

/// Feast's names for the creation time of a row, in its client and in its examples. A row has it next to its event
/// time, and Feast's online store does not keep it either.
const CREATED_COLUMNS: [&str; 3] = ["created", "created_timestamp", "created_ts"];

/// The columns of a push that are in no view of `views`, without those that Feast adds to every row.
pub fn unknown(views: &[Arc<FeatureView>], columns: &FrameColumns) -> Vec<String> {
    let has_time = views.iter().all(|view| column(columns, &view.source.timestamp_field).is_some());
    let is_feasts = |name: &str| CREATED_COLUMNS.contains(&name) || (name == EVENT_TIMESTAMP && has_time);
    let names = columns.iter().map(|(name, _)| name);
    names.filter(|name| !views.iter().any(|view| view.has_column(name)) && !is_feasts(name)).cloned().collect()
}

/// Refuses a push to `views` without any of their features: its rows would be null in every column, and replace those
/// with values. `unknown` are the columns that no view has.
pub fn require_feature(
    views: &[Arc<FeatureView>],
    columns: &FrameColumns,
    unknown: &[String],
) -> Result<(), FeatureError> {
    let fields = || views.iter().flat_map(|view| &view.fields).map(|field| &field.name);
    if fields().any(|name| column(columns, name).is_some()) {
        return Ok(());
    }
    let names: Vec<&str> = views.iter().map(|view| &*view.name).collect();
    let views = match names.as_slice() {
        [view] => format!("feature view '{view}'"),
        names => format!("the feature views {}", listed(names)),
    };
    let features = fields().map(ToString::to_string).collect();
    Err(FeatureError::NoFeature { views, features, unknown: unknown.to_vec() })
}

/// The rows of a push to `view`. A row without an event time gets `now_us`; one with an event time after `latest_us` is
/// refused, since it would stay the newest for as long. Columns that the view does not have are ignored.
pub fn rows(
    view: &FeatureView,
    columns: &FrameColumns,
    now_us: i64,
    latest_us: i64,
) -> Result<Vec<FeatureRow>, FeatureError> {
    let count = length(columns)?;
    // Look the columns up once for all rows, in the order of the numbers, which is that of a row's values.
    let keys = key_columns(view, columns)?;

    let mut fields: Vec<(&ViewField, &[Json])> = Vec::with_capacity(view.fields.len());
    for field in &view.fields {
        match column(columns, &field.name) {
            Some(cells) => fields.push((field, cells)),
            None if field.optional => {}
            None => return Err(missing(view, &field.name)),
        }
    }
    fields.sort_unstable_by_key(|(field, _)| field.id);

    let time = &view.source.timestamp_field;
    let times = column(columns, time);

    let row = |row: usize| {
        let event_us = match times.and_then(|cells| cells.get(row)) {
            None | Some(Json::Null) => now_us,
            Some(cell) => event_time(cell, latest_us).map_err(|reason| bad_value(time, row, reason))?,
        };
        let mut values = Vec::with_capacity(fields.len());
        for (field, cells) in &fields {
            let value = Value::from_json(field.value_type, cells.get(row).unwrap_or(&Json::Null));
            values.extend(value.map_err(|reason| bad_value(&field.name, row, reason))?.map(|value| (field.id, value)));
        }
        Ok(FeatureRow { entity: entity(&keys, row)?, event_us, values })
    };

    (0..count).map(row).collect()
}

/// The entity keys in these rows of a read.
pub fn entities(
    view: &FeatureView,
    columns: &FrameColumns,
    rows: Range<usize>,
) -> Result<Vec<Vec<Value>>, FeatureError> {
    let keys = key_columns(view, columns)?;
    rows.map(|row| entity(&keys, row)).collect()
}

fn key_columns<'c>(
    view: &'c FeatureView,
    columns: &'c FrameColumns,
) -> Result<Vec<(&'c JoinKey, &'c [Json])>, FeatureError> {
    let found = |key: &'c JoinKey| Some((key, column(columns, &key.name)?));
    view.join_keys.iter().map(|key| found(key).ok_or_else(|| missing(view, &key.name))).collect()
}

fn entity(keys: &[(&JoinKey, &[Json])], row: usize) -> Result<Vec<Value>, FeatureError> {
    let value = |(key, cells): &(&JoinKey, &[Json])| {
        let value = Value::from_json(ValueType::Scalar(key.value_type), cells.get(row).unwrap_or(&Json::Null));
        let value = value.and_then(|value| value.ok_or_else(|| "a join key cannot be null".to_owned()));
        value.map_err(|reason| bad_value(&key.name, row, reason))
    };
    keys.iter().map(value).collect()
}

fn column<'c>(columns: &'c FrameColumns, name: &str) -> Option<&'c [Json]> {
    columns.iter().find(|(column, _)| column == name).map(|(_, cells)| cells.as_slice())
}

fn missing(view: &FeatureView, column: &str) -> FeatureError {
    FeatureError::MissingColumn { column: column.into(), view: view.name.to_string(), unknown: Vec::new() }
}

fn bad_value(column: &str, row: usize, reason: String) -> FeatureError {
    FeatureError::Value { column: column.into(), row, reason }
}

/// The number of rows, which all columns share.
pub fn length(columns: &FrameColumns) -> Result<usize, FeatureError> {
    let Some((first, cells)) = columns.first() else {
        return Err(FeatureError::Columns { reason: "the request has no columns".into() });
    };
    match columns.iter().find(|(_, other)| other.len() != cells.len()) {
        Some((name, other)) => Err(FeatureError::Columns {
            reason: format!("column '{first}' has {} rows, and column '{name}' has {}", cells.len(), other.len()),
        }),
        None => Ok(cells.len()),
    }
}

/// The event time in a cell, in microseconds since the Unix epoch.
fn event_time(cell: &Json, latest_us: i64) -> Result<i64, String> {
    let event_us = match cell {
        Json::String(text) => clock::parse_micros(text).ok_or_else(|| format!("{text:?} is not a time in RFC 3339"))?,
        Json::Number(number) => {
            let event_us = match number.as_i64() {
                Some(number) => from_integer(number),
                None => number.as_f64().and_then(from_float),
            };
            event_us.ok_or_else(|| format!("{number} is not a time since the Unix epoch"))?
        }
        _ => return Err("expected a time in RFC 3339, or a number since the Unix epoch".into()),
    };
    if event_us < 0 {
        return Err(format!("{} is before 1970", clock::rfc3339_micros(event_us)));
    }
    if event_us > latest_us {
        let (event, latest) = (clock::rfc3339_micros(event_us), clock::rfc3339_micros(latest_us));
        return Err(format!(
            "{event} is too far ahead of this box's clock: the latest accepted time is {latest} (features.max_ahead_s)"
        ));
    }
    Ok(event_us)
}

/// The limit between seconds, milliseconds, microseconds and nanoseconds, which are distinguished by size: as seconds,
/// 100 thousand million is the year 5138, and as milliseconds it is 1973.
const SECONDS_BELOW: i64 = 100_000_000_000;

fn from_integer(number: i64) -> Option<i64> {
    let size = number.checked_abs()?;
    Some(match size {
        _ if size < SECONDS_BELOW => number * 1_000_000,
        _ if size < SECONDS_BELOW * 1_000 => number * 1_000,
        _ if size < SECONDS_BELOW * 1_000_000 => number,
        _ => number.div_euclid(1_000),
    })
}

/// As [`from_integer`], for a number with a fraction, as many languages write times.
#[expect(clippy::cast_precision_loss, reason = "the limits are exact")]
#[expect(clippy::cast_possible_truncation, reason = "below 1e19 / 1000")]
fn from_float(number: f64) -> Option<i64> {
    let size = number.abs();
    let micros = match size {
        _ if size < SECONDS_BELOW as f64 => number * 1e6,
        _ if size < SECONDS_BELOW as f64 * 1e3 => number * 1e3,
        _ if size < SECONDS_BELOW as f64 * 1e6 => number,
        _ if size < 1e19 => number / 1e3,
        _ => return None,
    };
    Some(micros.round() as i64)
}

#[cfg(test)]
mod tests;
