//! Everything between the session and the serving core: messages become calls, calls become answers, and each delivery is
//! settled. It outlives connections.

mod bound;

use std::sync::Arc;
use std::time::Instant;

use ledge_base::complaints::Complaints;
use ledge_base::names::DeviceName;
use ledge_base::telemetry::messages::{self, MessageKind, MessageStatistics};
use ledge_egress::Content;
use ledge_identity::authentication::Authenticator;
use ledge_models::serving::Serving;
use ledge_service::shutdown::Shutdown;
use ledge_updates::Updates;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use self::bound::Bound;
use super::answer::{self, Failure, ReturnPath};
use super::bindings::{Binding, Bindings};
use super::client::packet::{ConnAck, Incoming, Message, Outgoing, Qos, Reason, Received};
use super::client::session::{Delivery, Event, Outbound, Session, Step};
use super::config::MqttConfig;
use super::held::{HeldBytes, Hold};
use super::push::Pusher;
use super::request::{Request, Unanswered, overload, too_large};
use super::subscriptions::Subscriptions;
use super::topics::{DeviceTopics, InferRoute, InvalidRoute, TopicFilter, TopicName};

/// While so many messages are being dealt with no more are read. They end by themselves, so that never lasts.
///
/// A broker keeps to the receive maximum, which is less; but mosquitto, restarted, delivers all that it kept at once.
const MOST_IN_PROGRESS: usize = 4096;

/// The largest hint of a platform, in bytes.
const MAX_HINT: usize = 4096;

/// What is taken and held at most.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// The largest payload, in bytes.
    payload: usize,
    /// The most bytes of requests being answered, what rate limits keep and answers on their way.
    memory: usize,
}

/// What a desk works with.
#[derive(Debug)]
pub struct Parts {
    pub serving: Serving,
    pub authenticator: Authenticator,
    pub statistics: MessageStatistics,
    /// Who wants to know that the platform has something new.
    pub updates: Option<Updates>,
    /// The end of the daemon.
    pub shutdown: Shutdown,
}

/// See the module.
#[derive(Debug)]
pub struct Desk {
    topics: DeviceTopics,
    subscriptions: Subscriptions,
    bindings: Vec<Bound>,
    /// Where answers may go beside the topics for results; anywhere without any.
    response_topics: Vec<TopicFilter>,
    serving: Serving,
    authenticator: Authenticator,
    pusher: Pusher,
    shutdown: Shutdown,
    limits: Limits,
    statistics: MessageStatistics,
    /// Who wants to know that the platform has something new.
    updates: Option<Updates>,
    session: Session,
    results: UnboundedSender<Finished>,
    finished: UnboundedReceiver<Finished>,
    in_progress: usize,
    /// The bytes of requests, until they are answered, and of what rate limits keep.
    held: HeldBytes,
    complaints: Complaints,
    /// Whether nothing new is taken any more.
    closing: bool,
}

/// A message that has been dealt with.
#[derive(Debug)]
pub struct Finished {
    delivery: Option<Delivery>,
    answer: Option<Message>,
    held: Option<Hold>,
    /// Which binding has no result, and why.
    failed: Option<(Arc<Binding>, Failure)>,
    /// Whether it went well and is not answered: its rows are pushed, and no model is asked.
    pushed: bool,
}

/// Reports its message as dealt with when it is dropped, so that even a task that panics is missed by nobody.
struct OnEnd {
    results: UnboundedSender<Finished>,
    finished: Option<Finished>,
    /// Where it is said that a call broke off.
    path: Option<(ReturnPath, DeviceName)>,
}

impl Drop for OnEnd {
    fn drop(&mut self) {
        let Some(mut finished) = self.finished.take() else { return };
        if let (None, Some((path, device))) = (&finished.answer, &self.path) {
            finished.answer = Some(path.failure(device, &Failure::new(500, "the call broke off"), &[]));
        }
        let _ = self.results.send(finished);
    }
}

impl Desk {
    /// A desk without a connection.
    pub fn new(topics: DeviceTopics, bindings: &Bindings, config: &MqttConfig, parts: Parts) -> Self {
        let Parts { serving, authenticator, statistics, updates, shutdown } = parts;
        let (results, finished) = unbounded_channel();
        Self {
            subscriptions: Subscriptions::new(&topics, bindings),
            topics,
            bindings: bindings.iter().map(Bound::new).collect(),
            serving,
            authenticator,
            pusher: Pusher::new(shutdown.clone()),
            shutdown,
            limits: Limits { payload: config.max_payload_bytes, memory: config.max_memory_bytes },
            response_topics: config.response_topics.clone(),
            statistics,
            updates,
            session: Session::default(),
            results,
            finished,
            in_progress: 0,
            held: HeldBytes::default(),
            complaints: Complaints::default(),
            closing: false,
        }
    }

