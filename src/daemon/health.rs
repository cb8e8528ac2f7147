//! Signs of life for systemd's watchdog, and the status text for `systemctl status`.
//!
//! The watchdog is notified only after each part has given a sign of life since the last time: the threads that handle
//! requests ran a task, each worker of the engine ended its run, and the writers of the audit log and of the features
//! took another turn. When one of them hangs, the watchdog is not notified, and systemd restarts the daemon.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use ledge_models::repository::Repository;
use ledge_part::Subsystem;
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;
use tokio::sync::oneshot;

use super::notify;

/// The interval of signs of life without a watchdog. With one, the time of the watchdog sets it.
const UNWATCHED_SIGN_INTERVAL: Duration = Duration::from_secs(30);

/// The interval at which the status text is formed and compared with the last one.
const STATUS_INTERVAL: Duration = Duration::from_secs(2);

/// The sources of the health of the daemon.
pub struct DaemonHealth {
    pub parts: Vec<Arc<dyn Subsystem>>,
    pub repository: Repository,
    pub readiness: Arc<Readiness>,
    pub shutdown: Shutdown,
}

impl DaemonHealth {
    /// Reports to systemd while it is polled.
    pub async fn report(self) -> Infallible {
        if !notify::has_socket() {
            return std::future::pending().await;
        }
        let hanging = HangingParts::default();
        tokio::select! {
            never = self.signs_of_life(&hanging) => never,
            never = self.statuses(&hanging) => never,
        }
    }

    async fn signs_of_life(&self, hanging: &HangingParts) -> Infallible {
        // Four times as often as the watchdog asks, so that one late part does not count as hanging.
        let pause = notify::watchdog().map_or(UNWATCHED_SIGN_INTERVAL, |limit| limit / 4);
        loop {
            let signs = self.parts.iter().map(|part| hanging.within(pause, part.name(), part.heartbeat()));
            let of_parts = futures_util::future::join_all(signs);
            tokio::join!(hanging.within(pause, "requests", self.task_ran()), of_parts);
            notify::alive((!self.readiness.is_ready()).then_some(pause * 4));
            tokio::time::sleep(pause).await;
        }
    }

    /// Waits until a thread that handles requests has run a task. With several of these threads, this future runs on
    /// another thread.
    async fn task_ran(&self) {
        let (sender, ran) = oneshot::channel();
        self.shutdown.spawn(async move {
            let _ = sender.send(());
        });
        let _ = ran.await;
    }

    async fn statuses(&self, hanging: &HangingParts) -> Infallible {
        let mut last = String::new();
        loop {
            let is_ending = self.shutdown.is_requested();
            let status = if is_ending { "stopping".to_owned() } else { self.status(hanging).to_string() };
            if status != last {
                notify::status(&status);
                last = status;
            }
            // The end of the start is reported at once.
            let started = async {
                if self.readiness.is_ready() {
                    std::future::pending::<()>().await;
                } else {
                    self.readiness.wait().await;
                }
            };
            let _ = tokio::time::timeout(STATUS_INTERVAL, started).await;
        }
    }

    fn status(&self, hanging: &HangingParts) -> HealthStatus {
        let is_starting = !self.readiness.is_ready();
        let mut ready: Vec<_> = self.repository.all_live().into_iter().map(|model| model.name.clone()).collect();
        ready.dedup();
        HealthStatus {
            is_starting,
            ready: ready.len(),
            hanging: hanging.0.borrow().iter().copied().collect(),
            troubles: self.parts.iter().rev().filter_map(|part| part.problem(is_starting)).collect(),
        }
    }
}

/// The parts with an overdue sign of life.
#[derive(Debug, Default)]
struct HangingParts(RefCell<BTreeSet<&'static str>>);

impl HangingParts {
    /// Waits for the sign of life of a part. After `pause` the part counts as hanging, until the sign of life comes.
    async fn within(&self, pause: Duration, part: &'static str, turn: impl Future<Output = ()>) {
        let mut turn = std::pin::pin!(turn);
        if tokio::time::timeout(pause, &mut turn).await.is_ok() {
            return;
        }
        let seconds = pause.as_secs();
        tracing::error!(name: "part.stalled",
            part,
            seconds,
            "a part of the daemon gives no sign of life; the watchdog is not notified until it does"
        );
        self.0.borrow_mut().insert(part);
        turn.await;
        self.0.borrow_mut().remove(part);
        tracing::warn!(part, "the part gives signs of life again");
    }
}

/// The state of the daemon that the status text describes.
#[derive(Debug, Default)]
struct HealthStatus {
    is_starting: bool,
    /// The number of ready models.
    ready: usize,
    hanging: Vec<&'static str>,
    /// The reasons why parts do not work, as the parts word them.
    troubles: Vec<String>,
}

impl std::fmt::Display for HealthStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_starting { "starting: " } else { "" })?;
        write!(f, "{} model{} ready", self.ready, if self.ready == 1 { "" } else { "s" })?;
        let mut lead = "; degraded: ";
        let mut say = |part: std::fmt::Arguments<'_>| write!(f, "{}{part}", std::mem::replace(&mut lead, "; "));
        for part in &self.hanging {
            say(format_args!("{part}: nothing moves"))?;
        }
        for trouble in &self.troubles {
            say(format_args!("{trouble}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_what_serves_and_what_does_not() {
        let status = HealthStatus { ready: 3, ..HealthStatus::default() };
        assert_eq!(status.to_string(), "3 models ready");
        let status = HealthStatus { is_starting: true, ready: 1, ..HealthStatus::default() };
        assert_eq!(status.to_string(), "starting: 1 model ready");
        let troubles = vec!["not loaded: a, b".into(), "audit log: the disk is full".into()];
        let status = HealthStatus { ready: 2, hanging: vec!["inference"], troubles, ..HealthStatus::default() };
        assert_eq!(
            status.to_string(),
            "2 models ready; degraded: inference: nothing moves; not loaded: a, b; audit log: the disk is full"
        );
    }

    #[tokio::test]
    async fn a_part_that_does_not_turn_is_waited_for_and_hangs_no_longer_than_that() {
        let (turn, turned) = oneshot::channel();
        let hanging = HangingParts::default();
        let waiting = hanging.within(Duration::from_millis(1), "part", async { turned.await.unwrap() });
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut waiting).await.is_err());
        assert_eq!(*hanging.0.borrow(), BTreeSet::from(["part"]));
        turn.send(()).unwrap();
        waiting.await;
        assert_eq!(*hanging.0.borrow(), BTreeSet::new());
    }
}
