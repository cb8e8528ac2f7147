//! Reasons why a packet cannot be written or read.

/// The reason why a packet cannot be written, or why bytes from the broker are not a packet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    #[error("the broker sent a malformed {packet}: {reason}")]
    Malformed { packet: &'static str, reason: String },
    /// A packet that the broker must not send, or not to this client.
    #[error("the broker sent a {packet} that violates the protocol: {reason}")]
    Protocol { packet: &'static str, reason: String },
    /// More bytes than a packet of this kind, or the topic and properties of a message, may have.
    #[error("the broker sent {packet} of {size} bytes; at most {limit} are accepted")]
    Oversized {
        /// The kind of packet, or the part of it.
        packet: &'static str,
        /// Its size in bytes.
        size: usize,
        limit: usize,
    },
    /// A text or binary value with a length that does not fit in two bytes.
    #[error("{what} has {length} bytes; MQTT allows at most 65535")]
    TooLong {
        what: &'static str,
        /// Its length in bytes.
        length: usize,
    },
    #[error("{what} has a null character, which MQTT does not allow")]
    NullCharacter { what: &'static str },
    /// A packet of this side that lacks a part, or is too large.
    #[error("the {packet} cannot be sent: {reason}")]
    Unsendable { packet: &'static str, reason: String },
}
