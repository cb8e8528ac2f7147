//! `ledge jobs`: files and tables for a model, when there is time.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use bytes::Bytes;
use clap::{Args, Subcommand};
use ledge_base::names::ModelName;
use ledge_engine::pipeline::file_format::FileFormat;
use ledge_jobs::http::{JobDocument, JobsDocument};
use ledge_models::serving::windows::DailyWindow;
use serde_json::json;

use super::features::daemon::{DaemonClient, checked};
use super::features::show::columns;
use super::server::ServerArgs;
use super::{Exit, GlobalArgs, Output, block_on};

/// The arguments of `ledge jobs`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct JobsArgs {
    /// Write JSON instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(subcommand)]
    pub command: Option<JobsCommand>,
}

/// The verbs below `ledge jobs`.
#[derive(Debug, Subcommand)]
pub enum JobsCommand {
    /// Add a job: a folder of pictures, documents or texts, one such file, or a file of CSV.
    ///
    /// The server reads the files where they are, below a folder of `jobs.folders`, and writes the results next to them.
    /// With --send, the content of one file is sent, kept encrypted, and its result is fetched with `ledge jobs result`.
    Add(AddJobArgs),
    /// Write the result of a job that was added with --send, as lines of JSON, or as CSV for CSV.
    Result {
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Stop a job, and remove it with its result. Results in a folder stay.
    Remove {
        #[arg(value_name = "ID")]
        id: String,
    },
}

/// The arguments of `ledge jobs add`.
#[derive(Debug, Args)]
pub struct AddJobArgs {
    #[arg(value_name = "FOLDER|FILE", required = true)]
    pub paths: Vec<PathBuf>,
    #[arg(long, value_name = "NAME")]
    pub model: ModelName,
    /// The time of day in which it runs, in local time, such as 22:00-06:00 [default: jobs.window].
    #[arg(long, value_name = "HH:MM-HH:MM")]
    pub window: Option<DailyWindow>,
    /// The folder of the results, below a folder of `jobs.folders` [default: that of the input].
    #[arg(long, value_name = "FOLDER", conflicts_with = "send")]
    pub out: Option<PathBuf>,
    /// Send the content of the file.
    #[arg(long)]
    pub send: bool,
}

const EXAMPLES: &str = "\
Examples:
  ledge jobs                                                         list the jobs
  ledge jobs add /srv/archive --model document_reader --window 22:00-06:00
  ledge jobs add /srv/data/wines.csv --model wine_mlp --out /srv/results
  ledge jobs add letter.pdf --send --model document_reader
  ledge jobs result 20261201T111438123Z-1f3a9c2e > letter.jsonl";

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &JobsArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let mut daemon = DaemonClient::new(globals, &args.server)?;
    block_on(async {
        match &args.command {
            None => list(&mut daemon, args.json, out).await,
            Some(JobsCommand::Add(add)) => {
                for path in &add.paths {
                    let job = add_job(&mut daemon, add, path).await?;
                    write_job(&job, args.json, out, "added")?;
                }
                Ok(())
            }
            Some(JobsCommand::Result { id }) => {
                let mut result = daemon.download(&format!("/jobs/{id}/result")).await?;
                while let Some(piece) = result.next().await? {
                    out.write_all(&piece)?;
                }
                Ok(())
            }
            Some(JobsCommand::Remove { id }) => {
                let job: JobDocument = daemon.post(&format!("/jobs/{id}/remove"), &json!({})).await?;
                write_job(&job, args.json, out, "removed")
            }
        }
    })??;
    Ok(Exit::Success)
}

async fn add_job(daemon: &mut DaemonClient, add: &AddJobArgs, path: &Path) -> anyhow::Result<JobDocument> {
    let AddJobArgs { model, window, out, send, .. } = add;
    let absolute = |path: &Path| std::path::absolute(path).with_context(|| path.display().to_string());
    if !send {
        let out = out.as_deref().map(absolute).transpose()?;
        let body = json!({"model": model, "path": absolute(path)?, "out": out, "window": window});
        return daemon.post("/jobs", &body).await;
    }
    let content = std::fs::read(path).with_context(|| path.display().to_string())?;
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
    let kind = match FileFormat::by_extension(&ending) {
        _ if ending == "csv" => "text/csv",
        Some(format) => format.content_type(),
        None => "application/octet-stream",
    };
    let window = window.map(|window| format!("&window={window}")).unwrap_or_default();
    let target = format!("/jobs?model={model}{window}");
    let answer = daemon.connection().await?.post(&target, &[("content-type", kind)], Bytes::from(content)).await?;
    serde_json::from_slice(&checked(answer)?).context("cannot read the answer of the server")
}

fn write_job(job: &JobDocument, json: bool, out: &mut Output, what: &str) -> anyhow::Result<()> {
    if json {
        writeln!(out, "{}", serde_json::to_string(job)?)?;
    } else {
        writeln!(out, "{what} {}", job.id)?;
    }
    Ok(())
}

async fn list(daemon: &mut DaemonClient, json: bool, out: &mut Output) -> anyhow::Result<()> {
    let JobsDocument { jobs } = daemon.get("/jobs").await?;
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&jobs)?)?;
        return Ok(());
    }
    if jobs.is_empty() {
        writeln!(out, "no jobs")?;
        return Ok(());
    }
    let head = ["id", "model", "window", "state", "done", "failed"].map(str::to_owned).to_vec();
    let row = |job: &JobDocument| {
        let window = job.window.map_or_else(|| "always".to_owned(), |window| window.to_string());
        let share = format!("{} %", (job.done * 100).checked_div(job.total).unwrap_or(100));
        vec![job.id.clone(), job.model.to_string(), window, job.state.clone(), share, job.failed.to_string()]
    };
    let rows: Vec<_> = std::iter::once(head).chain(jobs.iter().map(row)).collect();
    columns(&rows, out)?;
    for job in &jobs {
        if let Some(reason) = &job.reason {
            writeln!(out, "{}: {reason}", job.id)?;
        }
        for error in job.errors.iter().take(3) {
            writeln!(out, "{}: item {}: {}", job.id, error.item, error.error)?;
        }
    }
    Ok(())
}
