//! The section `[mqtt]` of the configuration.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use ledge_base::secret::SecretFile;
use ledge_base::toml_check::{ValueProblem, empty_if_none, from_text, in_range, none_if_empty};
use ledge_egress::{ConfiguredDestination, HostPort, TlsClientFiles};
use ledge_part::section::ConfigSection;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::bindings::{self, BindingConfig};
use super::client::packet::MqttVersion;
use super::topics::TopicFilter;

/// The largest content of a packet, in bytes (MQTT 5.0, section 1.5.5).
const PAYLOAD_MAX_BYTES: u64 = 268_435_455;

/// Memory needed besides one payload, in bytes: the rest of its packet, and the read buffer.
const PAYLOAD_OVERHEAD_BYTES: usize = 512 << 10;

/// The longest text in a packet, in bytes (MQTT 5.0, section 1.5.4).
const TEXT_MAX_BYTES: usize = 65_535;

/// The broker, the identity of this box at the broker, and the limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MqttConfig {
    /// The address of the broker. `None`: no MQTT.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub broker: Option<BrokerAddress>,
    pub protocol: MqttProtocol,
    /// The client id; `None` is the name of this box.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub client_id: Option<String>,
    /// The user; empty: no user.
    pub user: String,
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub password_file: Option<SecretFile>,
    /// Allows a broker on another machine without TLS.
    pub allow_plaintext: bool,
    /// Time without anything to send after which this box pings the broker, in seconds.
    #[serde(deserialize_with = "in_range::<5, 3_600, _, _>")]
    pub keep_alive_s: u16,
    /// Time that the broker keeps messages for this box while it is away, in seconds.
    #[serde(deserialize_with = "in_range::<0, 4_294_967_295, _, _>")]
    pub session_expiry_s: u32,
    /// The largest payload of a message, in bytes.
    #[serde(deserialize_with = "in_range::<1024, PAYLOAD_MAX_BYTES, _, _>")]
    pub max_payload_bytes: usize,
    /// The most QoS 1 messages that this box has received and not yet acknowledged.
    #[serde(deserialize_with = "in_range::<1, 65_535, _, _>")]
    pub max_in_flight: u16,
    /// The most bytes of requests being answered, messages that rate limits keep, and answers being sent; further
    /// messages are refused.
    #[serde(deserialize_with = "in_range::<1_048_576, 4_294_967_296, _, _>")]
    pub max_memory_bytes: usize,
    /// The response topics that are allowed besides the result topics; any topic when this is empty.
    pub response_topics: Vec<TopicFilter>,
    /// The longest pause between two attempts to connect, in seconds.
    #[serde(deserialize_with = "in_range::<1, 3_600, _, _>")]
    pub reconnect_max_s: u64,
    /// The time between two reports of this box, in seconds.
    #[serde(deserialize_with = "in_range::<5, 86_400, _, _>")]
    pub report_interval_s: u64,
    /// The section `[mqtt.tls]`: for a `mqtts://` broker.
    pub tls: TlsClientFiles,
    /// The sections `[[mqtt.bindings]]`.
    pub bindings: Vec<BindingConfig>,
}

impl Default for MqttConfig {
    fn default() -> Self {
        Self {
            broker: None,
            protocol: MqttProtocol::Auto,
            client_id: None,
            user: String::new(),
            password_file: None,
            allow_plaintext: false,
            keep_alive_s: 30,
            session_expiry_s: 86_400,
            max_payload_bytes: 16 << 20,
            max_in_flight: 64,
            max_memory_bytes: 64 << 20,
            response_topics: Vec::new(),
            reconnect_max_s: 60,
            report_interval_s: 60,
            tls: TlsClientFiles::default(),
            bindings: Vec::new(),
        }
    }
}

/// The version of MQTT to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MqttProtocol {
    /// MQTT 5, or 3.1.1 with a broker that does not support it.
    #[serde(rename = "auto")]
    Auto,
    #[serde(rename = "5")]
    V5,
    #[serde(rename = "3.1.1")]
    V311,
}

impl From<MqttVersion> for MqttProtocol {
    fn from(version: MqttVersion) -> Self {
        match version {
            MqttVersion::V5 => Self::V5,
            MqttVersion::V311 => Self::V311,
        }
    }
}

impl MqttConfig {
    /// [`Self::reconnect_max_s`].
    pub fn reconnect_max(&self) -> Duration {
        Duration::from_secs(self.reconnect_max_s)
    }

    /// [`Self::report_interval_s`].
    pub fn report_interval(&self) -> Duration {
        Duration::from_secs(self.report_interval_s)
    }
}

/// The registered port of MQTT.
const MQTT_PORT: u16 = 1883;

