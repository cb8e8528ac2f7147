//! Files of rows: the formats, and the reading and writing of those that are text.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context, bail};
use clap::ValueEnum;
use ledge_base::clock;
use ledge_features::backup_rows::BackupRow;
use ledge_features::value::{ScalarType, Value, ValueType};
use serde_json::{Map, Value as Json};

use super::parquet;
use super::rows::{FileRow, FileRows, TableColumns, cell_error};

/// The format of a file of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RowsFormat {
    /// Apache Parquet, with the types of the view.
    Parquet,
    /// Comma-separated values: lists as JSON, bytes in base64, and null is empty.
    Csv,
    /// One JSON object per line, bytes in base64.
    Jsonl,
}

impl RowsFormat {
    /// The format of --format, or else by the extension of the file.
    pub fn of(option: Option<Self>, path: &Path) -> anyhow::Result<Self> {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let known = match extension.to_ascii_lowercase().as_str() {
            "parquet" => Some(Self::Parquet),
            "csv" => Some(Self::Csv),
            "jsonl" | "ndjson" => Some(Self::Jsonl),
            _ => None,
        };
        option
            .or(known)
            .with_context(|| format!("{}: the format is not known from the name: set it with --format", path.display()))
    }
}

/// Writes rows to a file.
pub enum RowWriter {
    Parquet(Box<parquet::ParquetWriter>),
    Csv(Box<csv::Writer<File>>),
    Jsonl(BufWriter<File>),
}

impl RowWriter {
    /// Creates a writer to a file.
    pub fn new(format: RowsFormat, file: File, columns: &TableColumns) -> anyhow::Result<Self> {
        Ok(match format {
            RowsFormat::Parquet => Self::Parquet(Box::new(parquet::ParquetWriter::new(file, columns)?)),
            RowsFormat::Csv => {
                let mut writer = csv::Writer::from_writer(file);
                writer.write_record(columns.names())?;
                Self::Csv(Box::new(writer))
            }
            RowsFormat::Jsonl => Self::Jsonl(BufWriter::new(file)),
        })
    }

    /// Adds a row.
    pub fn add(&mut self, columns: &TableColumns, row: BackupRow) -> anyhow::Result<()> {
        match self {
            Self::Parquet(writer) => writer.add(row)?,
            Self::Csv(writer) => {
                let cells = row.values.iter().map(|value| value.as_ref().map_or_else(String::new, text_of));
                writer.write_record(cells.chain([clock::rfc3339_micros(row.event_us)]))?;
            }
            Self::Jsonl(writer) => {
                let values = row.values.iter().map(|value| value.as_ref().map_or(Json::Null, Value::to_json));
                let values = values.chain([clock::rfc3339_micros(row.event_us).into()]);
                let line: Map<String, Json> = columns.names().map(str::to_owned).zip(values).collect();
                serde_json::to_writer(&mut *writer, &line)?;
                writer.write_all(b"\n")?;
            }
        }
        Ok(())
    }

    /// Completes the file.
    pub fn finish(self) -> anyhow::Result<()> {
        match self {
            Self::Parquet(writer) => writer.finish(),
            Self::Csv(mut writer) => Ok(writer.flush()?),
            Self::Jsonl(mut writer) => Ok(writer.flush()?),
        }
    }
}

/// A value as the text of a cell.
fn text_of(value: &Value) -> String {
    match value.to_json() {
        Json::String(text) => text,
        other => other.to_string(),
    }
}

/// The value of a text in a column: an empty text is null, and a list is JSON.
pub fn cell_of_text(kind: ValueType, text: &str) -> Result<Json, String> {
    if text.is_empty() {
        return Ok(Json::Null);
    }
    match kind {
        // pandas writes an integer of a column with nulls as 3.0, and booleans as True.
        ValueType::Scalar(ScalarType::Int32 | ScalarType::Int64) => {
            let number = serde_json::from_str(text).ok().filter(Json::is_number);
            number.ok_or_else(|| format!("{text:?} is not a valid {kind}"))
        }
        ValueType::Scalar(ScalarType::Bool) => match text.to_ascii_lowercase().as_str() {
            "true" => Ok(true.into()),
            "false" => Ok(false.into()),
            _ => Err(format!("{text:?} is not a valid {kind}")),
        },
        ValueType::Scalar(kind) => Value::from_text(kind, text).map(|value| value.to_json()),
        ValueType::Array(_) => {
            serde_json::from_str(text).map_err(|_| format!("{text:?} is not a valid {kind} in JSON"))
        }
    }
}

/// An event time: a number since the Unix epoch, or a text.
pub fn time_of_text(text: &str) -> Json {
    if text.is_empty() {
        return Json::Null;
    }
    serde_json::from_str(text).ok().filter(Json::is_number).unwrap_or_else(|| text.into())
}

