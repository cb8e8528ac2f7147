//! CSV with a header to parts of rows, each of which is a run of the model: however long the file is, no more of it is
//! in memory than one line and one part.

use bytes::{Buf, Bytes};
use csv_core::{ReadRecordResult, Reader};
use ledge_engine::pipeline::content::rows::RowsText;

/// The most bytes of one line.
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// The most columns of a line.
const COLUMNS_MAX: usize = 8192;
/// The JSON of a part above which no row is added to it, in bytes.
const PART_BYTES_MAX: usize = 128 << 10;

/// CSV that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CsvError {
    #[error("there is no row: the first line of CSV has the names of the columns")]
    Empty,
    #[error("{place} has more than {LINE_BYTES_MAX} bytes: is a quote not closed?")]
    LongLine { place: CsvLine },
    #[error("{place} has more than {COLUMNS_MAX} columns")]
    Wide { place: CsvLine },
    #[error("{place}: column {column} is not UTF-8")]
    NotUtf8 {
        place: CsvLine,
        /// From 0.
        column: usize,
    },
    #[error("row {row} has {got} cells, and the header has {expected}")]
    Cells { row: usize, got: usize, expected: usize },
}

/// A line of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CsvLine {
    Header,
    /// From 0, the first row behind the header.
    Row(usize),
}

impl std::fmt::Display for CsvLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header => f.write_str("the header"),
            Self::Row(row) => write!(f, "row {row}"),
        }
    }
}

/// A reader that gets the bytes of a file as they come.
pub struct CsvRows {
    reader: Reader,
    /// The cells of the line that is being read, and behind each where it ends.
    cells: Vec<u8>,
    cells_end: usize,
    ends: Vec<usize>,
    ends_end: usize,
    /// The names of the columns, each as a member of a JSON object begins.
    names: Option<Vec<Vec<u8>>>,
    /// A list of rows that is not closed.
    part: Vec<u8>,
    part_rows: usize,
    /// The number of rows before the part.
    before: usize,
}

impl Default for CsvRows {
    fn default() -> Self {
        Self {
            reader: Reader::new(),
            cells: vec![0; 4096],
            cells_end: 0,
            ends: vec![0; 64],
            ends_end: 0,
            names: None,
            part: Vec::new(),
            part_rows: 0,
            before: 0,
        }
    }
}

impl CsvRows {
    /// The rows of a part, unless they are long.
    pub const PART_ROWS: usize = 512;

    /// Reads from `input` up to the next whole part, and removes the bytes that it read. `None` when it needs more.
    pub fn read(&mut self, input: &mut Bytes) -> Result<Option<RowsText>, CsvError> {
        while !input.is_empty() {
            self.step(input)?;
            if self.part_rows >= Self::PART_ROWS || self.part.len() >= PART_BYTES_MAX {
                return Ok(self.take());
            }
        }
        Ok(None)
    }

    /// The last part, when there is no more input.
    pub fn finish(&mut self) -> Result<Option<RowsText>, CsvError> {
        // A last line without a line break counts as a line: an empty input ends it. The loop makes room for it in
        // between.
        while !self.step(&mut Bytes::new())? {}
        if self.before + self.part_rows == 0 {
            return Err(CsvError::Empty);
        }
        Ok(self.take())
    }

    /// Reads up to the end of a line at most. True at the end of the file.
    fn step(&mut self, input: &mut Bytes) -> Result<bool, CsvError> {
        let cells = self.cells.get_mut(self.cells_end..).unwrap_or_default();
        let ends = self.ends.get_mut(self.ends_end..).unwrap_or_default();
        let (result, read, written, ended) = self.reader.read_record(input, cells, ends);
        input.advance(read);
        self.cells_end += written;
        self.ends_end += ended;
        match result {
            ReadRecordResult::InputEmpty => {}
            ReadRecordResult::OutputFull if self.cells.len() >= LINE_BYTES_MAX => {
                return Err(CsvError::LongLine { place: self.place() });
            }
            ReadRecordResult::OutputFull => self.cells.resize(self.cells.len() * 2, 0),
            ReadRecordResult::OutputEndsFull if self.ends.len() >= COLUMNS_MAX => {
                return Err(CsvError::Wide { place: self.place() });
            }
            ReadRecordResult::OutputEndsFull => self.ends.resize(self.ends.len() * 2, 0),
            ReadRecordResult::Record => {
                self.line()?;
                (self.cells_end, self.ends_end) = (0, 0);
            }
            ReadRecordResult::End => return Ok(true),
        }
        Ok(false)
    }

    /// The line that is being read.
    fn place(&self) -> CsvLine {
        if self.names.is_some() { CsvLine::Row(self.before + self.part_rows) } else { CsvLine::Header }
    }

