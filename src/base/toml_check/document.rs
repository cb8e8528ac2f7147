//! A parsed TOML text with the place of each entry.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

use super::MAX_MISTAKES;
use super::deserializer::{Entry, ReadError};

/// The deepest nesting accepted, in levels. TOML's parser limits brackets and dotted keys to 80 each, but not dotted
/// keys within brackets: 13 kB make 6,000 levels, and a recursive walk runs out of stack.
const MAX_DEPTH: usize = 64;

/// The parser's message about a key or a table that occurs a second time.
const DUPLICATE_MESSAGE: &str = "duplicate key";

/// The path of an entry: the keys and indexes that lead to it. Empty for the document itself.
pub type Path = Vec<PathStep>;

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathStep {
    Key(String),
    Index(usize),
}

/// A path as text: `tensors.input[0].shape`.
pub fn key(path: &[PathStep]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            PathStep::Key(key) if text.is_empty() => text.push_str(key),
            PathStep::Key(key) => text.extend([".", key]),
            PathStep::Index(index) => text.extend(["[", &index.to_string(), "]"]),
        }
    }
    text
}

/// A syntax error, or a key that occurs a second time.
#[derive(Debug)]
pub struct SyntaxError {
    /// Line and column, from 1.
    pub position: Option<(usize, usize)>,
    pub message: String,
}

/// The place of one entry in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryPlace {
    /// The line of its value, from 1.
    pub line: usize,
    /// Its key in the text, with indexes that count removed elements too.
    pub key: String,
    /// True for a table that is not an element of an array: a section has no value of its own.
    pub is_section: bool,
}

/// A parsed text. Entries may be removed from a clone while the original still has their places.
#[derive(Debug, Clone)]
pub struct Document<'t> {
    text: &'t str,
    /// The offset of each line, in bytes.
    line_starts: Vec<usize>,
    root: Spanned<DeTable<'t>>,
}

impl<'t> Document<'t> {
    /// Parses `text`, and reports keys that occur a second time. In a text that is not TOML only the first syntax error
    /// is reported: the text after it may mean anything.
    pub fn parse(text: &'t str) -> (Option<Self>, Vec<SyntaxError>) {
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let mut document = Self { text, line_starts, root: Spanned::new(0..0, DeTable::new()) };
        let (root, errors) = DeTable::parse_recoverable(text);
        let fatal = errors.iter().position(|error| error.message() != DUPLICATE_MESSAGE);
        let told = fatal.map_or(errors.len(), |first| first + 1).min(MAX_MISTAKES);
        let mut errors: Vec<_> = errors.iter().take(told).map(|error| document.syntax_error(error)).collect();
        let too_deep = too_deep(Box::new(root.get_ref().values()), MAX_DEPTH);
        if let Some(at) = too_deep.filter(|_| fatal.is_none()) {
            let message = format!("nested more than {MAX_DEPTH} levels deep");
            errors.push(SyntaxError { position: Some(document.position(at)), message });
        }
        if fatal.is_some() || too_deep.is_some() {
            drop_iteratively(root.into_inner());
            return (None, errors);
        }
        document.root = root;
        (Some(document), errors)
    }

    fn syntax_error(&self, error: &toml::de::Error) -> SyntaxError {
        let position = error.span().map(|span| self.position(span.start));
        let first = position.and_then(|(line, _)| earlier_line(self.text, line));
        let message = match first.filter(|_| error.message() == DUPLICATE_MESSAGE) {
            Some((name, line)) => format!("{DUPLICATE_MESSAGE}: {name} is in line {line} already; remove one of them"),
            None => error.message().to_owned(),
        };
        SyntaxError { position, message }
    }

    /// Reads the remaining entries into a `T`.
    pub fn deserialize<T: DeserializeOwned>(&self) -> Result<T, ReadError> {
        T::deserialize(Entry::root(&self.root))
    }

    /// The remaining entries, without places.
    pub fn plain(&self) -> toml::Table {
        toml::Table::deserialize(Deserializer::from(self.root.clone())).unwrap_or_default()
    }

    /// Line and column of a byte of the text, both from 1.
    pub fn position(&self, at: usize) -> (usize, usize) {
        let line = self.line_starts.partition_point(|start| *start <= at).max(1);
        let start = self.line_starts.get(line - 1).copied().unwrap_or(0);
        (line, self.text.get(start..at).map_or(1, |before| before.chars().count() + 1))
    }

