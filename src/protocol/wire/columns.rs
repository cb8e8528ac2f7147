//! The columns of "entities" and "features": an object of arrays, with an element for each batch element.

use serde::de::MapAccess;
use serde_json::Value;

use super::super::error::{ProtocolError, excerpt};
use super::super::object::{Failure, Fields};
use super::MAX_ENTRIES;
use crate::features::online::Columns;

/// Reads one such object.
pub(super) struct ColumnsReader<'r> {
    /// Its key, for messages.
    pub key: &'static str,
    pub columns: &'r mut Columns,
    pub failure: &'r mut Failure,
}

impl<'de> Fields<'de> for ColumnsReader<'_> {
    const EXPECTED: &'static str = "an object of arrays";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        let place = || format!("'{}'", self.key);
        if self.columns.iter().any(|(known, _)| known == name) {
            return Err(self.failure.refuse(ProtocolError::DuplicateColumn { place: place(), column: excerpt(name) }));
        }
        if self.columns.len() == MAX_ENTRIES {
            return Err(self.failure.refuse(ProtocolError::TooMany { key: self.key, limit: MAX_ENTRIES }));
        }
        let cells: Vec<Value> = self.failure.field(&place(), name, map.next_value())?;
        self.columns.push((name.to_owned(), cells));
        Ok(())
    }
}
