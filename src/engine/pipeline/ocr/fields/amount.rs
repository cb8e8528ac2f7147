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
    ("Euro", Some("EUR")),
    ("$", Some("USD")),
    ("US$", Some("USD")),
    ("A$", Some("AUD")),
    ("AU$", Some("AUD")),
    ("C$", Some("CAD")),
    ("CA$", Some("CAD")),
    ("NZ$", Some("NZD")),
    ("S$", Some("SGD")),
    ("HK$", Some("HKD")),
    ("NT$", Some("TWD")),
    ("R$", Some("BRL")),
    ("£", Some("GBP")),
    ("SFr.", Some("CHF")),
    ("Fr.", Some("CHF")),
    ("zł", Some("PLN")),
    ("Kč", Some("CZK")),
    ("Ft", Some("HUF")),
    ("kr.", None),
    ("kr", None),
    ("¥", Some("JPY")),
    ("Rs.", Some("INR")),
    ("Rs", Some("INR")),
    ("₹", Some("INR")),
    ("Rp", Some("IDR")),
    ("Rp.", Some("IDR")),
    ("RM", Some("MYR")),
    ("฿", Some("THB")),
    ("Baht", Some("THB")),
    ("₱", Some("PHP")),
    ("₩", Some("KRW")),
    ("₫", Some("VND")),
    ("₪", Some("ILS")),
    ("NIS", Some("ILS")),
    ("₺", Some("TRY")),
    ("TL", Some("TRY")),
    ("₽", Some("RUB")),
    ("₴", Some("UAH")),
    ("Dhs", Some("AED")),
    ("Dhs.", Some("AED")),
    ("L.E.", Some("EGP")),
    ("L.E", Some("EGP")),
    ("LE", Some("EGP")),
    ("KD", Some("KWD")),
];

/// Codes of ISO 4217 that are taken as they are.
const CODES: &[&str] = &[
    "AED", "AUD", "BGN", "BHD", "BRL", "CAD", "CHF", "CNY", "CZK", "DKK", "EGP", "EUR", "GBP", "HKD", "HUF", "IDR",
    "ILS", "INR", "ISK", "JOD", "JPY", "KRW", "KWD", "LBP", "MAD", "MXN", "MYR", "NOK", "NZD", "OMR", "PHP", "PKR",
    "PLN", "QAR", "RON", "RUB", "SAR", "SEK", "SGD", "THB", "TND", "TRY", "TWD", "UAH", "USD", "VND", "ZAR",
];

/// The currencies with three decimals.
const THREE_DECIMALS: &[&str] = &["BHD", "JOD", "KWD", "OMR", "TND"];

/// Letters that are read in place of a sign that the model does not know. Directly at a number with decimals, they may
/// be one.
const SIGN_LOOKALIKES: &[char] = &['E', 'C', 'e', 'c', 'f', 'L'];

/// The amounts of a row.
pub(super) fn amounts(chars: &[char]) -> Vec<FieldMatch> {
    let amounts = found(chars, false).into_iter();
    amounts.map(|(chars, amount)| FieldMatch { chars, value: ParsedFieldValue::Amount(amount) }).collect()
}

/// The amounts of a row, each with its place. `with_integers`: numbers without decimals and currency as well.
pub(super) fn found(chars: &[char], with_integers: bool) -> Vec<(Range<usize>, MoneyAmount)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let Some(number) = AmountNumber::at(chars, at) else {
            at += 1;
            continue;
        };
        at = number.chars.end;
        found.extend(number.amount(chars, with_integers));
    }
    found
}

/// A number with the facts that decide whether it is an amount.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AmountNumber {
    chars: Range<usize>,
    units: i64,
    decimals: u8,
    /// The last group of three digits stands behind the only point: decimals of some currencies.
    may_have_three_decimals: bool,
    /// The first character is a letter in place of a digit.
    begins_with_letter: bool,
}