    /// A connection was accepted: everything begins with asking for messages.
    pub fn connected(&mut self, broker: &ConnAck, now: Instant) {
        if let Some(given_up) = self.session.connected(broker) {
            self.statistics.answer_refused();
            if let Some(suppressed) = self.complaints.take(("given up", 0), now) {
                let topic = given_up.message.topic;
                tracing::error!(%topic, suppressed, "message given up: the broker ended each connection that it was sent on");
            }
        }
        self.subscriptions.ask(&mut self.session, broker.shared_subscriptions);
        if !broker.shared_subscriptions && self.subscriptions.shared().next().is_some() {
            tracing::error!("the broker knows no shared subscriptions: what the group is asked will not come");
        }
    }

    /// The connection is gone.
    pub fn disconnected(&mut self) {
        self.session.disconnected();
    }

    /// Whether another packet may be read.
    pub fn may_read(&self) -> bool {
        self.in_progress < MOST_IN_PROGRESS
    }

    /// How large a packet may be, in bytes, that is not let go by.
    pub fn room(&self) -> usize {
        self.limits.memory.saturating_sub(self.held.get() + self.session.held())
    }

    /// Whether nothing is under way: no message, no answer.
    pub fn is_idle(&self) -> bool {
        self.in_progress == 0 && self.session.is_idle()
    }

    /// Whether the broker has refused a subscription, so that it is worth asking again.
    pub fn lacks_subscription(&self) -> bool {
        !self.closing && self.subscriptions.lacks_one()
    }

    /// Asks for the refused subscriptions again.
    pub fn subscribe_again(&mut self) {
        self.subscriptions.ask_again(&mut self.session);
    }

    /// Asks the broker for a sign of life.
    pub fn ping(&mut self) {
        self.session.ping();
    }

    /// Takes nothing new any more. What the group is asked from now on, its other members get.
    pub fn close(&mut self) {
        self.closing = true;
        let shared: Vec<_> = self.subscriptions.shared().cloned().collect();
        if !shared.is_empty() {
            self.session.unsubscribe(shared);
        }
    }

    /// Publishes what this box says of itself, in the place of what it said before.
    pub fn publish(&mut self, message: Message, content: Content) {
        self.session.publish_latest(Outbound { message, content, settles: None });
    }

    /// Takes a packet. An error is the broker's word that it ends the connection.
    pub fn receive(&mut self, packet: Incoming, now: Instant) -> Result<(), (Reason, Option<String>)> {
        match self.session.receive(packet) {
            Event::Message(received, delivery) => self.message(received, delivery, now),
            Event::Unusable(reason) => {
                self.statistics.ignored(messages::Unanswered::Invalid);
                if let Some(suppressed) = self.complaints.take(("unusable", 0), now) {
                    tracing::warn!(reason, suppressed, "a message that cannot be used");
                }
            }
            Event::Refused(outbound, reason) => {
                self.statistics.answer_refused();
                if let Some(suppressed) = self.complaints.take(("refused", reason.0.into()), now) {
                    let (topic, reason) = (outbound.message.topic, reason.to_string());
                    tracing::error!(%topic, reason, suppressed, "the broker refused a message");
                }
            }
            Event::Subscribed(filters) => self.subscribed(&filters, now),
            Event::Disconnected(reason, text) => return Err((reason, text)),
            Event::None => {}
        }
        Ok(())
    }

    fn subscribed(&mut self, filters: &[(TopicFilter, Reason)], now: Instant) {
        for (filter, reason) in filters {
            let Some(index) = self.subscriptions.note(filter, *reason) else { continue };
            let kind = ("subscription", u32::try_from(index).unwrap_or(u32::MAX));
            if let Some(suppressed) = self.complaints.take(kind, now) {
                tracing::error!(%filter, %reason, suppressed, "subscription refused");
            }
        }
        tracing::debug!(filters = filters.len(), "subscribed");
    }

