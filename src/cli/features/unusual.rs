//! `ledge features unusual` and `forecast`: what is unusual in the rows of entities, and their next values.

use std::io::Write;

use anyhow::{Context, bail};
use ledge_features::profiles::answer::{
    ExplainedFeatureDocument, ForecastDocument, ForecastValueDocument, UnusualEntityDocument, UnusualRowsDocument,
};
use serde_json::{Map, Value, json};

use super::daemon::{DaemonClient, message};
use super::show::{columns, document, join_keys};
use crate::cli::{Exit, Output};

/// `ledge features unusual`. Exit code 1 while an entity is unusual.
pub async fn unusual(
    daemon: &mut DaemonClient,
    view: Option<&str>,
    json: bool,
    out: &mut Output,
) -> anyhow::Result<Exit> {
    let path = match view {
        Some(view) => path_of("/features/unusual", &[("view", view)]),
        None => "/features/unusual".to_owned(),
    };
    let found: UnusualRowsDocument = daemon.get(&path).await?;
    if json {
        document(&serde_json::to_value(&found)?, out)?;
    } else {
        show(&found, out)?;
    }
    let is_unusual = found.feature_views.iter().any(|view| view.counts.unusual > 0);
    Ok(if is_unusual { Exit::Failure } else { Exit::Success })
}

/// `ledge features unusual normal`.
pub async fn call_normal(
    daemon: &mut DaemonClient,
    view: &str,
    entity: &[String],
    out: &mut Output,
) -> anyhow::Result<()> {
    let entity: Map<String, Value> = join_keys(daemon, entity).await?.into_iter().collect();
    let body = json!({ "feature_view": view, "entity": entity });
    let answer = daemon.try_post("/features/unusual/normal", &body).await?;
    if answer.status != 200 {
        bail!("{}", message(answer.status, &answer.body));
    }
    Ok(writeln!(out, "{view}: the last unusual row of this entity counts as normal.")?)
}

fn show(found: &UnusualRowsDocument, out: &mut Output) -> std::io::Result<()> {
    if found.feature_views.is_empty() {
        return writeln!(out, "No feature view is watched: add [feature_view.unusual] to a declaration.");
    }
    for view in &found.feature_views {
        let counts = view.counts;
        let full = if view.memory_full { ", and no memory for further ones" } else { "" };
        writeln!(
            out,
            "{}: {} entities watched, {} still learning, {} unusual{full}",
            view.name, counts.watched, counts.learning, counts.unusual
        )?;
        for entity in &view.entities {
            let UnusualEntityDocument { join_keys, since, score, features, .. } = entity;
            let keys: Vec<_> = join_keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
            writeln!(out, "  {} since {since}, score {score:.1}", keys.join(" "))?;
            let row = |feature: &ExplainedFeatureDocument| {
                let usual = format!("usual is {:.4} to {:.4}", feature.low, feature.high);
                let share = format!("{:.0} %", 100.0 * feature.share);
                vec![format!("    {}", feature.name), share, format!("{:.4}", feature.value), usual]
            };
            columns(&features.iter().map(row).collect::<Vec<_>>(), out)?;
        }
        let more = counts.unusual.saturating_sub(view.entities.len() as u64);
        if more > 0 {
            writeln!(out, "  and {more} more")?;
        }
    }
    Ok(())
}

/// `ledge features forecast`.
pub async fn forecast(
    daemon: &mut DaemonClient,
    feature: &str,
    entity: &[String],
    count: Option<u32>,
    json: bool,
    out: &mut Output,
) -> anyhow::Result<()> {
    let count = count.map(|count| count.to_string());
    let mut query = vec![("feature", feature)];
    query.extend(count.as_deref().map(|count| ("count", count)));
    for text in entity {
        query.push(text.split_once('=').with_context(|| format!("{text:?}: expected KEY=VALUE"))?);
    }
    let found: ForecastDocument = daemon.get(&path_of("/features/forecast", &query)).await?;
    if json {
        return document(&serde_json::to_value(&found)?, out);
    }
    let mut rows = vec![["AT", "VALUE", "LOW", "HIGH"].map(str::to_owned).to_vec()];
    rows.extend(found.values.iter().map(|ForecastValueDocument { at, value, low, high }| {
        vec![at.clone(), format!("{value:.4}"), format!("{low:.4}"), format!("{high:.4}")]
    }));
    Ok(columns(&rows, out)?)
}

fn path_of(path: &str, query: &[(&str, &str)]) -> String {
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
    format!("{path}?{query}")
}
