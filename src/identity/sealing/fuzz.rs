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

/// Bytes that open: some that are sealed, a sealed file, and a file of two keys, each behind its kind.
pub fn sealed_seeds() -> Vec<Vec<u8>> {
    let sealer = sealer();
    let header = Header { name: [7; 32], length: CONTENT.len() as u64 };
    let mut file = vec![1];
    let written = stream::seal_stream(&sealer, PURPOSE, &header, &mut Cursor::new(CONTENT), &mut file);
    let short = sealer.seal(PURPOSE, b"", CONTENT).unwrap_or_default();
    let keys = [b"\x02".as_slice(), &[b'a'; 2 * KEY], b"\n", &[b'0'; 2 * KEY], b"\n"].concat();
    let seeds = vec![[b"\0".as_slice(), &short].concat(), file, keys];
    if written.is_ok() { seeds } else { Vec::new() }
}

/// Its first byte chooses what the rest is read as; whether it opens. What opens is what was sealed.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_sealed(data: &[u8]) -> bool {
    let Some((kind, bytes)) = data.split_first() else { return false };
    match kind % 3 {
        0 => {
            let _ = (Sealer::key_of(bytes), sealer().is_outdated(bytes));
            let opened = sealer().open(PURPOSE, b"", bytes);
            assert!(opened.as_ref().is_ok_and(|plain| plain == CONTENT) || opened.is_err());
            assert!(sealer().open(SealPurpose::AuditKey, b"", bytes).is_err(), "it was sealed for something else");
            opened.is_ok()
        }
        1 => {
            let mut file = Cursor::new(bytes);
            let Ok(Some(header)) = Header::read(&mut file) else { return false };
            assert_eq!(Header::parse(&header.to_bytes()), Some(header));
            assert!(header.sealed_length() > header.length || header.length > u64::MAX / 2);
            let mut plain = Vec::new();
            let opened = stream::open_stream(&sealer(), PURPOSE, &header, &mut file, |bytes| {
                plain.extend_from_slice(bytes);
                Ok(())
            });
            assert!(CONTENT.starts_with(&plain) && (opened.is_err() || plain == CONTENT));
            let _ = stream::chunk_ids(&header, &mut Cursor::new(bytes)).is_ok();
            opened.is_ok()
        }
        _ => parse(bytes).is_some_and(|keys| {
            assert!(!keys.is_empty());
            true
        }),
    }
}
