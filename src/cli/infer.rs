//! `ledge infer`: runs a model on files, in a separate sandboxed process or on a running server.

mod batch;
mod calls;
mod csv;
pub(super) mod files;
mod lines;
mod pdf;
mod progress;
mod report;
mod results_file;
mod stop;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use clap::{Args, ValueEnum};
use futures_util::{StreamExt, TryStreamExt};
use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::principal::Principal;
use ledge_models::repository::ModelFolders;
use ledge_models::scheduling::terms::Priority;
use ledge_protocol::decode::ModelTarget;
use ledge_service::audit_event::AuditSink;

use super::models::missing::{self, AlternativeSources};
use super::server::CredentialArgs;
use super::stop_signals::StopSignals;
use super::{Exit, GlobalArgs, Output, block_on, output};
use crate::config::Config;
use crate::daemon::Standalone;
use batch::FileCallBatch;
pub(super) use calls::FileAnswer;
use calls::{ModelLocation, RunningServer};
use files::InputFiles;
use pdf::PdfFolder;
use progress::{InferProgress, note};
use report::{AnswerSink, FILE_HEADING, InferReport};
use results_file::{ResultsFile, ResultsOrigin};
use stop::StopSignal;

/// The arguments of `ledge infer`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct InferArgs {
    /// The model: the name of its folder in the repository.
    pub model: ModelName,
    /// The files to run the model on: photographs, documents, inference requests or rows as .json, .csv, each row of
    /// which is an input, or .txt with a text in each line. From a folder, every picture, document and .json file at
    /// any depth.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Use a running server instead of this process, for example http://127.0.0.1:8000 or unix:.ledge/ledge.sock.
    #[arg(long)]
    pub url: Option<String>,
    #[command(flatten)]
    pub credentials: CredentialArgs,
    /// The priority of the calls on the server, with --url: batch is background work, which uses spare capacity and
    /// waits while the queue of the server is full [default: interactive for one file, batch for more].
    #[arg(long, value_enum, requires = "url")]
    pub priority: Option<PriorityArg>,
    /// The number of calls in flight [default: two for each core that runs inferences, here or on the server].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub concurrency: Option<u16>,
    /// The seconds for which calls of priority batch wait for a server that is being restarted or cannot answer, with
    /// --url.
    #[arg(long, value_name = "SECONDS", requires = "url", default_value_t = 300)]
    pub wait: u32,
    /// The version of the model [default: the one that the server would use].
    #[arg(long = "version", value_name = "N")]
    pub model_version: Option<ModelVersion>,
    /// The number of labels to show for a classification. Other results, such as detections, are always shown whole.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub top: u32,
    /// Write JSON: one line with one object for each file.
    #[arg(long)]
    pub json: bool,
    /// Write the lines of --json to this file, and go on with it: files that it has answers of, and that have not
    /// changed since, are left out. The same command after an interrupt does the rest.
    #[arg(long, value_name = "FILE.jsonl")]
    pub out: Option<PathBuf>,
    /// Write each document as a PDF that shows the same pages and has a text layer, into this folder.
    #[arg(long, value_name = "FOLDER")]
    pub out_pdf: Option<PathBuf>,
    /// The older spelling of --json, for existing scripts.
    #[arg(long, hide = true, value_enum, conflicts_with = "json")]
    pub format: Option<InferFormat>,
}

/// The priority of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PriorityArg {
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
  ledge infer efficientnet_lite0 photographs/ --out answers.jsonl   again after an interrupt: does the rest
  ledge infer efficientnet_lite0 photographs/ --top 1 --json | jq -r '[.file, .labels[0].label] | @tsv'
  ledge infer wine_mlp wines.csv --json > answers.jsonl             an answer for each row
  ledge infer all_minilm_l6_v2 sentences.txt --json   a vector for each line that is not empty
  ledge infer document_reader scans/ --out-pdf searchable/   PDF files in which words can be searched
  ledge infer efficientnet_lite0 coffee.png --url http://127.0.0.1:8000";

