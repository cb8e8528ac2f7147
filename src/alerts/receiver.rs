//! One receiver: the alerts that are due to it, its connection, and the task that sends.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use ledge_base::clock;
use ledge_base::names::{AlertName, DeviceName};
use ledge_egress::{Webhook, WebhookError};
use ledge_part::check::Finding;
use ledge_service::off_thread::blocking;
use tokio::sync::Notify;

use crate::message::AlertMessage;
use crate::store::{AlertStore, SentAlerts};
use crate::tracker::{AlertTracker, NotificationKind, UndeliveredAlerts};

/// The pause after the first failure. Each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// The longest pause. A receiver that asks for a longer one waits no longer either.
const PAUSE_MAX: Duration = Duration::from_mins(10);

/// The number of messages that are tried before a pause. A message that is refused for its content must not delay the
/// others, and a receiver that is away is not asked for each.
const FAILURES_MAX: usize = 2;

/// Publishes messages at the broker. It never waits.
pub trait AlertPublisher: Debug + Send + Sync {
    /// The address of the broker.
    fn broker(&self) -> &str;

    /// The topic of an alert.
    fn topic(&self, alert: &AlertName) -> String;

    /// False without a connection to the broker, and without room for the message.
    fn publish(&self, alert: &AlertName, message: Bytes) -> bool;
}

/// The way to a receiver.
#[derive(Debug)]
pub enum AlertTransport {
    Webhook(Webhook),
    Broker(Arc<dyn AlertPublisher>),
}

impl AlertTransport {
    /// The name in metrics and documents.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Webhook(_) => "webhook",
            Self::Broker(_) => "mqtt",
        }
    }
}

/// The reason why a message did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum AlertSendError {
    #[error(transparent)]
    Webhook(#[from] WebhookError),
    #[error("there is no connection to the broker")]
    NoBroker,
}

impl AlertSendError {
    /// The pause that the receiver asks for.
    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Webhook(error) => error.retry_after(),
            Self::NoBroker => None,
        }
    }
}

/// One receiver.
#[derive(Debug)]
pub struct AlertReceiver {
    pub alert: AlertName,
    pub way: AlertTransport,
    /// The address without a secret, or the topic.
    pub to: String,
    /// The name of its state in the file.
    key: String,
    tracker: Mutex<AlertTracker>,
    looked: Notify,
    sent: AtomicU64,
    failed: AtomicU64,
    /// The reason why the last attempt failed; `None` after a success, and once nothing is due any more.
    error: Mutex<Option<String>>,
}

/// The known state of a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlertReceiverStatus {
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

/// Saves what each receiver was sent, for the next start. Clones share it.
#[derive(Debug, Clone)]
pub struct SentAlertsKeeper {
    store: AlertStore,
    told: Arc<tokio::sync::Mutex<SentAlerts>>,
}

impl SentAlertsKeeper {
    /// Continues with what the receivers were sent before this start.
    pub fn new(store: AlertStore, told: SentAlerts) -> Self {
        Self { store, told: Arc::new(tokio::sync::Mutex::new(told)) }
    }

    /// Writes what a receiver was sent, if that changed.
    async fn keep(&self, receiver: &AlertReceiver) {
        let mut told = self.told.lock().await;
        let now = receiver.tracker().all_told();
        if told.get(&receiver.key) == Some(&now) {
            return;
        }
        told.insert(receiver.key.clone(), now);
        let (store, all) = (self.store.clone(), told.clone());
        blocking(move || store.write(&all)).await;
    }
}

/// The attempts of a receiver so far.
#[derive(Debug)]
struct DeliveryAttempts {
    failures: UndeliveredAlerts,
    /// The next pause.
    pause: Duration,
}

impl Default for DeliveryAttempts {
    fn default() -> Self {
        Self { failures: UndeliveredAlerts::default(), pause: FIRST_PAUSE }
    }
}

impl DeliveryAttempts {
    /// Ends them, with the pause after which they may begin again. `asked` is the one that the receiver asks for.
    fn end(&mut self, asked: Option<Duration>) -> Duration {
        self.failures.take();
        let pause = self.pause.max(asked.unwrap_or_default()).min(PAUSE_MAX);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        pause
    }
}

impl AlertReceiver {
    pub fn new(alert: AlertName, way: AlertTransport, to: String, key: String, tracker: AlertTracker) -> Self {
        Self {
            alert,
            way,
            to,
            key,
            tracker: Mutex::new(tracker),
            looked: Notify::new(),
            sent: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            error: Mutex::default(),
        }
    }

