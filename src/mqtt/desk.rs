//! Everything between the session and the serving core: messages become calls, calls become answers, and each delivery is
//! settled. It outlives connections.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::answer::{self, Failure, ReturnPath};
use super::bindings::{Binding, Bindings};
use super::bound::{BoundMessage, Outcome};
use super::client::packet::{Incoming, Kept, Message, Outgoing, Qos, Reason, Received, Subscription};
use super::client::session::{Delivery, Event, Outbound, Session, Step};
use super::complaints::Complaints;
use super::rate::{Newest, Offer};
use super::request::{Request, Unanswered, too_large};
use super::topics::{DeviceTopics, InferRoute, InvalidRoute, TopicFilter, TopicName};
use crate::egress::Content;
use crate::names::DeviceName;
use crate::serving::Serving;
use crate::shutdown::Shutdown;
use crate::telemetry::messages::{self, MessageKind, MessageStatistics};

/// More messages than this are not dealt with at a time.
const MOST_IN_PROGRESS: usize = 4096;

/// How many topics the rate of one binding is kept for.
const MOST_TOPICS: usize = 4096;

/// What is taken and held at most.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The largest payload, in bytes.
    pub payload: usize,
    /// The most bytes of requests being answered and answers on their way.
    pub memory: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Desk {
    topics: DeviceTopics,
    /// Everything that this box answers, each filter once.
    subscriptions: Vec<Subscription>,
    bindings: Vec<Bound>,
    serving: Serving,
    shutdown: Shutdown,
    limits: Limits,
    statistics: MessageStatistics,
    session: Session,
    results: UnboundedSender<Finished>,
    finished: UnboundedReceiver<Finished>,
    in_progress: usize,
    complaints: Complaints,
    /// Whether nothing new is taken any more.
    closing: bool,
    /// Whether the broker has refused a subscription on this connection.
    lacks_subscription: bool,
}

/// A binding and what its rate limit keeps.
#[derive(Debug)]
struct Bound {
    binding: Arc<Binding>,
    rate: Option<Newest<BoundMessage>>,
}

/// A message that has been dealt with.
#[derive(Debug)]
pub struct Finished {
    delivery: Option<Delivery>,
    answer: Option<Message>,
    /// Which binding has no result, and why.
    failed: Option<(Arc<Binding>, Failure)>,
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

fn subscriptions(topics: &DeviceTopics, bindings: &Bindings) -> Vec<Subscription> {
    // A box's own messages are nothing for it to answer; for a shared subscription that cannot be asked for.
    let subscription = |(filter, qos, kept): (TopicFilter, Qos, Kept)| Subscription {
        no_local: !filter.is_shared(),
        filter,
        qos,
        kept,
    };
    let own = [Some(topics.infer()), topics.group_infer()].into_iter().flatten();
    let own = own.map(|filter| (filter, Qos::AtLeastOnce, Kept::Never));
    let bound = bindings.subscriptions(topics.group.as_ref()).into_iter();
    own.chain(bound.map(|(filter, qos)| (filter, qos, Kept::IfNew))).map(subscription).collect()
}

impl Desk {
    /// A desk without a connection.
    pub fn new(
        topics: DeviceTopics,
        bindings: &Bindings,
        serving: Serving,
        statistics: MessageStatistics,
        limits: Limits,
        shutdown: Shutdown,
    ) -> Self {
        let bound = |binding: &Arc<Binding>| Bound {
            binding: binding.clone(),
            rate: binding.interval().map(|interval| Newest::new(interval, MOST_TOPICS)),
        };
        let (results, finished) = unbounded_channel();
        Self {
            subscriptions: subscriptions(&topics, bindings),
            topics,
            bindings: bindings.iter().map(bound).collect(),
            serving,
            shutdown,
            limits,
            statistics,
            session: Session::default(),
            results,
            finished,
            in_progress: 0,
            complaints: Complaints::default(),
            closing: false,
            lacks_subscription: false,
        }
    }

    /// The session.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Whether another packet may be read, while the connection itself holds `held` bytes. Where the broker's
    /// acknowledgements are awaited it always may: only they make room.
    pub fn may_read(&self, held: usize) -> bool {
        self.closing || self.session.awaits_acknowledgement() || !self.is_full(held)
    }

    fn is_full(&self, held: usize) -> bool {
        self.in_progress >= MOST_IN_PROGRESS
            || self.statistics.held() + self.session.held() + held >= self.limits.memory
    }

    /// Whether this box shares the work of a group.
    pub fn has_shared(&self) -> bool {
        self.subscriptions.iter().any(|subscription| subscription.filter.is_shared())
    }

    /// Whether nothing is under way: no message, no answer.
    pub fn is_idle(&self) -> bool {
        self.in_progress == 0 && self.session.is_idle()
    }

    /// Whether the broker has refused a subscription, so that it is worth asking again.
    pub fn lacks_subscription(&self) -> bool {
        self.lacks_subscription
    }

