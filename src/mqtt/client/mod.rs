//! An MQTT client: packets, the session and the connection. It knows nothing of inference.
//!
//! In reading order: [`packet`] has the packets; [`receipt`] the end of a published message; [`session`] the messages
//! to send and the acknowledgements due, without a connection; [`codec`] writes and reads packets; [`framing`] splits a
//! stream into packets; [`connection`] does both over `egress`.

pub mod codec;
pub mod connection;
pub mod framing;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod packet;
pub mod receipt;
pub mod session;
