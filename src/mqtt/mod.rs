//! MQTT. The only code that knows rumqttc, of which it uses the codec.

pub mod answer;
pub mod backoff;
pub mod bindings;
pub mod bound;
pub mod check;
pub mod client;
pub mod complaints;
pub mod config;
pub mod desk;
pub mod dial;
pub mod fields;
pub mod fuzz;
pub mod gateway;
pub mod held;
pub mod pulse;
pub mod rate;
pub mod request;
pub mod subscriptions;
pub mod topics;
pub mod trial;
