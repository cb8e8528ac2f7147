//! The children: the shared one of all models, and those of models that have one to themselves.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use ledge_base::sys;
use ledge_base::telemetry::process::{self, ResidentMemory};
use ledge_engine::Runtimes;
use ledge_engine::backend::{CompiledModelCache, LoadOptions, ModelFiles, ModelFormat, ModelLoadError, Runtime};
use ledge_engine::files::ModelFileFacts;
use ledge_engine::pipeline::kind::Pipeline;
use ledge_engine::pipeline::setup::PipelineSetup;
use ledge_engine::warm_up::WarmUp;
use ledge_sandbox::SandboxReport;
use ledge_service::limited_process::TRIAL_NICENESS;
use rustix::process::{Pid, setpriority_process};

use crate::child_settings::ChildSettings;
use crate::isolation_setting::Isolation;
use crate::own_folders::{ChildFolders, FILES, WRITTEN};
use crate::pipeline::RemotePipeline;
use crate::process::{Child, ChildEnd, ModelReadError, OnEnd};
use crate::remote::RemoteBackend;
use crate::staged_files::{StagedFileFolders, StagedFiles};
use crate::starter::ChildUser;
use crate::wire::{ChildLoadRequest, ChildSetup, JobChannelThread};
use crate::worker_process::{BoundPipelines, ChildPipelines, WorkerProcess};

/// The most attempts to read a file while its process ends for other reasons.
const READ_TRIES_MAX: usize = 4;

/// The end of a trial before its model was unloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrialProcessFailure {
    /// Its process could not be started, for this reason.
    NotStarted(String),
    Ended(ChildEnd),
}

/// The resources of one child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildUsage {
    /// The model and version that have it to themselves; `None` for the shared one.
    pub name: Option<String>,
    pub pid: u32,
    pub resident_bytes: u64,
    /// The most resident memory that it ever had.
    pub peak_bytes: u64,
    /// CPU time since its start.
    pub cpu: Duration,
}

/// A model to load in a child.
#[derive(Debug)]
pub struct ModelLoadRequest<'m> {
    /// The model and its version, by which its own child is found.
    pub name: &'m str,
    /// The libraries of its child: see [`Runtimes::with_library_in`].
    pub runtimes: &'m Runtimes,
    pub runtime: Runtime,
    pub files: &'m ModelFiles,
    /// True when the files may lie only in memory.
    pub is_secret: bool,
    /// Threads and instructions. The cache is the next field.
    pub options: &'m LoadOptions,
    /// The folder that keeps the compiled model between starts.
    pub cache: Option<&'m Path>,
    /// The cores that its runtime's threads may use.
    pub cores: &'m [usize],
    pub warm_up: Option<&'m WarmUp>,
    /// The time that a run may take before it counts as one that never ends.
    pub time_limit: Duration,
    /// The time that the load may take.
    pub load_limit: Duration,
}

/// The children of this process. Each is started when the first model needs it, and ends with its last model.
pub struct Children {
    settings: ChildSettings,
    channels: Vec<JobChannelThread>,
    on_end: OnEnd,
    homes: Mutex<Vec<KnownWorkerProcess>>,
    trial_end: Arc<OnceLock<TrialProcessFailure>>,
    pipelines: Arc<ChildPipelines>,
    /// The models with a file that crashed the process that read it. They are read in a separate process next time.
    unreadable: Mutex<HashSet<String>>,
}

/// Keeps the process that read a file, so that the load that follows finds it.
#[derive(Debug)]
pub struct KeptWorkerProcess {
    _home: Arc<WorkerProcess>,
}

/// A child that may have ended.
#[derive(Debug)]
struct KnownWorkerProcess {
    /// The model that has it to itself; the shared one has no name.
    name: Option<String>,
    worker: Weak<WorkerProcess>,
}

impl std::fmt::Debug for Children {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Children").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Children {
    /// Starts no child yet. Calls `on_end` for each child that ends before its models are unloaded.
    pub fn new(settings: ChildSettings, channels: Vec<JobChannelThread>, on_end: OnEnd) -> Self {
        let trial_end = Arc::<OnceLock<TrialProcessFailure>>::default();
        let on_end: OnEnd = if settings.is_trial {
            let end = trial_end.clone();
            Arc::new(move |child, ended| {
                let _ = end.set(TrialProcessFailure::Ended(ended.clone()));
                on_end(child, ended);
            })
        } else {
            on_end
        };
        let (homes, pipelines, unreadable) = (Mutex::default(), Arc::default(), Mutex::default());
        Self { settings, channels, on_end, homes, trial_end, pipelines, unreadable }
    }

    /// True for the trial of a version.
    pub fn is_trial(&self) -> bool {
        self.settings.is_trial
    }

