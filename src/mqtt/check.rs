//! Whether the broker grants what this box needs, found out beside a running daemon and without its notice.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use ledge_base::names::{DeviceName, InvalidName};
use ledge_egress::{Content, Egress};
use serde::Serialize;

use super::bindings::Bindings;
use super::client::connection::{Connection, ConnectionError, Reader, Writer};
use super::client::packet::{
    ConnAck, Incoming, Kept, Message, Outgoing, Properties, Qos, Reason, Subscription, Version,
};
use super::client::session::{Event, Outbound, Session, Step};
use super::config::MqttConfig;
use super::dial::{self, Failed};
use super::subscriptions::{IN_A_PACKET, wanted};
use super::topics::{DeviceTopics, TopicFilter};

/// What is published, and to the results of what.
const PAYLOAD: &[u8] = br#"{"check":true}"#;
const MODEL: &str = "check";

/// What one step found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub step: StepName,
    /// Whether it is as the daemon needs it.
    pub ok: bool,
    pub detail: String,
}

/// What is looked at, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepName {
    /// The broker accepts the connection.
    Connection,
    /// What the broker says it takes.
    Broker,
    Subscription,
    /// An answer may be published.
    Publishing,
    /// How long the broker takes to answer.
    RoundTrip,
}

impl StepName {
    /// For people.
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

/// Why a step has no result.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error(transparent)]
    Failed(#[from] Failed),
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error("the broker takes no packet as large as this one, of {0} bytes")]
    TooLarge(usize),
}

impl From<ConnectionError> for CheckError {
    fn from(error: ConnectionError) -> Self {
        Self::Failed(error.into())
    }
}

/// Connects as the daemon does and asks for all that it asks for, within `limit`.
///
/// Under a client id of its own, with a session that ends with the connection and without a last will: a running daemon
/// is not thrown out, and nobody thinks that it is gone. A shared subscription is asked for under another group name, since
/// the group's calls would come here otherwise, and get lost.
///
/// A broker may grant a subscription and then withhold messages, as mosquitto does by its `acl_file`: that is not seen here.
pub async fn check(config: &MqttConfig, topics: &DeviceTopics, egress: &Egress, limit: Duration) -> Vec<Finding> {
    let mut check = Check { config, topics, step: StepName::Connection, findings: Vec::new() };
    let failure = match tokio::time::timeout(limit, check.run(egress)).await {
        Ok(Ok(())) => return check.findings,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", limit.as_secs()),
    };
    check.found(false, failure);
    check.findings
}

struct Check<'a> {
    config: &'a MqttConfig,
    topics: &'a DeviceTopics,
    step: StepName,
    findings: Vec<Finding>,
}

