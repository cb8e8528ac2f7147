//! Words and bytes that must not leave, in all the forms in which they might, and the search for them.

use std::collections::BTreeSet;

use aho_corasick::AhoCorasick;
use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use blake2::{Blake2b, Blake2b512, Blake2s256, Digest, digest::consts::U32};
use md5::Md5;

use super::views::views;

/// The length of a canary in bytes. The search is for its halves, so that a part of it is found too.
const LENGTH: usize = 24;

/// The length in bytes of the part of a hash that is searched for. A leak has at least as much of it.
const HASH: usize = 8;

/// Everything that was put somewhere.
#[derive(Default)]
pub struct Canaries(Vec<Secret>);

struct Secret {
    place: String,
    bytes: Vec<u8>,
    kind: Kind,
}

enum Kind {
    /// Looked for in every form, hashes included.
    Canary,
    /// Numbers as a text has them, which are looked for as they are.
    Number,
    /// The whole sent content, which is searched for by its hashes, since a canary is in it.
    Content,
}

impl Canaries {
    /// Letters and digits for a place that takes text.
    pub fn word(&mut self, place: &str) -> String {
        const DIGITS: &[u8] = b"abcdefghijklmnopqrstuvwxyz012345";
        let word: String = random().map(|byte| char::from(DIGITS[usize::from(byte % 32)])).into_iter().collect();
        self.add(place, word.as_bytes(), Kind::Canary);
        word
    }

    /// Bytes for a place that takes any.
    pub fn bytes(&mut self, place: &str) -> Vec<u8> {
        let bytes = random();
        self.add(place, &bytes, Kind::Canary);
        bytes.into()
    }

    /// Numbers for a place that takes only numbers: their bits, and their text.
    pub fn numbers(&mut self, place: &str) -> Vec<f32> {
        let bits = random();
        let numbers: Vec<f32> = bits.as_chunks::<4>().0.iter().map(|bits| number(u32::from_le_bytes(*bits))).collect();
        let bits = |of: fn(f32) -> [u8; 4]| numbers.iter().copied().flat_map(of).collect::<Vec<_>>();
        self.add(place, &bits(f32::to_le_bytes), Kind::Canary);
        self.add(place, &bits(f32::to_be_bytes), Kind::Canary);
        for number in &numbers {
            self.add(place, number.to_string().as_bytes(), Kind::Number);
            self.add(place, f64::from(*number).to_string().as_bytes(), Kind::Number);
        }
        numbers
    }

    /// The whole content that was sent at a place, with a canary in it.
    pub fn content(&mut self, place: &str, content: &[u8]) {
        self.add(place, content, Kind::Content);
    }

    fn add(&mut self, place: &str, bytes: &[u8], kind: Kind) {
        self.0.push(Secret { place: place.to_owned(), bytes: bytes.to_owned(), kind });
    }

    /// The places of all canaries.
    pub fn places(&self) -> BTreeSet<&str> {
        self.0.iter().map(|secret| secret.place.as_str()).collect()
    }
}

/// Between 0.5 and 1, with all of its digits. The number ends in enough digits to be recognized by them.
fn number(bits: u32) -> f32 {
    f32::from_bits(0x3f00_0001 | bits & 0x007f_ffff)
}

fn random() -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    getrandom::fill(&mut bytes).unwrap();
    bytes
}

/// Which canary was found, and in which form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    pub place: String,
    pub form: String,
}

/// Searches for all of them at once, regardless of case.
pub struct Detector {
    needles: AhoCorasick,
    found: Vec<Found>,
}

impl Detector {
    pub fn new(canaries: &Canaries) -> Self {
        let (mut needles, mut found) = (Vec::new(), Vec::new());
        for secret in &canaries.0 {
            for (form, needle) in secret.needles() {
                needles.push(needle);
                found.push(Found { place: secret.place.clone(), form });
            }
        }
        Self { needles: AhoCorasick::builder().ascii_case_insensitive(true).build(needles).unwrap(), found }
    }