    /// The number of entries at all levels.
    pub fn entries(&self) -> usize {
        let mut count = 0;
        visit(self.root.get_ref(), &mut |_, _, _| count += 1);
        count
    }

    /// The places of all entries that are in the text, by their current keys. `original` is the document before any
    /// entry was removed.
    pub fn places(&self, original: &Self) -> BTreeMap<String, EntryPlace> {
        let mut places = BTreeMap::new();
        visit(self.root.get_ref(), &mut |path, _, value| {
            if self.is_stand_in(&value.span()) {
                return;
            }
            let is_section = value.get_ref().is_table() && !matches!(path.last(), Some(PathStep::Index(_)));
            let line = self.position(value.span().start).0;
            let key_in_text = original.path_of(path, self);
            places.insert(key(path), EntryPlace { line, key: key(&key_in_text), is_section });
        });
        places
    }

    /// The path in this document of the entry at `path` in `other`, a copy of this one without some elements.
    fn path_of(&self, path: &[PathStep], other: &Self) -> Path {
        let (mut here, mut there) = (Some(Node::Table(self.root.get_ref())), Some(Node::Table(other.root.get_ref())));
        let mut found = Path::new();
        for step in path {
            let span = there.and_then(|node| node.step(step)).map(Spanned::span);
            let own = match (here, step) {
                // The elements of an array have different spans in order, and few are removed.
                (Some(Node::Array(array)), PathStep::Index(index)) => {
                    let behind = array.iter().skip(*index).position(|element| Some(element.span()) == span);
                    PathStep::Index(index + behind.unwrap_or_default())
                }
                _ => step.clone(),
            };
            here = here.and_then(|node| node.step(&own)).and_then(Node::of);
            there = there.and_then(|node| node.step(step)).and_then(Node::of);
            found.push(own);
        }
        found
    }

    /// The innermost entry whose key or value contains `span`; the document itself when none does.
    pub fn locate(&self, span: &Range<usize>) -> Path {
        let mut best: Option<(usize, Path)> = None;
        visit(self.root.get_ref(), &mut |path, key, value| {
            for place in [key, Some(value.span())].into_iter().flatten() {
                let length = place.len();
                // A table with a header spans only its header, so depth alone does not decide which entry is innermost.
                let inner = best.as_ref().is_none_or(|(shortest, _)| length <= *shortest);
                if place.start <= span.start && span.end <= place.end && inner {
                    best = Some((length, path.to_vec()));
                }
            }
        });
        best.map(|(_, path)| path).unwrap_or_default()
    }

    /// Removes one entry; true if there was one.
    pub fn remove(&mut self, path: &[PathStep]) -> bool {
        let Some((PathStep::Key(first), rest)) = path.split_first() else { return false };
        remove_from_table(self.root.get_mut(), first, rest)
    }

    /// Puts a value that is not in the text at `path`: it replaces the entry there, or becomes a new key of a table.
    pub fn put(&mut self, path: &[PathStep], value: DeValue<'t>) -> bool {
        let beyond = self.beyond();
        let value = match value {
            DeValue::Array(elements) => {
                let moved = elements.into_iter().map(|element| Spanned::new(beyond.clone(), element.into_inner()));
                DeValue::Array(moved.collect())
            }
            value => value,
        };
        let value = Spanned::new(beyond, value);

        let Some((last, table)) = path.split_last() else { return false };
        let mut node = NodeMut::Table(self.root.get_mut());
        for step in table {
            let Some(below) = node.step(step) else { return false };
            node = below;
        }

        match (node, last) {
            (NodeMut::Table(table), PathStep::Key(key)) => {
                // An existing key keeps its place in the text.
                match table.get_mut(key.as_str()) {
                    Some(there) => *there = value,
                    None => drop(table.insert(Spanned::new(value.span(), key.clone().into()), value)),
                }
                true
            }
            (NodeMut::Array(array), PathStep::Index(index)) => {
                array.get_mut(*index).map(|element| *element = value).is_some()
            }
            _ => false,
        }
    }

    /// True if a span belongs to a value from [`Self::put`].
    pub fn is_stand_in(&self, span: &Range<usize>) -> bool {
        *span == self.beyond()
    }

    /// A span that no entry of the text has.
    fn beyond(&self) -> Range<usize> {
        self.text.len() + 1..self.text.len() + 2
    }
}

/// A table or an array.
#[derive(Clone, Copy)]
enum Node<'d> {
    Table(&'d DeTable<'d>),
    Array(&'d DeArray<'d>),
}

