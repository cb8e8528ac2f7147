//! Cuts packets out of the stream from the broker, in bounded memory.
//!
//! The stream is read into one buffer that is never shared. A packet that fits it is copied out, so that a small message
//! that waits somewhere keeps its own bytes alive and no others; a larger one gets an allocation of its own, which its
//! payload stays in. The payload of a message that is too large never gets one: it is let go by as it comes.

#[cfg(test)]
mod tests;

use bytes::{Buf, BytesMut};

use super::codec::header::Header;
use super::codec::{self, Acknowledged, CodecError, MAX_HEAD};
use super::packet::{Incoming, Version};

/// What is read at once, and the largest packet that is copied, in bytes.
const CHUNK: usize = 64 * 1024;

/// The largest packet that is not a message, in bytes.
const MAX_OTHER: usize = 128 * 1024;

/// Packets out of a stream of bytes.
#[derive(Debug)]
pub struct Framing {
    version: Version,
    max_packet: usize,
    buffer: BytesMut,
    /// How large the buffer must be for the packet that has begun.
    wanted: usize,
    passing: Option<Passing>,
}

/// A message whose payload is not taken, while it goes by.
#[derive(Debug)]
struct Passing {
    /// What is delivered when it has.
    packet: Box<Incoming>,
    left: usize,
}

impl Framing {
    /// For a new stream. Of messages in packets of more than `max_packet` bytes only topic and properties are delivered.
    pub fn new(version: Version, max_packet: usize) -> Self {
        Self { version, max_packet, buffer: BytesMut::new(), wanted: CHUNK, passing: None }
    }

    /// From now on lets messages go by in packets of more than so many bytes, one that has begun included.
    pub fn set_max_packet(&mut self, max_packet: usize) {
        self.max_packet = max_packet;
    }

    /// Where the next bytes of the stream are appended, with room for some. Call [`Self::next`] until nothing comes before
    /// reading on.
    pub fn buffer(&mut self) -> &mut BytesMut {
        let length = self.buffer.len();
        // Memory is taken for what came, not for what was announced.
        let wanted = self.wanted.min(CHUNK.max(4 * length)).max(length + 1);
        if wanted > CHUNK {
            if self.buffer.capacity() < wanted {
                // No larger than the packet, whose payload is going to stay in it.
                let mut larger = BytesMut::with_capacity(wanted);
                larger.extend_from_slice(&self.buffer);
                self.buffer = larger;
            }
        } else {
            // Moves what is left to the front where that is cheap.
            self.buffer.reserve(wanted - length);
            if length == 0 && self.buffer.capacity() > 2 * CHUNK {
                self.buffer = BytesMut::with_capacity(CHUNK);
            }
        }
        &mut self.buffer
    }

    /// How many bytes of memory this takes.
    pub fn held(&self) -> usize {
        self.buffer.capacity()
    }

    /// The next packet, once it is there. After an error the stream is lost.
    #[expect(clippy::should_implement_trait, reason = "an iterator ends; a stream that has no packet yet does not")]
    pub fn next(&mut self) -> Result<Option<Incoming>, CodecError> {
        loop {
            if let Some(passing) = &mut self.passing {
                let passed = passing.left.min(self.buffer.len());
                self.buffer.advance(passed);
                passing.left -= passed;
                if passing.left > 0 {
                    return Ok(None);
                }
                return Ok(self.passing.take().map(|passed| *passed.packet));
            }
            self.wanted = CHUNK;
            let Some(header) = Header::parse(&self.buffer)? else { return Ok(None) };
            let total = header.total();
            if !header.is_publish() && total > MAX_OTHER {
                return Err(CodecError::Oversized { packet: header.name(), size: total, limit: MAX_OTHER });
            }
            if !header.is_publish() || total <= self.max_packet {
                if self.buffer.len() >= total {
                    let frame = self.take(total);
                    let acknowledged =
                        codec::acknowledged(header.first, frame.get(header.length..).unwrap_or_default());
                    return codec::decode(self.version, frame).map(Some).or_else(|error| match acknowledged {
                        Some(acknowledged) => Ok(Some(unusable(acknowledged, &error))),
                        None => Err(error),
                    });
                }
                self.wanted = CHUNK.max(total);
                return Ok(None);
            }
            let Some((packet, head)) = self.head_of_passing(header)? else { return Ok(None) };
            self.passing = Some(Passing { packet: Box::new(packet), left: header.remaining - head });
        }
    }

    /// What is delivered of a message that is let go by, and how much of it is out of the buffer, once that is known.
    fn head_of_passing(&mut self, header: Header) -> Result<Option<(Incoming, usize)>, CodecError> {
        let body = self.buffer.get(header.length..).unwrap_or_default();
        // Behind the topic, so it is there before a head is known to be unusable.
        let acknowledged = codec::acknowledged(header.first, body);
        let head = match self.head(header) {
            Ok(Some(head)) => head,
            Ok(None) => return Ok(None),
            Err(error) => {
                let packet = unusable(acknowledged.ok_or_else(|| error.clone())?, &error);
                self.buffer.advance(header.length);
                return Ok(Some((packet, 0)));
            }
        };
        self.buffer.advance(header.length);
        let packet = match codec::publish_head(self.version, header, self.take(head)) {
            Ok(received) => Incoming::Publish(received),
            Err(error) => unusable(acknowledged.ok_or_else(|| error.clone())?, &error),
        };
        Ok(Some((packet, head)))
    }

    /// How long the head of a message is, once all of it is there.
    fn head(&mut self, header: Header) -> Result<Option<usize>, CodecError> {
        let body = self.buffer.get(header.length..).unwrap_or_default();
        let length = codec::head_length(self.version, header.first, header.remaining, body)?;
        match length {
            Some(length) if length <= body.len() => Ok(Some(length)),
            _ => {
                self.wanted = length.map_or(CHUNK, |length| CHUNK.max(header.length + length)).min(MAX_HEAD + CHUNK);
                Ok(None)
            }
        }
    }

    /// The first bytes, in memory of their own.
    fn take(&mut self, length: usize) -> BytesMut {
        let (frame, rest) = self.buffer.split_at(length);
        if length <= CHUNK || self.buffer.capacity() - length > CHUNK {
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

fn unusable(Acknowledged(packet_id): Acknowledged, error: &CodecError) -> Incoming {
    Incoming::Unusable { packet_id, reason: error.to_string() }
}
