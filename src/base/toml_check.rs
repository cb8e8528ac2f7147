//! Reads TOML into a type, and reports unknown keys and wrong values with their lines and keys.
//!
//! serde stops at the first wrong value, so that is left out and the rest is read again. A table or array that is wrong
//! without it is left out too, as it may be wrong only for that. An unknown key stops nothing.
//!
//! A section is a key of the document's top level with everything below it.

mod keys;
mod reader;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::Serializer;
use serde::de::{DeserializeOwned, Deserializer, Unexpected, Visitor};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub use keys::{section, within};
use reader::{MAX_MISTAKES, TomlEntry, TomlReadNotes};

/// The most entries that are read one by one, summed over all readings. After that, whole sections are left out.
const ENTRY_READS_MAX: usize = 1_000_000;

/// The deepest nesting accepted, in levels. TOML's parser limits brackets and dotted keys to 80 each, but not dotted
/// keys within brackets: 13 kB make 6,000 levels, and a recursive walk runs out of stack.
const MAX_DEPTH: usize = 64;

/// The longest message and key shown, in characters: a key may be the whole file.
const SHOWN_CHARS_MAX: usize = 800;

/// One mistake in a TOML text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigMistake {
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

impl ConfigMistake {
    /// A mistake without a place in a text.
    pub fn new(source: impl Into<String>, key: impl Into<String>, message: impl fmt::Display) -> Self {
        let (key, message) = (shown(&key.into()), shown(&message.to_string()));
        Self { source: source.into(), line: None, column: None, key, message }
    }
}

impl fmt::Display for ConfigMistake {
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

/// A problem with a value that is well-formed by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueProblem {
    /// The key, as in `bindings[0].publish`.
    pub key: String,
    /// The mistake, and its remedy.
    pub message: String,
}

impl ValueProblem {
    /// A problem with the value of `key`.
    pub fn new(key: impl Into<String>, message: impl fmt::Display) -> Self {
        Self { key: key.into(), message: message.to_string() }
    }

    /// The same with the key of the table that contains it. A key that begins with an index is within an array.
    #[must_use]
    pub fn within(self, table: &str) -> Self {
        Self { key: within(table, &self.key), ..self }
    }

    /// The problems of a section that is an array of at most `max` entries with unique names; `own` finds those of one
    /// entry.
    pub fn of_entries<T, N: PartialEq + fmt::Display>(
        entries: &[T],
        kind: &str,
        max: usize,
        name: impl Fn(&T) -> &N,
        own: impl Fn(&T) -> Vec<Self>,
    ) -> Vec<Self> {
        let mut problems = Vec::new();
        if entries.len() > max {
            problems.push(Self::new(format!("[{max}]"), format!("is one more than {max} {kind}")));
        }
        for (index, entry) in entries.iter().enumerate() {
            let within = format!("[{index}]");
            if entries.iter().take(index).any(|earlier| name(earlier) == name(entry)) {
                let problem = format!("{} is the name of two {kind}", name(entry));
                problems.push(Self::new(format!("{within}.name"), problem));
            }
            problems.extend(own(entry).into_iter().map(|problem| problem.within(&within)));
        }
        problems
    }
}

/// The place of one entry in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TomlEntryPlace {
    /// The line of its value, from 1.
    pub line: usize,
    /// True for a table that is not an element of an array: a section itself has no value.
    pub is_section: bool,
}

/// The result of [`check`].
#[derive(Debug)]
pub struct CheckedToml<T> {
    /// The value without the wrong values; `None` when the text is no TOML, or a required section is wrong or missing.
    pub value: Option<T>,
    /// The sections without a wrong value.
    pub table: toml::Table,
    /// The sections with a wrong value.
    pub unread: BTreeSet<String>,
    /// The place of each entry that was read, by its key.
    pub places: BTreeMap<String, TomlEntryPlace>,
    /// The mistakes, in the order of the text.
    pub mistakes: Vec<ConfigMistake>,
}

impl<T> CheckedToml<T> {
    /// Adds the problems of the value, unless one was wrong: they may only follow from that.
    pub fn check_value(&mut self, source: &str, problems: impl Fn(&T) -> Vec<ValueProblem>) {
        let problems = self.value.as_ref().filter(|_| self.unread.is_empty()).map(problems);
        self.mistakes.extend(problems.into_iter().flatten().map(|ValueProblem { key, message }| {
            let line = nearest(&self.places, &key, 0).map(|place| place.line);
            ConfigMistake { line, ..ConfigMistake::new(source, key, message) }
        }));
    }

    /// The value, or every mistake.
    pub fn into_result(self) -> Result<T, Vec<ConfigMistake>> {
        self.value.filter(|_| self.mistakes.is_empty()).ok_or(self.mistakes)
    }
}

fn is_within(key: &str, table: &str) -> bool {
    table.is_empty() || key.strip_prefix(table).is_some_and(|rest| rest.starts_with(['.', '[']))
}

