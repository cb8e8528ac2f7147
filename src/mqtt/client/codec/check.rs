//! Checks a packet before it is written: rumqttc checks little, and a broker closes the connection after a wrong one.

use super::CodecError;
use crate::client::packet::{Connect, Message, Outgoing, Properties, Qos, Version};

/// The longest text or binary value, in bytes.
const VALUE_MAX_BYTES: usize = 65_535;

pub(super) fn outgoing(version: Version, packet: &Outgoing) -> Result<(), CodecError> {
    let missing = |packet, reason: &str| Err(CodecError::Unsendable { packet, reason: reason.into() });
    match packet {
        Outgoing::Connect(connect) => self::connect(version, connect),
        Outgoing::Publish { message, packet_id: None, .. } if message.qos == Qos::AtLeastOnce => {
            missing("PUBLISH", "QoS 1 needs a packet id, and it has none")
        }
        Outgoing::Publish { message, .. } => self::message(version, message),
        Outgoing::Subscribe { subscriptions, .. } if subscriptions.is_empty() => missing("SUBSCRIBE", "it is empty"),
        Outgoing::Subscribe { subscriptions, .. } if subscriptions.iter().skip(1).any(|next| next.id.is_some()) => {
            missing("SUBSCRIBE", "a subscription identifier is for all of its filters")
        }
        Outgoing::Unsubscribe { filters, .. } if filters.is_empty() => missing("UNSUBSCRIBE", "it is empty"),
        // Topics and filters are valid by construction.
        Outgoing::Subscribe { .. }
        | Outgoing::Unsubscribe { .. }
        | Outgoing::PubAck { .. }
        | Outgoing::PingReq
        | Outgoing::Disconnect { .. } => Ok(()),
    }
}

fn connect(version: Version, connect: &Connect) -> Result<(), CodecError> {
    text("the client id", &connect.client_id)?;
    if let Some((user, password)) = &connect.login {
        text("the user name", user)?;
        length("the password", password.as_bytes())?;
        if version == Version::V311 && user.is_empty() && !password.is_empty() {
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

fn message(version: Version, message: &Message) -> Result<(), CodecError> {
    match version {
        Version::V5 => properties(&message.properties),
        Version::V311 => Ok(()),
    }
}

fn properties(properties: &Properties) -> Result<(), CodecError> {
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
