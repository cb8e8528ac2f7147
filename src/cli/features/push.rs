//! `ledge features push`: one row from the command line.

use std::io::Write;

use anyhow::{Context, bail};
use serde_json::{Map, Value as Json, json};

use super::daemon::{DaemonClient, checked};
use super::table;
use crate::cli::Output;

/// Runs the verb for one row.
pub async fn run(
    daemon: &mut DaemonClient,
    view: &str,
    columns: &[String],
    as_json: bool,
    out: &mut Output,
) -> anyhow::Result<()> {
    let view = daemon.view(view).await?;
    let known = view.columns();
    let mut row = Map::new();
    for text in columns {
        let (name, value) = text.split_once('=').with_context(|| format!("{text:?}: expected COLUMN=VALUE"))?;
        let cell = if let Some((_, kind)) = known.iter().find(|(column, _)| column == name) {
            table::cell_of_text(*kind, value).map_err(|reason| anyhow::anyhow!("column '{name}': {reason}"))?
        } else if name == view.source.timestamp_field {
            table::time_of_text(value)
        } else {
            let names: Vec<_> = known.iter().map(|(name, _)| name.as_str()).collect();
            let time = &view.source.timestamp_field;
            bail!(
                "feature view '{}' has no column '{name}'; existing columns: {}, {time}",
                view.name,
                names.join(", ")
            );
        };
        row.insert(name.to_owned(), json!([cell]));
    }

    let request = json!({ "feature_view_name": view.name, "df": row });
    let _: Json = serde_json::from_slice(&checked(daemon.try_post("/write-to-online-store", &request).await?)?)?;
    if as_json {
        writeln!(out, "{}", json!({ "rows": 1 }))?;
    } else {
        writeln!(out, "wrote 1 row")?;
    }
    Ok(())
}
