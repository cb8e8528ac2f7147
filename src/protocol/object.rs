//! JSON objects and arrays read entry by entry, without a tree in between.
//!
//! serde's derived structs would also take an array in place of an object; the protocol does not.

use std::borrow::Cow;
use std::fmt;

use ledge_base::serde_messages::in_json;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::error::{ProtocolError, excerpt};

/// Reads `json`, one object, into an [`ObjectFields`], which may have recorded a better reason for an error in its
/// [`FirstError`].
pub(super) fn read<'de>(json: &'de [u8], fields: &mut impl ObjectFields<'de>) -> Result<(), ProtocolError> {
    let text = std::str::from_utf8(json).map_err(|_| ProtocolError::NotText)?;
    if text.trim().is_empty() {
        return Err(ProtocolError::Json { reason: "the body is empty".into() });
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    ObjectSeed(fields)
        .deserialize(&mut deserializer)
        .and_then(|()| deserializer.end())
        .map_err(|error| ProtocolError::Json { reason: excerpt(&in_json(&error.to_string())) })
}

/// The first error in a message; serde's own errors carry only text.
#[derive(Debug, Default)]
pub(super) struct FirstError(Option<ProtocolError>);

impl FirstError {
    /// Keeps the error, if it is the first, and returns an error that stops serde.
    pub(super) fn refuse<E: Error>(&mut self, error: ProtocolError) -> E {
        self.0.get_or_insert(error);
        E::custom("refused")
    }

    /// Passes a result on; an error without a reason yet is recorded as one of this key's value.
    pub(super) fn field<T, E: Error>(&mut self, place: &str, key: &str, result: Result<T, E>) -> Result<T, E> {
        result.inspect_err(|error| {
            let (key, reason) = (excerpt(key), excerpt(&in_json(&error.to_string())));
            self.0.get_or_insert_with(|| ProtocolError::Field { place: place.into(), key, reason });
        })
    }

    /// Refuses a key that was `seen` before in its object.
    pub(super) fn once<E: Error>(&mut self, place: &str, key: &'static str, seen: bool) -> Result<(), E> {
        if seen { Err(self.refuse(ProtocolError::DuplicateKey { place: place.into(), key })) } else { Ok(()) }
    }

    /// Returns the first error, or else `error`.
    pub(super) fn or(self, error: ProtocolError) -> ProtocolError {
        self.0.unwrap_or(error)
    }
}

/// Takes the entries of one JSON object.
pub(super) trait ObjectFields<'de> {
    /// Description of the object, for a message: "expected ...".
    const EXPECTED: &'static str;

    /// Takes the value of `key`, or skips it.
    fn field<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error>;
}

/// Takes the entries of one JSON array.
pub(super) trait ArrayItems<'de> {
    /// Description of the array, for a message: "expected ...".
    const EXPECTED: &'static str;

    /// Takes one entry; `false` at the end.
    fn item<A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error>;
}

/// Reads an object into an [`ObjectFields`].
pub(super) struct ObjectSeed<'f, F>(pub &'f mut F);

impl<'de, F: ObjectFields<'de>> DeserializeSeed<'de> for ObjectSeed<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F: ObjectFields<'de>> Visitor<'de> for ObjectSeed<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(F::EXPECTED)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(ObjectKey(key)) = map.next_key()? {
            self.0.field(&key, &mut map)?;
        }
        Ok(())
    }
}

/// A key, borrowed from the body when it has no escapes.
#[derive(Deserialize)]
struct ObjectKey<'a>(#[serde(borrow)] Cow<'a, str>);

/// Reads an array into an [`ArrayItems`].
pub(super) struct ArraySeed<'f, I>(pub &'f mut I);

impl<'de, I: ArrayItems<'de>> DeserializeSeed<'de> for ArraySeed<'_, I> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, I: ArrayItems<'de>> Visitor<'de> for ArraySeed<'_, I> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(I::EXPECTED)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while self.0.item(&mut seq)? {}
        Ok(())
    }
}

/// Reads a value that may be `null`, which counts as absent: some clients write out every optional key. Returns true
/// when there was a value.
pub(super) struct NullableSeed<S>(pub S);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for NullableSeed<S> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, S: DeserializeSeed<'de>> Visitor<'de> for NullableSeed<S> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value or null")
    }

    fn visit_none<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        self.0.deserialize(deserializer).map(|_| true)
    }
}
