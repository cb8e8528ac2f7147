//! An API key as somebody presents it, and the store of keys.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ledge::identity::api_key::fuzz_key(data);
    ledge::identity::keys::fuzz_keys(data);
});
