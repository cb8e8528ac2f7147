//! The value of a field, and its place.

use std::fmt;
use std::ops::Range;

use serde::Serialize;
use serde::ser::SerializeStruct;

/// An amount of money.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoneyAmount {
    /// In the smallest unit written: of 12.5 the 125.
    pub(super) units: i64,
    pub(super) decimals: u8,
    /// ISO 4217.
    pub(super) currency: Option<&'static str>,
}

impl MoneyAmount {
    /// In hundredths, to compare.
    pub(super) fn cents(self) -> i64 {
        if self.decimals == 0 { self.units.saturating_mul(100) } else { self.units }
    }

    /// The currency by ISO 4217, if the page says it.
    pub fn currency(&self) -> Option<&'static str> {
        self.currency
    }
}

/// A decimal number with a point.
impl fmt::Display for MoneyAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.decimals == 0 {
            return write!(f, "{}", self.units);
        }
        let sign = if self.units < 0 { "-" } else { "" };
        let units = self.units.unsigned_abs();
        write!(f, "{sign}{}.{:02}", units / 100, units % 100)
    }
}

impl Serialize for MoneyAmount {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Amount", 2)?;
        object.serialize_field("amount", &self.to_string())?;
        object.serialize_field("currency", &self.currency)?;
        object.end()
    }
}

/// A value in a form that programs read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ParsedFieldValue {
    Amount(MoneyAmount),
    /// `YYYY-MM-DD`, or a number without spaces.
    Text(String),
}

/// A value in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldMatch {
    pub(super) chars: Range<usize>,
    pub(super) value: ParsedFieldValue,
}
