//! The section `[mqtt]` of the configuration.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use ledge_base::secret::SecretFile;
use ledge_base::toml_check::{empty_if_none, from_text, in_range, none_if_empty};
use ledge_egress::{ConfiguredDestination, HostPort, TlsFiles};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::bindings::{self, BindingConfig};
use super::topics::TopicFilter;

/// The largest content of a packet, in bytes (MQTT 5.0, section 1.5.5).
const MAX_PAYLOAD: u64 = 268_435_455;

/// What is needed beside one payload, in bytes: the rest of its packet, and the buffer that is read into.
const BESIDE_PAYLOAD: usize = 512 << 10;

/// The longest text in a packet, in bytes (MQTT 5.0, section 1.5.4).
const MAX_TEXT: usize = 65_535;

/// The broker, who this box is to it, and what is taken from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MqttConfig {
    /// The broker. `None`: there is no MQTT.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub broker: Option<BrokerAddress>,
    /// The version of the protocol.
    pub protocol: Protocol,
    /// The name of the session at the broker; `None` is the name of this box.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub client_id: Option<String>,
    /// The user; empty is none.
    pub user: String,
    /// The password of the user.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub password_file: Option<SecretFile>,
    /// Whether a broker elsewhere may be spoken to without TLS.
    pub allow_plaintext: bool,
    /// After how long without anything to send this box asks for a sign of life, in seconds.
    #[serde(deserialize_with = "in_range::<5, 3_600, _, _>")]
    pub keep_alive_s: u16,
    /// How long the broker keeps messages for this box while it is away, in seconds.
    #[serde(deserialize_with = "in_range::<0, 4_294_967_295, _, _>")]
    pub session_expiry_s: u32,
    /// The largest payload of a message, in bytes.
    #[serde(deserialize_with = "in_range::<1024, MAX_PAYLOAD, _, _>")]
    pub max_payload_bytes: usize,
    /// How many QoS 1 messages may be taken and not yet acknowledged.
    #[serde(deserialize_with = "in_range::<1, 65_535, _, _>")]
    pub max_in_flight: u16,
    /// The most bytes of requests being answered, what rate limits keep and answers on their way; what finds no room is
    /// refused.
    #[serde(deserialize_with = "in_range::<1_048_576, 4_294_967_296, _, _>")]
    pub max_memory_bytes: usize,
    /// Where answers may go beside the topics for results; anywhere when there is none.
    pub response_topics: Vec<TopicFilter>,
    /// The longest pause between two attempts to connect, in seconds.
    #[serde(deserialize_with = "in_range::<1, 3_600, _, _>")]
    pub reconnect_max_s: u64,
    /// How often this box reports, in seconds.
    #[serde(deserialize_with = "in_range::<5, 86_400, _, _>")]
    pub report_interval_s: u64,
    /// The section `[mqtt.tls]`: for a `mqtts://` broker.
    pub tls: TlsFiles,
    /// The sections `[[mqtt.bindings]]`.
    pub bindings: Vec<BindingConfig>,
}

impl Default for MqttConfig {
    fn default() -> Self {
        Self {
            broker: None,
            protocol: Protocol::Auto,
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
            tls: TlsFiles::default(),
            bindings: Vec::new(),
        }
    }
}

/// Which version of MQTT is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// MQTT 5, or 3.1.1 with a broker that does not know it.
    #[serde(rename = "auto")]
    Auto,
    /// MQTT 5.
    #[serde(rename = "5")]
    V5,
    /// MQTT 3.1.1.
    #[serde(rename = "3.1.1")]
    V311,
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

    /// Makes relative paths relative to `root`.
    pub fn resolve(&mut self, root: &Path) {
        if let Some(file) = &mut self.password_file {
            file.resolve(root);
        }
        self.tls.resolve(root);
    }

    /// The destinations that this section names: the broker.
    pub fn destinations(&self) -> Vec<ConfiguredDestination> {
        let destination = |broker: &BrokerAddress| {
            let at = HostPort { port: MQTTS_PORT, ..broker.at.clone() };
            let tls = BrokerAddress { at, tls: true };
            let plaintext_problem = format!(
                "{broker} would carry what is inferred on, and the password, readable for everybody on the way: use \
                 {tls}, or set mqtt.allow_plaintext = true where the network is trusted"
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

    /// What is wrong although each value is well-formed: the key within the section, and what to do about it. Mistakes
    /// of [`Self::destinations`] are not among them.
    pub fn problems(&self) -> Vec<(String, String)> {
        let mut problems = Vec::new();
        let mut wrong = |key: &str, problem: String| problems.push((key.to_owned(), problem));
        if let Some(broker) = &self.broker {
            for (key, file) in self.tls.keys() {
                if !broker.tls && file.is_some() {
                    wrong(key, format!("is for TLS, and {broker} has none: use mqtts://"));
                }
            }
        }
        for (key, text) in [("user", &self.user), ("client_id", self.client_id.as_ref().unwrap_or(&String::new()))] {
            if text.len() > MAX_TEXT || text.contains(char::is_control) {
                wrong(key, format!("is longer than {MAX_TEXT} bytes or has a control character"));
            }
        }
        if self.password_file.is_some() && self.user.is_empty() {
            wrong("password_file", "is the password of nobody: set mqtt.user".into());
        }
        match (&self.tls.certificate_file, &self.tls.key_file) {
            (Some(_), None) => wrong("tls.certificate_file", "needs its key: set mqtt.tls.key_file".into()),
            (None, Some(_)) => wrong("tls.key_file", "needs its certificate: set mqtt.tls.certificate_file".into()),
            _ => {}
        }
        // The largest message has room when nothing else is under way.
        if self.max_memory_bytes < self.max_payload_bytes.saturating_add(BESIDE_PAYLOAD) {
            let largest = self.max_payload_bytes;
            wrong(
                "max_memory_bytes",
                format!("must be {BESIDE_PAYLOAD} more than mqtt.max_payload_bytes, which is {largest}"),
            );
        }
        problems.extend(bindings::problems(&self.bindings));
        problems
    }
}

/// The registered port of MQTT.
const MQTT_PORT: u16 = 1883;

/// The registered port of MQTT over TLS.
const MQTTS_PORT: u16 = 8883;

/// Where a broker is. As text: `mqtt://HOST[:1883]`, or with TLS `mqtts://HOST[:8883]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerAddress {
    /// The host and the port.
    pub at: HostPort,
    /// Whether it is spoken to over TLS.
    pub tls: bool,
}

/// Why a text is no address of a broker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBroker {
    #[error(
        "expected mqtt://HOST[:PORT] or mqtts://HOST[:PORT] with a name, an IPv4 address or an IPv6 address in brackets, \
         got {text:?}"
    )]
    Form {
        /// The text, or its beginning.
        text: String,
    },
    /// The text may hold a password, which no message repeats.
    #[error(
        "expected mqtt://HOST[:PORT] or mqtts://HOST[:PORT] without an '@': user and password have keys of their own, \
         mqtt.user and mqtt.password_file"
    )]
    Login,
}

impl FromStr for BrokerAddress {
    type Err = InvalidBroker;

    fn from_str(text: &str) -> Result<Self, InvalidBroker> {
        // Before anything else is found wrong, since what is wrong is repeated.
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

#[cfg(test)]
mod tests;
