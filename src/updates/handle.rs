//! The handle of updates for all other parts: desired states and orders go to the updater, checks to the poller, and
//! both fill the status.

use std::sync::{Arc, Mutex, PoisonError};

use ledge_base::principal::Principal;
use ledge_egress::HostPort;
use ledge_service::hint::HintSignal;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::artifact::{Artifact, ArtifactKind};
use super::config::RepositoryAddress;
use super::plan::DesiredStates;
use super::status::{CheckStatus, UpdatesStatus};

/// Capacity of the queue of orders.
const QUEUED_ORDERS_MAX: usize = 16;

/// Capacity of the queue of checks. A hint that finds the queue full is dropped: a check is queued already.
const QUEUED_CHECKS_MAX: usize = 4;

/// A handle to updates. Clones share one state.
#[derive(Debug, Clone)]
pub struct Updates {
    desired_states: watch::Sender<Option<DesiredStates>>,
    desired_packages: watch::Sender<Option<DesiredStates>>,
    orders: mpsc::Sender<QueuedAdministratorCommand>,
    checks: mpsc::Sender<PollerCommand>,
    retries: Arc<Notify>,
    hints: HintSignal,
    status: Arc<SharedStatus>,
    /// The servers that a check may ask.
    servers: Arc<[HostPort]>,
}

/// The receiving ends of a handle. Once it is dropped, orders are answered with [`AdministratorCommandError::Stopped`].
#[derive(Debug)]
pub struct UpdaterInbox {
    /// The newest desired states of the platform; `None` until they are known.
    pub desired_states: watch::Receiver<Option<DesiredStates>>,
    /// The same for packages of Ledge itself, which the updater does not handle.
    pub desired_packages: watch::Receiver<Option<DesiredStates>>,
    pub orders: mpsc::Receiver<QueuedAdministratorCommand>,
    pub checks: mpsc::Receiver<PollerCommand>,
    /// Requests to make delayed attempts now.
    pub retries: Arc<Notify>,
}

/// A request to the poller.
#[derive(Debug)]
pub enum PollerCommand {
    /// Check the configured repository soon. No caller waits for it.
    Hint,
    /// Check once, and answer.
    Now {
        /// Another repository than the configured one.
        from: Option<RepositoryAddress>,
        /// The result; the reason in words when it failed.
        answer: oneshot::Sender<Result<(), String>>,
    },
    /// Forget the trusted metadata, and answer. A check follows, for which no caller waits.
    Reset { principal: Principal, answer: oneshot::Sender<Result<(), String>> },
}

/// An order of the administrator of this box about one subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdministratorCommand {
    /// Keep the version that runs.
    Pin,
    Unpin,
    /// Go back to the previous version: the one before the trial, else the one before the last commit.
    RollBack,
    Cancel,
}

impl AdministratorCommand {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Pin, Self::Unpin, Self::RollBack, Self::Cancel];

    /// Returns the name used in paths, on the command line and in the audit log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pin => "pin",
            Self::Unpin => "unpin",
            Self::RollBack => "rollback",
            Self::Cancel => "cancel",
        }
    }

    /// Returns the order of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|order| order.name() == name)
    }
}

/// An order on its way to the updater.
#[derive(Debug)]
pub struct QueuedAdministratorCommand {
    pub subject: Artifact,
    pub order: AdministratorCommand,
    pub principal: Principal,
    pub answer: oneshot::Sender<Result<(), AdministratorCommandError>>,
}

/// Reasons why an order was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdministratorCommandError {
    #[error("no update of {subject} is known: no rollout has named it for this box")]
    Unknown { subject: Artifact },
    #[error("no update of {subject} is under way")]
    NoTrial { subject: Artifact },
    #[error("{subject} cannot be rolled back: no earlier version is here")]
    NothingToRollBack { subject: Artifact },
    #[error("{subject}: {reason}")]
    Failed { subject: Artifact, reason: String },
    #[error("updates have stopped: the daemon is shutting down, or its log has the reason")]
    Stopped,
}

#[derive(Debug, Default)]
struct SharedStatus {
    current: Mutex<UpdatesStatus>,
    changes: watch::Sender<u64>,
}