    /// Takes the findings of a look.
    pub fn look(&self, findings: &[Finding], elapsed: Duration) {
        let now_ms = clock::unix_millis();
        let due = {
            let mut tracker = self.tracker();
            tracker.look(findings, now_ms, elapsed);
            tracker.due_count(now_ms)
        };
        if due == 0 {
            // Nothing waits for it any more, so nothing would ever show that the receiver is back. An alert about this
            // failure has to end.
            *self.error() = None;
        }
        self.looked.notify_one();
    }

    pub fn status(&self) -> AlertReceiverStatus {
        let (due, firing) = {
            let tracker = self.tracker();
            (tracker.due_count(clock::unix_millis()), tracker.firing().map(str::to_owned).collect())
        };
        AlertReceiverStatus {
            sent: self.sent.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            error: self.error().clone(),
            due,
            firing,
        }
    }

    /// Sends a message that says nothing but that it arrives.
    pub async fn test(&self, device: &DeviceName) -> Result<(), AlertSendError> {
        self.send(&AlertMessage::test(device, &self.alert, clock::unix_millis())).await
    }

    /// Sends what is due after each look. May be dropped at any time: then a message may come again after the restart.
    pub async fn run(&self, device: &DeviceName, keeper: &SentAlertsKeeper) {
        let mut attempts = DeliveryAttempts::default();
        loop {
            self.looked.notified().await;
            while let Some(pause) = self.send_due(device, keeper, &mut attempts).await {
                tokio::time::sleep(pause).await;
            }
        }
    }

    /// Sends what is due. Returns the pause after which to try again, if something could not be sent.
    async fn send_due(
        &self,
        device: &DeviceName,
        keeper: &SentAlertsKeeper,
        attempts: &mut DeliveryAttempts,
    ) -> Option<Duration> {
        loop {
            // Read again for each message, as it may have changed.
            let now_ms = clock::unix_millis();
            let due = self.tracker().due(now_ms, &attempts.failures);
            let Some(due) = due else { break };
            match self.send(&AlertMessage::new(device, &self.alert, &due, now_ms)).await {
                Ok(()) => {
                    attempts.pause = FIRST_PAUSE;
                    let is_resolved = due.news == NotificationKind::Resolved;
                    tracing::info!(alert = %self.alert, way = self.way.name(), check = due.check, is_resolved, "alert sent");
                    self.tracker().told(&due, now_ms);
                    keeper.keep(self).await;
                }
                Err(error) => {
                    let asked = error.retry_after();
                    if attempts.failures.add(&due) >= FAILURES_MAX || asked.is_some() {
                        return Some(attempts.end(asked));
                    }
                }
            }
        }
        attempts.failures.take().then(|| attempts.end(None))
    }

