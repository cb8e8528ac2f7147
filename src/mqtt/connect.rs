//! Connecting to the broker and disconnecting from it: the same for the daemon and for `ledge mqtt check`.

use std::time::{Duration, Instant};

use ledge_base::secret::{SecretError, SecretFile};
use ledge_egress::{Egress, EgressContent, EgressDestination};

use super::client::connection::{BrokerConnection, ConnectionError, ConnectionWriter};
use super::client::packet::{Connect, MessageProperties, MqttMessage, MqttVersion, OutgoingPacket, Qos, ReasonCode};
use super::config::{MqttConfig, MqttProtocol};
use super::plan::SessionName;
use super::request::MESSAGE_HEAD_BYTES;
use super::topics::{DeviceTopics, TopicName};

/// Time for the broker to answer CONNECT.
pub const CONNACK_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the broker to answer a CONNECT in MQTT 5 where 3.1.1 is allowed, too. Short enough for `ledge mqtt check`,
/// which has 10 s for everything.
const AUTO_TIMEOUT: Duration = Duration::from_secs(3);

/// A broker that answers 3.1.1 has this multiple of the time to answer MQTT 5.
const SLOW_FACTOR: u32 = 3;

/// The payloads of [`DeviceTopics::online`].
pub const ONLINE: &str = "online";
/// See [`ONLINE`].
pub const OFFLINE: &str = "offline";

/// The fields of CONNECT and their meaning, for `ledge audit egress`.
pub const CONNECT_FIELDS: [(&str, &str); 7] = [
    ("client_id", "the name of the session (mqtt.client_id), or of this box"),
    ("clean_start", "whether to begin without what the broker still has"),
    ("keep_alive_s", "after how much silence each side may think the other gone"),
    ("session_expiry_s", "how long the broker keeps the session"),
    ("receive_maximum", "how many messages this side takes unacknowledged"),
    ("login", "mqtt.user and the password"),
    ("will", "presence, for when the connection breaks"),
];

/// The reason why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("the password of the broker cannot be read (mqtt.password_file): {0}")]
    Password(#[from] SecretError),
}

impl ConnectError {
    /// Returns `true` if another client of the same name has taken over the session.
    pub fn is_takeover(&self) -> bool {
        matches!(self, Self::Connection(ConnectionError::Disconnected { reason: ReasonCode::SESSION_TAKEN_OVER, .. }))
    }
}

/// The address of the broker, with the settings for TLS.
pub fn destination(config: &MqttConfig) -> EgressDestination {
    let (host, port, tls) = match &config.broker {
        Some(broker) => (broker.at.host.to_string(), broker.at.port, broker.tls),
        None => (String::new(), 0, false),
    };
    EgressDestination { host, port, tls: tls.then(|| config.tls.settings()) }
}

/// The client id of a session of this box.
pub fn client_id(config: &MqttConfig, topics: &DeviceTopics, session: SessionName) -> String {
    session.client_id(config.client_id.as_deref().unwrap_or(topics.device.as_str()))
}

/// The CONNECT packet of a session of this box. The password is read each time, so that it can be changed without a
/// restart.
pub fn connect_packet(
    config: &MqttConfig,
    topics: &DeviceTopics,
    session: SessionName,
) -> Result<Connect, SecretError> {
    let login = if config.user.is_empty() {
        None
    } else {
        let password = config.password_file.as_ref().map_or(Ok(String::new()), SecretFile::read_text)?;
        Some((config.user.clone(), password))
    };
    Ok(Connect {
        client_id: client_id(config, topics, session),
        clean_start: false,
        keep_alive_s: config.keep_alive_s,
        session_expiry_s: config.session_expiry_s,
        receive_maximum: config.max_in_flight,
        login,
        // Only one session publishes whether the box is online.
        will: (session == SessionName::Main).then(|| presence(topics.online(), OFFLINE)),
    })
}

/// Connects with the version of `protocol`; with any, MQTT 5 unless the broker does not support it.
///
/// The last will is left out if the destination must not get presence, and is reduced to what the broker supports.
pub async fn open(
    egress: &Egress,
    config: &MqttConfig,
    protocol: MqttProtocol,
    mut connect: Connect,
) -> Result<BrokerConnection, ConnectionError> {
    let to = destination(config);
    if !egress.permits(&to, EgressContent::Presence) {
        connect.will = None;
    }
    let max_packet = config.max_payload_bytes.saturating_add(MESSAGE_HEAD_BYTES);
    let mut opening = OpeningConnection { egress, to, connect, max_packet };
    match protocol {
        MqttProtocol::V5 => opening.open(MqttVersion::V5, CONNACK_TIMEOUT).await,
        MqttProtocol::V311 => opening.open(MqttVersion::V311, CONNACK_TIMEOUT).await,
        MqttProtocol::Auto => opening.open_any().await,
    }
}

