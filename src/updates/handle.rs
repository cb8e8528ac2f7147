//! How everybody else talks to updates: wishes and orders go to the updater, looks to the poller, and both say how they do.

use std::sync::{Arc, Mutex, PoisonError};

use ledge_base::principal::Principal;
use ledge_egress::HostPort;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::config::RepositoryAddress;
use super::plan::Wishes;
use super::status::{LookStatus, UpdatesStatus};
use super::subject::Subject;

/// Orders of people that may wait.
const ORDERS: usize = 16;

/// Looks that may wait. A hint that finds the queue full has its look ahead of it.
const LOOKS: usize = 4;

/// A handle to updates. Clones share one state.
#[derive(Debug, Clone)]
pub struct Updates {
    wishes: watch::Sender<Option<Wishes>>,
    orders: mpsc::Sender<Ordered>,
    looks: mpsc::Sender<Look>,
    retries: Arc<Notify>,
    status: Arc<Status>,
    /// The servers that a look may be sent to.
    servers: Arc<[HostPort]>,
}

/// What the updater takes. Dropped, orders are answered with [`OrderError::Stopped`].
#[derive(Debug)]
pub struct UpdaterInbox {
    /// What the platform wants, the newest; `None` as long as nothing is known.
    pub wishes: watch::Receiver<Option<Wishes>>,
    pub orders: mpsc::Receiver<Ordered>,
    pub looks: mpsc::Receiver<Look>,
    /// Somebody wants what waits for its next attempt to be tried now.
    pub retries: Arc<Notify>,
}

/// Somebody wants the platform to be asked now.
#[derive(Debug)]
pub enum Look {
    /// At the configured repository. Nobody waits for it.
    Hint,
    /// Once, and somebody waits.
    Asked {
        /// Another repository than the configured one.
        from: Option<RepositoryAddress>,
        /// What came of it: the reason in words for people when it failed.
        answer: oneshot::Sender<Result<(), String>>,
    },
    /// Somebody has what is trusted forgotten, and waits. A look follows, for which nobody waits.
    Reset { principal: Principal, answer: oneshot::Sender<Result<(), String>> },
}

/// What the administrator of this box may say about an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Keep things as they are.
    Pin,
    Unpin,
    /// Go back to the version before: the one before the trial, else the one before the last commit.
    RollBack,
    Cancel,
}

impl Order {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Pin, Self::Unpin, Self::RollBack, Self::Cancel];

    /// As it is written in paths, on the command line and in the audit log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pin => "pin",
            Self::Unpin => "unpin",
            Self::RollBack => "rollback",
            Self::Cancel => "cancel",
        }
    }

    /// The order of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|order| order.name() == name)
    }
}

/// An order on its way to the updater.
#[derive(Debug)]
pub struct Ordered {
    pub subject: Subject,
    pub order: Order,
    pub principal: Principal,
    pub answer: oneshot::Sender<Result<(), OrderError>>,
}

/// Why an order was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    #[error("{subject} is not looked after: no update of it is known")]
    Unknown { subject: Subject },
    #[error("no update of {subject} is under way")]
    NoTrial { subject: Subject },
    #[error("no version of {subject} came by an update: there is nothing to go back from")]
    NothingToRollBack { subject: Subject },
    #[error("{subject}: {reason}")]
    Failed { subject: Subject, reason: String },
    #[error("updates have stopped: the daemon ends, or the log says why")]
    Stopped,
}

#[derive(Debug, Default)]
struct Status {
    current: Mutex<UpdatesStatus>,
    changes: watch::Sender<u64>,
}

impl Updates {
    /// A handle, and what the updater takes. A look elsewhere than at the platform may ask `servers`.
    pub fn channel(servers: Vec<HostPort>) -> (Self, UpdaterInbox) {
        let (wishes, wanted) = watch::channel(None);
        let (orders, ordered) = mpsc::channel(ORDERS);
        let (looks, asked) = mpsc::channel(LOOKS);
        let retries = Arc::<Notify>::default();
        let inbox = UpdaterInbox { wishes: wanted, orders: ordered, looks: asked, retries: retries.clone() };
        (Self { wishes, orders, looks, retries, servers: servers.into(), status: Arc::default() }, inbox)
    }

    /// Says what the platform wants. The updater is woken only when that is something else than before.
    pub fn want(&self, wishes: Wishes) {
        self.wishes.send_if_modified(|current| {
            let changed = current.as_ref() != Some(&wishes);
            if changed {
                *current = Some(wishes);
            }
            changed
        });
    }

    /// How updates do now.
    pub fn status(&self) -> UpdatesStatus {
        self.status.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A number that grows whenever [`Self::status`] changes.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.status.changes.subscribe()
    }

    /// Says how updates do: for the updater and the poller, each for its part.
    pub fn tell(&self, change: impl FnOnce(&mut UpdatesStatus)) {
        let mut current = self.status.current.lock().unwrap_or_else(PoisonError::into_inner);
        let before = current.clone();
        change(&mut current);
        let changed = *current != before;
        drop(current);
        if changed {
            self.status.changes.send_modify(|number| *number += 1);
        }
    }

    /// Says what is known of the platform.
    pub fn tell_look(&self, look: LookStatus) {
        self.tell(|status| status.look = look);
    }

    /// Has the platform asked soon. Nobody waits for it.
    pub fn look_now(&self) {
        // A full queue has looks ahead, which is what was wanted.
        let _ = self.looks.try_send(Look::Hint);
    }

