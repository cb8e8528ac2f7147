//! The request to stop a run, which the calls in flight may finish.

use std::time::Duration;

use tokio::sync::watch;

#[derive(Debug, Default)]
pub struct StopSignal(watch::Sender<bool>);

impl StopSignal {
    pub fn request(&self) {
        self.0.send_replace(true);
    }

    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Sleeps. `None` when a stop is requested meanwhile.
    pub async fn pause(&self, pause: Duration) -> Option<()> {
        let mut requested = self.0.subscribe();
        tokio::select! {
            _ = requested.wait_for(|stop| *stop) => None,
            () = tokio::time::sleep(pause) => Some(()),
        }
    }
}
