//! The cells of rows, read from JSON.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::super::content::rows::{ROWS_MAX, RowsText};

/// The most cells of one run, of all columns, which bounds its memory.
pub const CELLS_MAX: usize = 1 << 20;

/// One value of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum TableCell {
    /// Left out, null, or empty in a CSV file.
    Missing,
    Number(f64),
    /// Kept apart from numbers: a double has no integers above 2^53.
    Integer(i64),
    Boolean(bool),
    Text(String),
}

/// The treatment of a column of a row that the model does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExtraColumnsPolicy {
    /// It may be a name written wrong.
    #[default]
    Refuse,
    Ignore,
}

/// The names of the columns of a model, and where each is.
#[derive(Debug)]
pub struct TableColumnNames {
    names: Vec<String>,
    places: HashMap<String, usize>,
    extra: ExtraColumnsPolicy,
}

impl TableColumnNames {
    pub fn new(names: impl IntoIterator<Item = String>, extra: ExtraColumnsPolicy) -> Self {
        let names: Vec<String> = names.into_iter().collect();
        let places = names.iter().enumerate().map(|(place, name)| (name.clone(), place)).collect();
        Self { names, places, extra }
    }

    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// The position of a column. `guess` is tried first: rows have their columns mostly in the order of the model.
    fn place(&self, name: &str, guess: usize) -> Option<usize> {
        if self.names.get(guess).is_some_and(|guessed| guessed == name) {
            return Some(guess);
        }
        self.places.get(name).copied()
    }
}

/// Rows of the columns of a model. Each row has a cell of each column.
#[derive(Debug)]
pub struct TableRows {
    columns: Arc<TableColumnNames>,
    /// Row by row.
    cells: Vec<TableCell>,
    count: usize,
    /// The number of the first row, for messages.
    first: usize,
    /// The position behind the column that was set last.
    next: usize,
    /// False before the first row, and between two.
    is_in_row: bool,
    /// The mistake in the rows, if their JSON is valid.
    mistake: Option<String>,
}

impl TableRows {
    /// No rows yet, of these columns. `first` is the number of the first one, for messages.
    pub fn new(columns: Arc<TableColumnNames>, first: usize) -> Self {
        Self { columns, cells: Vec::new(), count: 0, first, next: 0, is_in_row: false, mistake: None }
    }

    /// The rows of a call.
    pub fn read(columns: Arc<TableColumnNames>, text: &RowsText) -> Result<Self, String> {
        let mut rows = Self::new(columns, text.first());
        rows.read_json(text.json())?;
        Ok(rows)
    }