    /// Has what waits for its next attempt tried now.
    pub fn retry_now(&self) {
        self.retries.notify_one();
    }

    /// Has the platform, or another repository, asked now, and waits for what comes of it. A server must be one that the
    /// configuration names: whoever may ask for a look must not reach whatever listens on this box or near it.
    pub async fn look(&self, from: Option<RepositoryAddress>) -> Result<(), LookRefused> {
        if let Some(RepositoryAddress::Http { at, .. }) = &from
            && !self.servers.contains(at)
        {
            return Err(LookRefused::Unlisted { at: at.clone() });
        }
        let (answer, answered) = oneshot::channel();
        self.ask(Look::Asked { from, answer }, answered).await
    }

    /// Has what is trusted of the platform forgotten. When this returns `Ok`, it is.
    pub async fn reset_trust(&self, principal: Principal) -> Result<(), LookRefused> {
        let (answer, answered) = oneshot::channel();
        self.ask(Look::Reset { principal, answer }, answered).await
    }

    async fn ask(&self, look: Look, answered: oneshot::Receiver<Result<(), String>>) -> Result<(), LookRefused> {
        match self.looks.try_send(look) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => return Err(LookRefused::Busy),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(LookRefused::Stopped),
        }
        answered.await.map_err(|_| LookRefused::Stopped)?.map_err(LookRefused::Failed)
    }

    /// Has the updater carry out what the administrator of this box wants. When this returns `Ok`, it is on disk.
    pub async fn order(&self, subject: &Subject, order: Order, principal: Principal) -> Result<(), OrderError> {
        let (answer, answered) = oneshot::channel();
        let ordered = Ordered { subject: subject.clone(), order, principal, answer };
        self.orders.send(ordered).await.map_err(|_| OrderError::Stopped)?;
        answered.await.map_err(|_| OrderError::Stopped)?
    }
}

/// Why a look that somebody waited for brought nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookRefused {
    #[error("the platform is being asked already: try again in a moment")]
    Busy,
    #[error("updates have stopped: the daemon ends, or the log says why")]
    Stopped,
    #[error("{at} is not in the allow-list: only a server of `[[egress.allow]]` or of updates.repository is asked")]
    Unlisted { at: HostPort },
    #[error("{0}")]
    Failed(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Wish;

    fn subject() -> Subject {
        "models/m".parse().unwrap()
    }

    #[tokio::test]
    async fn the_same_wishes_wake_the_updater_once() {
        let (updates, mut inbox) = Updates::channel(Vec::new());
        let wishes = Wishes::from([(subject(), Wish::default())]);
        updates.want(wishes.clone());
        assert_eq!(inbox.wishes.borrow_and_update().as_ref(), Some(&wishes));
        updates.want(wishes);
        assert!(!inbox.wishes.has_changed().unwrap());
        updates.want(Wishes::new());
        assert!(inbox.wishes.has_changed().unwrap());
    }

    #[tokio::test]
    async fn an_order_is_answered_by_the_updater_and_refused_when_there_is_none() {
        let (updates, mut inbox) = Updates::channel(Vec::new());
        let subject = subject();
        let refused = OrderError::NoTrial { subject: subject.clone() };
        let (answered, ()) = tokio::join!(updates.order(&subject, Order::Cancel, Principal::Local), async {
            let ordered = inbox.orders.recv().await.unwrap();
            assert_eq!((ordered.order, ordered.principal), (Order::Cancel, Principal::Local));
            ordered.answer.send(Err(refused.clone())).unwrap();
        });
        assert_eq!(answered, Err(refused));
        drop(inbox);
        assert_eq!(updates.order(&subject, Order::Pin, Principal::Local).await, Err(OrderError::Stopped));
        assert_eq!(updates.look(None).await, Err(LookRefused::Stopped));
    }

    #[tokio::test]
    async fn hints_beyond_the_queue_are_one_look_and_orders_beyond_it_are_told_so() {
        let (updates, mut inbox) = Updates::channel(Vec::new());
        for _ in 0..100 {
            updates.look_now();
        }
        assert_eq!(updates.look(None).await, Err(LookRefused::Busy));
        let mut waiting = 0;
        while inbox.looks.try_recv().is_ok() {
            waiting += 1;
        }
        assert_eq!(waiting, LOOKS);
    }

    #[test]
    fn a_status_that_stays_the_same_is_no_change() {
        let (updates, _inbox) = Updates::channel(Vec::new());
        let watched = updates.watch();
        updates.tell_look(LookStatus::default());
        assert!(!watched.has_changed().unwrap());
        updates.tell(|status| status.fetched_bytes = 5);
        assert!(watched.has_changed().unwrap());
        assert_eq!(updates.status().fetched_bytes, 5);
    }

    #[tokio::test]
    async fn a_look_elsewhere_asks_a_server_of_the_configuration_or_a_folder() {
        let (updates, inbox) = Updates::channel(vec!["updates.example:443".parse().unwrap()]);
        drop(inbox);
        let look = |from: &str| updates.look(Some(from.parse().unwrap()));
        for unlisted in ["http://127.0.0.1:8000/", "https://updates.example:8443", "http://localhost:443", "https://a"]
        {
            assert!(matches!(look(unlisted).await, Err(LookRefused::Unlisted { .. })), "{unlisted}");
        }
        for asked in ["https://updates.example", "https://updates.example/elsewhere", "file:///media/usb"] {
            assert_eq!(look(asked).await, Err(LookRefused::Stopped), "{asked}");
        }
    }
}
