//! The columns of "entities" and "features": an object of arrays, with an element for each batch element.

use ledge_features::online::FrameColumns;
use serde::de::MapAccess;

use super::super::cells::ColumnCellsSeed;
use super::super::error::{ProtocolError, excerpt};
use super::super::object::{FirstError, ObjectFields};

/// The most inputs or outputs of one request: far beyond any model, and a bound on what a hostile list costs.
pub(crate) const ENTRIES_MAX: usize = 1024;

/// Reads one object of columns.
pub(super) struct ColumnsReader<'r> {
    /// Its key in messages.
    pub key: &'static str,
    pub columns: &'r mut FrameColumns,
    /// Number of values that the request may still have.
    pub left: &'r mut usize,
    pub failure: &'r mut FirstError,
}

impl<'de> ObjectFields<'de> for ColumnsReader<'_> {
    const EXPECTED: &'static str = "an object of arrays";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        let place = || format!("'{}'", self.key);
        if self.columns.iter().any(|(known, _)| known == name) {
            return Err(self.failure.refuse(ProtocolError::DuplicateColumn { place: place(), column: excerpt(name) }));
        }
        if self.columns.len() == ENTRIES_MAX {
            return Err(self.failure.refuse(ProtocolError::TooMany { key: self.key, limit: ENTRIES_MAX }));
        }
        let cells = map.next_value_seed(ColumnCellsSeed { left: self.left, column: name });
        let cells = self.failure.field(&place(), name, cells)?;
        self.columns.push((name.to_owned(), cells));
        Ok(())
    }
}
