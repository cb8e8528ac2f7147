//! The connection of each session to the broker: opens it, keeps it, and reconnects. One task owns it, the session and
//! its messages in progress.
//!
//! The task never waits for an inference: inferences run in separate tasks and report back.

use std::convert::Infallible;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ledge_base::backoff::{Backoff, random};
use ledge_base::telemetry::messages::MqttStatistics;
use ledge_egress::{Egress, EgressContent};
use ledge_identity::authentication::Authenticator;
use ledge_models::serving::Serving;
use ledge_service::shutdown::Shutdown;
use ledge_updates::Updates;
use tokio::sync::watch;

use super::bindings::Bindings;
use super::client::connection::{BrokerConnection, ConnectionError, ConnectionReader, ConnectionWriter};
use super::client::packet::{ConnAck, IncomingPacket, MessageProperties, MqttMessage, MqttVersion, Qos};
use super::config::MqttConfig;
use super::connect::{self, ConnectError, OFFLINE, ONLINE, presence};
use super::dispatcher::{Dispatcher, DispatcherParts};
use super::held_bytes::HeldBytes;
use super::keep_alive::{ByteCounts, KeepAlive, KeepAliveAction, PING_TIMEOUT};
use super::plan::{SessionName, SubscriptionPlan};
use super::publisher::{Publisher, TopicListener};
use super::request::MESSAGE_HEAD_BYTES;
pub use super::session_plans::FormerBindings;
use super::session_plans::{RefusedSessionEffect, SessionStop, SubscriptionPlans};
use super::topics::DeviceTopics;

/// Bytes in the writer above which no more packets are put into it.
const WRITE_QUEUE_MAX_BYTES: usize = 256 << 10;

/// Packets received in a row before other tasks run: callers over HTTP wait on the same thread.
const PACKETS_PER_TURN: usize = 32;

/// Time without anything to send after which received packets are acknowledged at the level of TCP: until then the
/// broker may hold back the next ones. Doing it at once would cost a system call for each packet when answers are
/// quick.
const TCP_ACK_DELAY: Duration = Duration::from_millis(1);

/// Upper bound of the first pause between attempts to connect.
pub(super) const FIRST_RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// Age from which a connection counts as stable: the pause after it is short again.
const STABLE_CONNECTION_AGE: Duration = Duration::from_secs(10);

/// Time between two attempts at a refused subscription: the broker's access list may have changed.
const RESUBSCRIBE_INTERVAL: Duration = Duration::from_mins(1);

/// Time to wait for the broker's DISCONNECT once sending has failed. As a rule it has arrived by then.
const DISCONNECT_REASON_TIMEOUT: Duration = Duration::from_millis(100);

/// The parts that MQTT needs.
#[derive(Debug, Clone)]
pub struct Gateway {
    /// The section `[mqtt]`.
    pub config: MqttConfig,
    /// The topics of this box.
    pub topics: DeviceTopics,
    pub egress: Egress,
    pub serving: Serving,
    pub authenticator: Authenticator,
    pub statistics: MqttStatistics,
    /// The report of this box; nothing is published while it is empty.
    pub reported: watch::Receiver<Bytes>,
    /// The messages of other parts.
    pub publisher: Publisher,
    /// The topics that other parts hear.
    pub listeners: Vec<TopicListener>,
    /// Receives the platform's hints; `None` where no platform manages this box.
    pub updates: Option<Updates>,
    pub former: FormerBindings,
}

/// The phases of a connection, from open to closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionPhase {
    Open,
    /// Messages in progress are answered; no new ones are accepted.
    Draining,
    /// The last message is being sent.
    Leaving,
}

