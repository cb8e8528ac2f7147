//! How many bytes of messages are held: each holder counts for as long as its [`Hold`] lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The sum. Clones are the same sum.
#[derive(Debug, Clone, Default)]
pub struct HeldBytes(Arc<AtomicUsize>);

/// Bytes that somebody holds.
#[derive(Debug)]
#[must_use = "the bytes count for as long as this lives"]
pub struct Hold {
    sum: HeldBytes,
    bytes: usize,
}

impl HeldBytes {
    /// Counts bytes until the guard is dropped.
    pub fn hold(&self, bytes: usize) -> Hold {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Hold { sum: self.clone(), bytes }
    }

    /// The sum now.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.sum.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
