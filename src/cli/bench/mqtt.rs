//! A box behind a broker as a target, and the broker alone: the same messages, sent back by no more than a subscription.
//!
//! A caller is a client of its own: one connection, one topic for its answers, one request under way.

mod dialogue;

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use ledge_base::names::DeviceName;
use ledge_egress::{Content, Destination, Egress};
use ledge_mqtt::answer;
use ledge_mqtt::client::codec::PACKET_MAX_BYTES;
use ledge_mqtt::client::connection::{Connection, Reader, Writer};
use ledge_mqtt::client::packet::{Connect, Message, Outgoing, Properties, Qos, Reason, Version};
use ledge_mqtt::config::{BrokerAddress, MqttConfig};
use ledge_mqtt::connect;
use ledge_mqtt::topics::{DeviceTopics, TOPIC_ROOT, TopicName};
use ledge_part::section::Section;
use ledge_protocol::call::HEADER_LENGTH;
use ledge_protocol::decode;
use ledge_service::audit_event::AuditSink;
use serde_json::Value;
use tokio::runtime::Runtime;

use self::dialogue::{Dialogue, Heard};
use super::drive::{Caller, Target};
use super::figures::Outcome;
use super::random::Random;
use super::request::Body;
use crate::config::Config;

/// A message without an answer for this long is lost: at most once is not always once.
const SILENCE: Duration = Duration::from_secs(30);

/// What the client ids begin with, and the topics of answers begin with. None of these topics is one of Ledge's.
const OWN: &str = "ledge-bench";

/// The way to a broker, as the configuration has it.
#[derive(Debug)]
pub struct Broker {
    egress: Egress,
    destination: Destination,
    /// With the user and the password, and an empty client id.
    connect: Connect,
}

impl Broker {
    /// The broker at `address`, with the user, the certificates and the allow-list of `config`.
    pub fn new(config: &Config, address: &BrokerAddress) -> anyhow::Result<Self> {
        let mqtt = MqttConfig { broker: Some(address.clone()), ..config.mqtt.clone() };
        if let Some((key, problem)) = mqtt.problems().into_iter().next() {
            bail!("{address}: {key} {problem}");
        }
        // Nobody reads the events of a command line.
        let audit = AuditSink::to_nowhere();
        let topics = DeviceTopics { device: OWN.parse()?, group: None, has_platform: false };
        let connect = Connect {
            client_id: String::new(),
            clean_start: true,
            // It is there as long as it measures.
            keep_alive_s: 0,
            session_expiry_s: 0,
            will: None,
            ..connect::connect_packet(&mqtt, &topics)?
        };
        Ok(Self { egress: Egress::new(&config.egress, audit), destination: connect::destination(&mqtt), connect })
    }
}

/// What is measured over a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// A model of a box, or of a group: the topic that asks it.
    Box(TopicName),
    /// The broker alone: each caller is sent back what it sends.
    Echo,
}

impl Way {
    /// The way to `model` of a box or a group.
    pub fn to(device: &DeviceName, model: &decode::Target) -> anyhow::Result<Self> {
        let version = model.version.map(|version| format!("/versions/{version}")).unwrap_or_default();
        Ok(Self::Box(format!("{TOPIC_ROOT}{device}/infer/{}{version}", model.model).parse()?))
    }
}

/// A broker, what is behind it, and the requests to send there.
#[derive(Debug)]
pub struct Mqtt<'a> {
    pub broker: &'a Broker,
    pub way: Way,
    /// Of the requests, and so of the answers.
    pub qos: Qos,
    /// The process of the box, if known.
    pub pid: Option<u32>,
    /// Sent in turn; with `unique` only the first, stamped each time.
    pub bodies: &'a [Body],
    /// Whether no request is sent twice.
    pub unique: bool,
}

impl Target for Mqtt<'_> {
    fn name(&self) -> &'static str {
        match (&self.way, self.qos) {
            (Way::Box(_), Qos::AtMostOnce) => "mqtt-qos0",
            (Way::Box(_), Qos::AtLeastOnce) => "mqtt-qos1",
            (Way::Echo, Qos::AtMostOnce) => "echo-qos0",
            (Way::Echo, Qos::AtLeastOnce) => "echo-qos1",
        }
    }

    fn pid(&self) -> Option<u32> {
        self.pid.filter(|_| self.way != Way::Echo)
    }

    fn caller(&self) -> anyhow::Result<Box<dyn Caller + '_>> {
        let id = format!("{OWN}-{:016x}", Random::fresh().bits());
        let answers: TopicName = format!("{OWN}/{id}").parse()?;
        let topic = match &self.way {
            Way::Box(topic) => topic.clone(),
            Way::Echo => answers.clone(),
        };
        // Of one thread, that of the caller: an answer wakes nobody else.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let message = |body: &Body| Message {
            topic: topic.clone(),
            payload: Bytes::copy_from_slice(&body.bytes),
            qos: self.qos,
            retain: false,
            properties: Properties {
                content_type: Some(body.content_type.to_owned()),
                user: body.header_length.iter().map(|n| (HEADER_LENGTH.to_owned(), n.to_string())).collect(),
                ..Properties::default()
            },
        };
        let mut client = Client { mqtt: self, id, answers, line: None };
        client.line = Some(runtime.block_on(client.connect())?);
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
    messages: Vec<Message>,
    /// Its own copy, to be stamped.
    own: Option<Body>,
    random: Random,
}

