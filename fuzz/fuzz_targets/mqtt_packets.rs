//! What an MQTT broker sends.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ledge::mqtt::client::fuzz::mqtt_packets(data);
});
