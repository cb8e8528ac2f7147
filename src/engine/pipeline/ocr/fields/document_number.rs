//! The number of a document: of the invoice, of the receipt.

use std::ops::Range;

use super::candidate::FieldCandidate;
use super::date::{self, DayOrder};
use super::evidence::Evidence;
use super::identifiers;
use super::labelled_amount::LabelledAmount;
use super::registered_number::FoundNumber;
use super::row_text::{RowText, overlap};
use super::value::ParsedFieldValue;
use super::words::{LabelPlace, RowWords, ValueLabel, WordMeaning, label};
use crate::pipeline::ocr::geometry::coordinate;

/// The numbers behind a label that are looked at.
const TOKENS: usize = 3;
/// The most letters of a series, as "CR" in "CR 1806/0729".
const SERIES_MAX: usize = 3;
/// The fewest digits of a number without a label.
const UNLABELLED_DIGITS: usize = 4;
/// The letters of a sentence.
const SENTENCE: usize = 30;

/// All numbers near a label of the number of a document.
pub(super) fn candidates(
    rows: &[RowText<'_>],
    words: &[RowWords],
    amounts: &[LabelledAmount],
    tax_numbers: &[FoundNumber],
) -> Vec<FieldCandidate> {
    let facts = NumberFacts { rows, words, amounts };
    let mut found: Vec<FieldCandidate> = Vec::new();
    for (index, (row, own)) in rows.iter().zip(words).enumerate() {
        let mut above = index.checked_sub(1).and_then(|above| words.get(above)).into_iter().flatten();
        let tokens = tokens(row, own, above.any(|(_, meaning)| meaning.is_of_documents()));
        let is_tax_number = |chars: &Range<usize>| {
            tax_numbers.iter().any(|number| number.row == index && overlap(&number.chars, chars))
        };
        for chars in tokens.iter().cloned() {
            let text = with_likely_letters(&row.text(&chars).replace(' ', ""));
            if let Some(mut evidence) = facts.evidence(index, &tokens, &chars, &text) {
                evidence.fact("tax number", is_tax_number(&chars));
                found.push(FieldCandidate { row: index, chars, value: ParsedFieldValue::Text(text), evidence });
            }
        }
    }
    found
}

/// The numbers of a row that are not dates. `is_labelled` if the row above has the label of a document's number.
fn tokens(row: &RowText<'_>, words: &RowWords, is_labelled: bool) -> Vec<Range<usize>> {
    let dates = date::found(row.chars(), DayOrder::DayFirst);
    // A date may be a part of a number, as in "FS/22/09/51" and "20161223-10019".
    let is_sign = |at: Option<usize>| at.and_then(|at| row.chars().get(at)).is_some_and(|char| is_joining_sign(*char));
    let is_date = |chars: &Range<usize>| {
        dates.iter().any(|date| {
            let is_part = chars.start < date.chars.start && is_sign(date.chars.start.checked_sub(1))
                || date.chars.end < chars.end && is_sign(Some(date.chars.end));
            overlap(&date.chars, chars) && !is_part
        })
    };
    let mut found: Vec<Range<usize>> = Vec::new();
    for start in std::iter::once(0).chain(words.iter().map(|(place, _)| place.end)) {
        // The "INV" of "INV-2023-001" is a part of the number, and so are the "EXP" of "EXP2025001", and the "INV" of
        // "INV2025001" if another word is the label.
        let is_joined = |word: &Range<usize>, meaning: WordMeaning| {
            let has_digit = row.chars().get(word.end).is_some_and(char::is_ascii_digit);
            let is_label =
                |(other, meaning): &(Range<usize>, WordMeaning)| meaning.is_of_documents() && other.end <= word.start;
            let is_prefix = || !meaning.is_of_documents() || is_labelled || words.iter().any(is_label);
            is_sign(Some(word.end)) || has_digit && word.len() <= SERIES_MAX && is_prefix()
        };
        let joined = words.iter().find(|(word, meaning)| word.end == start && is_joined(word, *meaning));
        let end = words.iter().map(|(place, _)| place.start).find(|word| *word >= start);
        let start = joined.map_or(start, |(word, _)| before_signs(row.chars(), word.start));
        let part = row.chars().get(start..end.unwrap_or(row.chars().len())).unwrap_or_default();
        let numbers = identifiers::numbers(part, 1).into_iter();
        let numbers = numbers.map(|found| whole(part, found.chars)).map(|chars| start + chars.start..start + chars.end);
        for chars in numbers.filter(|chars| !is_date(chars) && !is_of_time(row.chars(), chars)).take(TOKENS) {
            if !found.iter().any(|other| overlap(other, &chars)) {
                found.push(chars);
            }
        }
    }
    found
}

/// Returns true for a part of a time of day, such as the 18 of "18:21".
fn is_of_time(chars: &[char], number: &Range<usize>) -> bool {
    let is_digit = |at: Option<usize>| at.and_then(|at| chars.get(at)).is_some_and(char::is_ascii_digit);
    let is_colon = |at: Option<usize>| at.and_then(|at| chars.get(at)) == Some(&':');
    let before = || is_colon(number.start.checked_sub(1)) && is_digit(number.start.checked_sub(2));
    let after = || is_colon(Some(number.end)) && is_digit(Some(number.end + 1));
    number.len() <= 2 && (before() || after())
}

/// Returns true for a sign within numbers of documents.
fn is_joining_sign(char: char) -> bool {
    matches!(char, '-' | '/' | '_')
}

/// The begin of what signs join with the character at `start`, as the "NG" of "NG-INV-2025".
fn before_signs(chars: &[char], start: usize) -> usize {
    let before = chars.get(..start).unwrap_or_default();
    let length = before.iter().rev().take_while(|char| char.is_alphanumeric() || is_joining_sign(**char)).count();
    let part = before.get(before.len() - length..).unwrap_or_default();
    if part.last().is_some_and(|char| is_joining_sign(*char)) {
        start - length + part.iter().take_while(|char| is_joining_sign(**char)).count()
    } else {
        start
    }
}

/// A number with the series before it, as in "CR 1806/0729", with what a space behind a dash divides from it, and without
/// the "No." before it.
fn whole(part: &[char], chars: Range<usize>) -> Range<usize> {
    let Range { mut start, mut end } = chars;
    let before: Vec<char> = part.get(..start).unwrap_or_default().iter().rev().copied().collect();
    if let [' ', series @ ..] = before.as_slice() {
        let length = series.iter().take_while(|char| char.is_uppercase()).count();
        let is_alone = series.get(length..).unwrap_or_default().iter().all(|char| !char.is_alphanumeric());
        if (1..=SERIES_MAX).contains(&length) && is_alone {
            start -= length + 1;
        }
    } else if let Some(['N' | 'n', 'o' | 'O' | 'r' | 'R', '.', _, ..]) = part.get(start..end) {
        start += 3;
    }
    start += part.get(start..end).unwrap_or_default().iter().take_while(|char| !char.is_alphanumeric()).count();
    if let Some(['-', ' ', next @ ..]) = part.get(end..) {
        let more = next.iter().take_while(|char| char.is_ascii_digit()).count();
        if more > SERIES_MAX {
            end += 2 + more;
        }
    }
    start..end
}

/// A number with an O for a zero between two capitals, as in "P0S015026", and a zero for an O between two digits.
fn with_likely_letters(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let around = |index: usize, is_kind: fn(&char) -> bool| {
        let before = index.checked_sub(1).and_then(|before| chars.get(before));
        before.zip(chars.get(index + 1)).is_some_and(|(before, after)| is_kind(before) && is_kind(after))
    };
    let likely = chars.iter().enumerate().map(|(index, char)| match char {
        '0' if around(index, char::is_ascii_uppercase) => 'O',
        'O' | 'o' if around(index, char::is_ascii_digit) => '0',
        other => *other,
    });
    likely.collect()
}

/// The evidence for a number without a label: behind a "#", or alone beside a date, as in the heads of receipts.
fn facts_without_label(row: &RowText<'_>, chars: &Range<usize>, text: &str, evidence: &mut Evidence) -> Option<()> {
    let line = row.lines().into_iter().find(|line| line.contains(&chars.start))?;
    let before = row.text(&(line.start..chars.start)).trim_end_matches([' ', ':']).to_owned();
    let is_alone = before.trim_matches('#').is_empty()
        && row.text(&(chars.end..line.end)).chars().all(|char| !char.is_alphanumeric());
    let has_sign = before.ends_with('#');
    let is_long = text.chars().filter(char::is_ascii_digit).count() >= UNLABELLED_DIGITS;
    let is_beside_date = is_long && is_alone && !date::found(row.chars(), DayOrder::DayFirst).is_empty();
    let is_uniform = is_alone && is_uniform_invoice(text);
    if !is_long || !(has_sign || is_uniform || is_beside_date) {
        return None;
    }
    evidence.fact("no label", true);
    evidence.fact("no label: behind a sign", has_sign);
    evidence.fact("no label: alone", is_alone);
    evidence.fact("no label: beside a date", is_beside_date);
    evidence.fact("no label: uniform invoice", is_uniform);
    Some(())
}

/// "AB-12345678": the number of a uniform invoice of Taiwan.
fn is_uniform_invoice(text: &str) -> bool {
    let (series, number) = text.split_at_checked(2).unwrap_or_default();
    let number = number.strip_prefix('-').unwrap_or(number);
    series.bytes().all(|byte| byte.is_ascii_uppercase())
        && number.len() == 8
        && number.bytes().all(|byte| byte.is_ascii_digit())
}

struct NumberFacts<'d> {
    rows: &'d [RowText<'d>],
    words: &'d [RowWords],
    amounts: &'d [LabelledAmount],
}

