//! A box behind a broker as a target, or the broker itself, which sends the same messages back through a subscription.
//!
//! Each caller is a separate client with one connection, one topic for its answers, and one request in flight.

mod dialogue;

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use ledge::config::Config;
use ledge_base::names::DeviceName;
use ledge_egress::{Egress, EgressContent, EgressDestination};
use ledge_mqtt::answer;
use ledge_mqtt::client::codec::PACKET_MAX_BYTES;
use ledge_mqtt::client::connection::{BrokerConnection, ConnectionReader, ConnectionWriter};
use ledge_mqtt::client::packet::{
    Connect, MessageProperties, MqttMessage, MqttVersion, OutgoingPacket, Qos, ReasonCode,
};
use ledge_mqtt::config::{BrokerAddress, MqttConfig};
use ledge_mqtt::connect;
use ledge_mqtt::plan::SessionName;
use ledge_mqtt::topics::{DeviceTopics, TOPIC_ROOT, TopicName};
use ledge_part::section::ConfigSection;
use ledge_protocol::call::HEADER_LENGTH;
use ledge_protocol::decode;
use ledge_service::audit_event::AuditSink;
use serde_json::Value;
use tokio::runtime::Runtime;

use self::dialogue::{Dialogue, DialogueEvent};
use super::drive::{Caller, Target};
use super::figures::Outcome;
use super::process::{Usage, usage_with_children};
use super::random::Random;
use super::request::Body;

/// The longest time without an answer. After that the message counts as lost, which QoS 0 allows.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// The prefix of client ids and of the topics for answers. It is not a topic of Ledge.
const CLIENT_PREFIX: &str = "ledge-bench";

/// A broker, with the credentials of the configuration.
#[derive(Debug)]
pub struct Broker {
    egress: Egress,
    destination: EgressDestination,
    /// The packet with the user and the password, and an empty client id.
    connect: Connect,
}

impl Broker {
    /// The broker at `address`, with the user, the certificates and the allow-list of `config`.
    pub fn new(config: &Config, address: &BrokerAddress) -> anyhow::Result<Self> {
        let mqtt = MqttConfig { broker: Some(address.clone()), ..config.mqtt.clone() };
        if let Some(problem) = mqtt.problems().into_iter().next() {
            bail!("{address}: {} {}", problem.key, problem.message);
        }
        // The events of a command are not recorded.
        let audit = AuditSink::to_nowhere();
        let topics = DeviceTopics { device: CLIENT_PREFIX.parse()?, group: None, has_platform: false };
        let connect = Connect {
            client_id: String::new(),
            clean_start: true,
            // The connection is busy for the whole measurement.
            keep_alive_s: 0,
            session_expiry_s: 0,
            will: None,
            ..connect::connect_packet(&mqtt, &topics, SessionName::Main)?
        };
        Ok(Self { egress: Egress::new(&config.egress, audit), destination: connect::destination(&mqtt), connect })
    }
}

/// The destination of messages over a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// A model of a box or of a group, by the topic of its requests.
    Box(TopicName),
    /// Only the broker: each caller receives its own messages.
    Echo,
}

impl Route {
    /// The route to `model` of a box or a group.
    pub fn to(device: &DeviceName, model: &decode::ModelTarget) -> anyhow::Result<Self> {
        let version = model.version.map(|version| format!("/versions/{version}")).unwrap_or_default();
        Ok(Self::Box(format!("{TOPIC_ROOT}{device}/infer/{}{version}", model.model).parse()?))
    }
}

/// A broker, the route behind it, and the requests.
#[derive(Debug)]
pub struct Mqtt<'a> {
    pub broker: &'a Broker,
    pub route: Route,
    /// The QoS of the requests, and so of the answers.
    pub qos: Qos,
    /// The process id of the box, if known.
    pub pid: Option<u32>,
    /// Sent in turn; with `unique` only the first, stamped each time.
    pub bodies: &'a [Body],
    /// Set if no request is sent twice.
    pub unique: bool,
}

