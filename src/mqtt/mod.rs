//! MQTT. The only code that knows rumqttc, of which it uses the codec.

pub mod answer;
pub mod client;
pub mod config;
pub mod fields;
pub mod rate;
pub mod request;
pub mod topics;
