//! The Open Inference Protocol: JSON and binary tensors <-> our types, and the table from errors to status codes.
//!
//! It knows no transport: bytes and a few header values come in, bytes go out, so HTTP and MQTT share it ([`call`]). Whatever leaves
//! [`decode_request`] is valid as far as it can be without the model.
#![forbid(unsafe_code)]

pub mod call;
pub mod decode;
pub mod encode;
pub mod error;
pub mod feast;
pub mod fuzz;
pub mod metadata;
pub mod photograph;
pub mod status;

mod cells;
mod json;
mod object;
mod parameters;
#[cfg(test)]
mod roundtrip;
mod used_features;
mod wire;

pub use decode::{DecodedRequest, ReplyFormat, Target, decode_request, parse_header_length};
pub use encode::{Encoded, encode_response};
pub use error::ProtocolError;
