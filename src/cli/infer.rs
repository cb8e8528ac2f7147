//! `ledge infer`: runs a model on files, in this process or on a running server.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use futures_util::StreamExt;
use futures_util::stream;
use indicatif::{ProgressBar, ProgressStyle};
use ledge_base::memory_budget::Account;
use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::principal::Principal;
use ledge_egress::DaemonConnection;
use ledge_engine::pipeline::KINDS;
use ledge_engine::pipeline::image::ImageFormat;
use ledge_engine::pipeline::kind::{Kind, Row};
use ledge_identity::access::ViewScope;
use ledge_models::scheduling::terms::Priority;
use ledge_models::serving::Serving;
use ledge_protocol::call::{self, BodyKind, InferenceCall};
use ledge_protocol::decode::Target;
use ledge_service::audit_event::AuditSink;
use serde_json::{Map, Value};

use super::features::daemon::message;
use super::server::ServerArgs;
use super::{Exit, Globals, Output, block_on};
use crate::config::Config;
use crate::daemon;

/// The arguments of `ledge infer`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct InferArgs {
    /// The model: the name of its folder in the repository.
    pub model: ModelName,
    /// The files to run the model on: photographs, or inference requests as .json. From a folder, every photograph and
    /// .json file at any depth.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Use a running server instead of this process, for example http://127.0.0.1:8000 or unix:.ledge/ledge.sock.
    #[arg(long)]
    pub url: Option<String>,
    #[command(flatten)]
    pub server: ServerArgs,
    /// The priority of the calls on the server, with --url: batch is background work, which uses spare capacity and
    /// waits while the queue of the server is full [default: interactive for one file, batch for more].
    #[arg(long, value_enum, requires = "url")]
    pub priority: Option<Urgency>,
    /// The version of the model [default: the one that the server would use].
    #[arg(long = "version", value_name = "N")]
    pub model_version: Option<ModelVersion>,
    /// The number of labels to show for a classification.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub top: u32,
    /// Write JSON: one line with one object for each file.
    #[arg(long)]
    pub json: bool,
    /// The older spelling of --json, for existing scripts.
    #[arg(long, hide = true, value_enum, conflicts_with = "json")]
    pub format: Option<InferFormat>,
}

/// The priority of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Urgency {
    /// Somebody waits for the answer.
    Interactive,
    /// Background work.
    Batch,
}

/// The older spelling of `--json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InferFormat {
    /// A table.
    Table,
    /// One line with one JSON object for each file.
    Jsonl,
}

const EXAMPLES: &str = "\
Examples:
  ledge infer efficientnet_lite0 coffee.png
  ledge infer efficientnet_lite0 photographs/ --top 1 --json > answers.jsonl
  ledge infer efficientnet_lite0 coffee.png --url http://127.0.0.1:8000";

/// The extensions of the files that are taken from a folder.
const FILE_EXTENSIONS: [&str; 5] = ["jpg", "jpeg", "png", "webp", "json"];

/// Runs the verb. It fails when a file has no answer.
pub fn run(globals: &Globals, args: &InferArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let config = globals.load_config()?;
    let files = collect(&args.files)?;
    let progress = progress(files.len());
    let top = usize::try_from(args.top).unwrap_or(usize::MAX);
    let as_json = args.json || args.format == Some(InferFormat::Jsonl);
    let width = files.iter().map(|file| shown(file).chars().count()).max().unwrap_or(0).max(FILE_HEADING.len());
    let mut report = Report { out, as_json, width, top, failed: 0, headed: false };

    block_on(async {
        let target = Target { model: args.model.clone(), version: args.model_version };
        if let Some(url) = &args.url {
            let mut daemon = DaemonConnection::open(&args.server.at(url)?).await?;
            let usual = if files.len() == 1 { Urgency::Interactive } else { Urgency::Batch };
            let urgency = args.priority.unwrap_or(usual);
            for file in &files {
                let answer = ask_daemon(&mut daemon, &target, file, urgency).await;
                progress.suspend(|| report.write(file, answer))?;
                progress.inc(1);
            }
        } else {
            let serving = &standalone(&config, args).await?;
            let target = &target;
            // Two at a time: one is decoded while the model runs on the previous one. More would only wait in the
            // queue, against the deadline of the model.
            let answers = stream::iter(&files).map(|file| async move { (file, ask(serving, target, file).await) });
            let mut answers = std::pin::pin!(answers.buffered(2));
            let mut written = Ok(());
            while let Some((file, answer)) = answers.next().await {
                written = progress.suspend(|| report.write(file, answer));
                if written.is_err() {
                    break;
                }
                progress.inc(1);
            }
            serving.repository().unload_all(&Principal::Local).await;
            written?;
        }
        progress.finish_and_clear();
        Ok(if report.failed == 0 { Exit::Success } else { Exit::Failure })
    })?
}

