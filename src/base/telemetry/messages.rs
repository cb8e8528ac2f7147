//! Counters of MQTT messages: written by the crate `mqtt`, read by `/metrics`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The kind of a received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// A request to this box.
    Call,
    /// A request to the group that this box is in.
    GroupCall,
    /// A message that a binding turns into a request.
    Binding,
}

/// The class of an answer, by its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerClass {
    /// Below 400.
    Ok,
    /// 400 to 499 without 429: the request is at fault.
    ClientError,
    /// 429: the request may succeed later.
    Overloaded,
    /// From 500: this box is at fault.
    ServerError,
}

/// The reason why a request got no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// Its answer would have come back as a request.
    Loop,
    /// It has no usable response topic, or it is not a request.
    Invalid,
    /// Its answer with QoS 0 was dropped: there was no room even for an error.
    Overload,
}

impl MessageKind {
    /// Every kind, in the order of the counters.
    pub const ALL: [Self; 3] = [Self::Call, Self::GroupCall, Self::Binding];

    /// The value of a label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::GroupCall => "group_call",
            Self::Binding => "binding",
        }
    }
}

impl AnswerClass {
    /// Every class, in the order of the counters.
    pub const ALL: [Self; 4] = [Self::Ok, Self::ClientError, Self::Overloaded, Self::ServerError];

    /// The class of an HTTP status, which answers over MQTT have too.
    pub fn of(status: u16) -> Self {
        match status {
            0..400 => Self::Ok,
            429 => Self::Overloaded,
            400..500 => Self::ClientError,
            500.. => Self::ServerError,
        }
    }

    /// The value of a label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ClientError => "client_error",
            Self::Overloaded => "overloaded",
            Self::ServerError => "server_error",
        }
    }
}

impl Unanswered {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; 3] = [Self::Loop, Self::Invalid, Self::Overload];

    /// The value of a label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Loop => "loop",
            Self::Invalid => "invalid",
            Self::Overload => "overload",
        }
    }
}

/// Counts messages and their outcomes. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct MessageStatistics {
    counters: Arc<Counters>,
}

/// Independent counters, so relaxed ordering is enough.
#[derive(Debug, Default)]
struct Counters {
    connected: AtomicBool,
    connections: AtomicU64,
    received: [AtomicU64; 3],
    answered: [AtomicU64; 4],
    unanswered: [AtomicU64; 3],
    duplicates: AtomicU64,
    replaced: AtomicU64,
    skipped: AtomicU64,
    refused_answers: AtomicU64,
    in_flight_bytes: AtomicU64,
    outbox_messages: AtomicU64,
    outbox_bytes: AtomicU64,
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessageFigures {
    /// True while there is a connection to the broker.
    pub connected: bool,
    /// Connections made since the start.
    pub connections: u64,
    /// Messages received, as in [`MessageKind::ALL`].
    pub received: [u64; 3],
    /// Requests answered, as in [`AnswerClass::ALL`].
    pub answered: [u64; 4],
    /// Requests left unanswered, as in [`Unanswered::ALL`].
    pub unanswered: [u64; 3],
    /// Messages that had been received before.
    pub duplicates: u64,
    /// Messages that a newer one replaced before they were handled.
    pub replaced: u64,
    /// Messages that the conditions of a binding exclude.
    pub skipped: u64,
    /// Answers that the broker refused.
    pub refused_answers: u64,
    /// Bytes of the messages being worked on.
    pub in_flight_bytes: u64,
    /// Messages that wait to be sent or acknowledged.
    pub outbox_messages: u64,
    /// Their bytes.
    pub outbox_bytes: u64,
}

impl MessageStatistics {
    /// A connection to the broker was made.
    pub fn connected(&self) {
        self.counters.connected.store(true, Ordering::Relaxed);
        add(&self.counters.connections);
    }

    /// The connection has ended.
    pub fn disconnected(&self) {
        self.counters.connected.store(false, Ordering::Relaxed);
    }

    /// A message came in.
    pub fn received(&self, kind: MessageKind) {
        let [call, group_call, binding] = &self.counters.received;
        add(match kind {
            MessageKind::Call => call,
            MessageKind::GroupCall => group_call,
            MessageKind::Binding => binding,
        });
    }

