//! Checks that the broker grants the subscriptions and publications that this box needs. A daemon that runs at the same
//! time is not disturbed.
//!
//! A broker may grant a subscription and then withhold its messages, as mosquitto does by its `acl_file`. Therefore the
//! check publishes one message that each subscription matches, and waits for it. The message is empty and not retained,
//! so Ledge and most other programs ignore it. Where the filter has wildcards, the check makes up a topic.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ledge_base::names::{DeviceName, InvalidName};
use ledge_egress::{Egress, EgressContent};
use serde::Serialize;

use super::bindings::Bindings;
use super::client::connection::{BrokerConnection, ConnectionError, ConnectionReader, ConnectionWriter};
use super::client::packet::{
    ConnAck, Connect, IncomingPacket, MessageProperties, MqttMessage, MqttVersion, OutgoingPacket, Qos, ReasonCode,
    RetainHandling, Subscription, SubscriptionId,
};
use super::client::session::{MqttSession, NextPacket, OutboundMessage, SessionEvent};
use super::config::MqttConfig;
use super::connect::{self, ConnectError};
use super::plan::{SessionName, SubscriptionPlan, SubscriptionPlanRules};
use super::subscriptions;
use super::topics::{DeviceTopics, TopicFilter, TopicName};

/// The payload of the test message, and the model that owns its result topic.
const CHECK_PAYLOAD: &[u8] = br#"{"check":true}"#;
const CHECK_MODEL: &str = "check";

/// The beginning of the levels that the check puts in the place of wildcards.
const PROBE_LEVEL: &str = "ledge-check-";

/// Time for a published message to come back.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(2);

/// The finding of one step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepFinding {
    pub step: CheckStep,
    /// True if the broker grants everything that the daemon needs, as far as the check can find out.
    pub ok: bool,
    /// True if the check could not find out.
    pub untested: bool,
    pub detail: String,
}

/// The steps, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckStep {
    /// The broker accepts the connection.
    Connection,
    /// The limits that the broker announces.
    Broker,
    Subscription,
    /// An answer may be published.
    Publishing,
    /// The time that the broker takes to answer.
    RoundTrip,
    /// Messages of a subscription come.
    Delivery,
}

impl CheckStep {
    /// The name for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Broker => "broker",
            Self::Subscription => "subscription",
            Self::Publishing => "publishing",
            Self::RoundTrip => "round trip",
            Self::Delivery => "delivery",
        }
    }
}

/// The reason why a step has no result.
#[derive(Debug, thiserror::Error)]
enum BrokerCheckError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error("the broker accepts no packet of {0} bytes")]
    TooLarge(usize),
}

impl From<ConnectionError> for BrokerCheckError {
    fn from(error: ConnectionError) -> Self {
        Self::Connect(error.into())
    }
}

/// The topics to which the check may publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeTopics {
    /// One for each subscription. Where a filter has no wildcard, it is the topic of a device.
    All,
    /// Only topics that no device has.
    MadeUp,
}

/// Connects and subscribes as the daemon does, within `limit`. `heard` are the topics of other parts of the daemon.
///
/// It uses other client ids, sessions that end with their connections, and no last will, so that a running daemon is
/// neither disconnected nor reported as gone. A shared subscription gets another group name: otherwise calls to the
/// group would come here and get lost.
pub async fn check(
    config: &MqttConfig,
    topics: &DeviceTopics,
    heard: &[TopicFilter],
    egress: &Egress,
    probes: ProbeTopics,
    limit: Duration,
) -> Vec<StepFinding> {
    let bindings = Bindings::new(&config.bindings);
    let mut check = BrokerCheck {
        config,
        topics,
        bindings,
        heard,
        egress,
        probes,
        tag: random_suffix(),
        step: CheckStep::Connection,
        findings: Vec::new(),
    };
    let failure = match tokio::time::timeout(limit, check.run()).await {
        Ok(Ok(())) => return check.findings,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", limit.as_secs()),
    };
    check.add_finding(false, failure);
    check.findings
}

