//! The trial of a model: loads it as the daemon would, in a separate sandboxed process, runs it on its golden inputs,
//! and measures it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::telemetry::system::MachineMemory;
use ledge_engine::Runtimes;
use ledge_engine::backend::{ModelPort, Runtime};
use ledge_engine::cores::CpuTopology;
use ledge_identity::sealing::{DecryptedFolder, EncryptedFolder, EncryptionPurpose, Sealer};
use ledge_isolation::{ChildEnd, ChildSettings, Children, Isolation, ThreadWork, TrialProcessFailure};
use ledge_models::repository::profile::RunProfiles;
use ledge_models::repository::{
    LoadedModel, ModelDefaults, ModelFolders, Predecessor, Repository, VersionLoadError, golden_score, tuning,
};
use ledge_models::scheduling::engine::InferScheduler;
use ledge_service::audit_event::AuditSink;
use rustix::process::Signal;

use super::error::{PreflightError, out_of_memory};
use super::limits::{MEMORY_POLL_INTERVAL, TrialLimits};
use super::order::ReleaseTrialFigures;
use super::settings::PreflightSettings;
use crate::package::DeclaredPort;
use crate::state::{RollbackCause, RollbackReason};

/// Longest time for which runs are measured.
const MEASURE_TIME_MAX: Duration = Duration::from_secs(1);

/// Texts of the runtimes, and of the standard library of C++, when they get no memory. The limits of the process make
/// this come before the machine runs out.
const OUT_OF_MEMORY_TEXTS: [&str; 4] =
    ["bad alloc", "bad_alloc", "Failed to allocate memory", "Cannot allocate memory"];

/// A version that is live, of a release or of the owner of this box.
#[derive(Debug, Clone, PartialEq)]
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

/// A trial: models in separate processes, without requests.
pub(super) struct PreflightTrial {
    repository: Repository,
    runtimes: Runtimes,
    sealer: Sealer,
    limits: TrialLimits,
    predecessor: Option<Predecessor>,
    /// The processes that the kernel had ended for want of memory before, on the whole machine.
    ended_by_kernel: Option<u64>,
    /// The step that it is in, such as "loading it": a crash is reported with it.
    step: Mutex<String>,
}

impl PreflightTrial {
    /// A trial in these runtimes. Nothing is loaded, and no process started.
    pub fn new(settings: &PreflightSettings, runtimes: Runtimes, limits: TrialLimits) -> Self {
        let PreflightSettings { children, threads, measure, timeout, sealer, predecessor, .. } = settings.clone();
        let defaults = ModelDefaults {
            max_queue_size: 16,
            timeout,
            keep_alive: None,
            // Nothing compiled here is kept: it may be the reason of a failure.
            cache_dir: None,
            isolation: Isolation::Own,
            // The events of a trial are not recorded.
            audit: AuditSink::to_nowhere(),
            profiles: RunProfiles::none(),
            measure,
            sealer: sealer.clone(),
        };
        let most = children.memory_bytes.unwrap_or(u64::MAX).min(limits.data_bytes());
        let children = ChildSettings { memory_bytes: Some(most), ..children };
        let engine = InferScheduler::new(runtimes.clone(), CpuTopology::read().budget(threads), None, children);
        let repository =
            Repository::new(ModelFolders::new(PathBuf::new()), engine, defaults, 1, AuditSink::to_nowhere());
        let ended_by_kernel = MachineMemory::processes_ended(Path::new("/"));
        Self {
            repository,
            runtimes,
            sealer,
            limits,
            predecessor,
            ended_by_kernel,
            step: Mutex::new("starting".to_owned()),
        }
    }

    /// Tries the model of one version: from the folder of its model config, golden inputs and labels, and from that of
    /// its files.
    pub async fn run(
        &self,
        folder: &Path,
        files: &Path,
        golden_min: Option<f64>,
    ) -> Result<ReleaseTrialFigures, PreflightError> {
        self.watched(self.try_model(folder, files, golden_min)).await
    }

    /// Tries the library of `runtime` with the models that it would run, each of which must answer all its golden
    /// inputs right.
    pub async fn run_runtime(&self, runtime: Runtime, models: &[LiveModel]) -> Result<(), PreflightError> {
        self.watched(self.try_runtime(runtime, models)).await
    }

