//! Packets to bytes and back, through rumqttc's codec.
//!
//! Bytes from the broker are foreign: none make the codec panic, and a length is compared with the bytes at hand before
//! it is used. rumqttc writes and reads the packets with many properties. Its readers refuse reason codes that they do
//! not know, and its writers cut texts at 65,535 bytes and write a DISCONNECT with a reason wrongly, so the packets of
//! a few bytes are written and read here, and the length of texts is checked first.

mod check;
mod error;
pub(super) mod header;
mod read;
mod v311;
mod v5;

#[cfg(test)]
pub(super) mod broker;
#[cfg(test)]
mod tests;

use bytes::{Buf, BufMut, BytesMut};

use self::header::FixedHeader;
use super::packet::{IncomingPacket, MqttVersion, OutgoingPacket, ReasonCode, ReceivedMessage};

pub use self::error::CodecError;
pub(super) use self::read::{HEAD_MAX_BYTES, PacketToAcknowledge, ack_target, head_length};
pub use header::PACKET_MAX_BYTES;

/// Appends a packet to `buffer`, which is unchanged after an error.
pub fn encode(version: MqttVersion, packet: &OutgoingPacket, buffer: &mut BytesMut) -> Result<(), CodecError> {
    check::outgoing(version, packet)?;
    if write_short(version, packet, buffer) {
        return Ok(());
    }
    let before = buffer.len();
    let written = match version {
        MqttVersion::V5 => v5::write(packet, buffer),
        MqttVersion::V311 => v311::write(packet, buffer),
    };
    written.inspect_err(|_| buffer.truncate(before))
}

/// The number of bytes that [`encode`] appends, for the broker's Maximum Packet Size.
pub fn encoded_size(version: MqttVersion, packet: &OutgoingPacket) -> usize {
    let mut short = BytesMut::new();
    match version {
        _ if write_short(version, packet, &mut short) => short.len(),
        MqttVersion::V5 => v5::size(packet),
        MqttVersion::V311 => v311::size(packet),
    }
}

/// Reads a packet from the broker. `frame` is one whole packet; a payload stays a slice of it.
pub fn decode(version: MqttVersion, frame: BytesMut) -> Result<IncomingPacket, CodecError> {
    let malformed =
        || CodecError::Malformed { packet: "packet", reason: "its length differs from the announced one".into() };
    let header = FixedHeader::parse(&frame)?.filter(|header| header.total() == frame.len()).ok_or_else(malformed)?;
    let mut body = frame.freeze();
    body.advance(header.length);
    read::packet(version, header.first, body)
}

/// Writes the packets of at most five bytes; `false` for any other.
fn write_short(version: MqttVersion, packet: &OutgoingPacket, buffer: &mut BytesMut) -> bool {
    let has_reason = |reason| version == MqttVersion::V5 && reason != ReasonCode::SUCCESS;
    match *packet {
        OutgoingPacket::PubAck { packet_id, reason } => {
            let has_reason = has_reason(reason);
            buffer.put_slice(&[0x40, 2 + u8::from(has_reason)]);
            buffer.put_u16(packet_id.get());
            if has_reason {
                buffer.put_u8(reason.0);
            }
        }
        OutgoingPacket::PingReq => buffer.put_slice(&[0xC0, 0]),
        OutgoingPacket::Disconnect { reason } if has_reason(reason) => buffer.put_slice(&[0xE0, 1, reason.0]),
        OutgoingPacket::Disconnect { .. } => buffer.put_slice(&[0xE0, 0]),
        OutgoingPacket::Connect(_)
        | OutgoingPacket::Publish { .. }
        | OutgoingPacket::Subscribe { .. }
        | OutgoingPacket::Unsubscribe { .. } => {
            return false;
        }
    }
    true
}

/// Reads a message from its head (see [`head_length`]), for a payload that is skipped.
pub(super) fn publish_head(
    version: MqttVersion,
    header: FixedHeader,
    head: BytesMut,
) -> Result<ReceivedMessage, CodecError> {
    let mut received = read::publish(version, header.first, head.freeze())?;
    received.oversized = Some(header.total());
    Ok(received)
}
