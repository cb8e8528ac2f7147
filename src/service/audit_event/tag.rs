//! Tags: keyed hashes that stand in a record for data about a person.
//!
//! A tag is keyed BLAKE3 with a key that never leaves this box. With the key and the original, the tag can be computed
//! again; with only the tag, the original cannot be found, not even by trying all candidates. Tags show which originals
//! are equal within one period: the calls of one caller, equal inputs, equal answers. Destroying the key erases the
//! link.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::str::FromStr;

use bytes::Bytes;
use ledge_base::tensor::Tensor;
use ledge_base::toml_check::from_text;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The length of a tag in bytes: 128 bits, so that no two originals of a period share one.
const TAG_BYTES: usize = 16;

/// A keyed hash with the period of its key. As text: `PERIOD:HEX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
#[schemars(with = "String")]
pub struct Tag {
    period: u32,
    hash: [u8; TAG_BYTES],
}

/// A text that is not a tag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a tag: expected PERIOD:HEX with 32 digits")]
pub struct InvalidTag {
    text: String,
}

impl Tag {
    /// The period of its key.
    pub fn period(&self) -> u32 {
        self.period
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.period)?;
        self.hash.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Tag {
    type Err = InvalidTag;

    fn from_str(text: &str) -> Result<Self, InvalidTag> {
        let parsed = (|| {
            let (period, hex) = text.split_once(':')?;
            let number: u32 = period.parse().ok()?;
            let mut hash = [0; TAG_BYTES];
            if hex.len() != 2 * TAG_BYTES || number.to_string() != period {
                return None;
            }
            for (byte, digits) in hash.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
                let is_hex = digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
                *byte = u8::from_str_radix(std::str::from_utf8(digits).ok().filter(|_| is_hex)?, 16).ok()?;
            }
            Some(Self { period: number, hash })
        })();
        parsed.ok_or_else(|| InvalidTag { text: text.chars().take(80).collect() })
    }
}

impl Serialize for Tag {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Tag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// The key of one period. Never shown.
#[derive(Clone)]
pub struct TagKey {
    period: u32,
    key: [u8; 32],
}

impl fmt::Debug for TagKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TagKey").field("period", &self.period).finish_non_exhaustive()
    }
}

impl TagKey {
    /// The key of a period.
    pub fn new(period: u32, key: [u8; 32]) -> Self {
        Self { period, key }
    }

    /// Its period.
    pub fn period(&self) -> u32 {
        self.period
    }

    /// The tag of a text, such as the name of a caller.
    pub fn of_text(&self, text: &str) -> Tag {
        let mut hasher = self.hasher("text");
        hasher.update(text.as_bytes());
        self.tag(&hasher)
    }

    /// The tag of an entity of the feature store: of the JSON object of its join keys, in the order of their names. It
    /// is the same in every feature view with these join keys.
    pub fn of_entity(&self, join_keys: &BTreeMap<&str, serde_json::Value>) -> Tag {
        let mut hasher = self.hasher("entity");
        // A map with string keys always serializes, and writing to a hasher cannot fail.
        let _ = serde_json::to_writer(&mut hasher, join_keys);
        self.tag(&hasher)
    }

    /// The tag of a model's inputs or outputs.
    pub fn of(&self, content: &TagContent) -> Tag {
        match content {
            TagContent::Photograph(photograph) => self.of_photograph(photograph),
            TagContent::Rows(rows) => self.of_rows(rows),
            TagContent::Tensors(tensors) => {
                self.of_tensors(tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)))
            }
        }
    }

    /// The tag of a photograph, in the bytes that were sent.
    pub fn of_photograph(&self, photograph: &[u8]) -> Tag {
        let mut hasher = self.hasher("photograph");
        hasher.update(photograph);
        self.tag(&hasher)
    }

    fn of_rows(&self, rows: &[u8]) -> Tag {
        let mut hasher = self.hasher("rows");
        hasher.update(rows);
        self.tag(&hasher)
    }

    /// The tag of named tensors, in this order.
    pub fn of_tensors<'a>(&self, tensors: impl Iterator<Item = (&'a str, &'a Tensor)>) -> Tag {
        let mut hasher = self.hasher("tensors");
        // Each part follows its length, so that no two lists of tensors give the same bytes.
        let mut part = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        for (name, tensor) in tensors {
            part(name.as_bytes());
            part(tensor.datatype().as_str().as_bytes());
            let mut shape = String::new();
            for dimension in tensor.shape() {
                let _ = write!(shape, "{dimension},");
            }
            part(shape.as_bytes());
            part(tensor.data());
        }
        self.tag(&hasher)
    }

    fn hasher(&self, kind: &'static str) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(kind.as_bytes());
        hasher.update(&[0]);
        hasher
    }

    fn tag(&self, hasher: &blake3::Hasher) -> Tag {
        let mut hash = [0; TAG_BYTES];
        hasher.finalize_xof().fill(&mut hash);
        Tag { period: self.period, hash }
    }
}

/// The content of a tag, held until the tag is made. The bytes are shared, not copied.
#[derive(Debug, Clone)]
pub enum TagContent {
    /// A photograph, in the bytes that were sent.
    Photograph(Bytes),
    /// Rows in JSON, in the bytes that were sent.
    Rows(Bytes),
    Tensors(Vec<(String, Tensor)>),
}

impl TagContent {
    /// The number of bytes that it keeps in memory.
    pub fn size(&self) -> usize {
        match self {
            Self::Photograph(bytes) | Self::Rows(bytes) => bytes.len(),
            Self::Tensors(tensors) => tensors.iter().map(|(_, tensor)| tensor.data().len()).sum(),
        }
    }
}

#[cfg(test)]
mod tests;
