//! Chains: pipelines that run several models, with state between their steps.
//!
//! A chain works in two places. In the process of the caller, [`ModelChain::run`] chooses the next model by the results
//! of the steps before, and makes the results. In the process of the models, [`ModelChain::prepare`] makes the input of
//! a step, and keeps the state that later steps need in [`LeasedStates`]. A step and its result are plain data.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use ledge_base::memory_budget::{MemoryAccount, MemoryBudgetExhausted};
use ledge_base::tensor::Tensor;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::content::CallContent;
use super::error::{PostprocessError, PreprocessError};
use super::image::DecodeLimits;
use super::prepared_inputs::PreprocessedInputs;
use crate::backend::ModelSignature;

/// The most bytes of the result of a step.
const RESULT_BYTES_MAX: usize = 16 << 20;

/// The part of a pipeline that runs several models.
pub trait ModelChain: fmt::Debug + Send + Sync {
    /// The inputs and outputs that callers see. The outputs are the results of [`Self::run`].
    fn signature(&self) -> ModelSignature;

    /// Answers one content by steps, which `steps` runs.
    fn run<'c>(
        &'c self,
        content: CallContent,
        limits: DecodeLimits,
        steps: &'c dyn RunSteps,
    ) -> BoxFuture<'c, Result<Vec<Tensor>, ChainError>>;

    /// The memory in bytes that [`Self::prepare`] and the run of the step take besides the bytes of the step. The
    /// daemon reserves it when another process does the step.
    fn memory_of(&self, step: &ChainStep) -> usize;

    /// Makes the input of a step, and the function that makes its result from the outputs; see [`prepared`]. Called on
    /// a worker's core. The state that is kept, and the input, count in `account`.
    fn prepare(&self, step: &ChainStep, account: &MemoryAccount) -> Result<PreprocessedInputs, PreprocessError>;

    /// Frees the state of this lease. Called once the call and all of its steps have dropped the lease.
    fn release(&self, lease: LeaseId);
}

/// The means by which a chain runs its steps, for one call.
pub trait RunSteps: Send + Sync {
    /// A lease for a state that does not exist yet.
    fn lease(&self) -> Lease;

