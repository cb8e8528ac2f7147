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

use ledge_models::repository::Repository;
use ledge_part::Part;
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;
use tokio::sync::oneshot;

use super::notify;

/// How often signs of life are looked for where no watchdog says how often.
const UNWATCHED: Duration = Duration::from_secs(30);

/// How often the status is looked at.
const STATUS: Duration = Duration::from_secs(2);

/// The sources of the health of the daemon.
pub struct Health {
    pub parts: Vec<Arc<dyn Part>>,
    pub repository: Repository,
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
            let signs = self.parts.iter().map(|part| hanging.within(pause, part.name(), part.sign_of_life()));
            let of_parts = futures_util::future::join_all(signs);
            tokio::join!(hanging.within(pause, "requests", self.task_ran()), of_parts);
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
        let is_starting = !self.readiness.is_ready();
        let mut ready: Vec<_> = self.repository.all_live().into_iter().map(|model| model.name.clone()).collect();
        ready.dedup();
        Facts {
            is_starting,
            ready: ready.len(),
            hanging: hanging.0.borrow().iter().copied().collect(),
            troubles: self.parts.iter().rev().filter_map(|part| part.trouble(is_starting)).collect(),
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
    /// Why parts do not do their work, in their own words.
    troubles: Vec<String>,
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
        let facts = Facts { ready: 3, ..Facts::default() };
        assert_eq!(facts.to_string(), "3 models ready");
        let facts = Facts { is_starting: true, ready: 1, ..Facts::default() };
        assert_eq!(facts.to_string(), "starting: 1 model ready");
        let troubles = vec!["not loaded: a, b".into(), "audit log: the disk is full".into()];
        let facts = Facts { ready: 2, hanging: vec!["inference"], troubles, ..Facts::default() };
        assert_eq!(
            facts.to_string(),
            "2 models ready; degraded: inference: nothing moves; not loaded: a, b; audit log: the disk is full"
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
