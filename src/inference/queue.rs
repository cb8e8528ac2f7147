//! The bounded queue before a model's instances.
//!
//! Callers never wait to get in: a full queue is an answer. A job whose caller left or whose deadline passed is
//! dropped when its turn comes, before any work is done for it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

use super::backend::{RunError, RunResult};
use crate::tensor::Tensor;

/// One run of a model, waiting for an instance.
#[derive(Debug)]
pub struct Job {
    /// Inputs in the signature's order; they fit it.
    pub inputs: Vec<Tensor>,
    /// Indices of the outputs wanted.
    pub outputs: Vec<usize>,
    /// When the caller stops caring.
    pub deadline: Instant,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Reply>,
}

/// What an instance answers.
#[derive(Debug)]
pub struct Reply {
    /// The run's result.
    pub result: Result<RunResult, RunError>,
    /// When an instance took the job.
    pub started: Instant,
}

/// The queue is full; the job comes back.
#[derive(Debug)]
pub struct Full {
    /// How many were waiting.
    pub depth: usize,
}

/// A bounded queue that many threads take from.
#[derive(Debug)]
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    limit: usize,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Queue {
    /// A queue for at most `limit` waiting jobs.
    pub fn new(limit: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), limit }
    }

    /// Adds a job, or says at once that the queue is full.
    pub fn offer(&self, job: Job) -> Result<(), Full> {
        let mut state = self.lock();
        if state.jobs.len() >= self.limit {
            // Those whose callers left must not keep others out.
            state.jobs.retain(|job| !job.reply.is_closed());
            if state.jobs.len() >= self.limit {
                return Err(Full { depth: state.jobs.len() });
            }
        }
        state.jobs.push_back(job);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Waits for the next job whose caller still wants it. `None` once the queue is closed and empty.
    pub fn take(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            while let Some(job) = state.jobs.pop_front() {
                if !job.reply.is_closed() && Instant::now() < job.deadline {
                    return Some(job);
                }
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets the takers end once the queue is empty.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// How many jobs wait.
    pub fn depth(&self) -> usize {
        self.lock().jobs.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics under this lock; a poisoned one still holds a sound queue.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn job(deadline: Duration) -> (Job, oneshot::Receiver<Reply>) {
        let (reply, receiver) = oneshot::channel();
        (Job { inputs: vec![], outputs: vec![], deadline: Instant::now() + deadline, reply }, receiver)
    }

    const LONG: Duration = Duration::from_mins(10);

    #[test]
    fn a_full_queue_refuses_at_once_and_says_how_deep_it_is() {
        let queue = Queue::new(2);
        let kept: Vec<_> = (0..2)
            .map(|_| {
                let (job, receiver) = job(LONG);
                queue.offer(job).unwrap();
                receiver
            })
            .collect();
        assert_eq!(queue.offer(job(LONG).0).unwrap_err().depth, 2);
        assert_eq!((queue.depth(), kept.len()), (2, 2));
    }

    #[test]
    fn callers_that_left_make_room_and_are_never_run() {
        let queue = Queue::new(2);
        let (first, left) = job(LONG);
        let (second, stayed) = job(LONG);
        queue.offer(first).unwrap();
        queue.offer(second).unwrap();
        drop(left);
        let (third, waits) = job(LONG);
        queue.offer(third).unwrap();
        queue.close();
        let served = std::iter::from_fn(|| queue.take()).count();
        assert_eq!(served, 2);
        drop((stayed, waits));
    }

    #[test]
    fn a_job_past_its_deadline_is_dropped_unrun() {
        let queue = Queue::new(2);
        let (late, mut receiver) = job(Duration::ZERO);
        queue.offer(late).unwrap();
        queue.close();
        assert!(queue.take().is_none());
        assert_eq!(receiver.try_recv().unwrap_err(), oneshot::error::TryRecvError::Closed);
    }
}