    /// Runs the model of that name. Chains call [`run_step`] instead, which knows the types.
    fn run(&self, model: &'static str, step: ChainStep) -> BoxFuture<'_, Result<Vec<Tensor>, ChainError>>;

    /// The number of steps that are of use at one time.
    fn at_a_time(&self) -> usize;

    /// Pays for the memory of the call.
    fn account(&self) -> &MemoryAccount;

    /// The time after which the caller no longer waits for the answer.
    fn deadline(&self) -> Instant;

    /// Adds time on the clock in which the call waited for something other than a model, by the name of that stage.
    fn waited(&self, stage: &'static str, time: Duration);
}

/// The reason why a chain has no results.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    #[error(transparent)]
    Input(#[from] PreprocessError),
    /// The outputs of a model, or the results of its steps, become no results.
    #[error(transparent)]
    Outputs(#[from] PostprocessError),
    #[error("the deadline passed")]
    Deadline,
    /// A step did not run. Only the one that runs the steps knows this error.
    #[error("a step did not run: {0}")]
    Step(Box<dyn std::error::Error + Send + Sync>),
}

impl From<MemoryBudgetExhausted> for ChainError {
    fn from(error: MemoryBudgetExhausted) -> Self {
        Self::Input(error.into())
    }
}

/// A step of a chain: the input of one run of one model. A step can be run again with the same result. Clones share the
/// bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct ChainStep {
    pub lease: Lease,
    /// The work that the model is to do, in the encoding of [`Self::task`].
    pub task: Bytes,
    /// Data of the task that is too large for a message.
    pub bytes: Option<Bytes>,
    /// The rows of its run.
    pub rows: usize,
}

impl ChainStep {
    pub fn new(
        lease: &Lease,
        task: &impl Serialize,
        bytes: Option<Bytes>,
        rows: usize,
    ) -> Result<Self, PostprocessError> {
        let task = postcard::to_stdvec(task).map_err(|error| refused(&error.to_string()))?;
        Ok(Self { lease: lease.clone(), task: task.into(), bytes, rows })
    }

    /// The task, as it was before it was encoded.
    pub fn task<T: DeserializeOwned>(&self) -> Result<T, PreprocessError> {
        let wrong = |reason: &str| PreprocessError::Content(format!("the task of a step cannot be read: {reason}"));
        match postcard::take_from_bytes(&self.task) {
            Ok((task, [])) => Ok(task),
            Ok((_, rest)) => Err(wrong(&format!("{} bytes follow it", rest.len()))),
            Err(error) => Err(wrong(&error.to_string())),
        }
    }
}

/// The name of a lease among all leases at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct LeaseId(u64);

/// The right to a state that steps of a call share. The state is freed when the call and all of its steps have dropped
/// the lease. In the process of the models a lease owns nothing.
#[derive(Debug, Clone)]
pub struct Lease {
    id: LeaseId,
    _owner: Option<Arc<LeaseOwner>>,
}

struct LeaseOwner {
    id: LeaseId,
    release: Box<dyn Fn(LeaseId) + Send + Sync>,
}

impl fmt::Debug for LeaseOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseOwner").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Lease {
    /// A lease for a state that `release` frees.
    pub fn new(release: impl Fn(LeaseId) + Send + Sync + 'static) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = LeaseId(NEXT.fetch_add(1, Ordering::Relaxed));
        Self { id, _owner: Some(Arc::new(LeaseOwner { id, release: Box::new(release) })) }
    }

    /// The lease of this name, which the process at the other end of a boundary owns.
    pub fn of_other_process(id: LeaseId) -> Self {
        Self { id, _owner: None }
    }

    pub fn id(&self) -> LeaseId {
        self.id
    }
}

impl PartialEq for Lease {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Drop for LeaseOwner {
    fn drop(&mut self) {
        (self.release)(self.id);
    }
}

/// The states of calls between their steps, by their leases.
#[derive(Debug)]
pub struct LeasedStates<S>(Mutex<HashMap<LeaseId, Arc<S>>>);

impl<S> Default for LeasedStates<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S> LeasedStates<S> {
    /// The state of a lease; `None` when it is not in memory any more, as after the end of its process.
    pub fn get(&self, lease: LeaseId) -> Option<Arc<S>> {
        self.states().get(&lease).cloned()
    }

    /// Keeps a state in place of the one that the lease had.
    pub fn put(&self, lease: LeaseId, state: S) -> Arc<S> {
        let state = Arc::new(state);
        let before = self.states().insert(lease, state.clone());
        // Freed without the lock.
        drop(before);
        state
    }

    /// Frees the state of a lease, if there is one.
    pub fn release(&self, lease: LeaseId) {
        let released = self.states().remove(&lease);
        drop(released);
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.states().len()
    }