impl Gateway {
    /// Answers messages until the shutdown is requested and the messages in progress have ended.
    pub async fn run(mut self, shutdown: Shutdown) -> Result<(), Infallible> {
        if self.config.broker.is_none() {
            return Ok(());
        }
        let bindings = Bindings::new(&self.config.bindings);
        let listeners = std::mem::take(&mut self.listeners);
        let heard = listeners.iter().map(|listener| listener.filter.clone()).collect();
        let plans = SubscriptionPlans::new(self.topics.clone(), bindings.clone(), heard, self.former.clone());
        let held = HeldBytes::default();
        let start = plans.plan(MqttVersion::V5, &ConnAck::accepting());
        let dispatcher = |name| {
            let parts = DispatcherParts {
                serving: self.serving.clone(),
                authenticator: self.authenticator.clone(),
                statistics: self.statistics.clone(),
                updates: self.updates.clone(),
                listeners: listeners.clone(),
                held: held.clone(),
                shutdown: shutdown.clone(),
            };
            Dispatcher::new(self.topics.clone(), &bindings, &self.config, (name, start.clone()), parts)
        };

        for name in plans.others() {
            let gateway = Self {
                reported: watch::Sender::new(Bytes::new()).subscribe(),
                publisher: Publisher::default(),
                ..self.clone()
            };
            let task = SessionTask { gateway, name, plans: plans.clone() };
            shutdown.spawn_essential("mqtt session", task.run_other(dispatcher(name), shutdown.clone()));
        }
        let mut dispatcher = dispatcher(SessionName::Main);
        let mut main = SessionTask { gateway: self, name: SessionName::Main, plans };
        main.gateway.statistics.expect_session(&main.client_id());
        main.serve(&mut dispatcher, &SessionStop::of_daemon(shutdown)).await;
        Ok(())
    }
}

/// One session with the broker: connects, and reconnects.
#[derive(Debug)]
pub struct SessionTask {
    pub(super) gateway: Gateway,
    pub(super) name: SessionName,
    pub(super) plans: SubscriptionPlans,
}

impl SessionTask {
    pub(super) fn client_id(&self) -> String {
        connect::client_id(&self.gateway.config, &self.gateway.topics, self.name)
    }

    /// Exchanges messages until the end is requested and the messages in progress have ended.
    pub(super) async fn serve(&mut self, dispatcher: &mut Dispatcher, end: &SessionStop) {
        let Some(broker) = self.gateway.config.broker.clone() else { return };
        let (client_id, statistics) = (self.client_id(), self.gateway.statistics.clone());
        let mut backoff = Backoff::new(FIRST_RECONNECT_PAUSE, self.gateway.config.reconnect_max());
        let (mut last_reason, mut ended_early, mut problem) = (String::new(), 0, None);

        loop {
            let plan = dispatcher.plan().clone();
            let connected = tokio::select! {
                connected = finishing_messages(dispatcher, self.connect(&plan)) => connected,
                () = end.requested() => return,
            };

            let began = Instant::now();
            let ended = match connected {
                Ok(connection) => {
                    let (version, session_present) = (connection.version, connection.accepted.session_present);
                    tracing::info!(
                        name: "mqtt.connected",
                        %broker,
                        %version,
                        client_id,
                        session_present,
                        "connected to the broker"
                    );
                    last_reason.clear();
                    ended_early = 0;
                    statistics.connected(&client_id);
                    let ended = self.exchange(connection, dispatcher, end).await;
                    statistics.disconnected(&client_id);
                    self.gateway.publisher.disconnected();
                    self.plans.note_subscribed(self.name, false);
                    dispatcher.disconnected();
                    ended.map_err(ConnectError::from)
                }
                Err(failed) => {
                    match self.refusal(&plan, &failed, &mut ended_early) {
                        Some(RefusedSessionEffect::SharesMain) => return,
                        Some(RefusedSessionEffect::Problem(told)) => {
                            statistics.session_refused(&client_id, &told);
                            problem = Some(told);
                        }
                        None => {}
                    }
                    Err(failed)
                }
            };
            let Err(failed) = ended else { return };

            if began.elapsed() >= STABLE_CONNECTION_AGE {
                backoff.reset();
            }
            if failed.is_takeover() {
                // Otherwise two boxes of one name would disconnect each other for ever.
                backoff.give_way();
            }

            let pause = backoff.pause(random());
            let reason = problem.take().unwrap_or_else(|| failed.to_string());
            let retry_in_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
            // A warning once for each reason: a broker that is away for a night would fill the log.
            if last_reason == reason {
                tracing::debug!(
                    name: "mqtt.disconnected",
                    %broker,
                    client_id,
                    reason,
                    retry_in_ms,
                    "the broker is not connected"
                );
            } else {
                tracing::warn!(
                    name: "mqtt.disconnected",
                    %broker,
                    client_id,
                    reason,
                    retry_in_ms,
                    "the broker is not connected"
                );
                last_reason = reason;
            }

            tokio::select! {
                () = finishing_messages(dispatcher, tokio::time::sleep(pause)) => {}
                () = end.requested() => return,
            }
        }
    }

    async fn connect(&self, plan: &SubscriptionPlan) -> Result<BrokerConnection, ConnectError> {
        let Gateway { config, topics, egress, .. } = &self.gateway;
        let connect = connect::connect_packet(config, topics, self.name)?;
        // All sessions speak the version that the broker accepted for the main one.
        let protocol = if self.is_main() { config.protocol } else { plan.rules.version.into() };
        Ok(connect::open(egress, config, protocol, connect).await?)
    }