impl Target for Mqtt<'_> {
    fn name(&self) -> &'static str {
        match (&self.route, self.qos) {
            (Route::Box(_), Qos::AtMostOnce) => "mqtt-qos0",
            (Route::Box(_), Qos::AtLeastOnce) => "mqtt-qos1",
            (Route::Echo, Qos::AtMostOnce) => "echo-qos0",
            (Route::Echo, Qos::AtLeastOnce) => "echo-qos1",
        }
    }

    fn usage(&self) -> Option<Usage> {
        self.pid.filter(|_| self.route != Route::Echo).and_then(usage_with_children)
    }

    fn caller(&self) -> anyhow::Result<Box<dyn Caller + '_>> {
        let id = format!("{CLIENT_PREFIX}-{:016x}", Random::fresh().bits());
        let answers: TopicName = format!("{CLIENT_PREFIX}/{id}").parse()?;
        let topic = match &self.route {
            Route::Box(topic) => topic.clone(),
            Route::Echo => answers.clone(),
        };
        // On the caller's thread only, so that an answer wakes no other thread.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let message = |body: &Body| MqttMessage {
            topic: topic.clone(),
            payload: Bytes::copy_from_slice(&body.bytes),
            qos: self.qos,
            retain: false,
            properties: MessageProperties {
                content_type: Some(body.content_type.to_owned()),
                user: body.header_length.iter().map(|n| (HEADER_LENGTH.to_owned(), n.to_string())).collect(),
                ..MessageProperties::default()
            },
        };

        let mut client = Client { mqtt: self, id, answers, link: None };
        client.link = Some(runtime.block_on(client.connect())?);
        Ok(Box::new(MqttCaller {
            runtime,
            client,
            messages: self.bodies.iter().map(message).collect(),
            own: if self.unique { self.bodies.first().cloned() } else { None },
            random: Random::fresh(),
        }))
    }
}

struct MqttCaller<'a> {
    runtime: Runtime,
    client: Client<'a>,
    messages: Vec<MqttMessage>,
    /// The caller's copy of the request to stamp, with `unique`.
    own: Option<Body>,
    random: Random,
}

/// A client of the broker, connected or not.
struct Client<'a> {
    mqtt: &'a Mqtt<'a>,
    id: String,
    /// The topic for the answers.
    answers: TopicName,
    link: Option<Link>,
}

/// A connection, and the dialogue on it.
struct Link {
    reader: ConnectionReader,
    writer: ConnectionWriter,
    dialogue: Dialogue,
}

impl Client<'_> {
    async fn connect(&self) -> anyhow::Result<Link> {
        let Broker { egress, destination, connect } = self.mqtt.broker;
        let connect = Connect { client_id: self.id.clone(), ..connect.clone() };
        let BrokerConnection { reader, writer, accepted, .. } = BrokerConnection::open(
            egress,
            destination,
            MqttVersion::V5,
            connect,
            PACKET_MAX_BYTES,
            connect::CONNACK_TIMEOUT,
        )
        .await?;
        let filter = self.answers.as_str().parse()?;
        let dialogue = Dialogue::new(&accepted, self.answers.clone(), filter, self.mqtt.qos);
        let mut link = Link { reader, writer, dialogue };
        let subscribed = tokio::time::timeout(REPLY_TIMEOUT, link.next_event());
        subscribed.await.context("the broker does not answer the subscription")??;
        Ok(link)
    }

    /// Sends a request and waits for its answer, over a new connection if necessary.
    async fn exchange(&mut self, message: MqttMessage) -> anyhow::Result<MqttMessage> {
        let mut link = match self.link.take() {
            Some(link) => link,
            None => self.connect().await?,
        };
        link.dialogue.ask(message);
        let event = tokio::time::timeout(REPLY_TIMEOUT, link.next_event()).await;
        let event = event.map_err(|_| anyhow!("no answer in {} s", REPLY_TIMEOUT.as_secs()))??;
        let DialogueEvent::Answer(answer) = event else { bail!("the broker answers a subscription again") };
        self.link = Some(link);
        Ok(answer)
    }
}

