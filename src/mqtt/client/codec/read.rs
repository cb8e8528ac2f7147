//! Reads packets from the broker. Lengths are checked here, so that rumqttc reads properties from exactly their bytes.

use bytes::{Buf, Bytes, BytesMut};
use rumqttc::v5::mqttbytes::v5 as wire;

use super::CodecError;
use super::header::{PUBLISH, malformed, protocol, put_variable_byte_integer, variable_byte_integer};
use crate::client::packet::{
    ConnAck, IncomingPacket, MessageProperties, MqttMessage, MqttVersion, PacketId, Qos, ReasonCode, ReceivedMessage,
    SubscriptionId,
};

/// The most bytes for the topic and the properties of a message. Each user property becomes two separate allocations,
/// several times its size on the wire.
pub(in crate::client) const HEAD_MAX_BYTES: usize = 128 * 1024;

const CONNACK: u8 = 2;
const PUBACK: u8 = 4;
const SUBACK: u8 = 9;
const UNSUBACK: u8 = 11;
const PINGRESP: u8 = 13;
const DISCONNECT: u8 = 14;

pub(super) fn packet(version: MqttVersion, first: u8, mut body: Bytes) -> Result<IncomingPacket, CodecError> {
    let kind = first >> 4;
    match kind {
        PUBLISH => return publish(version, first, body).map(IncomingPacket::Publish),
        CONNACK | PUBACK | SUBACK | UNSUBACK | PINGRESP => {}
        DISCONNECT if version == MqttVersion::V5 => {}
        5..=7 => return Err(protocol(kind, "QoS 2 was never granted")),
        15 => return Err(protocol(kind, "no authentication method was asked for")),
        _ => return Err(protocol(kind, "only a client sends it")),
    }
    if first & 0x0F != 0 {
        return Err(malformed(kind, "its reserved flags are set"));
    }
    let body = &mut body;
    match kind {
        CONNACK => connack(version, body).map(IncomingPacket::ConnAck),
        PUBACK => {
            Ok(IncomingPacket::PubAck { packet_id: packet_id(kind, body)?, reason: puback_reason(version, body)? })
        }
        SUBACK => suback(version, body),
        UNSUBACK => Ok(IncomingPacket::UnsubAck { packet_id: packet_id(kind, body)? }),
        DISCONNECT => Ok(disconnect(body)),
        _ if body.is_empty() => Ok(IncomingPacket::PingResp),
        _ => Err(malformed(kind, "it is not empty")),
    }
}

/// The packet to acknowledge for a PUBLISH: none for QoS 0.
#[derive(Debug, Clone, Copy)]
pub(in crate::client) struct PacketToAcknowledge(pub Option<PacketId>);

/// The packet to acknowledge for a PUBLISH that may be wrong in other parts; `None` where it cannot be read. `body` has
/// the bytes at hand after the fixed header.
pub(in crate::client) fn ack_target(first: u8, body: &[u8]) -> Option<PacketToAcknowledge> {
    match (first >> 1) & 0b11 {
        0 => Some(PacketToAcknowledge(None)),
        1 => {
            let topic = usize::from(u16::from_be_bytes(*body.first_chunk::<2>()?));
            let id = body.get(2 + topic..)?.first_chunk::<2>()?;
            PacketId::new(u16::from_be_bytes(*id)).map(|id| PacketToAcknowledge(Some(id)))
        }
        _ => None,
    }
}

/// The length of the topic, packet id and properties of a PUBLISH, which are everything before its payload; `None`
/// while too few bytes are there. `remaining` is the length of the packet after its fixed header, `body` the bytes of
/// it at hand.
pub(in crate::client) fn head_length(
    version: MqttVersion,
    first: u8,
    remaining: usize,
    body: &[u8],
) -> Result<Option<usize>, CodecError> {
    let longer = |length: usize| length > remaining;
    let fits = |length: usize| match length {
        length if longer(length) => Err(malformed(PUBLISH, "it ends within its topic or properties")),
        length if length > HEAD_MAX_BYTES => Err(CodecError::Oversized {
            packet: "the topic and properties of a PUBLISH",
            size: length,
            limit: HEAD_MAX_BYTES,
        }),
        length => Ok(length),
    };
    let Some(topic) = body.first_chunk::<2>() else { return fits(2).map(|_| None) };
    let packet_id = if first & 0b0110 == 0 { 0 } else { 2 };
    let mut length = fits(2 + usize::from(u16::from_be_bytes(*topic)) + packet_id)?;
    if version == MqttVersion::V5 {
        fits(length + 1)?;
        let properties = variable_byte_integer(body.get(length..).unwrap_or_default());
        let Some((properties, width)) = properties.map_err(|reason| malformed(PUBLISH, reason))? else {
            return Ok(None);
        };
        length = fits(length + width + properties)?;
    }
    Ok(Some(length))
}

