//! Amounts of money: with decimals, a currency, or both.

use std::ops::Range;

use super::digits::{digit, run};
pub use super::value::MoneyAmount;
use super::value::{FieldMatch, ParsedFieldValue};

/// The most digits of an amount; more are a number of another kind.
const DIGITS_MAX: usize = 12;

/// Signs and codes of currencies. Those that several countries share have no code.
const CURRENCIES: &[(&str, Option<&str>)] = &[
    ("€", Some("EUR")),
    ("EUR", Some("EUR")),
    ("Euro", Some("EUR")),
    ("$", Some("USD")),
    ("USD", Some("USD")),
    ("US$", Some("USD")),
    ("CAD", Some("CAD")),
    ("AUD", Some("AUD")),
    ("£", Some("GBP")),
    ("GBP", Some("GBP")),
    ("CHF", Some("CHF")),
    ("SFr.", Some("CHF")),
    ("Fr.", Some("CHF")),
    ("PLN", Some("PLN")),
    ("zł", Some("PLN")),
    ("CZK", Some("CZK")),
    ("Kč", Some("CZK")),
    ("HUF", Some("HUF")),
    ("Ft", Some("HUF")),
    ("SEK", Some("SEK")),
    ("NOK", Some("NOK")),
    ("DKK", Some("DKK")),
    ("kr.", None),
    ("kr", None),
    ("RON", Some("RON")),
    ("JPY", Some("JPY")),
    ("¥", Some("JPY")),
    ("CNY", Some("CNY")),
    ("INR", Some("INR")),
    ("Rs.", Some("INR")),
    ("Rs", Some("INR")),
    ("₹", Some("INR")),
    ("IDR", Some("IDR")),
    ("Rp", Some("IDR")),
    ("RM", Some("MYR")),
    ("MYR", Some("MYR")),
    ("SGD", Some("SGD")),
];

/// Letters that are read in place of a sign that the model does not know. Directly at a number with decimals, they may
/// be one.
const SIGN_LOOKALIKES: &[char] = &['E', 'C', 'e', 'c', 'f', 'L'];

/// The amounts of a row.
pub(super) fn amounts(chars: &[char]) -> Vec<FieldMatch> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let Some(number) = AmountNumber::at(chars, at) else {
            at += 1;
            continue;
        };
        at = number.chars.end;
        if let Some((chars, amount)) = number.amount(chars) {
            found.push(FieldMatch { chars, value: ParsedFieldValue::Amount(amount) });
        }
    }
    found
}

/// A number with the facts that decide whether it is an amount.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AmountNumber {
    chars: Range<usize>,
    units: i64,
    decimals: u8,
    /// The first character is a letter in place of a digit.
    begins_with_letter: bool,
}

impl AmountNumber {
    /// The number that begins here.
    fn at(chars: &[char], start: usize) -> Option<Self> {
        let before = start.checked_sub(1).and_then(|before| chars.get(before));
        // Within a word, within a number, or behind its separator.
        if before.is_some_and(char::is_ascii_digit) || is_fraction(chars, start) {
            return None;
        }
        let (first, mut sure) = run(chars, start, DIGITS_MAX + 1);
        if first.is_empty() {
            return None;
        }
        let mut end = start + first.len();
        let (mut digits, mut decimals) = (first.clone(), 0);
        let mut is_grouped = true;
        while let Some((group, sure_of_group, group_end, is_point)) = next_group(chars, end) {
            let is_thousand = group.len() == 3 && is_grouped && first.len() <= 3;
            let is_last = next_group(chars, group_end).is_none();
            if is_point && group.len() == 2 && is_last {
                decimals = 2;
            } else if !is_thousand {
                // Of a date, a time, a version: no amount at all. Behind a space, another number.
                if is_point {
                    return None;
                }
                break;
            }
            is_grouped = decimals == 0;
            digits.extend(&group);
            sure += sure_of_group;
            end = group_end;
            if decimals > 0 {
                break;
            }
        }
        // Zeros after the decimal point are misread most often.
        let sure_min = if decimals > 0 { digits.len().div_ceil(4) } else { digits.len().div_ceil(2) };
        if digits.len() > DIGITS_MAX || sure < sure_min {
            return None;
        }
        let units = digits.iter().fold(0_i64, |units, digit| units * 10 + i64::from(*digit));
        let begins_with_letter = chars.get(start).is_some_and(|char| digit(*char).is_none());
        Some(Self { chars: start..end, units, decimals, begins_with_letter })
    }