/// The calls in flight for each core: one runs, and the next one waits, so that no core pauses between them. Calls that
/// wait are also why a model gets an instance for each core.
const CALLS_PER_CORE: usize = 2;
/// The most failed files that are listed at the end.
const FAILED_LISTED_MAX: usize = 20;

/// Runs the verb. It fails when a file has no answer.
pub fn run(globals: &GlobalArgs, args: &InferArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let config = globals.load_config()?;
    let inputs = InputFiles::find(&args.files, args.out.as_deref())?;
    if inputs.files.iter().any(|input| csv::is_csv(&input.path)) {
        refuse_options_of_whole_files(args)?;
    }
    for link in &inputs.links {
        note(&format!("not followed: {}, a link to a folder", link.display()));
    }
    if let Some(left_out) = inputs.left_out() {
        note(&format!("left out, because a folder is searched for photographs, documents and .json: {left_out}"));
    }
    block_on(async {
        let caller = caller(&config, args, inputs.files.len()).await?;
        let exit = infer(&caller, args, inputs, out).await;
        if let ModelLocation::Here(serving) = &caller {
            serving.repository().unload_all(&Principal::Local).await;
        }
        exit
    })?
}

/// Refuses the options that a .csv has no use for: it has an answer for each row.
fn refuse_options_of_whole_files(args: &InferArgs) -> anyhow::Result<()> {
    if args.out.is_some() {
        bail!("--out continues file by file, and a .csv is one file with many answers: use --json > FILE.jsonl");
    }
    if args.out_pdf.is_some() {
        bail!("--out-pdf makes a PDF of each document, and a .csv has rows: run it without --out-pdf");
    }
    Ok(())
}

/// Runs a loaded model on files, passes each answer on in the order of the files, and unloads the model.
pub(super) async fn answer_files(
    serving: Standalone,
    target: &ModelTarget,
    inputs: &[files::InputFile],
    mut take: impl FnMut(&Path, FileAnswer),
) -> anyhow::Result<()> {
    let in_flight = CALLS_PER_CORE * serving.repository().engine().cores().len();
    let (progress, stop) = (InferProgress::new(inputs.len()), StopSignal::default());
    let caller = ModelLocation::Here(Box::new(serving));
    let batch = FileCallBatch::new(&caller, target, in_flight, &progress, &stop);
    let answers = batch.answers(inputs).try_for_each(|answered| {
        progress.advance(answered.answer.is_ok());
        take(answered.path, answered.answer);
        std::future::ready(Ok(()))
    });
    let ended = answers.await;
    progress.finish();
    if let ModelLocation::Here(serving) = &caller {
        serving.repository().unload_all(&Principal::Local).await;
    }
    ended
}

/// The server of `--url`, or a serving core with one loaded model.
async fn caller(config: &Config, args: &InferArgs, files: usize) -> anyhow::Result<ModelLocation> {
    if let Some(url) = &args.url {
        let usual = if files == 1 { PriorityArg::Interactive } else { PriorityArg::Batch };
        let priority = match args.priority.unwrap_or(usual) {
            PriorityArg::Batch => Priority::Batch,
            PriorityArg::Interactive => Priority::Interactive,
        };
        let patience = Duration::from_secs(args.wait.into());
        return Ok(ModelLocation::Server(RunningServer::open(args.credentials.at(url)?, priority, patience).await?));
    }
    missing::require(&ModelFolders::of(&config.repository), &args.model, AlternativeSources::RootOrServer)?;
    // The events of a command are not recorded.
    let audit = AuditSink::to_nowhere();
    let serving = Standalone::new(config, audit);
    serving.repository().load(&args.model, &Principal::Local).await?;
    Ok(ModelLocation::Here(Box::new(serving)))
}

