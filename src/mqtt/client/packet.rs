//! Control packets as a client sends and receives them, the same for MQTT 5 and 3.1.1.
//!
//! Sections in comments are those of the OASIS standard MQTT 5.0.

use std::fmt;

use bytes::Bytes;

use crate::topics::{TopicFilter, TopicName};

/// The version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// MQTT 5.
    V5,
    /// MQTT 3.1.1: no properties, and reasons are only success or failure.
    V311,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V5 => "MQTT 5",
            Self::V311 => "MQTT 3.1.1",
        })
    }
}

/// How often a message is delivered. "Exactly once" is never asked for: subscriptions are granted at most
/// [`Qos::AtLeastOnce`], and a broker lowers what is published higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Qos {
    /// QoS 0: at most once, unacknowledged.
    #[default]
    AtMostOnce,
    /// QoS 1: at least once.
    AtLeastOnce,
}

/// The number of a packet that will be acknowledged, 1 to 65,535.
pub type PacketId = std::num::NonZeroU16;

/// A reason code (section 2.4): below 0x80 is success. In 3.1.1 it is 0x00 or 0x80, where it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason(pub u8);

impl Reason {
    /// Success.
    pub const SUCCESS: Self = Self(0x00);
    /// Nobody receives the published message. Still a success.
    pub const NO_MATCHING_SUBSCRIBERS: Self = Self(0x10);
    /// A failure without a name.
    pub const UNSPECIFIED_ERROR: Self = Self(0x80);
    /// The receiver does not take it, for a reason of its own.
    pub const IMPLEMENTATION_SPECIFIC: Self = Self(0x83);
    /// The broker does not speak this version.
    pub const UNSUPPORTED_VERSION: Self = Self(0x84);
    /// Wrong user name or password.
    pub const BAD_USER_OR_PASSWORD: Self = Self(0x86);
    /// The broker does not allow it.
    pub const NOT_AUTHORIZED: Self = Self(0x87);
    /// Another client connected with the same client id.
    pub const SESSION_TAKEN_OVER: Self = Self(0x8E);

    /// The broker keeps no messages.
    pub const RETAIN_NOT_SUPPORTED: Self = Self(0x9A);
    /// The broker does not know this QoS.
    pub const QOS_NOT_SUPPORTED: Self = Self(0x9B);

    /// Whether it tells of a failure.
    pub fn is_failure(self) -> bool {
        self.0 >= 0x80
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            0x00..=0x02 => "success",
            0x04 => "disconnected with its last will",
            0x10 => "nobody receives it",
            0x80 => "refused without a reason",
            0x81 => "malformed packet",
            0x82 => "protocol error",
            0x83 => "not acceptable to the receiver",
            0x84 => "unsupported protocol version",
            0x85 => "client id not valid",
            0x86 => "wrong user name or password",
            0x87 => "not authorized",
            0x88 => "server unavailable",
            0x89 => "server busy",
            0x8A => "banned",
            0x8B => "server shutting down",
            0x8C => "bad authentication method",
            0x8D => "keep-alive timeout",
            0x8E => "another client has connected with the same client id",
            0x8F => "topic filter not valid",
            0x90 => "topic name not valid",
            0x93 => "receive maximum exceeded",
            0x95 => "packet too large",
            0x96 => "message rate too high",
            0x97 => "quota exceeded",
            0x98 => "closed by an administrator",
            0x99 => "payload format not valid",
            0x9A => "retained messages not supported",
            0x9B => "QoS not supported",
            0x9C | 0x9D => "use another server",
            0x9E => "shared subscriptions not supported",
            0x9F => "connection rate exceeded",
            0xA1 => "subscription identifiers not supported",
            0xA2 => "wildcard subscriptions not supported",
            _ => return write!(f, "reason 0x{:02x}", self.0),
        };
        write!(f, "{name} (0x{:02x})", self.0)
    }
}

/// A message, as a publisher sends it and a subscriber receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub topic: TopicName,
    pub payload: Bytes,
    /// How often it is delivered.
    pub qos: Qos,
    /// To be kept by the broker for later subscribers; on a received message: it was kept.
    pub retain: bool,
    /// MQTT 5 only; empty and unsent otherwise.
    pub properties: Properties,
}

/// The properties of a message (section 3.3.2.3) that Ledge reads or writes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Properties {
    /// Where an answer is wanted. From outside: it may be no valid topic name.
    pub response_topic: Option<String>,
    /// To be sent back with the answer, as it is.
    pub correlation_data: Option<Bytes>,
    /// The MIME type of the payload.
    pub content_type: Option<String>,
    /// How long the message is of any use, in seconds. A broker lowers it by the time the message waited.
    pub message_expiry_s: Option<u32>,
    /// Names and values; a name may come more than once.
    pub user: Vec<(String, String)>,
}

