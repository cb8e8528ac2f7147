//! Index keys: the view, and a keyed hash of the entity key, so that the store's files do not contain entity keys.

use super::value::Value;
use super::view::ViewId;
use super::wire::put_value;

/// The key of an entity's record: the view's number, big-endian, and 16 bytes of keyed BLAKE3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IndexKey([u8; Self::LENGTH]);

impl IndexKey {
    /// Its length in bytes.
    pub const LENGTH: usize = 20;

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
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
