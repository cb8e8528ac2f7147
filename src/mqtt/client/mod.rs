//! An MQTT client: packets, the session and the connection. It knows nothing of inference.
//!
//! In reading order: [`packet`] has what is said, [`session`] what is to be said and what is owed, without a connection;
//! [`codec`] writes and reads packets, [`framing`] cuts them out of a stream, [`connection`] does both over `egress`.

pub mod codec;
pub mod connection;
pub mod framing;
pub mod fuzz;
pub mod packet;
pub mod session;