    /// Lets the children wait for the threads that answer requests from now on.
    pub fn lower_priority(&self) {
        for (_, worker) in self.running() {
            // The kernel has a priority for each thread; new ones inherit it.
            let threads =
                std::fs::read_dir(format!("/proc/{}/task", worker.child.pid())).into_iter().flatten().flatten();
            let ids = threads.filter_map(|thread| Pid::from_raw(thread.file_name().to_str()?.parse().ok()?));
            for id in ids {
                // A thread that has ended needs none.
                let _ = setpriority_process(Some(id), TRIAL_NICENESS);
            }
        }
    }

    /// True when its children load a version for the first time, or are a trial.
    pub fn is_yielding(&self) -> bool {
        self.settings.is_yielding || self.settings.is_trial
    }

    /// The settings of children that load a version for the first time.
    pub fn yielding_settings(&self) -> ChildSettings {
        ChildSettings { is_yielding: true, ..self.settings.clone() }
    }

    /// The end of a trial before its model was unloaded; `None` while that has not happened.
    pub fn trial_end(&self) -> Option<TrialProcessFailure> {
        self.trial_end.get().cloned()
    }

    /// Ends every child now, for a reason that counts instead of the signal. No model is to blame.
    pub fn end_all(&self, reason: &str) {
        for (_, worker) in self.running() {
            worker.child.end(ChildEnd::by_us(reason.to_owned(), None));
        }
    }

    /// Loads the library of a runtime in a separate child, and returns its version or the reason why it does not load.
    /// Blocks meanwhile.
    pub fn version(&self, runtimes: &Runtimes, runtime: Runtime) -> Result<String, String> {
        let worker = self.worker(Some(runtime.to_string()), runtimes).map_err(|error| error.to_string())?;
        worker.child.open(self.pipelines.next_id(), runtime)
    }

    /// The pipeline of a model in a child; `proxy` is bound of the same setup.
    pub fn pipeline(&self, proxy: Arc<dyn Pipeline>, setup: PipelineSetup) -> Arc<dyn Pipeline> {
        Arc::new(RemotePipeline::new(&self.pipelines, proxy, setup))
    }

