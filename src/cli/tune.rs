//! `ledge tune`: finds the best settings for a model on this machine by measurement, and stores them.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use indicatif::ProgressBar;
use ledge_base::names::{ModelName, ModelVersion};
use ledge_models::repository::profile::{RunProfile, RunProfileChoice, RunProfileSource};
use ledge_models::repository::search::{ModelMeasurer, TuningEffort, TuningGoal, TuningRow, candidates, search};
use ledge_models::repository::tuning::{self, LoadMeasurement};
use ledge_models::repository::{LoadedModel, ModelFolders, Repository};
use serde_json::{Value, json};

use super::models::missing::{self, AlternativeSources};
use super::standalone::standalone;
use super::{Exit, GlobalArgs, Output, block_on, progress};

/// The arguments of `ledge tune`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TuneArgs {
    /// The model: the name of its folder in the repository.
    pub model: ModelName,
    /// The version of the model [default: the highest that is served].
    #[arg(long = "version", value_name = "N")]
    pub model_version: Option<ModelVersion>,
    /// The goal: throughput, latency, or a latency limit at a request rate, such as 'p99<=20ms@50/s'.
    #[arg(long, default_value = "throughput", value_name = "GOAL")]
    pub goal: TuningGoal,
    /// Measure another model in turns with this one, for comparison only. For example, the same network in float.
    #[arg(long, value_name = "MODEL")]
    pub against: Option<ModelName>,
    /// The length of one measurement in milliseconds. Longer measurements vary less.
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(20..=60_000))]
    pub slice: u64,
    /// The number of rounds in which the best combinations are measured, in turns.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Also measure every combination in all rounds, and show how far the choice is from the best of all.
    #[arg(long)]
    pub exhaustive: bool,
    /// Show the choice without storing it.
    #[arg(long)]
    pub dry_run: bool,
    /// Write JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ledge tune efficientnet_lite0
  ledge tune efficientnet_lite0 --goal latency
  ledge tune efficientnet_lite0 --goal 'p99<=20ms@50/s'
  ledge tune efficientnet_lite0 --against efficientnet_lite0_fp32 --dry-run

Stop the server first; otherwise both compete for the cores. A running server uses the profile after its next start, or
when it loads the model again. Settings in model.toml take precedence over measured ones.";

/// Runs the verb. It fails when no combination runs the model, or when the goal's limit is missed.
pub fn run(globals: &GlobalArgs, args: &TuneArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let config = globals.load_config()?;
    let cache = &config.runtimes.cache;
    if !args.dry_run {
        std::fs::create_dir_all(cache)
            .with_context(|| format!("the cache folder {} cannot be created (runtimes.cache)", cache.display()))?;
    }
    let sources = ModelFolders::of(&config.repository);
    for name in [Some(&args.model), args.against.as_ref()].into_iter().flatten() {
        missing::require(&sources, name, AlternativeSources::Root)?;
    }
    let standalone = standalone(&config);
    block_on(tune(standalone.repository(), args, out))?
}

async fn tune(repository: &Repository, args: &TuneArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let own = TunedVersion::find(repository, &args.model, args.model_version)?;
    let other = args.against.as_ref().map(|name| TunedVersion::find(repository, name, None)).transpose()?;
    let how = TuningEffort {
        slice: Duration::from_millis(args.slice),
        rounds: usize::try_from(args.rounds).unwrap_or(usize::MAX),
        exhaustive: false,
    };
    let rows = own.search(repository, args.goal, how).await;
    let others = match &other {
        Some(other) => other.search(repository, args.goal, how).await,
        None => Vec::new(),
    };
    let every = if args.exhaustive {
        own.search(repository, args.goal, TuningEffort { exhaustive: true, ..how }).await
    } else {
        Vec::new()
    };

    let best = rows.first().with_context(|| format!("no runtime on this machine can run {}", args.model))?;
    let load = match &best.load {
        Ok(load) => load,
        Err(reason) => {
            bail!("{} runs in no combination of runtime, threads, instances and batch: {reason}", args.model)
        }
    };
    let profile = RunProfile {
        choice: best.choice,
        effort: RunProfileSource::Tuned,
        goal: args.goal.to_string(),
        measured: figures(load),
    };
    let stored =
        if args.dry_run { None } else { repository.profiles().put(&own.digest, &repository.runtimes(), &profile)? };
    let distance = distance(args.goal, best.choice, &every);
    if args.json {
        let report = json!({
            "model": own.name, "version": own.version, "goal": args.goal.to_string(), "met": args.goal.is_met(load),
            "chosen": best.choice, "rows": as_json(&rows), "against": as_json(&others), "exhaustive": as_json(&every),
            "ratio_to_best": distance, "profile": stored,
        });
        writeln!(out, "{report:#}")?;
    } else {
        writeln!(out, "{} version {}, for {}", own.name, own.version, args.goal)?;
        table(out, &rows)?;
        for (title, rows) in
            [(args.against.as_ref().map(ToString::to_string), &others), (Some("every combination".to_owned()), &every)]
        {
            if let (Some(title), false) = (title, rows.is_empty()) {
                writeln!(out, "\n{title}")?;
                table(out, rows)?;
            }
        }
        if let Some(ratio) = distance {
            writeln!(out, "\nThe choice is {:.1} % from the best of all combinations.", (ratio - 1.0) * 100.0)?;
        }
        if !args.goal.is_met(load) {
            writeln!(out, "\nNo combination meets the goal on this machine; the closest one is first.")?;
        }
        match stored {
            Some(path) => writeln!(out, "\nThe profile is stored in {}", path.display())?,
            None => writeln!(out, "\nNothing was stored.")?,
        }
    }
    Ok(if args.goal.is_met(load) { Exit::Success } else { Exit::Failure })
}

