//! Counts the bytes of messages in memory: each holder counts while its [`HeldBytesGuard`] lives.
//!
//! Messages have a separate bound, `mqtt.max_memory_bytes`, within the memory of the calls of all callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ledge_base::memory_budget::MemoryReservation;

/// The sum. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct HeldBytes(Arc<AtomicUsize>);

/// Bytes that count until this is dropped.
#[derive(Debug)]
#[must_use = "the bytes count for as long as this lives"]
pub struct HeldBytesGuard {
    sum: HeldBytes,
    bytes: usize,
    /// The same bytes among those of all callers.
    _memory: Option<MemoryReservation>,
}

impl HeldBytes {
    /// Counts bytes until the guard is dropped. `memory` has them among those of all callers.
    pub fn hold(&self, bytes: usize, memory: Option<MemoryReservation>) -> HeldBytesGuard {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        HeldBytesGuard { sum: self.clone(), bytes, _memory: memory }
    }

    /// The sum now.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for HeldBytesGuard {
    fn drop(&mut self) {
        self.sum.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
