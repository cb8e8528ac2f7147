//! The value of a field, and its place.

use std::fmt;
use std::ops::Range;

use serde::Serialize;
use serde::ser::SerializeStruct;

use super::names;

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
    /// A decimal number with a point, of at most three decimals that are not zero.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        let kept = decimals.trim_end_matches('0');
        let decimals = if kept.len() <= 2 { decimals.get(..2.min(decimals.len()))? } else { kept };
        let units = format!("{whole}{decimals}").parse().ok()?;
        Some(Self { units, decimals: u8::try_from(decimals.len()).ok().filter(|count| *count <= 3)?, currency: None })
    }

    /// In thousandths, to compare and to add.
    pub(super) fn thousandths(self) -> i64 {
        self.units.saturating_mul(10_i64.pow(3_u32.saturating_sub(u32::from(self.decimals))))
    }

    /// Returns true if it has no decimals.
    pub(super) fn is_integer(self) -> bool {
        self.decimals == 0
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
        let (units, one) = (self.units.unsigned_abs(), 10_u64.pow(u32::from(self.decimals)));
        write!(f, "{sign}{}.{:0width$}", units / one, units % one, width = usize::from(self.decimals))
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

/// A tax of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaxAmount {
    /// In hundredths of a percent, if the page says it.
    pub(super) rate: Option<i64>,
    pub(super) amount: MoneyAmount,
}

/// `{"rate": "19.00", "amount": "1.90"}`
impl Serialize for TaxAmount {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("TaxAmount", 2)?;
        let rate = self.rate.map(|rate| format!("{}.{:02}", rate / 100, rate % 100));
        object.serialize_field("rate", &rate)?;
        object.serialize_field("amount", &self.amount.to_string())?;
        object.end()
    }
}

/// A value in a form that programs read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ParsedFieldValue {
    Amount(MoneyAmount),
    /// The taxes of a document.
    Taxes(Vec<TaxAmount>),
    /// `YYYY-MM-DD`, or a number without spaces.
    Text(String),
    /// The name of a company.
    Name(String),
}

impl ParsedFieldValue {
    /// True for equal values, for names of which one is most of the other, and for an amount without a currency.
    pub fn agrees(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Name(one), Self::Name(other)) => names::is_same(one, other),
            (Self::Amount(one), Self::Amount(other)) => {
                let has_unknown = one.currency.is_none() || other.currency.is_none();
                one.thousandths() == other.thousandths() && (has_unknown || one.currency == other.currency)
            }
            _ => self == other,
        }
    }

    /// The text, if it is one.
    pub(super) fn into_text(self) -> Option<String> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

/// A value in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldMatch {
    pub(super) chars: Range<usize>,
    pub(super) value: ParsedFieldValue,
}