/// A client of the broker, connected or not.
struct Client<'a> {
    mqtt: &'a Mqtt<'a>,
    id: String,
    answers: TopicName,
    line: Option<Line>,
}

/// A connection, and what is said on it.
struct Line {
    reader: Reader,
    writer: Writer,
    dialogue: Dialogue,
}

impl Client<'_> {
    async fn connect(&self) -> anyhow::Result<Line> {
        let Broker { egress, destination, connect } = self.mqtt.broker;
        let connect = Connect { client_id: self.id.clone(), ..connect.clone() };
        let Connection { reader, writer, accepted, .. } =
            Connection::open(egress, destination, Version::V5, connect, PACKET_MAX_BYTES).await?;
        let filter = self.answers.as_str().parse()?;
        let dialogue = Dialogue::new(&accepted, self.answers.clone(), filter, self.mqtt.qos);
        let mut line = Line { reader, writer, dialogue };
        let subscribed = tokio::time::timeout(SILENCE, line.hear());
        subscribed.await.context("the broker does not answer the subscription")??;
        Ok(line)
    }

    /// Asks, over a new connection when there is none.
    async fn exchange(&mut self, message: Message) -> anyhow::Result<Message> {
        let mut line = match self.line.take() {
            Some(line) => line,
            None => self.connect().await?,
        };
        line.dialogue.ask(message);
        let heard = tokio::time::timeout(SILENCE, line.hear()).await;
        let heard = heard.map_err(|_| anyhow!("no answer in {} s", SILENCE.as_secs()))??;
        let Heard::Answer(answer) = heard else { bail!("the broker answers a subscription again") };
        self.line = Some(line);
        Ok(answer)
    }
}

impl Line {
    /// Sends what there is to send, and waits for something that was waited for.
    async fn hear(&mut self) -> anyhow::Result<Heard> {
        while let Some((content, packet)) = self.dialogue.next(|packet| self.writer.size(packet))? {
            self.writer.put(content, &packet)?;
        }
        if self.writer.queued() > 0 {
            self.writer.flush().await?;
        }
        // An acknowledgement that comes after the answer is read before the next one.
        let mut packet = self.reader.next().await?;
        loop {
            match self.dialogue.take(packet)? {
                Heard::Nothing => {}
                heard => return Ok(heard),
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
                self.messages.first().map(|message| Message { payload, ..message.clone() })
            }
            None => self.messages.get(number % self.messages.len().max(1)).cloned(),
        };
        let Some(message) = message else {
            return Outcome::Failed { kind: "no request".to_owned(), message: String::new() };
        };
        match self.runtime.block_on(self.client.exchange(message)) {
            Ok(_) if self.client.mqtt.way == Way::Echo => Outcome::Ok,
            Ok(answer) => outcome(&answer),
            Err(error) => Outcome::Failed { kind: "connection".to_owned(), message: format!("{error:#}") },
        }
    }
}

/// What an answer of Ledge says.
fn outcome(answer: &Message) -> Outcome {
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
        let Some(Line { mut writer, .. }) = self.client.line.take() else { return };
        // A broker that does not hear it finds the connection closed all the same.
        let _ = writer.put(Content::Protocol, &Outgoing::Disconnect { reason: Reason::SUCCESS });
        self.runtime.block_on(writer.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_and_its_version_are_asked_by_topic() {
        let device = "front".parse().unwrap();
        let way = |version: Option<u64>| {
            let version = version.map(|number| number.try_into().unwrap());
            Way::to(&device, &decode::Target { model: "m".parse().unwrap(), version }).unwrap()
        };
        assert_eq!(way(None), Way::Box("ledge/v1/front/infer/m".parse().unwrap()));
        assert_eq!(way(Some(3)), Way::Box("ledge/v1/front/infer/m/versions/3".parse().unwrap()));
    }

    #[test]
    fn an_answer_counts_by_its_status() {
        let answer = |status: Option<&str>, payload: &'static str| {
            let status = status.map(|status| (answer::STATUS_PROPERTY.to_owned(), status.to_owned()));
            let user = status.into_iter().collect();
            let properties = Properties { user, ..Properties::default() };
            let topic = "a".parse().unwrap();
            outcome(&Message { topic, payload: payload.into(), qos: Qos::AtMostOnce, retain: false, properties })
        };
        let failed = |kind: &str, message: &str| Outcome::Failed { kind: kind.into(), message: message.into() };
        assert_eq!(answer(Some("200"), "{}"), Outcome::Ok);
        assert_eq!(answer(Some("429"), r#"{"error":"full"}"#), failed("429", "full"));
        assert_eq!(answer(Some("500"), "oops"), failed("500", "no message"));
        assert!(matches!(answer(None, "{}"), Outcome::Failed { .. }));
    }
}
