//! `ledge models list | show | check | compare | evaluate`: the model repository on disk, without a daemon.
//! `catalogue.rs` has the verbs of the catalogue, `drift.rs` that of a running daemon.

mod catalogue;
mod drift;
mod evaluate;
mod labels;
pub mod missing;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_engine::backend::ModelPort;
use ledge_engine::pipeline::content::PipelineInput;
use ledge_models::repository::comparison::{AnswerComparison, ComparisonOptions};
use ledge_models::repository::model_config::ModelConfig;
use ledge_models::repository::{ModelFolders, Repository, RuntimeTrial};
use ledge_models::serving::undeclared_features;
use ledge_updates::config::RepositoryAddress;
use serde_json::{Value, json};

use super::standalone::standalone;
use super::{Exit, GlobalArgs, Output, block_on, load_registry};
use crate::config::Config;
use evaluate::EvaluateArgs;
use missing::AlternativeSources;

/// The arguments of `ledge models`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ModelsArgs {
    #[command(subcommand)]
    pub command: ModelsCommand,
}

/// The verbs below `ledge models`.
#[derive(Debug, Subcommand)]
pub enum ModelsCommand {
    /// List the models on disk, with all their versions and those that are served.
    List {
        /// Write JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Show one model: its inputs and outputs, its configuration and its runtime on this machine.
    Show {
        /// The model: the name of its folder in the repository.
        model: ModelName,
        /// Write JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Load and warm up models as the server does, and report every problem. Nothing is served or changed.
    Check {
        /// The models to check [default: every model of the repository].
        models: Vec<ModelName>,
        /// The model repository to check, instead of the configured one.
        #[arg(long, value_name = "DIR")]
        repository: Option<PathBuf>,
        /// Write JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Compare the answers of two models of the repository, on the golden inputs of both and on others.
    ///
    /// `ledge-platform model add` asks this before it signs a version. Exit code 1 when an answer differs.
    Compare {
        /// The model that others are compared with: the name of its folder.
        old: ModelName,
        /// The model that takes its place.
        new: ModelName,
        /// A folder with inputs for both: files in the form of golden inputs, answers left out, or with one on each
        /// line (.jsonl).
        #[arg(long, value_name = "DIR")]
        inputs: Option<PathBuf>,
        /// An output of scores: answers agree when the same class comes first.
        #[arg(long, value_name = "OUTPUT")]
        scores: Option<String>,
        /// The relative difference within which numbers agree [default: four medians of the differences, at least
        /// 0.01].
        #[arg(long, value_name = "NUMBER")]
        tolerance: Option<f64>,
        /// The model repository, instead of the configured one.
        #[arg(long, value_name = "DIR")]
        repository: Option<PathBuf>,
        /// Write JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Measure the accuracy of a model: run it on files whose classes are known, and count the right answers.
    ///
    /// top-1 is the share of the files whose label comes first, top-5 that of those whose label is among the first five
    /// of the answer. Exit code 1 when a file has no answer.
    Evaluate(EvaluateArgs),
    /// Show how far the calls of a model have drifted from their reference, in the running daemon. Exit code 1 while they
    /// drift.
    Drift(drift::DriftArgs),
    /// List the models of the catalogue: the job, size, licence, source and measured accuracy of each.
    Catalogue {
        #[command(flatten)]
        from: CatalogueSourceArgs,
        /// Write JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Fetch a model of the catalogue into the model repository. An interrupted download goes on where it stopped.
    Add {
        /// The model, as the catalogue names it.
        model: ModelName,
        #[command(flatten)]
        from: CatalogueSourceArgs,
    },
    /// Remove a model that was added from the catalogue.
    Remove {
        /// The model: the name of its folder in the repository.
        model: ModelName,
        /// Remove it even if it has files that no catalogue brought. They are lost.
        #[arg(long)]
        force: bool,
    },
}

/// Another catalogue than the configured one.
#[derive(Debug, Args)]
pub struct CatalogueSourceArgs {
    /// The catalogue to use, instead of the configured one: a folder, such as that of a USB stick, or
    /// https://HOST[:PORT]/PATH.
    ///
    /// Only what the keys of `[catalogue] root_file` signed is accepted, from any place.
    #[arg(long = "from", value_name = "FOLDER|URL", value_parser = catalogue::address)]
    pub address: Option<RepositoryAddress>,
}

const EXAMPLES: &str = "\
Examples:
  ledge models list
  ledge models show efficientnet_lite0
  ledge models check my_model
  ledge models check --repository ./my_models    before they are copied to the box
  ledge models compare my_model my_retrained_model --inputs ./inputs
  ledge models evaluate my_model photographs/    a subfolder for each class
  ledge models drift my_model
  ledge models drift my_model --accept           what is sent now is the new normal
  ledge models catalogue                         models that can be added
  ledge models add all_minilm_l6_v2
  ledge models add all_minilm_l6_v2 --from /media/usb";

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &ModelsArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let mut config = globals.load_config()?;
    match &args.command {
        ModelsCommand::List { json } => list(standalone(&config).repository(), *json, out),
        ModelsCommand::Show { model, json } => block_on(show(&config, model, *json, out))?,
        ModelsCommand::Check { models, repository: path, json } => {
            if let Some(path) = path {
                config.repository.use_only(path.clone());
            }
            let standalone = standalone(&config);
            let repository = standalone.repository();
            block_on(check(repository, models, *json, out))?
        }
        ModelsCommand::Compare { old, new, inputs, scores, tolerance, repository: path, json } => {
            if let Some(path) = path {
                config.repository.use_only(path.clone());
            }
            let standalone = standalone(&config);
            let options =
                ComparisonOptions { inputs: inputs.as_deref(), scores: scores.as_deref(), tolerance: *tolerance };
            let compare = standalone.repository().compare(old, new, options);
            compared(&block_on(compare)??, *json, out)
        }
        ModelsCommand::Evaluate(args) => {
            if let Some(path) = &args.repository {
                config.repository.use_only(path.clone());
            }
            block_on(evaluate::run(&config, args, out))?
        }
        ModelsCommand::Drift(args) => block_on(drift::run(globals, args, out))?,
        ModelsCommand::Catalogue { from, json } => catalogue::list(&config, from.address.as_ref(), *json, out),
        ModelsCommand::Add { model, from } => catalogue::add(&config, model, from.address.as_ref(), out),
        ModelsCommand::Remove { model, force } => catalogue::remove(&config, model, *force, out),
    }
}

/// Writes a comparison.
fn compared(comparison: &AnswerComparison, as_json: bool, out: &mut Output) -> anyhow::Result<Exit> {
    let AnswerComparison { agreed, compared, tolerance, unanswered, unanswered_reason, disagreements } = comparison;
    if as_json {
        let value = json!({
            "agreed": agreed,
            "compared": compared,
            "tolerance": tolerance,
            "unanswered": unanswered,
            "unanswered_reason": unanswered_reason,
            "disagreements": disagreements,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
    } else {
        let within = tolerance.map(|tolerance| format!(" within {tolerance:.3}")).unwrap_or_default();
        writeln!(out, "{agreed} of {compared} answers agree{within}")?;
        if !disagreements.is_empty() {
            writeln!(out, "  they differ on {}", disagreements.join(", "))?;
        }
        if let Some(reason) = unanswered_reason {
            writeln!(out, "  no answer to compare: {unanswered}, the first for this reason: {reason}")?;
        }
    }
    Ok(if agreed == compared { Exit::Success } else { Exit::Failure })
}

fn list(repository: &Repository, as_json: bool, out: &mut Output) -> anyhow::Result<Exit> {
    let mut rows = Vec::new();
    let (names, misnamed) = repository.sources().models()?;
    for name in names {
        let found = repository.on_disk(&name).and_then(|found| Ok((found, repository.selected_on_disk(&name)?)));
        rows.push(match found {
            Ok(((config, versions), selected)) => json!({
                "name": name,
                "versions": versions,
                "served": selected,
                "runtime": config.runtime,
                "release": config.release,
                "description": config.description,
            }),
            Err(error) => json!({"name": name, "error": error.to_string()}),
        });
    }
    rows.extend(misnamed.iter().map(|folder| json!({"name": folder.name(), "error": folder.to_string()})));
    if as_json {
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
        return Ok(Exit::Success);
    }

    if rows.is_empty() {
        writeln!(out, "No models in {}. Add a model as NAME/1/model.onnx there.", repository.sources().describe())?;
    }
    for row in &rows {
        let text = |key: &str| row.get(key).and_then(Value::as_str).unwrap_or_default();
        let numbers = |key: &str| {
            let numbers = row.get(key).and_then(Value::as_array).into_iter().flatten();
            numbers.map(ToString::to_string).collect::<Vec<_>>().join(",")
        };
        match row.get("error") {
            Some(error) => writeln!(out, "{:<28} {}", text("name"), error.as_str().unwrap_or_default())?,
            None => writeln!(
                out,
                "{:<28} versions {:<8} serves {:<8} {:<12} {}",
                text("name"),
                numbers("versions"),
                numbers("served"),
                text("runtime"),
                text("description")
            )?,
        }
    }
    Ok(Exit::Success)
}

async fn show(config: &Config, name: &ModelName, as_json: bool, out: &mut Output) -> anyhow::Result<Exit> {
    missing::require(&ModelFolders::of(&config.repository), name, AlternativeSources::Root)?;
    let standalone = standalone(config);
    let repository = standalone.repository();
    let registry = load_registry(config)?;
    repository.load(name, &Principal::Local).await?;
    for model in repository.live(name)? {
        if as_json {
            let shown = json!({
                "name": model.name,
                "version": model.version,
                "runtime": model.runtime(),
                "file": model.file,
                "stand_in": model.stand_in(),
                "digest": model.digest,
                "inputs": model.signature.inputs,
                "outputs": model.signature.outputs,
                "max_batch_size": model.batch_limit,
                "config": model.config,
                "undeclared_features": undeclared_features(&model, &registry),
            });
            writeln!(out, "{}", serde_json::to_string_pretty(&shown)?)?;
            continue;
        }

        writeln!(out, "{} version {}", model.name, model.version)?;
        let ModelConfig { description, license, source, accuracy, .. } = &model.config;
        for (key, value) in
            [("description", description), ("license", license), ("source", source), ("accuracy", accuracy)]
        {
            if let Some(value) = value {
                writeln!(out, "  {key:<12} {value}")?;
            }
        }
        writeln!(out, "  runtime      {}", model.runtime())?;
        writeln!(out, "  file         {}", model.file)?;
        if let Some(stand_in) = model.stand_in() {
            writeln!(out, "  stand-in     {stand_in}")?;
        }
        writeln!(
            out,
            "  batch        {}",
            model.batch_limit.map_or("none".to_owned(), |limit| format!("up to {limit}"))
        )?;
        writeln!(out, "  digest       {}", model.digest)?;
        ports(out, "input", &model.signature.inputs)?;
        ports(out, "output", &model.signature.outputs)?;
        for input in model.config.feature_inputs() {
            let features: Vec<&str> = input.features.iter().map(|feature| feature.feature.as_str()).collect();
            writeln!(out, "  features     {} = {}", input.name, features.join(", "))?;
        }
        for reason in undeclared_features(&model, &registry) {
            writeln!(out, "  not declared {reason}")?;
        }
        let image = model.config.pipeline.takes(PipelineInput::Photograph);
        writeln!(out, "  photographs  {}", if image { "yes: JPEG, PNG and WebP" } else { "no" })?;
        let documents = model.config.pipeline.takes(PipelineInput::Document);
        writeln!(
            out,
            "  documents    {}",
            if documents { "yes: PDF, TIFF, JPEG, PNG, WebP, GIF and BMP" } else { "no" }
        )?;
        let rows = model.config.pipeline.takes(PipelineInput::Rows);
        writeln!(out, "  rows         {}", if rows { "yes" } else { "no" })?;
    }
    repository.unload_all(&Principal::Local).await;
    Ok(Exit::Success)
}

fn ports(out: &mut Output, kind: &str, ports: &[ModelPort]) -> std::io::Result<()> {
    for port in ports {
        writeln!(out, "  {kind:<12} {} {} {:?}", port.name, port.datatype, port.shape)?;
    }
    Ok(())
}

async fn check(repository: &Repository, models: &[ModelName], as_json: bool, out: &mut Output) -> anyhow::Result<Exit> {
    let (mut rows, mut bad) = (Vec::new(), false);
    let failed = |name: &str, reason: String| json!({"model": name, "ok": false, "reason": reason});
    let all = if models.is_empty() { Some(repository.sources().models()?) } else { None };
    for name in all.as_ref().map_or(models, |(all, _)| all.as_slice()) {
        if let Err(missing) = missing::require(repository.sources(), name, AlternativeSources::Root) {
            bad = true;
            rows.push(failed(name.as_str(), missing.to_string()));
            continue;
        }
        match repository.try_runtimes(name).await {
            Ok(trials) => {
                // Each version needs one runtime that runs it; with "auto", the other one may fail. There is a version.
                let versions: BTreeSet<_> = trials.iter().map(|trial| trial.version).collect();
                let runs = |version| trials.iter().any(|trial| trial.version == version && trial.outcome.is_ok());
                bad |= !versions.into_iter().all(runs);
                let config = repository.on_disk(name).ok().map(|(config, _)| config);
                let found = config.and_then(|config| config.isolation?.finding());
                let warning = found.map(|found| format!("isolation in model.toml: {found}"));
                rows.extend(trials.iter().map(|trial| row(name, trial, warning.as_deref())));
            }
            Err(error) => {
                bad = true;
                rows.push(failed(name.as_str(), error.to_string()));
            }
        }
    }
    for folder in all.iter().flat_map(|(_, misnamed)| misnamed) {
        bad = true;
        rows.push(failed(&folder.name(), folder.to_string()));
    }
    if rows.is_empty() && !as_json {
        writeln!(out, "No models in {}.", repository.sources().describe())?;
    }
    if as_json {
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
    } else {
        rows.iter().try_for_each(|row| print_row(out, row))?;
        print_warnings(out, &rows)?;
        print_tables(out, &rows)?;
    }
    Ok(if bad { Exit::Failure } else { Exit::Success })
}

fn row(name: &ModelName, trial: &RuntimeTrial, warning: Option<&str>) -> Value {
    let row = json!({
        "model": name,
        "version": trial.version,
        "runtime": trial.runtime,
        "ok": trial.outcome.is_ok(),
    });
    let more = match &trial.outcome {
        Ok(tried) => {
            let load_ms = ("load_ms", json!((tried.time.as_secs_f64() * 1e4).round() / 10.0));
            let stand_in = tried.stand_in.as_ref().map(|stand_in| ("stand_in", json!(stand_in)));
            let table = tried.table.as_ref().map(|table| ("table", json!(table)));
            vec![Some(load_ms), stand_in, table]
        }
        Err(error) => vec![Some(("reason", json!(error.to_string())))],
    };
    match row {
        Value::Object(mut row) => {
            let warning = warning.map(|warning| ("warning", json!(warning)));
            row.extend(more.into_iter().flatten().chain(warning).map(|(key, value)| (key.to_owned(), value)));
            row.into()
        }
        other => other,
    }
}

/// The warnings about models that load, of each model once.
fn print_warnings(out: &mut Output, rows: &[Value]) -> std::io::Result<()> {
    let of_row = |row: &Value| Some((row.get("model")?.as_str()?.to_owned(), row.get("warning")?.as_str()?.to_owned()));
    let warnings: BTreeSet<_> = rows.iter().filter_map(of_row).collect();
    warnings.iter().try_for_each(|(model, warning)| writeln!(out, "{model}: {warning}"))
}

/// The sections that models of tables may get, of each model once.
fn print_tables(out: &mut Output, rows: &[Value]) -> std::io::Result<()> {
    let mut last = None;
    for row in rows {
        let (Some(model), Some(table)) = (row.get("model"), row.get("table").and_then(Value::as_str)) else { continue };
        if last != Some(model) {
            let name = model.as_str().unwrap_or_default();
            writeln!(
                out,
                "\n{name} looks like a model of a table. With this in its model.toml it takes rows:\n\n{table}"
            )?;
        }
        last = Some(model);
    }
    Ok(())
}

fn print_row(out: &mut Output, row: &Value) -> std::io::Result<()> {
    let text = |key: &str| row.get(key).and_then(Value::as_str).unwrap_or_default();
    let version = row.get("version").map(ToString::to_string).unwrap_or_default();
    let outcome = match row.get("load_ms") {
        Some(time) if row.get("stand_in").is_none() => format!("ok, loaded in {time} ms"),
        Some(time) => format!("loaded in {time} ms; {}", text("stand_in")),
        None => text("reason").to_owned(),
    };
    writeln!(out, "{:<28} {:<4} {:<12} {outcome}", text("model"), version, text("runtime"))
}