/// Looks up a key, or else the nearest table or array that contains it. The part that is looked up has at least `from`
/// bytes.
pub fn nearest<'p, P>(known: &'p BTreeMap<String, P>, key: &str, from: usize) -> Option<&'p P> {
    let above = |end: &usize| key.get(..*end)?.rfind(['.', '[']).filter(|end| *end >= from);
    std::iter::successors(Some(key.len()), above).find_map(|end| known.get(key.get(..end)?))
}

/// Reads `text` into a `T`, or reports the mistakes in it.
pub fn parse<T: DeserializeOwned>(source: &str, text: &str) -> Result<T, Vec<ConfigMistake>> {
    check(source, text).into_result()
}

/// Reads `text` into a `T` as far as possible, and collects the mistakes.
pub fn check<T: DeserializeOwned>(source: &str, text: &str) -> CheckedToml<T> {
    let line_starts: Vec<usize> = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let line = |at: usize| line_starts.partition_point(|start| *start <= at).max(1);
    let mut checked = CheckedToml {
        value: None,
        table: toml::Table::new(),
        unread: BTreeSet::new(),
        places: BTreeMap::new(),
        mistakes: vec![],
    };

    let root = match parse_table(text) {
        Ok(table) => DeValue::Table(table),
        Err(SyntaxError { at, message }) => {
            let start = line_starts.get(line(at) - 1).copied().unwrap_or_default();
            let column = text.get(start..at).map_or(1, |before| before.chars().count() + 1);
            let mistake = ConfigMistake::new(source, "", message);
            checked.mistakes.push(ConfigMistake { line: Some(line(at)), column: Some(column), ..mistake });
            return checked;
        }
    };

    let notes = RefCell::new(TomlReadNotes::default());
    checked.value = loop {
        let error = match T::deserialize(TomlEntry::root(&root, &notes)) {
            Ok(value) => break Some(value),
            Err(error) => error,
        };
        let mut notes = notes.borrow_mut();
        if !notes.left_out.iter().any(|key| is_within(key, &error.key)) {
            notes.mistake(error.at.unwrap_or(usize::MAX), error.key.clone(), error.message);
        }
        let section = section(&error.key).to_owned();
        let reads = notes.left_out.len();
        let is_too_much = reads > MAX_MISTAKES || reads * notes.places.len() > ENTRY_READS_MAX;
        if !notes.left_out.insert(if is_too_much { section.clone() } else { error.key }) {
            break None;
        }
        checked.unread.insert(section);
    };

    let TomlReadNotes { places, mistakes, .. } = notes.into_inner();
    let in_text = |at: usize| (at < text.len()).then(|| line(at));
    let found = mistakes
        .into_iter()
        .map(|((at, key), message)| ConfigMistake { line: in_text(at), ..ConfigMistake::new(source, key, message) });
    checked.mistakes.extend(found);
    if checked.mistakes.len() > MAX_MISTAKES {
        checked.mistakes.truncate(MAX_MISTAKES);
        let more = "has more mistakes than are reported at once: correct these first";
        checked.mistakes.push(ConfigMistake::new(source, "", more));
    }
    let place = |(key, (at, is_section))| (key, TomlEntryPlace { line: line(at), is_section });
    checked.places = places.into_iter().map(place).collect();
    checked.table = text.parse().unwrap_or_default();
    checked.table.retain(|section, _| !checked.unread.contains(section));
    checked
}

struct SyntaxError {
    /// The byte that it is at.
    at: usize,
    message: String,
}

/// Parses `text`, or reports the first error: the text after it may mean anything.
fn parse_table(text: &str) -> Result<DeTable<'_>, SyntaxError> {
    let (root, errors) = DeTable::parse_recoverable(text);
    let root = root.into_inner();
    let error = match (errors.first(), too_deep(&root)) {
        (Some(error), _) => {
            SyntaxError { at: error.span().map_or(0, |span| span.start), message: error.message().to_owned() }
        }
        (None, Some(at)) => SyntaxError { at, message: format!("nested more than {MAX_DEPTH} levels deep") },
        (None, None) => return Ok(root),
    };
    drop_iteratively(root);
    Err(error)
}

/// The offset of the first table or array nested too deep.
fn too_deep(table: &DeTable<'_>) -> Option<usize> {
    let mut level: Vec<_> = table.values().collect();
    for _ in 0..MAX_DEPTH {
        level = level
            .into_iter()
            .flat_map(|value| match value.get_ref() {
                DeValue::Table(table) => table.values().collect(),
                DeValue::Array(array) => array.iter().collect(),
                _ => Vec::new(),
            })
            .collect();
    }
    let mut containers = level.into_iter().filter(|value| value.get_ref().is_table() || value.get_ref().is_array());
    Some(containers.next()?.span().start)
}

/// Drops `table` without recursion.
fn drop_iteratively(table: DeTable<'_>) {
    let mut left = vec![DeValue::Table(table)];
    while let Some(value) = left.pop() {
        match value {
            DeValue::Table(table) => left.extend(table.into_iter().map(|(_, value)| value.into_inner())),
            DeValue::Array(array) => left.extend(array.into_iter().map(Spanned::into_inner)),
            _ => {}
        }
    }
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

/// The mistakes in a configuration, as one error.
#[derive(Debug)]
pub struct BadConfiguration(pub Vec<ConfigMistake>);

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