    /// A request was answered with a status.
    pub fn answered(&self, status: u16) {
        let [ok, client_error, overloaded, server_error] = &self.counters.answered;
        add(match AnswerClass::of(status) {
            AnswerClass::Ok => ok,
            AnswerClass::ClientError => client_error,
            AnswerClass::Overloaded => overloaded,
            AnswerClass::ServerError => server_error,
        });
    }

    /// A request was left without an answer.
    pub fn ignored(&self, why: Unanswered) {
        let [in_a_loop, invalid, overload] = &self.counters.unanswered;
        add(match why {
            Unanswered::Loop => in_a_loop,
            Unanswered::Invalid => invalid,
            Unanswered::Overload => overload,
        });
    }

    /// A message that was handled before came again.
    pub fn repeated(&self) {
        add(&self.counters.duplicates);
    }

    /// A newer message replaced one that was not handled yet.
    pub fn replaced(&self) {
        add(&self.counters.replaced);
    }

    /// The conditions of a binding exclude a message.
    pub fn skipped(&self) {
        add(&self.counters.skipped);
    }

    /// The broker refused an answer.
    pub fn answer_refused(&self) {
        add(&self.counters.refused_answers);
    }

    /// Sets the current load: bytes of messages being handled; messages that wait to be sent or acknowledged, and their
    /// bytes.
    pub fn set_held(&self, in_flight_bytes: usize, outbox_messages: usize, outbox_bytes: usize) {
        self.counters.in_flight_bytes.store(in_flight_bytes as u64, Ordering::Relaxed);
        self.counters.outbox_messages.store(outbox_messages as u64, Ordering::Relaxed);
        self.counters.outbox_bytes.store(outbox_bytes as u64, Ordering::Relaxed);
    }

    /// The figures now.
    pub fn snapshot(&self) -> MessageFigures {
        let counters = &*self.counters;
        MessageFigures {
            connected: counters.connected.load(Ordering::Relaxed),
            connections: read(&counters.connections),
            received: counters.received.each_ref().map(read),
            answered: counters.answered.each_ref().map(read),
            unanswered: counters.unanswered.each_ref().map(read),
            duplicates: read(&counters.duplicates),
            replaced: read(&counters.replaced),
            skipped: read(&counters.skipped),
            refused_answers: read(&counters.refused_answers),
            in_flight_bytes: read(&counters.in_flight_bytes),
            outbox_messages: read(&counters.outbox_messages),
            outbox_bytes: read(&counters.outbox_bytes),
        }
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_count_together_and_each_kind_by_itself() {
        let statistics = MessageStatistics::default();
        let other = statistics.clone();
        for (index, kind) in MessageKind::ALL.into_iter().enumerate() {
            (0..=index).for_each(|_| other.received(kind));
        }
        for status in [200, 400, 404, 429, 500, 503, 504] {
            other.answered(status);
        }
        for (index, why) in Unanswered::ALL.into_iter().enumerate() {
            (0..=index).for_each(|_| other.ignored(why));
        }
        let figures = statistics.snapshot();
        assert_eq!(figures.received, [1, 2, 3]);
        assert_eq!(figures.answered, [1, 2, 1, 3]);
        assert_eq!(figures.unanswered, [1, 2, 3]);
    }

    #[test]
    fn a_connection_is_counted_when_it_is_made_and_shown_while_it_lasts() {
        let statistics = MessageStatistics::default();
        for _ in 0..2 {
            statistics.connected();
            assert!(statistics.snapshot().connected);
            statistics.disconnected();
            assert!(!statistics.snapshot().connected);
        }
        assert_eq!(statistics.snapshot().connections, 2);
    }

    #[test]
    fn what_is_held_is_what_was_said_last() {
        let statistics = MessageStatistics::default();
        statistics.set_held(120, 2, 30);
        let figures = statistics.snapshot();
        assert_eq!((figures.in_flight_bytes, figures.outbox_messages, figures.outbox_bytes), (120, 2, 30));
    }
}
