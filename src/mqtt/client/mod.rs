//! An MQTT client: packets, the session and the connection. It knows nothing of inference.

pub mod codec;
pub mod connection;
pub mod framing;
pub mod fuzz;
pub mod packet;
pub mod session;