impl Updates {
    /// Makes a handle and its receiving ends. A check of another repository than the platform's may ask `servers`.
    pub fn channel(servers: Vec<HostPort>) -> (Self, UpdaterInbox) {
        let (desired_states, wanted) = watch::channel(None);
        let (desired_packages, packages) = watch::channel(None);
        let (orders, ordered) = mpsc::channel(QUEUED_ORDERS_MAX);
        let (checks, asked) = mpsc::channel(QUEUED_CHECKS_MAX);
        let retries = Arc::<Notify>::default();
        let inbox = UpdaterInbox {
            desired_states: wanted,
            desired_packages: packages,
            orders: ordered,
            checks: asked,
            retries: retries.clone(),
        };
        (
            Self {
                desired_states,
                desired_packages,
                orders,
                checks,
                retries,
                hints: HintSignal::default(),
                servers: servers.into(),
                status: Arc::default(),
            },
            inbox,
        )
    }

    /// Sets the desired states of the platform. The updater is woken only when they differ from the last ones, and so is
    /// the courier of packages.
    pub fn set_desired_states(&self, desired_states: DesiredStates) {
        let is_package = |subject: &Artifact| subject.kind == ArtifactKind::Package;
        let (packages, others) = desired_states.into_iter().partition(|(subject, _)| is_package(subject));
        set(&self.desired_states, others);
        set(&self.desired_packages, packages);
    }

    /// Returns the current status of updates.
    pub fn status(&self) -> UpdatesStatus {
        self.status.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Watches a number that grows whenever [`Self::status`] changes.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.status.changes.subscribe()
    }

    /// Changes the status: for the updater and the poller, each for its part.
    pub fn update_status(&self, change: impl FnOnce(&mut UpdatesStatus)) {
        let mut current = self.status.current.lock().unwrap_or_else(PoisonError::into_inner);
        let before = current.clone();
        change(&mut current);
        let changed = *current != before;
        drop(current);
        if changed {
            self.status.changes.send_modify(|number| *number += 1);
        }
    }

    /// Sets the part of the status that is known of the platform.
    pub fn set_check(&self, check: CheckStatus) {
        self.update_status(|status| status.check = check);
    }

    /// Requests a check of the platform soon, without waiting for it.
    pub fn check_soon(&self) {
        // A full queue has checks already.
        let _ = self.checks.try_send(PollerCommand::Hint);
        self.hints.give();
    }

    /// The hints of the platform, for the part that looks at its questions.
    pub fn hints(&self) -> HintSignal {
        self.hints.clone()
    }

    /// Makes delayed attempts now.
    pub fn retry_now(&self) {
        self.retries.notify_one();
    }

    /// Checks the platform, or another repository, now, and waits for the result. A server must be one that the
    /// configuration names: a caller who may request a check must not be able to reach other servers on this box or
    /// near it.
    pub async fn check(&self, from: Option<RepositoryAddress>) -> Result<(), PollerCommandError> {
        if let Some(RepositoryAddress::Http { at, .. }) = &from
            && !self.servers.contains(at)
        {
            return Err(PollerCommandError::Unlisted { at: at.clone() });
        }
        let (answer, answered) = oneshot::channel();
        self.ask(PollerCommand::Now { from, answer }, answered).await
    }

    /// Forgets the trusted metadata of the platform. When this returns `Ok`, it is forgotten.
    pub async fn reset_trust(&self, principal: Principal) -> Result<(), PollerCommandError> {
        let (answer, answered) = oneshot::channel();
        self.ask(PollerCommand::Reset { principal, answer }, answered).await
    }

    async fn ask(
        &self,
        request: PollerCommand,
        answered: oneshot::Receiver<Result<(), String>>,
    ) -> Result<(), PollerCommandError> {
        match self.checks.try_send(request) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => return Err(PollerCommandError::Busy),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(PollerCommandError::Stopped),
        }
        answered.await.map_err(|_| PollerCommandError::Stopped)?.map_err(PollerCommandError::Failed)
    }

    /// Has the updater carry out an order of the administrator. When this returns `Ok`, its effect is on disk.
    pub async fn order(
        &self,
        subject: &Artifact,
        order: AdministratorCommand,
        principal: Principal,
    ) -> Result<(), AdministratorCommandError> {
        let (answer, answered) = oneshot::channel();
        let ordered = QueuedAdministratorCommand { subject: subject.clone(), order, principal, answer };
        self.orders.send(ordered).await.map_err(|_| AdministratorCommandError::Stopped)?;
        answered.await.map_err(|_| AdministratorCommandError::Stopped)?
    }
}

