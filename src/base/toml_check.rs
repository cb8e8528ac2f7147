//! Reads TOML into a type and reports every mistake in it at once, each with its place.
//!
//! serde stops at the first error. The entry that an error points to is noted and replaced by a stand-in, or left out,
//! and the rest is read again until it fits. A stand-in keeps the surroundings of a mistake: a table with a wrong key
//! stays, and its other keys are checked. The work is bounded: at most [`MAX_MISTAKES`] mistakes, fewer for a large
//! text.

mod deserializer;
mod document;
mod problem;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::Serializer;
use serde::de::{DeserializeOwned, Deserializer, Unexpected, Visitor};
use toml::de::DeValue;

use crate::serde_messages::in_toml;
use deserializer::ReadError;
pub use document::EntryPlace;
use document::{Document, Path, PathStep};
pub use problem::{Misread, Problem};

/// The most mistakes of one text that are reported.
pub const MAX_MISTAKES: usize = 50;

/// The most entries that are read, summed over all readings.
const ENTRY_READS_MAX: usize = 1_000_000;

/// The longest message and key shown, in characters: a mistake may quote its value, which may be the whole file.
const SHOWN_CHARS_MAX: usize = 330;

/// One mistake in a TOML text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The source of the text: a file name, an environment variable, a command line option.
    pub source: String,
    /// The line in the file, from 1. `None` when there is no file, or something is missing.
    pub line: Option<usize>,
    /// The column in that line, from 1, in characters. Only for a text that is not TOML, which has no key to name.
    pub column: Option<usize>,
    /// The key, as in `http.listen[1]`; empty when the mistake is not about one.
    pub key: String,
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

/// The result of [`check`].
#[derive(Debug)]
pub struct Checked<T> {
    /// The value, with defaults and stand-ins in the place of mistakes; `None` when no value could be read. After a
    /// mistake it serves only to find others.
    pub value: Option<T>,
    /// The same as a table: the entries without a mistake, and stand-ins.
    pub accepted: toml::Table,
    /// The place of each entry of the text, by its key among the accepted ones.
    pub places: BTreeMap<String, EntryPlace>,
    /// The mistakes, in the order of the text.
    pub mistakes: Vec<Mistake>,
    /// The keys of the mistakes.
    pub misread: Misread,
}

impl<T> Checked<T> {
    /// Turns a problem with a key of the value into a mistake with its place in the text; `None` if it may follow from
    /// one that is reported already.
    pub fn problem(&self, source: &str, problem: &Problem) -> Option<Mistake> {
        let in_text = |key: &str| match nearest(&self.places, key, 0) {
            Some((EntryPlace { line, key, .. }, below)) => (Some(*line), format!("{key}{below}")),
            None => (None, key.to_owned()),
        };
        if self.misread.explains(problem, |key| in_text(key).1) {
            return None;
        }
        let (line, key) = in_text(&problem.key);
        Some(Mistake { line, ..Mistake::new(source, key, &problem.message) })
    }
}

/// The key of an entry of a table or array: `camera` and `[0].url` make `camera[0].url`.
pub fn within(table: &str, key: &str) -> String {
    let dot = if key.starts_with('[') { "" } else { "." };
    format!("{table}{dot}{key}")
}

/// Looks up a key, or else the nearest table or array that contains it: returns the entry and the rest of the key. The
/// part that is looked up has at least `from` bytes.
pub fn nearest<'p, 'k, P>(known: &'p BTreeMap<String, P>, key: &'k str, from: usize) -> Option<(&'p P, &'k str)> {
    let above = |end: &usize| key.get(..*end)?.rfind(['.', '[']).filter(|end| *end >= from);
    let mut own_and_above = std::iter::successors(Some(key.len()), above);
    own_and_above.find_map(|end| Some((known.get(key.get(..end)?)?, key.get(end..)?)))
}

/// Reads `text` into a `T`, or reports every mistake in it.
pub fn parse<T: DeserializeOwned>(source: &str, text: &str) -> Result<T, Vec<Mistake>> {
    let checked = check(source, text);
    match checked.value {
        Some(value) if checked.mistakes.is_empty() => Ok(value),
        _ => Err(checked.mistakes),
    }
}

/// Reads `text` into a `T` as far as possible, and collects every mistake in it.
pub fn check<T: DeserializeOwned>(source: &str, text: &str) -> Checked<T> {
    let (document, errors) = Document::parse(text);
    let mistakes = errors.into_iter().map(|error| {
        let (line, column) = error.position.unzip();
        (error.position, Mistake { line, column, ..Mistake::new(source, "", error.message) })
    });
    let Some(original) = document else {
        return Checked {
            value: None,
            accepted: toml::Table::new(),
            places: BTreeMap::new(),
            mistakes: mistakes.map(|(_, mistake)| mistake).collect(),
            misread: Misread::default(),
        };
    };

    let mut search = Search::new(source, original);
    search.found.extend(mistakes);
    let value = search.run();

    let Search { original, document, misread, mut found, .. } = search;
    // Mistakes without a position come last.
    found.sort_by_key(|(position, _)| position.unwrap_or((usize::MAX, 0)));
    Checked {
        value,
        accepted: document.plain(),
        places: document.places(&original),
        mistakes: found.into_iter().map(|(_, mistake)| mistake).collect(),
        misread: Misread { keys: misread.iter().map(|path| document::key(path)).collect() },
    }
}

/// The beginning of every stand-in that is a text.
const STAND_IN: &str = "ledge-stand-in-";

