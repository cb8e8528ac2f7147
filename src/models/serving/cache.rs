//! The response cache: answers kept for equal requests, and equal requests in flight computed once.
//!
//! Each loaded version has a cache of its own, which goes with it: an answer never outlives the weights it came from.
//! The bytes of all caches are shared out by a [`Budget`]. Only whole answers get in, never an error.

mod budget;
mod key;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ledge_base::tensor::Tensor;
use quick_cache::sync::{Cache, DefaultLifecycle, PlaceholderGuard};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::scheduling::terms::Priority;
pub use budget::Budget;
pub use key::{Key, KeyMaker};

/// What an entry costs beside its tensors: the key in the table and in a list, the entry, and their allocations.
const ENTRY_OVERHEAD: u64 = 256;

/// What a tensor costs beside its bytes and dimensions: itself, and the allocations of both.
const TENSOR_OVERHEAD: u64 = 160;

/// An answer's tensors, in the order asked for.
pub type Outputs = Arc<[Tensor]>;

/// The kept answers of one loaded version.
#[derive(Debug)]
pub struct ResponseCache {
    /// Makes the keys of this version.
    pub keys: Arc<KeyMaker>,
    store: Arc<Store>,
    ttl: Option<Duration>,
    budget: Arc<Budget>,
}

type Store = Cache<Key, Entry, StoredBytes>;

#[derive(Debug, Clone)]
struct Entry {
    outputs: Outputs,
    made: Instant,
    bytes: u64,
}

#[derive(Debug, Clone)]
struct StoredBytes;

impl Weighter<Key, Entry> for StoredBytes {
    fn weight(&self, _: &Key, entry: &Entry) -> u64 {
        entry.bytes
    }
}

/// What waiting for an answer came to.
#[derive(Debug)]
pub enum Found<'a> {
    /// Somebody else has just computed it.
    Joined(Outputs),
    /// It is to be computed, by this caller.
    Lead(Lead<'a>),
}

/// The duty to compute an answer. Dropped without one, it passes to the next who waits.
#[derive(Debug)]
pub struct Lead<'a> {
    cache: &'a ResponseCache,
    key: Key,
    priority: Priority,
    guard: PlaceholderGuard<'a, Key, Entry, StoredBytes, DefaultHashBuilder, DefaultLifecycle<Key, Entry>>,
}

impl ResponseCache {
    /// An empty cache that may hold up to `max_bytes` of what `budget` has; `None` when that is nothing.
    pub fn new(keys: KeyMaker, budget: &Arc<Budget>, max_bytes: u64, ttl: Option<Duration>) -> Option<Self> {
        // How many entries fit only sizes the list of keys seen lately; a wrong guess costs little.
        let entries = usize::try_from(max_bytes / 4096).unwrap_or(usize::MAX).clamp(32, 1 << 16);
        // One shard: its share is the largest answer that can be kept.
        let options = OptionsBuilder::new().shards(1).estimated_items_capacity(entries).weight_capacity(0).build();
        let store =
            Store::with_options(options.ok()?, StoredBytes, DefaultHashBuilder::default(), DefaultLifecycle::default());
        let store = Arc::new(store);
        budget.join(&store, max_bytes).then(|| Self { keys: Arc::new(keys), store, ttl, budget: budget.clone() })
    }

    /// The kept answer, unless it is too old at `now`.
    pub fn get(&self, key: Key, now: Instant) -> Option<Outputs> {
        let entry = self.store.get(&key)?;
        if !self.is_expired(&entry, now) {
            return Some(entry.outputs);
        }
        // Unless a fresh one came meanwhile.
        self.store.remove_if(&key, |entry| self.is_expired(entry, now));
        None
    }

    /// Waits for whoever computes the answer already, or gives the duty to compute it. To be called after
    /// [`Self::get`] found nothing; dropping the future gives up the wait.
    ///
    /// Callers of a lower priority wait among themselves: an urgent caller must not wait for a run that stands behind
    /// every other urgent one.
    pub async fn join(&self, key: Key, priority: Priority, now: Instant) -> Found<'_> {
        let lane = key.of_lane(priority);
        match self.store.get_value_or_guard_async(&lane).await {
            Ok(entry) => Found::Joined(entry.outputs),
            Err(guard) => {
                // Nothing is ever kept under the key of a lane; it may have come under the other meanwhile.
                if lane != key
                    && let Some(outputs) = self.get(key, now)
                {
                    return Found::Joined(outputs);
                }
                Found::Lead(Lead { cache: self, key, priority, guard })
            }
        }
    }

    /// The bytes kept, overheads included.
    pub fn bytes(&self) -> u64 {
        self.store.weight()
    }

    fn is_expired(&self, entry: &Entry, now: Instant) -> bool {
        self.ttl.is_some_and(|ttl| now.saturating_duration_since(entry.made) >= ttl)
    }
}

impl Drop for ResponseCache {
    fn drop(&mut self) {
        self.budget.leave(&self.store);
        // Freeing a hundred thousand answers takes its time, and whoever drops this may have callers to serve.
        if self.bytes() > 1 << 20 {
            let store = self.store.clone();
            let _ = std::thread::Builder::new().name("cache-drop".to_owned()).spawn(move || drop(store));
        }
    }
}

impl Lead<'_> {
    /// Hands the answer, computed at `now`, to those who wait, and keeps it if it fits.
    pub fn keep(self, outputs: &[Tensor], now: Instant) {
        let bytes = stored_bytes(outputs);
        let store = &self.cache.store;
        // What is handed on only is not copied, and what weighs that much is not kept.
        let handed_on = |outputs| Entry { outputs, made: now, bytes: u64::MAX };
        if bytes > store.capacity() {
            let _ = self.guard.insert(handed_on(outputs.into()));
            return;
        }
        let outputs: Outputs = outputs.iter().map(own).collect();
        let entry = Entry { outputs: outputs.clone(), made: now, bytes };
        if self.key.of_lane(self.priority) == self.key {
            // The guard's place can be gone only when somebody kept the same answer meanwhile.
            let _ = self.guard.insert(entry);
        } else {
            store.insert(self.key, entry);
            let _ = self.guard.insert(handed_on(outputs));
        }
    }
}

/// The tensor in memory of its own: bytes from a run may be a small part of a large allocation, which they keep alive
/// and which nobody counts.
fn own(tensor: &Tensor) -> Tensor {
    let data = Bytes::copy_from_slice(tensor.data());
    // The same bytes fill the same shape.
    Tensor::new(tensor.datatype(), tensor.shape().to_vec(), data).unwrap_or_else(|_| tensor.clone())
}

/// What an entry of these tensors takes in memory.
fn stored_bytes(outputs: &[Tensor]) -> u64 {
    let of_tensor = |tensor: &Tensor| TENSOR_OVERHEAD + (tensor.data().len() + size_of_val(tensor.shape())) as u64;
    outputs.iter().map(of_tensor).sum::<u64>() + ENTRY_OVERHEAD
}

#[cfg(test)]
mod tests;
