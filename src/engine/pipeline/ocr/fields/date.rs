//! Dates: in digits, or with the name of the month in seven languages.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::digits::{digit, number, run};
use super::labels::folded;
use super::value::{FieldMatch, ParsedFieldValue};

/// The order of day and month in dates such as 03/04/2026.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DayOrder {
    #[default]
    DayFirst,
    MonthFirst,
}

/// The names of each month, without accents: English, German, French, Spanish, Italian, Dutch, Portuguese. Any
/// beginning of three letters or more counts.
const MONTHS: [&[&str]; 12] = [
    &["january", "januar", "janvier", "enero", "gennaio", "januari", "janeiro"],
    &["february", "februar", "fevrier", "febrero", "febbraio", "februari", "fevereiro"],
    &["march", "marz", "maerz", "mars", "marzo", "maart", "marco", "mrz"],
    &["april", "avril", "abril", "aprile"],
    &["may", "mai", "mayo", "maggio", "mei", "maio"],
    &["june", "juni", "juin", "junio", "giugno", "junho"],
    &["july", "juli", "juillet", "julio", "luglio", "julho"],
    &["august", "aout", "agosto", "augustus"],
    &["september", "septembre", "septiembre", "settembre", "setembro"],
    &["october", "oktober", "octobre", "octubre", "ottobre", "outubro"],
    &["november", "novembre", "noviembre", "novembro"],
    &["december", "dezember", "decembre", "diciembre", "dicembre", "dezembro"],
];

/// The names of the days of a week, from Sunday, as [`MONTHS`].
const WEEKDAYS: [&[&str]; 7] = [
    &["sunday", "sonntag", "dimanche", "domingo", "domenica", "zondag"],
    &["monday", "montag", "lundi", "lunes", "lunedi", "maandag", "segunda"],
    &["tuesday", "dienstag", "mardi", "martes", "martedi", "dinsdag", "terca"],
    &["wednesday", "mittwoch", "mercredi", "miercoles", "mercoledi", "woensdag", "quarta"],
    &["thursday", "donnerstag", "jeudi", "jueves", "giovedi", "donderdag", "quinta"],
    &["friday", "freitag", "vendredi", "viernes", "venerdi", "vrijdag", "sexta"],
    &["saturday", "samstag", "sonnabend", "samedi", "sabado", "sabato", "zaterdag"],
];

/// Words and endings between the parts of a date.
const BETWEEN: &[&str] = &["de", "del", "of", "den", "st", "nd", "rd", "th", "er"];

/// A date in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundDate {
    pub(super) chars: Range<usize>,
    /// `YYYY-MM-DD`
    pub(super) date: String,
    /// The same with day and month exchanged, if nothing at the date decides their order.
    pub(super) exchanged: Option<String>,
    /// The sign between the parts, if they are in digits.
    pub(super) sign: Option<char>,
    /// The year has four digits.
    pub(super) has_century: bool,
}

/// The dates of a row.
pub(super) fn dates(chars: &[char], order: DayOrder) -> Vec<FieldMatch> {
    let dates = found(chars, order).into_iter();
    dates.map(|found| FieldMatch { chars: found.chars, value: ParsedFieldValue::Text(found.date) }).collect()
}

/// The dates of a row, with what is in doubt about them.
pub(super) fn found(chars: &[char], order: DayOrder) -> Vec<FoundDate> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let date = if is_start(chars, at) { date_at(chars, at, order) } else { None };
        let Some(date) = date else {
            at += 1;
            continue;
        };
        at = date.chars.end;
        found.push(date);
    }
    found
}

/// A date does not begin within a number or a word.
fn is_start(chars: &[char], at: usize) -> bool {
    let before = chars.get(..at).unwrap_or_default();
    !matches!(before, [.., last] if last.is_alphanumeric())
        && !matches!(before, [.., digit, '.' | '/' | '-'] if digit.is_ascii_digit())
}