/// The search for every mistake in a document.
struct Search<'t> {
    source: &'t str,
    original: Document<'t>,
    /// The same with stand-ins, and without entries that no stand-in fits.
    document: Document<'t>,
    /// The number of readings that are left.
    reads_left: usize,
    /// The paths of mistakes in the original.
    misread: Vec<Path>,
    /// The paths that were left out.
    removed: Vec<Path>,
    /// The mistakes, each with its line and column.
    found: Vec<(Option<(usize, usize)>, Mistake)>,
}

impl<'t> Search<'t> {
    fn new(source: &'t str, original: Document<'t>) -> Self {
        let reads_left = (ENTRY_READS_MAX / original.entries().max(1)).clamp(1, MAX_MISTAKES * 16);
        let document = original.clone();
        Self { source, original, document, reads_left, misread: vec![], removed: vec![], found: vec![] }
    }

    /// Reads the document until nothing in it is wrong.
    fn run<T: DeserializeOwned>(&mut self) -> Option<T> {
        while self.found.len() <= MAX_MISTAKES
            && let Some(read) = self.read::<T>()
        {
            match read {
                Ok(value) => return Some(value),
                Err(_) if self.found.len() == MAX_MISTAKES => break,
                Err(error) if !self.repair::<T>(&error) => return None,
                Err(_) => {}
            }
        }
        let more = "has more mistakes than are reported at once: correct these first";
        self.found.push((None, Mistake::new(self.source, "", more)));
        None
    }

    fn read<T: DeserializeOwned>(&mut self) -> Option<Result<T, ReadError>> {
        self.reads_left = self.reads_left.checked_sub(1)?;
        Some(self.document.deserialize())
    }

    /// Notes a mistake and replaces the entry by a stand-in, or leaves it out; false when the rest cannot be read.
    fn repair<T: DeserializeOwned>(&mut self, error: &ReadError) -> bool {
        let span = error.span().filter(|span| !span.is_empty());
        // The path in the original: removing an element of an array moves the elements after it.
        let place = span.as_ref().map(|span| self.original.locate(span)).unwrap_or_default();
        let here = span.as_ref().map(|span| self.document.locate(span)).unwrap_or_default();
        let missing = missing_field(error.message()).map(|field| PathStep::Key(field.to_owned()));
        let wrong = [place.as_slice(), missing.as_slice()].concat();

        let is_first = !self.misread.contains(&wrong);
        // A table or array may be wrong only because an entry was removed from it.
        let is_hollow = missing.is_none()
            && self.removed.iter().any(|path| path.len() == place.len() + 1 && path.starts_with(&place));
        if is_first && !is_hollow {
            let position = span.as_ref().map(|span| self.original.position(span.start));
            let line = position.map(|(line, _)| line);
            let mistake =
                Mistake { line, ..Mistake::new(self.source, document::key(&place), in_toml(error.message())) };
            self.found.push((position, mistake));
        }
        if is_first {
            self.misread.push(wrong);
            let is_unknown = error.message().starts_with("unknown field ");
            let target = [here.as_slice(), missing.as_slice()].concat();
            if !is_hollow && !is_unknown && self.stand_in::<T>(&target) {
                return true;
            }
        }
        self.removed.push(place);
        self.document.remove(&here)
    }

    /// Puts a value at `path` that fits there, whatever it means, so that its surroundings are checked too.
    fn stand_in<T: DeserializeOwned>(&mut self, path: &[PathStep]) -> bool {
        let before = self.document.clone();
        let number = self.misread.len();
        for value in stand_ins(number) {
            if !self.document.put(path, value) {
                break;
            }
            match self.read::<T>() {
                Some(Err(error)) if error.span().is_some_and(|span| self.document.is_stand_in(&span)) => {}
                Some(_) => return true,
                None => break,
            }
        }
        self.document = before;
        false
    }
}

/// Values of which nearly every key accepts one. Each text is unique.
fn stand_ins<'t>(number: usize) -> impl Iterator<Item = DeValue<'t>> {
    let name = format!("{STAND_IN}{number}");
    let texts = [name.clone(), format!("{name}:1"), format!("unix:{name}"), format!("$.{name}")];
    let texts = texts.into_iter().map(|text| DeValue::String(text.into()));
    let others = ["1", "false", "[]", "[1, 1]", "{}"].into_iter().filter_map(|text| DeValue::parse(text).ok());
    texts.chain(others.map(toml::Spanned::into_inner))
}

fn missing_field(message: &str) -> Option<&str> {
    message.strip_prefix("missing field `")?.strip_suffix('`')
}

/// Makes text from outside safe and short enough for a terminal.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
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

        // Parsed here, and not after deserializing a String, so that the error points to the element of an array.
        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }

    deserializer.deserialize_str(FromText(PhantomData))
}

/// For a checked text that may be absent: an empty text is `None`. [`empty_if_none`] writes it.
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

/// For [`none_if_empty`]: writes `None` as an empty text.
pub fn empty_if_none<T: fmt::Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_str(""),
    }
}

/// Every mistake in a configuration, as one error.
#[derive(Debug)]
pub struct BadConfiguration(pub Vec<Mistake>);

impl fmt::Display for BadConfiguration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => f.write_str("a mistake in the configuration:")?,
            count => write!(f, "{count} mistakes in the configuration:")?,
        }
        self.0.iter().try_for_each(|mistake| write!(f, "\n  {mistake}"))
    }
}

impl std::error::Error for BadConfiguration {}

#[cfg(test)]
mod tests;
