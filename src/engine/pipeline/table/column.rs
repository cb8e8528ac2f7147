//! A column: from the cells of rows to the elements of an input.

use ledge_base::tensor::{DataType, Tensor, from_f64, to_f64};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cell::{TableCell, TableRows, excerpt};

/// Integers above are not all doubles.
const EXACT_MAX: u64 = 1 << 53;

/// A column whose values are those of a feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureColumn {
    pub name: String,
    /// `VIEW:FEATURE`.
    pub feature: String,
}

/// A column of `[pipeline.table]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableColumn {
    pub name: String,
    #[serde(rename = "type", default)]
    pub kind: ColumnType,
    /// The treatment of a missing value without a `default`.
    #[serde(default)]
    pub missing: MissingCellPolicy,
    /// The value of a missing one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<TableCell>,
    /// The feature, `VIEW:FEATURE`, that replaces a missing value, before `default` and `missing` apply. Rows name the
    /// entity by its join keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature: Option<String>,
    /// The names of a category, in the order of the numbers that they have in the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
}

/// The values of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ColumnType {
    #[default]
    Number,
    Integer,
    /// One of some names.
    Category,
    Text,
    Boolean,
}

/// The treatment of a missing value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MissingCellPolicy {
    /// An error of the call.
    #[default]
    Refuse,
    Nan,
}

impl Serialize for TableCell {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Missing => serializer.serialize_unit(),
            Self::Number(number) => serializer.serialize_f64(*number),
            Self::Integer(integer) => serializer.serialize_i64(*integer),
            Self::Boolean(boolean) => serializer.serialize_bool(*boolean),
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}

/// The value of a cell, of the type of its column.
#[derive(Debug, Clone, Copy, PartialEq)]
enum CellElement<'c> {
    Number(f64),
    Text(&'c str),
}

fn is_float(datatype: DataType) -> bool {
    matches!(datatype, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64)
}

impl TableColumn {
    /// The mistake that types let through, if there is one.
    pub fn mistake(&self) -> Option<String> {
        let mut names = std::collections::HashSet::new();
        if let Some(twice) = self.categories.iter().find(|name| !names.insert(*name)) {
            return Some(format!("{twice:?} is there twice in categories"));
        }
        let is_reference = |text: &str| {
            text.split_once(':').is_some_and(|(view, name)| {
                let is_name = |name: &str| !name.is_empty() && !name.contains(|c: char| c == ':' || c.is_control());
                is_name(view) && is_name(name)
            })
        };
        if let Some(other) = self.feature.as_ref().filter(|text| !is_reference(text)) {
            return Some(format!("{other:?} is not a feature: expected VIEW:FEATURE"));
        }
        match (self.kind, self.categories.is_empty()) {
            (ColumnType::Category, true) => {
                return Some("a category needs categories, the list of its names".to_owned());
            }
            (ColumnType::Category, false) | (_, true) => {}
            (_, false) => return Some("only type = \"category\" has categories".to_owned()),
        }
        let default = self.default.as_ref()?;
        if self.missing == MissingCellPolicy::Nan {
            return Some("missing = \"nan\" and default are both set".to_owned());
        }
        match self.value(default) {
            Ok(Some(_)) => None,
            Ok(None) => Some("its default is not a value".to_owned()),
            Err(reason) => Some(format!("its default {reason}")),
        }
    }

    /// True if a row without it is refused, whatever the feature store has.
    pub fn is_required(&self) -> bool {
        self.default.is_none() && self.missing == MissingCellPolicy::Refuse && self.feature.is_none()
    }

    /// The column for the feature store, if it has a feature.
    pub fn made_of_feature(&self) -> Option<FeatureColumn> {
        Some(FeatureColumn { name: self.name.clone(), feature: self.feature.clone()? })
    }