/// The files named, and those in the folders named at any depth, in order.
pub(super) fn collect(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let before = files.len();
            walk(path, &mut files)?;
            if files.len() == before {
                bail!("{} contains no file ending in {}", path.display(), FILE_EXTENSIONS.join(", "));
            }
        } else {
            files.push(path.clone());
        }
    }
    Ok(files)
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let cannot_read = || format!("cannot read the folder {}", folder.display());
    let entries = std::fs::read_dir(folder).with_context(cannot_read)?;
    let mut paths =
        entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>().with_context(cannot_read)?;
    paths.sort();
    for path in paths {
        let extension = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        // Symbolic links to folders are not followed: a link to a parent folder would never end.
        if path.is_dir() && !path.is_symlink() {
            walk(&path, files)?;
        } else if path.is_file() && FILE_EXTENSIONS.contains(&extension.as_str()) {
            files.push(path);
        }
    }
    Ok(())
}

fn progress(files: usize) -> ProgressBar {
    if files < 2 || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(files as u64);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} files, {per_sec}, {eta} left");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// A serving core with one loaded model, in this process.
async fn standalone(config: &Config, args: &InferArgs) -> anyhow::Result<Serving> {
    // The events of a command are not recorded.
    let audit = AuditSink::to_nowhere();
    let serving = daemon::standalone_serving(config, audit);
    serving.repository().load(&args.model, &Principal::Local).await?;
    Ok(serving)
}

/// The answer for one file, as HTTP would send it in JSON.
type FileAnswer = anyhow::Result<Value>;

async fn ask(serving: &Serving, target: &Target, file: &Path) -> FileAnswer {
    let body = Bytes::from(std::fs::read(file)?);
    let call = InferenceCall {
        target: target.clone(),
        form: BodyKind::sniffed(&body, None, None),
        body,
        priority: None,
        deadline: None,
        arrived: Instant::now(),
        account: Account::unlimited(),
        views: ViewScope::ALL,
    };
    let answer = call::answer(serving, call, &Principal::Local).await.map_err(|failure| anyhow!(failure.message))?;
    if answer.header_length.is_some() {
        bail!("the request asks for binary outputs: leave binary_data and binary_data_output out");
    }
    Ok(serde_json::from_slice(&answer.body)?)
}

async fn ask_daemon(daemon: &mut DaemonConnection, target: &Target, file: &Path, urgency: Urgency) -> FileAnswer {
    let content = Bytes::from(std::fs::read(file)?);
    let kind = ImageFormat::sniff(&content).map_or("application/json", ImageFormat::content_type);
    let version = target.version.map(|version| format!("/versions/{version}")).unwrap_or_default();
    let path = format!("/v2/models/{}{version}/infer", target.model);
    let priority = if urgency == Urgency::Batch { Priority::Batch } else { Priority::Interactive };
    let headers = [("content-type", kind), ("x-ledge-priority", priority.as_str())];
    let answer = loop {
        let answer = daemon.post(&path, &headers, content.clone()).await?;
        match answer.retry_after {
            // Background work waits until the queue has room, or until a window of serving.batch_windows begins.
            Some(pause) if answer.status == 429 && urgency == Urgency::Batch => tokio::time::sleep(pause).await,
            _ => break answer,
        }
    };
    if answer.status == 200 {
        return Ok(serde_json::from_slice(&answer.body).unwrap_or_default());
    }
    bail!("{} ({})", message(answer.status, &answer.body), answer.status)
}

