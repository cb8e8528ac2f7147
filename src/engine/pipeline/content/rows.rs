//! Rows with named columns as a call sends them: JSON with values that are not parsed yet.

use std::fmt;

use bytes::Bytes;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The most rows of one call.
pub const ROWS_MAX: usize = 10_000;
/// The most bytes of the rows of one call.
pub const ROWS_BYTES_MAX: usize = 64 << 20;

/// Rows that are invalid, or too many.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowsError {
    #[error("the rows cannot be read: {0}")]
    Json(String),
    #[error("there is no row")]
    Empty,
    #[error("there are more than {ROWS_MAX} rows, the most of one call: send them in several calls, or as CSV")]
    TooMany,
    #[error("the rows have {0} bytes, more than {ROWS_BYTES_MAX}, the most of one call: send them in several calls")]
    TooLarge(usize),
}

impl RowsError {
    /// True when there is too much of it, and not something else.
    pub fn is_too_much(&self) -> bool {
        match self {
            Self::Json(_) | Self::Empty => false,
            Self::TooMany | Self::TooLarge(_) => true,
        }
    }
}

/// The JSON of one row or several: an object, or a list. Clones share the bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct RowsText {
    json: Bytes,
    count: usize,
    /// The number of the first row in the request, for messages.
    first: usize,
}

impl RowsText {
    /// Rows of one call. Checks the JSON, and counts the rows.
    pub fn new(json: Bytes) -> Result<Self, RowsError> {
        if json.len() > ROWS_BYTES_MAX {
            return Err(RowsError::TooLarge(json.len()));
        }
        let mut count = 0;
        let mut deserializer = serde_json::Deserializer::from_slice(&json);
        let read = deserializer.deserialize_any(RowCounter(&mut count)).and_then(|()| deserializer.end());
        match read {
            _ if count > ROWS_MAX => Err(RowsError::TooMany),
            Err(error) => Err(RowsError::Json(error.to_string())),
            Ok(()) if count == 0 => Err(RowsError::Empty),
            Ok(()) => Ok(Self { json, count, first: 0 }),
        }
    }

    /// A part of many rows: `count` of them in a list, from the row `first` on.
    pub fn part(json: Bytes, count: usize, first: usize) -> Self {
        Self { json, count, first }
    }

    pub fn json(&self) -> &Bytes {
        &self.json
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn first(&self) -> usize {
        self.first
    }

    /// Parts of at most `rows` rows each; `None` for rows that are one part already.
    pub fn divided(&self, rows: usize) -> Option<Vec<Self>> {
        if self.count <= rows {
            return None;
        }
        let elements: Vec<&RawValue> = serde_json::from_slice(&self.json).ok()?;
        let part = |(index, rows_of_part): (usize, &[&RawValue])| {
            let bytes = rows_of_part.iter().map(|row| row.get().len() + 1).sum::<usize>();
            let mut json = Vec::with_capacity(bytes + 1);
            for row in rows_of_part {
                json.push(if json.is_empty() { b'[' } else { b',' });
                json.extend_from_slice(row.get().as_bytes());
            }
            json.push(b']');
            Self::part(json.into(), rows_of_part.len(), self.first + index * rows)
        };
        Some(elements.chunks(rows.max(1)).enumerate().map(part).collect())
    }
}

/// Counts the rows, and reads nothing of them. It stops at the first one too many.
struct RowCounter<'c>(&'c mut usize);

impl<'de> Visitor<'de> for RowCounter<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the columns of a row, or a list of these objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        *self.0 = 1;
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {
            *self.0 += 1;
            if *self.0 > ROWS_MAX {
                return Err(A::Error::custom("too many rows"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn rows(json: &str) -> Result<RowsText, RowsError> {
        RowsText::new(json.to_owned().into())
    }

    #[test]
    fn rows_are_counted_and_within_their_limits() {
        assert_eq!(rows(r#"{"a": [1, 2]}"#).unwrap().count(), 1);
        assert_eq!(rows("[{}, {}, {}]").unwrap().count(), 3);
        assert_eq!(rows("[]"), Err(RowsError::Empty));
        for wrong in ["", "3", "\"a\"", "[{}", "{}{}", "[{}] x"] {
            assert!(matches!(rows(wrong), Err(RowsError::Json(_))), "{wrong}");
        }
        let list = |count: usize| format!("[{}{{}}]", "{},".repeat(count - 1));
        assert_eq!(rows(&list(ROWS_MAX)).unwrap().count(), ROWS_MAX);
        assert_eq!(rows(&list(ROWS_MAX + 1)), Err(RowsError::TooMany));
        assert_eq!(rows(&" ".repeat(ROWS_BYTES_MAX + 1)), Err(RowsError::TooLarge(ROWS_BYTES_MAX + 1)));
        assert!(RowsError::TooMany.is_too_much() && !RowsError::Empty.is_too_much());
    }

    proptest! {
        #[test]
        fn parts_have_the_rows_of_the_whole_in_order(count in 1_usize..40, most in 1_usize..12) {
            let all: Vec<Value> = (0..count).map(|row| json!({"a": row, "b": [row, "]"]})).collect();
            let whole = rows(&Value::from(all.clone()).to_string()).unwrap();
            let parts = whole.divided(most).unwrap_or_else(|| vec![whole.clone()]);
            let mut found = Vec::new();
            for part in parts {
                prop_assert!((1..=most).contains(&part.count()));
                prop_assert_eq!(part.first(), found.len());
                let rows: Vec<Value> = serde_json::from_slice(part.json()).unwrap();
                prop_assert_eq!(rows.len(), part.count());
                found.extend(rows);
            }
            prop_assert_eq!(found, all);
        }
    }
}
