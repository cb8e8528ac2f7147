//! Measures speed: prepares the targets, measures them in turns, and passes the figures to the report.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::connection::RawConnection;
use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use ledge::cli::{Exit, Output};
use ledge::config::Config;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use super::child::ChildDaemon;
use super::drive::{DrivePlan, Target, drive};
use super::figures::{Outcome, Recording};
use super::load::{Arrivals, Load};
use super::mqtt::Broker;
use super::report::{self, Report, Round, Series};
use super::targets::{self, Endpoints, Targets};
use super::{BenchArgs, url};

/// Measures the targets that the arguments name.
pub fn run(runtime: &Runtime, config: &Config, args: &BenchArgs, out: &mut Output) -> anyhow::Result<Exit> {
    if !args.url.is_empty() && args.subject.runtime.is_some() {
        bail!("the runtime of a running server cannot be chosen here: leave out @RUNTIME or --url");
    }
    let (url, address) = url::server_and_broker(&args.url).map_err(anyhow::Error::msg)?;
    if address.is_none() && (args.device.is_some() || args.echo) {
        bail!("--device and --echo need a broker: name it with --url mqtt://HOST");
    }
    if address.is_some() && args.device.is_none() && !args.echo {
        bail!("a broker can have many boxes behind it: name one with --device, or measure only the broker with --echo");
    }

    let broker = address.map(|address| Broker::new(config, address)).transpose()?;
    let stop = stop_on_signals(runtime)?;
    let scratch = tempfile::Builder::new().prefix("ledge-").tempdir()?;
    let repository = scratch.path().join("models");
    let daemon = if args.in_process || !args.url.is_empty() {
        None
    } else {
        args.subject.isolate(&config.repository, &repository)?;
        let own = &config.runtimes.cache;
        let cache = if own.is_dir() { own.clone() } else { scratch.path().join("cache") };
        Some(ChildDaemon::start(&args.globals, &repository, &scratch.path().join("state"), &cache)?)
    };

    let in_process = !args.http && broker.is_none();
    // The metadata of a model cannot be read through a broker, so its inputs are read from its files here.
    let needs_files = broker.is_some() && url.is_none() && args.input.is_none();
    let serving = if in_process || needs_files {
        if daemon.is_none() {
            args.subject.isolate(&config.repository, &repository).with_context(|| match (needs_files, url) {
                (true, _) => {
                    "the inputs of the model cannot be read through a broker: give --input FILE, or the --url of the \
                     server"
                }
                (_, Some(_)) => "the model cannot be measured in this process: measure only the server with --http",
                (_, None) => "the model cannot be measured",
            })?;
        }
        Some(super::load(runtime, config, repository, &args.subject)?)
    } else {
        None
    };
    let server = match (url, &daemon) {
        (Some(url), _) => {
            let pid = args.pid.or_else(|| RawConnection::open(url, Duration::from_secs(10)).ok()?.peer_pid());
            Some((url, pid))
        }
        (None, Some(daemon)) => Some((daemon.url.as_str(), Some(daemon.pid()))),
        (None, None) => None,
    };

    let endpoints = Endpoints { serving: serving.as_deref(), in_process, server, broker: broker.as_ref() };
    let measured = Targets::new(runtime, args, endpoints).and_then(|targets| measure(args, &targets, &stop));
    if let Some(serving) = &serving {
        super::unload(runtime, serving);
    }
    let report = measured?;
    report::write(&report, args.json, out)?;
    Ok(if report.series.iter().all(Series::has_answers) { Exit::Success } else { Exit::Failure })
}

/// A flag that the first Ctrl-C or SIGTERM sets. The second one ends the process at once.
fn stop_on_signals(runtime: &Runtime) -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let _inside = runtime.enter();
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let (mut stream, stop) = (signal(kind)?, stop.clone());
        runtime.spawn(async move {
            while stream.recv().await.is_some() {
                if stop.swap(true, Ordering::Relaxed) {
                    std::process::exit(130);
                }
            }
        });
    }
    Ok(stop)
}

fn measure(args: &BenchArgs, targets: &Targets<'_>, stop: &AtomicBool) -> anyhow::Result<Report> {
    let targets::ModelInfo { ports, version, runtime, input } = &targets.model;
    let built = targets.build()?;
    for target in &built {
        if let Outcome::Failed { kind, message } = target.caller()?.call(0) {
            let guessed =
                args.input.is_none() && ports.iter().any(|port| port.shape.iter().skip(1).any(|dim| *dim < 0));
            let hint = if guessed { "; give the variable dimensions with --shape" } else { "" };
            bail!("'{}' does not answer ({input}), {}: {message} ({kind}){hint}", args.subject, target.name());
        }
    }
    let series = rounds(args, &built, stop)?;
    Ok(Report {
        model: args.subject.to_string(),
        version: version.clone(),
        runtime: runtime.clone(),
        input: input.clone(),
        unique: args.unique,
        encoding: if args.json_tensors { "json" } else { "binary" },
        batch: usize::from(args.batch),
        rounds: usize::from(args.rounds),
        seconds: args.duration.as_secs_f64(),
        cores: ledge_base::telemetry::process::usable_cores(),
        series,
    })
}

/// Measures every load on every target, in rounds. Each round begins with another target.
fn rounds(args: &BenchArgs, targets: &[Box<dyn Target + '_>], stop: &AtomicBool) -> anyhow::Result<Vec<Series>> {
    let loads = args.loads();
    let arrivals = if args.constant { Arrivals::Constant } else { Arrivals::Poisson };
    let plan = DrivePlan { duration: args.duration, arrivals, callers: usize::from(args.connections), seed: 0 };
    let warmup = DrivePlan { duration: args.warmup, ..plan };
    let bar = steps_bar(loads.len() * targets.len() * usize::from(args.rounds));
    let mut series: Vec<Series> = Vec::new();
    for load in &loads {
        series.extend(targets.iter().map(|target| Series { load: *load, target: target.name(), rounds: Vec::new() }));
    }

    for round in 0..usize::from(args.rounds) {
        let plan = DrivePlan { seed: round as u64, ..plan };
        for (load_index, load) in loads.iter().enumerate() {
            for turn in 0..targets.len() {
                let target_index = (turn + round) % targets.len();
                let Some(target) = targets.get(target_index) else { continue };
                bar.set_message(format!("{load}, {}", target.name()));
                if round == 0 && !warmup.duration.is_zero() {
                    drive(&**target, *load, &warmup, stop)?;
                }
                let measured = measure_round(&**target, *load, &plan, stop)?;
                if let Some(series) = series.get_mut(load_index * targets.len() + target_index) {
                    series.rounds.push(measured);
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(series)
}

fn measure_round(target: &dyn Target, load: Load, plan: &DrivePlan, stop: &AtomicBool) -> anyhow::Result<Round> {
    let before = target.usage();
    let recording: Recording = drive(target, load, plan, stop)?;
    let after = target.usage();
    let cpu = before.zip(after).map(|(before, after)| after.cpu.saturating_sub(before.cpu));
    Ok(Round { recording, cpu, memory: after.map(|usage| usage.resident) })
}

fn steps_bar(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {eta} left");
    // Without a terminal nothing is drawn.
    let bar = ProgressBar::new(steps as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
