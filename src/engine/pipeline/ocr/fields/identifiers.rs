//! Numbers that name something: bank accounts, companies, invoices.

use std::ops::Range;

use super::digits::{digit, likely_digit};
use super::row_text::GAP;
use super::value::{FieldMatch, ParsedFieldValue};

/// Countries with the lengths of their account numbers (ISO 13616, SWIFT's registry), and whether all characters behind
/// the country are digits.
const IBANS: &[(&str, usize, bool)] = &[
    ("AD", 24, false),
    ("AE", 23, true),
    ("AL", 28, false),
    ("AT", 20, true),
    ("AZ", 28, false),
    ("BA", 20, true),
    ("BE", 16, true),
    ("BG", 22, false),
    ("BH", 22, false),
    ("BI", 27, true),
    ("BR", 29, false),
    ("BY", 28, false),
    ("CH", 21, false),
    ("CR", 22, true),
    ("CY", 28, false),
    ("CZ", 24, true),
    ("DE", 22, true),
    ("DJ", 27, true),
    ("DK", 18, true),
    ("DO", 28, false),
    ("EE", 20, true),
    ("EG", 29, true),
    ("ES", 24, true),
    ("FI", 18, true),
    ("FK", 18, false),
    ("FO", 18, true),
    ("FR", 27, false),
    ("GB", 22, false),
    ("GE", 22, false),
    ("GI", 23, false),
    ("GL", 18, true),
    ("GR", 27, false),
    ("GT", 28, false),
    ("HN", 28, false),
    ("HR", 21, true),
    ("HU", 28, true),
    ("IE", 22, false),
    ("IL", 23, true),
    ("IQ", 23, false),
    ("IS", 26, true),
    ("IT", 27, false),
    ("JO", 30, false),
    ("KW", 30, false),
    ("KZ", 20, false),
    ("LB", 28, false),
    ("LC", 32, false),
    ("LI", 21, false),
    ("LT", 20, true),
    ("LU", 20, false),
    ("LV", 21, false),
    ("LY", 25, true),
    ("MC", 27, false),
    ("MD", 24, false),
    ("ME", 22, true),
    ("MK", 19, false),
    ("MN", 20, true),
    ("MR", 27, true),
    ("MT", 31, false),
    ("MU", 30, false),
    ("NI", 28, false),
    ("NL", 18, false),
    ("NO", 15, true),
    ("OM", 23, false),
    ("PK", 24, false),
    ("PL", 28, true),
    ("PS", 29, false),
    ("PT", 25, true),
    ("QA", 29, false),
    ("RO", 24, false),
    ("RS", 22, true),
    ("RU", 33, false),
    ("SA", 24, false),
    ("SC", 31, false),
    ("SD", 18, true),
    ("SE", 24, true),
    ("SI", 19, true),
    ("SK", 24, true),
    ("SM", 27, false),
    ("SO", 23, true),
    ("ST", 25, true),
    ("SV", 28, false),
    ("TL", 23, true),
    ("TN", 24, true),
    ("TR", 26, false),
    ("UA", 29, false),
    ("VA", 22, true),
    ("VG", 24, false),
    ("XK", 20, true),
    ("YE", 30, false),
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

/// Tax numbers in the forms of single countries: of India, the Emirates, Saudi Arabia, Switzerland, Australia, Japan,
/// Thailand and Canada; behind a label also digits without a country. Each with whether its form has a country, and its
/// check digit if that is known.
pub(super) fn national_tax_numbers(
    chars: &[char],
    is_labelled: bool,
) -> Vec<(Range<usize>, String, bool, Option<bool>)> {
    let mut all = Vec::new();
    let found = found(chars, |start| {
        let (characters, end) = (8..=15).rev().find_map(|count| characters(chars, start, count))?;
        let text: String = characters.iter().map(char::to_ascii_uppercase).collect();
        let is_digits = text.chars().all(|char| char.is_ascii_digit());
        let is_indian = is_gstin(&text);
        let is_swiss =
            text.len() == 12 && text.starts_with("CHE") && text.chars().skip(3).all(|char| char.is_ascii_digit());
        let is_gulf =
            is_digits && text.len() == 15 && (text.starts_with("10") || (text.starts_with('3') && text.ends_with('3')));
        let digits = digits_of(&text);
        // Companies of Thailand have a 0 in front.
        let is_thai = is_digits && text.starts_with('0') && is_thai_number(&digits);
        let is_japanese = text.starts_with('T') && text.len() == 14 && is_japanese_number(&digits);
        // A bare number is one of many things: only right behind its label.
        let is_first =
            chars.get(..start).is_some_and(|before| before.iter().filter(|char| char.is_alphanumeric()).count() <= 4);
        let is_known = is_indian || is_swiss || is_gulf || is_thai || is_japanese || is_canadian_number(&text);
        (is_known || (is_labelled && is_first && is_digits)).then_some((start..end, text))
    });
    for FieldMatch { chars, value } in found {
        let Some(text) = value.into_text() else { continue };
        let digits = digits_of(&text);
        let (has_country, check) = match text.len() {
            12 if text.starts_with("CHE") => (true, Some(is_swiss_number(&digits))),
            15 if is_canadian_number(&text) => (true, Some(true)),
            15 if is_gstin(&text) => (true, Some(is_indian_check(&text))),
            15 => (true, None),
            14 if text.starts_with('T') => (true, Some(true)),
            13 if is_thai_number(&digits) => (text.starts_with('0'), Some(true)),
            11 if is_australian_number(&digits) => (false, Some(true)),
            11 => (false, Some(is_luhn(&digits))),
            10 if is_polish_number(&digits) => (false, Some(true)),
            9 if is_british_number(&digits) || is_portuguese_number(&digits) => (false, Some(true)),
            _ => (false, None),
        };
        all.push((chars, text, has_country, check));
    }
    all
}

/// 22AAAAA0000A1Z5: the state, the number of the company, and Z before the check digit.
fn is_gstin(text: &str) -> bool {
    let form = "ddaaaaadddda*Z*";
    text.len() == form.len()
        && text.chars().zip(form.chars()).all(|(char, form)| match form {
            'd' => char.is_ascii_digit(),
            'a' => char.is_ascii_uppercase(),
            '*' => char.is_ascii_alphanumeric(),
            form => char == form,
        })
}

/// Compares the check digit of a tax number with its country, where the rule is known.
pub(super) fn is_checked_vat_id(text: &str) -> Option<bool> {
    let digits = digits_of(text);
    match text.get(..2)? {
        "DE" => Some(is_german_number(&digits)),
        "IT" => Some(is_luhn(&digits)),
        "GB" => Some(is_british_number(digits.get(..9)?)),
        "PL" => Some(is_polish_number(&digits)),
        "PT" => Some(is_portuguese_number(&digits)),
        "RO" => Some(is_romanian_number(&digits)),
        "DK" => Some(remainder(&digits, &[2, 7, 6, 5, 4, 3, 2, 1], 11) == Some(0)),
        "FI" => Some(remainder(&digits, &[7, 9, 10, 5, 8, 4, 2, 1], 11) == Some(0)),
        "BE" => Some(is_belgian_number(&digits)),
        // The first two may be letters, for which no rule is published.
        "FR" if digits.len() == 11 => Some(is_french_number(&digits)),
        _ => None,
    }
}

/// The currency of the country whose form a tax number has, if the form is of one country alone.
pub(super) fn currency_of(vat_id: &str) -> Option<&'static str> {
    let digits = digits_of(vat_id);
    let country = vat_id.get(..2)?;
    let currency = match country {
        "GB" => "GBP",
        "PL" => "PLN",
        "RO" => "RON",
        "CZ" => "CZK",
        "DK" => "DKK",
        "SE" => "SEK",
        "HU" => "HUF",
        "CH" => "CHF",
        // Its currency changed to the euro in 2026.
        "BG" => return None,
        _ if VAT_IDS.iter().any(|(code, ..)| *code == country) => "EUR",
        _ if is_gstin(vat_id) => "INR",
        _ if is_canadian_number(vat_id) => "CAD",
        _ if vat_id.starts_with('T') => "JPY",
        _ if is_thai_number(&digits) => "THB",
        _ if is_australian_number(&digits) => "AUD",
        _ if digits.len() == 15 && vat_id.starts_with('1') => "AED",
        _ if digits.len() == 15 && vat_id.starts_with('3') => "SAR",
        _ => return None,
    };
    Some(currency)
}

