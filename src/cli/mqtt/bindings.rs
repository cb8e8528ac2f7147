//! `ledge mqtt bindings`: lists the bindings of the configuration, without a broker.

use std::io::Write;

use ledge_features::online::PushTarget;
use ledge_models::repository::Repository;
use ledge_mqtt::bindings::{Binding, Bindings};
use ledge_mqtt::client::packet::Qos;
use serde_json::{Value, json};

use crate::cli::standalone::standalone;
use crate::cli::{Exit, Output};
use crate::config::Config;

/// Runs the verb.
pub fn run(config: &Config, json: bool, out: &mut Output) -> anyhow::Result<Exit> {
    let standalone = standalone(config);
    let repository = standalone.repository();
    let group = config.device.group.as_ref();
    let bindings = Bindings::new(&config.mqtt.bindings);
    let mut rows = Vec::new();
    for binding in bindings.iter() {
        let mut row = serde_json::to_value(binding.config())?;
        if let Some(row) = row.as_object_mut() {
            row.insert("name".into(), json!(binding.name()));
            row.insert("takes".into(), json!(binding.config().takes()));
            row.insert("subscription".into(), json!(binding.subscription(group).as_str()));
            row.insert("problem".into(), json!(problem(binding, repository)));
        }
        rows.push(row);
    }

    let exit = if rows.iter().all(|row| row["problem"].is_null()) { Exit::Success } else { Exit::Failure };
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
        return Ok(exit);
    }
    if config.mqtt.broker.is_none() {
        writeln!(out, "No broker is set (mqtt.broker), so nothing is subscribed to.")?;
    }
    if rows.is_empty() {
        writeln!(out, "No bindings. A binding is a table [[mqtt.bindings]] in the configuration.")?;
        return Ok(exit);
    }
    table(out, &bindings, &rows)?;
    Ok(exit)
}

/// The reason why the model cannot answer, found without loading it.
fn problem(binding: &Binding, repository: &Repository) -> Option<String> {
    let config = binding.config();
    let model = config.model.as_ref()?;
    let on_disk = match repository.names_on_disk() {
        Ok(names) if !names.contains(model) => {
            return Some(format!("there is no model {model} in {}", repository.sources().describe()));
        }
        Ok(_) => repository.on_disk(model),
        Err(error) => Err(error),
    };
    match on_disk {
        Err(error) => Some(error.to_string()),
        Ok((_, versions)) if versions.is_empty() => Some(format!("{model} has no version")),
        Ok((model_config, versions)) => {
            let version = config.version?;
            let served = model_config.version_policy.select(&versions).contains(&version);
            (!served).then(|| format!("version {version} of {model} is not served"))
        }
    }
}

fn table(out: &mut Output, bindings: &Bindings, rows: &[Value]) -> anyhow::Result<()> {
    let nothing = || "-".to_owned();
    let mut lines = vec![["NAME", "TOPIC", "PUSH", "MODEL", "PUBLISH", "TAKES", "RATE", "QOS"].map(str::to_owned)];
    for binding in bindings.iter() {
        let config = binding.config();
        let version = config.version.map_or_else(String::new, |version| format!("/{version}"));
        let select = config.select.as_ref().map_or_else(String::new, |path| format!(" ({path})"));
        let qos = match config.qos {
            Qos::AtMostOnce => "0",
            Qos::AtLeastOnce => "1",
        };
        lines.push([
            binding.name().to_owned(),
            format!("{}{}", config.topic, if config.shared { " (shared)" } else { "" }),
            config.target().map_or_else(nothing, |target| match target {
                PushTarget::View(view) => view,
                PushTarget::Source(source) => format!("{source} (source)"),
            }),
            config.model.as_ref().map_or_else(nothing, |model| format!("{model}{version}")),
            config.publish.as_ref().map_or_else(nothing, |publish| format!("{publish}{select}")),
            config.takes(),
            if config.max_rate.is_set() { format!("{}/s", config.max_rate) } else { "-".into() },
            format!("{qos}{}", if config.retain { " retain" } else { "" }),
        ]);
    }

    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..8).filter_map(width).collect();
    let problems = std::iter::once(None).chain(rows.iter().map(|row| row["problem"].as_str()));
    for (line, problem) in lines.iter().zip(problems) {
        let cells: Vec<String> = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
        if let Some(problem) = problem {
            writeln!(out, "  problem: {problem}")?;
        }
    }
    Ok(())
}