struct Report<'a> {
    out: &'a mut Output,
    as_json: bool,
    /// The width of the column of files, in characters.
    width: usize,
    /// The number of labels to show.
    top: usize,
    /// The number of files without an answer.
    failed: usize,
    /// Set once the headings of the table are written.
    headed: bool,
}

impl Report<'_> {
    fn write(&mut self, file: &Path, answer: FileAnswer) -> anyhow::Result<()> {
        self.failed += usize::from(answer.is_err());
        let out = &mut *self.out;
        if self.as_json {
            let mut line = Map::from_iter([("file".to_owned(), shown(file).into())]);
            match answer {
                Ok(Value::Object(mut answer)) => {
                    if let Some((kind, result)) = result_of(&mut answer) {
                        (kind.shorten)(result, self.top);
                    }
                    line.extend(answer);
                }
                Ok(other) => drop(line.insert("answer".to_owned(), other)),
                Err(error) => drop(line.insert("error".to_owned(), format!("{error:#}").into())),
            }
            writeln!(out, "{}", Value::Object(line))?;
            return Ok(());
        }
        // The column without a fixed width is the last one.
        let (name, width) = (shown(file), self.width);
        if !std::mem::replace(&mut self.headed, true) {
            writeln!(out, "{FILE_HEADING:<width$} {:>8} {:>11}  ANSWER", "SCORE", "TIME")?;
        }
        for (score, text, time) in rows(answer, self.top) {
            writeln!(out, "{name:<width$} {score:>8} {time:>11}  {text}")?;
        }
        Ok(())
    }
}

/// The heading of the column of files.
const FILE_HEADING: &str = "FILE";

fn shown(file: &Path) -> String {
    file.display().to_string()
}

/// The result of a pipeline in an answer, with the pipeline's kind; none in an answer to tensors.
fn result_of(answer: &mut Map<String, Value>) -> Option<(&'static Kind, &mut Value)> {
    let kind = KINDS.iter().find(|kind| answer.contains_key(kind.member))?;
    Some((kind, answer.get_mut(kind.member)?))
}

/// An answer as rows of score, text and time.
fn rows(answer: FileAnswer, top: usize) -> Vec<(String, String, String)> {
    let mut answer = match answer {
        Ok(answer) => answer,
        Err(error) => return vec![(String::new(), format!("error: {error:#}"), String::new())],
    };
    let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_f64);
    let time = answer
        .get("time_ms")
        .map_or(0.0, |time| ["decode", "queue", "compute"].iter().filter_map(|part| number(time, part)).sum::<f64>());
    if let Some((kind, result)) = answer.as_object_mut().and_then(result_of) {
        (kind.shorten)(result, top);
        let rows = (kind.rows)(result).into_iter().enumerate().map(|(rank, Row { score, text })| {
            let time = if rank == 0 { format!("{time:.1} ms") } else { String::new() };
            (score.map(|score| format!("{score:.4}")).unwrap_or_default(), text, time)
        });
        return rows.collect();
    }
    let outputs = answer.get("outputs").and_then(Value::as_array).cloned().unwrap_or_default();
    let row = |output: &Value| {
        let text = |key: &str| output.get(key).map(ToString::to_string).unwrap_or_default();
        let name = output.get("name").and_then(Value::as_str).unwrap_or_default();
        (String::new(), format!("{name} {} {}", text("shape"), text("data")), String::new())
    };
    outputs.iter().map(row).collect()
}