fn digits_of(text: &str) -> Vec<u32> {
    text.chars().filter_map(|char| char.to_digit(10)).collect()
}

/// The remainder of the sum of digits with their weights; `None` if there are more or fewer digits.
fn remainder(digits: &[u32], weights: &[u32], modulus: u32) -> Option<u32> {
    let sum = || digits.iter().zip(weights).map(|(digit, weight)| digit * weight).sum::<u32>();
    (digits.len() == weights.len()).then(|| sum() % modulus)
}

fn number_of(digits: &[u32]) -> u64 {
    digits.iter().fold(0, |number, digit| number * 10 + u64::from(*digit))
}

/// The NIP of Poland.
fn is_polish_number(digits: &[u32]) -> bool {
    let Some((check, digits)) = digits.split_last() else { return false };
    remainder(digits, &[6, 5, 7, 2, 3, 4, 5, 6, 7], 11) == Some(*check)
}

/// The NIF of Portugal.
fn is_portuguese_number(digits: &[u32]) -> bool {
    let Some((check, digits)) = digits.split_last() else { return false };
    let remainder = remainder(digits, &[9, 8, 7, 6, 5, 4, 3, 2], 11);
    remainder.is_some_and(|remainder| *check == if remainder < 2 { 0 } else { 11 - remainder })
}

