//! The readiness of the daemon: it is ready when every part has started.
//!
//! Each part holds a [`ReadinessLatch`] until it is up; [`Readiness::wait`] ends when the last one is dropped.

use tokio::sync::watch;

/// Creates latches, and reports when none is left.
#[derive(Debug)]
pub struct Readiness {
    sender: watch::Sender<()>,
}

/// Keeps the daemon not ready until it is dropped.
#[derive(Debug)]
pub struct ReadinessLatch {
    _receiver: watch::Receiver<()>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self { sender: watch::Sender::new(()) }
    }
}

impl Readiness {
    /// A latch for one part.
    pub fn latch(&self) -> ReadinessLatch {
        ReadinessLatch { _receiver: self.sender.subscribe() }
    }

    /// True if no latch is left.
    pub fn is_ready(&self) -> bool {
        self.sender.receiver_count() == 0
    }

    /// Waits until no latch is left.
    pub async fn wait(&self) {
        self.sender.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ready_when_the_last_latch_is_dropped() {
        let readiness = Readiness::default();
        let (first, second) = (readiness.latch(), readiness.latch());
        assert!(!readiness.is_ready());
        drop(first);
        assert!(!readiness.is_ready());
        drop(second);
        readiness.wait().await;
        assert!(readiness.is_ready());
    }
}
