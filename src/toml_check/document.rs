//! A parsed TOML text that still knows where each of its entries stood.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

/// The deepest nesting accepted, in levels. TOML's parser bounds brackets and dotted keys each by 80, but not dotted keys
/// within brackets: 13 kB make 6,000 levels, and whatever walks them by recursion runs out of stack.
const MAX_DEPTH: usize = 64;

/// What the parser says of a key or a table that comes for the second time.
const DUPLICATE: &str = "duplicate key";

/// Where an entry is: the keys and indexes that lead to it. Empty for the document itself.
pub type Path = Vec<Step>;

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Into a table.
    Key(String),
    /// Into an array.
    Index(usize),
}

impl Step {
    /// Whether this is the step to `key`.
    pub fn is_key(&self, key: &str) -> bool {
        matches!(self, Self::Key(own) if own == key)
    }
}

/// A path as people write it: `tensors.input[0].shape`.
pub fn key(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Key(key) if text.is_empty() => text.push_str(key),
            Step::Key(key) => text.extend([".", key]),
            Step::Index(index) => text.extend(["[", &index.to_string(), "]"]),
        }
    }
    text
}

/// Why a text is no TOML.
#[derive(Debug)]
pub struct SyntaxError {
    /// Line and column, from 1.
    pub position: Option<(usize, usize)>,
    /// What is wrong.
    pub message: String,
}

/// A parsed text. A clone can lose entries while the original still tells where they stood.
#[derive(Debug, Clone)]
pub struct Document<'t> {
    text: &'t str,
    /// Where each line starts, in bytes.
    line_starts: Vec<usize>,
    root: Spanned<DeTable<'t>>,
}

impl<'t> Document<'t> {
    /// Parses `text`, up to its first syntax error.
    pub fn parse(text: &'t str) -> Result<Self, SyntaxError> {
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let mut document = Self { text, line_starts, root: Spanned::new(0..0, DeTable::new()) };
        let root = DeTable::parse(text).map_err(|error| {
            let position = error.span().map(|span| document.position(span.start));
            let first = position.and_then(|(line, _)| first_of(text, line)).filter(|_| error.message() == DUPLICATE);
            let message = match first {
                Some((name, line)) => {
                    format!("{DUPLICATE}: {name} is in line {line} already; one place has to be enough")
                }
                None => error.message().to_owned(),
            };
            SyntaxError { position, message }
        })?;
        if let Some(at) = too_deep(Box::new(root.get_ref().values()), MAX_DEPTH) {
            take_apart(root.into_inner());
            let message = format!("nested more than {MAX_DEPTH} levels deep");
            return Err(SyntaxError { position: Some(document.position(at)), message });
        }
        document.root = root;
        Ok(document)
    }

    /// Reads what is left of the document into a `T`.
    pub fn deserialize<T: DeserializeOwned>(&self) -> Result<T, toml::de::Error> {
        T::deserialize(Deserializer::from(self.root.clone()))
    }

    /// What is left of the document, without places.
    pub fn plain(&self) -> toml::Table {
        toml::Table::deserialize(Deserializer::from(self.root.clone())).unwrap_or_default()
    }

    /// Line and column of a byte of the text, both from 1.
    pub fn position(&self, at: usize) -> (usize, usize) {
        let line = self.line_starts.partition_point(|start| *start <= at).max(1);
        let start = self.line_starts.get(line - 1).copied().unwrap_or(0);
        (line, self.text.get(start..at).map_or(1, |before| before.chars().count() + 1))
    }

    /// How many entries there are, at every level.
    pub fn entries(&self) -> usize {
        let mut count = 0;
        visit(self.root.get_ref(), &mut |_, _, _| count += 1);
        count
    }

    /// The line of every value that is not a table, and of every element of an array.
    pub fn lines(&self) -> BTreeMap<String, usize> {
        let mut lines = BTreeMap::new();
        visit(self.root.get_ref(), &mut |path, _, value| {
            if !value.get_ref().is_table() || matches!(path.last(), Some(Step::Index(_))) {
                lines.insert(key(path), self.position(value.span().start).0);
            }
        });
        lines
    }

    /// The innermost entry whose key or value holds `span`; the document itself when none does.
    pub fn locate(&self, span: &Range<usize>) -> Path {
        let mut best: Option<(usize, Path)> = None;
        visit(self.root.get_ref(), &mut |path, key, value| {
            for place in [key, Some(value.span())].into_iter().flatten() {
                let length = place.len();
                // A table with a header spans its header only, so depth alone does not tell which entry is innermost.
                let inner = best.as_ref().is_none_or(|(shortest, _)| length <= *shortest);
                if place.start <= span.start && span.end <= place.end && inner {
                    best = Some((length, path.to_vec()));
                }
            }
        });
        best.map(|(_, path)| path).unwrap_or_default()
    }