/// The CUI of Romania, of up to ten digits.
fn is_romanian_number(digits: &[u32]) -> bool {
    const WEIGHTS: [u32; 9] = [7, 5, 3, 2, 1, 7, 5, 3, 2];
    let Some((check, digits)) = digits.split_last().filter(|(_, digits)| digits.len() <= WEIGHTS.len()) else {
        return false;
    };
    let sum: u32 = digits.iter().rev().zip(WEIGHTS.iter().rev()).map(|(digit, weight)| digit * weight).sum();
    sum * 10 % 11 % 10 == *check
}

/// The last two digits of a Belgian number make it a multiple of 97 with the others.
fn is_belgian_number(digits: &[u32]) -> bool {
    let (Some(number), Some(check)) = (digits.get(..8), digits.get(8..)) else { return false };
    digits.len() == 10 && (number_of(number) + number_of(check)).is_multiple_of(97)
}

/// The first two digits of a French number follow from the number of the company (article A123-45 of its SIREN).
fn is_french_number(digits: &[u32]) -> bool {
    let (Some(key), Some(company)) = (digits.get(..2), digits.get(2..)) else { return false };
    number_of(key) == (12 + 3 * (number_of(company) % 97)) % 97
}

/// The tax number of Thailand, of 13 digits.
fn is_thai_number(digits: &[u32]) -> bool {
    let Some((check, digits)) = digits.split_last() else { return false };
    let remainder = remainder(digits, &[13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2], 11);
    remainder.is_some_and(|remainder| (11 - remainder) % 10 == *check)
}

/// The number of a company in Japan, of 13 digits with the check digit in front, behind the T of issuers of invoices.
fn is_japanese_number(digits: &[u32]) -> bool {
    let Some((check, digits)) = digits.split_first() else { return false };
    let remainder = remainder(digits, &[2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1], 9);
    remainder.is_some_and(|remainder| 9 - remainder == *check)
}

