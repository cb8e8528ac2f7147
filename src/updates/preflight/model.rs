//! The preflight of a model, in its own process: loads it as the daemon would, runs it on its golden inputs, and
//! measures it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::sys::process_cpu_time;
use ledge_base::telemetry::process;
use ledge_base::telemetry::system::Memory;
use ledge_engine::Runtimes;
use ledge_engine::backend::{Port, Runtime};
use ledge_engine::cores::Topology;
use ledge_identity::sealing::Sealer;
use ledge_isolation::Isolation;
use ledge_models::repository::profile::Profiles;
use ledge_models::repository::{LoadedModel, ModelDefaults, Repository, Sources, VersionError, golden_score, tuning};
use ledge_models::scheduling::engine::Engine;
use ledge_service::audit_event::AuditSink;
use serde::{Deserialize, Serialize};

use super::child::{ChildError, step};
use super::{PreflightError, PreflightOrder, PreflightReport};
use crate::package::DeclaredPort;
use crate::state::{Cause, Reason};

/// Longest time for which runs are measured.
const MEASURE_TIME_MAX: Duration = Duration::from_secs(1);

/// Texts of the runtimes, and of the standard library of C++, when they get no memory. The limits of the process make
/// this come before the machine runs out.
const OUT_OF_MEMORY_TEXTS: [&str; 4] =
    ["bad alloc", "bad_alloc", "Failed to allocate memory", "Cannot allocate memory"];

/// Settings of a model's preflight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelPreflight {
    /// The folder with the runtimes' shared libraries.
    pub runtimes: PathBuf,
    /// The folders of those runtimes that came as releases, by their names.
    pub own_folders: BTreeMap<String, PathBuf>,
    /// The number of cores it may use.
    pub threads: usize,
    /// Set to try it in every runtime that accepts it.
    pub measure: bool,
    /// The folder of the model's own files, where that is not the release's.
    pub files: Option<PathBuf>,
    /// The least share of the golden inputs that must be answered right; `None` is all of them.
    pub golden_min: Option<f64>,
    /// The deadline of a model whose config names none.
    pub timeout: Duration,
}

/// Settings of the preflight of a runtime's libraries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RuntimePreflight {
    pub runtime: Runtime,
    /// The number of cores it may use.
    pub threads: usize,
    /// The models that it runs.
    pub models: Vec<LiveModel>,
}

/// A version that is live, of a release or of the owner of this box.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveModel {
    pub name: ModelName,
    pub version: ModelVersion,
    /// The folder with `model.toml`, golden inputs and labels.
    pub folder: PathBuf,
    /// The folder with its files; the same one for a release.
    pub files: PathBuf,
    /// The least share of its golden inputs that must be answered right; `None` is all of them.
    pub golden_min: Option<f64>,
}

/// Tries the libraries of the order with the models that they would run, each of which must answer all its golden
/// inputs right. `Ok(Err(_))` when they are at fault.
pub async fn run_runtime(
    order: &PreflightOrder,
    how: &RuntimePreflight,
) -> Result<Result<PreflightReport, PreflightError>, ChildError> {
    step("loading its library")?;
    // The other runtime is missing here, so no model falls back to it.
    let runtimes = Runtimes::new(order.release.clone());
    if let Err(error) = runtimes.version(how.runtime) {
        return Ok(Err(Reason::new(Cause::Load, error).into()));
    }
    // No caller waits here.
    let repository = repository(runtimes, how.threads, false, Duration::from_hours(1));
    for LiveModel { name, version, folder, files, golden_min } in &how.models {
        step(&format!("loading {name} {version}"))?;
        match repository.load_from(name, *version, (folder, files), *golden_min).await {
            Ok(loaded) => repository.end(loaded).await,
            Err(error) => return Ok(Err(stopped(&error, format!("{name} {version}: {error}"), order.memory_bytes))),
        }
    }
    let runtime = how.runtime.to_string();
    Ok(Ok(PreflightReport { runtime, peak_bytes: process::peak_resident_bytes(), ..PreflightReport::default() }))
}