impl NumberFacts<'_> {
    /// The evidence for one of the numbers of a row, if it has the label of a document's number.
    fn evidence(&self, index: usize, tokens: &[Range<usize>], chars: &Range<usize>, text: &str) -> Option<Evidence> {
        let row = self.rows.get(index)?;
        let is_of = |meaning: WordMeaning| !meaning.is_of_amounts() && meaning != WordMeaning::DueDate;
        let mut evidence = Evidence::found();
        match label(self.rows, self.words, index, chars, is_of) {
            Some(label) if label.meaning.is_of_documents() => {
                self.label_facts(&label, chars, &mut evidence)?;
                let is_between = |other: &Range<usize>| label.chars.end <= other.start && other.end <= chars.start;
                evidence.fact("not first", label.place == LabelPlace::Beside && tokens.iter().any(is_between));
            }
            Some(_) => return None,
            None => facts_without_label(row, chars, text, &mut evidence)?,
        }
        let is_amount = self
            .amounts
            .iter()
            .any(|amount| amount.row == index && overlap(&amount.chars, chars) && !amount.is_integer);
        evidence.fact("amount", is_amount);
        let around = |at: Option<usize>| at.and_then(|at| row.chars().get(at)).copied();
        evidence.fact("in brackets", around(chars.start.checked_sub(1)) == Some('('));
        evidence.fact(
            "more digits behind",
            around(Some(chars.end)) == Some(' ')
                && around(Some(chars.end + 1)).is_some_and(|char| char.is_ascii_digit()),
        );
        let digits = text.chars().filter(char::is_ascii_digit).count();
        let letters: Vec<char> = text.chars().collect();
        let is_like_digit =
            |two: &[char]| matches!(two, ['O' | 'o' | 'Q' | 'I' | 'l', digit] if digit.is_ascii_digit());
        let is_between = |three: &[char]| matches!(three, [one, two, three] if one.is_ascii_digit() && two.is_alphabetic() && three.is_ascii_digit());
        evidence.fact("few digits", digits < 3);
        evidence.fact("many digits", digits > 12);
        evidence.fact("letters", text.chars().any(char::is_alphabetic));
        evidence.fact("letter between digits", letters.windows(3).any(is_between));
        evidence.fact("letter like a digit", letters.windows(2).any(is_like_digit));
        evidence.row(index, self.rows);
        evidence.reading(self.rows, std::iter::once((index, chars)));
        Some(evidence)
    }

    /// The evidence of the label of a number.
    fn label_facts(&self, label: &ValueLabel, chars: &Range<usize>, evidence: &mut Evidence) -> Option<()> {
        let row = self.rows.get(label.row)?;
        let text = row.text(&label.chars).to_lowercase();
        let is_beside = label.place == LabelPlace::Beside;
        evidence.fact("beside", is_beside);
        evidence.fact("label of a sale", label.meaning == WordMeaning::SaleNumber);
        // "Invoice" with "No." behind it or in the next row.
        let is_name = |(place, meaning): &&(Range<usize>, WordMeaning)| {
            *meaning == WordMeaning::Number && place.start < label.chars.start
        };
        let above = label.row.checked_sub(1).and_then(|above| self.words.get(above)).into_iter().flatten();
        let names = self.words.get(label.row)?.iter().chain(above).filter(is_name);
        let is_weak = label.meaning == WordMeaning::WeakNumber && names.count() == 0;
        evidence.fact("weak label", is_weak);
        let has_sign = ["no", "n°", "num", "nr", "º"].iter().any(|sign| text.contains(sign));
        evidence.fact("label with number", has_sign);
        let letters = |from: usize, to: usize| -> usize {
            row.chars().get(from..to).unwrap_or_default().iter().filter(|char| char.is_alphabetic()).count()
        };
        evidence.fact("words between", is_beside && letters(label.chars.end, chars.start) > 3);
        let line = row.lines().into_iter().find(|line| line.contains(&label.chars.start))?;
        let has_value = is_beside && line.contains(&chars.start);
        let value = if has_value { letters(chars.start, chars.end) } else { 0 };
        let others = letters(line.start, line.end) - letters(label.chars.start, label.chars.end) - value;
        if is_weak || !has_sign {
            evidence.measure("label in a sentence", coordinate(others.min(SENTENCE)) / coordinate(SENTENCE));
        }
        Some(())
    }
}