    fn message(&mut self, received: Received, delivery: Option<Delivery>, now: Instant) {
        // Unsettled, so that the broker delivers it again when this box is back.
        if self.closing {
            return;
        }
        if received.duplicate {
            self.statistics.repeated();
        }
        if self.topics.is_desired(&received.message.topic) {
            return self.hint(&received, delivery, now);
        }
        match self.topics.route(&received.message.topic) {
            Some(route) => self.request(route, received, delivery, now),
            None => self.bound(received, delivery, now),
        }
    }

    /// The platform says that there is something new. What it says beside has no authority and is not read.
    fn hint(&mut self, received: &Received, delivery: Option<Delivery>, now: Instant) {
        if received.message.payload.len() > MAX_HINT || received.oversized.is_some() {
            self.statistics.ignored(messages::Unanswered::Invalid);
            if let Some(suppressed) = self.complaints.take(("hint", 0), now) {
                tracing::warn!(suppressed, "a hint of the platform is larger than {MAX_HINT} bytes, and is ignored");
            }
        } else if let Some(updates) = self.updates.as_ref().filter(|_| !received.message.payload.is_empty()) {
            // Empty: somebody clears a retained message.
            updates.look_now();
        }
        self.settle(delivery, Reason::SUCCESS);
    }

    /// Why a message is refused unseen: it is too large, or too much is under way.
    fn refusal(&self, received: &Received) -> Option<Failure> {
        too_large(received, self.limits.payload).or_else(|| (self.room() == 0).then(overload))
    }

    fn request(
        &mut self,
        route: Result<InferRoute, InvalidRoute>,
        received: Received,
        delivery: Option<Delivery>,
        now: Instant,
    ) {
        let of_group = route.as_ref().is_ok_and(|route| Some(&route.owner) == self.topics.group.as_ref());
        let topic = received.message.topic.clone();
        let refusal = self.refusal(&received);
        let refused = refusal.is_some();
        let bindings = self.bindings.iter().map(|bound| &bound.binding);
        let request = Request::read(route, received, now, refusal).and_then(|request| {
            // One that is refused unseen costs nothing more.
            let request =
                if refused { request } else { request.admitted(&self.authenticator, self.serving.audit(), now) };
            let principal = request.principal().clone();
            let directed = request.unless_misdirected(&self.response_topics, bindings);
            directed.inspect_err(|_| self.serving.audit().record_denied(&principal, "mqtt_response_topic"))
        });
        let request = match request {
            Ok(request) => request,
            Err(why) => return self.ignore(&topic, why, delivery, now),
        };
        self.statistics.received(if of_group { MessageKind::GroupCall } else { MessageKind::Call });
        let device = self.topics.device.clone();
        if refused {
            let answer = request.refused(&device);
            if answer::status(&answer) == Some(429)
                && let Some(suppressed) = self.complaints.take(("overload", 0), now)
            {
                let (in_progress, held, outbox) = (self.in_progress, self.held.get(), self.session.held());
                tracing::warn!(
                    in_progress,
                    held,
                    outbox,
                    suppressed,
                    "too much is under way; answered with status 429"
                );
            }
            return self.answer(answer, delivery, now);
        }
        let mut end = self.begin(delivery, Some((request.path().clone(), device.clone())));
        let (serving, held) = (self.serving.clone(), self.held.hold(request.held()));
        self.shutdown.spawn(async move {
            let answer = request.run(&serving, &device).await.0;
            if let Some(finished) = &mut end.finished {
                (finished.answer, finished.held) = (Some(answer), Some(held));
            }
        });
    }

    /// Counts a message in; its end counts it out.
    fn begin(&mut self, delivery: Option<Delivery>, path: Option<(ReturnPath, DeviceName)>) -> OnEnd {
        self.in_progress += 1;
        let finished = Finished { delivery, answer: None, held: None, failed: None, pushed: false };
        OnEnd { results: self.results.clone(), finished: Some(finished), path }
    }

    fn ignore(&mut self, topic: &TopicName, why: Unanswered, delivery: Option<Delivery>, now: Instant) {
        self.statistics.ignored(match why {
            Unanswered::Answer | Unanswered::ForbiddenResponseTopic => messages::Unanswered::Loop,
            Unanswered::Retained | Unanswered::InvalidResponseTopic | Unanswered::NoModel => {
                messages::Unanswered::Invalid
            }
        });
        if let Some(suppressed) = self.complaints.take(("request", why as u32), now) {
            tracing::warn!(%topic, reason = %why, suppressed, "request not answered");
        }
        self.settle(delivery, Reason::IMPLEMENTATION_SPECIFIC);
    }

    fn settle(&mut self, delivery: Option<Delivery>, reason: Reason) {
        if let Some(delivery) = delivery {
            self.session.settle(delivery, reason);
        }
    }

