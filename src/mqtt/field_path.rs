//! Paths to a value in a JSON document: singular queries of JSONPath (RFC 9535, section 2.3.5.1).

use std::fmt::{self, Write};
use std::str::FromStr;

use ledge_base::toml_check::from_text;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// The largest index, in either direction (RFC 9535, section 2.1): the range that every JSON number represents exactly.
const MAX_INDEX: i64 = (1 << 53) - 1;

/// A path into a JSON document: `$.labels[0].label`. It leads to one value at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldPath(Vec<PathSegment>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum PathSegment {
    Name(String),
    /// Below zero it counts from the end.
    Index(i64),
}

/// The reason why a text is no path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("path {text:?} {reason}, as in $.payload.temp, $['any name'], $.labels[0] or $.values[-1]")]
pub struct InvalidFieldPath {
    text: String,
    reason: &'static str,
}

impl FieldPath {
    /// The value at this path, if there is one.
    pub fn find<'v>(&self, document: &'v Value) -> Option<&'v Value> {
        self.0.iter().try_fold(document, |value, segment| match segment {
            PathSegment::Name(name) => value.as_object()?.get(name),
            PathSegment::Index(index) => {
                let elements = value.as_array()?;
                let from_end = usize::try_from(index.unsigned_abs()).ok()?;
                elements.get(if *index < 0 { elements.len().checked_sub(from_end)? } else { from_end })
            }
        })
    }
}

impl FromStr for FieldPath {
    type Err = InvalidFieldPath;

    fn from_str(text: &str) -> Result<Self, InvalidFieldPath> {
        let wrong = |reason| InvalidFieldPath { text: text.chars().take(128).collect(), reason };
        let mut rest = text.strip_prefix('$').ok_or_else(|| wrong("does not begin with $, the whole message"))?;
        let mut segments = Vec::new();
        while !rest.is_empty() {
            let (segment, after) = if let Some(after) = rest.strip_prefix('.') {
                dotted(after)
            } else if let Some(after) = rest.strip_prefix('[') {
                bracketed(after)
            } else {
                Err("has something other than .name or [...] after a part")
            }
            .map_err(wrong)?;
            segments.push(segment);
            rest = after;
        }
        Ok(Self(segments))
    }
}

/// Returns `true` if a name without brackets may begin with `c`.
fn begins_name(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || !c.is_ascii()
}

/// A name without brackets, and the rest of the text.
fn dotted(text: &str) -> Result<(PathSegment, &str), &'static str> {
    if text.starts_with(['.', '*', '[']) {
        return Err("may lead to many values: expected a name after the dot");
    }
    let end = text.find(|c: char| !begins_name(c) && !c.is_ascii_digit()).unwrap_or(text.len());
    let (name, after) = text.split_at(end);
    if !name.starts_with(begins_name) {
        return Err("has no name after a dot; put a name with other characters in brackets and quotes");
    }
    Ok((PathSegment::Name(name.to_owned()), after))
}

/// The segment in brackets, of a text after the opening bracket, and the text after the closing one.
fn bracketed(text: &str) -> Result<(PathSegment, &str), &'static str> {
    if text.starts_with(['\'', '"']) {
        let (name, after) = quoted(text)?;
        let after = after.strip_prefix(']').ok_or("has a bracket that is not closed after its name")?;
        return Ok((PathSegment::Name(name), after));
    }
    let (number, after) = text.split_once(']').ok_or("has a bracket that is not closed")?;
    let digits = number.strip_prefix('-').unwrap_or(number);
    let plain = digits.bytes().all(|b| b.is_ascii_digit()) && (number == "0" || !digits.starts_with('0'));
    let index = if plain { number.parse().ok() } else { None };
    let index = index.filter(|index: &i64| index.unsigned_abs() <= MAX_INDEX.unsigned_abs());
    Ok((PathSegment::Index(index.ok_or("has brackets without one index or one name in quotes")?), after))
}

/// A text in quotes of either kind, and the text after it. Except for the quote the rules are those of JSON, so JSON's
/// parser reads it.
fn quoted(text: &str) -> Result<(String, &str), &'static str> {
    let mut chars = text.char_indices();
    let quote = chars.next().map_or('"', |(_, quote)| quote);
    let mut json = String::from('"');
    while let Some((at, c)) = chars.next() {
        match c {
            _ if c == quote => {
                json.push('"');
                let name = serde_json::from_str(&json).map_err(|_| "has a wrong escape in a name")?;
                return Ok((name, text.get(at + 1..).unwrap_or_default()));
            }
            '\\' => match chars.next() {
                Some((_, '\'')) if quote == '\'' => json.push('\''),
                Some((_, '"')) if quote == '\'' => return Err("has a wrong escape in a name"),
                Some((_, escaped)) => json.extend(['\\', escaped]),
                None => break,
            },
            '"' => json.push_str("\\\""),
            _ => json.push(c),
        }
    }
    Err("has a name whose quote is not closed")
}

impl FieldPath {
    /// Returns `true` for `$`, the whole document.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The name of the top-level field of a document that the path leads into.
    pub fn top(&self) -> Option<&str> {
        match self.0.first()? {
            PathSegment::Name(name) => Some(name),
            PathSegment::Index(_) => None,
        }
    }
}

