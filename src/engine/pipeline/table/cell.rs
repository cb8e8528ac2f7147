//! Rows as they come, whoever fills them: JSON here, and records of CSV or of the feature store through [`Rows::push`].

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::{CELLS_MAX, ROWS_MAX};

/// One value of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Left out, null, or empty in a CSV file.
    Missing,
    Number(f64),
    /// Kept apart from numbers: a double has no integers above 2^53.
    Integer(i64),
    Boolean(bool),
    Text(String),
}

/// What happens to a column of a row that the model does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExtraColumns {
    /// It may be a name written wrong.
    #[default]
    Refuse,
    Ignore,
}

/// Rows of the columns of a model. Each row has a cell of each column.
#[derive(Debug)]
pub struct Rows {
    columns: Vec<String>,
    extra: ExtraColumns,
    /// Row by row.
    cells: Vec<Cell>,
    count: usize,
}

impl Rows {
    /// No rows yet, of these columns.
    pub fn new(columns: impl IntoIterator<Item = String>, extra: ExtraColumns) -> Self {
        Self { columns: columns.into_iter().collect(), extra, cells: Vec::new(), count: 0 }
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The cells of a column, from the first row on.
    pub fn cell(&self, row: usize, column: usize) -> &Cell {
        self.cells.get(row * self.columns.len() + column).unwrap_or(&Cell::Missing)
    }

    /// Adds a row. Columns that it leaves out are missing.
    pub fn push<'n>(&mut self, row: impl IntoIterator<Item = (&'n str, Cell)>) -> Result<(), String> {
        self.begin()?;
        row.into_iter().try_for_each(|(name, cell)| match self.place(name)? {
            Some(place) => self.set(place, name, cell),
            None => Ok(()),
        })
    }

    /// Adds the rows of a JSON text: an object is one row, a list has one in each element.
    pub fn read_json(&mut self, text: &[u8]) -> Result<(), String> {
        let mut deserializer = serde_json::Deserializer::from_slice(text);
        JsonRows(self).deserialize(&mut deserializer).map_err(|error| error.to_string())?;
        deserializer.end().map_err(|error| error.to_string())?;
        if self.is_empty() { Err("the list has no rows".to_owned()) } else { Ok(()) }
    }

    fn begin(&mut self) -> Result<(), String> {
        if self.count >= ROWS_MAX {
            return Err(format!("more than {ROWS_MAX} rows in one call"));
        }
        let cells = self.cells.len() + self.columns.len();
        if cells > CELLS_MAX {
            return Err(format!("more than {CELLS_MAX} cells in one call"));
        }
        self.count += 1;
        self.cells.resize(cells, Cell::Missing);
        Ok(())
    }

    /// The position of a column in the last row; `None` if it is ignored.
    fn place(&self, name: &str) -> Result<Option<usize>, String> {
        match (self.columns.iter().position(|column| column == name), self.extra) {
            (None, ExtraColumns::Refuse) => {
                Err(format!("row {}: the model has no column {name:?}", self.count.saturating_sub(1)))
            }
            (place, _) => Ok(place),
        }
    }

    fn set(&mut self, place: usize, name: &str, cell: Cell) -> Result<(), String> {
        let row = self.count.saturating_sub(1);
        match self.cells.get_mut(row * self.columns.len() + place) {
            Some(empty @ Cell::Missing) => *empty = cell,
            _ => return Err(format!("row {row}: column {name:?} is there twice")),
        }
        Ok(())
    }
}

struct JsonRows<'r>(&'r mut Rows);

impl<'de> DeserializeSeed<'de> for JsonRows<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonRows<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the columns of a row, or a list of such objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        JsonRow(self.0).visit_map(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(JsonRow(self.0))?.is_some() {}
        Ok(())
    }
}

struct JsonRow<'r>(&'r mut Rows);

impl<'de> DeserializeSeed<'de> for JsonRow<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for JsonRow<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the columns of a row")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.0.begin().map_err(A::Error::custom)?;
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            match self.0.place(&name).map_err(A::Error::custom)? {
                Some(place) => self.0.set(place, &name, map.next_value()?).map_err(A::Error::custom)?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Cell {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CellVisitor)
    }
}

struct CellVisitor;

impl Visitor<'_> for CellVisitor {
    type Value = Cell;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, a string, true, false or null")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Cell, E> {
        Ok(Cell::Boolean(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Cell, E> {
        Ok(Cell::Integer(value))
    }

    #[expect(clippy::cast_precision_loss, reason = "above the largest i64 it is a number like any other")]
    fn visit_u64<E>(self, value: u64) -> Result<Cell, E> {
        Ok(i64::try_from(value).map_or(Cell::Number(value as f64), Cell::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Cell, E> {
        Ok(Cell::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Cell, E> {
        Ok(Cell::Text(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Cell, E> {
        Ok(Cell::Missing)
    }
}

/// Reads rows for the fuzzers; true if they can be read.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_rows(data: &[u8]) -> bool {
    let mut rows = Rows::new(["a", "b"].map(str::to_owned), ExtraColumns::Ignore);
    if rows.read_json(data).is_err() {
        return false;
    }
    assert!((1..=ROWS_MAX).contains(&rows.len()));
    assert_eq!(rows.cells.len(), rows.len() * rows.columns.len());
    true
}
