//! Deserializes a parsed TOML value, notes unknown keys and the place of each entry, and says where an error is.
//!
//! The deserializer of `toml` stops at the first unknown key, and has every type read from a place and from a date too:
//! each section of the configuration would be compiled four times.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, Expected, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use toml::Spanned;
use toml::de::{DeString, DeValue};

use super::keys::within;
use crate::serde_messages::expected;

/// The most mistakes of one text that are reported.
pub const MAX_MISTAKES: usize = 50;

/// The results of reading besides the value.
#[derive(Debug, Default)]
pub struct TomlReadNotes {
    /// The keys of the entries to leave out.
    pub left_out: BTreeSet<String>,
    /// The offset of each entry by its key, and whether it is a table that is not an element of an array.
    pub places: BTreeMap<String, (usize, bool)>,
    /// The mistakes by their offset and key.
    pub mistakes: BTreeMap<(usize, String), String>,
}

impl TomlReadNotes {
    pub fn mistake(&mut self, at: usize, key: String, message: String) {
        if self.mistakes.len() <= MAX_MISTAKES {
            self.mistakes.insert((at, key), message);
        }
    }
}

/// A value that could not be read.
#[derive(Debug)]
pub struct TomlReadError {
    pub message: String,
    /// The offset of the value in the text, and its key; those of the document itself are unknown and empty.
    pub at: Option<usize>,
    pub key: String,
}

impl TomlReadError {
    /// The same error in an entry, if it has no place yet: the innermost one counts.
    fn within(self, (at, key): (usize, String)) -> Self {
        if self.at.is_some() { self } else { Self { at: Some(at), key, ..self } }
    }
}

impl fmt::Display for TomlReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for TomlReadError {}

// A message never quotes a text that has the wrong type: it may be a secret.
impl serde::de::Error for TomlReadError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { message: message.to_string(), at: None, key: String::new() }
    }

    fn invalid_type(got: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        let got = match got {
            Unexpected::Bool(flag) => flag.to_string(),
            Unexpected::Unsigned(number) => number.to_string(),
            Unexpected::Signed(number) => number.to_string(),
            Unexpected::Float(number) => format!("{number:?}"),
            Unexpected::Str(_) => "a string".to_owned(),
            Unexpected::Seq => "an array".to_owned(),
            Unexpected::Map => "a table".to_owned(),
            other => other.to_string(),
        };
        Self::custom(format_args!("expected {}, got {got}", expected(&wanted.to_string(), "table")))
    }

    fn invalid_value(got: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        Self::invalid_type(got, wanted)
    }

    fn invalid_length(count: usize, wanted: &dyn Expected) -> Self {
        Self::custom(format_args!("expected {}, got {count} entries", expected(&wanted.to_string(), "table")))
    }

    fn unknown_variant(name: &str, known: &'static [&'static str]) -> Self {
        Self::custom(format_args!("unknown value `{name}`, {}", one_of(known)))
    }

    fn missing_field(name: &'static str) -> Self {
        Self::custom(format_args!("`{name}` is missing"))
    }
}

fn one_of(known: &[&str]) -> String {
    match known {
        [] => "expected none".to_owned(),
        [one] => format!("expected `{one}`"),
        [one, other] => format!("expected `{one}` or `{other}`"),
        all => format!("expected one of `{}`", all.join("`, `")),
    }
}

/// A value with its key.
#[derive(Clone)]
pub struct TomlEntry<'d> {
    value: &'d DeValue<'d>,
    key: String,
    notes: &'d RefCell<TomlReadNotes>,
}

impl<'d> TomlEntry<'d> {
    /// The document itself.
    pub fn root(value: &'d DeValue<'d>, notes: &'d RefCell<TomlReadNotes>) -> Self {
        Self { value, key: String::new(), notes }
    }

    /// Reads an entry of this table or array.
    fn read<'de, S: DeserializeSeed<'de>>(
        &self,
        key: &str,
        value: &'d Spanned<DeValue<'d>>,
        seed: S,
    ) -> Result<S::Value, TomlReadError> {
        let (at, is_section) = (value.span().start, value.get_ref().is_table() && !key.starts_with('['));
        let key = within(&self.key, key);
        self.notes.borrow_mut().places.insert(key.clone(), (at, is_section));
        let entry = Self { value: value.get_ref(), key: key.clone(), notes: self.notes };
        seed.deserialize(entry).map_err(|error| error.within((at, key)))
    }

    fn is_left_out(&self, key: &str) -> bool {
        let left_out = &self.notes.borrow().left_out;
        !left_out.is_empty() && left_out.contains(&within(&self.key, key))
    }