    /// Asks the broker for everything that this box answers.
    pub fn subscribe(&mut self) {
        self.lacks_subscription = false;
        self.session.subscribe(self.subscriptions.clone());
    }

    /// Takes nothing new any more. What the group is asked from now on, its other members get.
    pub fn close(&mut self) {
        self.closing = true;
        let filters = self.subscriptions.iter().map(|subscription| &subscription.filter);
        let shared: Vec<_> = filters.filter(|filter| filter.is_shared()).cloned().collect();
        if !shared.is_empty() {
            self.session.unsubscribe(shared);
        }
    }

    /// Publishes a message of this box's own.
    pub fn publish(&mut self, message: Message, content: Content) {
        self.session.publish(Outbound { message, content, settles: None });
        self.note_outbox();
    }

    /// Takes what the session made of a packet.
    pub fn take(&mut self, event: Event, now: Instant) {
        match event {
            Event::Message(received, delivery) => self.message(received, delivery, now),
            Event::Refused(outbound, reason) => {
                self.statistics.answer_refused();
                if let Some(suppressed) = self.complaints.take(("refused", reason.0.into()), now) {
                    let (topic, reason) = (outbound.message.topic, reason.to_string());
                    tracing::error!(%topic, reason, suppressed, "the broker refused a message");
                }
            }
            Event::Subscribed(filters) => {
                for (filter, reason) in filters.iter().filter(|(_, reason)| reason.is_failure()) {
                    self.lacks_subscription = true;
                    if let Some(suppressed) = self.complaints.take(("subscription", reason.0.into()), now) {
                        tracing::error!(%filter, %reason, suppressed, "subscription refused");
                    }
                }
                tracing::debug!(filters = filters.len(), "subscribed");
            }
            Event::Disconnected(..) | Event::None => {}
        }
        self.note_outbox();
    }

    fn message(&mut self, received: Received, delivery: Option<Delivery>, now: Instant) {
        // Unsettled, so that the broker delivers it again when this box is back.
        if self.closing {
            return;
        }
        // Those of QoS 1 are as few as this side takes unacknowledged.
        if delivery.is_none() && self.is_full(received.message.payload.len()) {
            self.statistics.ignored(messages::Unanswered::Overload);
            if let Some(suppressed) = self.complaints.take(("full", 0), now) {
                let topic = received.message.topic;
                tracing::warn!(%topic, suppressed, "message dropped: too many are under way (mqtt.max_memory_bytes)");
            }
            return;
        }
        if received.duplicate {
            self.statistics.repeated();
        }
        match self.topics.route(&received.message.topic) {
            Some(route) => self.request(route, received, delivery, now),
            None => self.bound(received, delivery, now),
        }
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
        let request = Request::read(route, received, now, self.limits.payload).and_then(|request| {
            // The answer would be taken for a device's message.
            let loops = self.bindings.iter().any(|bound| bound.binding.config().topic.matches(&request.path().topic));
            if loops { Err(Unanswered::ForbiddenResponseTopic) } else { Ok(request) }
        });
        let request = match request {
            Ok(request) => request,
            Err(why) => return self.ignore(&topic, why, delivery, now),
        };
        self.statistics.received(if of_group { MessageKind::GroupCall } else { MessageKind::Call });
        let (serving, device) = (self.serving.clone(), self.topics.device.clone());
        let held = self.statistics.hold(request.held());
        let mut end = self.begin(delivery, Some((request.path().clone(), device.clone())));
        self.shutdown.spawn(async move {
            let (answer, _) = request.run(&serving, &device).await;
            drop(held);
            if let Some(finished) = &mut end.finished {
                finished.answer = Some(answer);
            }
        });
    }

