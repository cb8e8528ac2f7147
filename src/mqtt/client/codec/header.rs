//! The fixed header at the beginning of every packet, and variable byte integers (sections 1.5.5 and 2.1).

use bytes::{BufMut, BytesMut};

use super::CodecError;

/// The largest number that a variable byte integer holds: four bytes of seven bits.
pub const VARIABLE_INTEGER_MAX: usize = 268_435_455;

/// The packet type of a message.
pub(super) const PUBLISH: u8 = 3;

/// The largest packet, in bytes: the lengths of MQTT have 28 bits.
pub const PACKET_MAX_BYTES: usize = 1 + 4 + VARIABLE_INTEGER_MAX;

/// The first bytes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedHeader {
    /// The packet type and its flags.
    pub first: u8,
    /// The length of this header, in bytes.
    pub length: usize,
    /// The length of the rest of the packet, in bytes.
    pub remaining: usize,
}

impl FixedHeader {
    /// Reads it from the beginning of a packet; `None` while it is incomplete.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, CodecError> {
        let Some((&first, rest)) = bytes.split_first() else { return Ok(None) };
        let number = variable_byte_integer(rest).map_err(|reason| malformed(first >> 4, reason))?;
        Ok(number.map(|(remaining, width)| Self { first, length: 1 + width, remaining }))
    }

    /// The packet's size in bytes.
    pub fn total(self) -> usize {
        self.length + self.remaining
    }

    /// Returns `true` if the packet is a message.
    pub fn is_publish(self) -> bool {
        self.first >> 4 == PUBLISH
    }

    /// The name of the packet type.
    pub fn name(self) -> &'static str {
        name(self.first >> 4)
    }
}

/// The number at the beginning and its length in bytes; `None` while it is incomplete.
pub(super) fn variable_byte_integer(bytes: &[u8]) -> Result<Option<(usize, usize)>, &'static str> {
    let mut number = 0;
    for (at, byte) in bytes.iter().take(4).enumerate() {
        number |= usize::from(byte & 0x7F) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((number, at + 1)));
        }
    }
    if bytes.len() < 4 { Ok(None) } else { Err("a length has more than four bytes") }
}

/// Appends a number of at most [`VARIABLE_INTEGER_MAX`].
pub(super) fn put_variable_byte_integer(buffer: &mut BytesMut, mut number: usize) {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            return buffer.put_u8(low & 0x7F);
        }
        buffer.put_u8(low | 0x80);
    }
}

/// The name of a packet type.
pub(super) fn name(kind: u8) -> &'static str {
    const NAMES: [&str; 16] = [
        "packet of type 0",
        "CONNECT",
        "CONNACK",
        "PUBLISH",
        "PUBACK",
        "PUBREC",
        "PUBREL",
        "PUBCOMP",
        "SUBSCRIBE",
        "SUBACK",
        "UNSUBSCRIBE",
        "UNSUBACK",
        "PINGREQ",
        "PINGRESP",
        "DISCONNECT",
        "AUTH",
    ];
    NAMES.get(usize::from(kind)).copied().unwrap_or("packet")
}

pub(super) fn malformed(kind: u8, reason: impl Into<String>) -> CodecError {
    CodecError::Malformed { packet: name(kind), reason: reason.into() }
}

pub(super) fn protocol(kind: u8, reason: impl Into<String>) -> CodecError {
    CodecError::Protocol { packet: name(kind), reason: reason.into() }
}
