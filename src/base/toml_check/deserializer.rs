//! Deserializes a parsed TOML value, and says where in the text an error is.
//!
//! The deserializer of `toml` takes the value, which is read many times here, and has every type read from a place and
//! from a date too: the section of the configuration alone would be compiled four times.

use std::fmt;
use std::ops::Range;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// An error of [`Entry`], with the bytes of the text that it is about.
#[derive(Debug)]
pub struct ReadError {
    message: String,
    span: Option<Range<usize>>,
}

impl ReadError {
    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn span(&self) -> Option<Range<usize>> {
        self.span.clone()
    }

    /// The same error at `span`, if it has no place yet: the innermost one counts.
    fn within(self, span: &Range<usize>) -> Self {
        Self { span: self.span.or_else(|| Some(span.clone())), ..self }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ReadError {}

impl serde::de::Error for ReadError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { message: message.to_string(), span: None }
    }
}

/// The text's table, a key or a value, with its place.
pub struct Entry<'d, 't> {
    part: Part<'d, 't>,
    span: Range<usize>,
}

#[derive(Clone, Copy)]
enum Part<'d, 't> {
    Table(&'d DeTable<'t>),
    Key(&'d str),
    Value(&'d DeValue<'t>),
}

impl<'d, 't> Entry<'d, 't> {
    /// The table of the whole text.
    pub fn root(table: &'d Spanned<DeTable<'t>>) -> Self {
        Self { part: Part::Table(table.get_ref()), span: table.span() }
    }

    fn key(key: &'d Spanned<DeString<'t>>) -> Self {
        Self { part: Part::Key(key.get_ref()), span: key.span() }
    }

    fn value(value: &'d Spanned<DeValue<'t>>) -> Self {
        Self { part: Part::Value(value.get_ref()), span: value.span() }
    }

    fn visit<'de, V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, ReadError> {
        let value = match self.part {
            Part::Table(table) => return visitor.visit_map(Entries::of(table)),
            Part::Key(key) => return visitor.visit_str(key),
            Part::Value(value) => value,
        };
        match value {
            DeValue::String(text) => visitor.visit_str(text),
            DeValue::Boolean(flag) => visitor.visit_bool(*flag),
            DeValue::Array(array) => visitor.visit_seq(Elements(array.iter())),
            DeValue::Table(table) => visitor.visit_map(Entries::of(table)),
            DeValue::Datetime(_) => Err(ReadError::invalid_type(Unexpected::Other("a date or a time"), &visitor)),
            DeValue::Integer(number) => {
                let (digits, radix) = (number.as_str(), number.radix());
                if let Ok(number) = i64::from_str_radix(digits, radix) {
                    visitor.visit_i64(number)
                } else if let Ok(number) = u64::from_str_radix(digits, radix) {
                    visitor.visit_u64(number)
                } else {
                    let number = format!("integer `{number}`");
                    Err(ReadError::invalid_type(Unexpected::Other(&number), &visitor))
                }
            }
            // The parser accepts more digits than a float has, and `1e999`.
            DeValue::Float(number) => match number.as_str().parse::<f64>() {
                Ok(value) if !value.is_infinite() || number.as_str().contains("inf") => visitor.visit_f64(value),
                _ => Err(ReadError::custom("floating-point number overflowed")),
            },
        }
    }
}

impl<'de> Deserializer<'de> for Entry<'_, '_> {
    type Error = ReadError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.visit(visitor).map_err(|error| error.within(&self.span))
    }

    // There is no null in TOML: what is there is something.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let span = self.span.clone();
        visitor.visit_some(self).map_err(|error| error.within(&span))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, ReadError> {
        let span = self.span.clone();
        visitor.visit_newtype_struct(self).map_err(|error| error.within(&span))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let span = self.span.clone();
        visitor.visit_enum(self).map_err(|error| error.within(&span))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

/// A name, or a table of one entry: `"none"` or `{ limited = 3 }`.
impl<'de, 'd, 't> EnumAccess<'de> for Entry<'d, 't> {
    type Error = ReadError;
    type Variant = Content<'d, 't>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self::Variant), ReadError> {
        let table = match self.part {
            Part::Key(_) | Part::Value(DeValue::String(_)) => return Ok((seed.deserialize(self)?, Content(None))),
            Part::Table(table) | Part::Value(DeValue::Table(table)) => table,
            Part::Value(_) => return Err(ReadError::custom("wanted string or table")),
        };
        match (table.len(), table.iter().next()) {
            (1, Some((key, value))) => Ok((seed.deserialize(Entry::key(key))?, Content(Some(Entry::value(value))))),
            (count, _) => Err(ReadError::custom(format_args!("wanted exactly 1 element, found {count} elements"))),
        }
    }
}

/// The content of an enum's variant; `None` for one that is only named.
pub struct Content<'d, 't>(Option<Entry<'d, 't>>);

impl<'d, 't> Content<'d, 't> {
    fn entry(self) -> Result<Entry<'d, 't>, ReadError> {
        self.0.ok_or_else(|| ReadError::custom("wanted a table of one entry"))
    }
}

impl<'de> VariantAccess<'de> for Content<'_, '_> {
    type Error = ReadError;

    fn unit_variant(self) -> Result<(), ReadError> {
        match self.0 {
            None => Ok(()),
            Some(entry) => Err(ReadError::custom("wanted a string").within(&entry.span)),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, ReadError> {
        seed.deserialize(self.entry()?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, ReadError> {
        self.entry()?.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, ReadError> {
        self.entry()?.deserialize_any(visitor)
    }
}

struct Elements<'d, 't>(std::slice::Iter<'d, Spanned<DeValue<'t>>>);

impl<'de> SeqAccess<'de> for Elements<'_, '_> {
    type Error = ReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, ReadError> {
        self.0.next().map(|value| seed.deserialize(Entry::value(value))).transpose()
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

struct Entries<'d, 't> {
    left: toml::map::Iter<'d, Spanned<DeString<'t>>, Spanned<DeValue<'t>>>,
    value: Option<Entry<'d, 't>>,
}

impl<'d, 't> Entries<'d, 't> {
    fn of(table: &'d DeTable<'t>) -> Self {
        Self { left: table.iter(), value: None }
    }
}

impl<'de> MapAccess<'de> for Entries<'_, '_> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ReadError> {
        let Some((key, value)) = self.left.next() else { return Ok(None) };
        self.value = Some(Entry::value(value));
        seed.deserialize(Entry::key(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ReadError> {
        let value = self.value.take().ok_or_else(|| ReadError::custom("a value is asked for before its key"))?;
        let span = value.span.clone();
        seed.deserialize(value).map_err(|error| error.within(&span))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left.len())
    }
}
