//! The connection to the broker: made, kept, and made again. One task owns it, the session and everything under way.
//!
//! It never waits for an inference: those run in tasks of their own and report back.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::watch;

use super::backoff::{Backoff, random};
use super::bindings::Bindings;
use super::client::connection::{Connection, ConnectionError, Reader, Writer};
use super::client::packet::{Connect, Incoming, Message, Outgoing, Properties, Qos, Reason, Version};
use super::client::session::Event;
use super::config::{MqttConfig, Protocol};
use super::desk::{Desk, Limits};
use super::topics::{DeviceTopics, TopicName};
use crate::egress::{Content, Destination, Egress, TlsSettings};
use crate::secret::SecretError;
use crate::serving::Serving;
use crate::shutdown::Shutdown;
use crate::telemetry::messages::MessageStatistics;

/// Room for the topic and the properties of a message beside its payload, in bytes.
const HEAD: usize = 64 << 10;

/// No more packets are put into the writer while so many bytes are not sent.
const QUEUED: usize = 256 << 10;

/// So many packets are taken before others have a turn: callers over HTTP wait on the same thread.
const AT_ONCE: usize = 32;

/// How long the broker has to show a sign of life when asked for one.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection that stood so long was a good one: the next pause is short.
const GOOD: Duration = Duration::from_secs(10);

/// After what time a refused subscription is asked for again: somebody may have changed the broker's access list.
const RESUBSCRIBE: Duration = Duration::from_mins(1);

/// The payloads of [`DeviceTopics::online`].
const ONLINE: &str = "online";
const OFFLINE: &str = "offline";

/// What MQTT is built from.
#[derive(Debug)]
pub struct Gateway {
    /// The section `[mqtt]`.
    pub config: MqttConfig,
    /// The topics of this box.
    pub topics: DeviceTopics,
    /// The way out.
    pub egress: Egress,
    /// What answers calls.
    pub serving: Serving,
    /// What is counted.
    pub statistics: MessageStatistics,
    /// What this box reports of itself; nothing as long as it is empty.
    pub reported: watch::Receiver<Bytes>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("the password cannot be read: {0}")]
    Password(#[from] SecretError),
}

impl Failed {
    fn is_takeover(&self) -> bool {
        matches!(self, Self::Connection(ConnectionError::Disconnected { reason: Reason::SESSION_TAKEN_OVER, .. }))
    }
}

/// How far the end of a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// What is under way is brought to its end.
    Draining,
    /// The last message is on its way.
    Leaving,
}

impl Gateway {
    /// Answers messages until the shutdown is requested and what is under way has ended.
    pub async fn run(mut self, shutdown: Shutdown) -> Result<(), Infallible> {
        let Some(broker) = self.config.broker.clone() else { return Ok(()) };
        let limits = Limits { payload: self.config.max_payload_bytes, memory: self.config.max_memory_bytes };
        let bindings = Bindings::new(&self.config.bindings);
        let (serving, statistics) = (self.serving.clone(), self.statistics.clone());
        let mut desk = Desk::new(self.topics.clone(), &bindings, serving, statistics, limits, shutdown.clone());
        let mut backoff = Backoff::new(self.config.reconnect_max());
        let mut told = String::new();
        loop {
            let connected = tokio::select! {
                connected = self.connect() => connected,
                () = shutdown.requested() => return Ok(()),
            };
            let began = Instant::now();
            let ended = match connected {
                Ok(connection) => {
                    let (version, session_present) = (connection.version, connection.accepted.session_present);
                    tracing::info!(%broker, %version, session_present, "connected to the broker");
                    told.clear();
                    self.statistics.connected();
                    let ended = self.exchange(connection, &mut desk, &shutdown).await;
                    self.statistics.disconnected();
                    desk.session().disconnected();
                    ended.map_err(Failed::from)
                }
                Err(failed) => Err(failed),
            };
            let Err(failed) = ended else { return Ok(()) };
            if began.elapsed() >= GOOD {
                backoff.reset();
            }
            if failed.is_takeover() {
                // Two boxes of one name would otherwise throw each other out for ever.
                backoff.give_way();
            }
            let pause = backoff.pause(random());
            let reason = failed.to_string();
            let retry_in_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
            // Once: a broker that is away for a night is no news.
            if told == reason {
                tracing::debug!(%broker, reason, retry_in_ms, "the broker is not connected");
            } else {
                tracing::warn!(%broker, reason, retry_in_ms, "the broker is not connected");
                told = reason;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = shutdown.requested() => return Ok(()),
            }
        }
    }

