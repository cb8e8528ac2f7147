//! Messages of other parts of the daemon: those that they publish, and the topics that they subscribe to.
//!
//! A part never waits for the broker. A retained message replaces the earlier one of its topic that has not been sent,
//! and all of them are sent again on each connection, because a broker may have forgotten them. Other messages wait in
//! a bounded queue, from which the oldest are dropped.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use ledge_egress::EgressContent;
use tokio::sync::{Notify, mpsc};

use crate::client::packet::{MessageProperties, MqttMessage, Qos};
pub use crate::client::receipt::PublicationReceipt;
use crate::topics::{TopicFilter, TopicName};

/// The most messages that are not retained and wait for the broker.
const WAITING_MAX: usize = 1024;

/// The most topics with a retained message.
const RETAINED_MAX: usize = 16_384;

/// The most bytes of the payloads of all messages together, besides pictures.
const BYTES_MAX: usize = 32 << 20;

/// The most bytes of all retained pictures together: a separate budget, so that no picture displaces an event.
const PICTURE_BYTES_MAX: usize = 64 << 20;

/// A message of another part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingPublication {
    pub topic: TopicName,
    pub payload: Bytes,
    /// The broker keeps it for later subscribers. An empty payload removes the kept message.
    pub retain: bool,
    /// The kind of content, for the egress policy.
    pub content: EgressContent,
    pub content_type: Option<&'static str>,
    /// Settled once the broker has acknowledged the message or refused it, and dropped with it.
    pub receipt: Option<PublicationReceipt>,
}

/// A topic that another part subscribes to: its messages are passed on while there is room.
#[derive(Debug, Clone)]
pub struct TopicListener {
    pub filter: TopicFilter,
    pub messages: mpsc::Sender<Bytes>,
}

/// Takes the messages of other parts. Clones share the queue.
#[derive(Debug, Clone, Default)]
pub struct Publisher(Arc<PublisherState>);

#[derive(Debug, Default)]
struct PublisherState {
    pending: Mutex<PendingMessages>,
    woken: Notify,
    dropped: AtomicU64,
    is_connected: AtomicBool,
}

#[derive(Debug, Default)]
struct PendingMessages {
    /// The newest retained message of each topic; true if it is due.
    retained: BTreeMap<TopicName, (OutgoingPublication, bool)>,
    due: VecDeque<DueMessage>,
    /// The number of messages in `due` that are not retained.
    waiting: usize,
    bytes: usize,
    /// The bytes of retained pictures.
    picture_bytes: usize,
}

#[derive(Debug)]
enum DueMessage {
    Retained(TopicName),
    Once(OutgoingPublication),
}

impl Publisher {
    /// Publishes a message, now or when there is a connection. False if there is no room for it.
    pub fn publish(&self, publication: OutgoingPublication) -> bool {
        let mut pending = self.0.lock();
        let dropped = if publication.retain { pending.retain(publication) } else { pending.enqueue(publication) };
        drop(pending);
        if dropped > 0 {
            self.0.dropped.fetch_add(dropped, Ordering::Relaxed);
        }
        self.0.woken.notify_one();
        dropped == 0
    }

    /// The number of messages that were dropped for want of room.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Returns `true` while the session that publishes has a connection.
    pub fn is_connected(&self) -> bool {
        self.0.is_connected.load(Ordering::Relaxed)
    }

    /// The connection has ended.
    pub fn disconnected(&self) {
        self.0.is_connected.store(false, Ordering::Relaxed);
    }

    /// Makes all retained messages due again, on a new connection.
    pub fn connected(&self) {
        self.0.is_connected.store(true, Ordering::Relaxed);
        let mut pending = self.0.lock();
        let PendingMessages { retained, due, .. } = &mut *pending;
        for (topic, (_, is_due)) in retained {
            if !std::mem::replace(is_due, true) {
                due.push_back(DueMessage::Retained(topic.clone()));
            }
        }
    }