    /// Returns true if an input of `datatype` can have the values of this column.
    pub fn fits(&self, datatype: DataType) -> Result<(), String> {
        let is_text = datatype == DataType::Bytes;
        match self.kind {
            ColumnType::Text if !is_text => return Err("text is for an input of strings".to_owned()),
            ColumnType::Number if !is_float(datatype) => return Err("numbers are for an input of floats".to_owned()),
            ColumnType::Integer | ColumnType::Boolean if is_text => {
                return Err("an input of strings takes text or a category".to_owned());
            }
            _ => {}
        }
        if self.missing == MissingCellPolicy::Nan && !is_float(datatype) {
            return Err(format!("{datatype} has no NaN: name a default"));
        }
        Ok(())
    }

    /// A value that the column takes.
    pub fn sample(&self) -> Value {
        match self.kind {
            ColumnType::Number | ColumnType::Integer => 1.into(),
            ColumnType::Category => self.categories.first().cloned().into(),
            ColumnType::Text => "".into(),
            ColumnType::Boolean => false.into(),
        }
    }

    /// The value of `cell`; `None` if it is missing. The error completes a sentence about it.
    fn value<'c>(&'c self, cell: &'c TableCell) -> Result<Option<CellElement<'c>>, String> {
        let is_word = |text: &str, word: &str| text.eq_ignore_ascii_case(word);
        let value = match (self.kind, cell) {
            (_, TableCell::Missing) => return Ok(None),
            (ColumnType::Text, TableCell::Text(text)) => CellElement::Text(text),
            (ColumnType::Category, TableCell::Text(text)) => {
                let found = self.categories.iter().find(|name| *name == text);
                CellElement::Text(
                    found.ok_or_else(|| format!("is {}, which is not one of its categories", excerpt(text)))?,
                )
            }
            (ColumnType::Boolean, TableCell::Boolean(boolean)) => CellElement::Number(f64::from(*boolean)),
            (ColumnType::Boolean, TableCell::Integer(integer @ (0 | 1))) => {
                CellElement::Number(f64::from(*integer == 1))
            }
            (ColumnType::Boolean, TableCell::Text(text)) if text.is_empty() => return Ok(None),
            (ColumnType::Boolean, TableCell::Text(text)) if is_word(text, "true") || text == "1" => {
                CellElement::Number(1.0)
            }
            (ColumnType::Boolean, TableCell::Text(text)) if is_word(text, "false") || text == "0" => {
                CellElement::Number(0.0)
            }
            (ColumnType::Number, TableCell::Number(number)) => CellElement::Number(*number),
            (ColumnType::Integer, TableCell::Number(number)) if number.fract() == 0.0 => CellElement::Number(*number),
            (ColumnType::Number | ColumnType::Integer, TableCell::Integer(integer)) => {
                if self.kind == ColumnType::Integer && integer.unsigned_abs() > EXACT_MAX {
                    return Err(format!("is {integer}, beyond 2^53"));
                }
                #[expect(clippy::cast_precision_loss, reason = "exact, or a number like any other")]
                let number = *integer as f64;
                CellElement::Number(number)
            }
            // CSV has no types, and many devices write numbers in quotes.
            (ColumnType::Number | ColumnType::Integer, TableCell::Text(text)) => match text.trim().parse::<f64>() {
                _ if text.trim().is_empty() => return Ok(None),
                // A double between which and the integer there is a difference.
                _ if self.kind == ColumnType::Integer
                    && text.trim().parse::<i64>().is_ok_and(|integer| integer.unsigned_abs() > EXACT_MAX) =>
                {
                    return Err(format!("is {}, beyond 2^53", excerpt(text)));
                }
                Ok(number) if number.is_nan() => return Ok(None),
                Ok(number) if self.kind == ColumnType::Number || number.fract() == 0.0 => CellElement::Number(number),
                _ => return Err(format!("is {}, expected {}", excerpt(text), self.expected())),
            },
            (_, TableCell::Number(number)) => return Err(format!("is {number}, expected {}", self.expected())),
            (_, TableCell::Integer(integer)) => return Err(format!("is {integer}, expected {}", self.expected())),
            (_, TableCell::Boolean(boolean)) => return Err(format!("is {boolean}, expected {}", self.expected())),
            (_, TableCell::Text(text)) => return Err(format!("is {}, expected {}", excerpt(text), self.expected())),
        };
        match value {
            CellElement::Number(number) if number.is_nan() => Ok(None),
            CellElement::Number(number) if number.is_infinite() => Err("is infinite".to_owned()),
            CellElement::Number(number)
                if self.kind == ColumnType::Integer && number.abs() > 9_007_199_254_740_992.0 =>
            {
                Err(format!("is {number}, beyond 2^53"))
            }
            value => Ok(Some(value)),
        }
    }

