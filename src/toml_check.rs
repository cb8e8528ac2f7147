//! Reads TOML into a type and reports every mistake in it at once, each with its place.
//!
//! serde stops at the first error. So the entry that an error points into is noted and left out, and the rest is tried
//! again, until it fits or nothing is left to leave out. Work is bounded: at most [`MAX_MISTAKES`] rounds, fewer for a
//! large text.

mod document;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::Serializer;
use serde::de::{DeserializeOwned, Deserializer, Unexpected, Visitor};

use document::{Document, Path};

/// How many mistakes of one text are reported at most.
pub const MAX_MISTAKES: usize = 50;

/// How many entries, summed over all rounds, are looked at. A text of 10,000 entries still gets every round.
const BUDGET: usize = 500_000;

/// The longest message and key shown, in characters: a mistake may quote its value, and that may be the whole file.
const LONGEST_SHOWN: usize = 300;

/// One mistake in a TOML text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Where the text came from: a file name, an environment variable, a command line option.
    pub source: String,
    /// The line in the file, from 1. `None` when a line would say nothing: no file, or the mistake is an absence.
    pub line: Option<usize>,
    /// The column in that line, from 1, in characters. Only for a text that is no TOML: there is no key to name then.
    pub column: Option<usize>,
    /// The key, as in `http.listen[1]`; empty when the mistake is not about one.
    pub key: String,
    /// What was expected instead.
    pub message: String,
}

impl Mistake {
    /// A mistake without a place in a text.
    pub fn new(source: impl Into<String>, key: impl Into<String>, message: impl fmt::Display) -> Self {
        let (key, message) = (shown(&key.into()), shown(&message.to_string()));
        Self { source: source.into(), line: None, column: None, key, message }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        for position in [self.line, self.column].into_iter().flatten() {
            write!(f, ":{position}")?;
        }
        if !self.key.is_empty() && !self.source.ends_with(&self.key) {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// What [`check`] found out about a text.
#[derive(Debug)]
pub struct Checked<T> {
    /// The value, with defaults where mistakes were left out; `None` when it cannot be had without them.
    pub value: Option<T>,
    /// The entries without a mistake.
    pub accepted: toml::Table,
    /// The line of each accepted value that is not a table, and of each element of an array, by its key.
    pub lines: BTreeMap<String, usize>,
    /// The mistakes, in the order of the text.
    pub mistakes: Vec<Mistake>,
}

/// Reads `text` into a `T`, or reports every mistake in it.
pub fn parse<T: DeserializeOwned>(source: &str, text: &str) -> Result<T, Vec<Mistake>> {
    let checked = check(source, text);
    match checked.value {
        Some(value) if checked.mistakes.is_empty() => Ok(value),
        _ => Err(checked.mistakes),
    }
}

/// Reads `text` into a `T` as far as it can be read, beside every mistake in it.
pub fn check<T: DeserializeOwned>(source: &str, text: &str) -> Checked<T> {
    let original = match Document::parse(text) {
        Ok(document) => document,
        Err(mistake) => {
            let (line, column) = mistake.position.unzip();
            let mistake = Mistake { line, column, ..Mistake::new(source, "", mistake.message) };
            return Checked {
                value: None,
                accepted: toml::Table::new(),
                lines: BTreeMap::new(),
                mistakes: vec![mistake],
            };
        }
    };
    let rounds = (BUDGET / original.entries().max(1)).clamp(1, MAX_MISTAKES);
    let mut document = original.clone();
    let mut left_out: Vec<Path> = Vec::new();
    let mut found: Vec<(usize, Mistake)> = Vec::new();
    let value = loop {
        let error = match document.deserialize::<T>() {
            Ok(value) => break Some(value),
            Err(error) => error,
        };
        let span = error.span().filter(|span| !span.is_empty());
        // Named by the original: leaving out an element of an array moves the ones behind it.
        let place = span.as_ref().map(|span| original.locate(span)).unwrap_or_default();
        if !is_consequence(error.message(), &place, &left_out) {
            let line = span.as_ref().map(|span| original.position(span.start).0);
            let mistake = Mistake { line, ..Mistake::new(source, document::key(&place), error.message()) };
            found.push((span.as_ref().map_or(usize::MAX, |span| span.start), mistake));
        }
        let removed = span.is_some_and(|span| document.remove(&document.locate(&span)));
        if !removed || left_out.len() + 1 >= rounds {
            break None;
        }
        left_out.push(place);
    };
    found.sort_by_key(|(start, _)| *start);
    Checked {
        value,
        accepted: document.plain(),
        lines: document.lines(),
        mistakes: found.into_iter().map(|(_, mistake)| mistake).collect(),
    }
}

/// Whether the error at `place` is only there because something inside it was left out.
fn is_consequence(message: &str, place: &Path, left_out: &[Path]) -> bool {
    let mut inside = left_out.iter().filter(|path| path.len() == place.len() + 1 && path.starts_with(place));
    match message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        Some(field) => inside.any(|path| path.last().is_some_and(|step| step.is_key(field))),
        None => inside.next().is_some(),
    }
}

/// Text from outside, safe and short enough for a terminal.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(LONGEST_SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

/// For `#[serde(deserialize_with = "in_range::<MIN, MAX, _, _>")]`: a whole number from `MIN` to `MAX`, both included.
pub fn in_range<'de, const MIN: u64, const MAX: u64, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: TryFrom<u64>,
    D: Deserializer<'de>,
{
    struct InRange<const MIN: u64, const MAX: u64, T>(PhantomData<T>);

    impl<const MIN: u64, const MAX: u64, T: TryFrom<u64>> Visitor<'_> for InRange<MIN, MAX, T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a whole number from {MIN} to {MAX}")
        }

        fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<T, E> {
            let value = if (MIN..=MAX).contains(&number) { T::try_from(number).ok() } else { None };
            value.ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
        }

        fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<T, E> {
            match u64::try_from(number) {
                Ok(number) => self.visit_u64(number),
                Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
            }
        }
    }

    deserializer.deserialize_u64(InRange::<MIN, MAX, T>(PhantomData))
}

/// For a type that is a checked text: deserializes a string and parses it.
pub fn from_text<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    struct FromText<T>(PhantomData<T>);

    impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for FromText<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        // In here, and not after a String was had, so that the error still points to the element of an array.
        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }

    deserializer.deserialize_str(FromText(PhantomData))
}

/// For a checked text that may be absent: an empty text is none. [`empty_if_none`] writes it.
pub fn none_if_empty<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    struct OrEmpty<T>(Option<T>);

    impl<T: FromStr> FromStr for OrEmpty<T> {
        type Err = T::Err;

        fn from_str(text: &str) -> Result<Self, T::Err> {
            if text.is_empty() { Ok(Self(None)) } else { text.parse().map(|value| Self(Some(value))) }
        }
    }

    from_text::<OrEmpty<T>, D>(deserializer).map(|OrEmpty(value)| value)
}

/// For [`none_if_empty`]: writes none as an empty text.
pub fn empty_if_none<T: fmt::Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_str(""),
    }
}

#[cfg(test)]
mod tests;
