//! MQTT. The only code that knows rumqttc, of which it uses the codec.

pub mod bindings;
pub mod client;
pub mod config;
pub mod fields;
pub mod fuzz;
pub mod rate;
pub mod topics;
