//! Rows and records under the key of their entity. The only file of the store that knows the cipher.
//!
//! AES-256-GCM-SIV (RFC 8452). The nonce is the sequence number of the journal entry and whether aggregates are in it, so it
//! takes no room. No entry's number is given twice, with two exceptions: a push that could not be written leaves its number
//! to the next one, and a row is sealed anew when the index is built under another hash key. Under GCM-SIV a nonce that
//! comes twice gives away nothing but whether the same bytes were sealed for the same place.

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, Nonce, UnboundKey};

use super::key::IndexKey;
use super::wire::Damaged;

/// The number of the cipher in a [`super::record::Seal`].
pub const CIPHER: u8 = 1;
/// The length of an entity's key, in bytes.
pub const KEY: usize = 32;

/// What is sealed, so that it opens nowhere else: not as another entity, in another view, or as of another time.
#[derive(Debug, Clone, Copy)]
pub struct Place<'k> {
    /// The view and the entity.
    pub key: &'k IndexKey,
    pub seq: u64,
    /// Whether it is a record with aggregates, and not a row alone.
    pub windows: bool,
}

impl Place<'_> {
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

fn cipher(key: &[u8; KEY]) -> Result<LessSafeKey, Damaged> {
    UnboundKey::new(&AES_256_GCM_SIV, key).map(LessSafeKey::new).map_err(|_| Damaged::Forged)
}

/// Seals the bytes of a row or a record.
pub fn seal(key: &[u8; KEY], place: &Place<'_>, plain: &[u8]) -> Result<Vec<u8>, Damaged> {
    let mut body = Vec::with_capacity(plain.len() + AES_256_GCM_SIV.tag_len());
    body.extend_from_slice(plain);
    cipher(key)?
        .seal_in_place_append_tag(place.nonce(), Aad::from(place.associated()), &mut body)
        .map_err(|_| Damaged::Forged)?;
    Ok(body)
}

/// Opens what [`seal`] made for the same place.
pub fn open(key: &[u8; KEY], place: &Place<'_>, sealed: &[u8]) -> Result<Vec<u8>, Damaged> {
    let mut body = sealed.to_vec();
    let opened = cipher(key)?.open_in_place(place.nonce(), Aad::from(place.associated()), &mut body);
    let length = opened.map_err(|_| Damaged::Forged)?.len();
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
        let place = Place { key: &key(1), seq: 3, windows: false };
        for size in [64, 256, 4096] {
            let plain = vec![7; size];
            let sealed = seal(&[7; KEY], &place, &plain).unwrap();
            let each = |work: &dyn Fn()| {
                let started = std::time::Instant::now();
                (0..20_000).for_each(|_| work());
                started.elapsed() / 20_000
            };
            let sealing = each(&|| drop(seal(&[7; KEY], &place, &plain).unwrap()));
            let opening = each(&|| drop(open(&[7; KEY], &place, &sealed).unwrap()));
            println!("{size} bytes: sealed in {sealing:?}, opened in {opening:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens_in_its_place_and_in_no_other(plain in prop::collection::vec(any::<u8>(), 0..100), seq in 1..u64::MAX) {
            let (here, there) = (key(1), key(2));
            let place = Place { key: &here, seq, windows: false };
            let sealed = seal(&[7; KEY], &place, &plain).unwrap();
            prop_assert_eq!(open(&[7; KEY], &place, &sealed), Ok(plain));
            for other in [
                Place { key: &there, ..place },
                Place { seq: seq - 1, ..place },
                Place { windows: true, ..place },
            ] {
                prop_assert_eq!(open(&[7; KEY], &other, &sealed), Err(Damaged::Forged));
            }
            prop_assert_eq!(open(&[8; KEY], &place, &sealed), Err(Damaged::Forged));
        }

        #[test]
        fn a_changed_byte_is_noticed(plain in prop::collection::vec(any::<u8>(), 0..60), at: prop::sample::Index, change in 1..=255_u8) {
            let place = Place { key: &key(1), seq: 3, windows: true };
            let mut sealed = seal(&[7; KEY], &place, &plain).unwrap();
            let at = at.index(sealed.len());
            sealed[at] ^= change;
            prop_assert_eq!(open(&[7; KEY], &place, &sealed), Err(Damaged::Forged));
        }
    }
}
