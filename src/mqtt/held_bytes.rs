//! Counts the bytes of messages in memory: each holder counts for as long as its [`HeldBytesGuard`] lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The sum. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct HeldBytes(Arc<AtomicUsize>);

/// Bytes that count until this is dropped.
#[derive(Debug)]
#[must_use = "the bytes count for as long as this lives"]
pub struct HeldBytesGuard {
    sum: HeldBytes,
    bytes: usize,
}

impl HeldBytes {
    /// Counts bytes until the guard is dropped.
    pub fn hold(&self, bytes: usize) -> HeldBytesGuard {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        HeldBytesGuard { sum: self.clone(), bytes }
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
