//! `ledge features list`, `show`, `get` and `status`.

use std::io::Write;

use anyhow::{Context, bail};
use ledge_base::clock;
use ledge_base::toml_check::from_text;
use ledge_features::value::{ScalarType, Value};
use ledge_part::check::size;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use super::daemon::{DaemonClient, ViewDeclaration, ViewList};
use crate::cli::Output;

/// Writes a value as JSON.
pub fn document(value: &Json, out: &mut Output) -> anyhow::Result<()> {
    Ok(writeln!(out, "{}", serde_json::to_string_pretty(value)?)?)
}

/// Writes a table, with each column as wide as its widest cell.
pub fn columns(rows: &[Vec<String>], out: &mut Output) -> std::io::Result<()> {
    let width =
        |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    for row in rows {
        let cells = row.iter().enumerate().map(|(at, cell)| format!("{cell:<width$}", width = width(at)));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// `ledge features list`.
pub async fn list(daemon: &mut DaemonClient, json: bool, out: &mut Output) -> anyhow::Result<()> {
    let views: Json = daemon.get("/feature-views").await?;
    let services: Json = daemon.get("/feature-services").await?;
    let status: Json = daemon.get("/features/status").await?;
    let counted = |name: &str| {
        let found = status.get("feature_views").and_then(Json::as_array).into_iter().flatten();
        found.clone().find(|view| view.get("name").and_then(Json::as_str) == Some(name))
    };
    let of_view = |name: &str, key: &str| counted(name).and_then(|view| view.get(key)).cloned().unwrap_or_default();

    let found: ViewList = serde_json::from_value(views)?;
    let services = services.get("feature_services").and_then(Json::as_array).cloned().unwrap_or_default();
    if json {
        let views = found.feature_views.iter().map(|view| {
            json!({
                "name": view.name, "entities": view.entities, "features": view.schema.len() + view.aggregations.len(),
                "ttl_s": view.ttl_s, "rows": of_view(&view.name, "rows"),
                "newest_event": of_view(&view.name, "newest_event"),
            })
        });
        let views: Vec<_> = views.collect();
        return document(&json!({ "feature_views": views, "feature_services": services }), out);
    }
    if found.feature_views.is_empty() {
        writeln!(out, "No feature views are declared.")?;
        return Ok(());
    }

    let mut rows =
        vec![["FEATURE VIEW", "ENTITIES", "FEATURES", "TTL", "ROWS", "NEWEST EVENT"].map(str::to_owned).to_vec()];
    for view in &found.feature_views {
        let newest = of_view(&view.name, "newest_event");
        rows.push(vec![
            view.name.clone(),
            view.entities.join(","),
            (view.schema.len() + view.aggregations.len()).to_string(),
            if view.ttl_s == 0.0 { "none".to_owned() } else { span(view.ttl_s) },
            of_view(&view.name, "rows").to_string(),
            newest.as_str().map_or_else(|| "-".to_owned(), |time| format!("{} ago", age(time))),
        ]);
    }
    columns(&rows, out)?;
    if !services.is_empty() {
        writeln!(out)?;
        let mut rows = vec![vec!["FEATURE SERVICE".to_owned(), "FEATURES".to_owned()]];
        for service in &services {
            let name = service.get("name").and_then(Json::as_str).unwrap_or_default();
            let features = service.get("features").and_then(Json::as_array).map_or(0, Vec::len);
            rows.push(vec![name.to_owned(), features.to_string()]);
        }
        columns(&rows, out)?;
    }
    Ok(())
}

/// `ledge features show`.
pub async fn show(daemon: &mut DaemonClient, name: &str, json: bool, out: &mut Output) -> anyhow::Result<()> {
    let found = |all: Json, key: &str| {
        let all = all.get(key).and_then(Json::as_array).cloned().unwrap_or_default();
        all.into_iter().find(|one| one.get("name").and_then(Json::as_str) == Some(name))
    };
    let view = found(daemon.get("/feature-views").await?, "feature_views");
    let service = found(daemon.get("/feature-services").await?, "feature_services");
    let Some(shown) = view.clone().or(service) else {
        bail!("there is no feature view and no feature service '{name}'; list them with `ledge features list`");
    };

    let text = |value: &Json, key: &str| value.get(key).and_then(Json::as_str).unwrap_or_default().to_owned();
    if json {
        return document(&shown, out);
    }
    let Some(view) = view else {
        writeln!(out, "feature service {name}  {}", text(&shown, "description"))?;
        for feature in shown.get("features").and_then(Json::as_array).into_iter().flatten() {
            writeln!(out, "  {}", feature.as_str().unwrap_or_default())?;
        }
        return Ok(());
    };

    let known: ViewDeclaration = serde_json::from_value(view.clone())?;
    writeln!(out, "feature view {name}  {}", text(&view, "description"))?;
    let ttl = if known.ttl_s == 0.0 { "none".to_owned() } else { span(known.ttl_s) };
    writeln!(out, "  ttl {ttl}, event time in {}", known.source.timestamp_field)?;
    let mut rows = Vec::new();
    for key in &known.join_keys {
        rows.push(vec!["  join key".to_owned(), key.name.clone(), key.value_type.to_string()]);
    }
    for column in &known.schema {
        rows.push(vec!["  feature".to_owned(), column.name.clone(), column.dtype.to_string()]);
    }
    for aggregate in &known.aggregations {
        let window = span(aggregate.get("time_window_s").and_then(Json::as_f64).unwrap_or(0.0));
        let what = format!("{} of {} over {window}", text(aggregate, "function"), text(aggregate, "column"));
        rows.push(vec!["  aggregate".to_owned(), text(aggregate, "name"), text(aggregate, "dtype"), what]);
    }
    Ok(columns(&rows, out)?)
}

/// The answer of `GET /entities`.
#[derive(Deserialize)]
struct EntityList {
    entities: Vec<EntityDeclaration>,
}

#[derive(Deserialize)]
struct EntityDeclaration {
    join_key: String,
    #[serde(deserialize_with = "from_text")]
    value_type: ScalarType,
}

/// Reads `KEY=VALUE` arguments, each value with the type that its entity declares.
pub async fn join_keys(daemon: &mut DaemonClient, entity: &[String]) -> anyhow::Result<Vec<(String, Json)>> {
    let known: EntityList = daemon.get("/entities").await?;
    let mut found = Vec::with_capacity(entity.len());
    for text in entity {
        let (key, value) = text.split_once('=').with_context(|| format!("{text:?}: expected KEY=VALUE"))?;
        let Some(declared) = known.entities.iter().find(|entity| entity.join_key == key) else {
            let keys: Vec<_> = known.entities.iter().map(|entity| entity.join_key.as_str()).collect();
            bail!("no entity has the join key '{key}'; existing join keys: {}", keys.join(", "));
        };
        let value =
            Value::from_text(declared.value_type, value).map_err(|reason| anyhow::anyhow!("{key}: {reason}"))?;
        found.push((key.to_owned(), json!(value)));
    }
    Ok(found)
}

/// `ledge features get`.
pub async fn get(
    daemon: &mut DaemonClient,
    features: &[String],
    entity: &[String],
    service: Option<&str>,
    json: bool,
    out: &mut Output,
) -> anyhow::Result<()> {
    let entities = join_keys(daemon, entity).await?.into_iter().map(|(key, value)| (key, json!([value])));
    let entities: Map<String, Json> = entities.collect();
    let keys = entities.len();
    let request = json!({
        "entities": entities, "full_feature_names": true, "feature_service": service, "features": features,
    });

    let answer: Json = daemon.post("/get-online-features", &request).await?;
    let at = |pointer: &str| answer.pointer(pointer).and_then(Json::as_array).cloned().unwrap_or_default();
    let mut cells = Vec::new();
    for (name, vector) in at("/metadata/feature_names").iter().zip(at("/results")) {
        let first = |key: &str| vector.get(key).and_then(|column| column.get(0)).cloned().unwrap_or_default();
        let name = name.as_str().unwrap_or_default().replacen("__", ":", 1);
        let status = first("statuses").as_str().unwrap_or_default().to_owned();
        let time = first("event_timestamps").as_str().unwrap_or_default().to_owned();
        cells.push((name, first("values"), status, time));
    }

    // Remove the join keys, which the answer repeats first.
    cells.retain(|(name, ..)| name.contains(':'));
    if json {
        let features = cells.iter().map(|(feature, value, status, time)| {
            json!({ "feature": feature, "value": value, "status": status, "event_timestamp": time })
        });
        return document(&Json::Array(features.collect()), out);
    }
    if cells.is_empty() && keys > 0 {
        writeln!(out, "No features.")?;
    }

    let mut rows = vec![["FEATURE", "VALUE", "STATUS", "AGE"].map(str::to_owned).to_vec()];
    for (feature, value, status, time) in cells {
        let value = if value.is_null() { "-".to_owned() } else { value.to_string() };
        let age = if status == "NOT_FOUND" { "-".to_owned() } else { age(&time) };
        rows.push(vec![feature, value, status, age]);
    }
    Ok(columns(&rows, out)?)
}

/// `ledge features status`.
pub async fn status(daemon: &mut DaemonClient, json: bool, out: &mut Output) -> anyhow::Result<()> {
    let status: Json = daemon.get("/features/status").await?;
    if json {
        return document(&status, out);
    }

    let text = |key: &str| status.get(key).and_then(Json::as_str).unwrap_or_default();
    let number = |pointer: &str| status.pointer(pointer).and_then(Json::as_u64).unwrap_or(0);
    let mut rows = vec![vec!["state".to_owned(), text("state").to_owned(), text("reason").to_owned()]];
    if status.get("bytes").is_some() {
        rows.push(vec!["folder".to_owned(), text("folder").to_owned()]);
        let keys = number("/entity_keys");
        let keys = if text("encryption") == "off" { String::new() } else { format!("{keys} entity keys") };
        rows.push(vec!["encryption".to_owned(), text("encryption").to_owned(), keys]);
        for view in status.get("feature_views").and_then(Json::as_array).into_iter().flatten() {
            let name = view.get("name").and_then(Json::as_str).unwrap_or_default();
            rows.push(vec!["rows".to_owned(), name.to_owned(), view.get("rows").unwrap_or(&Json::Null).to_string()]);
        }
        rows.push(vec![
            "journal".to_owned(),
            size(number("/bytes/journal")),
            format!("next entry {}", number("/journal_next_seq")),
        ]);
        rows.push(vec![
            "index".to_owned(),
            size(number("/bytes/index")),
            format!("rebuilt {} times", number("/rebuilds")),
        ]);
        let snapshot = match text("snapshot") {
            "" => "none yet".to_owned(),
            time => format!("{} ago", age(time)),
        };
        rows.push(vec!["snapshots".to_owned(), size(number("/bytes/snapshots")), snapshot]);
        let lost = match number("/entries_lost") {
            0 => String::new(),
            lost => format!("{lost} acknowledged entries are lost: see the log"),
        };
        rows.push(vec!["damage".to_owned(), format!("found {} times", number("/damage_found")), lost]);
        let refused: u64 =
            ["disk_full", "overload", "not_written"].map(|key| number(&format!("/refused/{key}"))).iter().sum();
        rows.push(vec!["refused".to_owned(), format!("{refused} pushes")]);
    }
    Ok(columns(&rows, out)?)
}

/// The age of a time, for people.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn age(time: &str) -> String {
    let event_us = clock::parse_micros(time).unwrap_or(0);
    span(clock::unix_micros().saturating_sub(event_us).max(0) as f64 / 1e6)
}

/// A duration in one unit.
fn span(seconds: f64) -> String {
    let (value, unit) = match seconds {
        _ if seconds < 120.0 => (seconds, "s"),
        _ if seconds < 7200.0 => (seconds / 60.0, "min"),
        _ if seconds < 172_800.0 => (seconds / 3600.0, "h"),
        _ => (seconds / 86_400.0, "d"),
    };
    if value < 10.0 && unit == "s" { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_the_unit_that_people_would_use() {
        let spans = [0.25, 59.0, 600.0, 7200.0, 86_400.0 * 30.0].map(span);
        assert_eq!(spans, ["0.2 s", "59 s", "10 min", "2 h", "30 d"]);
    }
}
