//! Measures speed: builds the targets, takes turns between them, and hands the figures on.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use super::child::Daemon;
use super::drive::{Plan, Target, drive};
use super::figures::{Outcome, Recording};
use super::http::{self, Http};
use super::in_process::InProcess;
use super::inputs::{self, Payload};
use super::load::{Arrivals, Load};
use super::random::Random;
use super::report::{self, Report, Round, Series};
use super::request::{Encoding, Request};
use super::subject::Scratch;
use super::{BenchArgs, process};
use crate::cli::{Exit, Globals, Output};
use crate::config::Config;
use crate::egress::RawConnection;
use crate::inference::backend::Port;
use crate::protocol::decode;
use crate::serving::Serving;
use crate::tensor::DataType;

/// Random requests that take turns, unless they need more memory than [`POOL_BYTES`].
const POOL: usize = 8;

/// The most memory of the requests that take turns, in bytes.
const POOL_BYTES: usize = 64 << 20;

/// Measures the targets that the arguments name.
pub fn run(
    runtime: &Runtime,
    globals: &Globals,
    config: &Config,
    args: &BenchArgs,
    out: &mut Output,
) -> anyhow::Result<Exit> {
    if args.url.is_some() && args.subject.runtime.is_some() {
        bail!("a running server has chosen its runtime: leave out the @ or the --url");
    }
    let stop = stop_on_signals(runtime)?;
    let scratch = Scratch::new()?;
    let repository = scratch.path().join("models");
    let daemon = if args.in_process || args.url.is_some() {
        None
    } else {
        args.subject.isolate(&config.repository.path, &repository)?;
        let own = &config.runtimes.cache;
        let cache = if own.is_dir() { own.clone() } else { scratch.path().join("cache") };
        Some(Daemon::start(globals, &repository, &scratch.path().join("state"), &cache)?)
    };
    let serving = if args.http {
        None
    } else {
        if daemon.is_none() {
            args.subject.isolate(&config.repository.path, &repository).with_context(|| match args.url {
                Some(_) => "the model cannot be measured in this process (--http measures the server alone)",
                None => "the model cannot be measured",
            })?;
        }
        Some(super::load(runtime, config, repository, &args.subject)?)
    };
    let server = match (&args.url, &daemon) {
        (Some(url), _) => {
            let pid = args.pid.or_else(|| RawConnection::open(url, Duration::from_secs(10)).ok()?.peer_pid());
            Some((url.as_str(), pid))
        }
        (None, Some(daemon)) => Some((daemon.url.as_str(), Some(daemon.pid()))),
        (None, None) => None,
    };
    let measured = measure(runtime, args, serving.as_ref(), server, &stop);
    if let Some(serving) = &serving {
        super::unload(runtime, serving);
    }
    let report = measured?;
    if let Some(path) = &args.svg {
        write(path, &report.svg()).with_context(|| format!("{} cannot be written", path.display()))?;
    }
    report::write(&report, args.json, out)?;
    Ok(if report.series.iter().all(Series::has_answers) { Exit::Success } else { Exit::Failure })
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    std::fs::File::create(path)?.write_all(text.as_bytes())
}

/// A flag that the first Ctrl-C or SIGTERM sets; the second ends the process at once.
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

fn measure(
    runtime: &Runtime,
    args: &BenchArgs,
    serving: Option<&Serving>,
    server: Option<(&str, Option<u32>)>,
    stop: &AtomicBool,
) -> anyhow::Result<Report> {
    let model = decode::Target { model: args.subject.model.clone(), version: args.subject.version };
    let version = model.version.map(|version| format!("/versions/{version}")).unwrap_or_default();
    let path = format!("/v2/models/{}{version}", model.model);
    let (ports, version, chosen) = match (serving, server) {
        (Some(serving), _) => {
            let pinned = serving.repository().pin(&model.model, model.version)?;
            (pinned.signature.inputs.clone(), pinned.version.to_string(), pinned.runtime().to_string())
        }
        (None, Some((url, _))) => described(&http::get(url, &path)?)?,
        (None, None) => bail!("nothing to measure"),
    };
    let payloads = payloads(args, &ports)?;
    let input = payloads.first().map(Payload::describe).unwrap_or_default();
    let mut targets: Vec<Box<dyn Target + '_>> = Vec::new();
    if let Some(serving) = serving {
        targets.push(Box::new(InProcess { runtime, serving, target: model, payloads: &payloads, unique: args.unique }));
    }
    if let Some((url, pid)) = server {
        let encoding = if args.json_tensors { Encoding::Json } else { Encoding::Binary };
        let host = RawConnection::open(url, Duration::from_secs(10))?.host().to_owned();
        let path = format!("{path}/infer");
        let request = |payload| Request::new(&host, &path, payload, encoding, args.unique);
        let requests = payloads.iter().map(request).collect::<anyhow::Result<_>>()?;
        targets.push(Box::new(Http { url: url.to_owned(), pid, requests, unique: args.unique }));
    }
    for target in &targets {
        if let Outcome::Failed { kind, message } = target.caller()?.call(0) {
            let guessed =
                args.input.is_none() && ports.iter().any(|port| port.shape.iter().skip(1).any(|dim| *dim < 0));
            let hint = if guessed { "; --shape says what the variable dimensions are" } else { "" };
            bail!("'{}' does not answer ({input}), {}: {message} ({kind}){hint}", args.subject, target.name());
        }
    }
    let series = rounds(args, &targets, stop)?;
    Ok(Report {
        model: args.subject.to_string(),
        version,
        runtime: chosen,
        input,
        unique: args.unique,
        encoding: if args.json_tensors { "json" } else { "binary" },
        batch: usize::from(args.batch),
        rounds: usize::from(args.rounds),
        seconds: args.duration.as_secs_f64(),
        cores: crate::telemetry::process::usable_cores(),
        series,
    })
}

