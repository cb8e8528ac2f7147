//! Nothing personal leaves: a daemon that sends wherever it can, canaries wherever a caller can put any, and a search of
//! every byte that went out.

mod recorder;
mod secrets;
mod views;

use std::collections::BTreeSet;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use secrets::{Canaries, Detector, forms, hashes};

/// The places of what is found.
fn places(detector: &Detector, sent: &[u8]) -> BTreeSet<String> {
    detector.find(sent).into_iter().map(|found| found.place).collect()
}

/// As a leak would have it: in the midst of other bytes.
fn planted(leak: &[u8]) -> Vec<u8> {
    [b"{\"at\":\"2026-01-01T00:00:00Z\",\"text\":\"", leak, b"\",\"more\":0.25}"].concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_canary_is_found_in_every_form_and_envelope_and_nothing_else_is() {
    let mut canaries = Canaries::default();
    let (word, bytes) = (canaries.word("a word").into_bytes(), canaries.bytes("some bytes"));
    let numbers = canaries.numbers("some numbers");
    let content = [b"a body with ".as_slice(), &bytes].concat();
    canaries.content("a whole body", &content);
    let detector = Detector::new(&canaries);
    let assert_found = |leak: &[u8], place: &str, form: &str| {
        let upper = leak.to_ascii_uppercase();
        let mut envelopes = vec![planted(leak), planted(&upper), gzip(&planted(leak)), planted(&gzip(&gzip(leak)))];
        if leak.iter().all(u8::is_ascii_graphic) {
            envelopes.push(planted(&leak.chunks(7).flat_map(|line| [line, b"\r\n"].concat()).collect::<Vec<_>>()));
        }
        for (number, sent) in envelopes.iter().enumerate() {
            assert!(places(&detector, sent).contains(place), "{place} {form} in envelope {number}");
        }
    };
    for (place, secret) in [("a word", &word), ("some bytes", &bytes)] {
        for (form, leak) in forms(secret) {
            assert_found(&leak, place, form);
        }
        // A part of it is enough.
        for part in [&secret[..14], &secret[11..]] {
            assert_found(part, place, "in part");
        }
    }
    for (place, secret) in [("a word", &word), ("some bytes", &bytes), ("a whole body", &content)] {
        for (algorithm, hash) in hashes(secret) {
            for (form, leak) in forms(&hash).into_iter().chain(forms(&hash[..16])) {
                // In reverse the hash ends with what it begins with.
                assert_found(&leak, place, &format!("{algorithm} {form}"));
            }
        }
    }
    assert_found(serde_json::to_string(&numbers).unwrap().as_bytes(), "some numbers", "in JSON");
    assert_found(format!("{:?}", f64::from(numbers[3])).as_bytes(), "some numbers", "as digits");
    assert_found(bytemuck::cast_slice(&numbers), "some numbers", "as bits");
    for around in ["https://host/?q=%22", "\\\"", "\\\\\\\""] {
        assert_found(format!("{around}{}", String::from_utf8(word.clone()).unwrap()).as_bytes(), "a word", around);
    }

    // What is like a canary is none, and neither is a hash with a key.
    let mut other = word.clone();
    for byte in other.iter_mut().step_by(6) {
        *byte ^= 1;
    }
    let keyed = blake3::keyed_hash(&[7; 32], &word);
    for innocent in [other.as_slice(), keyed.as_bytes(), keyed.to_hex().as_bytes(), b"0.5", &content[..12]] {
        assert_eq!(detector.find(&planted(innocent)), BTreeSet::new());
    }
}
