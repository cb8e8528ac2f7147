//! Properties that must hold for any bytes from a broker. The folder `fuzz/` and `tests/it/fuzz.rs` run them.

use bytes::BytesMut;

use super::codec::{CodecError, HEAD_MAX_BYTES, decode, encode, encoded_size};
use super::framing::PacketFraming;
use super::packet::{IncomingPacket, MqttVersion, OutgoingPacket, ReceivedMessage};

/// The most memory that framing may take for a short stream, in bytes: its buffer, and the head of a message.
const FRAMING_MAX_BYTES: usize = 256 * 1024 + HEAD_MAX_BYTES;

/// The result of a stream: its packets, and the error that ended it, if any.
type StreamResult = (Vec<IncomingPacket>, Option<CodecError>);

/// Takes a byte for the version, one for the size of the pieces, one for the largest message, and then the stream. True
/// when it has packets and no error.
///
/// # Panics
/// When an invariant does not hold.
pub fn mqtt_packets(data: &[u8]) -> bool {
    let Some(([version, at_once, max_packet], stream)) = data.split_first_chunk::<3>() else { return false };
    let version = if version & 1 == 0 { MqttVersion::V5 } else { MqttVersion::V311 };
    let max_packet = usize::from(*max_packet);
    let (packets, error) = read(version, stream, max_packet, stream.len());
    let cut = read(version, stream, max_packet, usize::from(*at_once) % 16 + 1);
    let accepted = !packets.is_empty() && error.is_none();
    assert_eq!(cut, (packets.clone(), error), "it depends on how the stream is cut");
    for packet in packets {
        if let IncomingPacket::Publish(received) = packet {
            check(version, received, max_packet);
        }
    }
    // Also without the framing, which makes sure that a packet is complete.
    let _ = decode(version, BytesMut::from(stream));
    accepted
}

fn read(version: MqttVersion, mut stream: &[u8], max_packet: usize, at_once: usize) -> StreamResult {
    let mut framing = PacketFraming::new(version, max_packet);
    let mut packets = Vec::new();
    while !stream.is_empty() {
        let (now, later) = stream.split_at(at_once.min(stream.len()));
        framing.buffer().extend_from_slice(now);
        assert!(
            framing.memory_bytes() <= FRAMING_MAX_BYTES + 2 * stream.len(),
            "{} bytes held",
            framing.memory_bytes()
        );
        stream = later;
        loop {
            match framing.next() {
                Ok(Some(packet)) => packets.push(packet),
                Ok(None) => break,
                Err(error) => {
                    assert!(error.to_string().len() < 2048, "{error:?}");
                    return (packets, Some(error));
                }
            }
        }
    }
    (packets, None)
}

/// Checks that a message is written as it was read.
fn check(version: MqttVersion, received: ReceivedMessage, max_packet: usize) {
    let ReceivedMessage { message, packet_id, duplicate, oversized, .. } = received;
    match oversized {
        Some(size) => assert!(size > max_packet && message.payload.is_empty()),
        None => assert!(message.payload.len() < max_packet),
    }
    let sent = OutgoingPacket::Publish { message: message.clone(), packet_id, duplicate };
    let mut bytes = BytesMut::new();
    match encode(version, &sent, &mut bytes) {
        Ok(()) => {}
        // Brokers may pass it on; this side does not send it.
        Err(CodecError::NullCharacter { .. }) => return assert!(bytes.is_empty()),
        Err(error) => unreachable!("{error}"),
    }
    assert_eq!(bytes.len(), encoded_size(version, &sent));
    match decode(version, bytes) {
        Ok(IncomingPacket::Publish(again)) => assert_eq!((again.message, again.packet_id), (message, packet_id)),
        other => unreachable!("{other:?}"),
    }
}
