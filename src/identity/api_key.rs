//! The text form of an API key: `ledge_<id>_<secret>`.
//!
//! The id names the key in the store and is not secret. The secret is 256 random bits, which cannot be guessed, so a
//! fast hash of it is as good as a slow one.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ledge_base::toml_check::from_text;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The beginning of every key, by which scanners for leaked secrets recognize it.
const KEY_PREFIX: &str = "ledge_";
const ID_DIGITS: usize = 8;
const SECRET_BYTES: usize = 32;

/// The name of a key in the store: 32 random bits, as eight hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApiKeyId(u32);

/// A key. `Debug` hides the secret: only [`ApiKey::reveal`] writes it out.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    id: ApiKeyId,
    secret: [u8; SECRET_BYTES],
}

/// A text that is not a key. The error does not contain the text, which may be a key with a typing error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not an API key of Ledge: expected ledge_ID_SECRET")]
pub struct InvalidApiKey;

/// A text that is not a key id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected eight hexadecimal digits (0-9, a-f)")]
pub struct InvalidApiKeyId;

impl ApiKey {
    /// Makes a new key from the system's random numbers.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let (mut id, mut secret) = ([0; 4], [0; SECRET_BYTES]);
        getrandom::fill(&mut id)?;
        getrandom::fill(&mut secret)?;
        Ok(Self { id: ApiKeyId(u32::from_be_bytes(id)), secret })
    }

    /// The id in the key, which is not verified yet.
    pub fn id(&self) -> ApiKeyId {
        self.id
    }

    /// The hash of the secret, for the store. `blake3::Hash` compares in constant time.
    pub fn hash(&self) -> blake3::Hash {
        blake3::hash(&self.secret)
    }

    /// The key as text, to be shown to its holder once.
    pub fn reveal(&self) -> String {
        format!("{KEY_PREFIX}{}_{}", self.id, URL_SAFE_NO_PAD.encode(self.secret))
    }

    /// Returns `true` if a text looks like a key, or like a part of one with its id.
    pub fn resembles(text: &str) -> bool {
        let id = text.strip_prefix(KEY_PREFIX).and_then(|rest| rest.split_once('_'));
        id.is_some_and(|(id, _)| id.parse::<ApiKeyId>().is_ok())
    }

    /// Reads a presented key.
    pub fn parse(presented: &[u8]) -> Result<Self, InvalidApiKey> {
        let rest = presented.strip_prefix(KEY_PREFIX.as_bytes()).ok_or(InvalidApiKey)?;
        let (id, rest) = rest.split_at_checked(ID_DIGITS).ok_or(InvalidApiKey)?;
        let id = std::str::from_utf8(id).ok().and_then(|id| id.parse().ok()).ok_or(InvalidApiKey)?;
        let encoded = rest.strip_prefix(b"_").ok_or(InvalidApiKey)?;
        let mut secret = [0; SECRET_BYTES];
        // Strict: no padding, no other alphabet, no stray bits at the end. A key has exactly one text.
        match URL_SAFE_NO_PAD.decode_slice(encoded, &mut secret) {
            Ok(SECRET_BYTES) => Ok(Self { id, secret }),
            _ => Err(InvalidApiKey),
        }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl FromStr for ApiKey {
    type Err = InvalidApiKey;

    fn from_str(text: &str) -> Result<Self, InvalidApiKey> {
        Self::parse(text.as_bytes())
    }
}

impl fmt::Display for ApiKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl FromStr for ApiKeyId {
    type Err = InvalidApiKeyId;

    fn from_str(text: &str) -> Result<Self, InvalidApiKeyId> {
        let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = (is_hex && text.len() == ID_DIGITS).then(|| u32::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or(InvalidApiKeyId)
    }
}

impl Serialize for ApiKeyId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ApiKeyId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// Reads a key for the fuzzers; true when it is one.
///
/// # Panics
///
/// When a key has two texts.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_key(data: &[u8]) -> bool {
    match ApiKey::parse(data) {
        Ok(key) => {
            assert_eq!(key.reveal().as_bytes(), data);
            true
        }
        Err(InvalidApiKey) => false,
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
        assert!(!shown.contains(&one.reveal()[15..]) && shown.contains("ApiKeyId"), "{shown}");
        assert_eq!(one.reveal().len(), 58);
    }

    #[test]
    fn a_text_that_was_a_key_is_recognized() {
        let key = ApiKey::generate().unwrap().reveal();
        for secret in [&key, &key[..30], &format!("{key}x")] {
            assert!(ApiKey::resembles(secret), "{secret}");
        }
        for other in ["till-7", "ledge_till", "ledge_0123abcd", "ledge_till_7", ""] {
            assert!(!ApiKey::resembles(other), "{other}");
        }
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
            // Stray bits after the last byte.
            &format!("{}B", &good[..57]),
            &good.replace('A', "+"),
        ] {
            assert!(!fuzz_key(bad.as_bytes()), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_key_is_read_as_it_was_written(id: u32, secret: [u8; SECRET_BYTES]) {
            let key = ApiKey { id: ApiKeyId(id), secret };
            prop_assert_eq!(key.reveal().parse(), Ok(key.clone()));
            prop_assert_eq!(key.id().to_string().parse(), Ok(key.id()));
        }

        #[test]
        fn one_changed_character_is_another_key_or_none(id: u32, secret: [u8; SECRET_BYTES], at in 0_usize..58, to: u8) {
            let key = ApiKey { id: ApiKeyId(id), secret };
            let mut bytes = key.reveal().into_bytes();
            prop_assume!(bytes[at] != to);
            bytes[at] = to;
            prop_assert!(ApiKey::parse(&bytes).is_ok_and(|other| other != key) || ApiKey::parse(&bytes).is_err());
        }
    }
}