    async fn try_runtime(&self, runtime: Runtime, models: &[LiveModel]) -> Result<(), PreflightError> {
        self.begin("loading its library");
        let (engine, runtimes) = (self.repository.engine().clone(), self.runtimes.clone());
        let version = tokio::task::spawn_blocking(move || engine.children().version(&runtimes, runtime));
        let version = version.await.unwrap_or_else(|panic| Err(format!("loading it panicked: {panic}")));
        version.map_err(|reason| RollbackReason::new(RollbackCause::Load, reason))?;
        for LiveModel { name, version, folder, files, golden_min } in models {
            self.begin(&format!("loading {name} {version}"));
            let files = DecryptedVersion::open(folder, files, &self.sealer).await?;
            let loaded = self.load((name, *version), &files, *golden_min).await;
            let loaded = loaded.map_err(|error| self.stopped(&error, format!("{name} {version}: {error}")))?;
            self.repository.end(loaded).await;
        }
        Ok(())
    }

    async fn try_model(
        &self,
        folder: &Path,
        files: &Path,
        golden_min: Option<f64>,
    ) -> Result<ReleaseTrialFigures, PreflightError> {
        self.begin("loading it");
        if let Err(error) = std::fs::read_dir(folder) {
            // A folder that cannot be read was not tried.
            let detail = format!("{} cannot be read: {error}", folder.display());
            return Err(PreflightError::Interrupted(RollbackReason::new(RollbackCause::Load, detail)));
        }
        let files = DecryptedVersion::open(folder, files, &self.sealer).await?;
        // Any name will do: no caller asks for it.
        let name = ModelName::constant("candidate");
        let version =
            "1".parse::<ModelVersion>().map_err(|error| RollbackReason::new(RollbackCause::Load, error.to_string()))?;
        let started = Instant::now();
        let loaded = self.load((&name, version), &files, golden_min).await;
        let loaded = loaded.map_err(|error| self.stopped(&error, error.to_string()))?;
        let load_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);

        self.begin("running its golden inputs");
        let begun = Stopwatch::start(self);
        let score = golden_score(&loaded, &files.folder).await;
        let golden = begun.elapsed().of_each(score.total);

        self.begin("measuring it");
        // A tenth of its time is enough for a model with a short time limit.
        let time = MEASURE_TIME_MAX.min(Duration::from_secs(self.limits.seconds) / 10);
        let begun = Stopwatch::start(self);
        let measured = tuning::closed_loop(&loaded, 1, time).await;
        let spent = begun.elapsed();

        // A model that refuses zeros cannot be measured without requests. One that failed only after a long time missed
        // its deadline.
        let unanswered = measured.is_err().then(|| TrialRunCost { time: spent.time.saturating_sub(time), ..spent });
        let load = measured.unwrap_or_default();
        let fastest = load.latencies.first().zip(spent.of_each(load.latencies.len()));
        let fastest = fastest.map(|(&time, each)| TrialRunCost { time, ..each });

        let us = |share| match load.latencies.len() {
            0 => 0,
            _ => u64::try_from(load.percentile(share).as_micros()).unwrap_or(u64::MAX),
        };

        let report = ReleaseTrialFigures {
            runtime: loaded.runtime().to_string(),
            load_ms,
            golden_right: score.right as u64,
            golden_total: score.total as u64,
            golden_fault: score.fault.map(|fault| fault.to_string()),
            runs: load.latencies.len() as u64,
            p50_us: us(0.5),
            p95_us: us(0.95),
            peak_bytes: self.peak_bytes(),
            inputs: declared(&loaded.signature.inputs),
            outputs: declared(&loaded.signature.outputs),
        };

