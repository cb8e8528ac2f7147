//! One receiver: what it should know, the way to it, and the task that sends.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use ledge_base::clock;
use ledge_base::names::{AlertName, DeviceName};
use ledge_part::check::Check;
use ledge_service::off_thread::blocking;
use tokio::sync::Notify;

use crate::message::AlertMessage;
use crate::store::{AllTold, Store};
use crate::tracker::{News, Tracker};
use crate::webhook::{SendError, Webhook};

/// The pause after the first failure. Each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// The longest pause. A receiver that asks for a longer one waits no longer either.
const PAUSE_MAX: Duration = Duration::from_mins(10);

/// Publishes messages at the broker. It never waits.
pub trait Publish: Debug + Send + Sync {
    /// The topic of an alert.
    fn topic(&self, alert: &AlertName) -> String;

    /// False without a connection to the broker, and without room for the message.
    fn publish(&self, alert: &AlertName, message: Bytes) -> bool;
}

/// The way to a receiver.
#[derive(Debug)]
pub enum Way {
    Webhook(Webhook),
    Broker(Arc<dyn Publish>),
}

impl Way {
    /// The name in metrics and documents.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Webhook(_) => "webhook",
            Self::Broker(_) => "mqtt",
        }
    }
}

/// One receiver.
#[derive(Debug)]
pub struct Receiver {
    pub alert: AlertName,
    pub way: Way,
    /// The address without a secret, or the topic.
    pub to: String,
    tracker: Mutex<Tracker>,
    looked: Notify,
    sent: AtomicU64,
    failed: AtomicU64,
    /// The reason why the last attempt failed; `None` after a success.
    error: Mutex<Option<String>>,
}

/// What is known of a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiverStatus {
    /// Messages since the start.
    pub sent: u64,
    /// Attempts that failed since the start.
    pub failed: u64,
    /// The reason why the last attempt failed.
    pub error: Option<String>,
    /// Messages that are due now.
    pub due: usize,
    /// The checks that are firing.
    pub firing: Vec<String>,
}

/// Keeps what receivers were told, for the next start. Clones share it.
#[derive(Debug, Clone)]
pub struct Keeper {
    store: Store,
    told: Arc<tokio::sync::Mutex<AllTold>>,
}

impl Keeper {
    /// Continues with what the receivers were told before.
    pub fn new(store: Store, told: AllTold) -> Self {
        Self { store, told: Arc::new(tokio::sync::Mutex::new(told)) }
    }

    async fn keep(&self, receiver: &Receiver) {
        let mut told = self.told.lock().await;
        let now = receiver.tracker().all_told();
        if told.get(&receiver.key()) == Some(&now) {
            return;
        }
        told.insert(receiver.key(), now);
        let (store, all) = (self.store.clone(), told.clone());
        blocking(move || store.write(&all)).await;
    }
}

impl Receiver {
    pub fn new(alert: AlertName, way: Way, to: String, tracker: Tracker) -> Self {
        Self {
            alert,
            way,
            to,
            tracker: Mutex::new(tracker),
            looked: Notify::new(),
            sent: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            error: Mutex::default(),
        }
    }

    /// The name of its state in the file.
    pub fn key(&self) -> String {
        key(&self.alert, self.way.name())
    }

    /// Takes the findings of a look.
    pub fn look(&self, findings: &[Check], elapsed: Duration) {
        self.tracker().look(findings, clock::unix_millis(), elapsed);
        self.looked.notify_one();
    }

    pub fn status(&self) -> ReceiverStatus {
        let (due, firing) = {
            let tracker = self.tracker();
            (tracker.due_count(clock::unix_millis()), tracker.firing().map(str::to_owned).collect())
        };
        ReceiverStatus {
            sent: self.sent.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            error: self.error().clone(),
            due,
            firing,
        }
    }

    /// Sends a message that says nothing but that it arrives.
    pub async fn test(&self, device: &DeviceName) -> Result<(), SendError> {
        self.send(&AlertMessage::test(device, &self.alert, clock::unix_millis())).await
    }

    /// Sends what is due after each look. May be dropped at any time: then a message may come again after the restart.
    pub async fn run(&self, device: &DeviceName, keeper: &Keeper) {
        let mut pause = FIRST_PAUSE;
        loop {
            self.looked.notified().await;
            // What is due is asked for anew after each pause: it may have changed.
            loop {
                let now_ms = clock::unix_millis();
                let due = self.tracker().due(now_ms);
                let Some(due) = due else { break };
                match self.send(&AlertMessage::new(device, &self.alert, &due, now_ms)).await {
                    Ok(()) => {
                        pause = FIRST_PAUSE;
                        let is_resolved = due.news == News::Resolved;
                        tracing::info!(alert = %self.alert, way = self.way.name(), check = due.check, is_resolved, "alert sent");
                        self.tracker().told(&due, now_ms);
                        keeper.keep(self).await;
                    }
                    Err(error) => {
                        let asked = error.retry_after().unwrap_or_default();
                        tokio::time::sleep(pause.max(asked).min(PAUSE_MAX)).await;
                        pause = (pause * 2).min(PAUSE_MAX);
                    }
                }
            }
        }
    }

    async fn send(&self, message: &AlertMessage<'_>) -> Result<(), SendError> {
        let json = Bytes::from(message.json());
        let sent = match &self.way {
            Way::Webhook(webhook) => webhook.send(json).await,
            Way::Broker(broker) => {
                let is_taken = broker.publish(&self.alert, json);
                is_taken.then_some(()).ok_or(SendError::NoBroker)
            }
        };
        let mut error = self.error();
        match &sent {
            Ok(()) => {
                self.sent.fetch_add(1, Ordering::Relaxed);
                *error = None;
            }
            Err(reason) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                let reason = Some(reason.to_string());
                if *error != reason {
                    let (alert, way) = (&self.alert, self.way.name());
                    tracing::warn!(%alert, way, to = self.to, reason, "an alert cannot be sent; it is tried again");
                }
                *error = reason;
            }
        }
        sent
    }

    fn tracker(&self) -> MutexGuard<'_, Tracker> {
        // Nothing panics under this lock, nor under the next.
        self.tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self) -> MutexGuard<'_, Option<String>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name of the state of a receiver in the file.
pub fn key(alert: &AlertName, way: &str) -> String {
    format!("{alert} {way}")
}