    /// Waits for the end of a message. May be dropped at any time.
    pub async fn finished(&mut self) -> Finished {
        match self.finished.recv().await {
            Some(finished) => finished,
            // This side holds a sender, so the channel never ends.
            None => std::future::pending().await,
        }
    }

    /// Takes a message that has been dealt with, and all others that are.
    pub fn finish(&mut self, finished: Finished, now: Instant) {
        let mut next = Some(finished);
        while let Some(Finished { delivery, answer, held, failed, pushed }) = next {
            self.in_progress -= 1;
            drop(held);
            if pushed {
                self.statistics.answered(200);
            }
            if let Some((binding, failure)) = failed {
                if answer.is_none() {
                    self.statistics.answered(failure.status);
                }
                self.complain(&binding, &failure, now);
            }
            match answer {
                Some(answer) => self.answer(answer, delivery, now),
                None => self.settle(delivery, Reason::SUCCESS),
            }
            next = self.finished.try_recv().ok();
        }
    }

    fn answer(&mut self, mut message: Message, delivery: Option<Delivery>, now: Instant) {
        if self.session.held() + message.payload.len() > self.limits.memory {
            // Not even for that: the broker takes nothing, and what is of QoS 0 may get lost.
            if message.qos == Qos::AtMostOnce && self.session.held() > self.limits.memory {
                self.statistics.ignored(messages::Unanswered::Overload);
                if let Some(suppressed) = self.complaints.take(("dropped", 0), now) {
                    tracing::warn!(topic = %message.topic, suppressed, "answer dropped: too many wait for the broker");
                }
                return self.settle(delivery, Reason::SUCCESS);
            }
            if !self.takes_errors(&message.topic) {
                self.statistics.ignored(messages::Unanswered::Overload);
                return self.settle(delivery, Reason::IMPLEMENTATION_SPECIFIC);
            }
            answer::replace(&mut message, &overload());
        }
        if let Some(status) = answer::status(&message) {
            self.statistics.answered(status);
        }
        self.session.publish(Outbound { message, content: Content::Answer, settles: delivery });
    }

    /// Whether an error may be published in the place of an answer: what devices listen to may be for results alone.
    fn takes_errors(&self, topic: &TopicName) -> bool {
        let configs = self.bindings.iter().map(|bound| bound.binding.config());
        let mut silent = configs.filter(|config| !config.publish_errors);
        !silent.any(|config| config.publish.as_ref().is_some_and(|it| it.as_filter(&config.topic).matches(topic)))
    }

    /// The next packet to send.
    pub fn next_packet(&mut self, size: impl Fn(&Outgoing) -> usize, now: Instant) -> Option<(Content, Outgoing)> {
        loop {
            match self.session.next(&size)? {
                Step::Send(content, packet) => return Some((content, packet)),
                Step::TooLarge(Outbound { mut message, content, settles }) => {
                    let bytes = message.payload.len();
                    let text = format!("the answer has {bytes} bytes, and the broker takes no packet of that size");
                    if self.takes_errors(&message.topic) && answer::replace(&mut message, &Failure::new(413, text)) {
                        self.session.publish(Outbound { message, content, settles });
                        continue;
                    }
                    if let Some(suppressed) = self.complaints.take(("too large", 0), now) {
                        let topic = message.topic;
                        tracing::error!(%topic, bytes, suppressed, "a message is larger than the broker takes");
                    }
                    self.settle(settles, Reason::UNSPECIFIED_ERROR);
                }
            }
        }
    }

    /// A packet may not be sent where this connection leads, as the egress policy has it. The session learns it as a refusal
    /// by the broker.
    pub fn not_permitted(&mut self, packet: Outgoing, reason: &str, now: Instant) {
        let Outgoing::Publish { message, packet_id, .. } = packet else { return };
        if let Some(suppressed) = self.complaints.take(("not permitted", 0), now) {
            tracing::error!(topic = %message.topic, reason, suppressed, "a message may not be sent");
        }
        if let Some(packet_id) = packet_id {
            // The complaint has been made.
            let _ = self.session.receive(Incoming::PubAck { packet_id, reason: Reason::NOT_AUTHORIZED });
        }
    }

    /// Lets the statistics know what is held.
    pub fn note(&self) {
        self.statistics.set_held(self.held.get(), self.session.unsent(), self.session.held());
    }
}

#[cfg(test)]
pub(super) mod tests;