        let cores = loaded.scale().threads;
        let alone = |spent: TrialRunCost| spent.alone(cores);
        let fastest = fastest.into_iter().chain(golden).map(alone).min().or(unanswered.map(alone));
        let in_time = within_deadline(fastest, loaded.timeout);
        self.repository.end(loaded).await;
        Ok(in_time.map(|()| report)?)
    }

    async fn load(
        &self,
        (name, version): (&ModelName, ModelVersion),
        files: &DecryptedVersion,
        golden_min: Option<f64>,
    ) -> Result<Arc<LoadedModel>, VersionLoadError> {
        let (folders, sealed, before) =
            ((&*files.folder, &*files.files), files.sealed.as_ref(), self.predecessor.as_ref());
        self.repository.load_from(name, version, folders, golden_min, sealed, before).await
    }

    /// Does `work`, and ends the processes when they take too much memory or time.
    async fn watched<T>(&self, work: impl Future<Output = Result<T, PreflightError>>) -> Result<T, PreflightError> {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(self.limits.seconds);
        let watch = async {
            loop {
                tokio::time::sleep(MEMORY_POLL_INTERVAL).await;
                let resident = self.resident_bytes();
                if resident > self.limits.memory_bytes {
                    return self.limits.exceeded(resident, &self.step());
                }
                if tokio::time::Instant::now() >= deadline {
                    return self.limits.timed_out(&self.step());
                }
            }
        };
        let mut work = std::pin::pin!(work);
        let fault = tokio::select! {
            done = &mut work => return self.verdict(done),
            fault = watch => fault,
        };
        self.children().end_all(&fault.detail);
        // A load that is cut off half-way would leave its state behind.
        let _ = work.await;
        Err(fault.into())
    }

    /// The result, unless the end of a process explains it.
    fn verdict<T>(&self, done: Result<T, PreflightError>) -> Result<T, PreflightError> {
        match self.children().trial_end() {
            None => done,
            // This box is at fault, not the release.
            Some(TrialProcessFailure::NotStarted(reason)) => {
                let detail = format!("the process of the trial cannot be started: {reason}");
                Err(PreflightError::Interrupted(RollbackReason::new(RollbackCause::Load, detail)))
            }
            // Somebody froze it, which says nothing about the release.
            Some(TrialProcessFailure::Ended(ChildEnd { blamed: Some(ThreadWork::None), reason, .. })) => {
                Err(PreflightError::Postponed(RollbackReason::new(RollbackCause::Load, reason)))
            }
            Some(TrialProcessFailure::Ended(ChildEnd { signal: Some(signal), reason, .. }))
                if signal == Signal::KILL.as_raw() =>
            {
                match (self.ended_by_kernel, MachineMemory::processes_ended(Path::new("/"))) {
                    // Somebody killed it.
                    (Some(before), Some(now)) if before == now => {
                        Err(PreflightError::Postponed(RollbackReason::new(RollbackCause::Load, reason)))
                    }
                    _ => Err(out_of_memory(&self.step())),
                }
            }
            Some(TrialProcessFailure::Ended(ChildEnd { reason, .. })) => {
                Err(RollbackReason::new(RollbackCause::Crash, format!("{reason} while {}", self.step())).into())
            }
        }
    }

    fn children(&self) -> &Children {
        self.repository.engine().children()
    }

    fn resident_bytes(&self) -> u64 {
        self.repository.engine().processes().iter().map(|usage| usage.resident_bytes).sum()
    }

    /// The most resident memory that a process of the trial ever had.
    fn peak_bytes(&self) -> u64 {
        self.repository.engine().processes().iter().map(|usage| usage.peak_bytes).max().unwrap_or(0)
    }

    fn cpu_time(&self) -> Duration {
        self.repository.engine().processes().iter().map(|usage| usage.cpu).sum()
    }

    fn begin(&self, step: &str) {
        step.clone_into(&mut self.step_lock());
    }

    fn step(&self) -> String {
        self.step_lock().clone()
    }

    fn step_lock(&self) -> MutexGuard<'_, String> {
        // Nothing panics under this lock.
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Judges a model that was not loaded.
    fn stopped(&self, error: &VersionLoadError, detail: String) -> PreflightError {
        let failed = |cause| PreflightError::Failed(RollbackReason::new(cause, detail.clone()));
        match () {
            // The runtimes report it only by these texts.
            () if OUT_OF_MEMORY_TEXTS.iter().any(|no_memory| detail.contains(no_memory)) => {
                let available = MachineMemory::read().map(|memory| memory.available_bytes);
                if had_room(self.limits.memory_bytes, self.resident_bytes(), available) {
                    failed(RollbackCause::Memory)
                } else {
                    PreflightError::Interrupted(RollbackReason::new(RollbackCause::Memory, detail))
                }
            }
            () if error.is_wrong() => failed(RollbackCause::Golden),
            () if error.may_pass() => PreflightError::Interrupted(RollbackReason::new(RollbackCause::Load, detail)),
            () => failed(RollbackCause::Load),
        }
    }
}

