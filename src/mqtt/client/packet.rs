//! Control packets as a client sends and receives them, the same for MQTT 5 and 3.1.1.
//!
//! Sections in comments are those of the OASIS standard MQTT 5.0.

use std::fmt;

use bytes::Bytes;

use crate::topics::{TopicFilter, TopicName};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MqttVersion {
    V5,
    /// MQTT 3.1.1 has no properties, and its reasons are only success or failure.
    V311,
}

impl fmt::Display for MqttVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V5 => "MQTT 5",
            Self::V311 => "MQTT 3.1.1",
        })
    }
}

/// The quality of service of a message. QoS 2, exactly once, is never requested: subscriptions ask for at most
/// [`Qos::AtLeastOnce`], and a broker delivers a message of QoS 2 with that.
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

/// A subscription identifier (section 3.8.2.1.2), 1 to 268,435,455.
pub type SubscriptionId = std::num::NonZeroU32;

/// A reason code (section 2.4): below 0x80 is success. In 3.1.1 it is 0x00 or 0x80, where it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasonCode(pub u8);

impl ReasonCode {
    pub const SUCCESS: Self = Self(0x00);
    /// The published message has no subscriber. Still a success.
    pub const NO_MATCHING_SUBSCRIBERS: Self = Self(0x10);
    /// A failure without a specific code.
    pub const UNSPECIFIED_ERROR: Self = Self(0x80);
    /// The receiver does not accept it, for a reason that MQTT does not define.
    pub const IMPLEMENTATION_SPECIFIC: Self = Self(0x83);
    /// The broker does not support this version.
    pub const UNSUPPORTED_VERSION: Self = Self(0x84);
    /// Wrong user name or password.
    pub const BAD_USER_OR_PASSWORD: Self = Self(0x86);
    /// The broker does not allow it.
    pub const NOT_AUTHORIZED: Self = Self(0x87);
    /// Another client connected with the same client id.
    pub const SESSION_TAKEN_OVER: Self = Self(0x8E);

    /// The broker retains no messages.
    pub const RETAIN_NOT_SUPPORTED: Self = Self(0x9A);
    /// The broker does not support this QoS.
    pub const QOS_NOT_SUPPORTED: Self = Self(0x9B);