fn date_at(chars: &[char], start: usize, order: DayOrder) -> Option<FoundDate> {
    if let Some(date) = compact_date_at(chars, start) {
        return Some(date);
    }
    let mut parts: Vec<(DatePart, Range<usize>)> = Vec::new();
    let mut at = start;
    while parts.len() < 3 {
        let first = parts.first().map(|(part, _)| *part);
        let (part, end) = first
            .filter(|_| parts.len() == 2)
            .and_then(|first| before_time(chars, at, first))
            .or_else(|| part_at(chars, at))?;
        parts.push((part, at..end));
        at = end;
        if parts.len() < 3 {
            at = skipped(chars, end)?;
        }
    }
    let [(first, first_at), (second, second_at), (third, third_at)] = parts.as_slice() else { return None };
    // A number with more digits after it is not part of a date.
    let is_time = time_at(chars, at).is_some();
    if (chars.get(at).is_some_and(char::is_ascii_digit) && !is_time)
        || matches!(chars.get(at..), Some(['.' | '/' | '-', next, ..]) if next.is_ascii_digit())
    {
        return None;
    }
    let separator = |one: &Range<usize>, other: &Range<usize>| {
        chars.get(one.end..other.start).and_then(|between| between.iter().find(|char| **char != ' ')).copied()
    };
    let (mut may_be_exchanged, mut sign) = (false, None);
    let has_century =
        matches!(first, DatePart::Number { length: 4, .. }) || matches!(third, DatePart::Number { length: 4, .. });
    let (day, month, year) = match (*first, *second, *third) {
        (
            DatePart::Number { value: year, length: 4 },
            DatePart::Number { value: month, .. },
            DatePart::Number { value: day, length: 1..=2 },
        ) => {
            sign = separator(first_at, second_at);
            (day, month, year)
        }
        (
            DatePart::Number { value: one, length: 1..=2 },
            DatePart::Number { value: other, length: 1..=2 },
            DatePart::Number { value: year, length },
        ) => {
            // The same sign must occur twice: "1 2.50" is no date.
            let between = separator(first_at, second_at)?;
            if separator(second_at, third_at) != Some(between) {
                return None;
            }
            sign = Some(between);
            let year = full_year(year, length)?;
            let is_month_first = match weekday_before(chars, start) {
                // A day of the week that fits only one order decides.
                Some(named) if is_on(named, one, other, year) != is_on(named, other, one, year) => {
                    is_on(named, other, one, year)
                }
                _ => {
                    may_be_exchanged = one != other && matches!(between, '/' | '-');
                    other > 12 || (order == DayOrder::MonthFirst && between == '/' && one <= 12)
                }
            };
            let (day, month) = if is_month_first { (other, one) } else { (one, other) };
            (day, month, year)
        }
        (
            DatePart::Number { value: day, length: 1..=2 },
            DatePart::Month(month),
            DatePart::Number { value: year, length },
        )
        | (
            DatePart::Month(month),
            DatePart::Number { value: day, length: 1..=2 },
            DatePart::Number { value: year, length },
        ) => (day, month, full_year(year, length)?),
        _ => return None,
    };
    let date = written(day, month, year)?;
    let exchanged = if may_be_exchanged { written(month, day, year) } else { None };
    Some(FoundDate { chars: start..at, date, exchanged, sign, has_century })
}

fn written(day: u32, month: u32, year: u32) -> Option<String> {
    is_date(day, month, year).then(|| format!("{year:04}-{month:02}-{day:02}"))
}

/// A date without signs: `20260314`.
fn compact_date_at(chars: &[char], start: usize) -> Option<FoundDate> {
    let length = chars.get(start..)?.iter().take_while(|char| char.is_ascii_digit()).count();
    let goes_on = chars.get(start + length).is_some_and(|next| next.is_alphanumeric() && *next != 'T');
    let (digits, _) = run(chars, start, 8);
    let (year, month, day) = (number(digits.get(..4)?)?, number(digits.get(4..6)?)?, number(digits.get(6..8)?)?);
    let date = written(day, month, year).filter(|_| length == 8 && !goes_on && (2000..2080).contains(&year))?;
    Some(FoundDate { chars: start..start + 8, date, exchanged: None, sign: None, has_century: true })
}

/// A part of a date.
#[derive(Debug, Clone, Copy)]
enum DatePart {
    Number { value: u32, length: usize },
    Month(u32),
}

fn part_at(chars: &[char], at: usize) -> Option<(DatePart, usize)> {
    if let Some((month, end)) = month_at(chars, at) {
        return Some((DatePart::Month(month), end));
    }
    // The "S" of "18September" is no digit.
    let length = chars.get(at..)?.iter().take_while(|char| char.is_ascii_digit()).count();
    if (1..=2).contains(&length) && month_at(chars, at + length).is_some() {
        let (digits, _) = run(chars, at, length);
        return Some((DatePart::Number { value: number(&digits)?, length }, at + length));
    }
    // A letter counts as a digit only next to one.
    let (digits, sure) = run(chars, at, 5);
    let is_number = sure > 0 && sure * 2 >= digits.len() && digits.len() <= 4;
    let end = at + digits.len();
    is_number.then_some((DatePart::Number { value: number(&digits)?, length: digits.len() }, end))
}

