//! The query of a caller, and the rows that answer it.

use std::fmt::{self, Write as _};
use std::io;
use std::ops::Range;

use ledge_base::clock;
use serde_json::{Map, Value, json};

use crate::readings::rounded;
use crate::record::Record;
use crate::series::{Resolution, SeriesName};
use crate::store::{HistoryStore, kept};

/// A form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryForm {
    Json,
    Csv,
}

/// The series, resolution, time and columns that a caller asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryQuery {
    pub series: SeriesName,
    pub resolution: Resolution,
    /// In milliseconds since the Unix epoch, as `to_ms`.
    pub from_ms: Option<u64>,
    pub to_ms: Option<u64>,
    /// The indexes of the columns.
    pub columns: Vec<usize>,
    pub form: HistoryForm,
}

/// A mistake in a query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HistoryQueryError {
    #[error("{name}: {problem}")]
    Parameter { name: &'static str, problem: String },
    #[error("unknown parameter; expected series, resolution, from, to, columns and format")]
    UnknownParameter,
}

fn wrong(name: &'static str, problem: &dyn fmt::Display) -> HistoryQueryError {
    HistoryQueryError::Parameter { name, problem: problem.to_string() }
}

impl HistoryQuery {
    /// Parses the query of a URI.
    pub fn parse(query: &str) -> Result<Self, HistoryQueryError> {
        let (mut series, mut resolution, mut form) = (SeriesName::Box, Resolution::Hour, HistoryForm::Json);
        let (mut from_ms, mut to_ms, mut names) = (None, None, None);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "series" => series = value.parse().map_err(|error| wrong("series", &error))?,
                "resolution" => {
                    resolution = value.parse().map_err(|()| wrong("resolution", &"expected 5s, 1m or 1h"))?;
                }
                "from" => from_ms = Some(time("from", &value)?),
                "to" => to_ms = Some(time("to", &value)?),
                "columns" => names = Some(value.into_owned()),
                "format" => {
                    form = match &*value {
                        "json" => HistoryForm::Json,
                        "csv" => HistoryForm::Csv,
                        _ => return Err(wrong("format", &"expected json or csv")),
                    }
                }
                _ => return Err(HistoryQueryError::UnknownParameter),
            }
        }

        let all = series.columns();
        let columns = match names {
            None => (0..all.len()).collect(),
            Some(names) => names.split(',').map(|name| column(all, name)).collect::<Result<_, _>>()?,
        };
        Ok(Self { series, resolution, from_ms, to_ms, columns, form })
    }

    /// The intervals that end after `from` and begin before `to`, of those that are kept at `now_ms`.
    fn slots(&self, now_ms: u64) -> Range<u32> {
        let kept = kept(self.resolution, now_ms);
        let from = self.from_ms.map_or(kept.start, |from| self.resolution.slot(from).max(kept.start));
        let to = self.to_ms.map_or(kept.end, |to| self.resolution.slot(to).saturating_add(1).min(kept.end));
        from..to.max(from)
    }

    /// Reads the rows. It may take some milliseconds.
    pub fn read(&self, store: &HistoryStore, now_ms: u64) -> io::Result<HistoryRows> {
        let slots = self.slots(now_ms);
        let span = store.read(&self.series, self.resolution, slots.clone())?;
        // Without a record of the box nothing was recorded; with one, a series without a record had no calls.
        let recorded = if self.series == SeriesName::Box {
            Vec::new()
        } else {
            store.read(&SeriesName::Box, self.resolution, slots)?.records.iter().map(|record| record.slot).collect()
        };
        let damaged = span.damaged;
        let rows = with_quiet(span.records, &recorded, self.series.columns());
        Ok(HistoryRows { query: self.clone(), rows, damaged })
    }
}

fn time(name: &'static str, text: &str) -> Result<u64, HistoryQueryError> {
    let time = clock::parse_micros(text).and_then(|micros| u64::try_from(micros / 1000).ok());
    time.ok_or_else(|| wrong(name, &"expected a time such as 2026-01-01T00:00:00Z"))
}

fn column(all: &[&str], name: &str) -> Result<usize, HistoryQueryError> {
    let found = all.iter().position(|known| *known == name);
    found.ok_or_else(|| wrong("columns", &format_args!("expected some of {}", all.join(", "))))
}

/// Adds a row without calls for each interval of `recorded` that has none, from the first record on.
fn with_quiet(records: Vec<Record>, recorded: &[u32], columns: &[&str]) -> Vec<Record> {
    let Some(first) = records.first().map(|record| record.slot) else { return records };
    let quiet: Box<[f32]> = columns
        .iter()
        .map(|name| if matches!(*name, "p50_s" | "p99_s" | "queue_s") { f32::NAN } else { 0.0 })
        .collect();
    let mut rows = records;
    let has = |slot: &u32, rows: &[Record]| rows.binary_search_by_key(slot, |row| row.slot).is_ok();
    let missing: Vec<_> = recorded.iter().filter(|slot| **slot > first && !has(slot, &rows)).copied().collect();
    rows.extend(missing.into_iter().map(|slot| Record { slot, covered_s: 0, figures: quiet.clone() }));
    rows.sort_unstable_by_key(|row| row.slot);
    rows
}