    /// The next message that is due.
    pub fn next(&self) -> Option<(MqttMessage, EgressContent, Option<PublicationReceipt>)> {
        let publication = self.0.lock().next()?;
        let OutgoingPublication { topic, payload, retain, content, content_type, receipt } = publication;
        let properties =
            MessageProperties { content_type: content_type.map(str::to_owned), ..MessageProperties::default() };
        Some((MqttMessage { topic, payload, qos: Qos::AtLeastOnce, retain, properties }, content, receipt))
    }

    /// Waits until a message may be due. May be dropped at any time.
    pub async fn changed(&self) {
        self.0.woken.notified().await;
    }
}

impl OutgoingPublication {
    /// A JSON document that the broker passes on and does not keep.
    pub fn json(topic: TopicName, payload: Bytes, content: EgressContent) -> Self {
        let content_type = Some("application/json");
        Self { topic, payload, retain: false, content, content_type, receipt: None }
    }

    /// The counter of its bytes.
    fn budget<'b>(&self, bytes: &'b mut usize, picture_bytes: &'b mut usize) -> &'b mut usize {
        if self.retain && self.content == EgressContent::Picture { picture_bytes } else { bytes }
    }
}

impl PublisherState {
    fn lock(&self) -> MutexGuard<'_, PendingMessages> {
        // Nothing panics under this lock.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingMessages {
    /// Takes a retained message. Returns the number of messages that were dropped for it, itself included.
    fn retain(&mut self, publication: OutgoingPublication) -> u64 {
        let topic = publication.topic.clone();
        let is_new = !self.retained.contains_key(&topic);
        let (mut bytes, mut picture_bytes) = (self.bytes, self.picture_bytes);
        if let Some((before, _)) = self.retained.get(&topic) {
            *before.budget(&mut bytes, &mut picture_bytes) -= before.payload.len();
        }
        *publication.budget(&mut bytes, &mut picture_bytes) += publication.payload.len();
        let is_full = bytes > BYTES_MAX || picture_bytes > PICTURE_BYTES_MAX;
        if is_full || (is_new && self.retained.len() >= RETAINED_MAX) {
            return 1;
        }
        (self.bytes, self.picture_bytes) = (bytes, picture_bytes);
        match self.retained.insert(topic.clone(), (publication, true)) {
            Some((_, true)) => {}
            _ => self.due.push_back(DueMessage::Retained(topic)),
        }
        0
    }

    fn enqueue(&mut self, publication: OutgoingPublication) -> u64 {
        let mut dropped = 0;
        while self.waiting >= WAITING_MAX || (self.waiting > 0 && self.bytes + publication.payload.len() > BYTES_MAX) {
            let Some(oldest) = self.due.iter().position(|due| matches!(due, DueMessage::Once(_))) else { break };
            if let Some(DueMessage::Once(oldest)) = self.due.remove(oldest) {
                self.bytes -= oldest.payload.len();
            }
            self.waiting -= 1;
            dropped += 1;
        }
        if self.bytes + publication.payload.len() > BYTES_MAX {
            return dropped + 1;
        }
        self.bytes += publication.payload.len();
        self.waiting += 1;
        self.due.push_back(DueMessage::Once(publication));
        dropped
    }