impl Properties {
    /// The first value of a user property; the case of its name does not matter.
    pub fn user(&self, name: &str) -> Option<&str> {
        self.user.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// A packet from the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// The answer to [`Outgoing::Connect`].
    ConnAck(ConnAck),
    Publish(Received),
    /// A message whose topic or properties cannot be used: too long, or against the standard. It has been let go by.
    Unusable {
        /// What to acknowledge; `None` for QoS 0.
        packet_id: Option<PacketId>,
        /// What is wrong with it.
        reason: String,
    },
    /// The broker has taken a message, or refuses it.
    PubAck {
        packet_id: PacketId,
        reason: Reason,
    },
    /// The answer to a subscription.
    SubAck {
        packet_id: PacketId,
        /// One for each filter; below 0x80 it is the QoS granted.
        reasons: Vec<Reason>,
    },
    /// The answer to [`Outgoing::Unsubscribe`].
    UnsubAck {
        packet_id: PacketId,
    },
    /// The answer to [`Outgoing::PingReq`].
    PingResp,
    /// The broker closes the connection (MQTT 5 only).
    Disconnect {
        reason: Reason,
        /// Why, in the broker's words.
        text: Option<String>,
    },
}

/// A message that came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The message. Its payload is empty when it was too large.
    pub message: Message,
    /// What to acknowledge; `None` for QoS 0.
    pub packet_id: Option<PacketId>,
    /// The broker may have sent it before.
    pub duplicate: bool,
    /// The packet's size in bytes, when it was larger than this side takes: the payload was let go by.
    pub oversized: Option<usize>,
}

/// The broker's answer to a connection (section 3.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnAck {
    /// Whether the broker still has the session. A refusal is a failure.
    pub session_present: bool,
    /// Accepted, or why not. The codes of 3.1.1 are translated: 1 to 0x84, 2 to 0x85, 3 to 0x88, 4 to 0x86, 5 to 0x87.
    pub reason: Reason,
    /// The reason in the broker's words.
    pub text: Option<String>,
    /// How many QoS 1 messages the broker takes unacknowledged. 65,535 where it does not say.
    pub receive_maximum: u16,
    /// The largest packet the broker takes, in bytes.
    pub maximum_packet_size: Option<u32>,
    /// The highest QoS the broker takes.
    pub maximum_qos: Qos,
    /// Whether the broker keeps messages.
    pub retain_available: bool,
    /// Whether the broker knows shared subscriptions.
    pub shared_subscriptions: bool,
    /// The keep-alive time that the broker wants instead of ours, in seconds.
    pub server_keep_alive_s: Option<u16>,
}

impl ConnAck {
    /// A new session at a broker that takes everything: the defaults of MQTT 5, section 3.2.2.3.
    pub fn accepting() -> Self {
        Self {
            session_present: false,
            reason: Reason::SUCCESS,
            text: None,
            receive_maximum: u16::MAX,
            maximum_packet_size: None,
            maximum_qos: Qos::AtLeastOnce,
            retain_available: true,
            shared_subscriptions: true,
            server_keep_alive_s: None,
        }
    }
}

/// A packet to the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outgoing {
    /// The first packet of a connection.
    Connect(Connect),
    Publish {
        message: Message,
        /// For QoS 1.
        packet_id: Option<PacketId>,
        /// Whether it may have been sent before.
        duplicate: bool,
    },
    /// A received message is dealt with.
    PubAck {
        packet_id: PacketId,
        /// Whether it went well. Not sent in 3.1.1.
        reason: Reason,
    },
    Subscribe {
        packet_id: PacketId,
        /// At least one.
        subscriptions: Vec<Subscription>,
    },
    /// Asks for no more of them.
    Unsubscribe {
        packet_id: PacketId,
        /// At least one.
        filters: Vec<TopicFilter>,
    },
    /// Asks for a sign of life.
    PingReq,
    /// Closes the connection. In 3.1.1 the reason is not sent, and the last will goes out only without this packet.
    Disconnect {
        /// Why. Success withholds the last will.
        reason: Reason,
    },
}

/// What a client says first (section 3.1).
#[derive(Clone, PartialEq, Eq)]
pub struct Connect {
    /// The name of the session.
    pub client_id: String,
    /// Whether to begin without what the broker still has.
    pub clean_start: bool,
    /// After how much silence each side may think the other gone, in seconds. 0: never.
    pub keep_alive_s: u16,
    /// How long the broker keeps the session after the connection ended, in seconds. In 3.1.1 it is for ever, or with 0
    /// not at all.
    pub session_expiry_s: u32,
    /// How many QoS 1 messages this side takes unacknowledged. MQTT 5 only.
    pub receive_maximum: u16,
    pub login: Option<(String, String)>,
    /// What the broker publishes when the connection breaks.
    pub will: Option<Message>,
}

impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the password.
        f.debug_struct("Connect").field("client_id", &self.client_id).finish_non_exhaustive()
    }
}

/// One subscription (section 3.8.3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    pub filter: TopicFilter,
    /// The highest QoS to be delivered.
    pub qos: Qos,
    /// Whether this client's own messages are left out. MQTT 5 only, and never for a shared subscription.
    pub no_local: bool,
    /// Which kept messages are delivered at once. MQTT 5 only; 3.1.1 delivers all.
    pub kept: Kept,
}

/// Retain handling (section 3.8.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Those that match, if the subscription is new.
    IfNew,
    /// None.
    Never,
}
