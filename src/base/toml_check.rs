//! Reads TOML into a type and reports every mistake in it at once, each with its place.
//!
//! serde stops at the first error. So the entry that an error points into is noted, a stand-in takes its place or it is left
//! out, and the rest is read again, until it fits. A stand-in keeps what stands around a mistake: a table whose key is
//! wrong stays there, and its other keys are looked at. Work is bounded: at most [`MAX_MISTAKES`], fewer for a large text.

mod document;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::Serializer;
use serde::de::{DeserializeOwned, Deserializer, Unexpected, Visitor};
use toml::de::DeValue;

use crate::plain_words::in_toml;
pub use document::Place;
use document::{Document, Path, Step};

/// How many mistakes of one text are reported at most.
pub const MAX_MISTAKES: usize = 50;

/// The most entries that are looked at, summed over all readings.
const BUDGET: usize = 1_000_000;

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
    /// The value, with defaults and stand-ins where mistakes are; `None` when it cannot be had without them. With a mistake
    /// it serves to find others, and for nothing else.
    pub value: Option<T>,
    /// The same before it was a `T`: the entries without a mistake, and stand-ins.
    pub accepted: toml::Table,
    /// Where each entry of the text stands, by its key among the accepted ones.
    pub places: BTreeMap<String, Place>,
    /// The mistakes, in the order of the text.
    pub mistakes: Vec<Mistake>,
    /// The keys of the mistakes.
    pub misread: Misread,
}

impl<T> Checked<T> {
    /// A problem with a key of the value as a mistake with its place in the text; `None` where it may follow from one that is
    /// reported already.
    pub fn problem(&self, source: &str, key: &str, message: impl fmt::Display) -> Option<Mistake> {
        let mistake = match nearest(&self.places, key, 0) {
            Some((Place { line, key, .. }, below)) => {
                Mistake { line: Some(*line), ..Mistake::new(source, format!("{key}{below}"), message) }
            }
            None => Mistake::new(source, key, message),
        };
        (!self.misread.explains(&mistake.key, &mistake.message)).then_some(mistake)
    }
}

/// The keys of values that could not be read, or are missing. A problem of another key may follow from that alone.
#[derive(Debug, Clone, Default)]
pub struct Misread {
    keys: Vec<String>,
}

impl Misread {
    /// Adds those of another text.
    pub fn extend(&mut self, other: Self) {
        self.keys.extend(other.keys);
    }

    /// Tells whether there was a mistake at `key` or below it: then it is not missing.
    pub fn holds(&self, key: &str) -> bool {
        self.keys.iter().any(|misread| is_at_or_below(misread, key))
    }

    /// Tells whether a problem with `key` may be there only because of a mistake: it is about the same value, quotes a
    /// stand-in, or names the misread key as one to set.
    pub fn explains(&self, key: &str, problem: &str) -> bool {
        let told = |misread: &String| {
            let (table, name) = misread.rsplit_once('.').unwrap_or(("", misread));
            let of_one_table = key.rsplit_once('.').map_or("", |(own, _)| own) == table;
            is_at_or_below(misread, key)
                || is_at_or_below(key, misread)
                || (of_one_table && mentions(problem, &without_indexes(name)))
                || self_and_arrays(misread).any(|key| names(problem, &key))
        };
        quotes_stand_in(problem) || self.keys.iter().any(told)
    }
}