/// 123456789RT0001: the number of the business, the program, and the account.
fn is_canadian_number(text: &str) -> bool {
    let (Some(business), Some(account)) = (text.get(..9), text.get(9..)) else { return false };
    let is_digits = |text: &str| text.chars().all(|char| char.is_ascii_digit());
    let is_account = account.strip_prefix("RT").is_some_and(|account| account.len() == 4 && is_digits(account));
    is_account && is_digits(business) && has_luhn_digit(&digits_of(business))
}

/// The last character of a GSTIN, of the sum of products in base 36.
fn is_indian_check(text: &str) -> bool {
    let values: Option<Vec<u32>> = text.chars().map(|char| char.to_digit(36)).collect();
    let Some((check, values)) = values.as_deref().and_then(<[u32]>::split_last) else { return false };
    let products = values.iter().enumerate().map(|(index, value)| if index % 2 == 1 { value * 2 } else { *value });
    let sum: u32 = products.map(|product| product / 36 + product % 36).sum();
    (36 - sum % 36) % 36 == *check
}

/// ISO 7064, modulo 11 and 10.
fn is_german_number(digits: &[u32]) -> bool {
    let Some((check, digits)) = digits.split_last().filter(|(_, digits)| digits.len() == 8) else { return false };
    let product = digits.iter().fold(10, |product, digit| {
        let sum = (digit + product) % 10;
        2 * if sum == 0 { 10 } else { sum } % 11
    });
    (11 - product) % 10 == *check
}

/// The number of an Italian business.
fn is_luhn(digits: &[u32]) -> bool {
    digits.len() == 11 && has_luhn_digit(digits)
}

/// The sum with every second digit doubled, from the right (ISO/IEC 7812-1).
fn has_luhn_digit(digits: &[u32]) -> bool {
    let doubled = |digit: u32| if digit > 4 { 2 * digit - 9 } else { 2 * digit };
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(index, digit)| if index % 2 == 1 { doubled(*digit) } else { *digit })
        .sum();
    sum.is_multiple_of(10)
}

/// Modulo 97, in the older and the newer form.
fn is_british_number(digits: &[u32]) -> bool {
    let (Some(first), Some(last)) = (digits.get(..7), digits.get(7..9)) else { return false };
    let sum: u32 = first.iter().zip((2..=8).rev()).map(|(digit, weight)| digit * weight).sum();
    let check = last.iter().fold(0, |check, digit| check * 10 + digit);
    digits.len() == 9 && ((sum + check).is_multiple_of(97) || (sum + check + 55).is_multiple_of(97))
}

/// Modulo 89, with one less of the first digit.
fn is_australian_number(digits: &[u32]) -> bool {
    let digits =
        digits.iter().enumerate().map(|(index, digit)| if index == 0 { digit.saturating_sub(1) } else { *digit });
    remainder(&digits.collect::<Vec<_>>(), &[10, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19], 89) == Some(0)
}

/// Modulo 11.
fn is_swiss_number(digits: &[u32]) -> bool {
    let Some((check, digits)) = digits.split_last() else { return false };
    let remainder = remainder(digits, &[5, 4, 3, 2, 7, 6, 5, 4], 11);
    remainder.is_some_and(|remainder| (11 - remainder) % 11 == *check)
}

/// The numbers of a row with at least so many characters: letters and digits, with signs between them.
pub(super) fn numbers(chars: &[char], least: usize) -> Vec<FieldMatch> {
    found(chars, |start| {
        let is_part = |char: &char| char.is_alphanumeric() || matches!(char, '-' | '/' | '.' | '_');
        let length = chars.get(start..)?.iter().take_while(|char| is_part(char)).count();
        let run = chars.get(start..start + length)?;
        let kept = run.iter().rposition(|char| char.is_alphanumeric())? + 1;
        let text: String = run.get(..kept)?.iter().collect();
        let is_number = text.chars().any(|char| char.is_ascii_digit()) && kept >= least;
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
