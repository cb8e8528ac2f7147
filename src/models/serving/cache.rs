//! The response cache: answers cached for equal requests, and equal requests in flight computed once.
//!
//! Each loaded version has a separate cache, which is dropped with it: an answer never outlives the weights it came
//! from. A [`CacheBudget`] divides the bytes between all caches. Only whole answers are cached, never an error.

mod answers;
mod budget;
mod key;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ledge_base::tensor::Tensor;
use quick_cache::sync::{DefaultLifecycle, PlaceholderGuard};
use quick_cache::{DefaultHashBuilder, OptionsBuilder};

use crate::scheduling::terms::Priority;
pub use answers::CachedOutputs;
use answers::{AnswerCache, CachedAnswer, CachedAnswerWeighter, stored_bytes};
pub use budget::CacheBudget;
pub use key::{CacheKey, CacheKeyBuilder};

/// The cached answers of one loaded version.
#[derive(Debug)]
pub struct ResponseCache {
    /// Makes the keys of this version.
    pub keys: Arc<CacheKeyBuilder>,
    store: Arc<AnswerCache>,
    ttl: Option<Duration>,
    budget: Arc<CacheBudget>,
}

/// Result of waiting for an answer.
#[derive(Debug)]
pub enum JoinOutcome<'a> {
    /// Another caller has just computed it.
    Joined(CachedOutputs),
    /// This caller must compute it.
    Lead(AnswerComputationLead<'a>),
}

/// The duty to compute an answer. Dropped without one, it passes to the next waiting caller.
#[derive(Debug)]
pub struct AnswerComputationLead<'a> {
    cache: &'a ResponseCache,
    key: CacheKey,
    priority: Priority,
    guard: PlaceholderGuard<
        'a,
        CacheKey,
        CachedAnswer,
        CachedAnswerWeighter,
        DefaultHashBuilder,
        DefaultLifecycle<CacheKey, CachedAnswer>,
    >,
}

impl ResponseCache {
    /// An empty cache for up to `max_bytes` of `budget`; `None` when that is 0 bytes.
    pub fn new(
        keys: CacheKeyBuilder,
        budget: &Arc<CacheBudget>,
        max_bytes: u64,
        ttl: Option<Duration>,
    ) -> Option<Self> {
        // The number of entries only sizes the list of recent keys; a wrong guess costs little.
        let entries = usize::try_from(max_bytes / 4096).unwrap_or(usize::MAX).clamp(32, 1 << 16);
        // One shard: its share is the largest answer that can be kept.
        let options = OptionsBuilder::new().shards(1).estimated_items_capacity(entries).weight_capacity(0).build();
        let store = AnswerCache::with_options(
            options.ok()?,
            CachedAnswerWeighter,
            DefaultHashBuilder::default(),
            DefaultLifecycle::default(),
        );
        let store = Arc::new(store);
        budget.join(&store, max_bytes).then(|| Self { keys: Arc::new(keys), store, ttl, budget: budget.clone() })
    }

    /// The cached answer, unless it is too old at `now`.
    pub fn get(&self, key: CacheKey, now: Instant) -> Option<CachedOutputs> {
        let entry = self.store.get(&key)?;
        if !self.is_expired(&entry, now) {
            return Some(entry.outputs);
        }
        // Removed only if no fresh one came meanwhile.
        self.store.remove_if(&key, |entry| self.is_expired(entry, now));
        None
    }

    /// Waits for the caller that already computes the answer, or gives this one the duty to compute it. Call it after
    /// [`Self::get`] found nothing; dropping the future ends the wait.
    ///
    /// Callers of a lower priority wait among themselves: an urgent caller must not wait for a run that stands behind
    /// every other urgent one.
    pub async fn join(&self, key: CacheKey, priority: Priority, now: Instant) -> JoinOutcome<'_> {
        let shared_key = key.of_priority(priority);
        match self.store.get_value_or_guard_async(&shared_key).await {
            Ok(entry) => JoinOutcome::Joined(entry.outputs),
            Err(guard) => {
                // Nothing is ever cached under the key of a priority, so the answer may have been cached under `key`
                // meanwhile.
                if shared_key != key
                    && let Some(outputs) = self.get(key, now)
                {
                    return JoinOutcome::Joined(outputs);
                }
                JoinOutcome::Lead(AnswerComputationLead { cache: self, key, priority, guard })
            }
        }
    }

    /// The cached bytes, overheads included.
    pub fn bytes(&self) -> u64 {
        self.store.weight()
    }

    fn is_expired(&self, entry: &CachedAnswer, now: Instant) -> bool {
        self.ttl.is_some_and(|ttl| now.saturating_duration_since(entry.made) >= ttl)
    }
}

impl Drop for ResponseCache {
    fn drop(&mut self) {
        self.budget.leave(&self.store);
        // Freeing a hundred thousand answers takes long, and the thread that drops this may have callers to serve.
        if self.bytes() > 1 << 20 {
            let store = self.store.clone();
            let _ = std::thread::Builder::new().name("cache-drop".to_owned()).spawn(move || drop(store));
        }
    }
}

impl AnswerComputationLead<'_> {
    /// Passes the answer, computed at `now`, to the waiting callers, and caches it if it fits.
    pub fn keep(self, outputs: &[Tensor], now: Instant) {
        let bytes = stored_bytes(outputs);
        let store = &self.cache.store;
        // An answer that is only passed on is not copied, and one of that weight is not cached.
        let handed_on = |outputs| CachedAnswer { outputs, made: now, bytes: u64::MAX };
        if bytes > store.capacity() {
            let _ = self.guard.insert(handed_on(outputs.into()));
            return;
        }
        let outputs: CachedOutputs = outputs.iter().map(copied).collect();
        let entry = CachedAnswer { outputs: outputs.clone(), made: now, bytes };
        if self.key.of_priority(self.priority) == self.key {
            // The guard's place can be gone only when another caller cached the same answer meanwhile.
            let _ = self.guard.insert(entry);
        } else {
            store.insert(self.key, entry);
            let _ = self.guard.insert(handed_on(outputs));
        }
    }
}

/// Copies the tensor into separate memory: bytes from a run may be a small part of a large allocation, which they would
/// keep alive uncounted.
fn copied(tensor: &Tensor) -> Tensor {
    let data = Bytes::copy_from_slice(tensor.data());
    // The same bytes fill the same shape.
    Tensor::new(tensor.datatype(), tensor.shape().to_vec(), data).unwrap_or_else(|_| tensor.clone())
}

#[cfg(test)]
mod tests;