    /// Counts a message in; its end counts it out.
    fn begin(&mut self, delivery: Option<Delivery>, path: Option<(ReturnPath, DeviceName)>) -> OnEnd {
        self.in_progress += 1;
        let finished = Finished { delivery, answer: None, failed: None };
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

    fn bound(&mut self, received: Received, delivery: Option<Delivery>, now: Instant) {
        let Received { message, duplicate, oversized, .. } = received;
        let Message { topic: source, payload, properties, .. } = message;
        let oversized = oversized.or(Some(payload.len()).filter(|size| *size > self.limits.payload));
        let matching: Vec<(usize, Result<TopicName, _>)> = (self.bindings.iter().enumerate())
            .filter_map(|(index, bound)| {
                let config = bound.binding.config();
                let captures = config.topic.captures(&source)?;
                Some((index, config.publish.fill(&captures, &self.topics.device, &config.model)))
            })
            .collect();
        if matching.is_empty() {
            // A subscription of an earlier configuration that the broker still has.
            tracing::debug!(topic = %source, "a message that no binding is for");
            return self.settle(delivery, Reason::SUCCESS);
        }
        if let Some(delivery) = delivery {
            self.session.expect(delivery, matching.len());
        }
        for (index, publish) in matching {
            self.statistics.received(MessageKind::Binding);
            let Some(Bound { binding, rate }) = self.bindings.get_mut(index) else { continue };
            let failure = match (&publish, oversized) {
                (Err(error), _) => Some(Failure::new(400, error.to_string())),
                (_, Some(size)) => Some(too_large(size, self.limits.payload)),
                _ => None,
            };
            let (Ok(publish), None) = (publish, &failure) else {
                let binding = binding.clone();
                if let Some(failure) = failure {
                    self.complain(&binding, &failure, now);
                }
                self.settle(delivery, Reason::IMPLEMENTATION_SPECIFIC);
                continue;
            };
            let bound = BoundMessage {
                binding: binding.clone(),
                source: source.clone(),
                publish,
                payload: payload.clone(),
                content_type: properties.content_type.clone(),
                arrived: now,
                delivery,
                duplicate,
                held: self.statistics.hold(payload.len()),
            };
            let offer = match rate {
                Some(rate) => rate.offer(&source, bound, now),
                None => Offer::Run(bound),
            };
            match offer {
                Offer::Run(bound) => self.start(bound),
                Offer::Kept { replaced: None } => {}
                Offer::Kept { replaced: Some(passed_over) } | Offer::Refused(passed_over) => {
                    self.statistics.replaced();
                    self.settle(passed_over.delivery, Reason::SUCCESS);
                }
            }
        }
    }

    fn start(&mut self, bound: BoundMessage) {
        let (serving, device) = (self.serving.clone(), self.topics.device.clone());
        let mut end = self.begin(bound.delivery, None);
        let binding = bound.binding.clone();
        self.shutdown.spawn(async move {
            let Outcome { message, failure } = bound.run(&serving, &device).await;
            if let Some(finished) = &mut end.finished {
                finished.answer = message;
                finished.failed = failure.map(|failure| (binding, failure));
            }
        });
    }

    /// Starts what the rate limits let go now.
    pub fn start_due(&mut self, now: Instant) {
        let due: Vec<_> =
            self.bindings.iter_mut().filter_map(|bound| bound.rate.as_mut()).flat_map(|rate| rate.due(now)).collect();
        for bound in due {
            self.start(bound);
        }
    }

    /// When [`Self::start_due`] has something to start.
    pub fn next_due(&self) -> Option<Instant> {
        self.bindings.iter().filter_map(|bound| bound.rate.as_ref()?.next_due()).min()
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
        while let Some(Finished { delivery, answer, failed }) = next {
            self.in_progress -= 1;
            if let Some((binding, failure)) = failed {
                if answer.is_none() {
                    self.statistics.answered(failure.status);
                }
                self.complain(&binding, &failure, now);
            }
            match answer {
                Some(answer) => self.answer(answer, delivery),
                None => self.settle(delivery, Reason::SUCCESS),
            }
            next = self.finished.try_recv().ok();
        }
        self.note_outbox();
    }

    fn complain(&mut self, binding: &Binding, failure: &Failure, now: Instant) {
        // Bindings are as many as the configuration has.
        let index = self.bindings.iter().position(|bound| bound.binding.name() == binding.name());
        let kind = u32::try_from(index.unwrap_or_default()).unwrap_or_default() << 16 | u32::from(failure.status);
        if let Some(suppressed) = self.complaints.take(("binding", kind), now) {
            let (name, status, reason) = (binding.name(), failure.status, &failure.message);
            tracing::warn!(binding = name, status, reason, suppressed, "a binding has no result");
        }
    }

    fn answer(&mut self, mut message: Message, delivery: Option<Delivery>) {
        if self.session.held() + message.payload.len() > self.limits.memory {
            let failure =
                Failure { retry_after_s: Some(1), ..Failure::new(429, "too many answers wait for the broker") };
            answer::replace(&mut message, &failure);
        }
        if let Some(status) = answer::status(&message) {
            self.statistics.answered(status);
        }
        self.session.publish(Outbound { message, content: Content::Answer, settles: delivery });
    }

    /// The next packet to send.
    pub fn next_packet(&mut self, size: impl Fn(&Outgoing) -> usize) -> Option<(Content, Outgoing)> {
        loop {
            match self.session.next(&size)? {
                Step::Send(content, packet) => return Some((content, packet)),
                Step::TooLarge(Outbound { mut message, content, settles }) => {
                    let bytes = message.payload.len();
                    let text = format!("the answer has {bytes} bytes, and the broker takes no packet of that size");
                    if !answer::replace(&mut message, &Failure::new(413, text)) {
                        tracing::error!(topic = %message.topic, bytes, "a message is larger than the broker takes");
                        self.settle(settles, Reason::UNSPECIFIED_ERROR);
                        continue;
                    }
                    self.session.publish(Outbound { message, content, settles });
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
            let refused = Incoming::PubAck { packet_id, reason: Reason::NOT_AUTHORIZED };
            // The complaint has been made.
            let _ = self.session.receive(refused);
        }
    }

    fn note_outbox(&self) {
        self.statistics.set_outbox(self.session.unsent(), self.session.held());
    }
}
