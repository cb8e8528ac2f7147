//! A manifest of rollouts.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = ledge::fleet::manifest::Manifest::parse(data).map(|manifest| manifest.subjects().len());
});
