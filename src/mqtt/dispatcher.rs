//! Between the session and the serving core: turns messages into calls and results into answers, and settles each
//! delivery. It outlives connections.

mod binding_messages;
mod limited_binding;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use ledge_base::log_limiter::LogLimiter;
use ledge_base::names::DeviceName;
use ledge_base::telemetry::messages::{self, MqttMessageKind, MqttOutbox, MqttStatistics};
use ledge_egress::EgressContent;
use ledge_identity::authentication::Authenticator;
use ledge_models::serving::Serving;
use ledge_part::api_error::ApiError;
use ledge_service::shutdown::Shutdown;
use ledge_updates::Updates;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::answer::{self, AnswerDestination};
use super::bindings::{Binding, Bindings};
use super::check;
use super::client::packet::{ConnAck, IncomingPacket, MqttMessage, OutgoingPacket, Qos, ReasonCode, ReceivedMessage};
use super::client::receipt::PublicationReceipt;
use super::client::session::{MqttSession, NextPacket, OutboundMessage, PendingDelivery, SessionEvent};
use super::config::MqttConfig;
use super::held_bytes::{HeldBytes, HeldBytesGuard};
use super::model_wait::ModelWait;
use super::plan::{SessionName, SubscriptionPlan};
use super::publisher::TopicListener;
use super::push::FeaturePusher;
use super::request::{CallMessage, UnansweredReason, overload, too_large};
use super::subscriptions::SessionSubscriptions;
use super::topics::{DeviceTopics, InferRoute, InvalidRoute, TopicFilter, TopicName};
use limited_binding::LimitedBinding;

/// Messages in progress from which on no more packets are read. They end by themselves, so reading goes on soon.
///
/// A broker keeps to the receive maximum, which is less; but a restarted mosquitto delivers all its kept messages at
/// once.
const MESSAGES_IN_PROGRESS_MAX: usize = 4096;

/// Messages in the outbox from which on those of other parts wait outside of it, where newer ones replace them.
const PUBLICATIONS_IN_OUTBOX_MAX: usize = 128;

/// The largest payload of a hint from the platform, in bytes.
const HINT_MAX_BYTES: usize = 4096;

/// Bounds of a dispatcher.
#[derive(Debug, Clone, Copy)]
struct DispatcherLimits {
    /// The largest payload, in bytes.
    payload_bytes: usize,
    /// The most bytes of requests being answered, messages that rate limits keep, and answers being sent.
    memory_bytes: usize,
}

/// The parts that a dispatcher needs.
#[derive(Debug)]
pub struct DispatcherParts {
    pub serving: Serving,
    pub authenticator: Authenticator,
    pub statistics: MqttStatistics,
    /// Receives the platform's hints.
    pub updates: Option<Updates>,
    /// The topics that other parts hear.
    pub listeners: Vec<TopicListener>,
    /// The bytes of the messages of all sessions.
    pub held: HeldBytes,
    pub shutdown: Shutdown,
}

/// See the module.
#[derive(Debug)]
pub struct Dispatcher {
    topics: DeviceTopics,
    /// The session of this dispatcher, and all subscriptions of this box.
    name: SessionName,
    plan: Arc<SubscriptionPlan>,
    subscriptions: SessionSubscriptions,
    /// All bindings of this box.
    bindings: Vec<LimitedBinding>,
    /// The response topics that are allowed besides the result topics; any topic when this is empty.
    response_topics: Vec<TopicFilter>,
    serving: Serving,
    authenticator: Authenticator,
    pusher: FeaturePusher,
    shutdown: Shutdown,
    limits: DispatcherLimits,
    statistics: MqttStatistics,
    /// Receives the platform's hints.
    updates: Option<Updates>,
    listeners: Vec<TopicListener>,
    session: MqttSession,
    results: UnboundedSender<FinishedMessage>,
    finished: UnboundedReceiver<FinishedMessage>,
    in_progress: usize,
    /// The bytes of requests until they are answered, and of messages that rate limits keep, of all sessions.
    held: HeldBytes,
    model_wait: ModelWait,
    /// The outbox as counted in the statistics.
    counted_outbox: MqttOutbox,
    log_limiter: LogLimiter,
    /// The topics of cameras with pictures that were too large for the broker.
    large_pictures: BTreeSet<TopicName>,
    /// The broker supports shared subscriptions.
    knows_shared: bool,
    /// Set once new messages are no longer accepted.
    closing: bool,
}