    /// Has a file of the model `name` read, in the child that the model runs in. Blocks until that is done.
    pub fn read(
        &self,
        isolation: Isolation,
        name: &str,
        runtimes: &Runtimes,
        format: ModelFormat,
        file: &File,
    ) -> Result<(ModelFileFacts, KeptWorkerProcess), ModelReadError> {
        let mut is_own = isolation == Isolation::Own || self.unreadable().contains(name);
        let mut tries = READ_TRIES_MAX;
        loop {
            tries -= 1;
            let worker = self.worker(is_own.then(|| name.to_owned()), runtimes);
            let worker = worker.map_err(|error| ModelReadError::NoProcess(error.to_string()))?;
            match worker.child.read(self.pipelines.next_id(), format, file) {
                Ok(facts) => {
                    self.unreadable().remove(name);
                    return Ok((facts, KeptWorkerProcess { _home: worker }));
                }
                // Caused by another file, which is read in another process next time.
                Err(ModelReadError::Interrupted { is_explained: true, .. }) => tries += 1,
                // Reading the file in a separate process shows whether it is the cause.
                Err(ModelReadError::Interrupted { .. }) if tries > 0 => is_own = true,
                Err(error @ (ModelReadError::Crashed(_) | ModelReadError::Interrupted { .. })) => {
                    self.unreadable().insert(name.to_owned());
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn unreadable(&self) -> MutexGuard<'_, HashSet<String>> {
        // Nothing panics under this lock.
        self.unreadable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads a model into a child: the shared one, or with [`Isolation::Own`] one that only its instances share. Also
    /// returns the memory that it takes there, in bytes. Blocks until that is done.
    pub fn load(
        &self,
        isolation: Isolation,
        order: &ModelLoadRequest<'_>,
    ) -> Result<(RemoteBackend, u64), ModelLoadError> {
        let refused = |error: io::Error| ModelLoadError::Refused { runtime: order.runtime, reason: error.to_string() };
        let own = (isolation == Isolation::Own).then(|| order.name.to_owned());
        let worker = self
            .worker(own, order.runtimes)
            .map_err(|error| ModelLoadError::NoProcess { runtime: order.runtime, reason: error.to_string() })?;
        let (mut stage, files, cache) = worker.stage(order, self.settings.starter.user()).map_err(refused)?;
        let model = self.pipelines.next_id();
        let load = ChildLoadRequest {
            model,
            runtime: order.runtime,
            files,
            options: LoadOptions { cache, ..order.options.clone() },
            cores: order.cores.to_vec(),
            warm_up: order.warm_up.cloned(),
        };
        let facts = worker.child.load(load, order.load_limit)?;
        if let Err(error) = stage.keep_compiled(facts.missed_cache) {
            tracing::warn!(model = order.name, %error, "the compiled model cannot be kept; the next start compiles it again");
        }
        let bytes = facts.bytes;
        Ok((RemoteBackend::new(worker, (model, order.runtime), facts, order.time_limit, stage), bytes))
    }

    /// The resources of each child that runs.
    pub fn usage(&self) -> Vec<ChildUsage> {
        let usage = |(name, worker): (Option<String>, Arc<WorkerProcess>)| {
            let ResidentMemory { bytes, peak_bytes } = worker.child.memory()?;
            let cpu = sys::process_cpu_time(worker.child.pid()).unwrap_or_default();
            Some(ChildUsage { name, pid: worker.child.pid(), resident_bytes: bytes, peak_bytes, cpu })
        };
        self.running().into_iter().filter_map(usage).collect()
    }

    /// The resident memory of the child that the model `name` has to itself, in bytes; `None` for one without.
    pub fn memory_of(&self, name: &str) -> Option<u64> {
        let is_own = |known: &&KnownWorkerProcess| known.name.as_deref() == Some(name);
        let worker = self.lock().iter().filter(is_own).find_map(|known| known.worker.upgrade())?;
        Some(worker.child.memory()?.bytes)
    }

    /// The reports of the running children about their sandboxes.
    pub fn sandboxes(&self) -> Vec<SandboxReport> {
        self.running().iter().filter_map(|(_, worker)| worker.child.sandbox().cloned()).collect()
    }

    fn running(&self) -> Vec<(Option<String>, Arc<WorkerProcess>)> {
        self.lock().iter().filter_map(|known| Some((known.name.clone(), known.worker.upgrade()?))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<KnownWorkerProcess>> {
        // Nothing panics under this lock.
        self.homes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The child of this name with these libraries, or a new one in place of one that has ended. A child with other
    /// libraries stays while it has models.
    fn worker(&self, name: Option<String>, runtimes: &Runtimes) -> io::Result<Arc<WorkerProcess>> {
        // Held during a start, so that two loads at a time do not start two.
        let mut homes = self.lock();
        homes.retain(|known| known.worker.strong_count() > 0);
        let of_name = homes.iter().filter(|known| known.name == name).filter_map(|known| known.worker.upgrade());
        let mut usable =
            of_name.filter(|worker| !worker.child.is_closed() && worker.runtimes.are_in_the_folders_of(runtimes));
        if let Some(worker) = usable.next() {
            return Ok(worker);
        }
        drop(usable);
        if self.trial_end.get().is_some() {
            return Err(io::Error::other("the trial has ended"));
        }
        let worker = self.start(runtimes).inspect_err(|error| {
            if self.settings.is_trial {
                let _ = self.trial_end.set(TrialProcessFailure::NotStarted(error.to_string()));
            }
        })?;
        let worker = Arc::new(worker);
        homes.push(KnownWorkerProcess { name, worker: Arc::downgrade(&worker) });
        Ok(worker)
    }

    fn start(&self, runtimes: &Runtimes) -> io::Result<WorkerProcess> {
        let folders = ChildFolders::create(&self.settings)?;
        let setup = ChildSetup {
            channels: self.channels.clone(),
            runtimes: runtimes.folder().to_owned(),
            own_folders: runtimes.own_folders(),
            readable: folders.all().map(|folder| folder.join(FILES)).collect(),
            writable: folders.all().map(|folder| folder.join(WRITTEN)).collect(),
            memory_bytes: self.settings.memory_bytes,
            content_bytes: self.settings.content_bytes,
            is_trial: self.settings.is_trial,
            ends_first: self.is_yielding(),
        };
        let child = Child::start(&self.settings.starter, &setup, self.on_end.clone())?;
        let (runtimes, bound, pipelines) = (runtimes.clone(), BoundPipelines::default(), self.pipelines.clone());
        Ok(WorkerProcess { child, runtimes, bound, pipelines, folders, next_stage: AtomicU64::new(1) })
    }
}

/// Removes the folders of processes that were killed, and those of this one from before its restart. To be called
/// before a child is started.
pub fn remove_leftovers(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.split('-').next().and_then(|pid| pid.parse::<u32>().ok());
        if !pid.is_some_and(|pid| pid != std::process::id() && process::is_alive(pid)) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

impl WorkerProcess {
    /// Lays out the files of an instance, in memory if they are secret or the disk cannot be written any more.
    fn stage(
        &self,
        order: &ModelLoadRequest<'_>,
        user: Option<ChildUser>,
    ) -> io::Result<(StagedFiles, ModelFiles, CompiledModelCache)> {
        let name = self.next_stage.fetch_add(1, Ordering::Relaxed).to_string();
        let mut failed = None;
        for folder in self.folders.allowed(order.is_secret) {
            let folders =
                StagedFileFolders { files: folder.join(FILES).join(&name), written: folder.join(WRITTEN).join(&name) };
            match StagedFiles::new(folders, order.files, order.cache, user) {
                Ok(staged) => return Ok(staged),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let no_memory = || io::Error::other("encrypted models need a folder in memory (tmpfs), and there is none");
        Err(failed.unwrap_or_else(no_memory))
    }
}