/// A connection to be opened.
struct OpeningConnection<'a> {
    egress: &'a Egress,
    to: EgressDestination,
    connect: Connect,
    max_packet: usize,
}

impl OpeningConnection<'_> {
    async fn open_any(&mut self) -> Result<BrokerConnection, ConnectionError> {
        match self.open(MqttVersion::V5, AUTO_TIMEOUT).await {
            Err(ConnectionError::Refused { reason: ReasonCode::UNSUPPORTED_VERSION, .. }) => {
                self.open(MqttVersion::V311, CONNACK_TIMEOUT).await
            }
            // A broker of 3.1.1 should answer that it does not support MQTT 5, but some only close the connection.
            Err(ConnectionError::Ended) => Err(ConnectionError::EndedBeforeAccepted),
            Err(ConnectionError::Silent(_)) => self.open_silent().await,
            other => other,
        }
    }

    /// Connects to a broker that did not answer a CONNECT in MQTT 5. After an answer in 3.1.1, a second attempt in MQTT
    /// 5 shows whether the broker was only slow: a box that uses 3.1.1 gets no response topics.
    async fn open_silent(&mut self) -> Result<BrokerConnection, ConnectionError> {
        let began = Instant::now();
        let older = self.open(MqttVersion::V311, CONNACK_TIMEOUT).await?;
        let patience = AUTO_TIMEOUT.max(began.elapsed() * SLOW_FACTOR);
        // The same session: its broker would close the connection at the next CONNECT.
        disconnect(older.writer).await?;

        match self.open(MqttVersion::V5, patience).await {
            Err(ConnectionError::Silent(_)) => {
                tracing::warn!(
                    name: "mqtt.version_lowered",
                    host = self.to.host,
                    port = self.to.port,
                    "the broker does not answer MQTT 5: connecting with MQTT 3.1.1. Set mqtt.protocol = \"3.1.1\" to \
                     connect faster"
                );
                self.open(MqttVersion::V311, CONNACK_TIMEOUT).await
            }
            other => other,
        }
    }

    /// Connects with one version, with as much of the last will as the broker supports.
    async fn open(&mut self, version: MqttVersion, timeout: Duration) -> Result<BrokerConnection, ConnectionError> {
        loop {
            let (connect, max_packet) = (self.connect.clone(), self.max_packet);
            let opened = BrokerConnection::open(self.egress, &self.to, version, connect, max_packet, timeout).await;
            let Err(ConnectionError::Refused { reason, .. }) = &opened else { return opened };
            let again = match (*reason, &mut self.connect.will) {
                (ReasonCode::RETAIN_NOT_SUPPORTED, Some(will)) => std::mem::replace(&mut will.retain, false),
                (ReasonCode::QOS_NOT_SUPPORTED, Some(will)) => {
                    std::mem::replace(&mut will.qos, Qos::AtMostOnce) != Qos::AtMostOnce
                }
                _ => false,
            };
            if !again {
                return opened;
            }
        }
    }
}

/// Ends a connection in order: the last will is withheld.
pub async fn disconnect(mut writer: ConnectionWriter) -> Result<(), ConnectionError> {
    writer.put(EgressContent::Protocol, &OutgoingPacket::Disconnect { reason: ReasonCode::SUCCESS })?;
    writer.flush().await?;
    writer.close().await;
    tracing::debug!("disconnected from the broker");
    Ok(())
}

/// The message that says whether this box is online, retained for later subscribers.
pub fn presence(topic: TopicName, payload: &'static str) -> MqttMessage {
    let properties = MessageProperties::default();
    MqttMessage { topic, payload: payload.into(), qos: Qos::AtLeastOnce, retain: true, properties }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_broker_is_told_has_its_fields() {
        let device = "box".parse().unwrap();
        let topics = DeviceTopics { device, group: None, has_platform: false };
        let connect = connect_packet(&MqttConfig::default(), &topics, SessionName::Main).unwrap();
        // A new field does not compile here: it has to be added to the list.
        let Connect { client_id, clean_start, keep_alive_s, session_expiry_s, receive_maximum, login, will } = connect;
        let named = [
            ("client_id", client_id == "box"),
            ("clean_start", !clean_start),
            ("keep_alive_s", keep_alive_s > 0),
            ("session_expiry_s", session_expiry_s > 0),
            ("receive_maximum", receive_maximum > 0),
            ("login", login.is_none()),
            ("will", will.is_some()),
        ];
        assert_eq!(named.map(|(name, is_right)| (name, is_right)), CONNECT_FIELDS.map(|(name, _)| (name, true)));
    }
}
