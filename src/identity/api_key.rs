//! An API key as its holder presents it: `ledge_<id>_<secret>`.
//!
//! The id names the key in the store and is no secret. The secret is 256 random bits, so a fast hash of it is as good as
//! a slow one: there is nothing to guess from.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ledge_base::toml_check::from_text;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What every key begins with, so that tools that look for leaked secrets know one when they see it.
const PREFIX: &str = "ledge_";
const ID_DIGITS: usize = 8;
const SECRET: usize = 32;

/// The name of a key in the store: 32 random bits, as eight hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(u32);

/// A key. Never shown by accident: only [`ApiKey::reveal`] writes it out.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    id: KeyId,
    secret: [u8; SECRET],
}

/// Why a text is no key. It never holds the text, which may be nearly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is no key of Ledge, which has the form ledge_ID_SECRET")]
pub struct InvalidKey;

/// Why a text is no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected eight hexadecimal digits (0-9, a-f)")]
pub struct InvalidKeyId;

impl ApiKey {
    /// A new key, from the system's random numbers.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let (mut id, mut secret) = ([0; 4], [0; SECRET]);
        getrandom::fill(&mut id)?;
        getrandom::fill(&mut secret)?;
        Ok(Self { id: KeyId(u32::from_be_bytes(id)), secret })
    }

    /// Which key it claims to be.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// What the store keeps of it. Two hashes are compared in constant time: so `blake3::Hash` does.
    pub fn hash(&self) -> blake3::Hash {
        blake3::hash(&self.secret)
    }

    /// The key itself, to be shown to its holder once.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}_{}", self.id, URL_SAFE_NO_PAD.encode(self.secret))
    }

    /// Reads what somebody presented.
    pub fn parse(presented: &[u8]) -> Result<Self, InvalidKey> {
        let rest = presented.strip_prefix(PREFIX.as_bytes()).ok_or(InvalidKey)?;
        let (id, rest) = rest.split_at_checked(ID_DIGITS).ok_or(InvalidKey)?;
        let id = std::str::from_utf8(id).ok().and_then(|id| id.parse().ok()).ok_or(InvalidKey)?;
        let encoded = rest.strip_prefix(b"_").ok_or(InvalidKey)?;
        let mut secret = [0; SECRET];
        // Strict: no padding, no other alphabet, no stray bits at the end. A key has one form.
        match URL_SAFE_NO_PAD.decode_slice(encoded, &mut secret) {
            Ok(SECRET) => Ok(Self { id, secret }),
            _ => Err(InvalidKey),
        }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl FromStr for ApiKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        Self::parse(text.as_bytes())
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl FromStr for KeyId {
    type Err = InvalidKeyId;

    fn from_str(text: &str) -> Result<Self, InvalidKeyId> {
        let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = (is_hex && text.len() == ID_DIGITS).then(|| u32::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or(InvalidKeyId)
    }
}

impl Serialize for KeyId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KeyId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// Reads a key for the fuzzers. Says whether it is one.
///
/// # Panics
///
/// When a key has two forms.
pub fn fuzz_key(data: &[u8]) -> bool {
    match ApiKey::parse(data) {
        Ok(key) => {
            assert_eq!(key.reveal().as_bytes(), data);
            true
        }
        Err(InvalidKey) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_keys_are_never_the_same_and_none_shows_itself() {
        let (one, two) = (ApiKey::generate().unwrap(), ApiKey::generate().unwrap());
        assert_ne!(one, two);
        let shown = format!("{one:?}");
        assert!(!shown.contains(&one.reveal()[15..]) && shown.contains("KeyId"), "{shown}");
        assert_eq!(one.reveal().len(), 58);
    }

    #[test]
    fn what_is_not_exactly_a_key_is_none() {
        let good = format!("ledge_0123abcd_{}", "A".repeat(43));
        assert!(fuzz_key(good.as_bytes()));
        for bad in [
            "",
            "ledge_",
            "ledge_0123abcd",
            "ledge_0123abcd_",
            &good[1..],
            &good[..57],
            &format!("{good}A"),
            &format!("{good}="),
            &format!(" {good}"),
            &format!("{good}\n"),
            &good.replace("abcd", "ABCD"),
            &good.replace("ledge", "LEDGE"),
            &good.replace("ledge_", "ledge-"),
            // Bits that no byte needs.
            &format!("{}B", &good[..57]),
            &good.replace('A', "+"),
        ] {
            assert!(!fuzz_key(bad.as_bytes()), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_key_is_read_as_it_was_written(id: u32, secret: [u8; SECRET]) {
            let key = ApiKey { id: KeyId(id), secret };
            prop_assert_eq!(key.reveal().parse(), Ok(key.clone()));
            prop_assert_eq!(key.id().to_string().parse(), Ok(key.id()));
        }

        #[test]
        fn one_changed_character_is_another_key_or_none(id: u32, secret: [u8; SECRET], at in 0_usize..58, to: u8) {
            let key = ApiKey { id: KeyId(id), secret };
            let mut bytes = key.reveal().into_bytes();
            prop_assume!(bytes[at] != to);
            bytes[at] = to;
            prop_assert!(ApiKey::parse(&bytes).is_ok_and(|other| other != key) || ApiKey::parse(&bytes).is_err());
        }
    }
}
