//! The amounts of a document, each with what the words around it say that it is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::amount;
use super::row_text::{GAP, RowText};
use super::value::MoneyAmount;
use super::words::{self, RowWords, WordMeaning};

/// The most values of a kind that sums are made of.
pub(super) const VALUES_MAX: usize = 12;
/// Half a cent and a rounding, in thousandths.
pub(super) const EQUAL: i64 = 11;

/// Integers that are years, in thousandths.
const YEARS: std::ops::RangeInclusive<i64> = 1_990_000..=2_099_000;

/// An amount on a page.
#[derive(Debug, Clone)]
pub(super) struct LabelledAmount {
    /// The row of the document.
    pub(super) row: usize,
    pub(super) chars: Range<usize>,
    pub(super) amount: MoneyAmount,
    pub(super) label: Option<AmountLabel>,
    /// The last amount of its row.
    pub(super) is_last: bool,
    /// A percentage stands in its row.
    pub(super) has_rate: bool,
    /// A number without decimals and without a currency.
    pub(super) is_integer: bool,
}

/// The meaning of an amount by the words around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AmountLabel {
    pub(super) meaning: WordMeaning,
    pub(super) way: LabelWay,
}

/// Where the words stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LabelWay {
    /// Left of it, with no other amount of the label behind it.
    Beside,
    /// Left of it, and the label has another amount behind it.
    BesideFirst,
    /// In a row above.
    Above,
    /// In the next row, which has no amount, while this one has no words.
    NextRow,
}

impl LabelledAmount {
    pub(super) fn thousandths(&self) -> i64 {
        self.amount.thousandths()
    }

    pub(super) fn means(&self, meaning: WordMeaning) -> bool {
        self.label.is_some_and(|label| label.meaning == meaning)
    }
}

/// Returns true if two sums in thousandths are the same but for rounding.
pub(super) fn is_equal(one: i64, other: i64) -> bool {
    (one - other).abs() < EQUAL
}

/// The amounts of each value in thousandths.
pub(super) fn by_value(amounts: &[LabelledAmount]) -> BTreeMap<i64, Vec<&LabelledAmount>> {
    let mut values: BTreeMap<i64, Vec<&LabelledAmount>> = BTreeMap::new();
    for amount in amounts {
        values.entry(amount.thousandths()).or_default().push(amount);
    }
    values
}

/// The values in thousandths of the amounts with such a label.
pub(super) fn values_of(amounts: &[LabelledAmount], is_of: impl Fn(WordMeaning) -> bool) -> BTreeSet<i64> {
    let labelled = amounts.iter().filter(|amount| amount.label.is_some_and(|label| is_of(label.meaning)));
    labelled.map(LabelledAmount::thousandths).collect()
}

/// The words and the amounts of one row.
struct RowParts<'w> {
    words: &'w RowWords,
    amounts: Vec<(Range<usize>, MoneyAmount)>,
    has_rate: bool,
}

impl<'w> RowParts<'w> {
    fn of(row: &RowText<'_>, words: &'w RowWords) -> Self {
        let chars = row.chars();
        // The space behind a label is lost often, so an amount may begin right there.
        let mut amounts = Vec::new();
        let starts = std::iter::once(0).chain(words.iter().map(|(place, _)| place.end));
        let ends = words.iter().map(|(place, _)| place.start).chain([chars.len()]);
        for (index, (start, end)) in starts.zip(ends).enumerate() {
            let part = chars.get(start..end).unwrap_or_default();
            let found = amount::found(part, index > 0).into_iter();
            amounts.extend(found.map(|(place, amount)| (start + place.start..start + place.end, amount)));
        }
        Self { words, amounts, has_rate: chars.contains(&'%') }
    }

    /// The meaning of the words between two places.
    fn meaning(&self, from: usize, to: usize) -> Option<WordMeaning> {
        let between = self.words.iter().filter(|(place, _)| from <= place.start && place.end <= to);
        WordMeaning::of_amount(&between.map(|(_, meaning)| *meaning).collect::<Vec<_>>())
    }
}

/// The amounts of all rows, in their order.
pub(super) fn of_rows(rows: &[RowText<'_>], words: &[RowWords]) -> Vec<LabelledAmount> {
    let parts: Vec<RowParts<'_>> = rows.iter().zip(words).map(|(row, words)| RowParts::of(row, words)).collect();
    let mut found = Vec::new();
    for (index, (row, own)) in rows.iter().zip(&parts).enumerate() {
        let mut from = 0;
        let mut meaning = None;
        for (position, (chars, amount)) in own.amounts.iter().enumerate() {
            let next = own.amounts.get(position + 1);
            if let Some(here) = own.meaning(from, chars.start) {
                meaning = Some(here);
            }
            from = chars.end;
            let is_last_of_label = next.is_none_or(|(next, _)| own.meaning(chars.end, next.start).is_some());
            let beside = meaning.map(|meaning| {
                let way = if is_last_of_label { LabelWay::Beside } else { LabelWay::BesideFirst };
                AmountLabel { meaning, way }
            });
            let is_integer = amount.is_integer() && amount.currency().is_none();
            let is_other_number =
                is_integer && !beside.is_some_and(|label| may_be_integer(label.meaning, row, chars, *amount));
            if is_other_number {
                continue;
            }
            let above = || words::above(rows, words, index, chars).find_map(|over| WordMeaning::of_amount(&over));
            let label = |meaning: WordMeaning, way| AmountLabel { meaning, way };
            let label = beside
                .or_else(|| above().map(|meaning| label(meaning, LabelWay::Above)))
                .or_else(|| next_row(rows, &parts, index).map(|meaning| label(meaning, LabelWay::NextRow)));
            found.push(LabelledAmount {
                row: index,
                chars: chars.clone(),
                amount: *amount,
                label,
                is_last: next.is_none(),
                has_rate: own.has_rate,
                is_integer,
            });
        }
    }
    found
}

/// Returns true if a number without decimals may be an amount: alone behind its label.
fn may_be_integer(meaning: WordMeaning, row: &RowText<'_>, chars: &Range<usize>, amount: MoneyAmount) -> bool {
    use WordMeaning::{AmountDue, Cash, GrossTotal, Net, Tax, Total};
    let is_alone = |char: Option<&char>| char.is_none_or(|char| matches!(*char, ' ' | ':' | '=' | GAP));
    let before = chars.start.checked_sub(1).and_then(|before| row.chars().get(before));
    matches!(meaning, Total | GrossTotal | AmountDue | Net | Tax | Cash)
        && !YEARS.contains(&amount.thousandths())
        && is_alone(row.chars().get(chars.end))
        && (is_alone(before) || before.is_some_and(|char| char.is_alphabetic()))
}

/// The words of the next or the last row, where that has no amount and this one no words: a page that is bent.
fn next_row(rows: &[RowText<'_>], parts: &[RowParts<'_>], index: usize) -> Option<WordMeaning> {
    let row = rows.get(index)?;
    if row.chars().iter().filter(|char| char.is_alphabetic()).count() > 3 {
        return None;
    }
    let others = [index.checked_sub(1), Some(index + 1)].into_iter().flatten();
    others.filter(|other| rows.get(*other).is_some_and(|other| other.page() == row.page())).find_map(|other| {
        let parts = parts.get(other).filter(|parts| parts.amounts.is_empty())?;
        parts.meaning(0, usize::MAX)
    })
}