/// The rows of an answer.
#[derive(Debug)]
pub struct HistoryRows {
    query: HistoryQuery,
    rows: Vec<Record>,
    damaged: u32,
}

impl HistoryRows {
    /// `{"series": "box", "interval_s": 3600, "begin": TIME, "columns": {"calls_per_s": [...], ...}, "damaged": 0}`: a row
    /// for each interval from the first that was recorded to the last. A figure that is not known is `null`, as all of an
    /// interval that was not recorded.
    pub fn json(&self) -> Value {
        let (resolution, all) = (self.query.resolution, self.query.series.columns());
        let first = self.rows.first().map(|row| row.slot);
        let mut columns: Vec<Vec<Option<f32>>> = self.query.columns.iter().map(|_| Vec::new()).collect();
        let mut next = first.unwrap_or(0);
        for row in &self.rows {
            let missed = row.slot.saturating_sub(next) as usize;
            for (index, column) in self.query.columns.iter().zip(&mut columns) {
                column.resize(column.len() + missed, None);
                column.push(row.figures.get(*index).copied().and_then(rounded));
            }
            next = row.slot.saturating_add(1);
        }
        let names = self.query.columns.iter().filter_map(|index| all.get(*index));
        let columns: Map<String, Value> =
            names.zip(columns).map(|(name, column)| ((*name).to_owned(), json!(column))).collect();
        json!({
            "series": self.query.series.to_string(),
            "interval_s": resolution.seconds(),
            "begin": first.map(|slot| clock::rfc3339(resolution.begin_ms(slot))),
            "columns": columns,
            "damaged": self.damaged,
        })
    }

    /// A table with a line for each interval that was recorded: the time at which it begins, and the figures.
    pub fn csv(&self) -> String {
        let all = self.query.series.columns();
        let mut text = "time".to_owned();
        for name in self.query.columns.iter().filter_map(|index| all.get(*index)) {
            let _ = write!(text, ",{name}");
        }
        text.push_str("\r\n");
        for row in &self.rows {
            text.push_str(&clock::rfc3339(self.query.resolution.begin_ms(row.slot)));
            for index in &self.query.columns {
                text.push(',');
                if let Some(figure) = row.figures.get(*index).copied().and_then(rounded) {
                    let _ = write!(text, "{figure}");
                }
            }
            text.push_str("\r\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::USAGE_COLUMNS;

    const NOW_MS: u64 = 1_767_225_600_000;

    fn record(slot: u32, calls: f32, columns: usize) -> Record {
        let mut figures = vec![f32::NAN; columns];
        figures[0] = calls;
        Record { slot, covered_s: 60, figures: figures.into() }
    }

    #[test]
    fn a_query_names_what_it_wants_and_mistakes_are_told() {
        let query = HistoryQuery::parse(
            "series=caller%3Akey%3Atill&resolution=1m&columns=p99_s,calls_per_s&format=csv&from=2026-01-01T00%3A00%3A00Z",
        )
        .unwrap();
        assert_eq!((query.series.to_string().as_str(), query.resolution), ("caller:key:till", Resolution::Minute));
        assert_eq!(
            (query.columns.as_slice(), query.form, query.from_ms),
            (&[4, 0][..], HistoryForm::Csv, Some(NOW_MS))
        );
        let all = HistoryQuery::parse("").unwrap();
        assert_eq!((all.series, all.resolution, all.columns.len()), (SeriesName::Box, Resolution::Hour, 14));
        for wrong in [
            "series=x",
            "resolution=2h",
            "from=soon",
            "to=1960-01-01T00:00:00Z",
            "columns=queue_s",
            "format=xml",
            "x=1",
        ] {
            assert!(HistoryQuery::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn intervals_without_calls_are_zeros_and_those_that_were_not_recorded_are_gaps() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = HistoryStore::open(folder.path());
        let now = Resolution::Minute.slot(NOW_MS);
        let wine: SeriesName = "model:wine".parse().unwrap();
        for slot in [now - 9, now - 8, now - 7, now - 3, now - 2] {
            store.push(&SeriesName::Box, Resolution::Minute, record(slot, 5.0, 14));
        }
        for slot in [now - 8, now - 2] {
            store.push(&wine, Resolution::Minute, record(slot, 2.5, USAGE_COLUMNS.len()));
        }
        let read = |text: &str| HistoryQuery::parse(text).unwrap().read(&store, NOW_MS).unwrap();
        let rows = read("series=model:wine&resolution=1m&columns=calls_per_s,p50_s");
        let document = rows.json();
        assert_eq!(document["columns"]["calls_per_s"], json!([2.5, 0.0, null, null, null, 0.0, 2.5]));
        assert_eq!(document["columns"]["p50_s"], json!([null, null, null, null, null, null, null]));
        assert_eq!(document["begin"], json!("2025-12-31T23:52:00Z"));
        assert_eq!(rows.csv().lines().count(), 5);
        assert!(rows.csv().starts_with("time,calls_per_s,p50_s\r\n2025-12-31T23:52:00Z,2.5,\r\n"), "{}", rows.csv());
        let some = read("resolution=1m&columns=calls_per_s&from=2025-12-31T23:57:00Z&to=2025-12-31T23:57:59Z");
        assert_eq!(some.json()["columns"]["calls_per_s"], json!([5.0]));
        assert_eq!(read("series=model:unknown").json()["begin"], Value::Null);
    }
}
