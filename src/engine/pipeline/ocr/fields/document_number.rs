//! The number of a document: of the invoice, of the receipt.

use std::ops::Range;

use super::candidate::FieldCandidate;
use super::date::{self, DayOrder};
use super::evidence::Evidence;
use super::identifiers;
use super::labelled_amount::LabelledAmount;
use super::row_text::{RowText, overlap};
use super::value::ParsedFieldValue;
use super::words::{LabelPlace, RowWords, ValueLabel, WordMeaning, label};
use crate::pipeline::ocr::geometry::coordinate;

/// The numbers behind a label that are looked at.
const TOKENS: usize = 3;
/// The most letters of a series, as "CR" in "CR 1806/0729".
const SERIES_MAX: usize = 3;
/// The letters of a sentence.
const SENTENCE: usize = 30;

/// All numbers near a label of the number of a document.
pub(super) fn candidates(rows: &[RowText<'_>], words: &[RowWords], amounts: &[LabelledAmount]) -> Vec<FieldCandidate> {
    let facts = NumberFacts { rows, words, amounts };
    let mut found: Vec<FieldCandidate> = Vec::new();
    for (index, (row, own)) in rows.iter().zip(words).enumerate() {
        let mut above = index.checked_sub(1).and_then(|above| words.get(above)).into_iter().flatten();
        let tokens = tokens(row, own, above.any(|(_, meaning)| meaning.is_of_documents()));
        let tax_numbers = identifiers::national_tax_numbers(row.chars(), false);
        let is_tax_number = |chars: &Range<usize>| tax_numbers.iter().any(|(place, ..)| overlap(place, chars));
        for chars in tokens.iter().cloned() {
            let text = row.text(&chars).replace(' ', "");
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
        let numbers = identifiers::numbers(part, 1).into_iter().take(TOKENS);
        let numbers = numbers.map(|found| whole(part, found.chars)).map(|chars| start + chars.start..start + chars.end);
        for chars in numbers.filter(|chars| !is_date(chars)) {
            if !found.iter().any(|other| overlap(other, &chars)) {
                found.push(chars);
            }
        }
    }
    found
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
        let label =
            label(self.rows, self.words, index, chars, is_of).filter(|label| label.meaning.is_of_documents())?;
        let mut evidence = Evidence::found();
        self.label_facts(&label, chars, &mut evidence)?;
        let is_between = |other: &Range<usize>| label.chars.end <= other.start && other.end <= chars.start;
        evidence.fact("not first", label.place == LabelPlace::Beside && tokens.iter().any(is_between));
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
