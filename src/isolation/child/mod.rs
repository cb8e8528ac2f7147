//! The process that runs models, from inside: `ledge runtime`. It enters its sandbox before anything else. It has a
//! thread for each core that models run on, asleep until its channel has a job, and one that executes orders. It ends
//! with its socket.

pub mod crash;
#[cfg(feature = "fault-injection")]
pub mod faults;
mod idle_memory;
mod jobs;
mod models;
mod reading;
mod running;
mod threads;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use ledge_base::sys;
use ledge_engine::backend::Runtime;
use ledge_engine::{Runtimes, cores};
use ledge_sandbox::{BACKGROUND_NICENESS, Sandbox, SandboxLimits};
use ledge_service::limited_process::{self, FIRST_WITHOUT_MEMORY, TRIAL_NICENESS};
use rustix::process::{Signal, setpriority_process};

use self::crash::ThreadWork;
use self::models::ChildModels;
use self::running::RunningJobs;
use crate::channel::{self, MESSAGE_BYTES_MAX};
use crate::heartbeat;
use crate::job_channel::JobChannel;
use crate::shared_memory::SharedMemory;
use crate::staged_files::COMPILED_BYTES_MAX;
use crate::wire::{ChildMessage, ChildRequest, ChildSetup};
use threads::{EndOnPanic, complain};

/// The most open files: libraries, and files of models that are mapped.
const OPEN_FILES_MAX: u64 = 4096;

/// The most threads of this process, and of the runtimes for each core that models use.
const THREADS_MAX: u64 = 64;
const THREADS_PER_CORE: u64 = 16;

/// The place of this process among those that the kernel ends when memory is short: see `oom_score_adj` in proc(5).
const MEMORY_SCORE: u16 = 500;

/// Reasons why the process does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("`ledge runtime` is started by the daemon, with a socket as standard input: {0}")]
    Socket(io::Error),
    #[error("cannot map the memory of a job channel: {0}")]
    Memory(io::Error),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Serves the daemon at the other end of standard input until it hangs up. To be called while there is one thread.
/// Returns only errors.
pub fn run() -> Result<(), ChildError> {
    sys::close_other_files();
    let socket = UnixStream::from(own_input().map_err(ChildError::Socket)?);
    let setup: Option<ChildSetup> = channel::receive(&socket, MESSAGE_BYTES_MAX).map_err(ChildError::Socket)?;
    let Some(setup) = setup else { return Ok(()) };
    // Read from the kernel once: a sandboxed process of an ordinary user cannot open /proc/self/auxv.
    let _ = rustix::param::page_size();
    yield_to_others(&setup);
    sys::limit_heaps(setup.channels.len().max(2));
    let runtimes = Runtimes::with_own_folders(setup.runtimes.clone(), &setup.own_folders);
    let sandbox = sandbox(&setup, &runtimes);
    #[cfg(feature = "fault-injection")]
    faults::before_the_sandbox(&setup, &sandbox);
    let statm = crash::open_memory().ok();
    let sandbox = sandbox.apply();
    channel::send(&socket, &ChildMessage::Sandboxed(sandbox)).map_err(ChildError::Socket)?;
    let report = channel::receive_file(&socket).map_err(ChildError::Socket)?;
    crash::report_to(SharedMemory::map(&report, crash::LENGTH).map_err(ChildError::Memory)?, statm);
    let _prepared = crash::prepare();
    let mut channels = Vec::with_capacity(setup.channels.len());
    for _ in &setup.channels {
        let file = channel::receive_file(&socket).map_err(ChildError::Socket)?;
        channels.push(JobChannel::new(SharedMemory::map(&file, JobChannel::LENGTH).map_err(ChildError::Memory)?));
    }

    let models = Arc::new(ChildModels::new(runtimes, setup.content_bytes));
    let running = Arc::new(RunningJobs::new(channels.len()));
    let cores: Vec<usize> = setup.channels.iter().map(|place| place.core).collect();
    for (index, (channel, place)) in channels.into_iter().zip(setup.channels.clone()).enumerate() {
        let (models, running, cores) = (models.clone(), running.clone(), cores.clone());
        // A trial has a lower priority already.
        let gives_way = place.is_background && !setup.is_trial;
        let serve = move || {
            let _prepared = crash::prepare();
            if gives_way {
                let _ = setpriority_process(None, BACKGROUND_NICENESS);
            }
            jobs::serve(&channel, index, place.core, &cores, &models, &running);
        };
        let tier = if place.is_background { "back" } else { "core" };
        let thread = std::thread::Builder::new().name(format!("infer-{tier}-{}", place.core));
        thread.spawn(serve).map_err(ChildError::Thread)?;
    }
    let own = models.clone();
    let releases = move || {
        let _end = EndOnPanic;
        let _prepared = crash::prepare();
        // No caller waits for this thread.
        let _ = setpriority_process(None, BACKGROUND_NICENESS);
        own.release_idle_memory()
    };
    std::thread::Builder::new().name("memory".to_owned()).spawn(releases).map_err(ChildError::Thread)?;
    if let Some(report) = crash::report() {
        let thread = std::thread::Builder::new().name("heartbeat".to_owned());
        thread.spawn(|| heartbeat::answer(report)).map_err(ChildError::Thread)?;
    }
    obey(&Arc::new(socket), &models, &running);
    end()
}