/// Tries the model of the order. `Ok(Err(_))` when the model is at fault.
pub async fn run(
    order: &PreflightOrder,
    how: &ModelPreflight,
) -> Result<Result<PreflightReport, PreflightError>, ChildError> {
    step("loading it")?;
    let repository = {
        let runtimes = Runtimes::with_own_folders(how.runtimes.clone(), &how.own_folders);
        repository(runtimes, how.threads, how.measure, how.timeout)
    };

    let started = Instant::now();
    let loaded = match load(&repository, order, how).await {
        Ok(loaded) => loaded,
        Err(error) => return Ok(Err(error)),
    };
    let load_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);

    step("running its golden inputs")?;
    let begun = Stopwatch::start();
    let score = golden_score(&loaded, &order.release).await;
    let golden = begun.elapsed().of_each(score.total);

    step("measuring it")?;
    // A tenth of its time is enough for a model with a short time limit.
    let time = MEASURE_TIME_MAX.min(Duration::from_secs(order.seconds) / 10);
    let begun = Stopwatch::start();
    let measured = tuning::closed_loop(&loaded, 1, time).await;
    let spent = begun.elapsed();

    // A model that refuses zeros cannot be measured without requests. One that failed only after a long time missed its
    // deadline.
    let unanswered = measured.is_err().then(|| RunCost { time: spent.time.saturating_sub(time), ..spent });
    let load = measured.unwrap_or_default();
    let fastest = load.latencies.first().zip(spent.of_each(load.latencies.len()));
    let fastest = fastest.map(|(&time, each)| RunCost { time, ..each });

    let us = |share| match load.latencies.len() {
        0 => 0,
        _ => u64::try_from(load.percentile(share).as_micros()).unwrap_or(u64::MAX),
    };

    let report = PreflightReport {
        runtime: loaded.runtime().to_string(),
        load_ms,
        golden_right: score.right as u64,
        golden_total: score.total as u64,
        golden_fault: score.fault.map(|fault| fault.to_string()),
        runs: load.latencies.len() as u64,
        p50_us: us(0.5),
        p95_us: us(0.95),
        peak_bytes: process::peak_resident_bytes(),
        inputs: declared(&loaded.signature.inputs),
        outputs: declared(&loaded.signature.outputs),
    };

    let cores = loaded.scale().threads;
    let alone = |spent: RunCost| spent.alone(cores);
    let fastest = fastest.into_iter().chain(golden).map(alone).min().or(unanswered.map(alone));
    let in_time = within_deadline(fastest, loaded.timeout);

    // A process that ends while a runtime still runs crashes, and the release would be blamed.
    repository.end(loaded).await;
    Ok(in_time.map(|()| report).map_err(Into::into))
}

/// Time that runs took.
#[derive(Debug, Clone, Copy)]
struct RunCost {
    time: Duration,
    /// CPU time of this process, all its threads together.
    cpu: Duration,
}

impl RunCost {
    /// Returns the cost of one of `runs` runs that took this together.
    fn of_each(self, runs: usize) -> Option<Self> {
        let runs = u32::try_from(runs).ok()?;
        Some(Self { time: self.time.checked_div(runs)?, cpu: self.cpu.checked_div(runs)? })
    }

    /// Returns the time it takes on `cores` cores that do nothing else. A preflight gets the CPU time that requests
    /// leave, so on a busy machine most of its time may be spent waiting for a core.
    fn alone(self, cores: usize) -> Duration {
        self.time.min(self.cpu / u32::try_from(cores.max(1)).unwrap_or(u32::MAX))
    }
}

struct Stopwatch {
    begun: Instant,
    cpu: Duration,
}

impl Stopwatch {
    fn start() -> Self {
        Self { begun: Instant::now(), cpu: own_cpu_time() }
    }

    fn elapsed(&self) -> RunCost {
        RunCost { time: self.begun.elapsed(), cpu: own_cpu_time().saturating_sub(self.cpu) }
    }
}

fn own_cpu_time() -> Duration {
    process_cpu_time(std::process::id()).unwrap_or_default()
}

/// Checks that a caller can get an answer at all: no caller waits longer than the model's own deadline. Judges by the
/// fastest run, because other work of the machine slows the rest.
fn within_deadline(fastest: Option<Duration>, deadline: Duration) -> Result<(), Reason> {
    let Some(fastest) = fastest.filter(|fastest| *fastest > deadline) else { return Ok(()) };
    let (fastest, deadline) = (fastest.as_millis(), deadline.as_millis());
    let detail = format!(
        "its fastest run took {fastest} ms, and callers wait {deadline} ms (queue.default_timeout_ms of model.toml, else \
         serving.default_timeout_ms)"
    );
    Err(Reason::new(Cause::Latency, detail))
}

