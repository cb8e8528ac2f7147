//! The bank account and the tax number of who wrote a document.

use std::ops::Range;

use super::candidate::FieldCandidate;
use super::evidence::Evidence;
use super::identifiers;
use super::parties::{self, Party};
use super::row_text::{RowText, overlap};
use super::value::ParsedFieldValue;
use super::words::{LabelPlace, RowWords, WordMeaning, label_of};

/// A bank account or a tax number, at one of its places.
#[derive(Debug)]
pub(super) struct FoundNumber {
    pub(super) row: usize,
    pub(super) chars: Range<usize>,
    text: String,
    /// It begins with a country, or has the form of one country alone.
    has_country: bool,
    /// Its check digit, where one is known.
    check: Option<bool>,
    label: Option<LabelPlace>,
}

pub(super) fn iban_candidates(rows: &[RowText<'_>], words: &[RowWords]) -> Vec<FieldCandidate> {
    let found = numbers(rows, words, WordMeaning::Iban, |chars, _| {
        let ibans = identifiers::ibans(chars).into_iter();
        ibans.filter_map(|found| Some((found.chars, found.value.into_text()?, true, Some(true)))).collect()
    });
    candidates(rows, &found)
}

impl FoundNumber {
    /// The currency of the country whose tax number it is, unless its check digit is wrong.
    pub(super) fn currency(&self) -> Option<&'static str> {
        identifiers::currency_of(&self.text).filter(|_| self.check != Some(false))
    }
}

/// The tax numbers of a document.
pub(super) fn tax_numbers(rows: &[RowText<'_>], words: &[RowWords]) -> Vec<FoundNumber> {
    numbers(rows, words, WordMeaning::TaxNumber, |chars, is_labelled| {
        let numbers =
            identifiers::vat_ids(chars).into_iter().filter_map(|found| Some((found.chars, found.value.into_text()?)));
        let mut all: Vec<_> = numbers
            .map(|(chars, text)| {
                let check = identifiers::is_checked_vat_id(&text);
                (chars, text, true, check)
            })
            .collect();
        let others = identifiers::national_tax_numbers(chars, is_labelled).into_iter();
        for (chars, text, has_country, check) in others {
            if !all.iter().any(|(other, ..)| overlap(other, &chars)) {
                all.push((chars, text, has_country, check));
            }
        }
        all
    })
}

type NumberForm = (Range<usize>, String, bool, Option<bool>);

/// The numbers of all rows, each once for its place.
fn numbers(
    rows: &[RowText<'_>],
    words: &[RowWords],
    label: WordMeaning,
    find: impl Fn(&[char], bool) -> Vec<NumberForm>,
) -> Vec<FoundNumber> {
    let mut found: Vec<FoundNumber> = Vec::new();
    for (index, (row, own)) in rows.iter().zip(words).enumerate() {
        // The space behind a label is lost often.
        let starts = std::iter::once((0, false))
            .chain(own.iter().filter(|(_, meaning)| *meaning == label).map(|(place, _)| (place.end, true)));
        let mut of_row: Vec<FoundNumber> = Vec::new();
        for (start, is_labelled) in starts {
            for (chars, text, has_country, check) in find(row.chars().get(start..).unwrap_or_default(), is_labelled) {
                let chars = start + chars.start..start + chars.end;
                let place = label_of(rows, words, index, &chars, |meaning| !meaning.is_of_amounts());
                let place = place.filter(|(meaning, _)| *meaning == label).map(|(_, place)| place);
                let number = FoundNumber { row: index, chars, text, has_country, check, label: place };
                match of_row.iter_mut().find(|other| overlap(&other.chars, &number.chars)) {
                    Some(known) if !known.has_country && number.has_country => *known = number,
                    Some(_) => {}
                    None => of_row.push(number),
                }
            }
        }
        found.append(&mut of_row);
    }
    found
}

/// Each number once, with the evidence for it.
pub(super) fn candidates(rows: &[RowText<'_>], found: &[FoundNumber]) -> Vec<FieldCandidate> {
    let parties = parties::of_rows(rows);
    let mut texts: Vec<&String> = Vec::new();
    let mut candidates = Vec::new();
    for number in found {
        if texts.contains(&&number.text) {
            continue;
        }
        texts.push(&number.text);
        let same: Vec<&FoundNumber> = found.iter().filter(|other| other.text == number.text).collect();
        let mut evidence = Evidence::found();
        evidence.fact("beside", same.iter().any(|number| number.label == Some(LabelPlace::Beside)));
        evidence.fact("below", same.iter().any(|number| number.label == Some(LabelPlace::Above)));
        evidence.fact("country", number.has_country);
        evidence.fact("right check digit", number.check == Some(true));
        evidence.fact("wrong check digit", number.check == Some(false));
        evidence.fact("twice", same.len() > 1);
        let party = same.iter().filter_map(|number| parties.get(number.row).copied().flatten()).next_back();
        evidence.fact("below seller", party == Some(Party::Seller));
        evidence.fact("below buyer", party == Some(Party::Buyer));
        evidence.row(number.row, rows);
        evidence.reading(rows, std::iter::once((number.row, &number.chars)));
        let value = ParsedFieldValue::Text(number.text.clone());
        candidates.push(FieldCandidate { row: number.row, chars: number.chars.clone(), value, evidence });
    }
    let count = candidates.len();
    for (index, candidate) in candidates.iter_mut().enumerate() {
        candidate.evidence.fact("only one", count == 1);
        candidate.evidence.fact("first", count > 1 && index == 0);
        candidate.evidence.fact("last", count > 1 && index + 1 == count);
    }
    candidates
}