fn is_at_or_below(key: &str, above: &str) -> bool {
    key.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Tells whether `message` names `key`. A key that is a plain word would be found in too many messages.
fn names(message: &str, key: &str) -> bool {
    (key.contains(['.', '_']) && mentions(message, key)) || message.contains(&format!("[[{key}]]"))
}

/// A key, and the arrays that it is in, as a message would name them.
fn self_and_arrays(key: &str) -> impl Iterator<Item = String> {
    let ends = key.match_indices('[').map(|(end, _)| end).chain([key.len()]);
    ends.filter_map(|end| key.get(..end)).map(without_indexes)
}

fn without_indexes(key: &str) -> String {
    key.split('[').map(|part| part.split_once(']').map_or(part, |(_, behind)| behind)).collect()
}

/// Tells whether `message` has `word` in it as a whole.
fn mentions(message: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    message.match_indices(word).any(|(at, _)| {
        let (before, behind) = (message.get(..at).unwrap_or(""), message.get(at + word.len()..).unwrap_or(""));
        let mut behind = behind.chars();
        let ends = match behind.next() {
            // A full stop, but no key below.
            Some('.') => !behind.next().is_some_and(is_part),
            next => !next.is_some_and(is_part),
        };
        ends && !before.ends_with(|c| is_part(c) || c == '.')
    })
}

/// Looks up a key, or else the nearest table or array that holds it: the entry found, and the rest of the key. The part that
/// is looked up has at least `from` bytes.
pub fn nearest<'p, 'k, P>(known: &'p BTreeMap<String, P>, key: &'k str, from: usize) -> Option<(&'p P, &'k str)> {
    let above = |end: &usize| key.get(..*end)?.rfind(['.', '[']).filter(|end| *end >= from);
    let mut own_and_above = std::iter::successors(Some(key.len()), above);
    own_and_above.find_map(|end| Some((known.get(key.get(..end)?)?, key.get(end..)?)))
}

/// Tells whether a message quotes a stand-in, and so is about a value that is not in the text.
pub fn quotes_stand_in(message: &str) -> bool {
    message.contains(STAND_IN)
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
    // An absence comes last.
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
    /// The same with stand-ins, and without what nothing can stand in for.
    document: Document<'t>,
    /// The number of readings that are left.
    reads_left: usize,
    /// Where mistakes are, in the original.
    misread: Vec<Path>,
    /// Those of them that were left out.
    removed: Vec<Path>,
    /// The mistakes, each with its line and column.
    found: Vec<(Option<(usize, usize)>, Mistake)>,
}

impl<'t> Search<'t> {
    fn new(source: &'t str, original: Document<'t>) -> Self {
        let reads_left = (BUDGET / original.entries().max(1)).clamp(1, MAX_MISTAKES * 16);
        let document = original.clone();
        Self { source, original, document, reads_left, misread: vec![], removed: vec![], found: vec![] }
    }

    /// The value, once nothing is wrong any more.
    fn run<T: DeserializeOwned>(&mut self) -> Option<T> {
        while self.found.len() <= MAX_MISTAKES
            && let Some(read) = self.read::<T>()
        {
            match read {
                Ok(value) => return Some(value),
                Err(_) if self.found.len() == MAX_MISTAKES => break,
                Err(error) if !self.mend::<T>(&error) => return None,
                Err(_) => {}
            }
        }
        let more = "has more mistakes than are reported at once: correct these first";
        self.found.push((None, Mistake::new(self.source, "", more)));
        None
    }

    fn read<T: DeserializeOwned>(&mut self) -> Option<Result<T, toml::de::Error>> {
        self.reads_left = self.reads_left.checked_sub(1)?;
        Some(self.document.deserialize())
    }

    /// Notes a mistake and puts a stand-in there, or leaves the entry out; false when the rest cannot be read.
    fn mend<T: DeserializeOwned>(&mut self, error: &toml::de::Error) -> bool {
        let span = error.span().filter(|span| !span.is_empty());
        // Named by the original: leaving out an element of an array moves the ones behind it.
        let place = span.as_ref().map(|span| self.original.locate(span)).unwrap_or_default();
        let here = span.as_ref().map(|span| self.document.locate(span)).unwrap_or_default();
        let missing = missing_field(error.message()).map(|field| Step::Key(field.to_owned()));
        let wrong = [place.as_slice(), missing.as_slice()].concat();

        let is_first = !self.misread.contains(&wrong);
        // A table or array may be wrong only for the entry that was left out of it.
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

    /// Puts a value at `path` that fits there, whatever it means: so what stands around it is looked at as well.
    fn stand_in<T: DeserializeOwned>(&mut self, path: &[Step]) -> bool {
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

/// Values of which nearly every key takes one, each text another than all others.
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
