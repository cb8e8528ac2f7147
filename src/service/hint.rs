//! A hint of the platform that there is something new, for parts that otherwise look at intervals.

use std::sync::Arc;

use tokio::sync::Notify;

/// Wakes one part that looks for news. Clones share it. Hints that come before the part looks are one hint.
#[derive(Debug, Clone, Default)]
pub struct HintSignal(Arc<Notify>);

impl HintSignal {
    /// Has the part look soon.
    pub fn give(&self) {
        self.0.notify_one();
    }

    /// Waits for the next hint.
    pub async fn wait(&self) {
        self.0.notified().await;
    }
}
