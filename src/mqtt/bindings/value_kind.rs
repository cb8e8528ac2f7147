//! The kind of a bare value.

use std::fmt;

/// The kind of value that a column, a feature or an input takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    Number,
    Integer,
    Boolean,
    /// Seconds since the Unix epoch, or a time in RFC 3339.
    Time,
    Text,
}

impl fmt::Display for ValueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Number => "a number such as 21.4",
            Self::Integer => "a whole number such as 21",
            Self::Boolean => "ON or OFF, true or false, 1 or 0, or online or offline",
            Self::Time => "a time in RFC 3339, or seconds since 1970",
            Self::Text => "a text",
        })
    }
}