    /// Connects with MQTT 5, or with 3.1.1 where the broker or the configuration wants that.
    async fn connect(&self) -> Result<Connection, Failed> {
        let versions: &[Version] = match self.config.protocol {
            Protocol::Auto => &[Version::V5, Version::V311],
            Protocol::V5 => &[Version::V5],
            Protocol::V311 => &[Version::V311],
        };
        let destination = destination(&self.config);
        let connect = connect(&self.config, &self.topics)?;
        let max_packet = self.config.max_payload_bytes.saturating_add(HEAD);
        let mut last = ConnectionError::Ended;
        for version in versions {
            match open(&self.egress, &destination, *version, connect.clone(), max_packet).await {
                Err(refused @ ConnectionError::Refused { reason: Reason::UNSUPPORTED_VERSION, .. }) => last = refused,
                other => return Ok(other?),
            }
        }
        Err(last.into())
    }

    /// Exchanges packets until the connection breaks, or in the end is closed.
    async fn exchange(
        &mut self,
        connection: Connection,
        desk: &mut Desk,
        shutdown: &Shutdown,
    ) -> Result<(), ConnectionError> {
        let Connection { mut reader, mut writer, accepted, .. } = connection;
        if desk.has_shared() && !accepted.shared_subscriptions {
            tracing::error!("the broker knows no shared subscriptions: calls to the group will not come");
        }
        let keep_alive = accepted.server_keep_alive_s.unwrap_or(self.config.keep_alive_s);
        let mut pulse = Pulse::new(Duration::from_secs(keep_alive.into()), Instant::now());
        desk.session().connected(&accepted);
        desk.subscribe();
        desk.publish(presence(self.topics.online(), ONLINE), Content::Presence);
        self.report(desk);
        let mut resubscribe = Instant::now() + RESUBSCRIBE.min(self.config.reconnect_max());
        let mut phase = Phase::Open;
        let mut reporting = true;
        loop {
            phase = self.advance(phase, desk, shutdown);
            send(&mut writer, desk)?;
            if phase == Phase::Leaving && desk.is_idle() && writer.queued() == 0 {
                return farewell(writer).await;
            }
            let now = Instant::now();
            desk.start_due(now);
            if desk.lacks_subscription() && now >= resubscribe {
                resubscribe = now + RESUBSCRIBE.min(self.config.reconnect_max());
                desk.subscribe();
                continue;
            }
            if pulse.beat(now)? {
                desk.session().ping();
                continue;
            }
            let wake = [desk.next_due(), desk.lacks_subscription().then_some(resubscribe)];
            let wake = wake.into_iter().flatten().fold(pulse.next(), Instant::min);
            tokio::select! {
                // What leaves goes before what comes: an answer makes room, a request takes it.
                biased;
                () = shutdown.requested(), if phase == Phase::Open => {}
                sent = writer.flush(), if writer.queued() > 0 => {
                    sent?;
                    pulse.sent(Instant::now());
                }
                finished = desk.finished() => desk.finish(finished, Instant::now()),
                changed = self.reported.changed(), if reporting => {
                    reporting = changed.is_ok();
                    self.report(desk);
                }
                packet = reader.next(), if desk.may_read(reader.held()) => {
                    pulse.heard();
                    take(packet?, &mut reader, desk, Instant::now())?;
                    // What was begun has its turn before more is read.
                    tokio::task::yield_now().await;
                }
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
    }

    /// The phase now, and what has to be done on the way to it.
    fn advance(&self, mut phase: Phase, desk: &mut Desk, shutdown: &Shutdown) -> Phase {
        if phase == Phase::Open && shutdown.is_requested() {
            desk.close();
            phase = Phase::Draining;
        }
        if phase == Phase::Draining && desk.is_idle() {
            desk.publish(presence(self.topics.online(), OFFLINE), Content::Presence);
            phase = Phase::Leaving;
        }
        phase
    }

    /// Publishes what this box reports of itself.
    fn report(&mut self, desk: &mut Desk) {
        let payload = self.reported.borrow_and_update().clone();
        if !payload.is_empty() {
            let properties = Properties { content_type: Some("application/json".to_owned()), ..Properties::default() };
            let topic = self.topics.reported();
            let message = Message { topic, payload, qos: Qos::AtLeastOnce, retain: true, properties };
            desk.publish(message, Content::Report);
        }
    }
}

/// Connects; where the broker keeps no messages or knows no QoS 1, with a last will that needs neither.
async fn open(
    egress: &Egress,
    to: &Destination,
    version: Version,
    mut connect: Connect,
    max_packet: usize,
) -> Result<Connection, ConnectionError> {
    loop {
        let opened = Connection::open(egress, to, version, connect.clone(), max_packet).await;
        match (&opened, &mut connect.will) {
            (Err(ConnectionError::Refused { reason: Reason::RETAIN_NOT_SUPPORTED, .. }), Some(will)) if will.retain => {
                will.retain = false;
            }
            (Err(ConnectionError::Refused { reason: Reason::QOS_NOT_SUPPORTED, .. }), Some(will))
                if will.qos != Qos::AtMostOnce =>
            {
                will.qos = Qos::AtMostOnce;
            }
            _ => return opened,
        }
    }
}

/// Puts what the session wants to send into the writer, up to a measure.
fn send(writer: &mut Writer, desk: &mut Desk) -> Result<(), ConnectionError> {
    while writer.queued() < QUEUED {
        let Some((content, packet)) = desk.next_packet(|packet| writer.size(packet)) else { break };
        match writer.put(content, &packet) {
            Ok(()) => {}
            Err(ConnectionError::NotPermitted(reason)) => desk.not_permitted(packet, &reason, Instant::now()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Takes a packet, and some of those that came with it, as long as there is room.
fn take(packet: Incoming, reader: &mut Reader, desk: &mut Desk, now: Instant) -> Result<(), ConnectionError> {
    let mut packet = packet;
    for _ in 1..AT_ONCE {
        receive(packet, desk, now)?;
        let here = if desk.may_read(reader.held()) { reader.next_here()? } else { None };
        match here {
            Some(next) => packet = next,
            None => return Ok(()),
        }
    }
    receive(packet, desk, now)
}

fn receive(packet: Incoming, desk: &mut Desk, now: Instant) -> Result<(), ConnectionError> {
    match desk.session().receive(packet) {
        Event::Disconnected(reason, text) => Err(ConnectionError::Disconnected { reason, text }),
        event => {
            desk.take(event, now);
            Ok(())
        }
    }
}

async fn farewell(mut writer: Writer) -> Result<(), ConnectionError> {
    writer.put(Content::Protocol, &Outgoing::Disconnect { reason: Reason::SUCCESS })?;
    writer.flush().await?;
    writer.close().await;
    tracing::debug!("disconnected from the broker");
    Ok(())
}

/// Where the broker is.
pub fn destination(config: &MqttConfig) -> Destination {
    let (host, port, tls) = match &config.broker {
        Some(broker) => (broker.host.clone(), broker.port, broker.tls),
        None => (String::new(), 0, false),
    };
    let files = &config.tls;
    let settings = || TlsSettings {
        ca: files.ca_file.clone(),
        certificate: files.certificate_file.clone(),
        key: files.key_file.clone(),
    };
    Destination { host, port, tls: tls.then(settings) }
}

/// What this box says first. The password is read each time, so that it can be changed without a restart.
pub fn connect(config: &MqttConfig, topics: &DeviceTopics) -> Result<Connect, SecretError> {
    let login = if config.user.is_empty() {
        None
    } else {
        let password = config.password_file.as_ref().map_or(Ok(String::new()), crate::secret::SecretFile::read_text)?;
        Some((config.user.clone(), password))
    };
    Ok(Connect {
        client_id: config.client_id.clone().unwrap_or_else(|| topics.device.to_string()),
        clean_start: false,
        keep_alive_s: config.keep_alive_s,
        session_expiry_s: config.session_expiry_s,
        receive_maximum: config.max_in_flight,
        login,
        will: Some(presence(topics.online(), OFFLINE)),
    })
}

fn presence(topic: TopicName, payload: &'static str) -> Message {
    let properties = Properties::default();
    Message { topic, payload: payload.into(), qos: Qos::AtLeastOnce, retain: true, properties }
}

/// Whether the other side is still there (section 3.1.2.10).
#[derive(Debug)]
struct Pulse {
    keep_alive: Duration,
    last_sent: Instant,
    asked: Option<Instant>,
}

impl Pulse {
    fn new(keep_alive: Duration, now: Instant) -> Self {
        // 0 is never.
        let keep_alive = if keep_alive.is_zero() { Duration::from_hours(24) } else { keep_alive };
        Self { keep_alive, last_sent: now, asked: None }
    }

    fn sent(&mut self, now: Instant) {
        self.last_sent = now;
    }

    fn heard(&mut self) {
        self.asked = None;
    }

    /// Whether to ask for a sign of life now. An error when one was asked for and did not come.
    fn beat(&mut self, now: Instant) -> Result<bool, ConnectionError> {
        if let Some(asked) = self.asked {
            return if now >= asked + PATIENCE { Err(ConnectionError::Silent) } else { Ok(false) };
        }
        if now < self.last_sent + self.keep_alive {
            return Ok(false);
        }
        self.asked = Some(now);
        Ok(true)
    }

    /// When [`Self::beat`] has something to say.
    fn next(&self) -> Instant {
        self.asked.map_or(self.last_sent + self.keep_alive, |asked| asked + PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_broker_is_asked_once_and_given_up_when_it_does_not_answer() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut pulse = Pulse::new(Duration::from_secs(30), start);
        assert!(matches!(pulse.beat(after(29)), Ok(false)));
        assert!(matches!(pulse.beat(after(30)), Ok(true)));
        assert!(matches!(pulse.beat(after(31)), Ok(false)));
        assert_eq!(pulse.next(), after(40));
        pulse.sent(after(30));
        pulse.heard();
        assert_eq!(pulse.next(), after(60));
        assert!(matches!(pulse.beat(after(60)), Ok(true)));
        assert!(matches!(pulse.beat(after(70)), Err(ConnectionError::Silent)));
    }
}