/// The cost of the choice divided by the cost of the best, where every combination was measured in turns: 1.0 is as
/// good.
fn distance(goal: TuningGoal, choice: RunProfileChoice, every: &[TuningRow]) -> Option<f64> {
    let cost = |row: &TuningRow| row.load.as_ref().ok().map(|load| goal.cost(load));
    let own = every.iter().find(|row| row.choice == choice).and_then(cost)?;
    let best = every.iter().filter_map(cost).fold(f64::INFINITY, f64::min);
    Some(own / best)
}

/// The model version to tune.
struct TunedVersion {
    name: ModelName,
    version: ModelVersion,
    digest: String,
    runtimes: Vec<ledge_engine::backend::Runtime>,
}

impl TunedVersion {
    fn find(repository: &Repository, name: &ModelName, version: Option<ModelVersion>) -> anyhow::Result<Self> {
        let served = repository.selected_on_disk(name)?.last().copied();
        let version = version.or(served).with_context(|| format!("{name} has no version"))?;
        let (digest, runtimes) = repository.tunable(name, version)?;
        Ok(Self { name: name.clone(), version, digest, runtimes })
    }

    async fn search(&self, repository: &Repository, goal: TuningGoal, how: TuningEffort) -> Vec<TuningRow> {
        let cores = repository.cores().len();
        // Loaded once in the simplest form that works, to learn the largest batch.
        let simplest = candidates(TuningGoal::Latency, &self.runtimes, cores, None);
        let mut limit = None;
        for choice in simplest {
            if let Ok(model) = repository.load_as(&self.name, self.version, choice).await {
                limit = model.batch_limit;
                repository.end(model).await;
                break;
            }
        }

        let choices = candidates(goal, &self.runtimes, cores, limit);
        let bar = progress::bar(Some(0), "{msg} {bar:30} {pos}/{len} {elapsed}");
        let title = self.name.to_string();
        let mut measure = LoadedModelMeasurer { repository, subject: self, goal, loaded: Vec::new(), bar, title };
        let rows = search(&mut measure, goal, &choices, how).await;
        measure.bar.finish_and_clear();
        rows
    }
}

/// Measures loaded models.
struct LoadedModelMeasurer<'a> {
    repository: &'a Repository,
    subject: &'a TunedVersion,
    goal: TuningGoal,
    loaded: Vec<(RunProfileChoice, Arc<LoadedModel>)>,
    bar: ProgressBar,
    title: String,
}

impl ModelMeasurer for LoadedModelMeasurer<'_> {
    async fn load(&mut self, choice: RunProfileChoice) -> Result<(), String> {
        let model = self.repository.load_as(&self.subject.name, self.subject.version, choice).await?;
        self.loaded.push((choice, model));
        Ok(())
    }

    async fn measure(&mut self, choice: RunProfileChoice, time: Duration) -> Result<LoadMeasurement, String> {
        let loaded = self.loaded.iter().find(|(loaded, _)| *loaded == choice);
        let (_, model) = loaded.ok_or("it is not loaded")?;
        match self.goal {
            TuningGoal::Latency => tuning::closed_loop(model, 1, time).await,
            // Twice as many as run at a time, so that the next request waits when one ends.
            TuningGoal::Throughput => tuning::closed_loop(model, 2 * choice.instances * choice.batch, time).await,
            TuningGoal::Percentile { rate, .. } => tuning::open_loop(model, &tuning::arrivals(rate, time)).await,
        }
    }

    async fn unload(&mut self, choice: RunProfileChoice) {
        if let Some(index) = self.loaded.iter().position(|(loaded, _)| *loaded == choice) {
            let (_, model) = self.loaded.swap_remove(index);
            self.repository.end(model).await;
        }
    }

    fn progress(&mut self, what: &str, done: usize, of: usize) {
        self.bar.set_message(format!("{}: {what}", self.title));
        self.bar.set_length(of as u64);
        self.bar.set_position(done as u64);
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn figures(load: &LoadMeasurement) -> String {
    format!(
        "{:.1} requests/s, p50 {:.2} ms, p99 {:.2} ms",
        load.throughput(),
        ms(load.percentile(0.5)),
        ms(load.percentile(0.99))
    )
}

fn table(out: &mut Output, rows: &[TuningRow]) -> anyhow::Result<()> {
    writeln!(
        out,
        "{:<12} {:>7} {:>9} {:>5} {:>12} {:>10} {:>10}",
        "RUNTIME", "THREADS", "INSTANCES", "BATCH", "REQUESTS/S", "P50 MS", "P99 MS"
    )?;
    for TuningRow { choice, load } in rows {
        let RunProfileChoice { runtime, threads, instances, batch } = choice;
        write!(out, "{:<12} {threads:>7} {instances:>9} {batch:>5} ", runtime.as_str())?;
        match load {
            Ok(load) => {
                let (p50, p99) = (ms(load.percentile(0.5)), ms(load.percentile(0.99)));
                writeln!(out, "{:>12.1} {p50:>10.3} {p99:>10.3}", load.throughput())?;
            }
            Err(reason) => writeln!(out, "{reason}")?,
        }
    }
    Ok(())
}

fn as_json(rows: &[TuningRow]) -> Vec<Value> {
    let row = |TuningRow { choice, load }: &TuningRow| match load {
        Ok(load) => json!({
            "choice": choice, "requests_per_second": load.throughput(), "requests": load.latencies.len(),
            "p50_ms": ms(load.percentile(0.5)), "p99_ms": ms(load.percentile(0.99)),
        }),
        Err(reason) => json!({"choice": choice, "error": reason}),
    };
    rows.iter().map(row).collect()
}
