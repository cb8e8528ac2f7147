//! Whether every part still does something, and how the daemon does in words: for systemd's watchdog and `systemctl status`.
//!
//! A sign of life is given only after each part has shown one of its own since the last: the threads that handle requests
//! took a task, each worker of the engine ended the run that it was in, and the writers of the audit log and of the features
//! took another turn. Where one hangs, none is given, and systemd starts the daemon anew.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use ledge_audit::status::AuditState;
use ledge_base::telemetry::messages::MessageStatistics;
use ledge_models::repository::{VersionState, UNLOADED_REASON};
use ledge_models::serving::Serving;
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;
use tokio::sync::oneshot;

use super::notify;

/// How often signs of life are looked for where no watchdog says how often.
const UNWATCHED: Duration = Duration::from_secs(30);

/// How often the status is looked at.
const STATUS: Duration = Duration::from_secs(2);

/// What health is known by.
pub struct Health {
    /// The models, and the feature store.
    pub serving: Serving,
    /// How the audit log does.
    pub audit: AuditState,
    /// What is counted of messages, where there is a broker.
    pub messages: Option<MessageStatistics>,
    /// Whether the start is over.
    pub readiness: Arc<Readiness>,
    pub shutdown: Shutdown,
}

impl Health {
    /// Tells systemd, for as long as it is polled.
    pub async fn tell(self) -> Infallible {
        if !notify::is_listened_to() {
            return std::future::pending().await;
        }
        let hanging = Hanging::default();
        tokio::select! {
            never = self.signs_of_life(&hanging) => never,
            never = self.statuses(&hanging) => never,
        }
    }

    async fn signs_of_life(&self, hanging: &Hanging) -> Infallible {
        // Four times as often as is asked for: one late part is no hanging one.
        let pause = notify::watchdog().map_or(UNWATCHED, |limit| limit / 4);
        loop {
            tokio::join!(
                hanging.within(pause, "requests", self.task_ran()),
                hanging.within(pause, "inference", self.serving.repository().engine().turned()),
                hanging.within(pause, "audit log", self.audit.turned()),
                hanging.within(pause, "feature store", self.serving.features().wait_for_writer()),
            );
            notify::alive((!self.readiness.is_ready()).then_some(pause * 4));
            tokio::time::sleep(pause).await;
        }
    }

    /// Waits until a thread that handles requests has taken a task. This future is not among them where there are several.
    async fn task_ran(&self) {
        let (ran, told) = oneshot::channel();
        self.shutdown.spawn(async move {
            let _ = ran.send(());
        });
        let _ = told.await;
    }

    async fn statuses(&self, hanging: &Hanging) -> Infallible {
        let mut told = String::new();
        loop {
            let is_ending = self.shutdown.is_requested();
            let status = if is_ending { "stopping".to_owned() } else { self.facts(hanging).to_string() };
            if status != told {
                notify::status(&status);
                told = status;
            }
            // The end of the start is told at once.
            let started = async {
                if self.readiness.is_ready() {
                    std::future::pending::<()>().await;
                } else {
                    self.readiness.wait().await;
                }
            };
            let _ = tokio::time::timeout(STATUS, started).await;
        }
    }

    fn facts(&self, hanging: &Hanging) -> Facts {
        let repository = self.serving.repository();
        let failing = repository.index().into_iter().filter_map(|row| match row.state {
            VersionState::Unavailable(reason) if !reason.is_empty() && reason != UNLOADED_REASON => Some(row.model.to_string()),
            _ => None,
        });
        let mut failing: Vec<String> = failing.collect();
        failing.dedup();
        let mut ready: Vec<_> = repository.all_live().into_iter().map(|model| model.name.clone()).collect();
        ready.dedup();
        Facts {
            is_starting: !self.readiness.is_ready(),
            ready: ready.len(),
            hanging: hanging.0.borrow().iter().copied().collect(),
            failing,
            features: self.serving.features().statistics().and_then(|statistics| statistics.reason),
            audit: self.audit.status().error,
            is_disconnected: self.messages.as_ref().is_some_and(|messages| !messages.snapshot().connected),
        }
    }
}

/// The parts that do nothing at this moment, and should.
#[derive(Debug, Default)]
struct Hanging(RefCell<BTreeSet<&'static str>>);

impl Hanging {
    /// Waits for a sign of life. The part is among the hanging ones from when it takes long until it comes.
    async fn within(&self, pause: Duration, part: &'static str, turn: impl Future<Output = ()>) {
        let mut turn = std::pin::pin!(turn);
        if tokio::time::timeout(pause, &mut turn).await.is_ok() {
            return;
        }
        let seconds = pause.as_secs();
        tracing::error!(part, seconds, "a part does nothing; the watchdog is told nothing until it does");
        self.0.borrow_mut().insert(part);
        turn.await;
        self.0.borrow_mut().remove(part);
        tracing::warn!(part, "the part goes on");
    }
}

/// How the daemon does.
#[derive(Debug, Default)]
struct Facts {
    is_starting: bool,
    ready: usize,
    hanging: Vec<&'static str>,
    /// Models of which a version should answer and does not.
    failing: Vec<String>,
    /// Why the feature store answers no reads.
    features: Option<String>,
    /// Why the audit log is not written.
    audit: Option<String>,
    /// Whether there should be a connection to a broker and is none.
    is_disconnected: bool,
}

impl std::fmt::Display for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_starting { "starting: " } else { "" })?;
        write!(f, "{} model{} ready", self.ready, if self.ready == 1 { "" } else { "s" })?;
        let mut lead = "; degraded: ";
        let mut say = |part: std::fmt::Arguments<'_>| write!(f, "{}{part}", std::mem::replace(&mut lead, "; "));
        for part in &self.hanging {
            say(format_args!("{part}: nothing moves"))?;
        }
        if !self.failing.is_empty() {
            say(format_args!("not loaded: {}", self.failing.join(", ")))?;
        }
        if let Some(reason) = &self.audit {
            say(format_args!("audit log: {reason}"))?;
        }
        if let Some(reason) = self.features.as_ref().filter(|_| !self.is_starting) {
            say(format_args!("feature store: {reason}"))?;
        }
        if self.is_disconnected && !self.is_starting {
            say(format_args!("no connection to the broker"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_what_serves_and_what_does_not() {
        let facts = Facts { ready: 3, ..Facts::default() };
        assert_eq!(facts.to_string(), "3 models ready");
        let facts = Facts { is_starting: true, ready: 1, is_disconnected: true, ..Facts::default() };
        assert_eq!(facts.to_string(), "starting: 1 model ready");
        let facts = Facts {
            ready: 2,
            hanging: vec!["inference"],
            failing: vec!["a".into(), "b".into()],
            features: Some("it is being rebuilt".into()),
            audit: Some("the disk is full".into()),
            is_disconnected: true,
            ..Facts::default()
        };
        assert_eq!(
            facts.to_string(),
            "2 models ready; degraded: inference: nothing moves; not loaded: a, b; audit log: the disk is full; feature \
             store: it is being rebuilt; no connection to the broker"
        );
    }

    #[tokio::test]
    async fn a_part_that_does_not_turn_is_waited_for_and_hangs_no_longer_than_that() {
        let (turn, turned) = oneshot::channel();
        let hanging = Hanging::default();
        let waiting = hanging.within(Duration::from_millis(1), "part", async { turned.await.unwrap() });
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut waiting).await.is_err());
        assert_eq!(*hanging.0.borrow(), BTreeSet::from(["part"]));
        turn.send(()).unwrap();
        waiting.await;
        assert_eq!(*hanging.0.borrow(), BTreeSet::new());
    }
}
