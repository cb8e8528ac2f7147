//! Counters of MQTT messages: written by the crate `mqtt`, read by `/metrics`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The kind of a received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MqttMessageKind {
    /// A request to this box.
    Call,
    /// A request to the group that this box is in.
    GroupCall,
    /// A message that a binding turns into a request.
    Binding,
}

/// The class of an answer, by its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerStatusClass {
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
pub enum UnansweredKind {
    /// Its answer would have come back as a request.
    Loop,
    /// It has no usable response topic, or it is not a request.
    Invalid,
    /// Its answer with QoS 0 was dropped: there was no room even for an error.
    Overload,
}

impl MqttMessageKind {
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

impl AnswerStatusClass {
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

impl UnansweredKind {
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
pub struct MqttStatistics {
    counters: Arc<MqttCounters>,
}

/// Independent counters, so relaxed ordering is enough.
#[derive(Debug, Default)]
struct MqttCounters {
    /// By client id.
    sessions: Mutex<BTreeMap<String, MqttSessionState>>,
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

/// The state of a session with the broker.
#[derive(Debug, Default)]
struct MqttSessionState {
    is_connected: bool,
    /// The reason why the broker does not accept it.
    refusal: Option<String>,
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MqttFigures {
    /// True while each session with the broker that it accepts has a connection.
    pub connected: bool,
    /// Connections made since the start.
    pub connections: u64,
    /// Messages received, as in [`MqttMessageKind::ALL`].
    pub received: [u64; 3],
    /// Requests answered, as in [`AnswerStatusClass::ALL`].
    pub answered: [u64; 4],
    /// Requests left unanswered, as in [`UnansweredKind::ALL`].
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

/// Messages that wait to be sent or acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MqttOutbox {
    pub messages: usize,
    pub bytes: usize,
}

impl MqttStatistics {
    /// This box needs a session with this client id.
    pub fn expect_session(&self, client_id: &str) {
        self.sessions().entry(client_id.to_owned()).or_default();
    }

    /// This box needs the session no more.
    pub fn forget_session(&self, client_id: &str) {
        self.sessions().remove(client_id);
    }

    /// A connection to the broker was made for the session with this client id.
    pub fn connected(&self, client_id: &str) {
        let connected = MqttSessionState { is_connected: true, refusal: None };
        self.sessions().insert(client_id.to_owned(), connected);
        add(&self.counters.connections);
    }

    /// The connection has ended.
    pub fn disconnected(&self, client_id: &str) {
        if let Some(session) = self.sessions().get_mut(client_id) {
            session.is_connected = false;
        }
    }

    /// The broker does not accept the session, for this reason.
    pub fn session_refused(&self, client_id: &str, reason: &str) {
        self.sessions().entry(client_id.to_owned()).or_default().refusal = Some(reason.to_owned());
    }