/// Reads a message from the bytes after the fixed header.
pub(super) fn publish(version: MqttVersion, first: u8, mut body: Bytes) -> Result<ReceivedMessage, CodecError> {
    let cut = || malformed(PUBLISH, "it ends within its topic or properties");
    let qos = match (first >> 1) & 0b11 {
        0 => Qos::AtMostOnce,
        1 => Qos::AtLeastOnce,
        2 => return Err(protocol(PUBLISH, "QoS 2 was never granted")),
        _ => return Err(malformed(PUBLISH, "QoS 3 does not exist")),
    };
    let head = head_length(version, first, body.len(), &body)?.ok_or_else(cut)?;
    let mut head = body.split_to(head);
    let topic = usize::from(u16(&mut head).ok_or_else(cut)?);
    let topic = head.split_to(topic);
    let topic = std::str::from_utf8(&topic).map_err(|_| malformed(PUBLISH, "its topic is not UTF-8"))?;
    if topic.is_empty() {
        return Err(protocol(PUBLISH, "it has no topic, and topic aliases were not offered"));
    }
    let topic = topic.parse().map_err(|invalid| protocol(PUBLISH, format!("{invalid}")))?;
    let packet_id = match qos {
        Qos::AtMostOnce => None,
        Qos::AtLeastOnce => Some(packet_id(PUBLISH, &mut head)?),
    };
    let (properties, subscription_ids) = match version {
        MqttVersion::V5 => publish_properties(&head)?,
        MqttVersion::V311 => (MessageProperties::default(), Vec::new()),
    };
    let message = MqttMessage { topic, payload: body, qos, retain: first & 1 != 0, properties };
    Ok(ReceivedMessage { message, packet_id, duplicate: first & 0b1000 != 0, oversized: None, subscription_ids })
}

/// Reads the properties and the subscription identifiers. `section` has their length and the properties.
fn publish_properties(section: &Bytes) -> Result<(MessageProperties, Vec<SubscriptionId>), CodecError> {
    let unreadable = |error: &dyn std::fmt::Display| malformed(PUBLISH, format!("its properties: {error}"));
    let (length, width) = variable_byte_integer(section).ok().flatten().unwrap_or_default();
    let mut counted = length;
    let mut unread = section.clone();
    let read = loop {
        let read = wire::PublishProperties::read(&mut unread).map_err(|error| unreadable(&error))?;
        let read = read.unwrap_or_default();
        // rumqttc counts one byte too many for each subscription identifier, and so stops too early: it is called again
        // with a length that makes up for those seen. It gets only the section, so it reads nothing beyond.
        let again = length + read.subscription_identifiers.len();
        if unread.is_empty() {
            break read;
        } else if again == counted {
            return Err(unreadable(&"they are longer than announced"));
        }
        counted = again;
        unread = with_length(counted, section.get(width..).unwrap_or_default());
    };
    let id = |id: &usize| u32::try_from(*id).ok().and_then(SubscriptionId::new);
    let ids = read.subscription_identifiers.iter().filter_map(id).collect();
    let properties = MessageProperties {
        response_topic: read.response_topic,
        // Copied: it is kept until the answer, and a slice would keep the whole packet in memory.
        correlation_data: read.correlation_data.map(|data| Bytes::copy_from_slice(&data)),
        content_type: read.content_type,
        message_expiry_s: read.message_expiry_interval,
        user: read.user_properties,
    };
    Ok((properties, ids))
}

fn with_length(length: usize, rest: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(4 + rest.len());
    put_variable_byte_integer(&mut bytes, length);
    bytes.extend_from_slice(rest);
    bytes.freeze()
}