    /// The entries of a table with known keys; all of them if `known` is `None`.
    fn entries(self, known: Option<&[&str]>) -> TomlTableAccess<'d> {
        let is_known = |key: &Spanned<DeString<'_>>| {
            let name: &str = key.get_ref();
            let unknown = known.filter(|known| !known.contains(&name));
            if let Some(known) = unknown {
                let message = format!("unknown field `{name}`, {}", one_of(known));
                self.notes.borrow_mut().mistake(key.span().start, within(&self.key, name), message);
            }
            unknown.is_none() && !self.is_left_out(name)
        };
        let all = self.value.as_table().into_iter().flatten();
        let left: Vec<_> = all.filter(|(key, _)| is_known(key)).collect();
        TomlTableAccess { table: self, left: left.into_iter(), value: None }
    }
}

impl<'de> Deserializer<'de> for TomlEntry<'_> {
    type Error = TomlReadError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TomlReadError> {
        match self.value {
            DeValue::String(text) => visitor.visit_str(text),
            DeValue::Boolean(flag) => visitor.visit_bool(*flag),
            DeValue::Array(array) => visitor.visit_seq(TomlElements { left: array.iter().enumerate(), array: self }),
            DeValue::Table(_) => visitor.visit_map(self.entries(None)),
            DeValue::Datetime(_) => Err(TomlReadError::invalid_type(Unexpected::Other("a date or a time"), &visitor)),
            DeValue::Integer(number) => {
                let (digits, radix) = (number.as_str(), number.radix());
                if let Ok(number) = i64::from_str_radix(digits, radix) {
                    visitor.visit_i64(number)
                } else if let Ok(number) = u64::from_str_radix(digits, radix) {
                    visitor.visit_u64(number)
                } else {
                    Err(TomlReadError::invalid_type(Unexpected::Other("a larger number"), &visitor))
                }
            }
            // The parser accepts more digits than a float has, and `1e999`.
            DeValue::Float(number) => match number.as_str().parse::<f64>() {
                Ok(value) if !value.is_infinite() || number.as_str().contains("inf") => visitor.visit_f64(value),
                _ => Err(TomlReadError::custom("floating-point number overflowed")),
            },
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TomlReadError> {
        if self.value.is_table() {
            visitor.visit_map(self.entries(Some(fields)))
        } else {
            self.deserialize_any(visitor)
        }
    }

    // TOML has no null, so a present key always has a value.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TomlReadError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, TomlReadError> {
        visitor.visit_newtype_struct(self)
    }

    /// A name, or a table of one entry: `"none"` or `{ limited = 3 }`.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TomlReadError> {
        match self.value {
            DeValue::String(text) => visitor.visit_enum(text.as_ref().into_deserializer()),
            DeValue::Table(table) if table.len() == 1 => {
                visitor.visit_enum(MapAccessDeserializer::new(self.entries(None)))
            }
            DeValue::Table(_) => Err(TomlReadError::custom("expected a table of one entry")),
            _ => Err(TomlReadError::custom("expected a string or a table")),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

struct TomlElements<'d> {
    array: TomlEntry<'d>,
    left: std::iter::Enumerate<std::slice::Iter<'d, Spanned<DeValue<'d>>>>,
}

impl<'de> SeqAccess<'de> for TomlElements<'_> {
    type Error = TomlReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, TomlReadError> {
        let mut all = self.left.by_ref().map(|(index, value)| (format!("[{index}]"), value));
        let next = all.find(|(key, _)| !self.array.is_left_out(key));
        next.map(|(key, value)| self.array.read(&key, value, seed)).transpose()
    }
}

type KeyValue<'d> = (&'d Spanned<DeString<'d>>, &'d Spanned<DeValue<'d>>);

struct TomlTableAccess<'d> {
    table: TomlEntry<'d>,
    left: std::vec::IntoIter<KeyValue<'d>>,
    /// The entry whose key was read.
    value: Option<KeyValue<'d>>,
}

impl<'de> MapAccess<'de> for TomlTableAccess<'_> {
    type Error = TomlReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, TomlReadError> {
        self.value = self.left.next();
        let Some((key, _)) = self.value else { return Ok(None) };
        let name: &str = key.get_ref();
        let read = seed.deserialize(name.into_deserializer());
        read.map(Some).map_err(|error: TomlReadError| error.within((key.span().start, within(&self.table.key, name))))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, TomlReadError> {
        let (key, value) = self.value.ok_or_else(|| TomlReadError::custom("a value is asked for before its key"))?;
        self.table.read(key.get_ref(), value, seed)
    }
}