/// Runs the model on the files, and sums up.
async fn infer(caller: &ModelLocation, args: &InferArgs, inputs: InputFiles, out: &mut Output) -> anyhow::Result<Exit> {
    let mut inputs = inputs.files;
    let files = inputs.len();
    let has_rows = inputs.iter().any(|input| csv::is_csv(&input.path));
    let pdfs = args.out_pdf.as_ref().map(|folder| PdfFolder::open(folder, &inputs)).transpose()?;
    let mut target = ModelTarget { model: args.model.clone(), version: args.model_version };
    let top = usize::try_from(args.top).unwrap_or(usize::MAX);
    let mut done_before = 0;
    let sink = if let Some(path) = &args.out {
        let version = caller.version(&target).await?;
        let origin = ResultsOrigin { model: target.model.clone(), version, top };
        let results;
        (results, done_before) = ResultsFile::open(path, &origin, &mut inputs, pdfs.as_ref())?;
        // Every line is of this version, even if the server has another one by then.
        target.version = Some(version);
        AnswerSink::File { results, origin }
    } else if args.json || args.format == Some(InferFormat::Jsonl) {
        AnswerSink::Json
    } else {
        let widths = inputs.iter().map(|input| input.path.to_string_lossy().chars().count());
        AnswerSink::Table { width: widths.max().unwrap_or(0).max(FILE_HEADING.len()), headed: false }
    };
    let in_flight = match args.concurrency {
        Some(calls) => calls.into(),
        None if inputs.len() < 2 => 1,
        None => CALLS_PER_CORE * caller.cores().await?.unwrap_or(1),
    };

    let mut report = InferReport { out, sink, top };
    if has_rows {
        let in_flight = args.concurrency.map_or(CALLS_PER_CORE * caller.cores().await?.unwrap_or(1), usize::from);
        return infer_rows(caller, &target, in_flight, &inputs, &mut report).await;
    }
    let (progress, stop) = (InferProgress::new(inputs.len()), StopSignal::default());
    let batch = FileCallBatch::new(caller, &target, in_flight, &progress, &stop);
    let mut outcome = RunSummary::default();
    let ended = outcome.gather(&batch, &inputs, &mut report, pdfs.as_ref()).await;
    let time = progress.finish();
    if let AnswerSink::File { results, .. } = &report.sink {
        results.sync()?;
    }
    if ended.as_ref().is_err_and(output::is_output_closed) {
        return ended.map(|()| Exit::Success);
    }

    if files > 1 || args.out.is_some() {
        outcome.summarize(done_before, time, args.out.as_deref());
    }
    let left = inputs.len().saturating_sub(outcome.answered + outcome.failed_count);
    if left > 0 {
        let how = match &args.out {
            Some(path) => format!("; the same command continues with {}", path.display()),
            None => String::new(),
        };
        note(&format!("{left} of {files} files are left{how}"));
    }
    ended?;
    Ok(match (left, outcome.failed_count) {
        (0, 0) => Exit::Success,
        (0, _) => Exit::Failure,
        _ => Exit::Interrupted,
    })
}

