//! Connecting to the broker and disconnecting from it: the same for the daemon and for `ledge mqtt check`.

use ledge_base::secret::{SecretError, SecretFile};
use ledge_egress::{Content, Destination, Egress};

use super::client::connection::{Connection, ConnectionError, Writer};
use super::client::packet::{Connect, Message, Outgoing, Properties, Qos, Reason, Version};
use super::config::{MqttConfig, Protocol};
use super::request::MESSAGE_HEAD_BYTES;
use super::topics::{DeviceTopics, TopicName};

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
        matches!(self, Self::Connection(ConnectionError::Disconnected { reason: Reason::SESSION_TAKEN_OVER, .. }))
    }
}

/// The address of the broker, with the settings for TLS.
pub fn destination(config: &MqttConfig) -> Destination {
    let (host, port, tls) = match &config.broker {
        Some(broker) => (broker.at.host.to_string(), broker.at.port, broker.tls),
        None => (String::new(), 0, false),
    };
    Destination { host, port, tls: tls.then(|| config.tls.settings()) }
}

/// The CONNECT packet of this box. The password is read each time, so that it can be changed without a restart.
pub fn connect_packet(config: &MqttConfig, topics: &DeviceTopics) -> Result<Connect, SecretError> {
    let login = if config.user.is_empty() {
        None
    } else {
        let password = config.password_file.as_ref().map_or(Ok(String::new()), SecretFile::read_text)?;
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

/// Connects with MQTT 5, or with 3.1.1 where the broker or the configuration asks for it.
///
/// The last will is left out where the destination may not get presence, and is reduced to what the broker supports.
pub async fn open(egress: &Egress, config: &MqttConfig, mut connect: Connect) -> Result<Connection, ConnectionError> {
    let versions: &[Version] = match config.protocol {
        Protocol::Auto => &[Version::V5, Version::V311],
        Protocol::V5 => &[Version::V5],
        Protocol::V311 => &[Version::V311],
    };
    let destination = destination(config);
    let max_packet = config.max_payload_bytes.saturating_add(MESSAGE_HEAD_BYTES);
    if !egress.permits(&destination, Content::Presence) {
        connect.will = None;
    }
    let mut last = ConnectionError::Ended;
    for version in versions {
        loop {
            let opened = Connection::open(egress, &destination, *version, connect.clone(), max_packet).await;
            let refused = match opened {
                Err(ConnectionError::Refused { reason, text }) => (reason, text),
                // A broker of 3.1.1 should answer that it does not support MQTT 5, but some only close the connection.
                Err(ConnectionError::Ended) if config.protocol == Protocol::Auto && *version == Version::V5 => {
                    return Err(ConnectionError::EndedBeforeAccepted);
                }
                other => return other,
            };
            let again = match (refused.0, &mut connect.will) {
                (Reason::RETAIN_NOT_SUPPORTED, Some(will)) => std::mem::replace(&mut will.retain, false),
                (Reason::QOS_NOT_SUPPORTED, Some(will)) => {
                    std::mem::replace(&mut will.qos, Qos::AtMostOnce) != Qos::AtMostOnce
                }
                _ => false,
            };
            if again {
                continue;
            }
            let (reason, text) = refused;
            last = ConnectionError::Refused { reason, text };
            if reason == Reason::UNSUPPORTED_VERSION {
                break;
            }
            return Err(last);
        }
    }
    Err(last)
}

/// Ends a connection in order: the last will is withheld.
pub async fn disconnect(mut writer: Writer) -> Result<(), ConnectionError> {
    writer.put(Content::Protocol, &Outgoing::Disconnect { reason: Reason::SUCCESS })?;
    writer.flush().await?;
    writer.close().await;
    tracing::debug!("disconnected from the broker");
    Ok(())
}

/// The message that says whether this box is online, retained for later subscribers.
pub fn presence(topic: TopicName, payload: &'static str) -> Message {
    let properties = Properties::default();
    Message { topic, payload: payload.into(), qos: Qos::AtLeastOnce, retain: true, properties }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_broker_is_told_has_its_fields() {
        let device = "box".parse().unwrap();
        let topics = DeviceTopics { device, group: None, has_platform: false };
        let connect = connect_packet(&MqttConfig::default(), &topics).unwrap();
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
