//! Splits the stream from the broker into packets, in bounded memory.
//!
//! The stream is read into one buffer that is never shared. A packet that fits it is copied out, so that a small
//! message that waits keeps only its own bytes alive; a larger one gets a separate allocation, in which its payload
//! stays. The payload of a message that is too large is skipped as it arrives, without an allocation.

#[cfg(test)]
mod tests;

use bytes::{Buf, BytesMut};

use super::codec::header::FixedHeader;
use super::codec::{self, CodecError, HEAD_MAX_BYTES, PacketToAcknowledge};
use super::packet::{IncomingPacket, MqttVersion};

/// The size of the read buffer, and the largest packet that is copied out of it, in bytes.
const READ_BUFFER_BYTES: usize = 64 * 1024;

/// The largest packet other than PUBLISH, in bytes.
const OTHER_PACKET_MAX_BYTES: usize = 128 * 1024;

/// Splits a stream of bytes into packets.
#[derive(Debug)]
pub struct PacketFraming {
    version: MqttVersion,
    max_packet: usize,
    buffer: BytesMut,
    /// The size that the buffer needs for the packet that has begun.
    wanted: usize,
    skipping: Option<SkippedMessage>,
}

/// A message while its payload is skipped.
#[derive(Debug)]
struct SkippedMessage {
    /// The packet to deliver afterwards.
    packet: Box<IncomingPacket>,
    left: usize,
}

impl PacketFraming {
    /// Begins a new stream. Messages in packets of more than `max_packet` bytes are delivered without their payload.
    pub fn new(version: MqttVersion, max_packet: usize) -> Self {
        Self { version, max_packet, buffer: BytesMut::new(), wanted: READ_BUFFER_BYTES, skipping: None }
    }

    /// From now on skips the payload of messages in packets of more than this many bytes, including one that has begun.
    pub fn set_max_packet(&mut self, max_packet: usize) {
        self.max_packet = max_packet;
    }

    /// The buffer to append the next bytes of the stream to, with spare capacity. Call [`Self::next`] until it returns
    /// nothing before reading on.
    pub fn buffer(&mut self) -> &mut BytesMut {
        let length = self.buffer.len();
        // Allocate for the bytes that came, not for those that were announced.
        let wanted = self.wanted.min(READ_BUFFER_BYTES.max(4 * length)).max(length + 1);
        if wanted > READ_BUFFER_BYTES {
            if self.buffer.capacity() < wanted {
                // Exactly as large as the packet, because the payload stays in it.
                let mut larger = BytesMut::with_capacity(wanted);
                larger.extend_from_slice(&self.buffer);
                self.buffer = larger;
            }
        } else {
            // Moves the rest to the front where that is cheap.
            self.buffer.reserve(wanted - length);
            if length == 0 && self.buffer.capacity() > 2 * READ_BUFFER_BYTES {
                self.buffer = BytesMut::with_capacity(READ_BUFFER_BYTES);
            }
        }
        &mut self.buffer
    }

    /// The memory that this takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// The next packet, once it is complete. After an error the stream is lost.
    #[expect(clippy::should_implement_trait, reason = "an iterator ends; a stream that has no packet yet does not")]
    pub fn next(&mut self) -> Result<Option<IncomingPacket>, CodecError> {
        loop {
            if let Some(skipping) = &mut self.skipping {
                let passed = skipping.left.min(self.buffer.len());
                self.buffer.advance(passed);
                skipping.left -= passed;
                if skipping.left > 0 {
                    return Ok(None);
                }
                return Ok(self.skipping.take().map(|skipped| *skipped.packet));
            }

            self.wanted = READ_BUFFER_BYTES;
            let Some(header) = FixedHeader::parse(&self.buffer)? else { return Ok(None) };
            let total = header.total();
            if !header.is_publish() && total > OTHER_PACKET_MAX_BYTES {
                return Err(CodecError::Oversized {
                    packet: header.name(),
                    size: total,
                    limit: OTHER_PACKET_MAX_BYTES,
                });
            }
            if !header.is_publish() || total <= self.max_packet {
                if self.buffer.len() >= total {
                    let frame = self.take(total);
                    let ack_target = codec::ack_target(header.first, frame.get(header.length..).unwrap_or_default());
                    return codec::decode(self.version, frame).map(Some).or_else(|error| match ack_target {
                        Some(ack_target) => Ok(Some(unusable(ack_target, &error))),
                        None => Err(error),
                    });
                }
                self.wanted = READ_BUFFER_BYTES.max(total);
                return Ok(None);
            }
            let Some((packet, head)) = self.begin_skipping(header)? else { return Ok(None) };
            self.skipping = Some(SkippedMessage { packet: Box::new(packet), left: header.remaining - head });
        }
    }

    /// The packet to deliver for a message that is skipped, and the bytes of it that are out of the buffer, once the
    /// head is complete.
    fn begin_skipping(&mut self, header: FixedHeader) -> Result<Option<(IncomingPacket, usize)>, CodecError> {
        let body = self.buffer.get(header.length..).unwrap_or_default();
        // The packet id comes after the topic, so it is there before a head is known to be unreadable.
        let ack_target = codec::ack_target(header.first, body);
        let head = match self.head(header) {
            Ok(Some(head)) => head,
            Ok(None) => return Ok(None),
            Err(error) => {
                let packet = unusable(ack_target.ok_or_else(|| error.clone())?, &error);
                self.buffer.advance(header.length);
                return Ok(Some((packet, 0)));
            }
        };
        self.buffer.advance(header.length);
        let packet = match codec::publish_head(self.version, header, self.take(head)) {
            Ok(received) => IncomingPacket::Publish(received),
            Err(error) => unusable(ack_target.ok_or_else(|| error.clone())?, &error),
        };
        Ok(Some((packet, head)))
    }

    /// The length of the head of a message, once all of it is there.
    fn head(&mut self, header: FixedHeader) -> Result<Option<usize>, CodecError> {
        let body = self.buffer.get(header.length..).unwrap_or_default();
        let length = codec::head_length(self.version, header.first, header.remaining, body)?;
        match length {
            Some(length) if length <= body.len() => Ok(Some(length)),
            _ => {
                self.wanted = length
                    .map_or(READ_BUFFER_BYTES, |length| READ_BUFFER_BYTES.max(header.length + length))
                    .min(HEAD_MAX_BYTES + READ_BUFFER_BYTES);
                Ok(None)
            }
        }
    }

    /// Takes the first bytes of the buffer, in separate memory.
    fn take(&mut self, length: usize) -> BytesMut {
        let (frame, rest) = self.buffer.split_at(length);
        if length <= READ_BUFFER_BYTES || self.buffer.capacity() - length > READ_BUFFER_BYTES {
            let frame = BytesMut::from(frame);
            self.buffer.advance(length);
            return frame;
        }
        let rest = BytesMut::from(rest);
        let mut frame = std::mem::replace(&mut self.buffer, rest);
        frame.truncate(length);
        frame
    }
}

fn unusable(PacketToAcknowledge(packet_id): PacketToAcknowledge, error: &CodecError) -> IncomingPacket {
    IncomingPacket::Unusable { packet_id, reason: error.to_string() }
}
