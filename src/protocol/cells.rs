//! Columns of cells in JSON, bounded: a cell takes many times the memory of its text.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde_json::Value;

/// The most values of one request, including those in lists.
pub(super) const REQUEST_VALUES_MAX: usize = 2_000_000;

/// Reads the cells of one column.
pub(super) struct ColumnCellsSeed<'f> {
    /// Number of values that may still come.
    pub left: &'f mut usize,
    /// The column in messages.
    pub column: &'f str,
}

impl<'de> DeserializeSeed<'de> for ColumnCellsSeed<'_> {
    type Value = Vec<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Value>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ColumnCellsSeed<'_> {
    type Value = Vec<Value>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "an array of values for column '{}'", self.column)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Value>, A::Error> {
        let mut cells = Vec::new();
        while let Some(cell) = seq.next_element_seed(CellSeed { left: self.left, in_list: false })? {
            cells.push(cell);
        }
        Ok(cells)
    }
}

/// Reads one cell: a feature value, which cannot be an object or a list of lists.
struct CellSeed<'f> {
    left: &'f mut usize,
    in_list: bool,
}

impl<'de> DeserializeSeed<'de> for CellSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        *self.left = self.left.checked_sub(1).ok_or_else(|| {
            D::Error::custom(format!(
                "more than {REQUEST_VALUES_MAX} values in one request; send them in several requests"
            ))
        })?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for CellSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(if self.in_list {
            "a string, number, boolean or null"
        } else {
            "a string, number, boolean, null or a list of them"
        })
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        if self.in_list {
            return Err(A::Error::custom("a list within a list is not a feature value"));
        }
        let mut values = Vec::new();
        while let Some(value) = seq.next_element_seed(CellSeed { left: self.left, in_list: true })? {
            values.push(value);
        }
        Ok(values.into())
    }
}