    /// The reasons why the broker does not accept sessions of this box.
    pub fn refused_sessions(&self) -> Vec<String> {
        self.sessions().values().filter_map(|session| session.refusal.clone()).collect()
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<String, MqttSessionState>> {
        // Nothing panics under this lock.
        self.counters.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message came in.
    pub fn received(&self, kind: MqttMessageKind) {
        let [call, group_call, binding] = &self.counters.received;
        add(match kind {
            MqttMessageKind::Call => call,
            MqttMessageKind::GroupCall => group_call,
            MqttMessageKind::Binding => binding,
        });
    }

    /// A request was answered with a status.
    pub fn answered(&self, status: u16) {
        let [ok, client_error, overloaded, server_error] = &self.counters.answered;
        add(match AnswerStatusClass::of(status) {
            AnswerStatusClass::Ok => ok,
            AnswerStatusClass::ClientError => client_error,
            AnswerStatusClass::Overloaded => overloaded,
            AnswerStatusClass::ServerError => server_error,
        });
    }

    /// A request was left without an answer.
    pub fn ignored(&self, why: UnansweredKind) {
        let [in_a_loop, invalid, overload] = &self.counters.unanswered;
        add(match why {
            UnansweredKind::Loop => in_a_loop,
            UnansweredKind::Invalid => invalid,
            UnansweredKind::Overload => overload,
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

    /// Sets the bytes of messages being handled.
    pub fn set_in_flight(&self, bytes: usize) {
        self.counters.in_flight_bytes.store(bytes as u64, Ordering::Relaxed);
    }

    /// The bytes of the messages that wait to be sent or acknowledged, as counted last.
    pub fn outbox_bytes(&self) -> u64 {
        read(&self.counters.outbox_bytes)
    }

    /// Counts the messages of a session that wait to be sent or acknowledged, in place of those that it had before.
    pub fn move_outbox(&self, before: MqttOutbox, now: MqttOutbox) {
        let change = |counter: &AtomicU64, before: usize, now: usize| {
            counter.fetch_add((now as u64).wrapping_sub(before as u64), Ordering::Relaxed);
        };
        change(&self.counters.outbox_messages, before.messages, now.messages);
        change(&self.counters.outbox_bytes, before.bytes, now.bytes);
    }

    fn is_connected(&self) -> bool {
        let sessions = self.sessions();
        let is_up = |session: &MqttSessionState| session.is_connected || session.refusal.is_some();
        sessions.values().any(|session| session.is_connected) && sessions.values().all(is_up)
    }

    /// The figures now.
    pub fn snapshot(&self) -> MqttFigures {
        let counters = &*self.counters;
        MqttFigures {
            connected: self.is_connected(),
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
        let statistics = MqttStatistics::default();
        let other = statistics.clone();
        for (index, kind) in MqttMessageKind::ALL.into_iter().enumerate() {
            (0..=index).for_each(|_| other.received(kind));
        }
        for status in [200, 400, 404, 429, 500, 503, 504] {
            other.answered(status);
        }
        for (index, why) in UnansweredKind::ALL.into_iter().enumerate() {
            (0..=index).for_each(|_| other.ignored(why));
        }
        let figures = statistics.snapshot();
        assert_eq!(figures.received, [1, 2, 3]);
        assert_eq!(figures.answered, [1, 2, 1, 3]);
        assert_eq!(figures.unanswered, [1, 2, 3]);
    }

    #[test]
    fn a_connection_is_counted_when_it_is_made_and_shown_while_it_lasts() {
        let statistics = MqttStatistics::default();
        for _ in 0..2 {
            statistics.connected("box");
            assert!(statistics.snapshot().connected);
            statistics.disconnected("box");
            assert!(!statistics.snapshot().connected);
        }
        assert_eq!(statistics.snapshot().connections, 2);
    }

    #[test]
    fn each_session_is_to_be_connected_but_one_that_the_broker_refuses() {
        let statistics = MqttStatistics::default();
        statistics.connected("box");
        statistics.expect_session("box-rows");
        assert!(!statistics.snapshot().connected);
        statistics.connected("box-rows");
        assert!(statistics.snapshot().connected);
        statistics.disconnected("box-rows");
        assert!(!statistics.snapshot().connected);
        statistics.session_refused("box-rows", "not authorized");
        assert_eq!(
            (statistics.snapshot().connected, statistics.refused_sessions()),
            (true, vec!["not authorized".into()])
        );
        statistics.disconnected("box");
        assert!(!statistics.snapshot().connected);
        statistics.forget_session("box-rows");
        statistics.connected("box");
        assert_eq!((statistics.snapshot().connected, statistics.refused_sessions().len()), (true, 0));
    }

    #[test]
    fn what_is_held_is_what_was_said_last() {
        let statistics = MqttStatistics::default();
        statistics.set_in_flight(120);
        let outbox = |messages, bytes| MqttOutbox { messages, bytes };
        statistics.move_outbox(outbox(0, 0), outbox(5, 70));
        statistics.move_outbox(outbox(0, 0), outbox(1, 10));
        statistics.move_outbox(outbox(5, 70), outbox(1, 20));
        let figures = statistics.snapshot();
        assert_eq!((figures.in_flight_bytes, figures.outbox_messages, figures.outbox_bytes), (120, 2, 30));
    }
}
