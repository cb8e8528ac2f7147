//! The bytes after the JSON of a request, and the refusal of a read.

use bytes::Bytes;
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::names::ModelName;
use ledge_features::online::FrameColumns;
use serde::de::MapAccess;

use super::super::object::{FirstError, NullableSeed, ObjectSeed};
use super::super::parameters::{KnownParameters, ParametersFields};
use super::columns::ColumnsReader;

/// The place of top-level keys in messages.
pub(super) const REQUEST_PLACE: &str = "the request";

/// State that the readers share: the source of data, and the reason of a refusal.
pub(super) struct RequestReadState<'s> {
    pub(super) model: &'s ModelName,
    /// Binary data that is not read yet.
    pub(super) binary: Bytes,
    pub(super) json_length: usize,
    /// Account for tensors that are made from JSON, where they may be large.
    pub(super) account: Option<&'s MemoryAccount>,
    /// Number of cells that "entities" and "features" may still have.
    pub(super) cells_left: usize,
    pub(super) failure: &'s mut FirstError,
}

impl RequestReadState<'_> {
    /// Reads the value of "parameters".
    pub(super) fn parameters<'de, A: MapAccess<'de>, K: KnownParameters>(
        &mut self,
        place: &str,
        known: &mut K,
        map: &mut A,
    ) -> Result<(), A::Error> {
        let mut parameters = ParametersFields { place, known, failure: &mut *self.failure };
        let result = map.next_value_seed(NullableSeed(ObjectSeed(&mut parameters)));
        self.failure.field(place, "parameters", result).map(|_| ())
    }

    /// Reads the value of "entities" or "features".
    pub(super) fn columns<'de, A: MapAccess<'de>>(
        &mut self,
        key: &'static str,
        columns: &mut FrameColumns,
        map: &mut A,
    ) -> Result<(), A::Error> {
        let mut reader = ColumnsReader { key, columns, left: &mut self.cells_left, failure: &mut *self.failure };
        let result = map.next_value_seed(NullableSeed(ObjectSeed(&mut reader)));
        self.failure.field(REQUEST_PLACE, key, result).map(|_| ())
    }
}