/// Reasons why a check or a reset failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PollerCommandError {
    #[error("a check of the platform is already running: try again in a moment")]
    Busy,
    #[error("updates have stopped: the daemon is shutting down, or its log has the reason")]
    Stopped,
    #[error("{at} is not allowed: name it in `[[egress.allow]]`, or use the server of updates.repository")]
    Unlisted { at: HostPort },
    #[error("{0}")]
    Failed(String),
}

/// Sets desired states, and wakes their reader when they differ from the last ones.
fn set(channel: &watch::Sender<Option<DesiredStates>>, desired_states: DesiredStates) {
    channel.send_if_modified(|current| {
        let changed = current.as_ref() != Some(&desired_states);
        if changed {
            *current = Some(desired_states);
        }
        changed
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::DesiredState;

    fn subject() -> Artifact {
        "models/m".parse().unwrap()
    }

    #[tokio::test]
    async fn the_same_desired_states_wake_the_updater_once() {
        let (updates, mut inbox) = Updates::channel(Vec::new());
        let desired_states = DesiredStates::from([(subject(), DesiredState::default())]);
        updates.set_desired_states(desired_states.clone());
        assert_eq!(inbox.desired_states.borrow_and_update().as_ref(), Some(&desired_states));
        updates.set_desired_states(desired_states);
        assert!(!inbox.desired_states.has_changed().unwrap());
        updates.set_desired_states(DesiredStates::new());
        assert!(inbox.desired_states.has_changed().unwrap());
    }

    #[tokio::test]
    async fn an_order_is_answered_by_the_updater_and_refused_when_there_is_none() {
        let (updates, mut inbox) = Updates::channel(Vec::new());
        let subject = subject();
        let refused = AdministratorCommandError::NoTrial { subject: subject.clone() };
        let (answered, ()) =
            tokio::join!(updates.order(&subject, AdministratorCommand::Cancel, Principal::Local), async {
                let ordered = inbox.orders.recv().await.unwrap();
                assert_eq!((ordered.order, ordered.principal), (AdministratorCommand::Cancel, Principal::Local));
                ordered.answer.send(Err(refused.clone())).unwrap();
            });
        assert_eq!(answered, Err(refused));
        drop(inbox);
        assert_eq!(
            updates.order(&subject, AdministratorCommand::Pin, Principal::Local).await,
            Err(AdministratorCommandError::Stopped)
        );
        assert_eq!(updates.check(None).await, Err(PollerCommandError::Stopped));
    }

    #[tokio::test]
    async fn hints_beyond_the_queue_are_one_check_and_callers_beyond_it_are_told_so() {
        let (updates, mut inbox) = Updates::channel(Vec::new());
        for _ in 0..100 {
            updates.check_soon();
        }
        assert_eq!(updates.check(None).await, Err(PollerCommandError::Busy));
        let mut waiting = 0;
        while inbox.checks.try_recv().is_ok() {
            waiting += 1;
        }
        assert_eq!(waiting, QUEUED_CHECKS_MAX);
    }

    #[test]
    fn a_status_that_stays_the_same_is_no_change() {
        let (updates, _inbox) = Updates::channel(Vec::new());
        let watched = updates.watch();
        updates.set_check(CheckStatus::default());
        assert!(!watched.has_changed().unwrap());
        updates.update_status(|status| status.fetched_bytes = 5);
        assert!(watched.has_changed().unwrap());
        assert_eq!(updates.status().fetched_bytes, 5);
    }

    #[tokio::test]
    async fn a_check_elsewhere_asks_a_server_of_the_configuration_or_a_folder() {
        let (updates, inbox) = Updates::channel(vec!["updates.example:443".parse().unwrap()]);
        drop(inbox);
        let check = |from: &str| updates.check(Some(from.parse().unwrap()));
        for unlisted in ["http://127.0.0.1:8000/", "https://updates.example:8443", "http://localhost:443", "https://a"]
        {
            assert!(matches!(check(unlisted).await, Err(PollerCommandError::Unlisted { .. })), "{unlisted}");
        }
        for asked in ["https://updates.example", "https://updates.example/elsewhere", "file:///media/usb"] {
            assert_eq!(check(asked).await, Err(PollerCommandError::Stopped), "{asked}");
        }
    }
}
