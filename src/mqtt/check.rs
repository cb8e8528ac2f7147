//! Checks that the broker grants what this box needs. A daemon that runs at the same time is not disturbed.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use ledge_base::names::{DeviceName, InvalidName};
use ledge_egress::{Content, Egress};
use serde::Serialize;

use super::bindings::Bindings;
use super::client::connection::{Connection, ConnectionError, Reader, Writer};
use super::client::packet::{
    ConnAck, Incoming, Message, Outgoing, Properties, Qos, Reason, RetainHandling, Subscription, Version,
};
use super::client::session::{Event, NextPacket, Outbound, Session};
use super::config::MqttConfig;
use super::connect::{self, ConnectError};
use super::subscriptions::{FILTERS_PER_PACKET, wanted_subscriptions};
use super::topics::{DeviceTopics, TopicFilter};

/// The payload of the test message, and the model whose result topic gets it.
const CHECK_PAYLOAD: &[u8] = br#"{"check":true}"#;
const CHECK_MODEL: &str = "check";

/// The finding of one step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub step: CheckStep,
    /// True if the broker grants what the daemon needs.
    pub ok: bool,
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
        }
    }
}

/// The reason why a step has no result.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error("the broker accepts no packet of {0} bytes")]
    TooLarge(usize),
}

impl From<ConnectionError> for CheckError {
    fn from(error: ConnectionError) -> Self {
        Self::Connect(error.into())
    }
}

/// Connects and subscribes as the daemon does, within `limit`. `heard` are the topics that other parts hear.
///
/// It uses a client id of its own, a session that ends with the connection, and no last will, so that a running daemon
/// is neither disconnected nor reported as gone. A shared subscription gets another group name: otherwise calls to the
/// group would come here and get lost.
///
/// A broker may grant a subscription and then withhold messages, as mosquitto does by its `acl_file`: the check does
/// not notice that.
pub async fn check(
    config: &MqttConfig,
    topics: &DeviceTopics,
    heard: &[TopicFilter],
    egress: &Egress,
    limit: Duration,
) -> Vec<Finding> {
    let mut check = Check { config, topics, heard, step: CheckStep::Connection, findings: Vec::new() };
    let failure = match tokio::time::timeout(limit, check.run(egress)).await {
        Ok(Ok(())) => return check.findings,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", limit.as_secs()),
    };
    check.add_finding(false, failure);
    check.findings
}

struct Check<'a> {
    config: &'a MqttConfig,
    topics: &'a DeviceTopics,
    heard: &'a [TopicFilter],
    step: CheckStep,
    findings: Vec<Finding>,
}