    /// Returns `true` if it reports a failure.
    pub fn is_failure(self) -> bool {
        self.0 >= 0x80
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            0x00..=0x02 => "success",
            0x04 => "disconnected with its last will",
            0x10 => "no matching subscribers",
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
pub struct MqttMessage {
    pub topic: TopicName,
    pub payload: Bytes,
    pub qos: Qos,
    /// Asks the broker to retain it for later subscribers; on a received message: it was retained.
    pub retain: bool,
    /// MQTT 5 only; empty and unsent otherwise.
    pub properties: MessageProperties,
}

/// The properties of a message (section 3.3.2.3) that Ledge reads or writes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MessageProperties {
    /// The topic for the answer. Foreign text, which is not necessarily a valid topic name.
    pub response_topic: Option<String>,
    /// Data to send back unchanged with the answer.
    pub correlation_data: Option<Bytes>,
    /// The MIME type of the payload.
    pub content_type: Option<String>,
    /// The lifetime of the message in seconds. A broker lowers it by the time that the message waited.
    pub message_expiry_s: Option<u32>,
    /// Names and values; a name may come more than once.
    pub user: Vec<(String, String)>,
}

impl MessageProperties {
    /// The first value of a user property; the case of its name does not matter.
    pub fn user(&self, name: &str) -> Option<&str> {
        self.user.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// A packet from the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IncomingPacket {
    /// The answer to [`OutgoingPacket::Connect`].
    ConnAck(ConnAck),
    Publish(ReceivedMessage),
    /// A message with a topic or properties that cannot be read: too long, or against the standard. It was skipped.
    Unusable {
        /// The packet to acknowledge; `None` for QoS 0.
        packet_id: Option<PacketId>,
        reason: String,
    },
    /// The broker has accepted a message, or refuses it.
    PubAck {
        packet_id: PacketId,
        reason: ReasonCode,
    },
    /// The answer to a subscription.
    SubAck {
        packet_id: PacketId,
        /// One for each filter; below 0x80 it is the QoS granted.
        reasons: Vec<ReasonCode>,
    },
    /// The answer to [`OutgoingPacket::Unsubscribe`].
    UnsubAck {
        packet_id: PacketId,
    },
    /// The answer to [`OutgoingPacket::PingReq`].
    PingResp,
    /// The broker closes the connection (MQTT 5 only).
    Disconnect {
        reason: ReasonCode,
        /// The broker's explanation.
        text: Option<String>,
    },
}

/// A message from the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// The message. Its payload is empty when it was too large.
    pub message: MqttMessage,
    /// The packet to acknowledge; `None` for QoS 0.
    pub packet_id: Option<PacketId>,
    /// The broker may have sent it before.
    pub duplicate: bool,
    /// The packet's size in bytes, when it was larger than this side accepts: the payload was skipped.
    pub oversized: Option<usize>,
    /// The identifiers of the subscriptions that it matches, of those that have one. MQTT 5 only.
    pub subscription_ids: Vec<SubscriptionId>,
}

/// The broker's answer to a connection (section 3.2).
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the properties of the packet")]
pub struct ConnAck {
    /// The broker still has the session. Never set with a refusal.
    pub session_present: bool,
    /// Success or the reason of the refusal. The codes of 3.1.1 are translated: 1 to 0x84, 2 to 0x85, 3 to 0x88, 4 to
    /// 0x86, 5 to 0x87.
    pub reason: ReasonCode,
    /// The broker's explanation.
    pub text: Option<String>,
    /// The most QoS 1 messages that the broker accepts unacknowledged; 65,535 unless it announces another number.
    pub receive_maximum: u16,
    /// The largest packet that the broker accepts, in bytes.
    pub maximum_packet_size: Option<u32>,
    /// The highest QoS that the broker accepts.
    pub maximum_qos: Qos,
    /// The broker retains messages.
    pub retain_available: bool,
    /// The broker supports shared subscriptions.
    pub shared_subscriptions: bool,
    /// The broker says which subscriptions a message matches. Never in 3.1.1.
    pub subscription_ids: bool,
    /// The keep-alive time that the broker asks for instead of ours, in seconds.
    pub server_keep_alive_s: Option<u16>,
}

impl ConnAck {
    /// A new session at a broker without limits: the defaults of MQTT 5, section 3.2.2.3.
    pub fn accepting() -> Self {
        Self {
            session_present: false,
            reason: ReasonCode::SUCCESS,
            text: None,
            receive_maximum: u16::MAX,
            maximum_packet_size: None,
            maximum_qos: Qos::AtLeastOnce,
            retain_available: true,
            shared_subscriptions: true,
            subscription_ids: true,
            server_keep_alive_s: None,
        }
    }
}

/// A packet to the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutgoingPacket {
    /// The first packet of a connection.
    Connect(Connect),
    Publish {
        message: MqttMessage,
        /// Set for QoS 1.
        packet_id: Option<PacketId>,
        /// It may have been sent before.
        duplicate: bool,
    },
    /// Acknowledges a received message.
    PubAck {
        packet_id: PacketId,
        /// Success or failure. Not sent in 3.1.1.
        reason: ReasonCode,
    },
    Subscribe {
        packet_id: PacketId,
        /// At least one. A subscription with an identifier is the only one, because a packet has one identifier for all
        /// of its filters.
        subscriptions: Vec<Subscription>,
    },
    Unsubscribe {
        packet_id: PacketId,
        /// At least one.
        filters: Vec<TopicFilter>,
    },
    PingReq,
    /// Closes the connection. In 3.1.1 the reason is not sent, and the last will is published only without this packet.
    Disconnect {
        /// Success withholds the last will.
        reason: ReasonCode,
    },
}

/// The first packet of a client (section 3.1).
#[derive(Clone, PartialEq, Eq)]
pub struct Connect {
    /// The name of the session.
    pub client_id: String,
    /// Begins a new session, without the messages that the broker still has.
    pub clean_start: bool,
    /// The silence in seconds after which each side may take the other for gone. 0: never.
    pub keep_alive_s: u16,
    /// The time in seconds that the broker keeps the session after the connection ended. In 3.1.1 it is for ever, or
    /// with 0 not at all.
    pub session_expiry_s: u32,
    /// The most QoS 1 messages that this side accepts unacknowledged. MQTT 5 only.
    pub receive_maximum: u16,
    pub login: Option<(String, String)>,
    /// The message that the broker publishes when the connection breaks.
    pub will: Option<MqttMessage>,
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
    /// The highest QoS of deliveries.
    pub qos: Qos,
    /// Leaves out this client's own messages. MQTT 5 only, and never for a shared subscription.
    pub no_local: bool,
    /// The retained messages that are delivered at once. MQTT 5 only; 3.1.1 delivers all.
    pub retain_handling: RetainHandling,
    /// Comes with each message that matches the filter. MQTT 5 only.
    pub id: Option<SubscriptionId>,
}

/// Retain handling (section 3.8.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetainHandling {
    /// Deliver retained messages if the subscription is new.
    IfNew,
    /// Deliver no retained messages.
    Never,
}
