//! Index keys: the view, and a keyed hash of the entity key, so that the store's files do not contain entity keys.

use std::cmp::Ordering;

use super::value::Value;
use super::view::ViewId;
use super::wire::put_value;

/// The key of an entity's record: the view's number, big-endian, and 16 bytes of keyed BLAKE3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IndexKey([u8; Self::LENGTH]);

/// The order of the bytes. Two numbers are compared in a fraction of the time of twenty bytes, and a search in a
/// snapshot compares some sixteen keys.
impl Ord for IndexKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.numbers().cmp(&other.numbers())
    }
}

impl PartialOrd for IndexKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl IndexKey {
    /// Its length in bytes.
    pub const LENGTH: usize = 20;

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }

    /// The view and the hash as numbers, which have the order of the bytes.
    fn numbers(&self) -> (u32, u128) {
        let [a, b, c, d, hash @ ..] = self.0;
        (u32::from_be_bytes([a, b, c, d]), u128::from_be_bytes(hash))
    }

    /// Its hash, in four parts.
    pub fn hash(&self) -> [u32; 4] {
        let [_, _, _, _, hash @ ..] = self.0;
        let (parts, _) = hash.as_chunks();
        let part = |at: usize| parts.get(at).map_or(0, |part| u32::from_le_bytes(*part));
        [part(0), part(1), part(2), part(3)]
    }

    /// The view.
    pub fn view(&self) -> ViewId {
        let [a, b, c, d, ..] = self.0;
        ViewId(u32::from_be_bytes([a, b, c, d]))
    }
}

impl From<[u8; Self::LENGTH]> for IndexKey {
    fn from(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }
}

impl TryFrom<&[u8]> for IndexKey {
    type Error = std::array::TryFromSliceError;

    fn try_from(bytes: &[u8]) -> Result<Self, Self::Error> {
        bytes.try_into().map(Self)
    }
}

/// The secret behind the index keys of one store.
#[derive(Clone)]
pub struct HashKey([u8; 32]);

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey")
    }
}

impl HashKey {
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// An identifier of the secret that reveals nothing about it.
    pub fn id(&self) -> [u8; 8] {
        let hash = blake3::keyed_hash(&self.0, b"ledge hash key id");
        let mut id = [0; 8];
        id.copy_from_slice(&hash.as_bytes()[..8]);
        id
    }

    /// The index key of an entity.
    pub fn index_key(&self, view: ViewId, entity: &[Value]) -> IndexKey {
        let mut text = Vec::with_capacity(32);
        text.extend_from_slice(&view.0.to_be_bytes());
        for value in entity {
            put_value(&mut text, value);
        }
        let hash = blake3::keyed_hash(&self.0, &text);
        let mut key = [0; IndexKey::LENGTH];
        key[..4].copy_from_slice(&view.0.to_be_bytes());
        key[4..].copy_from_slice(&hash.as_bytes()[..16]);
        IndexKey(key)
    }
}

#[cfg(test)]
mod tests {
    use super::IndexKey;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_have_the_order_of_their_bytes(
            one: [u8; IndexKey::LENGTH], other: [u8; IndexKey::LENGTH], same in 0..=IndexKey::LENGTH,
        ) {
            let mut other = other;
            other[..same].copy_from_slice(&one[..same]);
            prop_assert_eq!(IndexKey::from(one).cmp(&IndexKey::from(other)), one.cmp(&other));
        }
    }
}