async fn load(
    repository: &Repository,
    order: &PreflightOrder,
    how: &ModelPreflight,
) -> Result<Arc<LoadedModel>, PreflightError> {
    let folder = order.release.as_path();
    if let Err(error) = std::fs::read_dir(folder) {
        // A folder that cannot be read was not tried.
        let detail = format!("{} cannot be read: {error}", folder.display());
        return Err(PreflightError::Interrupted(Reason::new(Cause::Load, detail)));
    }
    // Any name will do: no caller asks for it.
    let name = "candidate".parse::<ModelName>().map_err(|error| error.to_string());
    let version = "1".parse::<ModelVersion>().map_err(|error| error.to_string());
    let loaded = match (name, version) {
        (Ok(name), Ok(version)) => {
            let files = how.files.as_deref().unwrap_or(folder);
            repository.load_from(&name, version, (folder, files), how.golden_min).await
        }
        (Err(error), _) | (_, Err(error)) => return Err(Reason::new(Cause::Load, error).into()),
    };
    loaded.map_err(|error| stopped(&error, error.to_string(), order.memory_bytes))
}

/// Judges a model that was not loaded, in a preflight that may take `most` bytes of memory.
fn stopped(error: &VersionError, detail: String, most: u64) -> PreflightError {
    let failed = |cause| PreflightError::Failed(Reason::new(cause, detail.clone()));
    match () {
        // The runtimes report it only by these texts.
        () if OUT_OF_MEMORY_TEXTS.iter().any(|no_memory| detail.contains(no_memory)) => {
            if had_room(most, process::resident_bytes(), Memory::read().map(|memory| memory.available_bytes)) {
                failed(Cause::Memory)
            } else {
                PreflightError::Interrupted(Reason::new(Cause::Memory, detail))
            }
        }
        () if error.is_wrong() => failed(Cause::Golden),
        () if error.may_pass() => PreflightError::Interrupted(Reason::new(Cause::Load, detail)),
        () => failed(Cause::Load),
    }
}

/// Returns whether a preflight that got no memory could have had all that it may take: then it asked for more.
/// Otherwise others hold it now, and may free it.
fn had_room(most: u64, resident: u64, available: Option<u64>) -> bool {
    available.is_none_or(|available| available >= most.saturating_sub(resident))
}

fn declared(ports: &[Port]) -> Vec<DeclaredPort> {
    let port = |port: &Port| DeclaredPort {
        name: port.name.clone(),
        datatype: port.datatype.to_string(),
        shape: port.shape.clone(),
    };
    ports.iter().map(port).collect()
}

/// Makes a repository with the runtimes of this box, no models of its own, and no measurements.
fn repository(runtimes: Runtimes, threads: usize, measure: bool, timeout: Duration) -> Repository {
    let defaults = ModelDefaults {
        max_queue_size: 16,
        timeout,
        keep_alive: None,
        // Nothing compiled here is kept: it may be the reason of a failure.
        cache_dir: None,
        isolation: Isolation::None,
        audit: AuditSink::to_nowhere(),
        profiles: Profiles::none(runtimes.clone()),
        measure,
        // The daemon has decrypted the files for the time of the preflight: this process has no key.
        sealer: Sealer::none(),
    };
    let engine = Engine::new(runtimes, Topology::read().budget(threads), None);
    // The events of a preflight are not recorded.
    let audit = AuditSink::to_nowhere();
    Repository::new(Sources::new(PathBuf::new()), engine, defaults, 1, audit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_that_gets_no_memory_is_at_fault_only_where_the_box_has_what_it_may_take() {
        assert!(had_room(512, 100, Some(412)) && had_room(512, 600, Some(0)) && had_room(512, 100, None));
        assert!(!had_room(512, 100, Some(411)));
    }

    #[test]
    fn a_run_that_waited_for_a_core_is_judged_by_its_cpu_time() {
        let ms = Duration::from_millis;
        let spent = |time, cpu| RunCost { time: ms(time), cpu: ms(cpu) };
        let in_time = |spent: RunCost, cores| within_deadline(Some(spent.alone(cores)), ms(100)).is_ok();
        assert!(in_time(spent(10_000, 90), 1), "it ran for 90 ms in 10 s");
        assert!(!in_time(spent(10_000, 110), 1) && !in_time(spent(110, 110), 1));
        assert!(in_time(spent(10_000, 390), 4) && !in_time(spent(110, 440), 4));
        // Threads that spin while they wait for each other do not count.
        assert!(in_time(spent(90, 1_000), 4));
        assert!(spent(1, 1).of_each(0).is_none());
    }
}
