//! `ledge features export`: writes the rows of a feature view to a file.

use std::fs::File;
use std::io::{BufReader, Seek, Write};
use std::path::Path;

use anyhow::Context;
use ledge_features::backup_rows::BackupRows;
use serde_json::json;

use super::backup::receive;
use super::daemon::DaemonClient;
use super::new_file::NewFile;
use super::rows::TableColumns;
use super::table::{RowWriter, RowsFormat};
use crate::cli::Output;

/// Runs the verb.
pub async fn run(
    daemon: &mut DaemonClient,
    view: &str,
    path: &Path,
    format: Option<RowsFormat>,
    force: bool,
    as_json: bool,
    out: &mut Output,
) -> anyhow::Result<()> {
    let format = RowsFormat::of(format, path)?;
    let view = daemon.view(view).await?;
    let columns = TableColumns { values: view.columns(), time: view.source.timestamp_field.clone() };
    let (new, file) = NewFile::create(path, force)?;
    // Fetch the rows as a backup, because the end of a backup proves that it is complete.
    let (_received, mut backup) = NewFile::create(&path.with_added_extension("backup"), true)?;
    receive(daemon, &format!("/features/backup?plain=true&feature_view={}", view.name), &mut backup).await?;
    backup.rewind()?;
    let rows = write(&view.name, &columns, backup, RowWriter::new(format, file, &columns)?)?;
    new.keep()?;
    if as_json {
        writeln!(out, "{}", json!({ "file": path, "rows": rows }))?;
    } else {
        writeln!(out, "{}: {rows} rows", path.display())?;
    }
    Ok(())
}

fn write(view: &str, columns: &TableColumns, backup: File, mut writer: RowWriter) -> anyhow::Result<u64> {
    let names = columns.values.iter().map(|(name, _)| name.as_str());
    let mut rows = BackupRows::new(BufReader::new(backup), view, names)?;
    let mut count = 0;
    while let Some(row) = rows.next().context("the rows from the server are incomplete or damaged")? {
        writer.add(columns, row)?;
        count += 1;
    }
    writer.finish()?;
    Ok(count)
}