    fn expected(&self) -> &'static str {
        match self.kind {
            ColumnType::Number => "a number",
            ColumnType::Integer => "an integer",
            ColumnType::Category => "one of its categories",
            ColumnType::Text => "text",
            ColumnType::Boolean => "true or false",
        }
    }

    /// The value of `cell`, or the replacement of a missing one by the rules of the column; `None` is NaN.
    fn filled<'c>(&'c self, cell: &'c TableCell) -> Result<Option<CellElement<'c>>, String> {
        match (self.value(cell)?, &self.default, self.missing) {
            (Some(value), ..) => Ok(Some(value)),
            (None, Some(default), _) => self.value(default),
            (None, None, MissingCellPolicy::Nan) => Ok(None),
            (None, None, MissingCellPolicy::Refuse) => Err("is missing".to_owned()),
        }
    }

    fn number(&self, cell: &TableCell) -> Result<f64, String> {
        let place = |text: &str| self.categories.iter().position(|name| name == text);
        match self.filled(cell)? {
            None => Ok(f64::NAN),
            Some(CellElement::Number(number)) => Ok(number),
            Some(CellElement::Text(text)) => {
                let place = place(text).and_then(|place| u32::try_from(place).ok());
                place.map(f64::from).ok_or_else(|| format!("is {}, expected a number", excerpt(text)))
            }
        }
    }
}

/// The tensor of an input: of each row the cells of `columns`, each with its position in the row.
pub fn tensor(
    datatype: DataType,
    shape: Vec<usize>,
    rows: &TableRows,
    columns: &[(usize, &TableColumn)],
) -> Result<Tensor, String> {
    let cells = || (0..rows.len()).flat_map(|row| columns.iter().map(move |&(place, column)| (row, place, column)));
    let of = |(row, column): (usize, &TableColumn)| {
        let name = column.name.clone();
        move |reason: String| format!("row {}: column {name:?} {reason}", rows.number(row))
    };
    if datatype == DataType::Bytes {
        let mut strings = Vec::with_capacity(rows.len() * columns.len());
        for (row, place, column) in cells() {
            match column.filled(rows.cell(row, place)).map_err(of((row, column)))? {
                Some(CellElement::Text(text)) => strings.push(text),
                _ => return Err(of((row, column))("is not text".to_owned())),
            }
        }
        return Tensor::from_strings(shape, strings).map_err(|error| error.to_string());
    }

    let mut numbers = Vec::with_capacity(rows.len() * columns.len());
    for (row, place, column) in cells() {
        numbers.push(column.number(rows.cell(row, place)).map_err(of((row, column)))?);
    }
    let tensor = from_f64(datatype, shape, &numbers).map_err(|error| error.to_string())?;
    // A number beyond the datatype would be another one.
    let kept = to_f64(&tensor).unwrap_or_default();
    let is_kept = |number: f64, kept: f64| {
        if is_float(datatype) {
            !kept.is_infinite()
        } else {
            number.total_cmp(&kept).is_eq() || number == 0.0 && kept == 0.0
        }
    };
    let lost = cells().zip(numbers.iter().zip(&kept)).find(|(_, (number, kept))| !is_kept(**number, **kept));
    match lost {
        Some(((row, _, column), (number, _))) => Err(of((row, column))(format!("is {number}, beyond {datatype}"))),
        None => Ok(tensor),
    }
}
