//! The number of a document: of the invoice, of the receipt.

use std::ops::Range;

use super::candidate::FieldCandidate;
use super::date::{self, DayOrder};
use super::evidence::Evidence;
use super::identifiers;
use super::labelled_amount::LabelledAmount;
use super::row_text::{RowText, overlap};
use super::value::ParsedFieldValue;
use super::words::{LabelPlace, RowWords, WordMeaning, label_of};

/// The numbers behind a label that are looked at.
const TOKENS: usize = 3;

/// All numbers near a label of the number of a document.
pub(super) fn candidates(rows: &[RowText<'_>], words: &[RowWords], amounts: &[LabelledAmount]) -> Vec<FieldCandidate> {
    let texts: Vec<String> = rows.iter().map(|row| row.text(&(0..row.chars().len()))).collect();
    let facts = NumberFacts { rows, words, amounts, texts };
    let mut found: Vec<FieldCandidate> = Vec::new();
    for (index, (row, own)) in rows.iter().zip(words).enumerate() {
        for (position, (chars, text)) in tokens(row, own).into_iter().enumerate() {
            if let Some(evidence) = facts.evidence(index, position, &chars, &text) {
                found.push(FieldCandidate { row: index, chars, value: ParsedFieldValue::Text(text), evidence });
            }
        }
    }
    found
}

/// The numbers of a row that are neither dates nor parts of them.
fn tokens(row: &RowText<'_>, words: &RowWords) -> Vec<(Range<usize>, String)> {
    let dates = date::found(row.chars(), DayOrder::DayFirst);
    let mut starts: Vec<usize> = std::iter::once(0).chain(words.iter().map(|(place, _)| place.end)).collect();
    starts.dedup();
    let mut found: Vec<(Range<usize>, String)> = Vec::new();
    for start in &starts {
        // The "INV" of "INV-2023-001" is a part of the number.
        let is_joined = matches!(row.chars().get(*start), Some('-' | '/' | '_'));
        let start =
            &words.iter().find(|(word, _)| is_joined && word.end == *start).map_or(*start, |(word, _)| word.start);
        let end = words.iter().map(|(place, _)| place.start).find(|word| word > start);
        let part = row.chars().get(*start..end.unwrap_or(row.chars().len())).unwrap_or_default();
        let numbers = identifiers::numbers(part).into_iter().take(TOKENS).filter_map(|found| {
            let chars = start + found.chars.start..start + found.chars.end;
            Some((chars, found.value.into_text()?))
        });
        let is_date = |chars: &Range<usize>| dates.iter().any(|date| overlap(&date.chars, chars));
        for (chars, text) in numbers.filter(|(chars, _)| !is_date(chars)) {
            if !found.iter().any(|(other, _)| overlap(other, &chars)) {
                found.push((chars, text));
            }
        }
    }
    found
}

struct NumberFacts<'d> {
    rows: &'d [RowText<'d>],
    words: &'d [RowWords],
    amounts: &'d [LabelledAmount],
    /// Of the rows.
    texts: Vec<String>,
}

impl NumberFacts<'_> {
    /// The evidence for the number at this position of its row, if it has the label of a document's number.
    fn evidence(&self, index: usize, position: usize, chars: &Range<usize>, text: &str) -> Option<Evidence> {
        let (row, own) = (self.rows.get(index)?, self.words.get(index)?);
        let is_of = |meaning: WordMeaning| !meaning.is_of_amounts() && meaning != WordMeaning::DueDate;
        let label = label_of(self.rows, self.words, index, chars, is_of);
        let (meaning, place) =
            label.filter(|(meaning, _)| matches!(meaning, WordMeaning::Number | WordMeaning::WeakNumber))?;
        let mut evidence = Evidence::found();
        let is_weak = meaning == WordMeaning::WeakNumber;
        let has_name = own.iter().any(|(word, meaning)| *meaning == WordMeaning::Number && word.end <= chars.start);
        evidence.fact("weak label", is_weak && !has_name);
        evidence.fact("weak label behind a name", is_weak && has_name);
        let nearest = own.iter().rev().map(|(word, _)| word).find(|word| word.end <= chars.start);
        let label = nearest.filter(|_| place == LabelPlace::Beside).map(|word| row.text(word).to_lowercase());
        let label = label.unwrap_or_default();
        let has_sign = label.contains("no")
            || label.contains("n°")
            || label.contains("num")
            || label.contains("nr")
            || label.contains('º');
        let between: String = row.chars().get(nearest.map_or(0, |word| word.end)..chars.start)?.iter().collect();
        let has_mark = between.contains('#') || between.contains(':') || between.to_lowercase().contains("no");
        evidence.fact("beside", place == LabelPlace::Beside);
        evidence.fact("below", place == LabelPlace::Above);
        evidence.fact("label with number", has_sign);
        evidence.fact("label with mark", has_mark && !has_sign);
        evidence.fact(
            "label of invoice",
            ["inv", "rechn", "fact", "fatt", "fakt", "szaml", "fatura"].iter().any(|word| label.contains(word)),
        );
        evidence.fact(
            "label of transaction",
            label.contains("tr") || label.contains("chk") || label.contains("check") || label.contains("ticket"),
        );
        evidence.fact("not first", position > 0);
        let is_amount = self
            .amounts
            .iter()
            .any(|amount| amount.row == index && overlap(&amount.chars, chars) && !amount.is_integer);
        evidence.fact("amount", is_amount);
        let digits = text.chars().filter(char::is_ascii_digit).count();
        evidence.fact("few digits", digits < 3);
        evidence.fact("many digits", digits > 12);
        evidence.fact("letters", text.chars().any(char::is_alphabetic));
        evidence.fact("mostly letters", digits * 2 < text.chars().count());
        evidence.fact("small letters", text.chars().any(char::is_lowercase));
        evidence.fact("words between", between.chars().filter(|char| char.is_alphabetic()).count() > 3);
        evidence.row(index, self.rows);
        evidence.reading(self.rows, std::iter::once((index, chars)));
        let elsewhere = self.texts.iter().enumerate().any(|(other, row)| other != index && row.contains(text));
        evidence.fact("again", elsewhere && digits >= 3);
        Some(evidence)
    }
}
