//! Numbers that name something: bank accounts, companies, invoices.

use std::ops::Range;

use super::digits::{digit, likely_digit};
use super::row_text::GAP;
use super::value::{FieldMatch, ParsedFieldValue};

/// Countries with the lengths of their account numbers (ISO 13616), and whether all characters behind the country are
/// digits.
const IBANS: &[(&str, usize, bool)] = &[
    ("AD", 24, false),
    ("AT", 20, true),
    ("BE", 16, true),
    ("BG", 22, false),
    ("CH", 21, false),
    ("CY", 28, false),
    ("CZ", 24, true),
    ("DE", 22, true),
    ("DK", 18, true),
    ("EE", 20, true),
    ("ES", 24, true),
    ("FI", 18, true),
    ("FR", 27, false),
    ("GB", 22, false),
    ("GR", 27, false),
    ("HR", 21, true),
    ("HU", 28, true),
    ("IE", 22, false),
    ("IS", 26, true),
    ("IT", 27, false),
    ("LI", 21, false),
    ("LT", 20, true),
    ("LU", 20, false),
    ("LV", 21, false),
    ("MC", 27, false),
    ("MT", 31, false),
    ("NL", 18, false),
    ("NO", 15, true),
    ("PL", 28, true),
    ("PT", 25, true),
    ("RO", 24, false),
    ("SE", 24, true),
    ("SI", 19, true),
    ("SK", 24, true),
    ("SM", 27, false),
];

/// Countries with the lengths of their tax numbers behind the country, and the positions that may be letters (the
/// European Commission's list for VIES, and the United Kingdom).
const VAT_IDS: &[(&str, &[usize], &[usize])] = &[
    ("AT", &[9], &[0]),
    ("BE", &[10], &[]),
    ("BG", &[9, 10], &[]),
    ("CY", &[9], &[8]),
    ("CZ", &[8, 9, 10], &[]),
    ("DE", &[9], &[]),
    ("DK", &[8], &[]),
    ("EE", &[9], &[]),
    ("EL", &[9], &[]),
    ("ES", &[9], &[0, 8]),
    ("FI", &[8], &[]),
    ("FR", &[11], &[0, 1]),
    ("GB", &[9, 12], &[]),
    ("HR", &[11], &[]),
    ("HU", &[8], &[]),
    ("IE", &[8, 9], &[1, 7, 8]),
    ("IT", &[11], &[]),
    ("LT", &[9, 12], &[]),
    ("LU", &[8], &[]),
    ("LV", &[11], &[]),
    ("MT", &[8], &[]),
    ("NL", &[12], &[9]),
    ("PL", &[10], &[]),
    ("PT", &[9], &[]),
    ("RO", &[8, 9, 10], &[]),
    ("SE", &[12], &[]),
    ("SI", &[8], &[]),
    ("SK", &[10], &[]),
];

/// The account numbers of a row that have right check digits.
pub(super) fn ibans(chars: &[char]) -> Vec<FieldMatch> {
    found(chars, |start| {
        let country = country_at(chars, start)?;
        let (_, length, is_numeric) = IBANS.iter().find(|(code, ..)| *code == country)?;
        let (characters, end) = characters(chars, start, *length)?;
        let body = characters.iter().enumerate().map(|(index, char)| match index {
            0 | 1 => Some(char.to_ascii_uppercase()),
            2 | 3 => likely(*char),
            _ if *is_numeric => likely(*char),
            _ => Some(char.to_ascii_uppercase()),
        });
        let iban: String = body.collect::<Option<_>>()?;
        is_iban(&iban).then_some((start..end, iban))
    })
}

/// The tax numbers of a row.
pub(super) fn vat_ids(chars: &[char]) -> Vec<FieldMatch> {
    found(chars, |start| {
        let country = country_at(chars, start)?;
        let (_, lengths, letters) = VAT_IDS.iter().find(|(code, ..)| *code == country)?;
        // The longest first: a number may begin as a shorter one does.
        lengths.iter().rev().find_map(|length| {
            let (characters, end) = characters(chars, start, length + 2)?;
            let body = characters.iter().skip(2).enumerate().map(|(index, char)| {
                if letters.contains(&index) && char.is_ascii_alphabetic() {
                    Some(char.to_ascii_uppercase())
                } else {
                    likely(*char)
                }
            });
            let body: String = body.collect::<Option<_>>()?;
            let is_long_enough = characters.iter().skip(2).filter(|char| digit(**char).is_some()).count() * 2 > *length;
            is_long_enough.then(|| (start..end, format!("{country}{body}")))
        })
    })
}

/// The numbers of a row: letters and digits, with signs between them.
pub(super) fn numbers(chars: &[char]) -> Vec<FieldMatch> {
    found(chars, |start| {
        let is_part = |char: &char| char.is_alphanumeric() || matches!(char, '-' | '/' | '.' | '_');
        let length = chars.get(start..)?.iter().take_while(|char| is_part(char)).count();
        let run = chars.get(start..start + length)?;
        let kept = run.iter().rposition(|char| char.is_alphanumeric())? + 1;
        let text: String = run.get(..kept)?.iter().collect();
        let is_number = text.chars().any(|char| char.is_ascii_digit()) && kept >= 3;
        is_number.then_some((start..start + kept, text))
    })
}

/// The identifier that begins at each place, without overlaps.
fn found(chars: &[char], at: impl Fn(usize) -> Option<(Range<usize>, String)>) -> Vec<FieldMatch> {
    let mut found: Vec<FieldMatch> = Vec::new();
    for start in 0..chars.len() {
        let is_taken = found.last().is_some_and(|last| start < last.chars.end);
        let is_inside =
            start.checked_sub(1).and_then(|before| chars.get(before)).is_some_and(|before| before.is_alphanumeric());
        if let Some((chars, text)) = (!is_taken && !is_inside).then(|| at(start)).flatten() {
            found.push(FieldMatch { chars, value: ParsedFieldValue::Text(text) });
        }
    }
    found
}

fn country_at(chars: &[char], start: usize) -> Option<String> {
    let code = chars.get(start..start + 2)?;
    let is_code = code.iter().all(char::is_ascii_uppercase);
    is_code.then(|| code.iter().collect())
}

/// Exactly `count` letters and digits, with single spaces and signs between them. `None` if more of them follow.
fn characters(chars: &[char], start: usize, count: usize) -> Option<(Vec<char>, usize)> {
    let mut found = Vec::with_capacity(count);
    let mut at = start;
    while found.len() < count {
        match *chars.get(at)? {
            char if char.is_ascii_alphanumeric() => found.push(char),
            GAP => return None,
            ' ' | '.' | '-' if chars.get(at + 1).is_some_and(char::is_ascii_alphanumeric) => {}
            _ => return None,
        }
        at += 1;
    }
    let goes_on = chars.get(at).is_some_and(char::is_ascii_alphanumeric);
    (!goes_on).then_some((found, at))
}

fn likely(char: char) -> Option<char> {
    likely_digit(char).map(|digit| char::from(b'0' + digit))
}

/// Compares the check digits: the number is 1 modulo 97 with its first four characters behind the others (ISO 7064).
fn is_iban(iban: &str) -> bool {
    let (Some(start), Some(rest)) = (iban.get(..4), iban.get(4..)) else { return false };
    let remainder = rest.chars().chain(start.chars()).try_fold(0_u32, |remainder, char| {
        let value = char.to_digit(36)?;
        let shifted = if value < 10 { remainder * 10 } else { remainder * 100 };
        Some((shifted + value) % 97)
    });
    remainder == Some(1)
}