/// The last part of a date behind which a time begins without a space: "2026-11-2414:35".
fn before_time(chars: &[char], at: usize, first: DatePart) -> Option<(DatePart, usize)> {
    let begins_with_year = matches!(first, DatePart::Number { length: 4, .. });
    // "21.04.2009:14" is a year of two digits with a time.
    let is_short = time_at(chars, at + 2).is_some_and(|end| end == at + 7) && chars.get(at + 4) == Some(&':');
    let length = if begins_with_year || is_short { 2 } else { 4 };
    let digits: Vec<u8> = chars.get(at..at + length)?.iter().map(|char| digit(*char)).collect::<Option<_>>()?;
    time_at(chars, at + length)?;
    Some((DatePart::Number { value: number(&digits)?, length }, at + length))
}

/// The end of a time such as 9:35 or 14:35.
fn time_at(chars: &[char], at: usize) -> Option<usize> {
    let hours = chars.get(at..)?.iter().take_while(|char| char.is_ascii_digit()).count();
    let minutes = chars.get(at + hours + 1..at + hours + 3)?;
    let is_time =
        (1..=2).contains(&hours) && chars.get(at + hours) == Some(&':') && minutes.iter().all(char::is_ascii_digit);
    is_time.then_some(at + hours + 3)
}

fn month_at(chars: &[char], at: usize) -> Option<(u32, usize)> {
    let letters = chars.get(at..)?.iter().take_while(|char| char.is_alphabetic()).count();
    let word: String = chars.get(at..at + letters)?.iter().copied().flat_map(folded).collect();
    // For words that begin alike, such as "juin" and "juillet", the whole word decides.
    let is_whole = |names: &&[&str]| names.contains(&word.as_str());
    let begins = |names: &&[&str]| word.len() >= 3 && names.iter().any(|name| name.starts_with(&word));
    let month = MONTHS.iter().position(is_whole).or_else(|| MONTHS.iter().position(begins))?;
    Some((u32::try_from(month).ok()? + 1, at + letters))
}

/// The day of the week that is named right before a date, such as "Fri" or "mardi,".
fn weekday_before(chars: &[char], at: usize) -> Option<usize> {
    let before = chars.get(..at)?;
    let end = before.iter().rposition(|char| !matches!(char, ' ' | ',' | '.' | ':'))? + 1;
    let letters = before.get(..end)?.iter().rev().take_while(|char| char.is_alphabetic()).count();
    let word: String = before.get(end - letters..end)?.iter().copied().flat_map(folded).collect();
    let begins = |names: &&[&str]| word.len() >= 3 && names.iter().any(|name| name.starts_with(&word));
    WEEKDAYS.iter().position(begins)
}

/// Returns true if a date exists and is on this day of the week, by Sakamoto's method.
fn is_on(weekday: usize, day: u32, month: u32, year: u32) -> bool {
    const OFFSETS: [u32; 12] = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4];
    let offset = month.checked_sub(1).and_then(|index| OFFSETS.get(usize::try_from(index).ok()?));
    let Some(offset) = offset.filter(|_| is_date(day, month, year)) else { return false };
    let year = if month < 3 { year - 1 } else { year };
    let found = (year + year / 4 - year / 100 + year / 400 + offset + day) % 7;
    usize::try_from(found) == Ok(weekday)
}

/// The place of the next part, behind signs and words between.
fn skipped(chars: &[char], from: usize) -> Option<usize> {
    let mut at = from;
    // A bound: spaces and signs are few between the parts of a date.
    for _ in 0..4 {
        let rest = chars.get(at..)?;
        let signs =
            rest.iter().take_while(|char| matches!(char, ' ' | '.' | ',' | '/' | '-' | '\'' | '年' | '月')).count();
        if signs > 3 {
            return None;
        }
        at += signs;
        let letters = chars.get(at..)?.iter().take_while(|char| char.is_alphabetic()).count();
        let word: String = chars.get(at..at + letters)?.iter().copied().flat_map(folded).collect();
        if !BETWEEN.contains(&word.as_str()) {
            break;
        }
        at += letters;
    }
    let is_joined = at == from;
    // "12May2026" is a date, "122026" none.
    let touches = chars.get(from.checked_sub(1)?..=from).is_some_and(|two| two.iter().all(char::is_ascii_digit));
    (!(is_joined && touches)).then_some(at)
}

/// Two digits are a year from 1970 to 2069.
fn full_year(year: u32, length: usize) -> Option<u32> {
    match length {
        2 => Some(if year < 70 { 2000 } else { 1900 } + year),
        4 => Some(year),
        _ => None,
    }
}

fn is_date(day: u32, month: u32, year: u32) -> bool {
    let is_leap = (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    let days = match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        1..=12 => 31,
        _ => 0,
    };
    (1970..2100).contains(&year) && (1..=days).contains(&day)
}