    fn is_main(&self) -> bool {
        self.name == SessionName::Main
    }

    /// Exchanges packets until the connection breaks, or is closed at the end.
    async fn exchange(
        &mut self,
        connection: BrokerConnection,
        dispatcher: &mut Dispatcher,
        end: &SessionStop,
    ) -> Result<(), ConnectionError> {
        let BrokerConnection { mut reader, mut writer, version, accepted } = connection;
        let keep_alive_s = accepted.server_keep_alive_s.unwrap_or(self.gateway.config.keep_alive_s);
        let mut keep_alive = KeepAlive::new(Duration::from_secs(keep_alive_s.into()), Instant::now());
        let resubscribe_interval = RESUBSCRIBE_INTERVAL.min(self.gateway.config.reconnect_max());

        let mut splits_rows = self.plans.splits_rows();
        if self.is_main() {
            dispatcher.set_plan(&self.plans.plan(version, &accepted));
        }
        dispatcher.connected(&accepted, Instant::now());
        if self.is_main() {
            dispatcher.publish(presence(self.gateway.topics.online(), ONLINE), EgressContent::Presence);
        }
        self.report(dispatcher);
        self.gateway.publisher.connected();

        let mut resubscribe = Instant::now() + resubscribe_interval;
        let mut phase = ConnectionPhase::Open;
        let (mut reporting, mut unacknowledged) = (true, None);
        let (mut is_announced, mut is_subscribed) = (!self.is_main(), false);

        loop {
            phase = self.next_phase(phase, dispatcher, end);
            if !is_announced && dispatcher.has_left_others() {
                is_announced = true;
                self.plans.announce(dispatcher.plan());
            }
            if is_announced && !is_subscribed && dispatcher.is_subscribed() {
                is_subscribed = true;
                self.plans.note_subscribed(self.name, true);
            }
            self.publish(dispatcher);
            send(&mut writer, dispatcher)?;
            if phase == ConnectionPhase::Leaving && dispatcher.is_idle() && writer.queued() == 0 {
                return connect::disconnect(writer).await;
            }

            let now = Instant::now();
            dispatcher.start_due(now);
            if dispatcher.lacks_subscription() && now >= resubscribe {
                resubscribe = now + resubscribe_interval;
                dispatcher.subscribe_again();
                continue;
            }

            if !dispatcher.may_read() {
                keep_alive.stopped_reading(now);
            }
            match keep_alive.check(ByteCounts { received: reader.received(), sent: writer.sent() }, now) {
                KeepAliveAction::Wait => {}
                KeepAliveAction::Dead => return Err(ConnectionError::Silent(PING_TIMEOUT)),
                KeepAliveAction::Ping => {
                    dispatcher.ping();
                    continue;
                }
            }

            if unacknowledged.is_some_and(|since| now >= since + TCP_ACK_DELAY) {
                reader.acknowledge();
                unacknowledged = None;
            }
            let tcp_ack = unacknowledged.map(|since| since + TCP_ACK_DELAY);
            let wake = [dispatcher.next_due(), dispatcher.lacks_subscription().then_some(resubscribe), tcp_ack];
            let wake = wake.into_iter().flatten().fold(keep_alive.next(), Instant::min);

            dispatcher.update_statistics();
            reader.set_max_packet(self.packet_size_max(dispatcher));
            tokio::select! {
                // Send before reading: an answer frees memory, a request takes it.
                biased;
                () = end.requested(), if phase == ConnectionPhase::Open => {}
                sent = writer.flush(), if writer.queued() > 0 => {
                    if let Err(broke) = sent {
                        return Err(read_disconnect_reason(&mut reader).await.unwrap_or(broke));
                    }
                    // A sent packet carries the TCP acknowledgement.
                    unacknowledged = None;
                }
                finished = dispatcher.finished() => dispatcher.finish(finished, Instant::now()),
                changed = self.gateway.reported.changed(), if reporting => {
                    reporting = changed.is_ok();
                    self.report(dispatcher);
                }
                () = self.gateway.publisher.changed(), if dispatcher.takes_publications() => {}
                Ok(()) = splits_rows.changed(), if self.is_main() && phase == ConnectionPhase::Open => {
                    dispatcher.replan(&self.plans.plan(version, &accepted));
                    (is_announced, is_subscribed) = (false, false);
                }
                packet = reader.next(), if dispatcher.may_read() => {
                    unacknowledged.get_or_insert_with(Instant::now);
                    self.receive(packet?, &mut reader, dispatcher)?;
                    // Run the tasks of these packets before reading more.
                    yield_to_ready_tasks().await;
                }
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
    }

    /// Handles a packet, and some of those that arrived with it.
    fn receive(
        &self,
        mut packet: IncomingPacket,
        reader: &mut ConnectionReader,
        dispatcher: &mut Dispatcher,
    ) -> Result<(), ConnectionError> {
        let now = Instant::now();
        let ended = |(reason, text)| ConnectionError::Disconnected { reason, text };
        for _ in 1..PACKETS_PER_TURN {
            dispatcher.receive(packet, now).map_err(ended)?;
            reader.set_max_packet(self.packet_size_max(dispatcher));
            match reader.next_buffered()? {
                Some(next) => packet = next,
                None => return Ok(()),
            }
        }
        dispatcher.receive(packet, now).map_err(ended)
    }

    /// The size in bytes above which the payload of a packet is skipped now.
    fn packet_size_max(&self, dispatcher: &Dispatcher) -> usize {
        dispatcher.free_memory().min(self.gateway.config.max_payload_bytes.saturating_add(MESSAGE_HEAD_BYTES))
    }

    /// Moves on to the next phase where it is time, with the steps that belong to the change.
    fn next_phase(
        &self,
        mut phase: ConnectionPhase,
        dispatcher: &mut Dispatcher,
        end: &SessionStop,
    ) -> ConnectionPhase {
        if phase == ConnectionPhase::Open && end.is_requested() {
            dispatcher.close();
            phase = ConnectionPhase::Draining;
        }
        if phase == ConnectionPhase::Draining && dispatcher.is_idle() {
            if self.is_main() {
                dispatcher.publish(presence(self.gateway.topics.online(), OFFLINE), EgressContent::Presence);
            }
            phase = ConnectionPhase::Leaving;
        }
        phase
    }

    /// Publishes messages of other parts, as many as there is room for.
    fn publish(&self, dispatcher: &mut Dispatcher) {
        while dispatcher.takes_publications()
            && let Some((message, content, receipt)) = self.gateway.publisher.next()
        {
            dispatcher.publish_with_receipt(message, content, receipt);
        }
    }

    /// Publishes the report of this box.
    fn report(&mut self, dispatcher: &mut Dispatcher) {
        let payload = self.gateway.reported.borrow_and_update().clone();
        if !payload.is_empty() {
            let properties =
                MessageProperties { content_type: Some("application/json".to_owned()), ..MessageProperties::default() };
            let topic = self.gateway.topics.reported();
            let message = MqttMessage { topic, payload, qos: Qos::AtLeastOnce, retain: true, properties };
            dispatcher.publish(message, EgressContent::Report);
        }
    }
}

/// Puts packets of the session into the writer, up to [`WRITE_QUEUE_MAX_BYTES`].
fn send(writer: &mut ConnectionWriter, dispatcher: &mut Dispatcher) -> Result<(), ConnectionError> {
    while writer.queued() < WRITE_QUEUE_MAX_BYTES {
        let Some((content, packet)) = dispatcher.next_packet(|packet| writer.size(packet), Instant::now()) else {
            break;
        };
        match writer.put(content, &packet) {
            Ok(()) => {}
            Err(ConnectionError::NotPermitted(reason)) => dispatcher.not_permitted(packet, &reason, Instant::now()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The broker's reason for closing a connection that broke, if it sent one. Other packets are dropped: the broker
/// delivers messages of QoS 1 again.
async fn read_disconnect_reason(reader: &mut ConnectionReader) -> Option<ConnectionError> {
    let said = async {
        loop {
            match reader.next().await {
                Ok(IncomingPacket::Disconnect { reason, text }) => {
                    return Some(ConnectionError::Disconnected { reason, text });
                }
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    };
    tokio::time::timeout(DISCONNECT_REASON_TIMEOUT, said).await.ok().flatten()
}

/// Waits for a future, and finishes messages meanwhile.
async fn finishing_messages<T>(dispatcher: &mut Dispatcher, what: impl Future<Output = T>) -> T {
    let mut what = std::pin::pin!(what);
    loop {
        tokio::select! {
            result = &mut what => return result,
            finished = dispatcher.finished() => dispatcher.finish(finished, Instant::now()),
        }
    }
}

/// Runs the tasks that are ready first. `yield_now` would ask the kernel for events before that, each time.
async fn yield_to_ready_tasks() {
    let mut given = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut given, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