impl AmountNumber {
    /// The number that begins here.
    fn at(chars: &[char], start: usize) -> Option<Self> {
        if chars.get(start) == Some(&'.') {
            return Self::without_whole(chars, start);
        }
        let before = start.checked_sub(1).and_then(|before| chars.get(before));
        // Within a word, within a number, or behind its separator.
        if before.is_some_and(char::is_ascii_digit) || is_fraction(chars, start) {
            return None;
        }
        let (first, mut sure) = run(chars, start, DIGITS_MAX + 1);
        if first.is_empty() {
            return None;
        }
        let begins_with_letter = chars.get(start).is_some_and(|char| digit(*char).is_none());
        // The D of "AED 105.00" is none.
        if begins_with_letter && before.is_some_and(|before| before.is_alphabetic()) {
            return None;
        }
        let mut end = start + first.len();
        let (mut digits, mut decimals) = (first.clone(), 0);
        let mut is_grouped = true;
        let mut may_have_three_decimals = false;
        while let Some((group, sure_of_group, group_end, is_point)) = next_group(chars, end) {
            // "157 314.00" are two numbers: who divides thousands by spaces writes a comma before the decimals.
            let is_space = chars.get(end) == Some(&' ') && !matches!(chars.get(end + 1), Some('.' | ','));
            if is_space && chars.get(group_end) == Some(&'.') {
                break;
            }
            // "O 105": a word, and a number.
            if begins_with_letter && first.len() == 1 && chars.get(end) == Some(&' ') {
                break;
            }
            let is_lakh = group.len() == 2
                && first.len() <= 2
                && chars.get(end) == Some(&',')
                && ends_in_thousand(chars, group_end);
            let is_thousand = is_lakh || (group.len() == 3 && is_grouped && first.len() <= 3);
            let is_last = next_group(chars, group_end).is_none();
            if is_point && group.len() == 2 && is_last {
                decimals = 2;
            } else if is_point && group.len() == 1 && is_last && sure_of_group == 1 {
                decimals = 1;
            } else if !is_thousand {
                // Of a date, a time, a version: no amount at all. Behind a space, another number.
                if is_point {
                    return None;
                }
                break;
            }
            is_grouped = decimals == 0;
            may_have_three_decimals = group.len() == 3
                && chars.get(end) == Some(&'.')
                && !chars.get(start..end).is_some_and(|before| before.contains(&'.'));
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
        Some(Self { chars: start..end, units, decimals, may_have_three_decimals, begins_with_letter })
    }

    /// Less than one, as in ".82".
    fn without_whole(chars: &[char], start: usize) -> Option<Self> {
        let before = start.checked_sub(1).and_then(|before| chars.get(before));
        let (digits, sure) = run(chars, start + 1, 3);
        let is_alone = before.is_none_or(|before| matches!(*before, ' ' | '$' | '-' | super::row_text::GAP));
        let units = digits.iter().fold(0_i64, |units, digit| units * 10 + i64::from(*digit));
        (is_alone && digits.len() == 2 && sure == 2).then(|| Self {
            chars: start..start + 3,
            units,
            decimals: 2,
            may_have_three_decimals: false,
            begins_with_letter: false,
        })
    }

    /// The amount with its currency and sign, and the place of all.
    fn amount(&self, chars: &[char], with_integers: bool) -> Option<(Range<usize>, MoneyAmount)> {
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
        let is_whole = self.decimals == 0;
        // "1.5" is a quantity, "$ 1.5" an amount.
        let needs_currency = (is_whole && !with_integers) || self.decimals == 1;
        if is_inside || (needs_currency && !has_currency) || (self.begins_with_letter && is_whole) {
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
        let has_three = self.may_have_three_decimals && currency.is_some_and(|code| THREE_DECIMALS.contains(&code));
        let decimals = if has_three { 3 } else { self.decimals };
        let units = if is_negative { -self.units } else { self.units };
        Some((leading_start..trailing_end, MoneyAmount { units, decimals, currency }))
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

/// Returns true if groups of two digits, and at last one of three, follow: "6,00,000".
fn ends_in_thousand(chars: &[char], at: usize) -> bool {
    match next_group(chars, at) {
        Some((group, _, end, _)) if chars.get(at) == Some(&',') => {
            group.len() == 3 || (group.len() == 2 && ends_in_thousand(chars, end))
        }
        _ => false,
    }
}

/// True for up to three capitals and no more letters: the misread code of a currency, such as "UR", or that of a tax.
fn is_code(chars: &[char]) -> bool {
    let capitals = chars.iter().take_while(|char| char.is_ascii_uppercase()).count();
    (1..=3).contains(&capitals) && !chars.get(capitals).is_some_and(|next| next.is_alphanumeric())
}

/// Returns true if a separator and a digit are right before.
fn is_fraction(chars: &[char], start: usize) -> bool {
    let before = chars.get(..start).unwrap_or_default();
    matches!(before, [.., digit, '.' | ',' | '\''] if digit.is_ascii_digit())
}

/// Currencies that stand in a text as a word: their codes, and signs that no word resembles.
pub(super) fn currencies_alone(chars: &[char]) -> Vec<(Range<usize>, &'static str)> {
    let mut found = Vec::new();
    let mut start = 0;
    for (end, char) in chars.iter().enumerate().chain([(chars.len(), &' ')]) {
        let is_sign = !char.is_alphanumeric() && !char.is_ascii();
        if let Some((_, Some(code))) = CURRENCIES.iter().find(|(name, _)| is_sign && name.chars().eq([*char])) {
            found.push((end..end + 1, *code));
        }
        if char.is_alphanumeric() {
            continue;
        }
        let word: String = chars.get(start..end).unwrap_or_default().iter().collect();
        if let Some(code) = CODES.iter().find(|code| **code == word) {
            found.push((start..end, *code));
        } else if word == "RM" {
            found.push((start..end, "MYR"));
        }
        start = end + 1;
    }
    found
}

/// The currency with this code by ISO 4217.
pub(super) fn currency_of_code(code: &str) -> Option<&'static str> {
    CODES.iter().copied().find(|known| *known == code)
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
        // "X$" is the sign of another country.
        let is_whole_sign = *name.first()? != '$'
            || !start
                .checked_sub(1)
                .is_some_and(|before| rest.get(before).is_some_and(|before| before.is_alphabetic()));
        (is_here && begins && is_whole_sign).then_some(space + name.len())
    })
}

fn longest(length: impl Fn(&[char]) -> Option<usize>) -> Option<(usize, Option<&'static str>)> {
    let names = CURRENCIES.iter().copied().chain(CODES.iter().map(|code| (*code, Some(*code))));
    let found = names.filter_map(|(name, code)| {
        let name: Vec<char> = name.chars().collect();
        Some((length(&name)?, code))
    });
    found.max_by_key(|(length, _)| *length)
}
