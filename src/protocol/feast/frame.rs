//! Data frames in JSON: an object of columns, each an array of cells. Read without a tree in between, and bounded.

use std::borrow::Cow;
use std::fmt;

use ledge_features::online::FrameColumns;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::super::cells::{ColumnCellsSeed, REQUEST_VALUES_MAX};

/// The most columns of one frame.
const FRAME_COLUMNS_MAX: usize = 4096;

/// The most feature references of one read.
const FEATURE_REFERENCES_MAX: usize = 10_000;

/// A data frame.
#[derive(Debug, Default)]
pub struct DataFrame(pub FrameColumns);

impl<'de> Deserialize<'de> for DataFrame {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FrameVisitor)
    }
}

struct FrameVisitor;

impl<'de> Visitor<'de> for FrameVisitor {
    type Value = DataFrame;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of columns, each an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DataFrame, A::Error> {
        let mut columns = FrameColumns::new();
        let mut left = REQUEST_VALUES_MAX;
        while let Some(name) = map.next_key::<Cow<str>>()? {
            if columns.iter().any(|(column, _)| *column == name) {
                return Err(A::Error::custom(format!("column '{name}' is there twice")));
            }
            if columns.len() == FRAME_COLUMNS_MAX {
                return Err(A::Error::custom(format!("more than {FRAME_COLUMNS_MAX} columns")));
            }
            let cells = map.next_value_seed(ColumnCellsSeed { left: &mut left, column: &name })?;
            columns.push((name.into_owned(), cells));
        }
        Ok(DataFrame(columns))
    }
}

/// Feature references.
#[derive(Debug, Default)]
pub struct FeatureReferences(pub Vec<String>);

impl<'de> Deserialize<'de> for FeatureReferences {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ReferencesVisitor)
    }
}

struct ReferencesVisitor;

impl<'de> Visitor<'de> for ReferencesVisitor {
    type Value = FeatureReferences;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an array of feature references")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<FeatureReferences, A::Error> {
        let mut references = Vec::new();
        while let Some(reference) = seq.next_element()? {
            if references.len() == FEATURE_REFERENCES_MAX {
                return Err(A::Error::custom(format!("more than {FEATURE_REFERENCES_MAX} features")));
            }
            references.push(reference);
        }
        Ok(FeatureReferences(references))
    }
}
