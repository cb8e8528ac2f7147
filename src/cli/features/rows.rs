//! The columns and rows of a file of any format.

use ledge_features::value::ValueType;
use serde_json::Value as Json;

/// The columns of a table: join keys, features, and the event time at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableColumns {
    pub values: Vec<(String, ValueType)>,
    /// The name of the event time's column.
    pub time: String,
}

impl TableColumns {
    /// The names of all columns.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|(name, _)| name.as_str()).chain([self.time.as_str()])
    }

    /// The position of the column with this name.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.names().position(|known| known == name)
    }

    /// The type of a column; `None` is the event time.
    pub fn kind(&self, at: usize) -> Option<ValueType> {
        self.values.get(at).map(|(_, kind)| *kind)
    }
}

/// A row of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct FileRow {
    /// The number of its line, or of the row in a file without lines, from 1.
    pub line: u64,
    /// A cell for each of [`TableColumns::names`]; `None` if the file does not have the column.
    pub cells: Vec<Option<Json>>,
}

/// The rows of a file.
pub struct FileRows {
    pub rows: Box<dyn Iterator<Item = anyhow::Result<FileRow>>>,
    /// Columns of the file that the feature view does not have.
    pub left_out: Vec<String>,
}

/// An error in a cell, with its line and column.
pub fn cell_error(line: u64, columns: &TableColumns, at: usize, reason: &str) -> anyhow::Error {
    anyhow::anyhow!("line {line}: column '{}': {reason}", columns.names().nth(at).unwrap_or_default())
}