impl Link {
    /// Sends the packets in the queue, and waits for the next expected event.
    async fn next_event(&mut self) -> anyhow::Result<DialogueEvent> {
        while let Some((content, packet)) = self.dialogue.next(|packet| self.writer.size(packet))? {
            self.writer.put(content, &packet)?;
        }
        if self.writer.queued() > 0 {
            self.writer.flush().await?;
        }
        // An acknowledgement that arrives after the answer is read before the next answer.
        let mut packet = self.reader.next().await?;
        loop {
            match self.dialogue.take(packet)? {
                DialogueEvent::Unrelated => {}
                event => return Ok(event),
            }
            packet = if let Some(packet) = self.reader.next_buffered()? {
                packet
            } else {
                self.reader.acknowledge();
                self.reader.next().await?
            };
        }
    }
}

impl Caller for MqttCaller<'_> {
    fn call(&mut self, number: usize) -> Outcome {
        let message = match &mut self.own {
            Some(own) => {
                own.stamp(&mut self.random);
                let payload = Bytes::copy_from_slice(&own.bytes);
                self.messages.first().map(|message| MqttMessage { payload, ..message.clone() })
            }
            None => self.messages.get(number % self.messages.len().max(1)).cloned(),
        };
        let Some(message) = message else {
            return Outcome::Failed { kind: "no request".to_owned(), message: String::new() };
        };
        match self.runtime.block_on(self.client.exchange(message)) {
            Ok(_) if self.client.mqtt.route == Route::Echo => Outcome::Ok,
            Ok(answer) => outcome(&answer),
            Err(error) => Outcome::Failed { kind: "connection".to_owned(), message: format!("{error:#}") },
        }
    }
}

/// The outcome by the status of an answer of Ledge.
fn outcome(answer: &MqttMessage) -> Outcome {
    match answer::status(answer) {
        Some(200) => Outcome::Ok,
        Some(status) => {
            let body: Value = serde_json::from_slice(&answer.payload).unwrap_or_default();
            let message = body.get("error").and_then(Value::as_str).unwrap_or("no message").to_owned();
            Outcome::Failed { kind: status.to_string(), message }
        }
        None => {
            Outcome::Failed { kind: "no status".to_owned(), message: "the answer is not one of Ledge's".to_owned() }
        }
    }
}

impl Drop for MqttCaller<'_> {
    fn drop(&mut self) {
        let Some(Link { mut writer, .. }) = self.client.link.take() else { return };
        // A broker that does not receive it sees the closed connection.
        let _ = writer.put(EgressContent::Protocol, &OutgoingPacket::Disconnect { reason: ReasonCode::SUCCESS });
        self.runtime.block_on(writer.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_and_its_version_are_chosen_by_topic() {
        let device = "front".parse().unwrap();
        let route = |version: Option<u64>| {
            let version = version.map(|number| number.try_into().unwrap());
            Route::to(&device, &decode::ModelTarget { model: "m".parse().unwrap(), version }).unwrap()
        };
        assert_eq!(route(None), Route::Box("ledge/v1/front/infer/m".parse().unwrap()));
        assert_eq!(route(Some(3)), Route::Box("ledge/v1/front/infer/m/versions/3".parse().unwrap()));
    }

    #[test]
    fn an_answer_counts_by_its_status() {
        let answer = |status: Option<&str>, payload: &'static str| {
            let status = status.map(|status| (answer::STATUS_PROPERTY.to_owned(), status.to_owned()));
            let user = status.into_iter().collect();
            let properties = MessageProperties { user, ..MessageProperties::default() };
            let topic = "a".parse().unwrap();
            outcome(&MqttMessage { topic, payload: payload.into(), qos: Qos::AtMostOnce, retain: false, properties })
        };
        let failed = |kind: &str, message: &str| Outcome::Failed { kind: kind.into(), message: message.into() };
        assert_eq!(answer(Some("200"), "{}"), Outcome::Ok);
        assert_eq!(answer(Some("429"), r#"{"error":"full"}"#), failed("429", "full"));
        assert_eq!(answer(Some("500"), "oops"), failed("500", "no message"));
        assert!(matches!(answer(None, "{}"), Outcome::Failed { .. }));
    }
}
