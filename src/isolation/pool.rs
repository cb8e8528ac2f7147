//! The children: the shared one of all models, and those of models that have one to themselves.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ledge_base::sys;
use ledge_base::telemetry::process;
use ledge_engine::Runtimes;
use ledge_engine::backend::{Format, LoadError, LoadOptions, ModelFiles, Runtime};
use ledge_engine::files::FileFacts;
use ledge_engine::pipeline::kind::Pipeline;
use ledge_engine::pipeline::setup::PipelineSetup;
use ledge_engine::warm_up::WarmUp;
use serde::{Deserialize, Serialize};

use crate::pipeline::{Bound, Pipelines, RemotePipeline};
use crate::process::{Child, OnEnd, ReadError};
use crate::remote::RemoteBackend;
use crate::stage::{Stage, StageFolders};
use crate::starter::Starter;
use crate::wire::{LoadOrder, Setup};

/// The folder within that of a child which it may read.
const FILES: &str = "files";
/// The folder within that of a child in which it may also write.
const WRITTEN: &str = "written";

/// The most times that a file is read whose process ended meanwhile for another reason.
const READ_TRIES_MAX: usize = 4;

/// Where a model runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// In the daemon itself.
    #[default]
    None,
    /// In a sealed process, together with other models.
    Process,
    /// In a sealed process of its own.
    Own,
}

/// The settings of all children.
#[derive(Debug, Clone)]
pub struct ChildSettings {
    /// Starts each of them.
    pub starter: Starter,
    /// True when this process may not write code, so that OpenVINO can load a model only in a child.
    pub is_code_denied: bool,
    /// The folder in which each child gets one of its own.
    pub folder: PathBuf,
    /// The same on a file system in memory, for models that are encrypted on the disk; `None` where there is none.
    pub memory_folder: Option<PathBuf>,
    /// The most memory that each may reserve, in bytes.
    pub memory_bytes: Option<u64>,
    /// The most memory of what each makes of the content of calls, in bytes.
    pub content_bytes: usize,
}

/// The resources of one child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildUsage {
    /// The model and version that have it to themselves; `None` for the shared one.
    pub name: Option<String>,
    pub resident_bytes: u64,
    /// CPU time since its start.
    pub cpu: Duration,
}

/// A model to load in a child.
#[derive(Debug)]
pub struct ModelOrder<'m> {
    /// The model and its version, by which its own child is found.
    pub name: &'m str,
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
}

/// The children of this process. Each is started when the first model needs it, and ends with its last model.
pub struct Children {
    settings: ChildSettings,
    runtimes: Runtimes,
    /// The cores that models run on.
    cores: Vec<usize>,
    on_end: OnEnd,
    /// By the model that has one to itself; the shared one has no name.
    homes: Mutex<HashMap<Option<String>, Weak<Home>>>,
    next_folder: AtomicU64,
    pipelines: Arc<Pipelines>,
    /// The models one of whose files ended the process that read it. The next reading is in a process of its own.
    unreadable: Mutex<HashSet<String>>,
}

/// Keeps the process that read a file, so that the load that follows finds it.
#[derive(Debug)]
pub struct KeptChild {
    _home: Arc<Home>,
}