    /// The amount with its currency and sign, and the place of all.
    fn amount(&self, chars: &[char]) -> Option<(Range<usize>, MoneyAmount)> {
        let before = chars.get(..self.chars.start)?;
        let behind = chars.get(self.chars.end..)?;
        if behind.iter().find(|char| **char != ' ').is_some_and(|char| *char == '%') {
            return None;
        }
        // A number that goes on is of another kind.
        let is_cut = matches!(behind, [':' | '/' | '-', next, ..] if next.is_ascii_digit())
            || matches!(before, [.., previous, ':' | '/'] if previous.is_ascii_digit());
        if is_cut {
            return None;
        }

        let trailing = currency_at_start(behind);
        let leading = currency_at_end(before);
        let (trailing_end, leading_start) = (
            trailing.map_or(self.chars.end, |(length, _)| self.chars.end + length),
            leading.map_or(self.chars.start, |(length, _)| self.chars.start - length),
        );
        let has_currency = leading.is_some() || trailing.is_some();
        let touches = |char: Option<&char>| char.is_some_and(|char| char.is_alphabetic() || *char == '_');
        let is_sign = |char: Option<&char>| char.is_some_and(|char| SIGN_LOOKALIKES.contains(char));
        let is_sign_before = is_sign(before.last()) && !touches(before.iter().rev().nth(1));
        let is_sign_behind = is_sign(behind.first()) && !touches(behind.get(1));
        let is_inside = (leading.is_none() && touches(before.last()) && !(is_sign_before && self.decimals > 0))
            || (trailing.is_none()
                && touches(behind.first())
                && !((is_sign_behind || is_code(behind)) && self.decimals > 0));
        if is_inside || (self.decimals == 0 && !has_currency) || (self.begins_with_letter && self.decimals == 0) {
            return None;
        }

        let rest = chars.get(..leading_start)?;
        let before_sign = rest.iter().rev().find(|char| **char != ' ');
        let is_negative_before =
            matches!(before.last(), Some('-')) || matches!(before_sign, Some('-') if leading.is_some());
        let is_negative =
            is_negative_before || matches!(behind, ['-', next, ..] if !next.is_alphanumeric()) || behind == ['-'];
        let named = |found: Option<(usize, Option<&'static str>)>| found.and_then(|(_, code)| code);
        // Yen have no decimals: the sign is another one, of a currency that the model does not know.
        let currency = named(leading).or(named(trailing)).filter(|code| *code != "JPY" || self.decimals == 0);
        let units = if is_negative { -self.units } else { self.units };
        Some((leading_start..trailing_end, MoneyAmount { units, decimals: self.decimals, currency }))
    }
}

/// The digits behind a separator, which of them are sure, their end, and whether the separator can begin decimals.
fn next_group(chars: &[char], at: usize) -> Option<(Vec<u8>, usize, usize, bool)> {
    let separator = *chars.get(at)?;
    let is_point = matches!(separator, '.' | ',');
    let mut start = at + 1;
    match separator {
        '.' | ',' | '\'' => {}
        // "12 ,50"; else three digits and no fourth.
        ' ' if matches!(chars.get(at + 1), Some(',' | '.')) => {
            let (group, sure, end, _) = next_group(chars, at + 1)?;
            return (group.len() == 2).then_some((group, sure, end, true));
        }
        ' ' => {
            let (group, sure) = run(chars, start, 4);
            let is_thousand = group.len() == 3 && sure == 3;
            return is_thousand.then_some((group, sure, start + 3, false));
        }
        _ => return None,
    }
    // "12, 50"
    if is_point && chars.get(start) == Some(&' ') {
        let (group, sure) = run(chars, start + 1, 3);
        return (group.len() == 2 && sure == 2).then_some((group, sure, start + 3, true));
    }
    let (group, sure) = run(chars, start, DIGITS_MAX);
    start += group.len();
    (!group.is_empty()).then_some((group, sure, start, is_point))
}

/// True for two or three capitals and no more letters: the misread code of a currency, such as "UR".
fn is_code(chars: &[char]) -> bool {
    let capitals = chars.iter().take_while(|char| char.is_ascii_uppercase()).count();
    (2..=3).contains(&capitals) && !chars.get(capitals).is_some_and(|next| next.is_alphanumeric())
}

/// Returns true if a separator and a digit are right before.
fn is_fraction(chars: &[char], start: usize) -> bool {
    let before = chars.get(..start).unwrap_or_default();
    matches!(before, [.., digit, '.' | ',' | '\''] if digit.is_ascii_digit())
}

/// Returns true if a currency begins here.
pub(super) fn starts_with_currency(chars: &[char]) -> bool {
    currency_at_start(chars).is_some()
}

/// A currency behind a number, perhaps after a space: the length of both, and its code.
fn currency_at_start(chars: &[char]) -> Option<(usize, Option<&'static str>)> {
    let space = usize::from(chars.first() == Some(&' '));
    let rest = chars.get(space..)?;
    longest(|name| {
        let is_here =
            rest.len() >= name.len() && rest.iter().zip(name).all(|(one, other)| one.eq_ignore_ascii_case(other));
        let ends = !name.last()?.is_alphabetic() || !rest.get(name.len()).is_some_and(|next| next.is_alphabetic());
        (is_here && ends).then_some(space + name.len())
    })
}

/// A currency before a number.
fn currency_at_end(chars: &[char]) -> Option<(usize, Option<&'static str>)> {
    let space = usize::from(chars.last() == Some(&' '));
    let rest = chars.get(..chars.len() - space)?;
    longest(|name| {
        let start = rest.len().checked_sub(name.len())?;
        let is_here = rest.iter().skip(start).zip(name).all(|(one, other)| one.eq_ignore_ascii_case(other));
        // A code in capitals may be joined to the word before it.
        let is_code = name.len() == 3 && name.iter().all(char::is_ascii_uppercase) && rest.get(start..) == Some(name);
        let begins = is_code
            || !name.first()?.is_alphabetic()
            || !start.checked_sub(1).and_then(|before| rest.get(before)).is_some_and(|before| before.is_alphabetic());
        (is_here && begins).then_some(space + name.len())
    })
}

fn longest(length: impl Fn(&[char]) -> Option<usize>) -> Option<(usize, Option<&'static str>)> {
    let found = CURRENCIES.iter().filter_map(|(name, code)| {
        let name: Vec<char> = name.chars().collect();
        Some((length(&name)?, *code))
    });
    found.max_by_key(|(length, _)| *length)
}
