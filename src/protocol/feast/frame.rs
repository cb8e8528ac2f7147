//! Data frames in JSON: an object of columns, each an array of cells. Read without a tree in between, and bounded: a cell
//! takes many times the memory of its JSON.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::features::online::Columns;

/// The most values of one frame, those in lists counted.
const MOST_VALUES: usize = 2_000_000;

/// The most columns of one frame.
const MOST_COLUMNS: usize = 4096;

/// The most feature references of one read.
const MOST_REFERENCES: usize = 10_000;

/// A data frame.
#[derive(Debug, Default)]
pub struct Frame(pub Columns);

impl<'de> Deserialize<'de> for Frame {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FrameVisitor)
    }
}

struct FrameVisitor;

impl<'de> Visitor<'de> for FrameVisitor {
    type Value = Frame;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of columns, each an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Frame, A::Error> {
        let mut columns = Columns::new();
        let mut left = MOST_VALUES;
        while let Some(name) = map.next_key::<Cow<str>>()? {
            if columns.iter().any(|(column, _)| *column == name) {
                return Err(A::Error::custom(format!("column '{name}' is there twice")));
            }
            if columns.len() == MOST_COLUMNS {
                return Err(A::Error::custom(format!("more than {MOST_COLUMNS} columns")));
            }
            let cells = map.next_value_seed(Cells { left: &mut left, column: &name })?;
            columns.push((name.into_owned(), cells));
        }
        Ok(Frame(columns))
    }
}

/// The cells of one column.
struct Cells<'f> {
    left: &'f mut usize,
    column: &'f str,
}

impl<'de> DeserializeSeed<'de> for Cells<'_> {
    type Value = Vec<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Value>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Cells<'_> {
    type Value = Vec<Value>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "an array of values for column '{}'", self.column)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Value>, A::Error> {
        let mut cells = Vec::new();
        while let Some(cell) = seq.next_element_seed(Cell { left: self.left, in_list: false })? {
            cells.push(cell);
        }
        Ok(cells)
    }
}

/// One cell: what can be a feature, which is no object and no list of lists.
struct Cell<'f> {
    left: &'f mut usize,
    in_list: bool,
}

impl<'de> DeserializeSeed<'de> for Cell<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        *self.left = self.left.checked_sub(1).ok_or_else(|| {
            D::Error::custom(format!("more than {MOST_VALUES} values in one request; send them in several"))
        })?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Cell<'_> {
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
            return Err(A::Error::custom("a list within a list is no feature value"));
        }
        let mut values = Vec::new();
        while let Some(value) = seq.next_element_seed(Cell { left: self.left, in_list: true })? {
            values.push(value);
        }
        Ok(values.into())
    }
}

/// Feature references.
#[derive(Debug, Default)]
pub struct References(pub Vec<String>);

impl<'de> Deserialize<'de> for References {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ReferencesVisitor)
    }
}

struct ReferencesVisitor;

impl<'de> Visitor<'de> for ReferencesVisitor {
    type Value = References;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an array of feature references")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<References, A::Error> {
        let mut references = Vec::new();
        while let Some(reference) = seq.next_element()? {
            if references.len() == MOST_REFERENCES {
                return Err(A::Error::custom(format!("more than {MOST_REFERENCES} features")));
            }
            references.push(reference);
        }
        Ok(References(references))
    }
}