/// A handled message.
#[derive(Debug)]
pub struct FinishedMessage {
    delivery: Option<PendingDelivery>,
    answer: Option<MqttMessage>,
    held: Option<HeldBytesGuard>,
    /// The binding that failed, and the error.
    failed: Option<(Arc<Binding>, ApiError)>,
    /// Set for a success without an answer: the rows are pushed, and no model is called.
    pushed: bool,
    /// Set for a message that the `when` of its binding excludes.
    skipped: bool,
}

/// Reports the end of its message when it is dropped, so that the end of a task that panics is noticed too.
struct FinishGuard {
    results: UnboundedSender<FinishedMessage>,
    finished: Option<FinishedMessage>,
    /// The destination of the error for a call that ended without an answer.
    path: Option<(AnswerDestination, DeviceName)>,
}

impl FinishGuard {
    /// Ends without an answer, and leaves the message to the broker, which delivers it again.
    fn leave_unsettled(mut self) {
        self.path = None;
        if let Some(finished) = &mut self.finished {
            finished.delivery = None;
        }
    }
}

impl Drop for FinishGuard {
    fn drop(&mut self) {
        let Some(mut finished) = self.finished.take() else { return };
        if let (None, Some((path, device))) = (&finished.answer, &self.path) {
            let error =
                ApiError::with_code(500, "internal error: the call ended without an answer; see the log of the box");
            finished.answer = Some(path.failure(device, &error, &[]));
        }
        let _ = self.results.send(finished);
    }
}

impl Dispatcher {
    /// A dispatcher of a session, without a connection.
    pub fn new(
        topics: DeviceTopics,
        bindings: &Bindings,
        config: &MqttConfig,
        (name, plan): (SessionName, Arc<SubscriptionPlan>),
        parts: DispatcherParts,
    ) -> Self {
        let DispatcherParts { serving, authenticator, statistics, updates, listeners, held, shutdown } = parts;
        let (results, finished) = unbounded_channel();
        Self {
            subscriptions: SessionSubscriptions::new(&plan, name),
            topics,
            name,
            plan,
            model_wait: ModelWait::new(serving.repository().clone(), shutdown.clone()),
            bindings: bindings.iter().map(LimitedBinding::new).collect(),
            serving,
            authenticator,
            pusher: FeaturePusher::new(shutdown.clone()),
            shutdown,
            limits: DispatcherLimits { payload_bytes: config.max_payload_bytes, memory_bytes: config.max_memory_bytes },
            response_topics: config.response_topics.clone(),
            statistics,
            updates,
            listeners,
            session: MqttSession::default(),
            results,
            finished,
            in_progress: 0,
            held,
            counted_outbox: MqttOutbox::default(),
            log_limiter: LogLimiter::default(),
            large_pictures: BTreeSet::new(),
            knows_shared: true,
            closing: false,
        }
    }

    /// Starts a connection that the broker has accepted, by subscribing.
    pub fn connected(&mut self, broker: &ConnAck, now: Instant) {
        // A session that its plan had ended may be needed again.
        self.closing = false;
        if let Some(given_up) = self.session.connected(broker) {
            self.statistics.answer_refused();
            if let Some(suppressed) = self.log_limiter.take(("given up", 0), now) {
                let topic = given_up.message.topic;
                tracing::error!(
                    %topic,
                    suppressed,
                    "message dropped: the broker closed every connection it was sent on"
                );
            }
        }
        if broker.session_present {
            self.subscriptions.leave_others(&mut self.session);
        }
        self.knows_shared = broker.shared_subscriptions;
        self.subscriptions.ask(&mut self.session, self.knows_shared);
        if !broker.shared_subscriptions && self.subscriptions.shared().next().is_some() {
            tracing::error!(
                "the broker does not support shared subscriptions: calls to the group of this box will not arrive"
            );
        }
    }

    /// Notes that the connection is gone.
    pub fn disconnected(&mut self) {
        self.session.disconnected();
    }

    pub fn plan(&self) -> &Arc<SubscriptionPlan> {
        &self.plan
    }

    /// Takes another plan on this connection.
    pub fn replan(&mut self, plan: &Arc<SubscriptionPlan>) {
        self.set_plan(plan);
        self.subscriptions.leave_others(&mut self.session);
        self.subscriptions.ask(&mut self.session, self.knows_shared);
    }

