//! `ledge features import`: pushes the rows of a file into a feature view.

use std::collections::VecDeque;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail};
use futures_util::{StreamExt, TryStreamExt, stream};
use ledge_features::value::Value;
use serde_json::{Map, Value as Json, json};

use super::daemon::{DaemonClient, message};
use super::rows::{FileRow, FileRows, TableColumns, cell_error};
use super::table::{self, RowsFormat};
use crate::cli::{Output, progress};

/// The number of rows in one request.
const BATCH_ROWS: usize = 1000;
/// The most requests at the same time.
const REQUESTS_IN_FLIGHT: usize = 4;

/// Runs the verb.
pub async fn run(
    daemon: &mut DaemonClient,
    view: &str,
    path: &Path,
    format: Option<RowsFormat>,
    as_json: bool,
    out: &mut Output,
) -> anyhow::Result<()> {
    let view = daemon.view(view).await?;
    let columns = TableColumns { values: view.columns(), time: view.source.timestamp_field.clone() };
    let named = || path.display().to_string();
    let FileRows { rows, left_out } = table::read(RowsFormat::of(format, path)?, path, &columns).with_context(named)?;
    // Aggregations refuse events that are too late, so their rows are pushed in the order of the file.
    let in_flight = if view.aggregations.is_empty() { REQUESTS_IN_FLIGHT } else { 1 };

    let bar = progress::bar(None, "{spinner} {pos} rows {elapsed}");
    let idle: Mutex<Vec<DaemonClient>> = Mutex::new((0..in_flight).map(|_| daemon.another()).collect());

    let (columns, keys, view_name) = (&columns, view.join_keys.len(), view.name.as_str());
    let batches = Batches { rows, columns, keys, error: None };
    let take = || idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let pushes = stream::iter(batches).map(|batch| async {
        let batch = batch?;
        let mut daemon = take().unwrap_or_else(|| daemon.another());
        let count = push(&mut daemon, view_name, columns, &batch).await?;
        idle.lock().unwrap_or_else(PoisonError::into_inner).push(daemon);
        bar.inc(count);
        anyhow::Ok(count)
    });

    let done = pushes.buffered(in_flight).try_fold(0, async |sum, count| Ok(sum + count)).await;
    let written = bar.position();
    bar.finish_and_clear();
    let rows = done.with_context(|| {
        format!("{}, after {written} rows were written; correct the error and repeat the whole import", path.display())
    })?;
    if as_json {
        writeln!(out, "{}", json!({ "rows": rows, "left_out": left_out }))?;
    } else {
        writeln!(out, "wrote {rows} rows of {}", path.display())?;
        if !left_out.is_empty() {
            writeln!(out, "ignored columns, which the feature view does not have: {}", left_out.join(", "))?;
        }
    }
    Ok(())
}

/// The checked rows of a file, in batches. The rows before an invalid one are still returned.
struct Batches<'c> {
    rows: Box<dyn Iterator<Item = anyhow::Result<FileRow>>>,
    columns: &'c TableColumns,
    keys: usize,
    /// The error of the row after the last batch.
    error: Option<anyhow::Error>,
}

impl Iterator for Batches<'_> {
    type Item = anyhow::Result<VecDeque<FileRow>>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut batch = VecDeque::new();
        while batch.len() < BATCH_ROWS && self.error.is_none() {
            let Some(row) = self.rows.next() else { break };
            match row.and_then(|row| check(self.columns, self.keys, &row).map(|()| row)) {
                Ok(row) => batch.push_back(row),
                Err(error) => self.error = Some(error),
            }
        }
        if batch.is_empty() { self.error.take().map(Err) } else { Some(Ok(batch)) }
    }
}

/// Checks that the cells of a row fit the types of the columns.
fn check(columns: &TableColumns, keys: usize, row: &FileRow) -> anyhow::Result<()> {
    for (at, (cell, (_, kind))) in row.cells.iter().zip(&columns.values).enumerate() {
        let value = Value::from_json(*kind, cell.as_ref().unwrap_or(&Json::Null));
        match value {
            Err(reason) => return Err(cell_error(row.line, columns, at, &reason)),
            Ok(None) if at < keys => return Err(cell_error(row.line, columns, at, "a join key cannot be null")),
            Ok(_) => {}
        }
    }
    Ok(())
}

async fn push(
    daemon: &mut DaemonClient,
    view: &str,
    columns: &TableColumns,
    batch: &VecDeque<FileRow>,
) -> anyhow::Result<u64> {
    let mut frame = Map::new();
    for (at, name) in columns.names().enumerate() {
        let cells = || batch.iter().map(|row| row.cells.get(at).and_then(Option::as_ref));
        if cells().any(|cell| cell.is_some()) {
            frame.insert(name.to_owned(), cells().map(|cell| cell.cloned().unwrap_or_default()).collect());
        }
    }
    let request = json!({ "feature_view_name": view, "df": frame });
    let answer = daemon.try_post("/write-to-online-store", &request).await?;
    if answer.status == 200 {
        return Ok(batch.len() as u64);
    }

    let reason = message(answer.status, &answer.body);
    let place: Json = serde_json::from_slice(&answer.body).unwrap_or_default();
    let row = place.pointer("/detail/0/loc/3").and_then(Json::as_u64).and_then(|row| usize::try_from(row).ok());
    if let Some(row) = row.and_then(|row| batch.get(row)) {
        bail!("line {}: {reason}", row.line);
    }
    let line = |row: Option<&FileRow>| row.map_or(0, |row| row.line);
    bail!("lines {} to {}: {reason}", line(batch.front()), line(batch.back()))
}
