//! What must hold whatever bytes come as something sealed, or as a master key. The folder `fuzz/` and `tests/it/fuzz.rs` feed it.

use std::io::Cursor;

use super::stream::{self, Header};
use super::{KEY, SealPurpose, Sealer, parse};

/// What [`sealed_seeds`] seals.
const CONTENT: &[u8] = b"a model, or something as dear";

/// What it is sealed for.
const PURPOSE: SealPurpose = SealPurpose::Model;

fn sealer() -> Sealer {
    Sealer::with_keys(&[[1; KEY]])
}

/// Sealed bytes.
pub fn sealed_seed() -> Vec<u8> {
    sealer().seal(PURPOSE, b"", CONTENT).unwrap_or_default()
}

/// A sealed file.
pub fn sealed_file_seed() -> Vec<u8> {
    let header = Header { name: [7; 32], length: CONTENT.len() as u64 };
    let mut file = Vec::new();
    let written = stream::seal_stream(&sealer(), PURPOSE, &header, &mut Cursor::new(CONTENT), &mut file);
    if written.is_ok() { file } else { Vec::new() }
}

/// Opens sealed bytes; true when they open. Only what was sealed comes out, and only for the purpose it was sealed for.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_sealed(data: &[u8]) -> bool {
    let _ = (Sealer::key_of(data), sealer().is_outdated(data));
    let opened = sealer().open(PURPOSE, b"", data);
    assert!(opened.as_ref().is_ok_and(|plain| plain == CONTENT) || opened.is_err());
    assert!(sealer().open(SealPurpose::AuditKey, b"", data).is_err(), "it was sealed for something else");
    opened.is_ok()
}

/// Opens a sealed file; true when all of it opens. Only what was sealed comes out, from its beginning.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_sealed_file(data: &[u8]) -> bool {
    let mut file = Cursor::new(data);
    let Ok(Some(header)) = Header::read(&mut file) else { return false };
    assert_eq!(Header::parse(&header.to_bytes()), Some(header));
    assert!(header.sealed_length() > header.length || header.length > u64::MAX / 2);
    let mut plain = Vec::new();
    let opened = stream::open_stream(&sealer(), PURPOSE, &header, &mut file, |bytes| {
        plain.extend_from_slice(bytes);
        Ok(())
    });
    assert!(CONTENT.starts_with(&plain) && (opened.is_err() || plain == CONTENT));
    let _ = stream::chunk_ids(&header, &mut Cursor::new(data)).is_ok();
    opened.is_ok()
}

/// Reads a file of master keys; true when it is one. A line is a key, and the first key seals what the others only open.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_master_keys(data: &[u8]) -> bool {
    let Some(keys) = parse(data) else { return false };
    let lines = String::from_utf8_lossy(data).lines().filter(|line| !line.trim().is_empty()).count();
    assert!(keys.len() == lines || data.len() == KEY);
    let texts: Vec<String> = keys.iter().map(hex::encode).collect();
    let again = parse(texts.join("\n").as_bytes());
    assert!(again.is_some_and(|again| again == keys), "what was read is read again from its one form");
    true
}
