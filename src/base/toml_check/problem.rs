//! Problems between well-formed values, and whether a mistake that is reported already explains one.

use std::fmt;

/// A problem with a value that is well-formed by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key, as in `bindings[0].publish`.
    pub key: String,
    /// The fault, and what to do about it.
    pub message: String,
    /// The other keys whose values cause the problem or are quoted in its message.
    pub depends_on: Vec<String>,
}

impl Problem {
    /// A problem with the value of `key` alone.
    pub fn new(key: impl Into<String>, message: impl fmt::Display) -> Self {
        Self { key: key.into(), message: message.to_string(), depends_on: Vec::new() }
    }

    /// The same, caused by the values of other keys too.
    #[must_use]
    pub fn depending_on<K: Into<String>>(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        self.depends_on.extend(keys.into_iter().map(Into::into));
        self
    }

    /// The same with the keys of the table that contains it. A key that begins with an index is within an array.
    #[must_use]
    pub fn within(mut self, table: &str) -> Self {
        for key in std::iter::once(&mut self.key).chain(&mut self.depends_on) {
            *key = super::within(table, key);
        }
        self
    }
}

/// The keys of values that could not be read or are missing. A problem with another key may be only a consequence.
#[derive(Debug, Clone, Default)]
pub struct Misread {
    pub(super) keys: Vec<String>,
}

impl Misread {
    /// Adds the keys of another text.
    pub fn extend(&mut self, other: Self) {
        self.keys.extend(other.keys);
    }

    /// True if there was a mistake at `key` or below it: then it is not missing.
    pub fn holds(&self, key: &str) -> bool {
        self.keys.iter().any(|misread| is_at_or_below(misread, key))
    }

    /// True if the value of `key` could not be read, by itself or as a part of another: a stand-in has its place.
    pub fn covers(&self, key: &str) -> bool {
        self.keys.iter().any(|misread| is_at_or_below(key, misread))
    }

    /// True if a problem may be only a consequence of a mistake in its own value, or in one that it depends on.
    /// `in_text` turns a key of the problem into that of the text, whose arrays have all their elements.
    pub fn explains(&self, problem: &Problem, in_text: impl Fn(&str) -> String) -> bool {
        std::iter::once(&problem.key).chain(&problem.depends_on).any(|key| {
            let key = in_text(key);
            self.keys.iter().any(|misread| is_at_or_below(misread, &key) || is_at_or_below(&key, misread))
        })
    }
}

fn is_at_or_below(key: &str, above: &str) -> bool {
    key.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}