/// The files of a version, decrypted in memory if they are encrypted, while this exists.
struct DecryptedVersion {
    folder: PathBuf,
    files: PathBuf,
    sealed: Option<EncryptedFolder>,
    _plain: Option<Arc<DecryptedFolder>>,
}

impl DecryptedVersion {
    /// `Err` is not the fault of the version.
    async fn open(folder: &Path, files: &Path, sealer: &Sealer) -> Result<Self, PreflightError> {
        if folder != files {
            // The owner's models have their files apart from their folder, and are never encrypted.
            return Ok(Self { folder: folder.to_owned(), files: files.to_owned(), sealed: None, _plain: None });
        }
        let postponed = |detail: String| PreflightError::Postponed(RollbackReason::new(RollbackCause::Disk, detail));
        let (home, sealer) = (folder.to_owned(), sealer.clone());
        let opening =
            tokio::task::spawn_blocking(move || EncryptedFolder::find_open(&home, EncryptionPurpose::Model, &sealer));
        let opening = opening.await.map_err(|panic| postponed(format!("decrypting its files panicked: {panic}")))?;
        let (found, plain) = opening.map_err(|error| postponed(error.to_string()))?;
        let path = plain.as_ref().map_or(folder, |plain| plain.path()).to_owned();
        Ok(Self { folder: path.clone(), files: path, sealed: found, _plain: plain })
    }
}

/// Time that runs took.
#[derive(Debug, Clone, Copy)]
struct TrialRunCost {
    time: Duration,
    /// CPU time of the process, all its threads together.
    cpu: Duration,
}

impl TrialRunCost {
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

struct Stopwatch<'t> {
    trial: &'t PreflightTrial,
    begun: Instant,
    cpu: Duration,
}

impl<'t> Stopwatch<'t> {
    fn start(trial: &'t PreflightTrial) -> Self {
        Self { trial, begun: Instant::now(), cpu: trial.cpu_time() }
    }

    fn elapsed(&self) -> TrialRunCost {
        TrialRunCost { time: self.begun.elapsed(), cpu: self.trial.cpu_time().saturating_sub(self.cpu) }
    }
}

/// Checks that a caller can get an answer at all: no caller waits longer than the model's own deadline. Judges by the
/// fastest run, because other work of the machine slows the rest.
fn within_deadline(fastest: Option<Duration>, deadline: Duration) -> Result<(), RollbackReason> {
    let Some(fastest) = fastest.filter(|fastest| *fastest > deadline) else { return Ok(()) };
    let (fastest, deadline) = (fastest.as_millis(), deadline.as_millis());
    let detail = format!(
        "its fastest run took {fastest} ms, and callers wait {deadline} ms (queue.default_timeout_ms of model.toml, else \
         serving.default_timeout_ms)"
    );
    Err(RollbackReason::new(RollbackCause::Latency, detail))
}

/// Returns true if the memory that a failed preflight may take was available, so that it needs more. Otherwise other
/// processes use the memory now, and may free it.
fn had_room(most: u64, resident: u64, available: Option<u64>) -> bool {
    available.is_none_or(|available| available >= most.saturating_sub(resident))
}

fn declared(ports: &[ModelPort]) -> Vec<DeclaredPort> {
    let port = |port: &ModelPort| DeclaredPort {
        name: port.name.clone(),
        datatype: port.datatype.to_string(),
        shape: port.shape.clone(),
    };
    ports.iter().map(port).collect()
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
        let spent = |time, cpu| TrialRunCost { time: ms(time), cpu: ms(cpu) };
        let in_time = |spent: TrialRunCost, cores| within_deadline(Some(spent.alone(cores)), ms(100)).is_ok();
        assert!(in_time(spent(10_000, 90), 1), "it ran for 90 ms in 10 s");
        assert!(!in_time(spent(10_000, 110), 1) && !in_time(spent(110, 110), 1));
        assert!(in_time(spent(10_000, 390), 4) && !in_time(spent(110, 440), 4));
        // Threads that spin while they wait for each other do not count.
        assert!(in_time(spent(90, 1_000), 4));
        assert!(spent(1, 1).of_each(0).is_none());
    }
}
