//! Properties that hold for any encrypted bytes and any master key. The folder `fuzz/` and `tests/it/fuzz.rs` call
//! them.

use std::io::Cursor;

use super::stream::{self, EncryptedFileHeader};
use super::{EncryptionPurpose, MASTER_KEY_BYTES, Sealer, parse};

/// The plain content of the seeds.
const CONTENT: &[u8] = b"a model, or something as dear";

/// The purpose of the seeds.
const PURPOSE: EncryptionPurpose = EncryptionPurpose::Model;

fn sealer() -> Sealer {
    Sealer::with_keys(&[[1; MASTER_KEY_BYTES]])
}

/// Encrypted bytes as a seed.
pub fn sealed_seed() -> Vec<u8> {
    sealer().seal(PURPOSE, b"", CONTENT).unwrap_or_default()
}

/// An encrypted file as a seed.
pub fn sealed_file_seed() -> Vec<u8> {
    let header = EncryptedFileHeader { name: [7; 32], length: CONTENT.len() as u64 };
    let mut file = Vec::new();
    let written = stream::seal_stream(&sealer(), PURPOSE, &header, &mut Cursor::new(CONTENT), &mut file);
    if written.is_ok() { file } else { Vec::new() }
}

/// Decrypts bytes; true when that succeeds. The result is the encrypted content, and only for its purpose.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_sealed(data: &[u8]) -> bool {
    let _ = (Sealer::key_of(data), sealer().is_outdated(data));
    let opened = sealer().open(PURPOSE, b"", data);
    assert!(opened.as_ref().is_ok_and(|plain| plain == CONTENT) || opened.is_err());
    assert!(sealer().open(EncryptionPurpose::AuditKey, b"", data).is_err(), "it was sealed for something else");
    opened.is_ok()
}

/// Decrypts a file; true when all of it decrypts. The result is the encrypted content, or its beginning.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_sealed_file(data: &[u8]) -> bool {
    let mut file = Cursor::new(data);
    let Ok(Some(header)) = EncryptedFileHeader::read(&mut file) else { return false };
    assert_eq!(EncryptedFileHeader::parse(&header.to_bytes()), Some(header));
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

/// Reads a file of master keys; true when it is valid. Each line is a key; the first encrypts, and the others only
/// decrypt.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_master_keys(data: &[u8]) -> bool {
    let Some(keys) = parse(data) else { return false };
    let lines = String::from_utf8_lossy(data).lines().filter(|line| !line.trim().is_empty()).count();
    assert!(keys.len() == lines || data.len() == MASTER_KEY_BYTES);
    let texts: Vec<String> = keys.iter().map(hex::encode).collect();
    let again = parse(texts.join("\n").as_bytes());
    assert!(again.is_some_and(|again| again == keys), "what was read is read again from its one form");
    true
}