/// The registered port of MQTT over TLS.
const MQTTS_PORT: u16 = 8883;

/// The address of a broker. As text: `mqtt://HOST[:1883]`, or with TLS `mqtts://HOST[:8883]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerAddress {
    pub at: HostPort,
    pub tls: bool,
}

/// The reason why a text is no address of a broker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBroker {
    #[error(
        "expected mqtt://HOST[:PORT] or mqtts://HOST[:PORT] with a name, an IPv4 address or an IPv6 address in \
         brackets, got {text:?}"
    )]
    Form {
        /// The text, or its beginning.
        text: String,
    },
    /// The text may contain a password, so no message repeats it.
    #[error(
        "expected mqtt://HOST[:PORT] or mqtts://HOST[:PORT] without an '@': set user and password in mqtt.user and \
         mqtt.password_file"
    )]
    Login,
}

impl FromStr for BrokerAddress {
    type Err = InvalidBroker;

    fn from_str(text: &str) -> Result<Self, InvalidBroker> {
        // Check this first: other errors repeat the text.
        if text.contains('@') {
            return Err(InvalidBroker::Login);
        }
        let (tls, authority) = match (text.strip_prefix("mqtt://"), text.strip_prefix("mqtts://")) {
            (Some(rest), _) => (false, Some(rest)),
            (None, rest) => (true, rest),
        };
        let at = authority.and_then(|authority| {
            // A colon within brackets is the address's own.
            let has_port = authority.rsplit(']').next().is_some_and(|end| end.contains(':'));
            let read = if has_port {
                authority.parse()
            } else {
                HostPort::new(authority, if tls { MQTTS_PORT } else { MQTT_PORT })
            };
            read.ok()
        });
        let at = at.ok_or_else(|| InvalidBroker::Form { text: text.chars().take(128).collect() })?;
        Ok(Self { at, tls })
    }
}

impl fmt::Display for BrokerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "mqtts" } else { "mqtt" }, self.at)
    }
}

impl Serialize for BrokerAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BrokerAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

impl ConfigSection for MqttConfig {
    fn resolve(&mut self, root: &Path) {
        if let Some(file) = &mut self.password_file {
            file.resolve(root);
        }
        self.tls.resolve(root);
    }

    fn problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        let mut wrong = |key: &str, problem: String| problems.push(ValueProblem::new(key, problem));
        if let Some(broker) = &self.broker {
            for (key, file) in self.tls.keys() {
                if !broker.tls && file.is_some() {
                    wrong(key, format!("is for TLS, and {broker} has none: use mqtts://"));
                }
            }
        }

        for (key, text) in [("user", &self.user), ("client_id", self.client_id.as_ref().unwrap_or(&String::new()))] {
            if text.len() > TEXT_MAX_BYTES || text.contains(char::is_control) {
                wrong(key, format!("is longer than {TEXT_MAX_BYTES} bytes or has a control character"));
            }
        }
        if self.password_file.is_some() && self.user.is_empty() {
            wrong("password_file", "is a password without a user: set mqtt.user".into());
        }

        match (&self.tls.certificate_file, &self.tls.key_file) {
            (Some(_), None) => {
                wrong("tls.certificate_file", "needs its key: set mqtt.tls.key_file".into());
            }
            (None, Some(_)) => wrong("tls.key_file", "needs its certificate: set mqtt.tls.certificate_file".into()),
            _ => {}
        }

        // The largest message must fit when no other is in progress.
        if self.max_memory_bytes < self.max_payload_bytes.saturating_add(PAYLOAD_OVERHEAD_BYTES) {
            let largest = self.max_payload_bytes;
            wrong(
                "max_memory_bytes",
                format!("must be {PAYLOAD_OVERHEAD_BYTES} more than mqtt.max_payload_bytes, which is {largest}"),
            );
        }

        problems.extend(bindings::problems(&self.bindings));
        problems
    }

    fn destinations(&self) -> Vec<ConfiguredDestination> {
        let destination = |broker: &BrokerAddress| {
            let at = HostPort { port: MQTTS_PORT, ..broker.at.clone() };
            let tls = BrokerAddress { at, tls: true };
            let plaintext_problem = format!(
                "{broker} is not encrypted, so others on the network can read the messages and the password: use {tls}, \
                 or set mqtt.allow_plaintext = true if the network is trusted"
            );
            ConfiguredDestination {
                key: "broker".into(),
                at: broker.at.clone(),
                proxy: None,
                is_encrypted: broker.tls,
                plaintext_problem: (!self.allow_plaintext).then_some(plaintext_problem),
            }
        };
        self.broker.iter().map(destination).collect()
    }
}

#[cfg(test)]
mod tests;