    /// The number of a row, as the caller counts them.
    pub fn number(&self, row: usize) -> usize {
        self.first + row
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
    pub fn cell(&self, row: usize, column: usize) -> &TableCell {
        self.cells.get(row * self.columns.names.len() + column).unwrap_or(&TableCell::Missing)
    }

    /// Adds the rows of a JSON text: an object is one row, a list has one in each element.
    pub fn read_json(&mut self, text: &[u8]) -> Result<(), String> {
        let mut deserializer = serde_json::Deserializer::from_slice(text);
        let read = TableRowsVisitor(self).deserialize(&mut deserializer).and_then(|()| deserializer.end());
        match (self.mistake.take(), read) {
            (Some(mistake), _) => Err(mistake),
            (None, Err(error)) if error.is_data() => {
                // The position in the error is one in a part of the request, so it is cut off.
                let text = error.to_string();
                let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
                let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
                Err(format!("row {}: {reason}", self.number(self.count - usize::from(self.is_in_row))))
            }
            (None, Err(error)) => Err(error.to_string()),
            (None, Ok(())) if self.is_empty() => Err("the list has no rows".to_owned()),
            (None, Ok(())) => Ok(()),
        }
    }

    fn begin(&mut self) -> Result<(), String> {
        if self.count >= ROWS_MAX {
            return Err(format!("more than {ROWS_MAX} rows in one call"));
        }
        let cells = self.cells.len() + self.columns.names.len();
        if cells > CELLS_MAX {
            return Err(format!("more than {CELLS_MAX} cells in one call"));
        }
        self.count += 1;
        (self.next, self.is_in_row) = (0, true);
        self.cells.resize(cells, TableCell::Missing);
        Ok(())
    }

    /// The position of a column in the last row; `None` if it is ignored.
    fn place(&self, name: &str) -> Result<Option<usize>, String> {
        match (self.columns.place(name, self.next), self.columns.extra) {
            (None, ExtraColumnsPolicy::Refuse) => Err(format!(
                "row {}: the model has no column {}",
                self.number(self.count.saturating_sub(1)),
                excerpt(name)
            )),
            (place, _) => Ok(place),
        }
    }

    fn set(&mut self, place: usize, name: &str, cell: TableCell) -> Result<(), String> {
        let row = self.count.saturating_sub(1);
        self.next = place + 1;
        match self.cells.get_mut(row * self.columns.names.len() + place) {
            Some(empty @ TableCell::Missing) => *empty = cell,
            _ => return Err(format!("row {}: column {} is there twice", self.number(row), excerpt(name))),
        }
        Ok(())
    }

    /// Keeps the mistake, and makes an error of the deserializer of it.
    fn mistaken<E: serde::de::Error>(&mut self, mistake: String) -> E {
        self.mistake = Some(mistake);
        E::custom("")
    }
}

/// The most characters of the caller's that a message quotes, and of a message of the JSON parser, which may quote.
const EXCERPT_CHARS_MAX: usize = 60;
const REASON_CHARS_MAX: usize = 200;

/// The beginning of a text, for messages.
pub fn excerpt(text: &str) -> String {
    match text.char_indices().nth(EXCERPT_CHARS_MAX) {
        Some((end, _)) => format!("{:?}...", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

struct TableRowsVisitor<'r>(&'r mut TableRows);

impl<'de> DeserializeSeed<'de> for TableRowsVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TableRowsVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the columns of a row, or a list of these objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        TableRowVisitor(self.0).visit_map(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(TableRowVisitor(self.0))?.is_some() {}
        Ok(())
    }
}

struct TableRowVisitor<'r>(&'r mut TableRows);

impl<'de> DeserializeSeed<'de> for TableRowVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TableRowVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the columns of a row")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let rows = self.0;
        rows.begin().map_err(|mistake| rows.mistaken(mistake))?;
        while let Some(name) = map.next_key::<CellName<'de>>()? {
            let name = name.0;
            match rows.place(&name).map_err(|mistake| rows.mistaken(mistake))? {
                Some(place) => {
                    let cell = map.next_value()?;
                    rows.set(place, &name, cell).map_err(|mistake| rows.mistaken(mistake))?;
                }
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        rows.is_in_row = false;
        Ok(())
    }
}

/// A name, borrowed where it has no escapes. serde reads a `Cow` as an owned one.
#[derive(Deserialize)]
struct CellName<'n>(#[serde(borrow)] Cow<'n, str>);

impl<'de> Deserialize<'de> for TableCell {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CellVisitor)
    }
}

struct CellVisitor;

impl Visitor<'_> for CellVisitor {
    type Value = TableCell;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, a string, true, false or null")
    }

    fn visit_bool<E>(self, value: bool) -> Result<TableCell, E> {
        Ok(TableCell::Boolean(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<TableCell, E> {
        Ok(TableCell::Integer(value))
    }

    #[expect(clippy::cast_precision_loss, reason = "above the largest i64 it is a number like any other")]
    fn visit_u64<E>(self, value: u64) -> Result<TableCell, E> {
        Ok(i64::try_from(value).map_or(TableCell::Number(value as f64), TableCell::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<TableCell, E> {
        Ok(TableCell::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<TableCell, E> {
        Ok(TableCell::Text(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<TableCell, E> {
        Ok(TableCell::Missing)
    }
}

/// Reads rows for the fuzzers; true if they can be read.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_rows(data: &[u8]) -> bool {
    let columns = TableColumnNames::new(["a", "b"].map(str::to_owned), ExtraColumnsPolicy::Ignore);
    let Ok(text) = RowsText::new(data.to_vec().into()) else { return false };
    let columns = Arc::new(columns);
    let read = TableRows::read(columns.clone(), &text);
    if let Ok(rows) = &read {
        assert_eq!(rows.len(), text.count());
        assert_eq!(rows.cells.len(), rows.len() * columns.names.len());
    }
    // Parts are read as the whole is.
    if let Some(parts) = text.divided(2) {
        assert_eq!(parts.iter().map(RowsText::count).sum::<usize>(), text.count());
        let parts: Result<Vec<_>, _> = parts.iter().map(|part| TableRows::read(columns.clone(), part)).collect();
        match (&parts, &read) {
            (Ok(parts), Ok(whole)) => {
                let cells: Vec<&TableCell> = parts.iter().flat_map(|part| &part.cells).collect();
                assert_eq!(cells, whole.cells.iter().collect::<Vec<_>>());
            }
            (Err(part), Err(whole)) => assert_eq!(part, whole),
            (parts, whole) => panic!("{parts:?} of {whole:?}"),
        }
    }
    read.is_ok()
}