fn connack(version: MqttVersion, body: &mut Bytes) -> Result<ConnAck, CodecError> {
    let cut = || malformed(CONNACK, "it is too short");
    let flags = u8(body).ok_or_else(cut)?;
    let reason = connack_reason(u8(body).ok_or_else(cut)?);
    let properties = match version {
        // A broker of 3.1.1 that does not support MQTT 5 refuses it in two bytes.
        MqttVersion::V5 if !body.is_empty() => match wire::ConnAckProperties::read(&mut section(CONNACK, body)?) {
            Ok(properties) => properties,
            // The reason of a refusal is worth more than its properties.
            Err(_) if reason.is_failure() => None,
            Err(error) => return Err(malformed(CONNACK, format!("its properties: {error}"))),
        },
        _ => None,
    };
    let properties = properties.as_ref();
    let receive_maximum = properties.and_then(|all| all.receive_max).unwrap_or(u16::MAX);
    let maximum_packet_size = properties.and_then(|all| all.max_packet_size);
    if receive_maximum == 0 || maximum_packet_size == Some(0) {
        return Err(protocol(CONNACK, "its Receive Maximum or Maximum Packet Size is 0"));
    }
    Ok(ConnAck {
        session_present: flags & 1 != 0 && !reason.is_failure(),
        reason,
        text: properties.and_then(|all| all.reason_string.clone()),
        receive_maximum,
        maximum_packet_size,
        maximum_qos: match properties.and_then(|all| all.max_qos) {
            Some(0) => Qos::AtMostOnce,
            _ => Qos::AtLeastOnce,
        },
        retain_available: properties.and_then(|all| all.retain_available) != Some(0),
        shared_subscriptions: properties.and_then(|all| all.shared_subscription_available) != Some(0),
        subscription_ids: version == MqttVersion::V5
            && properties.and_then(|all| all.subscription_identifiers_available) != Some(0),
        server_keep_alive_s: properties.and_then(|all| all.server_keep_alive),
    })
}

/// Translates the codes of 3.1.1, in MQTT 5 too: a broker that does not support MQTT 5 refuses it with them.
fn connack_reason(code: u8) -> ReasonCode {
    match code {
        1 => ReasonCode::UNSUPPORTED_VERSION,
        2 => ReasonCode(0x85),
        3 => ReasonCode(0x88),
        4 => ReasonCode::BAD_USER_OR_PASSWORD,
        5 => ReasonCode::NOT_AUTHORIZED,
        // Only zero accepts the connection.
        6..0x80 => ReasonCode::UNSPECIFIED_ERROR,
        code => ReasonCode(code),
    }
}

/// Reads the reason after the packet id. Properties only explain it, and are not read.
fn puback_reason(version: MqttVersion, body: &mut Bytes) -> Result<ReasonCode, CodecError> {
    match version {
        MqttVersion::V5 => Ok(u8(body).map_or(ReasonCode::SUCCESS, ReasonCode)),
        MqttVersion::V311 if body.is_empty() => Ok(ReasonCode::SUCCESS),
        MqttVersion::V311 => Err(malformed(PUBACK, "it is too long")),
    }
}

fn suback(version: MqttVersion, body: &mut Bytes) -> Result<IncomingPacket, CodecError> {
    let packet_id = packet_id(SUBACK, body)?;
    if version == MqttVersion::V5 {
        section(SUBACK, body)?;
    }
    if body.is_empty() {
        return Err(malformed(SUBACK, "it has no reason codes"));
    }
    Ok(IncomingPacket::SubAck { packet_id, reasons: body.iter().copied().map(ReasonCode).collect() })
}

/// Reads a DISCONNECT. Never an error: the connection ends in any case.
fn disconnect(body: &mut Bytes) -> IncomingPacket {
    let reason = u8(body).map_or(ReasonCode::SUCCESS, ReasonCode);
    // rumqttc reports an error for a packet without properties; here it counts as none.
    let properties = wire::DisconnectProperties::extract(body).ok().flatten();
    IncomingPacket::Disconnect { reason, text: properties.and_then(|properties| properties.reason_string) }
}

fn packet_id(kind: u8, body: &mut Bytes) -> Result<PacketId, CodecError> {
    let number = u16(body).ok_or_else(|| malformed(kind, "it ends within its packet id"))?;
    PacketId::new(number).ok_or_else(|| protocol(kind, "its packet id is 0"))
}

/// Takes the properties and their length from the body.
fn section(kind: u8, body: &mut Bytes) -> Result<Bytes, CodecError> {
    let (length, width) = variable_byte_integer(body)
        .map_err(|reason| malformed(kind, reason))?
        .filter(|(length, width)| length + width <= body.len())
        .ok_or_else(|| malformed(kind, "it ends within its properties"))?;
    Ok(body.split_to(length + width))
}

fn u8(body: &mut Bytes) -> Option<u8> {
    body.try_get_u8().ok()
}

fn u16(body: &mut Bytes) -> Option<u16> {
    body.try_get_u16().ok()
}