    /// Takes the line that was read as the header or as a row.
    fn line(&mut self) -> Result<(), CsvError> {
        let place = self.place();
        let ends = self.ends.get(..self.ends_end).unwrap_or_default();
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let texts = starts.zip(ends).enumerate().map(|(column, (start, &end))| {
            let bytes = self.cells.get(start..end).unwrap_or_default();
            std::str::from_utf8(bytes).map_err(|_| CsvError::NotUtf8 { place, column })
        });
        let Some(names) = &self.names else {
            let name = |text: Result<&str, CsvError>| {
                let mut name = Vec::new();
                // The mark that Windows writes at the beginning of a file.
                write_text(&mut name, text?.trim_start_matches('\u{feff}'));
                name.push(b':');
                Ok(name)
            };
            self.names = Some(texts.map(name).collect::<Result<_, _>>()?);
            return Ok(());
        };
        if let CsvLine::Row(row) = place
            && names.len() != ends.len()
        {
            return Err(CsvError::Cells { row, got: ends.len(), expected: names.len() });
        }

        self.part.push(if self.part.is_empty() { b'[' } else { b',' });
        for (index, (name, text)) in names.iter().zip(texts).enumerate() {
            self.part.push(if index == 0 { b'{' } else { b',' });
            self.part.extend_from_slice(name);
            match text? {
                "" => self.part.extend_from_slice(b"null"),
                text => write_text(&mut self.part, text),
            }
        }
        self.part.push(b'}');
        self.part_rows += 1;
        Ok(())
    }

    /// The rows that are read and not in a part yet, such as those before a mistake.
    pub fn take(&mut self) -> Option<RowsText> {
        if self.part_rows == 0 {
            return None;
        }
        let mut json = std::mem::take(&mut self.part);
        json.push(b']');
        let rows = std::mem::take(&mut self.part_rows);
        let part = RowsText::part(json.into(), rows, self.before);
        self.before += rows;
        Some(part)
    }
}

/// A text as JSON.
fn write_text(json: &mut Vec<u8>, text: &str) {
    // A text always has a JSON form, and a vector takes it.
    let _ = serde_json::to_writer(json, text);
}

/// Reads CSV in pieces of two sizes for the fuzzers; true if it can be read.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_csv_rows(data: &[u8]) -> bool {
    let read = |size: usize| {
        let (mut rows, mut parts) = (CsvRows::default(), Vec::new());
        for piece in data.chunks(size) {
            let mut piece = Bytes::copy_from_slice(piece);
            while let Some(part) = rows.read(&mut piece)? {
                parts.push(part);
            }
            assert!(piece.is_empty());
        }
        parts.extend(rows.finish()?);
        Ok::<_, CsvError>(parts)
    };
    let whole = read(data.len().max(1));
    if !data.starts_with(b"\xef") {
        assert_eq!(read(1), whole);
    }
    let mut next = 0;
    for part in whole.iter().flatten() {
        assert_eq!(part.first(), next);
        next += part.count();
        let counted = RowsText::new(part.json().clone()).map(|rows| rows.count());
        assert_eq!(counted, Ok(part.count()));
    }
    whole.is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn read(text: &[u8]) -> Result<Vec<Value>, CsvError> {
        let (mut rows, mut input, mut parts) = (CsvRows::default(), Bytes::copy_from_slice(text), Vec::new());
        while let Some(part) = rows.read(&mut input)? {
            parts.push(part);
        }
        parts.extend(rows.finish()?);
        Ok(parts.iter().flat_map(|part| serde_json::from_slice::<Vec<Value>>(part.json()).unwrap()).collect())
    }

    #[test]
    fn lines_are_rows_of_texts_by_the_names_of_the_header() {
        let text = "\u{feff}a,\"b \"\"x\"\"\",c\r\n1,\"two\nlines\",\r\n\r\n,é,-2.5e3";
        let expected =
            [json!({"a": "1", "b \"x\"": "two\nlines", "c": null}), json!({"a": null, "b \"x\"": "é", "c": "-2.5e3"})];
        assert_eq!(read(text.as_bytes()).unwrap(), expected);
    }

    #[test]
    fn what_cannot_be_read_names_its_row() {
        let mistake = |text: &[u8]| read(text).unwrap_err().to_string();
        assert_eq!(read(b""), Err(CsvError::Empty));
        assert_eq!(read(b"a,b\n"), Err(CsvError::Empty));
        assert_eq!(mistake(b"a,b\n1,2\n3\n"), "row 1 has 1 cells, and the header has 2");
        assert_eq!(mistake(b"a,b\n1,2\n3,caf\xe9\n"), "row 1: column 1 is not UTF-8");
        assert_eq!(mistake(b"caf\xe9\n"), "the header: column 0 is not UTF-8");
        let long = [b"a\n\"".as_slice(), &vec![b'\n'; 3 << 20]].concat();
        assert!(mistake(&long).starts_with("row 0 has more than 1048576 bytes: is a quote"));
        assert!(mistake(&vec![b','; 9000]).contains("the header has more than 8192 columns"));
    }

    proptest! {
        #[test]
        fn rows_come_back_as_they_went_in(rows in prop::collection::vec(["\\PC{0,6}", "[a,\"\r\n]{0,4}"], 1..30), size in 1_usize..40) {
            let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
            let line = |[one, other]: &[String; 2]| format!("{},{}\n", quoted(one), quoted(other));
            let text = "x,y\n".to_owned() + &rows.iter().map(line).collect::<String>();
            let (mut reader, mut found) = (CsvRows::default(), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                let mut piece = Bytes::copy_from_slice(piece);
                while let Some(part) = reader.read(&mut piece).unwrap() {
                    found.push(part);
                }
            }
            found.extend(reader.finish().unwrap());
            let found: Vec<Value> = found.iter().flat_map(|part| serde_json::from_slice::<Vec<Value>>(part.json()).unwrap()).collect();
            let cell = |text: &String| if text.is_empty() { Value::Null } else { text.as_str().into() };
            let expected: Vec<Value> = rows.iter().map(|[one, other]| json!({"x": cell(one), "y": cell(other)})).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
