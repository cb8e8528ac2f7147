//! The currency of a document.

use std::collections::BTreeMap;

use super::amount;
use super::candidate::FieldCandidate;
use super::evidence::Evidence;
use super::labelled_amount::LabelledAmount;
use super::origin::Origin;
use super::registered_number::FoundNumber;
use super::row_text::RowText;
use super::value::ParsedFieldValue;
use crate::pipeline::ocr::geometry::coordinate;

/// Where a currency stands.
#[derive(Debug, Clone, Default)]
struct CurrencyPlaces {
    /// The first: row and characters.
    first: Option<(usize, std::ops::Range<usize>)>,
    amounts: usize,
    totals: usize,
    alone: usize,
    tax_numbers: usize,
}

/// The currencies that amounts have, those that stand alone, and those of the countries whose tax numbers are there.
pub(super) fn candidates(
    rows: &[RowText<'_>],
    tax_numbers: &[FoundNumber],
    amounts: &[LabelledAmount],
    origin: &Origin,
) -> Vec<FieldCandidate> {
    let mut places: BTreeMap<&'static str, CurrencyPlaces> = BTreeMap::new();
    for amount in amounts {
        let Some(code) = amount.amount.currency() else { continue };
        let place = places.entry(code).or_default();
        place.first.get_or_insert((amount.row, amount.chars.clone()));
        place.amounts += 1;
        place.totals += usize::from(amount.label.is_some_and(|label| label.meaning.is_total()));
    }
    for (index, row) in rows.iter().enumerate() {
        let alone = amount::currencies_alone(row.chars()).into_iter();
        for (chars, code) in alone.filter_map(|(chars, code)| Some((chars, origin.of_dollars(code)?))) {
            let place = places.entry(code).or_default();
            place.first.get_or_insert((index, chars));
            place.alone += 1;
        }
    }
    for (number, code) in tax_numbers.iter().filter_map(|number| Some((number, number.currency()?))) {
        let place = places.entry(code).or_default();
        place.first.get_or_insert((number.row, number.chars.clone()));
        place.tax_numbers += 1;
    }
    let all: usize = places.values().map(|place| place.amounts).sum();
    let count = places.len();
    let candidates = places.into_iter().filter_map(|(code, place)| {
        let (row, chars) = place.first.clone()?;
        let mut evidence = Evidence::found();
        evidence.fact("beside a total", place.totals > 0);
        evidence.fact("beside an amount", place.amounts > 0);
        evidence.fact("beside amounts", place.amounts > 2);
        evidence.fact("alone", place.alone > 0);
        evidence.fact("alone often", place.alone > 2);
        evidence.measure("share of amounts", coordinate(place.amounts) / coordinate(all.max(1)));
        evidence.fact("tax number", place.tax_numbers > 0);
        evidence.fact("tax number alone", place.amounts + place.alone == 0);
        evidence.fact("only one", count == 1);
        origin.support_currency(code, &mut evidence);
        Some(FieldCandidate { row, chars, value: ParsedFieldValue::Text(code.to_owned()), evidence })
    });
    candidates.collect()
}