/// Opens a file of rows.
pub fn read(format: RowsFormat, path: &Path, columns: &TableColumns) -> anyhow::Result<FileRows> {
    let file = File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
    match format {
        RowsFormat::Parquet => parquet::read(file, columns),
        RowsFormat::Csv => read_csv(file, columns),
        RowsFormat::Jsonl => Ok(read_jsonl(file, columns)),
    }
}

fn read_csv(file: impl Read + 'static, columns: &TableColumns) -> anyhow::Result<FileRows> {
    let mut reader = csv::Reader::from_reader(file);
    let header = reader.headers().context("the header cannot be read")?.clone();
    let places: Vec<Option<usize>> = header.iter().map(|name| columns.position(name)).collect();
    let known: BTreeSet<_> = places.iter().flatten().collect();
    if known.len() != places.iter().flatten().count() {
        bail!("the header has a column twice");
    }
    let left_out = header.iter().zip(&places).filter(|(_, place)| place.is_none()).map(|(name, _)| name.to_owned());
    let left_out = left_out.collect();
    let columns = columns.clone();
    let rows = reader.into_records().map(move |record| {
        let record = record?;
        let line = record.position().map_or(0, csv::Position::line);
        let mut cells = vec![None; columns.names().count()];
        for (text, at) in record.iter().zip(&places).filter_map(|(text, place)| Some((text, (*place)?))) {
            let cell = match columns.kind(at) {
                Some(kind) => cell_of_text(kind, text).map_err(|reason| cell_error(line, &columns, at, &reason))?,
                None => time_of_text(text),
            };
            if let Some(place) = cells.get_mut(at) {
                *place = Some(cell);
            }
        }
        Ok(FileRow { line, cells })
    });
    Ok(FileRows { rows: Box::new(rows), left_out })
}

fn read_jsonl(file: impl Read + 'static, columns: &TableColumns) -> FileRows {
    let columns = columns.clone();
    let lines = BufReader::new(file).lines().zip(1..);
    let rows =
        lines.filter(|(line, _)| !matches!(line, Ok(text) if text.trim().is_empty())).map(move |(text, line)| {
            let mut object: Map<String, Json> =
                serde_json::from_str(&text?).with_context(|| format!("line {line} is not a JSON object"))?;
            Ok(FileRow { line, cells: columns.names().map(|name| object.remove(name)).collect() })
        });
    FileRows { rows: Box::new(rows), left_out: Vec::new() }
}

/// A column of each type of value.
#[cfg(any(test, feature = "fuzzing"))]
fn every_column() -> TableColumns {
    let kinds = ScalarType::ALL.into_iter().flat_map(|kind| [ValueType::Scalar(kind), ValueType::Array(kind)]);
    TableColumns { values: kinds.map(|kind| (kind.to_string(), kind)).collect(), time: "event_timestamp".to_owned() }
}

/// Reads comma-separated values as an import does; true if all rows are accepted. Checks that a value stays the same
/// when it is exported and imported again. Called by `fuzz/` and `tests/it/fuzz.rs`.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_csv(data: &[u8]) -> bool {
    let columns = every_column();
    let reader = read_csv(std::io::Cursor::new(data.to_vec()), &columns);
    reader.is_ok_and(|reader| check_rows(reader, &columns))
}

/// The same for one JSON object per line.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_json_lines(data: &[u8]) -> bool {
    let columns = every_column();
    check_rows(read_jsonl(std::io::Cursor::new(data.to_vec()), &columns), &columns)
}

/// True if there are rows, and all are accepted.
#[cfg(any(test, feature = "fuzzing"))]
fn check_rows(reader: FileRows, columns: &TableColumns) -> bool {
    let Ok(rows) = reader.rows.collect::<anyhow::Result<Vec<FileRow>>>() else { return false };
    assert!(rows.is_sorted_by(|one, next| one.line < next.line), "lines are numbered from the first on");
    for row in &rows {
        assert_eq!(row.cells.len(), columns.names().count());
        for (cell, (name, kind)) in row.cells.iter().zip(&columns.values) {
            match Value::from_json(*kind, cell.as_ref().unwrap_or(&Json::Null)) {
                Err(_) => return false,
                Ok(None) => {}
                Ok(Some(value)) => {
                    let text = text_of(&value);
                    let again = cell_of_text(*kind, &text).and_then(|json| Value::from_json(*kind, &json));
                    // An empty text, and empty bytes, are null in a table.
                    let expected = Some(value.to_json()).filter(|_| !text.is_empty());
                    assert_eq!(again.map(|again| again.map(|again| again.to_json())), Ok(expected), "{name}: {text}");
                }
            }
        }
    }
    !rows.is_empty()
}