    /// Takes another plan, from the next connection on.
    pub fn set_plan(&mut self, plan: &Arc<SubscriptionPlan>) {
        if self.plan != *plan {
            self.subscriptions = SessionSubscriptions::new(plan, self.name);
            self.plan = plan.clone();
        }
    }

    /// Returns `true` once this session has no subscription that belongs to another session.
    pub fn has_left_others(&self) -> bool {
        self.session.is_unsubscribed()
    }

    /// Returns `true` once the broker has answered each subscription of this connection.
    pub fn is_subscribed(&self) -> bool {
        self.session.is_subscribed()
    }

    /// Returns `true` if another packet may be read. Messages that wait for models leave half of the memory to others.
    pub fn may_read(&self) -> bool {
        self.in_progress < MESSAGES_IN_PROGRESS_MAX && self.model_wait.bytes() <= self.limits.memory_bytes / 2
    }

    /// The memory in bytes that is left for messages. The payload of a larger packet is skipped.
    pub fn free_memory(&self) -> usize {
        // The outboxes of other sessions as they were counted last.
        let counted = usize::try_from(self.statistics.outbox_bytes()).unwrap_or(usize::MAX);
        let of_others = counted.saturating_sub(self.counted_outbox.bytes);
        self.limits.memory_bytes.saturating_sub(self.held.get() + self.session.outbox_bytes() + of_others)
    }

    /// Returns `true` if no message is in progress and no answer waits.
    pub fn is_idle(&self) -> bool {
        self.in_progress == 0 && self.session.is_idle()
    }

    /// Returns `true` if the broker has refused a subscription, so that another attempt makes sense.
    pub fn lacks_subscription(&self) -> bool {
        !self.closing && self.subscriptions.lacks_one()
    }

    /// Sends the refused subscriptions again.
    pub fn subscribe_again(&mut self) {
        self.subscriptions.ask_again(&mut self.session);
    }

    /// Sends a PINGREQ.
    pub fn ping(&mut self) {
        self.session.ping();
    }

    /// Stops accepting messages. From now on the other members of the group get its calls.
    pub fn close(&mut self) {
        self.closing = true;
        let shared: Vec<_> = self.subscriptions.shared().cloned().collect();
        if !shared.is_empty() {
            self.session.unsubscribe(shared);
        }
    }

    /// Publishes a message of this box about itself. A retained one replaces an earlier one that has not been sent.
    pub fn publish(&mut self, message: MqttMessage, content: EgressContent) {
        self.publish_with_receipt(message, content, None);
    }

    /// The same for a message whose part waits to hear what became of it.
    pub fn publish_with_receipt(
        &mut self,
        message: MqttMessage,
        content: EgressContent,
        receipt: Option<PublicationReceipt>,
    ) {
        let outbound = OutboundMessage { message, content, settles: None, receipt };
        if outbound.message.retain {
            self.session.publish_latest(outbound);
        } else {
            self.session.publish(outbound);
        }
    }

    /// Returns `true` if messages of other parts may be published: they never fill the memory of answers.
    pub fn takes_publications(&self) -> bool {
        !self.closing
            && self.session.outbox_messages() < PUBLICATIONS_IN_OUTBOX_MAX
            && self.session.outbox_bytes() < self.limits.memory_bytes / 2
    }

    /// Handles a packet. The error is the reason of the broker's DISCONNECT.
    pub fn receive(&mut self, packet: IncomingPacket, now: Instant) -> Result<(), (ReasonCode, Option<String>)> {
        match self.session.receive(packet) {
            SessionEvent::Message(received, delivery) => self.message(received, delivery, now),
            SessionEvent::Unusable(reason) => {
                self.statistics.ignored(messages::UnansweredKind::Invalid);
                if let Some(suppressed) = self.log_limiter.take(("unusable", 0), now) {
                    tracing::warn!(reason, suppressed, "message ignored: it cannot be read");
                }
            }
            SessionEvent::Refused(outbound, reason) => {
                self.statistics.answer_refused();
                if let Some(suppressed) = self.log_limiter.take(("refused", reason.0.into()), now) {
                    let (topic, reason) = (outbound.message.topic, reason.to_string());
                    tracing::error!(
                        name: "mqtt.message_refused",
                        %topic,
                        reason,
                        suppressed,
                        "the broker refused a message"
                    );
                }
            }
            SessionEvent::Subscribed(filters) => self.subscribed(&filters, now),
            SessionEvent::Disconnected(reason, text) => return Err((reason, text)),
            SessionEvent::None => {}
        }
        Ok(())
    }