    fn states(&self) -> MutexGuard<'_, HashMap<LeaseId, Arc<S>>> {
        // Nothing panics under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a step that has an `R` as its result.
pub async fn run_step<R: DeserializeOwned>(
    steps: &dyn RunSteps,
    model: &'static str,
    step: ChainStep,
) -> Result<R, ChainError> {
    Ok(result_of(&steps.run(model, step).await?)?)
}

/// Runs some steps in the order given, no more at a time than are of use.
pub async fn run_all<T>(
    steps: &dyn RunSteps,
    runs: Vec<impl Future<Output = Result<T, ChainError>>>,
) -> Result<Vec<T>, ChainError> {
    stream::iter(runs).buffered(steps.at_a_time()).try_collect().await
}

/// The input of a step, which counts until `finish` has made the result of the outputs.
pub fn prepared<R: Serialize>(
    input: Tensor,
    account: &MemoryAccount,
    finish: impl FnOnce(&[Tensor]) -> Result<R, PostprocessError> + Send + 'static,
) -> Result<PreprocessedInputs, PreprocessError> {
    let hold = account.take(input.data().len())?;
    let postprocess = move |outputs: Vec<Tensor>| {
        let result = finish(&outputs)?;
        drop(hold);
        Ok(vec![result_tensor(&result)?])
    };
    Ok(PreprocessedInputs { inputs: vec![input], postprocess: Some(Box::new(postprocess)), picture: None })
}

/// The result of a step as a `BYTES` tensor of one element.
pub fn result_tensor(result: &impl Serialize) -> Result<Tensor, PostprocessError> {
    let bytes = postcard::to_stdvec(result).map_err(|error| refused(&error.to_string()))?;
    Tensor::from_strings(vec![1], [bytes]).map_err(|error| refused(&error.to_string()))
}

/// The result that a step gave. It may come from a process that runs foreign models: the chain checks its values.
pub fn result_of<R: DeserializeOwned>(outputs: &[Tensor]) -> Result<R, PostprocessError> {
    let [output] = outputs else { return Err(refused(&format!("it has {} tensors", outputs.len()))) };
    let bytes = match (output.shape(), output.strings()) {
        ([1], Some(mut strings)) => strings.next().unwrap_or_default(),
        _ => return Err(refused(&format!("it is {} of shape {:?}", output.datatype(), output.shape()))),
    };
    if bytes.len() > RESULT_BYTES_MAX {
        return Err(refused(&format!("it has {} bytes, more than {RESULT_BYTES_MAX}", bytes.len())));
    }
    match postcard::take_from_bytes(bytes) {
        Ok((result, [])) => Ok(result),
        Ok((_, rest)) => Err(refused(&format!("{} bytes follow it", rest.len()))),
        Err(error) => Err(refused(&error.to_string())),
    }
}

/// An error that refuses the model at its load.
pub fn refused(reason: &str) -> PostprocessError {
    PostprocessError::Outputs(format!("the result of a step cannot be used: {reason}"))
}

#[cfg(test)]
mod tests {
    use ledge_base::memory_budget::MemoryBudget;
    use ledge_base::principal::Principal;

    use super::*;

    fn lease(number: u64) -> Lease {
        Lease::of_other_process(LeaseId(number))
    }

    #[test]
    fn a_task_is_the_same_on_the_other_side_and_has_no_bytes_behind_it() {
        let step = ChainStep::new(&lease(1), &(7_u32, "seven"), None, 2).unwrap();
        assert_eq!(step.task(), Ok((7_u32, "seven".to_owned())));
        let longer = ChainStep { task: [&step.task[..], &[0]].concat().into(), ..step.clone() };
        assert!(longer.task::<(u32, String)>().unwrap_err().to_string().contains("1 bytes follow it"));
        let cut = ChainStep { task: step.task.slice(..3), ..step };
        assert!(cut.task::<(u32, String)>().is_err());
    }

    #[test]
    fn a_state_is_replaced_by_the_next_one_of_its_lease_and_freed_with_it() {
        let states = LeasedStates::default();
        let (one, other) = (lease(1).id(), lease(2).id());
        let first = states.put(one, "first");
        states.put(one, "second");
        assert_eq!((*first, states.get(one).as_deref(), states.get(other)), ("first", Some(&"second"), None));
        states.release(other);
        states.release(one);
        assert_eq!((states.get(one), states.count()), (None, 0));
    }

    #[test]
    fn the_input_of_a_step_counts_until_its_result_is_made() {
        let memory = MemoryBudget::new(10 << 20);
        let account = memory.account(Principal::Local);
        let input = || Tensor::from_vec(vec![1 << 20], vec![0.0_f32; 1 << 20]).unwrap();
        let step = prepared(input(), &account, |outputs| Ok(outputs.len())).unwrap();
        assert_eq!(memory.used(), 4 << 20);
        let result = step.postprocess.unwrap()(vec![input(); 3]).unwrap();
        assert_eq!((memory.used(), result_of(&result)), (0, Ok(3_usize)));
        let _rest = account.take(7 << 20).unwrap();
        assert!(matches!(prepared(input(), &account, |_| Ok(())), Err(PreprocessError::NoRoom(_))));
    }
}