/// The inputs, version and platform that a server's metadata tell.
fn described(metadata: &Value) -> anyhow::Result<(Vec<Port>, String, String)> {
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let port = |input: &Value| {
        Some(Port {
            name: text(input, "name")?,
            datatype: DataType::from_name(&text(input, "datatype")?)?,
            shape: input.get("shape")?.as_array()?.iter().map(Value::as_i64).collect::<Option<_>>()?,
        })
    };
    let inputs = metadata.get("inputs").and_then(Value::as_array).into_iter().flatten();
    let ports = inputs.map(port).collect::<Option<_>>().context("the server does not tell the model's inputs")?;
    let versions = metadata.get("versions").and_then(Value::as_array);
    let version = versions.and_then(|all| all.last()?.as_str().map(str::to_owned)).unwrap_or_default();
    Ok((ports, version, text(metadata, "platform").unwrap_or_default()))
}

/// The requests that take turns.
fn payloads(args: &BenchArgs, ports: &[Port]) -> anyhow::Result<Vec<Payload>> {
    if let Some(path) = &args.input {
        if args.batch > 1 || !args.shape.is_empty() {
            bail!("--batch and --shape are for random inputs; {} has its own shape", path.display());
        }
        return Ok(vec![inputs::file(&args.subject.model, path)?]);
    }
    let batched = ports.iter().all(|port| port.shape.first() == Some(&-1));
    let shapes = inputs::shapes(ports, batched, usize::from(args.batch), &args.shape)?;
    // The same numbers each time, so that two measurements ask the same.
    let mut random = Random::seeded(1);
    let first = inputs::random(ports, &shapes, &mut random)?;
    let size = match &first {
        Payload::Tensors(tensors) => tensors.iter().map(|(_, tensor)| tensor.data().len()).sum(),
        Payload::Photo(photo) => photo.len(),
    };
    let count = if args.unique { 1 } else { POOL.min(POOL_BYTES / size.max(1)).max(1) };
    let more = (1..count).map(|_| inputs::random(ports, &shapes, &mut random));
    std::iter::once(Ok(first)).chain(more).collect()
}

/// Every load on every target, in rounds; each round begins with another target.
fn rounds(args: &BenchArgs, targets: &[Box<dyn Target + '_>], stop: &AtomicBool) -> anyhow::Result<Vec<Series>> {
    let loads = args.loads();
    let arrivals = if args.constant { Arrivals::Constant } else { Arrivals::Poisson };
    let plan = Plan { duration: args.duration, arrivals, callers: usize::from(args.connections), seed: 0 };
    let warmup = Plan { duration: args.warmup, ..plan };
    let bar = progress(loads.len() * targets.len() * usize::from(args.rounds));
    let mut series: Vec<Series> = Vec::new();
    for load in &loads {
        series.extend(targets.iter().map(|target| Series { load: *load, target: target.name(), rounds: Vec::new() }));
    }
    for round in 0..usize::from(args.rounds) {
        let plan = Plan { seed: round as u64, ..plan };
        for (place, load) in loads.iter().enumerate() {
            for turn in 0..targets.len() {
                let which = (turn + round) % targets.len();
                let Some(target) = targets.get(which) else { continue };
                bar.set_message(format!("{load}, {}", target.name()));
                if round == 0 && !warmup.duration.is_zero() {
                    drive(&**target, *load, &warmup, stop)?;
                }
                let measured = one(&**target, *load, &plan, stop)?;
                if let Some(series) = series.get_mut(place * targets.len() + which) {
                    series.rounds.push(measured);
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(series)
}

fn one(target: &dyn Target, load: Load, plan: &Plan, stop: &AtomicBool) -> anyhow::Result<Round> {
    let usage = || target.pid().and_then(process::usage);
    let before = usage();
    let recording: Recording = drive(target, load, plan, stop)?;
    let after = usage();
    let cpu = before.zip(after).map(|(before, after)| after.cpu.saturating_sub(before.cpu));
    Ok(Round { recording, cpu, memory: after.map(|usage| usage.resident) })
}

fn progress(steps: usize) -> ProgressBar {
    use std::io::IsTerminal as _;
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {eta} left");
    let bar = ProgressBar::new(steps as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
