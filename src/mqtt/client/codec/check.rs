//! Checks a packet before it is written: rumqttc checks little, and a broker closes the connection after a wrong one.

use super::CodecError;
use crate::client::packet::{Connect, MessageProperties, MqttMessage, MqttVersion, OutgoingPacket, Qos};

/// The longest text or binary value, in bytes.
const VALUE_MAX_BYTES: usize = 65_535;

pub(super) fn outgoing(version: MqttVersion, packet: &OutgoingPacket) -> Result<(), CodecError> {
    let missing = |packet, reason: &str| Err(CodecError::Unsendable { packet, reason: reason.into() });
    match packet {
        OutgoingPacket::Connect(connect) => self::connect(version, connect),
        OutgoingPacket::Publish { message, packet_id: None, .. } if message.qos == Qos::AtLeastOnce => {
            missing("PUBLISH", "QoS 1 needs a packet id, and it has none")
        }
        OutgoingPacket::Publish { message, .. } => self::message(version, message),
        OutgoingPacket::Subscribe { subscriptions, .. } if subscriptions.is_empty() => {
            missing("SUBSCRIBE", "it is empty")
        }
        OutgoingPacket::Subscribe { subscriptions, .. }
            if subscriptions.iter().skip(1).any(|next| next.id.is_some()) =>
        {
            missing("SUBSCRIBE", "a subscription identifier is for all of its filters")
        }
        OutgoingPacket::Unsubscribe { filters, .. } if filters.is_empty() => missing("UNSUBSCRIBE", "it is empty"),
        // Topics and filters are valid by construction.
        OutgoingPacket::Subscribe { .. }
        | OutgoingPacket::Unsubscribe { .. }
        | OutgoingPacket::PubAck { .. }
        | OutgoingPacket::PingReq
        | OutgoingPacket::Disconnect { .. } => Ok(()),
    }
}

fn connect(version: MqttVersion, connect: &Connect) -> Result<(), CodecError> {
    text("the client id", &connect.client_id)?;
    if let Some((user, password)) = &connect.login {
        text("the user name", user)?;
        length("the password", password.as_bytes())?;
        if version == MqttVersion::V311 && user.is_empty() && !password.is_empty() {
            let reason = "MQTT 3.1.1 allows no password without a user name".into();
            return Err(CodecError::Unsendable { packet: "CONNECT", reason });
        }
    }
    if let Some(will) = &connect.will {
        length("the payload of the last will", &will.payload)?;
        message(version, will)?;
    }
    Ok(())
}

fn message(version: MqttVersion, message: &MqttMessage) -> Result<(), CodecError> {
    match version {
        MqttVersion::V5 => properties(&message.properties),
        MqttVersion::V311 => Ok(()),
    }
}

fn properties(properties: &MessageProperties) -> Result<(), CodecError> {
    if let Some(topic) = &properties.response_topic {
        text("the response topic", topic)?;
    }
    if let Some(data) = &properties.correlation_data {
        length("the correlation data", data)?;
    }
    if let Some(kind) = &properties.content_type {
        text("the content type", kind)?;
    }
    for (name, value) in &properties.user {
        text("the name of a user property", name)?;
        text("the value of a user property", value)?;
    }
    Ok(())
}

fn text(what: &'static str, text: &str) -> Result<(), CodecError> {
    length(what, text.as_bytes())?;
    if text.contains('\0') { Err(CodecError::NullCharacter { what }) } else { Ok(()) }
}

fn length(what: &'static str, bytes: &[u8]) -> Result<(), CodecError> {
    match bytes.len() {
        length if length > VALUE_MAX_BYTES => Err(CodecError::TooLong { what, length }),
        _ => Ok(()),
    }
}
