//! Encryption of rows and records under the key of their entity. The only file of the store that knows the cipher.
//!
//! AES-256-GCM-SIV (RFC 8452). The nonce is the sequence number of the journal entry and a flag for aggregates, so it
//! takes no space. No entry's number is used twice, with two exceptions: a push that could not be written leaves its
//! number to the next one, and a row is encrypted again when the index is built under another hash key. Under GCM-SIV a
//! repeated nonce reveals only if the same bytes were encrypted in the same context.

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, Nonce, UnboundKey};

use super::key::IndexKey;
use super::wire::DamagedBytes;

/// The number of the cipher in a [`super::record::CipherHeader`].
pub const CIPHER: u8 = 1;
/// The length of an entity's key, in bytes.
pub const KEY_BYTES: usize = 32;
/// The bytes that encryption adds to a body.
pub const TAG_BYTES: usize = 16;

/// The context of an encrypted body, which decrypts in no other: not as another entity, in another view, or as of
/// another time.
#[derive(Debug, Clone, Copy)]
pub struct CipherContext<'k> {
    /// The view and the entity.
    pub key: &'k IndexKey,
    pub seq: u64,
    /// True for a record with aggregates, false for a row only.
    pub windows: bool,
}

impl CipherContext<'_> {
    fn associated(&self) -> [u8; IndexKey::LENGTH + 9] {
        let mut bytes = [0; IndexKey::LENGTH + 9];
        let (key, rest) = bytes.split_at_mut(IndexKey::LENGTH);
        key.copy_from_slice(self.key.as_bytes());
        let (seq, kind) = rest.split_at_mut(8);
        seq.copy_from_slice(&self.seq.to_le_bytes());
        kind.fill(u8::from(self.windows));
        bytes
    }

    fn nonce(&self) -> Nonce {
        let mut nonce = [0; 12];
        let (seq, kind) = nonce.split_at_mut(8);
        seq.copy_from_slice(&self.seq.to_le_bytes());
        kind.fill(u8::from(self.windows));
        Nonce::assume_unique_for_key(nonce)
    }
}

fn cipher(key: &[u8; KEY_BYTES]) -> Result<LessSafeKey, DamagedBytes> {
    UnboundKey::new(&AES_256_GCM_SIV, key).map(LessSafeKey::new).map_err(|_| DamagedBytes::Forged)
}

/// Encrypts the bytes of a row or a record.
pub fn seal(key: &[u8; KEY_BYTES], context: &CipherContext<'_>, plain: &[u8]) -> Result<Vec<u8>, DamagedBytes> {
    let mut body = Vec::with_capacity(plain.len() + AES_256_GCM_SIV.tag_len());
    body.extend_from_slice(plain);
    cipher(key)?
        .seal_in_place_append_tag(context.nonce(), Aad::from(context.associated()), &mut body)
        .map_err(|_| DamagedBytes::Forged)?;
    Ok(body)
}

/// Decrypts the output of [`seal`] for the same context.
pub fn open(key: &[u8; KEY_BYTES], context: &CipherContext<'_>, sealed: &[u8]) -> Result<Vec<u8>, DamagedBytes> {
    let mut body = sealed.to_vec();
    let opened = cipher(key)?.open_in_place(context.nonce(), Aad::from(context.associated()), &mut body);
    let length = opened.map_err(|_| DamagedBytes::Forged)?.len();
    body.truncate(length);
    Ok(body)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(byte: u8) -> IndexKey {
        IndexKey::try_from([byte; IndexKey::LENGTH].as_slice()).unwrap()
    }

    #[test]
    #[ignore = "figures: run it with --release"]
    fn what_sealing_and_opening_take() {
        let context = CipherContext { key: &key(1), seq: 3, windows: false };
        for size in [64, 256, 4096] {
            let plain = vec![7; size];
            let sealed = seal(&[7; KEY_BYTES], &context, &plain).unwrap();
            let each = |work: &dyn Fn()| {
                let started = std::time::Instant::now();
                (0..20_000).for_each(|_| work());
                started.elapsed() / 20_000
            };
            let sealing = each(&|| drop(seal(&[7; KEY_BYTES], &context, &plain).unwrap()));
            let opening = each(&|| drop(open(&[7; KEY_BYTES], &context, &sealed).unwrap()));
            println!("{size} bytes: sealed in {sealing:?}, opened in {opening:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens_in_its_place_and_in_no_other(plain in prop::collection::vec(any::<u8>(), 0..100), seq in 1..u64::MAX) {
            let (here, there) = (key(1), key(2));
            let context = CipherContext { key: &here, seq, windows: false };
            let sealed = seal(&[7; KEY_BYTES], &context, &plain).unwrap();
            prop_assert_eq!(sealed.len(), plain.len() + TAG_BYTES);
            prop_assert_eq!(open(&[7; KEY_BYTES], &context, &sealed), Ok(plain));
            for other in [
                CipherContext { key: &there, ..context },
                CipherContext { seq: seq - 1, ..context },
                CipherContext { windows: true, ..context },
            ] {
                prop_assert_eq!(open(&[7; KEY_BYTES], &other, &sealed), Err(DamagedBytes::Forged));
            }
            prop_assert_eq!(open(&[8; KEY_BYTES], &context, &sealed), Err(DamagedBytes::Forged));
        }

        #[test]
        fn a_changed_byte_is_noticed(plain in prop::collection::vec(any::<u8>(), 0..60), at: prop::sample::Index, change in 1..=255_u8) {
            let context = CipherContext { key: &key(1), seq: 3, windows: true };
            let mut sealed = seal(&[7; KEY_BYTES], &context, &plain).unwrap();
            let at = at.index(sealed.len());
            sealed[at] ^= change;
            prop_assert_eq!(open(&[7; KEY_BYTES], &context, &sealed), Err(DamagedBytes::Forged));
        }
    }
}
