//! Packets to bytes and back, through rumqttc's codec.
//!
//! What comes from the broker is foreign: no bytes panic, and a length is believed only after it was compared with what is
//! there. rumqttc writes and reads the packets with many properties; its readers refuse reason codes that they do not
//! know, and its writers cut texts at 65,535 bytes and write a DISCONNECT with a reason wrongly, so the packets of a few
//! bytes are written and read here, and texts are measured first.

mod check;
pub(super) mod header;
mod read;
mod v311;
mod v5;

#[cfg(test)]
pub(super) mod broker;
#[cfg(test)]
mod tests;

use bytes::{Buf, BufMut, BytesMut};

use self::header::Header;
use super::packet::{Incoming, Outgoing, Reason, Received, Version};

pub(super) use self::read::{Acknowledged, MAX_HEAD, acknowledged, head_length};

/// The largest packet that can be written, in bytes: the lengths of MQTT have 28 bits.
pub const MAX_PACKET: usize = 1 + 4 + header::MAX_VALUE;

/// Why a packet cannot be written, or why bytes from the broker are none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    #[error("the broker sent a malformed {packet}: {reason}")]
    Malformed {
        packet: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A packet that the broker may not send, or not to this client.
    #[error("the broker sent {packet}, against the protocol: {reason}")]
    Protocol {
        packet: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// More bytes than such a packet, or the topic and properties of a message, may have.
    #[error("the broker sent {packet} of {size} bytes where {limit} are allowed")]
    Oversized {
        /// The kind of packet, or the part of it.
        packet: &'static str,
        /// Its size in bytes.
        size: usize,
        limit: usize,
    },
    /// A text or binary value does not fit the two bytes of its length.
    #[error("{what} has {length} bytes; MQTT allows 65535")]
    TooLong {
        what: &'static str,
        /// Its length in bytes.
        length: usize,
    },
    #[error("{what} has a null character, which MQTT does not allow")]
    NullCharacter { what: &'static str },
    /// The packet that was to be sent lacks something, or has too much.
    #[error("{packet} cannot be sent: {reason}")]
    Unsendable {
        packet: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

/// Appends a packet to `buffer`, which an error leaves as it was.
pub fn encode(version: Version, packet: &Outgoing, buffer: &mut BytesMut) -> Result<(), CodecError> {
    check::outgoing(version, packet)?;
    if write_short(version, packet, buffer) {
        return Ok(());
    }
    let before = buffer.len();
    let written = match version {
        Version::V5 => v5::write(packet, buffer),
        Version::V311 => v311::write(packet, buffer),
    };
    written.inspect_err(|_| buffer.truncate(before))
}

/// How many bytes [`encode`] appends, for the broker's Maximum Packet Size.
pub fn encoded_size(version: Version, packet: &Outgoing) -> usize {
    let mut short = BytesMut::new();
    match version {
        _ if write_short(version, packet, &mut short) => short.len(),
        Version::V5 => v5::size(packet),
        Version::V311 => v311::size(packet),
    }
}

/// Reads a packet from the broker. `frame` is one whole packet; a payload stays a slice of it.
pub fn decode(version: Version, frame: BytesMut) -> Result<Incoming, CodecError> {
    let malformed = || CodecError::Malformed { packet: "packet", reason: "its length is not the announced one".into() };
    let header = Header::parse(&frame)?.filter(|header| header.total() == frame.len()).ok_or_else(malformed)?;
    let mut body = frame.freeze();
    body.advance(header.length);
    read::packet(version, header.first, body)
}

/// Writes the packets of at most five bytes; `false` for any other.
fn write_short(version: Version, packet: &Outgoing, buffer: &mut BytesMut) -> bool {
    let told = |reason| version == Version::V5 && reason != Reason::SUCCESS;
    match *packet {
        Outgoing::PubAck { packet_id, reason } => {
            let told = told(reason);
            buffer.put_slice(&[0x40, 2 + u8::from(told)]);
            buffer.put_u16(packet_id.get());
            if told {
                buffer.put_u8(reason.0);
            }
        }
        Outgoing::PingReq => buffer.put_slice(&[0xC0, 0]),
        Outgoing::Disconnect { reason } if told(reason) => buffer.put_slice(&[0xE0, 1, reason.0]),
        Outgoing::Disconnect { .. } => buffer.put_slice(&[0xE0, 0]),
        Outgoing::Connect(_) | Outgoing::Publish { .. } | Outgoing::Subscribe { .. } | Outgoing::Unsubscribe { .. } => {
            return false;
        }
    }
    true
}

/// A message whose payload was let go by, from its head (see [`head_length`]).
pub(super) fn publish_head(version: Version, header: Header, head: BytesMut) -> Result<Received, CodecError> {
    let mut received = read::publish(version, header.first, head.freeze())?;
    received.oversized = Some(header.total());
    Ok(received)
}
