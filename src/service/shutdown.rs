//! Tasks that never end unnoticed, and one signal that stops them all.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Spawns the daemon's tasks and stops them. Clones share one state.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    token: CancellationToken,
    tasks: TaskTracker,
    failure: Arc<OnceLock<String>>,
    restart: Arc<AtomicBool>,
}

impl Shutdown {
    /// Runs a task that must live as long as the daemon does: its end, an error and a panic all stop the daemon.
    pub fn spawn_essential<F, T, E>(&self, name: &'static str, task: F)
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: std::fmt::Display + Send + 'static,
    {
        let guard = EssentialTaskGuard { shutdown: self.clone(), name, reason: Some("panicked".to_owned()) };
        self.spawn(async move {
            let mut guard = guard;
            guard.reason = Some(match task.await {
                Ok(_) => "ended early".to_owned(),
                Err(error) => format!("failed: {error}"),
            });
        });
    }

    /// Runs a task that may end on its own, such as one connection; [`Shutdown::drain`] waits for it.
    pub fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_boxed(Box::pin(task));
    }

    // tokio compiles a task for each kind of runtime. Behind a pointer it is compiled once.
    fn spawn_boxed(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.tasks.spawn(task);
    }

    /// Asks every task to stop. Idempotent.
    pub fn request(&self) {
        self.token.cancel();
    }

    /// Asks every task to stop, and the daemon to restart in the same process.
    pub fn request_restart(&self) {
        self.restart.store(true, Ordering::Relaxed);
        self.request();
    }

    /// True if the daemon is to restart.
    pub fn is_restart(&self) -> bool {
        self.restart.load(Ordering::Relaxed)
    }

    /// Waits until the shutdown is requested.
    pub async fn requested(&self) {
        self.token.cancelled().await;
    }

    /// True if the shutdown is requested.
    pub fn is_requested(&self) -> bool {
        self.token.is_cancelled()
    }

    /// The reason of the shutdown, if it is the end of an essential task.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Waits for every task, `grace` at most. `false` if some are still running then.
    pub async fn drain(&self, grace: Duration) -> bool {
        self.request();
        self.tasks.close();
        tokio::time::timeout(grace, self.tasks.wait()).await.is_ok()
    }
}

/// Requests the shutdown when it is dropped, with a reason unless the shutdown is already requested.
struct EssentialTaskGuard {
    shutdown: Shutdown,
    name: &'static str,
    reason: Option<String>,
}

impl Drop for EssentialTaskGuard {
    fn drop(&mut self) {
        if !self.shutdown.is_requested() {
            let reason = self.reason.take().unwrap_or_default();
            tracing::error!(name: "task.ended", task = self.name, reason, "an essential task ended: the daemon stops");
            let _ = self.shutdown.failure.set(format!("task {} {reason}", self.name));
        }
        self.shutdown.request();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_death_of_an_essential_task_stops_the_daemon_and_is_its_reason() {
        let shutdown = Shutdown::default();
        shutdown.spawn_essential("listener", async { Err::<(), _>("no more sockets") });
        shutdown.requested().await;
        assert!(shutdown.drain(Duration::from_secs(5)).await);
        assert_eq!(shutdown.failure(), Some("task listener failed: no more sockets"));
    }

    #[tokio::test]
    async fn a_panic_of_an_essential_task_stops_the_daemon() {
        let shutdown = Shutdown::default();
        shutdown.spawn_essential::<_, (), String>("loop", async { panic!("a bug") });
        shutdown.requested().await;
        assert_eq!(shutdown.failure(), Some("task loop panicked"));
    }

    #[tokio::test]
    async fn drain_waits_for_tasks_and_reports_the_ones_that_do_not_end() {
        let shutdown = Shutdown::default();
        let other = shutdown.clone();
        shutdown.spawn(async move { other.requested().await });
        assert!(shutdown.drain(Duration::from_secs(5)).await);

        let stuck = Shutdown::default();
        stuck.spawn(std::future::pending());
        assert!(!stuck.drain(Duration::from_millis(20)).await);
        assert_eq!(stuck.failure(), None);
    }
}