/// Runs the model on each row of files of CSV, and sums up.
async fn infer_rows(
    caller: &ModelLocation,
    target: &ModelTarget,
    in_flight: usize,
    inputs: &[files::InputFile],
    report: &mut InferReport<'_>,
) -> anyhow::Result<Exit> {
    if let Some(other) = inputs.iter().find(|input| !csv::is_csv(&input.path)) {
        bail!("{} is no .csv, and other files are: run them by themselves", other.path.display());
    }
    let (progress, stop, mut signals) = (InferProgress::new(1), StopSignal::default(), StopSignals::new()?);
    let calls = csv::CsvCallBatch { caller, target, progress: &progress, stop: &stop, in_flight };
    let rows = async {
        let mut counts = csv::RowCounts::default();
        for input in inputs {
            csv::answer_rows(calls, &input.path, report, &mut counts).await?;
        }
        Ok(counts)
    };
    let mut rows = std::pin::pin!(rows);
    let ended: anyhow::Result<csv::RowCounts> = loop {
        tokio::select! {
            ended = &mut rows => break ended,
            () = signals.requested() => {
                // A second signal does not wait for the calls in flight.
                if stop.is_requested() {
                    return Ok(Exit::Interrupted);
                }
                stop.request();
            }
        }
    };
    let time = progress.finish();
    if ended.as_ref().is_err_and(output::is_output_closed) {
        return ended.map(|_| Exit::Success);
    }
    let counts = ended?;
    let (rate, seconds) = (progress::rate((counts.answered + counts.failed) as u64, time), time.as_secs_f64());
    note(&format!("{} rows answered in {seconds:.1} s ({rate:.1}/s), {} failed", counts.answered, counts.failed));
    Ok(match (stop.is_requested(), counts.failed) {
        (true, _) => Exit::Interrupted,
        (false, 0) => Exit::Success,
        (false, _) => Exit::Failure,
    })
}

/// The end of a run.
#[derive(Debug, Default)]
struct RunSummary {
    answered: usize,
    failed_count: usize,
    /// The first of the failed files, with their reasons.
    failed: Vec<(PathBuf, String)>,
    is_interrupted: bool,
}

impl RunSummary {
    /// Writes the answers out until all files have one, or a signal or an error ends the run. The calls in flight are
    /// finished, unless there is a second signal.
    async fn gather(
        &mut self,
        batch: &FileCallBatch<'_>,
        inputs: &[files::InputFile],
        report: &mut InferReport<'_>,
        pdfs: Option<&PdfFolder>,
    ) -> anyhow::Result<()> {
        let mut signals = StopSignals::new()?;
        let mut answers = std::pin::pin!(batch.answers(inputs));
        let mut ended = Ok(());
        loop {
            let next = tokio::select! {
                next = answers.next() => next,
                () = signals.requested() => {
                    if std::mem::replace(&mut self.is_interrupted, true) {
                        return ended;
                    }
                    batch.stop.request();
                    continue;
                }
            };
            match next {
                None => return ended,
                Some(Ok(mut answered)) => {
                    // Before its line: a run that goes on later leaves files with a line out.
                    if let (Some(pdfs), Ok(answer)) = (pdfs, &answered.answer)
                        && let Err(reason) = pdfs.write(answered.path, answer).await
                    {
                        answered.answer = Err(reason);
                    }
                    let (path, failure) = (answered.path, answered.answer.as_ref().err().cloned());
                    batch.progress.suspend(|| report.write(answered))?;
                    batch.progress.advance(failure.is_none());
                    self.count(path, failure);
                }
                // The first reason is the one to report.
                Some(Err(error)) => {
                    ended = ended.and(Err(error));
                    batch.stop.request();
                }
            }
        }
    }

    fn count(&mut self, path: &Path, failure: Option<String>) {
        let Some(reason) = failure else {
            self.answered += 1;
            return;
        };
        self.failed_count += 1;
        if self.failed.len() < FAILED_LISTED_MAX {
            self.failed.push((path.to_owned(), reason));
        }
    }

    /// Writes the figures of the run and the failed files to standard error.
    fn summarize(&self, done_before: usize, time: Duration, results: Option<&Path>) {
        let before = if done_before > 0 { format!(", {done_before} were answered before") } else { String::new() };
        let rate = progress::rate((self.answered + self.failed_count) as u64, time);
        note(&format!(
            "{} files answered in {:.1} s ({rate:.1}/s), {} failed{before}",
            self.answered,
            time.as_secs_f64(),
            self.failed_count
        ));
        for (file, reason) in &self.failed {
            note(&format!("failed: {}: {reason}", file.display()));
        }
        let more = self.failed_count - self.failed.len();
        if more > 0 {
            let all = results.map(|path| format!("; all are in {}", path.display())).unwrap_or_default();
            note(&format!("failed: {more} more{all}"));
        }
    }
}
