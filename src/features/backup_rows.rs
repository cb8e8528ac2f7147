//! The rows of one feature view in a backup, by names and with values, for readers without a store.

use std::io::Read;

use super::catalog::{CatalogError, ViewCatalog};
use super::record::{DamagedBytes, FeatureRecord};
use super::snapshot::{SnapshotError, SnapshotReader};
use super::value::Value;
use super::view::{FieldId, ViewId};

/// Reads the rows of one view.
#[derive(Debug)]
pub struct BackupRows<R> {
    reader: SnapshotReader<R>,
    view: ViewId,
    places: Vec<BackupColumnSource>,
}

/// The source of a column's values in a row.
#[derive(Debug, Clone, Copy)]
enum BackupColumnSource {
    Key(usize),
    Field(FieldId),
    /// The column was declared after the backup: null in every row.
    Null,
}

/// A row: a value for each requested column, and its event time in microseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct BackupRow {
    /// The values; `None` is null.
    pub values: Vec<Option<Value>>,
    pub event_us: i64,
}

/// Reasons why no rows can be read.
#[derive(Debug, thiserror::Error)]
pub enum BackupRowsError {
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error("the catalog of the backup cannot be used: {0}")]
    Catalog(#[from] CatalogError),
    #[error("a record of the backup cannot be used: {0}")]
    Record(#[from] DamagedBytes),
    #[error("the backup has no feature view '{0}'")]
    View(String),
}

impl<R: Read> BackupRows<R> {
    /// Reads these columns of a view, join keys or features.
    pub fn new<'c>(reader: R, view: &str, columns: impl IntoIterator<Item = &'c str>) -> Result<Self, BackupRowsError> {
        let reader = SnapshotReader::new(reader)?;
        let catalog = ViewCatalog::from_json(&reader.header().catalog)?;
        let stored = catalog.stored_view(view).ok_or_else(|| BackupRowsError::View(view.to_owned()))?;
        let place = |column: &str| {
            let key = stored.join_keys.iter().position(|(name, _)| **name == *column).map(BackupColumnSource::Key);
            let field = || {
                stored
                    .fields
                    .iter()
                    .find(|(_, name, _)| **name == *column)
                    .map(|(id, ..)| BackupColumnSource::Field(*id))
            };
            key.or_else(field).unwrap_or(BackupColumnSource::Null)
        };
        Ok(Self { reader, view: stored.id, places: columns.into_iter().map(place).collect() })
    }

    /// The next row. `None` comes only when the whole backup was read, and found complete.
    #[expect(clippy::should_implement_trait, reason = "an error ends it for good, which an iterator does not promise")]
    pub fn next(&mut self) -> Result<Option<BackupRow>, BackupRowsError> {
        while let Some((key, bytes)) = self.reader.next()? {
            if key.view() == self.view {
                let row = FeatureRecord::decode(&key, &bytes)?.row;
                let value = |place: &BackupColumnSource| match place {
                    BackupColumnSource::Key(at) => row.entity.get(*at).cloned(),
                    BackupColumnSource::Field(id) => row.value(*id).cloned(),
                    BackupColumnSource::Null => None,
                };
                return Ok(Some(BackupRow { values: self.places.iter().map(value).collect(), event_us: row.event_us }));
            }
        }
        Ok(None)
    }
}