impl Check<'_> {
    fn found(&mut self, ok: bool, detail: impl Into<String>) {
        self.findings.push(Finding { step: self.step, ok, detail: detail.into() });
    }

    async fn run(&mut self, egress: &Egress) -> Result<(), CheckError> {
        let tag = tag();
        let mut connect = dial::connect(self.config, self.topics).map_err(Failed::from)?;
        let _ = write!(connect.client_id, "-check-{tag}");
        (connect.clean_start, connect.session_expiry_s, connect.will) = (true, 0, None);
        let client_id = connect.client_id.clone();
        let connection = dial::open(egress, self.config, connect).await?;
        let Connection { reader, writer, version, accepted } = connection;
        if let Some(broker) = &self.config.broker {
            let tls = if broker.tls { "over TLS" } else { "without TLS" };
            let user = if self.config.user.is_empty() { "no user" } else { &self.config.user };
            self.found(true, format!("{broker} with {version} {tls}, as the client {client_id} and {user}"));
        }
        self.step = StepName::Broker;
        self.announced(version, &accepted);
        let mut session = Session::default();
        session.connected(&accepted);
        let mut line = Line { reader, writer, session };
        self.step = StepName::Subscription;
        self.subscribe(&mut line, &format!("check-{tag}").parse()?).await?;
        self.step = StepName::Publishing;
        self.publish(&mut line, version, &accepted).await?;
        self.step = StepName::RoundTrip;
        let began = Instant::now();
        line.session.ping();
        line.wait(|packet| matches!(packet, Incoming::PingResp).then_some(())).await?;
        let micros = began.elapsed().as_micros();
        self.found(true, format!("{}.{:03} ms", micros / 1000, micros % 1000));
        Ok(dial::farewell(line.writer).await?)
    }

    fn announced(&mut self, version: Version, broker: &ConnAck) {
        if version == Version::V311 {
            return self.found(true, "in MQTT 3.1.1 a broker does not say what it takes");
        }
        let shares = wanted(self.topics, &Bindings::new(&self.config.bindings));
        let shares = shares.iter().any(|subscription| subscription.filter.is_shared());
        let yes = |yes| if yes { "" } else { "no " };
        let packets = broker.maximum_packet_size.map_or("any size".to_owned(), |size| format!("up to {size} bytes"));
        let keep_alive = match broker.server_keep_alive_s {
            Some(seconds) => format!("it wants a keep-alive of {seconds} s"),
            None => format!("keep-alive {} s", self.config.keep_alive_s),
        };
        let mut detail = format!(
            "takes {} unacknowledged messages, packets of {packets}, QoS {}, {}retained messages, {}shared subscriptions; \
             {keep_alive}",
            broker.receive_maximum,
            if broker.maximum_qos == Qos::AtMostOnce { "0 only" } else { "1" },
            yes(broker.retain_available),
            yes(broker.shared_subscriptions),
        );
        let lacks_shared = shares && !broker.shared_subscriptions;
        if lacks_shared {
            detail += ". What this box's group is asked will not come";
        }
        self.found(!lacks_shared, detail);
    }

    async fn subscribe(&mut self, line: &mut Line, group: &DeviceName) -> Result<(), CheckError> {
        let asked = wanted(self.topics, &Bindings::new(&self.config.bindings));
        let harmless = |subscription: &Subscription| {
            let filter = &subscription.filter;
            let filter = if filter.is_shared() { TopicFilter::shared(group, filter) } else { filter.clone() };
            Subscription { filter, kept: Kept::Never, ..*subscription }
        };
        let mut granted = Vec::new();
        for packet in asked.chunks(IN_A_PACKET) {
            line.session.subscribe(packet.iter().map(harmless).collect());
            let reasons = line.wait(|packet| match packet {
                Incoming::SubAck { reasons, .. } => Some(reasons.clone()),
                _ => None,
            });
            granted.extend(reasons.await?);
        }
        for (subscription, reason) in asked.iter().zip(granted) {
            let filter = &subscription.filter;
            let wanted = u8::from(subscription.qos == Qos::AtLeastOnce);
            let told = match reason.0 {
                _ if reason.is_failure() => format!("refused, {reason}"),
                granted if granted < wanted => {
                    format!("granted with QoS {granted} instead of {wanted}: messages may get lost")
                }
                granted => format!("granted with QoS {granted}"),
            };
            self.found(!reason.is_failure(), format!("{filter}: {told}"));
        }
        Ok(())
    }

    async fn publish(&mut self, line: &mut Line, version: Version, broker: &ConnAck) -> Result<(), CheckError> {
        let topic = DeviceTopics::result(&self.topics.device, &MODEL.parse()?);
        let properties = Properties { content_type: Some("application/json".to_owned()), ..Properties::default() };
        let message =
            Message { topic: topic.clone(), payload: PAYLOAD.into(), qos: Qos::AtLeastOnce, retain: false, properties };
        line.session.publish(Outbound { message, content: Content::Answer, settles: None });
        let taken = if broker.maximum_qos == Qos::AtMostOnce {
            line.send().await.map(|()| None)
        } else {
            line.wait(|packet| match packet {
                Incoming::PubAck { reason, .. } => Some(Some(*reason)),
                _ => None,
            })
            .await
        };
        let (ok, told) = match taken {
            Ok(Some(reason)) if reason.is_failure() => (false, format!("refused, {reason}")),
            Ok(Some(_)) if version == Version::V311 => {
                (true, "acknowledged; in MQTT 3.1.1 a broker cannot say that it is not allowed".to_owned())
            }
            Ok(Some(Reason::NO_MATCHING_SUBSCRIBERS)) => (true, "taken; nobody is subscribed to it now".to_owned()),
            Ok(Some(_)) => (true, "taken".to_owned()),
            Ok(None) => (true, "sent; with QoS 0 a broker does not say whether it took it".to_owned()),
            Err(CheckError::Failed(Failed::Connection(ConnectionError::NotPermitted(reason)))) => (false, reason),
            Err(CheckError::Failed(Failed::Connection(ConnectionError::Ended))) => {
                let told = format!("{topic}: the broker closed the connection, as some do on what they do not allow");
                self.found(false, told);
                return Err(ConnectionError::Ended.into());
            }
            Err(error) => return Err(error),
        };
        self.found(ok, format!("{topic}: {told}"));
        Ok(())
    }
}

/// The open connection.
struct Line {
    reader: Reader,
    writer: Writer,
    session: Session,
}

impl Line {
    async fn send(&mut self) -> Result<(), CheckError> {
        while let Some(step) = self.session.next(|packet| self.writer.size(packet)) {
            match step {
                Step::Send(content, packet) => self.writer.put(content, &packet)?,
                Step::TooLarge(Outbound { message, .. }) => {
                    let packet = Outgoing::Publish { message, packet_id: None, duplicate: false };
                    return Err(CheckError::TooLarge(self.writer.size(&packet)));
                }
            }
        }
        Ok(self.writer.flush().await?)
    }

    /// Waits for the packet that `wanted` makes something of. Messages that come meanwhile are left to the daemon: what
    /// is not acknowledged ends with this session.
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

/// What tells two checks at the same time apart.
fn tag() -> String {
    let mut random = [0_u8; 4];
    // Without it the two would throw each other out, and each say so.
    let _ = getrandom::fill(&mut random);
    hex::encode(random)
}