impl<'d> Node<'d> {
    fn of(value: &'d Spanned<DeValue<'d>>) -> Option<Self> {
        match value.get_ref() {
            DeValue::Table(table) => Some(Self::Table(table)),
            DeValue::Array(array) => Some(Self::Array(array)),
            _ => None,
        }
    }

    fn step(self, step: &PathStep) -> Option<&'d Spanned<DeValue<'d>>> {
        match (self, step) {
            (Self::Table(table), PathStep::Key(key)) => table.get(key.as_str()),
            (Self::Array(array), PathStep::Index(index)) => array.get(*index),
            _ => None,
        }
    }
}

/// A mutable [`Node`].
enum NodeMut<'d, 't> {
    Table(&'d mut DeTable<'t>),
    Array(&'d mut DeArray<'t>),
}

impl NodeMut<'_, '_> {
    fn step(self, step: &PathStep) -> Option<Self> {
        let value = match (self, step) {
            (Self::Table(table), PathStep::Key(key)) => table.get_mut(key.as_str()),
            (Self::Array(array), PathStep::Index(index)) => array.get_mut(*index),
            _ => None,
        };
        match value?.get_mut() {
            DeValue::Table(table) => Some(Self::Table(table)),
            DeValue::Array(array) => Some(Self::Array(array)),
            _ => None,
        }
    }
}

/// The header or the key in `line`, and the last earlier line that has it too: further up the same header may belong to
/// another element of an array of tables.
fn earlier_line(text: &str, line: usize) -> Option<(&str, usize)> {
    fn name(line: &str) -> &str {
        let line = line.trim();
        match line.strip_prefix('[') {
            Some(header) => header.find(']').and_then(|end| line.get(..end + 2)).unwrap_or(line),
            None => line.split('=').next().unwrap_or(line).trim(),
        }
    }
    let before: Vec<&str> = text.lines().take(line - 1).collect();
    let own = text.lines().nth(line - 1)?;
    Some((name(own), before.iter().rposition(|line| name(line) == name(own))? + 1))
}

type Values<'v, 'd> = Box<dyn Iterator<Item = &'v Spanned<DeValue<'d>>> + 'v>;

/// The offset of the first table or array nested deeper than `levels`.
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

type EntryVisitor<'s, 'd> = &'s mut dyn FnMut(&[PathStep], Option<Range<usize>>, &'d Spanned<DeValue<'d>>);

/// Calls `see` with the path, the span of the key and the value of every entry, outer before inner.
fn visit<'d>(table: &'d DeTable<'_>, see: EntryVisitor<'_, 'd>) {
    visit_table(table, &mut Vec::new(), see);
}

fn visit_table<'d>(table: &'d DeTable<'_>, path: &mut Path, see: EntryVisitor<'_, 'd>) {
    for (key, value) in table {
        path.push(PathStep::Key(key.get_ref().to_string()));
        visit_value(Some(key.span()), value, path, see);
        path.pop();
    }
}

fn visit_value<'d>(
    key: Option<Range<usize>>,
    value: &'d Spanned<DeValue<'_>>,
    path: &mut Path,
    see: EntryVisitor<'_, 'd>,
) {
    see(path, key, value);
    match value.get_ref() {
        DeValue::Table(table) => visit_table(table, path, see),
        DeValue::Array(array) => {
            for (index, value) in array.iter().enumerate() {
                path.push(PathStep::Index(index));
                visit_value(None, value, path, see);
                path.pop();
            }
        }
        _ => {}
    }
}

fn remove_from_table(table: &mut DeTable<'_>, key: &str, rest: &[PathStep]) -> bool {
    match rest {
        [] => table.remove(key).is_some(),
        rest => table.get_mut(key).is_some_and(|value| remove_from_value(value.get_mut(), rest)),
    }
}

fn remove_from_value(value: &mut DeValue<'_>, path: &[PathStep]) -> bool {
    match (value, path) {
        (DeValue::Table(table), [PathStep::Key(key), rest @ ..]) => remove_from_table(table, key, rest),
        (DeValue::Array(array), [PathStep::Index(index)]) => {
            let before = array.len();
            let all = std::mem::replace(array, std::iter::empty().collect()).into_iter().enumerate();
            *array = all.filter(|(at, _)| at != index).map(|(_, value)| value).collect();
            array.len() < before
        }
        (DeValue::Array(array), [PathStep::Index(index), rest @ ..]) => {
            array.get_mut(*index).is_some_and(|value| remove_from_value(value.get_mut(), rest))
        }
        _ => false,
    }
}
