//! One table in each form that TOML has for it, for tests: plain keys below headers, dotted keys, inline tables in one
//! line and in many, arrays of tables with headers and without.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use proptest::prelude::*;
use toml::{Table, Value};

/// A value that no key takes.
pub const WRONG: &str = "1979-05-27";

/// A text, and the line of each of its keys.
#[derive(Debug, Default)]
pub struct Written {
    pub text: String,
    /// By key, as in `a.b[1].c`.
    pub lines: BTreeMap<String, usize>,
}

/// Which forms are chosen, one after the other.
pub fn choices() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 32)
}

/// Writes a table in the forms that `choices` say.
pub fn write(table: &Table, choices: &[u8]) -> Written {
    let mut writer = Writer { written: Written::default(), choices, chosen: 0 };
    writer.section("", "", table);
    writer.written
}

/// The keys of all values that are no tables, those in arrays included.
pub fn leaves(table: &Table) -> Vec<String> {
    let mut found = Vec::new();
    table.iter().for_each(|(key, value)| leaves_of(key.clone(), value, &mut found));
    found
}

fn leaves_of(key: String, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Table(table) => table.iter().for_each(|(name, value)| leaves_of(format!("{key}.{name}"), value, found)),
        Value::Array(elements) => {
            elements.iter().enumerate().for_each(|(at, value)| leaves_of(format!("{key}[{at}]"), value, found));
            if !has_tables(value) {
                found.push(key);
            }
        }
        _ => found.push(key),
    }
}

/// Sets the value of a key, as in `a.b[1].c`, which may be new in its table.
pub fn set(table: &mut Table, key: &str, value: Value) {
    let mut steps = key.split(['.', '[']).peekable();
    let mut here = steps.next().map(|first| table.entry(first).or_insert(Value::Integer(0))).unwrap();
    for step in steps {
        here = match step.strip_suffix(']') {
            Some(index) => &mut here.as_array_mut().unwrap()[index.parse::<usize>().unwrap()],
            None => here.as_table_mut().unwrap().entry(step).or_insert(Value::Integer(0)),
        };
    }
    *here = value;
}

/// Makes the value of a key one that it does not take.
pub fn spoil(table: &mut Table, key: &str) {
    set(table, key, Value::Datetime(WRONG.parse().unwrap()));
}

fn has_tables(value: &Value) -> bool {
    value.as_array().is_some_and(|elements| elements.iter().any(Value::is_table))
}

struct Writer<'c> {
    written: Written,
    choices: &'c [u8],
    chosen: usize,
}

impl Writer<'_> {
    fn choose(&mut self, of: u8) -> u8 {
        let choice = self.choices[self.chosen % self.choices.len()] % of;
        self.chosen += 1;
        choice
    }

    fn note(&mut self, key: &str) {
        let line = self.written.text.matches('\n').count() + 1;
        self.written.lines.insert(key.to_owned(), line);
    }

    /// The entries of a table that has a header, or is the document.
    fn section(&mut self, header: &str, key: &str, table: &Table) {
        let joined =
            |above: &str, name: &str| if above.is_empty() { name.to_owned() } else { format!("{above}.{name}") };
        let mut later = Vec::new();
        for (name, value) in table {
            match value {
                Value::Table(_) if self.choose(3) == 0 => later.push((name, value)),
                Value::Array(_) if has_tables(value) && self.choose(2) == 0 => later.push((name, value)),
                value => self.entry(name, &joined(key, name), value),
            }
        }
        for (name, value) in later {
            let (header, key) = (joined(header, name), joined(key, name));
            if let Value::Table(table) = value {
                self.note(&key);
                let _ = writeln!(self.written.text, "[{header}]");
                self.section(&header, &key, table);
            }
            for (at, element) in value.as_array().into_iter().flatten().enumerate() {
                let key = format!("{key}[{at}]");
                self.note(&key);
                let _ = writeln!(self.written.text, "\n[[{header}]]");
                *self.written.lines.get_mut(&key).unwrap() += 1;
                self.section(&header, &key, element.as_table().unwrap());
            }
        }
    }

    /// `name = value`, or the entries of a table with dotted keys.
    fn entry(&mut self, name: &str, key: &str, value: &Value) {
        match value {
            Value::Table(table) if !table.is_empty() && self.choose(2) == 0 => {
                for (inner, value) in table {
                    self.entry(&format!("{name}.{inner}"), &format!("{key}.{inner}"), value);
                }
            }
            value => {
                let _ = write!(self.written.text, "{name} = ");
                self.value(key, value);
                self.written.text.push('\n');
            }
        }
    }

    fn value(&mut self, key: &str, value: &Value) {
        self.note(key);
        let is_many_lines = self.choose(2) == 0;
        let gap = if is_many_lines { "\n  " } else { " " };
        match value {
            Value::Table(table) => {
                self.written.text.push('{');
                for (at, (name, value)) in table.iter().enumerate() {
                    self.written.text.push_str(if at > 0 { "," } else { "" });
                    self.written.text.push_str(gap);
                    let _ = write!(self.written.text, "{name} = ");
                    self.value(&format!("{key}.{name}"), value);
                }
                self.written.text.push_str(if is_many_lines { "\n}" } else { " }" });
            }
            Value::Array(elements) => {
                self.written.text.push('[');
                for (at, value) in elements.iter().enumerate() {
                    self.written.text.push_str(if at > 0 { "," } else { "" });
                    self.written.text.push_str(gap);
                    self.value(&format!("{key}[{at}]"), value);
                }
                self.written.text.push_str(if is_many_lines { "\n]" } else { " ]" });
            }
            value => drop(write!(self.written.text, "{value}")),
        }
    }
}
