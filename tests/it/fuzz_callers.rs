//! The same as `fuzz.rs` for what callers and platforms show beside bodies, for what is sealed, and for model files.

use ledge::fleet::manifest::Manifest;
use ledge::http::fuzz::fuzz_headers;
use ledge::http::tls::fuzz_certificate;
use ledge::identity::sealing::fuzz::{fuzz_sealed, sealed_seeds};
use ledge::protocol::fuzz::fuzz_feast;
use ledge::repository::onnx;

use crate::fuzz::mutate;

/// Headers of calls, a line each.
const HEADERS: &[&[u8]] = &[
    b"authorization: Bearer ledge_0123abcd_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8\nx-ledge-priority: batch",
    b"x-api-key: k\nx-ledge-timeout-ms: 250\ncontent-encoding: gzip\naccept-encoding: gzip;q=0, deflate, *",
    b"inference-header-content-length: 18446744073709551615\nauthorization: bearer\nx-ledge-priority: 2",
];

#[test]
fn foreign_headers_never_break_a_call() {
    for (seed, headers) in HEADERS.iter().zip([2, 4, 3]) {
        assert_eq!(fuzz_headers(seed), headers);
    }
    for seed in 0..50_000 {
        fuzz_headers(&mutate(seed, HEADERS));
    }
}

#[test]
fn a_foreign_certificate_or_list_of_revoked_ones_is_read_or_not() {
    let authority = crate::certificates::Authority::new();
    let certificate = crate::tls_kit::der(&authority.issue("till-7").certificate);
    let list = authority.revoke(&[]);
    let list: String = list.lines().filter(|line| !line.starts_with("-----")).collect();
    let list = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, list).unwrap();
    let seeds: [&[u8]; 2] = [&certificate, &list];
    assert!(seeds.iter().all(|seed| fuzz_certificate(seed)));
    let read = (0..20_000).filter(|seed| fuzz_certificate(&mutate(*seed, &seeds))).count();
    assert!(read > 100, "some are certificates all the same: {read}");
}

#[test]
fn nothing_foreign_opens_as_sealed() {
    let seeds = sealed_seeds();
    let seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
    assert!(seeds.len() == 3 && seeds.iter().all(|seed| fuzz_sealed(seed)));
    for seed in 0..20_000 {
        fuzz_sealed(&mutate(seed, &seeds));
    }
}

/// Calls of Feast's client.
const FEAST: &[&[u8]] = &[
    br#"{"features":["driver_stats:trips"],"entities":{"driver_id":[1,2,null]},"full_feature_names":true}"#,
    br#"{"feature_service":"s","entities":{"a":["x"],"b":[1.5]}}"#,
    br#"{"push_source_name":"p","df":{"driver_id":[1],"event_timestamp":["2026-01-01T00:00:00Z"],"trips":[7]},"to":"online"}"#,
];

#[test]
fn foreign_calls_never_break_feasts_routes() {
    assert!(FEAST.iter().all(|seed| fuzz_feast(seed)));
    for seed in 0..20_000 {
        fuzz_feast(&mutate(seed, FEAST));
    }
}

#[test]
fn a_foreign_model_file_never_breaks_its_reader() {
    let model = std::fs::read(crate::daemon::model_folder("add_sub").join("1/model.onnx")).unwrap();
    let seeds: [&[u8]; 1] = [&model];
    assert!(onnx::summarize(&model).is_ok());
    let read = (0..20_000).filter(|seed| onnx::summarize(&mutate(*seed, &seeds)).is_ok()).count();
    assert!(read > 100, "some are models all the same: {read}");
}

/// A manifest of rollouts.
const MANIFEST: &[&[u8]] = &[
    br#"{"schema":1,"fleet":"shops","written":"2026-11-20T00:00:00Z","rollouts":[{"id":"r1","subject":"models/minilm","version":2,"waves":[{"percent":10,"after":"1h"}]}]}"#,
    br#"{"schema":2}"#,
];

#[test]
fn a_foreign_manifest_never_breaks_a_box() {
    for seed in 0..20_000 {
        let _ = Manifest::parse(&mutate(seed, MANIFEST)).map(|manifest| manifest.subjects().len());
    }
}