/// Lets the kernel end this process before the daemon when memory is short, or before all others. A trial also waits
/// for the threads that answer requests.
fn yield_to_others(setup: &ChildSetup) {
    limited_process::go_first_without_memory(if setup.ends_first { FIRST_WITHOUT_MEMORY } else { MEMORY_SCORE });
    if setup.is_trial {
        let _ = rustix::process::nice(TRIAL_NICENESS);
    }
}

/// The sandbox of this process: it may read the runtimes and the files of models, and write compiled models.
fn sandbox(setup: &ChildSetup, runtimes: &Runtimes) -> Sandbox {
    // Background threads need no threads of a runtime in addition to those of the foreground.
    let foreground = setup.channels.iter().filter(|place| !place.is_background).count();
    let folders = std::iter::once(&setup.runtimes).chain(setup.own_folders.values()).chain(&setup.readable).cloned();
    // A library may be a link: the files that it needs are next to the target.
    let beside = |runtime| Some(runtimes.library(runtime).ok()?.canonicalize().ok()?.parent()?.to_owned());
    Sandbox {
        readable: folders.chain(Runtime::ALL.into_iter().filter_map(beside)).collect(),
        writable: setup.writable.clone(),
        system_files: true,
        limits: SandboxLimits {
            data_bytes: setup.memory_bytes.unwrap_or(u64::MAX),
            open_files: OPEN_FILES_MAX,
            file_bytes: COMPILED_BYTES_MAX,
            threads: THREADS_MAX + THREADS_PER_CORE * foreground as u64,
        },
    }
}

/// Standard input under another number, so that nothing reads the socket by accident.
fn own_input() -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?)
}

/// Obeys orders until the daemon hangs up.
fn obey(socket: &Arc<UnixStream>, models: &Arc<ChildModels>, running: &RunningJobs) {
    while let Ok(Some(order)) = channel::receive::<ChildRequest>(socket, MESSAGE_BYTES_MAX) {
        let own = models.clone();
        let obeyed = match order {
            ChildRequest::Open(number, runtime) => {
                in_background(number, socket, move || ChildMessage::Opened(number, own.version(runtime)))
            }
            ChildRequest::Load(order) => in_background(order.model, socket, move || {
                // The runtime's own threads inherit the cores of the thread that loads.
                let _ = cores::pin(&order.cores);
                ChildMessage::Loaded(order.model, own.load(&order))
            }),
            ChildRequest::Bind(id, setup) => {
                in_background(id, socket, move || ChildMessage::Bound(id, own.bind(id, &setup)))
            }
            ChildRequest::Unload(model) => {
                models.remove(model);
                sys::return_free_memory();
                Ok(())
            }
            ChildRequest::Unbind(pipeline) => {
                models.unbind(pipeline);
                Ok(())
            }
            ChildRequest::ReleaseLease(pipeline, lease) => {
                if let Some(pipeline) = models.pipeline(pipeline) {
                    pipeline.release(lease);
                }
                Ok(())
            }
            ChildRequest::Cancel { channel, job } => {
                running.cancel(channel, job);
                Ok(())
            }
            ChildRequest::Read(number, format) => channel::receive_file(socket).and_then(|file| {
                in_background(number, socket, move || ChildMessage::Read(number, reading::read(format, &file.into())))
            }),
        };
        if let Err(error) = obeyed {
            complain(format_args!("cannot handle request: {error}"));
            return;
        }
    }
}

/// Executes a long order on a separate thread, and sends its result.
fn in_background(
    number: u64,
    socket: &Arc<UnixStream>,
    work: impl FnOnce() -> ChildMessage + Send + 'static,
) -> io::Result<()> {
    let socket = socket.clone();
    let work = move || {
        let _end = EndOnPanic;
        let _prepared = crash::prepare();
        crash::works_at(ThreadWork::Load(number));
        // When the daemon hung up, the main thread ends the process.
        let _ = channel::send(&socket, &work());
    };
    std::thread::Builder::new().name("infer-load".to_owned()).spawn(work).map(drop)
}

/// Ends this process at once. Destructors of a runtime crash while a model is loaded, so none is run.
fn end() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    std::process::abort()
}