    /// The canaries in bytes that were sent, and in data that can be unpacked from them.
    pub fn find(&self, sent: &[u8]) -> BTreeSet<Found> {
        let mut found = BTreeSet::new();
        for view in views(sent) {
            for hit in self.needles.find_overlapping_iter(&view) {
                found.insert(self.found[hit.pattern().as_usize()].clone());
            }
        }
        found
    }
}

impl Secret {
    fn needles(&self) -> Vec<(String, Vec<u8>)> {
        let mut needles = Vec::new();
        match self.kind {
            Kind::Number => return vec![("as digits".to_owned(), self.bytes.clone())],
            Kind::Content => {}
            Kind::Canary => {
                for half in self.bytes.chunks(LENGTH / 2) {
                    needles.extend(forms(half).into_iter().map(|(form, needle)| (form.to_owned(), needle)));
                }
            }
        }
        for (algorithm, hash) in hashes(&self.bytes) {
            let forms = forms(&hash[..HASH]).into_iter();
            needles.extend(forms.map(|(form, needle)| (format!("{algorithm} {form}"), needle)));
        }
        needles
    }
}

/// Bytes in every form that they may take on their way. Upper case is not among them, since case is not looked at.
pub fn forms(bytes: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let each = |form: fn(u8) -> String| bytes.iter().copied().map(form).collect::<String>().into_bytes();
    let joined = |by: &str| bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(by).into_bytes();
    let mut forms = vec![
        ("as it is", bytes.to_owned()),
        ("reversed", bytes.iter().rev().copied().collect()),
        ("in hexadecimal", each(|byte| format!("{byte:02x}"))),
        ("in hexadecimal with colons", each(|byte| format!("{byte:02x}:")).split_last().unwrap().1.to_owned()),
        ("percent-encoded", each(|byte| format!("%{byte:02x}"))),
        ("escaped for JSON", each(|byte| format!("\\u{byte:04x}"))),
        ("escaped as bytes", each(|byte| format!("\\x{byte:02x}"))),
        ("as a list", joined(",")),
        ("as a list with spaces", joined(", ")),
        ("in UTF-16 LE", bytes.iter().flat_map(|byte| u16::from(*byte).to_le_bytes()).collect()),
        ("in UTF-16 BE", bytes.iter().flat_map(|byte| u16::from(*byte).to_be_bytes()).collect()),
    ];
    for (name, alphabet) in [("in base64", &STANDARD), ("in base64 for URLs", &URL_SAFE)] {
        forms.extend((0..3).map(|before| (name, in_base64(bytes, before, alphabet))));
    }
    forms
}

/// The digits that depend only on these bytes, with this many others before them, and any after them. Padding therefore
/// does not matter.
fn in_base64(bytes: &[u8], before: usize, alphabet: &base64::engine::GeneralPurpose) -> Vec<u8> {
    let encoded = alphabet.encode([&vec![0; before], bytes].concat());
    let whole = (before + bytes.len()) * 8 / 6;
    encoded.as_bytes()[(before * 8).div_ceil(6)..whole].to_owned()
}

/// The hashes that need no key.
pub fn hashes(bytes: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let of = |algorithm, bytes: &[u8]| digest::digest(algorithm, bytes).as_ref().to_vec();
    vec![
        ("SHA-256", of(&digest::SHA256, bytes)),
        ("SHA-256 of a leaf", of(&digest::SHA256, &[&[0], bytes].concat())),
        ("SHA-384", of(&digest::SHA384, bytes)),
        ("SHA-512", of(&digest::SHA512, bytes)),
        ("SHA-1", of(&digest::SHA1_FOR_LEGACY_USE_ONLY, bytes)),
        ("MD5", Md5::digest(bytes).to_vec()),
        ("BLAKE3", blake3::hash(bytes).as_bytes().to_vec()),
        ("BLAKE2b", Blake2b512::digest(bytes).to_vec()),
        ("BLAKE2b-256", Blake2b::<U32>::digest(bytes).to_vec()),
        ("BLAKE2s", Blake2s256::digest(bytes).to_vec()),
    ]
}