/// Returns `true` for a message of a check, which asks for nothing.
pub fn is_probe(message: &MqttMessage) -> bool {
    message.payload.is_empty() && message.topic.as_str().split('/').any(|level| level.starts_with(PROBE_LEVEL))
}

struct BrokerCheck<'a> {
    config: &'a MqttConfig,
    topics: &'a DeviceTopics,
    bindings: Bindings,
    heard: &'a [TopicFilter],
    egress: &'a Egress,
    probes: ProbeTopics,
    /// Distinguishes this check from others.
    tag: String,
    step: CheckStep,
    findings: Vec<StepFinding>,
}

/// A subscription that the broker has granted.
struct GrantedSubscription {
    filter: TopicFilter,
    id: Option<SubscriptionId>,
    /// The place of its connection.
    connection: usize,
}

/// The way in which a message was published.
enum ProbePublishResult {
    Accepted,
    /// The broker does not report whether it accepts it.
    Unreported,
    /// It was not published, for this reason.
    Refused(String),
}

impl BrokerCheck<'_> {
    fn add_finding(&mut self, ok: bool, detail: impl Into<String>) {
        self.findings.push(StepFinding { step: self.step, ok, untested: false, detail: detail.into() });
    }

    fn add_untested(&mut self, detail: impl Into<String>) {
        self.findings.push(StepFinding { step: self.step, ok: true, untested: true, detail: detail.into() });
    }

    fn plan(&self, rules: SubscriptionPlanRules) -> SubscriptionPlan {
        SubscriptionPlan::new(self.topics, &self.bindings, self.heard, rules)
    }

    /// The CONNECT packet of a session of the check.
    fn connect_packet(&self, session: SessionName) -> Result<Connect, ConnectError> {
        let mut connect = connect::connect_packet(self.config, self.topics, SessionName::Main)?;
        let _ = write!(connect.client_id, "-check-{}", self.tag);
        connect.client_id = session.client_id(&connect.client_id);
        (connect.clean_start, connect.session_expiry_s, connect.will) = (true, 0, None);
        Ok(connect)
    }

    async fn run(&mut self) -> Result<(), BrokerCheckError> {
        let connect = self.connect_packet(SessionName::Main)?;
        let client_id = connect.client_id.clone();
        let connection = connect::open(self.egress, self.config, self.config.protocol, connect).await?;
        let (version, accepted) = (connection.version, connection.accepted.clone());
        if let Some(broker) = &self.config.broker {
            let tls = if broker.tls { "over TLS" } else { "without TLS" };
            let user = if self.config.user.is_empty() { "no user" } else { &self.config.user };
            self.add_finding(true, format!("{broker} with {version} {tls}, as the client {client_id} and {user}"));
        }
        let plan = self.plan(SubscriptionPlanRules::of(version, &accepted, true));
        let mut sessions = vec![SessionName::Main];
        let mut connections = vec![CheckConnection::new(connection)];
        for name in plan.others() {
            if let Some(connection) = self.connect_other(&plan, name).await? {
                sessions.push(name);
                connections.push(connection);
            }
        }

        self.step = CheckStep::Broker;
        self.announced(version, &accepted, &plan);

        self.step = CheckStep::Subscription;
        let mut granted = Vec::new();
        for (index, (name, connection)) in sessions.iter().zip(&mut connections).enumerate() {
            let wanted: Vec<_> = plan.of(*name).cloned().collect();
            granted.extend(self.subscribe(connection, &wanted, index).await?);
        }
        let Some(main) = connections.first_mut() else { return Ok(()) };
        self.step = CheckStep::Publishing;
        self.publish(main, version, &accepted).await?;

        self.step = CheckStep::RoundTrip;
        let began = Instant::now();
        main.session.ping();
        main.wait(|packet| matches!(packet, IncomingPacket::PingResp).then_some(())).await?;
        let micros = began.elapsed().as_micros();
        self.add_finding(true, format!("{}.{:03} ms", micros / 1000, micros % 1000));

        self.step = CheckStep::Delivery;
        self.deliver(&mut connections, &granted, version, &accepted).await?;
        for connection in connections {
            connect::disconnect(connection.writer).await?;
        }
        Ok(())
    }

    /// Connects a session besides the main one. `None` if the broker does not accept it.
    async fn connect_other(
        &mut self,
        plan: &SubscriptionPlan,
        name: SessionName,
    ) -> Result<Option<CheckConnection>, BrokerCheckError> {
        let connect = self.connect_packet(name)?;
        let client_id = connect.client_id.clone();
        let why: Vec<String> = plan.separations(name, &self.bindings).iter().map(ToString::to_string).collect();
        let why = match name {
            SessionName::Rows(1) => "bindings that only push rows wait for no model".to_owned(),
            _ => why.join("; "),
        };
        match connect::open(self.egress, self.config, plan.rules.version.into(), connect).await {
            Ok(connection) => {
                self.add_finding(true, format!("a session of its own, as the client {client_id}, since {why}"));
                Ok(Some(CheckConnection::new(connection)))
            }
            Err(error) if name.is_rows() => {
                self.add_untested(format!(
                    "no session of its own as the client {client_id}: {error}. {why}: they will share the session of calls"
                ));
                Ok(None)
            }
            Err(error) => {
                self.add_finding(false, format!("no session as the client {client_id}, needed since {why}: {error}"));
                Ok(None)
            }
        }
    }

    fn announced(&mut self, version: MqttVersion, broker: &ConnAck, plan: &SubscriptionPlan) {
        if version == MqttVersion::V311 {
            return self.add_finding(true, "a broker of MQTT 3.1.1 does not announce its limits");
        }
        let shares = plan.iter().any(|planned| planned.subscription.filter.is_shared());
        let yes = |yes| if yes { "" } else { "no " };
        let packets = broker.maximum_packet_size.map_or("any size".to_owned(), |size| format!("up to {size} bytes"));
        let keep_alive = match broker.server_keep_alive_s {
            Some(seconds) => format!("it asks for a keep-alive of {seconds} s"),
            None => format!("keep-alive {} s", self.config.keep_alive_s),
        };
        let mut detail = format!(
            "accepts {} unacknowledged messages, packets of {packets}, QoS {}, {}retained messages, \
             {}shared subscriptions, {}subscription identifiers; {keep_alive}",
            broker.receive_maximum,
            if broker.maximum_qos == Qos::AtMostOnce { "0 only" } else { "1" },
            yes(broker.retain_available),
            yes(broker.shared_subscriptions),
            yes(broker.subscription_ids),
        );
        let lacks_shared = shares && !broker.shared_subscriptions;
        if lacks_shared {
            detail += ". Calls to the group of this box will not arrive";
        }
        self.add_finding(!lacks_shared, detail);
    }

    /// Subscribes. Returns the answer of the broker for each subscription.
    async fn subscribe(
        &mut self,
        connection: &mut CheckConnection,
        wanted: &[Subscription],
        index: usize,
    ) -> Result<Vec<GrantedSubscription>, BrokerCheckError> {
        let group: DeviceName = format!("check-{}", self.tag).parse()?;
        let harmless = |subscription: &Subscription| {
            let filter = &subscription.filter;
            let filter = if filter.is_shared() { TopicFilter::shared(&group, filter) } else { filter.clone() };
            // The message to be delivered is the check's own.
            Subscription { filter, retain_handling: RetainHandling::Never, no_local: false, ..*subscription }
        };
        let mut granted = Vec::new();
        for packet in subscriptions::packets(wanted.iter()) {
            connection.session.subscribe(packet.iter().map(harmless).collect());
            let reasons = connection.wait(|packet| match packet {
                IncomingPacket::SubAck { reasons, .. } => Some(reasons.clone()),
                _ => None,
            });
            for (Subscription { filter, qos, id, .. }, reason) in packet.into_iter().zip(reasons.await?) {
                let wanted = u8::from(qos == Qos::AtLeastOnce);
                let result = match reason.0 {
                    _ if reason.is_failure() => format!("refused, {reason}"),
                    granted if granted < wanted => {
                        format!("granted with QoS {granted} instead of {wanted}: messages may get lost")
                    }
                    granted => format!("granted with QoS {granted}"),
                };
                self.add_finding(!reason.is_failure(), format!("{filter}: {result}"));
                if !reason.is_failure() {
                    granted.push(GrantedSubscription { filter, id, connection: index });
                }
            }
        }
        Ok(granted)
    }

    /// Publishes a message for each subscription, and waits until it comes back.
    async fn deliver(
        &mut self,
        connections: &mut [CheckConnection],
        granted: &[GrantedSubscription],
        version: MqttVersion,
        broker: &ConnAck,
    ) -> Result<(), BrokerCheckError> {
        let mut expected = Vec::new();
        for subscription in granted {
            let filter = &subscription.filter;
            let Some(topic) = probe_topic(filter, &self.tag) else {
                self.add_untested(format!("{filter}: not tested, since only the broker publishes there"));
                continue;
            };
            if self.probes == ProbeTopics::MadeUp && filter.capture_count() == 0 {
                continue;
            }
            let Some(main) = connections.first_mut() else { return Ok(()) };
            match main.publish(topic.clone(), Bytes::new(), MessageProperties::default(), broker).await {
                Ok(ProbePublishResult::Refused(reason)) => self.add_untested(format!(
                    "{filter}: not tested, since this box may not publish to {topic} ({reason}). Publish there with \
                     another client to see whether its messages come"
                )),
                Ok(published) => expected.push((subscription, topic, published)),
                Err(BrokerCheckError::Connect(ConnectError::Connection(ConnectionError::Ended))) => {
                    self.add_untested(format!(
                        "{filter}: not tested, since the broker closed the connection after a message to {topic}, as some \
                         do when publishing is not allowed"
                    ));
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }

        let until = Instant::now() + DELIVERY_TIMEOUT;
        for (index, connection) in connections.iter_mut().enumerate() {
            let of_connection = expected.iter().filter(|(subscription, ..)| subscription.connection == index);
            let wanted: Vec<_> = of_connection.map(|(subscription, topic, _)| (*subscription, topic)).collect();
            connection.wait_for_deliveries(&wanted, until).await?;
        }
        for (subscription, topic, published) in &expected {
            let filter = &subscription.filter;
            let came =
                connections.get(subscription.connection).is_some_and(|connection| connection.has(subscription, topic));
            let nameless =
                connections.get(subscription.connection).is_some_and(|connection| connection.has_nameless(topic));
            match published {
                _ if came => self.add_finding(true, format!("{filter}: a message to {topic} came back")),
                _ if nameless => self.nameless(filter, topic),
                ProbePublishResult::Accepted if version == MqttVersion::V5 => self.add_finding(
                    false,
                    format!(
                        "{filter}: granted, but a message to {topic} did not come back: the broker withholds it. Allow \
                         this box to read {} in the broker's access list",
                        filter.unshared()
                    ),
                ),
                _ => self.add_untested(format!(
                    "{filter}: a message to {topic} did not come back: the broker withholds it, or does not allow this \
                     box to publish there, which it did not report. Publish there with another client to find out"
                )),
            }
        }
        Ok(())
    }

    /// Adds the finding of a message that came without the identifier of its subscription.
    fn nameless(&mut self, filter: &TopicFilter, topic: &TopicName) {
        let apart = self.plan(SubscriptionPlanRules { version: MqttVersion::V5, has_ids: false, splits_rows: true });
        let others = apart.others().into_iter().flat_map(|name| apart.separations(name, &self.bindings));
        let pairs: Vec<String> = others.filter(|pair| pair.overlaps).map(|pair| pair.to_string()).collect();
        if pairs.is_empty() {
            return self.add_finding(true, format!("{filter}: a message to {topic} came back"));
        }
        self.add_finding(
            false,
            format!(
                "{filter}: a message to {topic} came back without its subscription identifier, so some messages will count \
                 twice: {}. Set mqtt.protocol = \"3.1.1\", with which each has a session of its own",
                pairs.join("; ")
            ),
        );
    }

    async fn publish(
        &mut self,
        connection: &mut CheckConnection,
        version: MqttVersion,
        broker: &ConnAck,
    ) -> Result<(), BrokerCheckError> {
        let topic = DeviceTopics::result(&self.topics.device, &CHECK_MODEL.parse()?);
        if !self.egress.permits(&connect::destination(self.config), EgressContent::Answer) {
            // The broker of a platform gets reports only.
            self.add_untested(format!(
                "{topic}: not tested, since egress.allow does not permit answers to this broker: it gets reports, and calls \
                 over it are not answered"
            ));
            return Ok(());
        }
        let properties =
            MessageProperties { content_type: Some("application/json".to_owned()), ..MessageProperties::default() };
        let (ok, result) = match connection.publish(topic.clone(), CHECK_PAYLOAD.into(), properties, broker).await {
            Ok(ProbePublishResult::Refused(reason)) => (false, format!("refused, {reason}")),
            Ok(ProbePublishResult::Accepted) if version == MqttVersion::V311 => {
                (true, "acknowledged; a broker of MQTT 3.1.1 cannot report that it is not allowed".to_owned())
            }
            Ok(ProbePublishResult::Accepted) if connection.has_no_subscriber => {
                (true, "accepted; it has no subscriber now".to_owned())
            }
            Ok(ProbePublishResult::Accepted) => (true, "accepted".to_owned()),
            Ok(ProbePublishResult::Unreported) => {
                (true, "sent; with QoS 0 a broker does not report whether it accepts a message".to_owned())
            }
            Err(BrokerCheckError::Connect(ConnectError::Connection(ConnectionError::Ended))) => {
                let result = "the broker closed the connection, as some do when publishing is not allowed";
                self.add_finding(false, format!("{topic}: {result}"));
                return Err(ConnectionError::Ended.into());
            }
            Err(error) => return Err(error),
        };
        self.add_finding(ok, format!("{topic}: {result}"));
        Ok(())
    }
}

/// A topic that the filter matches; with a made-up level in the place of each wildcard. `None` for topics of the
/// broker.
fn probe_topic(filter: &TopicFilter, tag: &str) -> Option<TopicName> {
    let level = format!("{PROBE_LEVEL}{tag}");
    let filter = filter.unshared();
    let levels = filter.as_str().split('/').map(|part| if matches!(part, "+" | "#") { level.as_str() } else { part });
    let topic = levels.collect::<Vec<_>>().join("/");
    if topic.starts_with('$') { None } else { topic.parse().ok() }
}

/// An open connection with its session.
struct CheckConnection {
    reader: ConnectionReader,
    writer: ConnectionWriter,
    session: MqttSession,
    /// The messages that came, with the identifiers of their subscriptions.
    came: Vec<(TopicName, Vec<SubscriptionId>)>,
    /// The last published message had no subscriber.
    has_no_subscriber: bool,
}

impl CheckConnection {
    fn new(connection: BrokerConnection) -> Self {
        let BrokerConnection { reader, writer, accepted, .. } = connection;
        let mut session = MqttSession::default();
        session.connected(&accepted);
        Self { reader, writer, session, came: Vec::new(), has_no_subscriber: false }
    }

    /// Publishes a message, and waits until the broker has taken it, if it says so.
    async fn publish(
        &mut self,
        topic: TopicName,
        payload: Bytes,
        properties: MessageProperties,
        broker: &ConnAck,
    ) -> Result<ProbePublishResult, BrokerCheckError> {
        let message = MqttMessage { topic, payload, qos: Qos::AtLeastOnce, retain: false, properties };
        self.session.publish(OutboundMessage { message, content: EgressContent::Answer, settles: None, receipt: None });
        let taken = if broker.maximum_qos == Qos::AtMostOnce {
            self.send().await.map(|()| None)
        } else {
            let is_ack = |packet: &IncomingPacket| match packet {
                IncomingPacket::PubAck { reason, .. } => Some(Some(*reason)),
                _ => None,
            };
            self.wait(is_ack).await
        };
        self.has_no_subscriber = matches!(taken, Ok(Some(ReasonCode::NO_MATCHING_SUBSCRIBERS)));
        match taken {
            Ok(Some(reason)) if reason.is_failure() => Ok(ProbePublishResult::Refused(reason.to_string())),
            Ok(Some(_)) => Ok(ProbePublishResult::Accepted),
            Ok(None) => Ok(ProbePublishResult::Unreported),
            Err(BrokerCheckError::Connect(ConnectError::Connection(ConnectionError::NotPermitted(reason)))) => {
                Ok(ProbePublishResult::Refused(reason))
            }
            Err(error) => Err(error),
        }
    }

    async fn send(&mut self) -> Result<(), BrokerCheckError> {
        while let Some(step) = self.session.next(|packet| self.writer.size(packet)) {
            match step {
                NextPacket::Send(content, packet) => self.writer.put(content, &packet)?,
                NextPacket::TooLarge(OutboundMessage { message, .. }) => {
                    let packet = OutgoingPacket::Publish { message, packet_id: None, duplicate: false };
                    return Err(BrokerCheckError::TooLarge(self.writer.size(&packet)));
                }
            }
        }
        Ok(self.writer.flush().await?)
    }

    /// Waits for a packet for which `wanted` returns a value. Messages that come meanwhile are acknowledged, so that
    /// the broker continues. The daemon gets them too, in its own session.
    async fn wait<T>(&mut self, wanted: impl Fn(&IncomingPacket) -> Option<T>) -> Result<T, BrokerCheckError> {
        loop {
            self.send().await?;
            let packet = self.reader.next().await?;
            let found = wanted(&packet);
            match self.session.receive(packet) {
                SessionEvent::Disconnected(reason, text) => {
                    return Err(ConnectionError::Disconnected { reason, text }.into());
                }
                SessionEvent::Message(received, delivery) => {
                    if received.message.payload.is_empty() {
                        self.came.push((received.message.topic, received.subscription_ids));
                    }
                    if let Some(delivery) = delivery {
                        self.session.settle(delivery, ReasonCode::SUCCESS);
                    }
                }
                _ => {}
            }
            if let Some(found) = found {
                return Ok(found);
            }
        }
    }

    /// Waits until a message for each of these subscriptions has come, or until the time is over.
    async fn wait_for_deliveries(
        &mut self,
        wanted: &[(&GrantedSubscription, &TopicName)],
        until: Instant,
    ) -> Result<(), BrokerCheckError> {
        while !wanted.iter().all(|(subscription, topic)| self.has(subscription, topic)) {
            let message = self.wait(|packet| matches!(packet, IncomingPacket::Publish(_)).then_some(()));
            match tokio::time::timeout_at(until.into(), message).await {
                Ok(came) => came?,
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Returns `true` if a message to this topic has come by this subscription.
    fn has(&self, subscription: &GrantedSubscription, topic: &TopicName) -> bool {
        let is_named = |ids: &[SubscriptionId]| subscription.id.is_none_or(|id| ids.contains(&id));
        self.came.iter().any(|(came, ids)| came == topic && is_named(ids))
    }

    /// Returns `true` if a message to this topic has come, and names no subscription.
    fn has_nameless(&self, topic: &TopicName) -> bool {
        self.came.iter().any(|(came, ids)| came == topic && ids.is_empty())
    }
}

/// Distinguishes two checks at the same time.
fn random_suffix() -> String {
    let mut random = [0_u8; 4];
    // Without randomness the two would disconnect each other, and each report it.
    let _ = getrandom::fill(&mut random);
    hex::encode(random)
}