    fn subscribed(&mut self, filters: &[(TopicFilter, ReasonCode)], now: Instant) {
        for (filter, reason) in filters {
            let Some(index) = self.subscriptions.note(filter, *reason) else { continue };
            let kind = ("subscription", u32::try_from(index).unwrap_or(u32::MAX));
            if let Some(suppressed) = self.log_limiter.take(kind, now) {
                tracing::error!(
                    name: "mqtt.subscription_refused",
                    %filter,
                    %reason,
                    suppressed,
                    "subscription refused"
                );
            }
        }
    }

    fn message(&mut self, received: ReceivedMessage, delivery: Option<PendingDelivery>, now: Instant) {
        // Leave it unsettled: the broker delivers it again when this box is back.
        if self.closing {
            return;
        }
        if received.duplicate {
            self.statistics.repeated();
        }
        if self.topics.is_desired(&received.message.topic) {
            return self.hint(&received, delivery, now);
        }
        if let Some(route) = self.topics.route(&received.message.topic) {
            if check::is_probe(&received.message) {
                return self.settle(delivery, ReasonCode::SUCCESS);
            }
            return self.request(route, received, delivery, now);
        }

        let plan = self.plan.clone();
        let takers = plan.takers(self.name, &received);
        for listener in &self.listeners {
            if takers.iter().any(|planned| planned.subscription.filter == listener.filter) {
                // A part that has not read the earlier messages learns nothing from another one.
                let _ = listener.messages.try_send(received.message.payload.clone());
            }
        }
        let bindings: BTreeSet<usize> = takers.iter().flat_map(|planned| &planned.bindings).copied().collect();
        if bindings.is_empty() {
            // A part hears it, or the broker still has a subscription of an earlier configuration.
            tracing::debug!(topic = %received.message.topic, "message settled: no binding takes it");
            return self.settle(delivery, ReasonCode::SUCCESS);
        }
        self.binding_message(received, &bindings, delivery, now);
    }

    /// Handles the platform's hint that there is something new. Its content has no authority and is not read.
    fn hint(&mut self, received: &ReceivedMessage, delivery: Option<PendingDelivery>, now: Instant) {
        if received.message.payload.len() > HINT_MAX_BYTES || received.oversized.is_some() {
            self.statistics.ignored(messages::UnansweredKind::Invalid);
            if let Some(suppressed) = self.log_limiter.take(("hint", 0), now) {
                tracing::warn!(suppressed, "hint from the platform ignored: it is larger than {HINT_MAX_BYTES} bytes");
            }
        } else if let Some(updates) = self.updates.as_ref().filter(|_| !received.message.payload.is_empty()) {
            // An empty payload only clears a retained message.
            updates.check_soon();
        }
        self.settle(delivery, ReasonCode::SUCCESS);
    }

    /// The refusal of a message before it is read: it is too large, or memory is full.
    fn refusal(&self, received: &ReceivedMessage) -> Option<ApiError> {
        too_large(received, self.limits.payload_bytes).or_else(|| (self.free_memory() == 0).then(overload))
    }