    fn next(&mut self) -> Option<OutgoingPublication> {
        match self.due.pop_front()? {
            DueMessage::Once(publication) => {
                self.waiting -= 1;
                self.bytes -= publication.payload.len();
                Some(publication)
            }
            DueMessage::Retained(topic) => {
                let (publication, is_due) = self.retained.get_mut(&topic)?;
                *is_due = false;
                let publication = publication.clone();
                // The broker keeps nothing for this topic any more, and neither does this box.
                if publication.payload.is_empty() {
                    self.retained.remove(&topic);
                }
                Some(publication)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn publication(topic: &str, payload: impl Into<Bytes>, retain: bool) -> OutgoingPublication {
        let topic = topic.parse().unwrap();
        OutgoingPublication {
            topic,
            payload: payload.into(),
            retain,
            content: EgressContent::Answer,
            content_type: None,
            receipt: None,
        }
    }

    fn drain(publisher: &Publisher) -> Vec<(String, String)> {
        let next = || publisher.next().map(|(message, ..)| message);
        let text = |message: MqttMessage| {
            (message.topic.as_str().to_owned(), String::from_utf8_lossy(&message.payload).into_owned())
        };
        std::iter::from_fn(next).map(text).collect()
    }

    fn texts(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(topic, text)| ((*topic).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn the_newest_retained_message_replaces_the_older_one_and_is_sent_again() {
        let publisher = Publisher::default();
        for (topic, text) in [("a", "1"), ("b", "1"), ("a", "2")] {
            assert!(publisher.publish(publication(topic, text, true)));
        }
        publisher.publish(publication("e", "event", false));
        assert_eq!(drain(&publisher), texts(&[("a", "2"), ("b", "1"), ("e", "event")]));
        assert_eq!(drain(&publisher), []);
        publisher.connected();
        publisher.connected();
        assert_eq!(drain(&publisher), texts(&[("a", "2"), ("b", "1")]));
    }

    #[test]
    fn a_removed_message_is_removed_once_and_not_again() {
        let publisher = Publisher::default();
        publisher.publish(publication("a", "1", true));
        publisher.publish(publication("a", "", true));
        assert_eq!(drain(&publisher), texts(&[("a", "")]));
        publisher.connected();
        assert_eq!(drain(&publisher), []);
    }

    #[test]
    fn the_oldest_messages_are_dropped_and_no_retained_one() {
        let publisher = Publisher::default();
        publisher.publish(publication("state", "on", true));
        for number in 0..WAITING_MAX + 2 {
            publisher.publish(publication("event", number.to_string(), false));
        }
        let all = drain(&publisher);
        assert_eq!((all.len(), publisher.dropped()), (WAITING_MAX + 1, 2));
        assert_eq!(all[..2], texts(&[("state", "on"), ("event", "2")]));

        assert!(!publisher.publish(publication("large", vec![0; BYTES_MAX], true)));
        assert_eq!(drain(&publisher), []);
    }

    #[test]
    fn no_picture_displaces_an_event_or_a_state() {
        let publisher = Publisher::default();
        let picture = |topic: &str, bytes: usize| {
            let picture = publication(topic, vec![0; bytes], true);
            publisher.publish(OutgoingPublication { content: EgressContent::Picture, ..picture })
        };
        assert!(picture("a", PICTURE_BYTES_MAX) && picture("a", PICTURE_BYTES_MAX) && !picture("b", 1));
        assert!(publisher.publish(publication("state", "on", true)));
        assert!(publisher.publish(publication("event", "1", false)));
        assert!(publisher.publish(publication("a", "", true)), "it is removed");
        assert!(picture("b", PICTURE_BYTES_MAX));
    }

    #[tokio::test]
    async fn a_message_wakes_whoever_waits_also_later() {
        let publisher = Publisher::default();
        publisher.publish(publication("a", "1", true));
        publisher.changed().await;
    }

    proptest! {
        #[test]
        fn memory_is_counted_to_the_byte(steps in prop::collection::vec((0..6_u8, 0..40_usize, 0..4_u8), 0..200)) {
            let publisher = Publisher::default();
            for (topic, length, what) in steps {
                match what {
                    0 => drop(publisher.next()),
                    1 => publisher.connected(),
                    _ => drop(publisher.publish(publication(&topic.to_string(), vec![b'x'; length], what == 2))),
                }
                let pending = publisher.0.lock();
                let retained: usize = pending.retained.values().map(|(it, _)| it.payload.len()).sum();
                let once = pending.due.iter().filter_map(|due| match due {
                    DueMessage::Once(it) => Some(it.payload.len()),
                    DueMessage::Retained(_) => None,
                });
                let once: Vec<_> = once.collect();
                prop_assert_eq!(pending.bytes, retained + once.iter().sum::<usize>());
                prop_assert_eq!(pending.waiting, once.len());
                let due = pending.retained.values().filter(|(_, is_due)| *is_due).count();
                prop_assert_eq!(pending.due.len(), once.len() + due);
            }
        }
    }
}
