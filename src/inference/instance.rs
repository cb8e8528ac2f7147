//! The threads that run a model: each loads its own backend and takes jobs from the model's queue.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use super::Runtimes;
use super::backend::{Backend, LoadError, LoadOptions, ModelFiles, RunError, RunResult, Runtime, Signature};
use super::queue::{Full, Job, Queue, Reply};
use super::terms::Terms;
use crate::tensor::Tensor;

/// Why a run gave no tensors.
#[derive(Debug, thiserror::Error)]
pub enum InferError {
    /// The queue is full.
    #[error("the queue is full ({depth} waiting)")]
    Overloaded {
        /// How many were waiting.
        depth: usize,
    },
    /// The deadline passed, in the queue or during the run.
    #[error("the deadline passed after {waited:?}")]
    DeadlineExceeded {
        /// Time since the call was queued.
        waited: Duration,
    },
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// A finished run.
#[derive(Debug)]
pub struct Answer {
    /// The outputs and the time they took.
    pub run: RunResult,
    /// Time in the queue.
    pub queue: Duration,
}

/// The instances of one version of a model, and their queue. Dropping it ends the threads, which frees the model.
#[derive(Debug)]
pub struct Instances {
    queue: Arc<Queue>,
    runtime: Runtime,
    signature: Signature,
    count: usize,
    threads: Arc<watch::Sender<()>>,
}

impl Instances {
    /// Starts `count` threads, each with its own copy of the model, and waits until all have loaded it.
    pub async fn start(
        name: &str,
        count: usize,
        queue_limit: usize,
        runtimes: &Runtimes,
        runtime: Runtime,
        files: &ModelFiles,
        options: &LoadOptions,
    ) -> Result<Self, LoadError> {
        let refused = |reason: String| LoadError::Refused { runtime, reason };
        // Made first: when a later thread fails to load, dropping this ends the earlier ones.
        let mut instances = Self {
            queue: Arc::new(Queue::new(queue_limit)),
            runtime,
            signature: Signature::default(),
            count,
            threads: Arc::default(),
        };
        for index in 0..count {
            let (loaded, outcome) = oneshot::channel();
            let (runtimes, files, options) = (runtimes.clone(), files.clone(), options.clone());
            let (queue, alive) = (instances.queue.clone(), instances.threads.subscribe());
            std::thread::Builder::new()
                // Linux shows 15 bytes of it.
                .name(format!("infer-{name}-{index}"))
                .spawn(move || {
                    let _alive = alive;
                    let load = || runtimes.load(runtime, &files, &options);
                    let backend = catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|panic| {
                        Err(LoadError::Refused { runtime, reason: format!("panicked: {}", panic_message(&*panic)) })
                    });
                    match backend {
                        Ok(mut backend) => {
                            if loaded.send(Ok(backend.signature().clone())).is_ok() {
                                serve(&queue, &mut *backend);
                            }
                        }
                        Err(error) => drop(loaded.send(Err(error))),
                    }
                })
                .map_err(|error| refused(format!("no thread could be started: {error}")))?;
            // One after the other: the second load finds the compiled model in the cache.
            instances.signature = outcome.await.map_err(|_| refused("the loading thread died".to_owned()))??;
        }
        Ok(instances)
    }

    /// The runtime that runs the model.
    pub fn runtime(&self) -> Runtime {
        self.runtime
    }

    /// What the model takes and gives.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// How many instances there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// How many jobs wait.
    pub fn queue_depth(&self) -> usize {
        self.queue.depth()
    }

    /// A future that ends when every thread has ended and the model's memory is given back.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let threads = self.threads.clone();
        async move { threads.closed().await }
    }

    /// Runs the model once. The inputs are in the signature's order and fit it.
    pub async fn run(&self, inputs: Vec<Tensor>, outputs: Vec<usize>, terms: Terms) -> Result<Answer, InferError> {
        let deadline = terms.deadline;
        let queued = Instant::now();
        let (reply, answer) = oneshot::channel();
        self.queue
            .offer(Job { inputs, outputs, deadline, reply })
            .map_err(|Full { depth }| InferError::Overloaded { depth })?;
        match tokio::time::timeout_at(deadline.into(), answer).await {
            Ok(Ok(Reply { result, started })) => Ok(Answer { run: result?, queue: started.duration_since(queued) }),
            // The queue drops a job unanswered only when its deadline passed.
            Ok(Err(_)) | Err(_) => Err(InferError::DeadlineExceeded { waited: queued.elapsed() }),
        }
    }
}

impl Drop for Instances {
    fn drop(&mut self) {
        self.queue.close();
    }
}

fn serve(queue: &Queue, backend: &mut dyn Backend) {
    while let Some(job) = queue.take() {
        let started = Instant::now();
        let run = || backend.run(&job.inputs, &job.outputs);
        let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            Err(RunError::Runtime {
                runtime: backend.runtime(),
                reason: format!("panicked: {}", panic_message(&*panic)),
            })
        });
        // The caller may have left meanwhile.
        let _ = job.reply.send(Reply { result, started });
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}
