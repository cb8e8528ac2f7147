//! Messages of an inbox on their way to a webhook, or to the broker: at least once each.

use std::ffi::OsString;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use ledge_base::backoff::{self, Backoff};
use ledge_base::names::InboxName;
use ledge_egress::{Webhook, WebhookError};
use tokio::sync::Notify;

use crate::inbox::Inbox;
use crate::workspace::DeliveryWay;

/// The pauses after a failure.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_mins(10);

/// The number of messages that are tried before a pause: one that is refused for its content must not delay the
/// others, and a receiver that is away is not asked for each.
const FAILURES_MAX: usize = 2;

/// Publishes messages at the broker.
pub trait DocumentPublisher: Debug + Send + Sync {
    /// Publishes a message, and waits until the broker has it.
    fn publish<'a>(&'a self, inbox: &'a InboxName, message: Bytes) -> BoxFuture<'a, Result<(), String>>;
}

/// The receiver of the messages of an inbox.
#[derive(Debug)]
pub enum DocumentReceiver {
    Webhook(Webhook),
    Broker(Arc<dyn DocumentPublisher>),
}

impl DocumentReceiver {
    pub fn way(&self) -> DeliveryWay {
        match self {
            Self::Webhook(_) => DeliveryWay::Webhook,
            Self::Broker(_) => DeliveryWay::Mqtt,
        }
    }
}

/// Delivers the messages of an inbox to one receiver.
#[derive(Debug)]
pub struct Delivery {
    inbox: Arc<Inbox>,
    receiver: DocumentReceiver,
    has_message: Arc<Notify>,
    sent: AtomicU64,
    waiting: AtomicU64,
    /// The reason why the last message did not arrive.
    error: Mutex<Option<String>>,
}

/// The figures of a delivery since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryStatus {
    pub sent: u64,
    pub waiting: u64,
    pub error: Option<String>,
}

impl Delivery {
    /// Delivers messages as `has_message` is notified.
    pub fn new(inbox: Arc<Inbox>, receiver: DocumentReceiver, has_message: Arc<Notify>) -> Self {
        let [sent, waiting] = [AtomicU64::new(0), AtomicU64::new(0)];
        Self { inbox, receiver, has_message, sent, waiting, error: Mutex::default() }
    }

    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    pub fn way(&self) -> DeliveryWay {
        self.receiver.way()
    }

    pub fn status(&self) -> DeliveryStatus {
        DeliveryStatus {
            sent: self.sent.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
            error: self.error().clone(),
        }
    }

    /// Delivers messages until it is dropped, which may happen at any time: then a message may come again.
    pub async fn run(&self) {
        let mut pauses = Backoff::new(FIRST_PAUSE, PAUSE_MAX);
        loop {
            match self.deliver_all().await {
                Ok(()) => {
                    pauses.reset();
                    self.has_message.notified().await;
                }
                Err(asked) => tokio::time::sleep(pauses.pause(backoff::random()).max(asked).min(PAUSE_MAX)).await,
            }
        }
    }

    /// Delivers what waits. The error is the pause that the receiver asks for.
    async fn deliver_all(&self) -> Result<(), Duration> {
        let way = self.way();
        let mut failures = 0;
        let mut asked = None;
        let mut last: Option<OsString> = None;
        loop {
            let behind = last.take();
            let (name, waiting) =
                self.inbox.files.run(move |files| files.next_undelivered(way, behind.as_deref())).await;
            self.waiting.store(waiting as u64, Ordering::Relaxed);
            let Some(name) = name else { break };
            last = Some(name.clone());
            let wanted = name.clone();
            let message = self.inbox.files.run(move |files| files.message(way, &wanted)).await;
            let message = message.map_err(|error| self.failed(error.to_string(), Duration::ZERO))?;
            if let Some(message) = message {
                if let Err((reason, pause)) = self.send(message).await {
                    failures += 1;
                    asked = asked.max(Some(self.failed(reason, pause)));
                    if failures >= FAILURES_MAX || !pause.is_zero() {
                        break;
                    }
                    continue;
                }
                self.sent.fetch_add(1, Ordering::Relaxed);
            }
            let removed = self.inbox.files.run(move |files| files.delivered(way, &name)).await;
            removed.map_err(|error| self.failed(error.to_string(), Duration::ZERO))?;
        }
        match asked {
            None => {
                *self.error() = None;
                Ok(())
            }
            Some(asked) => Err(asked),
        }
    }

    /// Sends a message. The error has the pause that the receiver asks for.
    async fn send(&self, message: Bytes) -> Result<(), (String, Duration)> {
        match &self.receiver {
            DocumentReceiver::Webhook(webhook) => webhook.send(message).await.map_err(|error: WebhookError| {
                let pause = error.retry_after().unwrap_or_default();
                (error.to_string(), pause)
            }),
            DocumentReceiver::Broker(broker) => {
                let sent = broker.publish(&self.inbox.config.name, message).await;
                sent.map_err(|reason| (reason, Duration::ZERO))
            }
        }
    }

    fn failed(&self, reason: String, pause: Duration) -> Duration {
        let mut error = self.error();
        if error.as_deref() != Some(&reason) {
            let (inbox, way) = (&self.inbox.config.name, self.way().name());
            tracing::warn!(name: "inbox.undelivered", %inbox, way, reason, "a message cannot be delivered; it is tried again");
        }
        *error = Some(reason);
        pause
    }

    fn error(&self) -> MutexGuard<'_, Option<String>> {
        // Nothing panics under this lock.
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