    fn request(
        &mut self,
        route: Result<InferRoute, InvalidRoute>,
        received: ReceivedMessage,
        delivery: Option<PendingDelivery>,
        now: Instant,
    ) {
        let of_group = route.as_ref().is_ok_and(|route| Some(&route.owner) == self.topics.group.as_ref());
        let topic = received.message.topic.clone();
        let refusal = self.refusal(&received);

        let refused = refusal.is_some();
        let bindings = self.bindings.iter().map(|limited| &limited.binding);
        let request = CallMessage::read(route, received, now, refusal).and_then(|request| {
            // Spend nothing more on a refused request.
            let request =
                if refused { request } else { request.admitted(&self.authenticator, self.serving.audit(), now) };
            let principal = request.principal().clone();
            let directed = request.unless_misdirected(&self.response_topics, bindings);
            directed.inspect_err(|_| self.serving.audit().record_denied(&principal, "mqtt_response_topic"))
        });
        let mut request = match request {
            Ok(request) => request,
            Err(why) => return self.leave_unanswered(&topic, why, delivery, now),
        };

        self.statistics.received(if of_group { MqttMessageKind::GroupCall } else { MqttMessageKind::Call });
        let device = self.topics.device.clone();
        if refused {
            let answer = request.refused(&device);
            if answer::status(&answer) == Some(429)
                && let Some(suppressed) = self.log_limiter.take(("overload", 0), now)
            {
                let (in_progress, held, outbox) = (self.in_progress, self.held.get(), self.session.outbox_bytes());
                tracing::warn!(
                    in_progress,
                    held,
                    outbox,
                    suppressed,
                    "request refused with status 429: out of memory for messages (mqtt.max_memory_bytes)"
                );
            }
            return self.answer(answer, delivery, now);
        }

        let mut end = self.begin(delivery, Some((request.path().clone(), device.clone())));
        let memory = request.counted(self.serving.memory());
        let (serving, held) = (self.serving.clone(), self.held.hold(request.held_bytes(), memory));
        let model_wait = self.model_wait.clone();
        self.shutdown.spawn(async move {
            if !request.wait_for_model(model_wait).await {
                return end.leave_unsettled();
            }
            let answer = request.run(&serving, &device).await.0;
            if let Some(finished) = &mut end.finished {
                (finished.answer, finished.held) = (Some(answer), Some(held));
            }
        });
    }

    /// Counts a message as in progress until the guard is dropped and its end is taken.
    fn begin(
        &mut self,
        delivery: Option<PendingDelivery>,
        path: Option<(AnswerDestination, DeviceName)>,
    ) -> FinishGuard {
        self.in_progress += 1;
        let finished =
            FinishedMessage { delivery, answer: None, held: None, failed: None, pushed: false, skipped: false };
        FinishGuard { results: self.results.clone(), finished: Some(finished), path }
    }

    fn leave_unanswered(
        &mut self,
        topic: &TopicName,
        why: UnansweredReason,
        delivery: Option<PendingDelivery>,
        now: Instant,
    ) {
        self.statistics.ignored(match why {
            UnansweredReason::Answer | UnansweredReason::ForbiddenResponseTopic => messages::UnansweredKind::Loop,
            UnansweredReason::Retained | UnansweredReason::InvalidResponseTopic | UnansweredReason::NoModel => {
                messages::UnansweredKind::Invalid
            }
        });
        if let Some(suppressed) = self.log_limiter.take(("request", why as u32), now) {
            tracing::warn!(name: "mqtt.request_dropped", %topic, reason = %why, suppressed, "request not answered");
        }
        self.settle(delivery, ReasonCode::IMPLEMENTATION_SPECIFIC);
    }

    fn settle(&mut self, delivery: Option<PendingDelivery>, reason: ReasonCode) {
        if let Some(delivery) = delivery {
            self.session.settle(delivery, reason);
        }
    }

    /// Waits for the end of a message. May be dropped at any time.
    pub async fn finished(&mut self) -> FinishedMessage {
        match self.finished.recv().await {
            Some(finished) => finished,
            // This side holds a sender, so the channel never ends.
            None => std::future::pending().await,
        }
    }

    /// Answers and settles a finished message, and all others that have finished since.
    pub fn finish(&mut self, finished: FinishedMessage, now: Instant) {
        let mut next = Some(finished);
        while let Some(FinishedMessage { delivery, answer, held, failed, pushed, skipped }) = next {
            self.in_progress -= 1;
            drop(held);

            if pushed {
                self.statistics.answered(200);
            }
            if skipped {
                self.statistics.skipped();
            }
            if let Some((binding, failure)) = failed {
                if answer.is_none() {
                    self.statistics.answered(failure.status.as_u16());
                }
                self.log_binding_failure(&binding, &failure, now);
            }

            match answer {
                Some(answer) => self.answer(answer, delivery, now),
                None => self.settle(delivery, ReasonCode::SUCCESS),
            }
            next = self.finished.try_recv().ok();
        }
    }