impl std::fmt::Debug for Children {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Children").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// A child, and the folders that it may read.
#[derive(Debug)]
pub(crate) struct Home {
    pub child: Child,
    pub bound: Bound,
    pub pipelines: Arc<Pipelines>,
    folders: Vec<PathBuf>,
    next_stage: AtomicU64,
}

impl Drop for Home {
    fn drop(&mut self) {
        for folder in &self.folders {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

impl Children {
    /// No child is started yet. `on_end` is told of each that ends before its models.
    pub fn new(settings: ChildSettings, runtimes: Runtimes, cores: Vec<usize>, on_end: OnEnd) -> Self {
        let (homes, next_folder) = (Mutex::default(), AtomicU64::new(1));
        let (pipelines, unreadable) = (Arc::default(), Mutex::default());
        Self { settings, runtimes, cores, on_end, homes, next_folder, pipelines, unreadable }
    }

    /// True when the runtime can load a model only in a child.
    pub fn needs_child(&self, runtime: Runtime) -> bool {
        self.settings.is_code_denied && runtime == Runtime::OpenVino
    }

    /// The pipeline of a model in a child; `twin` is bound of the same setup.
    pub fn pipeline(&self, twin: Arc<dyn Pipeline>, setup: PipelineSetup) -> Arc<dyn Pipeline> {
        Arc::new(RemotePipeline::new(&self.pipelines, twin, setup))
    }

    /// Has a file of the model `name` read, in the child that the model runs in. Blocks until that is done.
    pub fn read(
        &self,
        isolation: Isolation,
        name: &str,
        format: Format,
        file: &File,
    ) -> Result<(FileFacts, KeptChild), ReadError> {
        let mut is_own = isolation == Isolation::Own || self.unreadable().contains(name);
        let mut tries = READ_TRIES_MAX;
        loop {
            tries -= 1;
            let home = self.home(is_own.then(|| name.to_owned()));
            let home = home.map_err(|error| ReadError::NoProcess(error.to_string()))?;
            match home.child.read(self.pipelines.next_id(), format, file) {
                Ok(facts) => {
                    self.unreadable().remove(name);
                    return Ok((facts, KeptChild { _home: home }));
                }
                // A fault of another file, whose next reading is elsewhere.
                Err(ReadError::Interrupted { is_explained: true, .. }) => tries += 1,
                // In a process of its own this shows if it is the cause.
                Err(ReadError::Interrupted { .. }) if tries > 0 => is_own = true,
                Err(error @ (ReadError::Crashed(_) | ReadError::Interrupted { .. })) => {
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
    pub fn load(&self, isolation: Isolation, order: &ModelOrder<'_>) -> Result<(RemoteBackend, u64), LoadError> {
        let refused = |error: io::Error| LoadError::Refused { runtime: order.runtime, reason: error.to_string() };
        let own = (isolation == Isolation::Own).then(|| order.name.to_owned());
        let home = self.home(own).map_err(|error| LoadError::Refused {
            runtime: order.runtime,
            reason: format!("its process cannot be started: {error}"),
        })?;
        let folders = home.stage_folders(order.is_secret).map_err(refused)?;
        let (mut stage, files, cache) = Stage::new(folders, order.files, order.cache).map_err(refused)?;
        let model = self.pipelines.next_id();
        let facts = home.child.load(LoadOrder {
            model,
            runtime: order.runtime,
            files,
            options: LoadOptions { cache, ..order.options.clone() },
            cores: order.cores.to_vec(),
            warm_up: order.warm_up.cloned(),
        })?;
        if let Err(error) = stage.keep_compiled() {
            tracing::warn!(model = order.name, %error, "the compiled model cannot be kept; the next start compiles it again");
        }
        let bytes = facts.bytes;
        Ok((RemoteBackend::new(home, (model, order.runtime), facts, order.time_limit, stage), bytes))
    }

    /// The resources of each child that runs.
    pub fn usage(&self) -> Vec<ChildUsage> {
        let running: Vec<_> =
            self.lock().iter().filter_map(|(name, home)| Some((name.clone(), home.upgrade()?))).collect();
        let usage = |(name, home): (Option<String>, Arc<Home>)| {
            let pid = home.child.pid();
            Some(ChildUsage {
                name,
                resident_bytes: process::resident_bytes_of(pid)?,
                cpu: sys::process_cpu_time(pid).unwrap_or_default(),
            })
        };
        running.into_iter().filter_map(usage).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Option<String>, Weak<Home>>> {
        // Nothing panics under this lock.
        self.homes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The child of this name, or a new one in place of one that has ended.
    fn home(&self, name: Option<String>) -> io::Result<Arc<Home>> {
        // Held during a start, so that two loads at a time do not start two.
        let mut homes = self.lock();
        homes.retain(|_, home| home.strong_count() > 0);
        let running = homes.get(&name).and_then(Weak::upgrade);
        if let Some(home) = running.filter(|home| !home.child.is_closed()) {
            return Ok(home);
        }
        let home = Arc::new(self.start()?);
        homes.insert(name, Arc::downgrade(&home));
        Ok(home)
    }

    fn start(&self) -> io::Result<Home> {
        let own = format!("{}-{}", std::process::id(), self.next_folder.fetch_add(1, Ordering::Relaxed));
        let places = std::iter::once(&self.settings.folder).chain(&self.settings.memory_folder);
        let mut folders = Vec::new();
        for place in places {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(place)?;
            let folder = place.join(&own);
            std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
            let folder = folder.canonicalize()?;
            for part in [FILES, WRITTEN] {
                std::fs::DirBuilder::new().mode(0o700).create(folder.join(part))?;
            }
            folders.push(folder);
        }
        let setup = Setup {
            cores: self.cores.clone(),
            runtimes: self.runtimes.folder().to_owned(),
            own_folders: self.runtimes.own_folders(),
            readable: folders.iter().map(|folder| folder.join(FILES)).collect(),
            writable: folders.iter().map(|folder| folder.join(WRITTEN)).collect(),
            memory_bytes: self.settings.memory_bytes,
            content_bytes: self.settings.content_bytes,
        };
        let started = Child::start(&self.settings.starter, &setup, self.on_end.clone());
        match started {
            Ok(child) => {
                let (bound, pipelines) = (Bound::default(), self.pipelines.clone());
                Ok(Home { child, bound, pipelines, folders, next_stage: AtomicU64::new(1) })
            }
            Err(error) => {
                for folder in &folders {
                    let _ = std::fs::remove_dir_all(folder);
                }
                Err(error)
            }
        }
    }
}

impl Home {
    /// New paths for the files of an instance.
    fn stage_folders(&self, is_secret: bool) -> io::Result<StageFolders> {
        let no_memory = || io::Error::other("encrypted models need a folder in memory (tmpfs), and there is none");
        let folder = if is_secret {
            self.folders.get(1).ok_or_else(no_memory)?
        } else {
            self.folders.first().ok_or_else(no_memory)?
        };
        let name = self.next_stage.fetch_add(1, Ordering::Relaxed).to_string();
        Ok(StageFolders { files: folder.join(FILES).join(&name), written: folder.join(WRITTEN).join(&name) })
    }
}

/// Removes the folders of processes that were killed, and those of this one from before its restart. To be called before a
/// child is started.
pub fn remove_leftovers(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.split('-').next().and_then(|pid| pid.parse::<u32>().ok());
        if !pid.is_some_and(|pid| pid != std::process::id() && process::is_alive(pid)) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