    async fn send(&self, message: &AlertMessage<'_>) -> Result<(), AlertSendError> {
        let json = Bytes::from(message.json());
        let sent = match &self.way {
            AlertTransport::Webhook(webhook) => webhook.send(json).await.map_err(AlertSendError::from),
            AlertTransport::Broker(broker) => {
                let is_taken = broker.publish(&self.alert, json);
                is_taken.then_some(()).ok_or(AlertSendError::NoBroker)
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

    fn tracker(&self) -> MutexGuard<'_, AlertTracker> {
        // Nothing panics under this lock, nor under the next.
        self.tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self) -> MutexGuard<'_, Option<String>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ledge_part::check::FindingStatus;

    use super::*;
    use crate::tracker::AlertReceiverRules;

    /// A broker that refuses the messages with one of these texts.
    #[derive(Debug, Default)]
    struct Picky {
        refused: Mutex<Vec<&'static str>>,
        taken: Mutex<Vec<String>>,
    }

    impl AlertPublisher for Picky {
        fn broker(&self) -> &'static str {
            "broker"
        }

        fn topic(&self, alert: &AlertName) -> String {
            alert.to_string()
        }

        fn publish(&self, _alert: &AlertName, message: Bytes) -> bool {
            let message: serde_json::Value = serde_json::from_slice(&message).unwrap();
            let check = message["check"].as_str().unwrap();
            let is_taken = !self.refused.lock().unwrap().iter().any(|refused| check.contains(refused));
            if is_taken {
                self.taken.lock().unwrap().push(format!("{check} {}", message["status"].as_str().unwrap()));
            }
            is_taken
        }
    }

    impl Picky {
        fn take(&self) -> Vec<String> {
            std::mem::take(&mut *self.taken.lock().unwrap())
        }
    }

    fn receiver(broker: &Arc<Picky>) -> AlertReceiver {
        let rules = AlertReceiverRules {
            least: FindingStatus::Warn,
            checks: Vec::new(),
            except: "alert shop".to_owned(),
            hold: Duration::ZERO,
            repeat: None,
        };
        let tracker = AlertTracker::new(rules, BTreeMap::new());
        let (alert, way) = (AlertName::constant("shop"), AlertTransport::Broker(broker.clone()));
        AlertReceiver::new(alert, way, "to".to_owned(), "key".to_owned(), tracker)
    }

    fn keeper(folder: &tempfile::TempDir) -> SentAlertsKeeper {
        SentAlertsKeeper::new(AlertStore::open(folder.path()).0, SentAlerts::new())
    }

    #[tokio::test]
    async fn a_failure_ends_once_nothing_is_due_any_more() {
        let broker = Arc::new(Picky { refused: Mutex::new(vec![""]), ..Picky::default() });
        let (receiver, device) = (receiver(&broker), DeviceName::constant("box"));
        let folder = tempfile::tempdir().unwrap();
        let (keeper, mut attempts) = (keeper(&folder), DeliveryAttempts::default());
        let look = |findings: &[Finding]| receiver.look(findings, Duration::from_mins(1));

        look(&[Finding::fail("state", "full", "free it")]);
        assert!(receiver.send_due(&device, &keeper, &mut attempts).await.is_some());
        look(&[Finding::fail("state", "full", "free it")]);
        assert!(receiver.status().error.is_some(), "it lasts");
        for _ in 0..2 {
            look(&[]);
        }
        assert_eq!((receiver.status().error, receiver.status().due), (None, 0));
        assert_eq!(receiver.send_due(&device, &keeper, &mut attempts).await, None);
    }

    #[tokio::test]
    async fn messages_that_are_refused_hold_up_no_other() {
        let broker = Arc::new(Picky { refused: Mutex::new(vec!["bad"]), ..Picky::default() });
        let (receiver, device) = (receiver(&broker), DeviceName::constant("box"));
        let folder = tempfile::tempdir().unwrap();
        let (keeper, mut attempts) = (keeper(&folder), DeliveryAttempts::default());
        let names = ["a bad", "b", "c bad", "d bad", "e bad", "f"];
        receiver.look(&names.map(|name| Finding::fail(name, "x", "y")), Duration::from_mins(1));

        assert_eq!(receiver.send_due(&device, &keeper, &mut attempts).await, Some(FIRST_PAUSE));
        assert_eq!(broker.take(), ["b firing"]);
        assert_eq!(receiver.send_due(&device, &keeper, &mut attempts).await, Some(FIRST_PAUSE * 2));
        assert_eq!(receiver.send_due(&device, &keeper, &mut attempts).await, Some(FIRST_PAUSE));
        assert_eq!(broker.take(), ["f firing"]);
        assert_eq!((receiver.status().failed, receiver.status().due), (6, 4));
        broker.refused.lock().unwrap().clear();
        assert_eq!(receiver.send_due(&device, &keeper, &mut attempts).await, None);
        assert_eq!(broker.take(), ["d bad firing", "e bad firing", "a bad firing", "c bad firing"]);
    }

    #[tokio::test]
    async fn a_message_alone_is_tried_once_before_each_pause() {
        let broker = Arc::new(Picky { refused: Mutex::new(vec![""]), ..Picky::default() });
        let (receiver, device) = (receiver(&broker), DeviceName::constant("box"));
        let folder = tempfile::tempdir().unwrap();
        let (keeper, mut attempts) = (keeper(&folder), DeliveryAttempts::default());
        receiver.look(&[Finding::fail("state", "full", "free it")], Duration::from_mins(1));
        for count in 1..=12 {
            let pause = receiver.send_due(&device, &keeper, &mut attempts).await.unwrap();
            assert_eq!(receiver.status().failed, count);
            assert_eq!(pause, (FIRST_PAUSE * 2_u32.pow(u32::try_from(count).unwrap() - 1)).min(PAUSE_MAX));
        }
    }
}