    fn answer(&mut self, mut message: MqttMessage, delivery: Option<PendingDelivery>, now: Instant) {
        if self.session.outbox_bytes() + message.payload.len() > self.limits.memory_bytes {
            // No memory even for the error: the broker accepts nothing, and a message of QoS 0 may get lost.
            if message.qos == Qos::AtMostOnce && self.session.outbox_bytes() > self.limits.memory_bytes {
                self.statistics.ignored(messages::UnansweredKind::Overload);
                if let Some(suppressed) = self.log_limiter.take(("dropped", 0), now) {
                    tracing::warn!(
                        topic = %message.topic,
                        suppressed,
                        "answer dropped: too many answers wait for the broker (mqtt.max_memory_bytes)"
                    );
                }
                return self.settle(delivery, ReasonCode::SUCCESS);
            }
            if !self.takes_errors(&message.topic) {
                self.statistics.ignored(messages::UnansweredKind::Overload);
                return self.settle(delivery, ReasonCode::IMPLEMENTATION_SPECIFIC);
            }
            answer::replace(&mut message, &overload());
        }

        if let Some(status) = answer::status(&message) {
            self.statistics.answered(status);
        }
        self.session.publish(OutboundMessage {
            message,
            content: EgressContent::Answer,
            settles: delivery,
            receipt: None,
        });
    }

    /// Returns `true` if an error may be published in place of an answer: a binding may reserve its topic for results.
    fn takes_errors(&self, topic: &TopicName) -> bool {
        let configs = self.bindings.iter().map(|limited| limited.binding.config());
        let mut silent = configs.filter(|config| !config.publish_errors);
        !silent.any(|config| config.publish.as_ref().is_some_and(|it| it.as_filter(&config.topic).matches(topic)))
    }

    /// The next packet to send.
    pub fn next_packet(
        &mut self,
        size: impl Fn(&OutgoingPacket) -> usize,
        now: Instant,
    ) -> Option<(EgressContent, OutgoingPacket)> {
        loop {
            match self.session.next(&size)? {
                NextPacket::Send(content, packet) => return Some((content, packet)),
                NextPacket::TooLarge(outbound) => {
                    outbound.end(Err("it is larger than the broker accepts"));
                    let OutboundMessage { mut message, content, settles, receipt: _ } = outbound;
                    let bytes = message.payload.len();
                    let text = format!("the answer has {bytes} bytes, and the broker accepts no packet of that size");
                    if self.takes_errors(&message.topic)
                        && answer::replace(&mut message, &ApiError::with_code(413, text))
                    {
                        self.session.publish(OutboundMessage { message, content, settles, receipt: None });
                        continue;
                    }
                    self.log_too_large(message.topic, bytes, content, now);
                    self.settle(settles, ReasonCode::UNSPECIFIED_ERROR);
                }
            }
        }
    }

    fn log_too_large(&mut self, topic: TopicName, bytes: usize, content: EgressContent, now: Instant) {
        let message = "message dropped: it is larger than the broker accepts";
        if content == EgressContent::Picture {
            // The next pictures are as large, and come every few seconds: one warning for each camera is enough.
            if self.large_pictures.contains(&topic) {
                tracing::debug!(name: "mqtt.message_too_large", %topic, bytes, message);
            } else {
                tracing::warn!(name: "mqtt.message_too_large", %topic, bytes, message);
                self.large_pictures.insert(topic);
            }
        } else if let Some(suppressed) = self.log_limiter.take(("too large", 0), now) {
            tracing::error!(name: "mqtt.message_too_large", %topic, bytes, suppressed, message);
        }
    }

    /// Handles a packet that the egress policy does not let this connection send. The session sees a refusal by the
    /// broker.
    pub fn not_permitted(&mut self, packet: OutgoingPacket, reason: &str, now: Instant) {
        let OutgoingPacket::Publish { message, packet_id, .. } = packet else { return };
        if let Some(suppressed) = self.log_limiter.take(("not permitted", 0), now) {
            tracing::error!(
                topic = %message.topic,
                reason,
                suppressed,
                "message dropped: the egress policy does not permit it"
            );
        }
        if let Some(packet_id) = packet_id {
            // It is logged above.
            let _ = self.session.receive(IncomingPacket::PubAck { packet_id, reason: ReasonCode::NOT_AUTHORIZED });
        }
    }

    /// Writes the memory in use and the length of the outbox to the statistics.
    pub fn update_statistics(&mut self) {
        let outbox = MqttOutbox { messages: self.session.outbox_messages(), bytes: self.session.outbox_bytes() };
        self.statistics.set_in_flight(self.held.get());
        self.statistics.move_outbox(std::mem::replace(&mut self.counted_outbox, outbox), outbox);
    }
}

#[cfg(test)]
pub(super) mod tests;