/// As a normalized path (RFC 9535, section 2.7), but with the short form of names that have one.
impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('$')?;
        for segment in &self.0 {
            match segment {
                PathSegment::Index(index) => write!(f, "[{index}]")?,
                PathSegment::Name(name)
                    if name.starts_with(begins_name) && name.chars().all(|c| begins_name(c) || c.is_ascii_digit()) =>
                {
                    write!(f, ".{name}")?;
                }
                PathSegment::Name(name) => {
                    f.write_str("['")?;
                    for c in name.chars() {
                        match c {
                            '\'' | '\\' => write!(f, "\\{c}")?,
                            '\n' => f.write_str("\\n")?,
                            '\r' => f.write_str("\\r")?,
                            '\t' => f.write_str("\\t")?,
                            '\u{8}' => f.write_str("\\b")?,
                            '\u{c}' => f.write_str("\\f")?,
                            c if c < ' ' => write!(f, "\\u{:04x}", u32::from(c))?,
                            c => f.write_char(c)?,
                        }
                    }
                    f.write_str("']")?;
                }
            }
        }
        Ok(())
    }
}

impl Serialize for FieldPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FieldPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn path(text: &str) -> FieldPath {
        text.parse().unwrap()
    }

    #[test]
    fn a_path_leads_to_one_value() {
        let document = json!({"payload": {"temp": 21.5, "a b": [1, 2, 3], "it's": null, "": true}, "ä1": "x"});
        let find = |text: &str| path(text).find(&document).cloned();
        assert_eq!(find("$"), Some(document.clone()));
        assert_eq!(find("$.payload.temp"), Some(json!(21.5)));
        assert_eq!(find("$['payload'][\"temp\"]"), Some(json!(21.5)));
        assert_eq!(find("$.payload['a b'][0]"), Some(json!(1)));
        assert_eq!(find("$.payload['a b'][-1]"), Some(json!(3)));
        assert_eq!(find("$.payload['it\\'s']"), Some(json!(null)));
        assert_eq!(find("$.payload[\"it's\"]"), Some(json!(null)));
        assert_eq!(find("$.payload['']"), Some(json!(true)));
        assert_eq!(find("$['\\u00e41']"), Some(json!("x")));
        assert_eq!(find("$.ä1"), Some(json!("x")));
        for nowhere in ["$.temp", "$[0]", "$.payload['a b'][3]", "$.payload['a b'][-4]", "$.payload.temp.x", "$.ä1[0]"]
        {
            assert_eq!(find(nowhere), None, "{nowhere}");
        }
    }

    #[test]
    fn a_text_that_is_no_path_or_leads_to_many_values_is_refused() {
        for bad in [
            "",
            "payload",
            "$payload",
            "$.",
            "$..temp",
            "$.*",
            "$[*]",
            "$[0,1]",
            "$[0:2]",
            "$[?@.a]",
            "$[00]",
            "$[-0]",
            "$[01]",
            "$[+1]",
            "$[]",
            "$[a]",
            "$[0",
            "$['a]",
            "$['a'",
            "$['a'x]",
            "$['\\x']",
            "$['\\\"']",
            "$[\"\\'\"]",
            "$['\n']",
            "$['\\ud800']",
            "$.1a",
            "$.a b",
            "$ .a",
            "$[9007199254740992]",
            "$[-]",
            "$.a.",
            "$[ 0 ]",
            "$['\\",
        ] {
            assert!(bad.parse::<FieldPath>().is_err(), "{bad}");
        }
        let error = "payload.temp".parse::<FieldPath>().unwrap_err().to_string();
        assert!(error.starts_with("path \"payload.temp\" does not begin with $"), "{error}");
    }

    fn some_path() -> impl Strategy<Value = FieldPath> {
        let name = prop_oneof![".*", "[a-zäé_][a-z0-9_]{0,3}", "['\"\\\\\\n\\u{1}]{0,3}"].prop_map(PathSegment::Name);
        let index = (-MAX_INDEX..=MAX_INDEX).prop_map(PathSegment::Index);
        prop::collection::vec(prop_oneof![name, index], 0..5).prop_map(FieldPath)
    }

    proptest! {
        #[test]
        fn a_path_written_and_read_is_the_same(path in some_path()) {
            prop_assert_eq!(path.to_string().parse(), Ok(path));
        }

        #[test]
        fn foreign_texts_never_panic(text in "\\$?[\\[\\]'\".a0\\-\\\\u*ä]{0,12}") {
            if let Ok(path) = text.parse::<FieldPath>() {
                prop_assert_eq!(path.to_string().parse(), Ok(path));
            }
        }

        #[test]
        fn a_path_finds_what_was_put_there(path in some_path(), number: u32) {
            // Built from the inside out; an index is at the end of an array that is long enough, if that is short.
            let mut document = json!(number);
            for segment in path.0.iter().rev() {
                document = match segment {
                    PathSegment::Name(name) => Value::Object([(name.clone(), document)].into_iter().collect()),
                    PathSegment::Index(index) if (0..100).contains(index) => {
                        let mut elements = vec![Value::Null; usize::try_from(*index).unwrap()];
                        elements.push(document);
                        Value::Array(elements)
                    }
                    PathSegment::Index(_) => return Ok(()),
                };
            }
            prop_assert_eq!(path.find(&document), Some(&json!(number)));
        }
    }
}