impl Check<'_> {
    fn add_finding(&mut self, ok: bool, detail: impl Into<String>) {
        self.findings.push(Finding { step: self.step, ok, detail: detail.into() });
    }

    async fn run(&mut self, egress: &Egress) -> Result<(), CheckError> {
        let tag = random_suffix();
        let mut connect = connect::connect_packet(self.config, self.topics).map_err(ConnectError::from)?;
        let _ = write!(connect.client_id, "-check-{tag}");
        (connect.clean_start, connect.session_expiry_s, connect.will) = (true, 0, None);
        let client_id = connect.client_id.clone();
        let connection = connect::open(egress, self.config, connect).await?;

        let Connection { reader, writer, version, accepted } = connection;
        if let Some(broker) = &self.config.broker {
            let tls = if broker.tls { "over TLS" } else { "without TLS" };
            let user = if self.config.user.is_empty() { "no user" } else { &self.config.user };
            self.add_finding(true, format!("{broker} with {version} {tls}, as the client {client_id} and {user}"));
        }

        self.step = CheckStep::Broker;
        self.announced(version, &accepted);
        let mut session = Session::default();
        session.connected(&accepted);
        let mut connection = CheckConnection { reader, writer, session };

        self.step = CheckStep::Subscription;
        self.subscribe(&mut connection, &format!("check-{tag}").parse()?).await?;
        self.step = CheckStep::Publishing;
        self.publish(&mut connection, version, &accepted).await?;

        self.step = CheckStep::RoundTrip;
        let began = Instant::now();
        connection.session.ping();
        connection.wait(|packet| matches!(packet, Incoming::PingResp).then_some(())).await?;
        let micros = began.elapsed().as_micros();
        self.add_finding(true, format!("{}.{:03} ms", micros / 1000, micros % 1000));
        Ok(connect::disconnect(connection.writer).await?)
    }

    fn announced(&mut self, version: Version, broker: &ConnAck) {
        if version == Version::V311 {
            return self.add_finding(true, "a broker of MQTT 3.1.1 does not announce its limits");
        }
        let shares = wanted_subscriptions(self.topics, &Bindings::new(&self.config.bindings), self.heard);
        let shares = shares.iter().any(|subscription| subscription.filter.is_shared());
        let yes = |yes| if yes { "" } else { "no " };
        let packets = broker.maximum_packet_size.map_or("any size".to_owned(), |size| format!("up to {size} bytes"));
        let keep_alive = match broker.server_keep_alive_s {
            Some(seconds) => format!("it asks for a keep-alive of {seconds} s"),
            None => format!("keep-alive {} s", self.config.keep_alive_s),
        };
        let mut detail = format!(
            "accepts {} unacknowledged messages, packets of {packets}, QoS {}, {}retained messages, \
             {}shared subscriptions; {keep_alive}",
            broker.receive_maximum,
            if broker.maximum_qos == Qos::AtMostOnce { "0 only" } else { "1" },
            yes(broker.retain_available),
            yes(broker.shared_subscriptions),
        );
        let lacks_shared = shares && !broker.shared_subscriptions;
        if lacks_shared {
            detail += ". Calls to the group of this box will not arrive";
        }
        self.add_finding(!lacks_shared, detail);
    }

    async fn subscribe(&mut self, connection: &mut CheckConnection, group: &DeviceName) -> Result<(), CheckError> {
        let asked = wanted_subscriptions(self.topics, &Bindings::new(&self.config.bindings), self.heard);
        let harmless = |subscription: &Subscription| {
            let filter = &subscription.filter;
            let filter = if filter.is_shared() { TopicFilter::shared(group, filter) } else { filter.clone() };
            Subscription { filter, retain_handling: RetainHandling::Never, ..*subscription }
        };
        let mut granted = Vec::new();
        for packet in asked.chunks(FILTERS_PER_PACKET) {
            connection.session.subscribe(packet.iter().map(harmless).collect());
            let reasons = connection.wait(|packet| match packet {
                Incoming::SubAck { reasons, .. } => Some(reasons.clone()),
                _ => None,
            });
            granted.extend(reasons.await?);
        }
        for (subscription, reason) in asked.iter().zip(granted) {
            let filter = &subscription.filter;
            let wanted = u8::from(subscription.qos == Qos::AtLeastOnce);
            let result = match reason.0 {
                _ if reason.is_failure() => format!("refused, {reason}"),
                granted if granted < wanted => {
                    format!("granted with QoS {granted} instead of {wanted}: messages may get lost")
                }
                granted => format!("granted with QoS {granted}"),
            };
            self.add_finding(!reason.is_failure(), format!("{filter}: {result}"));
        }
        Ok(())
    }

    async fn publish(
        &mut self,
        connection: &mut CheckConnection,
        version: Version,
        broker: &ConnAck,
    ) -> Result<(), CheckError> {
        let topic = DeviceTopics::result(&self.topics.device, &CHECK_MODEL.parse()?);
        let properties = Properties { content_type: Some("application/json".to_owned()), ..Properties::default() };
        let message = Message {
            topic: topic.clone(),
            payload: CHECK_PAYLOAD.into(),
            qos: Qos::AtLeastOnce,
            retain: false,
            properties,
        };
        connection.session.publish(Outbound { message, content: Content::Answer, settles: None });
        let taken = if broker.maximum_qos == Qos::AtMostOnce {
            connection.send().await.map(|()| None)
        } else {
            connection
                .wait(|packet| match packet {
                    Incoming::PubAck { reason, .. } => Some(Some(*reason)),
                    _ => None,
                })
                .await
        };

        let (ok, result) = match taken {
            Ok(Some(reason)) if reason.is_failure() => (false, format!("refused, {reason}")),
            Ok(Some(_)) if version == Version::V311 => {
                (true, "acknowledged; a broker of MQTT 3.1.1 cannot report that it is not allowed".to_owned())
            }
            Ok(Some(Reason::NO_MATCHING_SUBSCRIBERS)) => (true, "accepted; it has no subscriber now".to_owned()),
            Ok(Some(_)) => (true, "accepted".to_owned()),
            Ok(None) => (true, "sent; with QoS 0 a broker does not report whether it accepts a message".to_owned()),
            Err(CheckError::Connect(ConnectError::Connection(ConnectionError::NotPermitted(reason)))) => {
                (false, reason)
            }
            Err(CheckError::Connect(ConnectError::Connection(ConnectionError::Ended))) => {
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

/// An open connection with its session.
struct CheckConnection {
    reader: Reader,
    writer: Writer,
    session: Session,
}

impl CheckConnection {
    async fn send(&mut self) -> Result<(), CheckError> {
        while let Some(step) = self.session.next(|packet| self.writer.size(packet)) {
            match step {
                NextPacket::Send(content, packet) => self.writer.put(content, &packet)?,
                NextPacket::TooLarge(Outbound { message, .. }) => {
                    let packet = Outgoing::Publish { message, packet_id: None, duplicate: false };
                    return Err(CheckError::TooLarge(self.writer.size(&packet)));
                }
            }
        }
        Ok(self.writer.flush().await?)
    }

    /// Waits for a packet for which `wanted` returns a value. Messages that come meanwhile are left to the daemon: they
    /// are not acknowledged, and this session ends.
    async fn wait<T>(&mut self, wanted: impl Fn(&Incoming) -> Option<T>) -> Result<T, CheckError> {
        loop {
            self.send().await?;
            let packet = self.reader.next().await?;
            let found = wanted(&packet);
            if let Event::Disconnected(reason, text) = self.session.receive(packet) {
                return Err(ConnectionError::Disconnected { reason, text }.into());
            }
            if let Some(found) = found {
                return Ok(found);
            }
        }
    }
}

/// Distinguishes two checks at the same time.
fn random_suffix() -> String {
    let mut random = [0_u8; 4];
    // Without randomness the two would disconnect each other, and each report it.
    let _ = getrandom::fill(&mut random);
    hex::encode(random)
}