    /// Takes one entry out. Returns whether there was one.
    pub fn remove(&mut self, path: &[Step]) -> bool {
        let Some((Step::Key(first), rest)) = path.split_first() else { return false };
        remove_from_table(self.root.get_mut(), first, rest)
    }
}

/// The header or the key in `line`, and the first line that has it too.
fn first_of(text: &str, line: usize) -> Option<(&str, usize)> {
    fn name(line: &str) -> &str {
        let line = line.trim();
        match line.strip_prefix('[') {
            Some(header) => header.find(']').and_then(|end| line.get(..end + 2)).unwrap_or(line),
            None => line.split('=').next().unwrap_or(line).trim(),
        }
    }
    let is_header = |line: &str| line.trim_start().starts_with('[');
    let before: Vec<&str> = text.lines().take(line - 1).collect();
    let own = text.lines().nth(line - 1)?;
    // A key is looked for in its own table.
    let from = if is_header(own) { 0 } else { before.iter().rposition(|line| is_header(line)).unwrap_or(0) };
    let found = before.iter().skip(from).position(|line| name(line) == name(own))?;
    Some((name(own), from + found + 1))
}

type Values<'v, 'd> = Box<dyn Iterator<Item = &'v Spanned<DeValue<'d>>> + 'v>;

/// Where the first table or array below `levels` stands.
fn too_deep<'d>(mut values: Values<'_, 'd>, levels: usize) -> Option<usize> {
    values.find_map(|value| {
        let below = match value.get_ref() {
            DeValue::Table(table) => Box::new(table.values()) as Values<'_, 'd>,
            DeValue::Array(array) => Box::new(array.iter()),
            _ => return None,
        };
        if levels == 0 { Some(value.span().start) } else { too_deep(below, levels - 1) }
    })
}

/// Drops `table` without recursion.
fn take_apart(table: DeTable<'_>) {
    let mut left = vec![DeValue::Table(table)];
    while let Some(value) = left.pop() {
        match value {
            DeValue::Table(table) => left.extend(table.into_iter().map(|(_, value)| value.into_inner())),
            DeValue::Array(array) => left.extend(array.into_iter().map(Spanned::into_inner)),
            _ => {}
        }
    }
}

type See<'s, 'd> = &'s mut dyn FnMut(&[Step], Option<Range<usize>>, &'d Spanned<DeValue<'d>>);

/// Calls `see` with the path, the span of the key and the value of every entry, outer before inner.
fn visit<'d>(table: &'d DeTable<'_>, see: See<'_, 'd>) {
    visit_table(table, &mut Vec::new(), see);
}

fn visit_table<'d>(table: &'d DeTable<'_>, path: &mut Path, see: See<'_, 'd>) {
    for (key, value) in table {
        path.push(Step::Key(key.get_ref().to_string()));
        visit_value(Some(key.span()), value, path, see);
        path.pop();
    }
}

fn visit_value<'d>(key: Option<Range<usize>>, value: &'d Spanned<DeValue<'_>>, path: &mut Path, see: See<'_, 'd>) {
    see(path, key, value);
    match value.get_ref() {
        DeValue::Table(table) => visit_table(table, path, see),
        DeValue::Array(array) => {
            for (index, value) in array.iter().enumerate() {
                path.push(Step::Index(index));
                visit_value(None, value, path, see);
                path.pop();
            }
        }
        _ => {}
    }
}

fn remove_from_table(table: &mut DeTable<'_>, key: &str, rest: &[Step]) -> bool {
    match rest {
        [] => table.remove(key).is_some(),
        rest => table.get_mut(key).is_some_and(|value| remove_from_value(value.get_mut(), rest)),
    }
}

fn remove_from_value(value: &mut DeValue<'_>, path: &[Step]) -> bool {
    match (value, path) {
        (DeValue::Table(table), [Step::Key(key), rest @ ..]) => remove_from_table(table, key, rest),
        (DeValue::Array(array), [Step::Index(index)]) => {
            let before = array.len();
            let all = std::mem::replace(array, std::iter::empty().collect()).into_iter().enumerate();
            *array = all.filter(|(at, _)| at != index).map(|(_, value)| value).collect();
            array.len() < before
        }
        (DeValue::Array(array), [Step::Index(index), rest @ ..]) => {
            array.get_mut(*index).is_some_and(|value| remove_from_value(value.get_mut(), rest))
        }
        _ => false,
    }
}
