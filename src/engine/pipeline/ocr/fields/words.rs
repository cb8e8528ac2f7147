//! Words that say what a number on a receipt or an invoice is, in the languages of `words.tsv`.

use std::ops::Range;
use std::sync::LazyLock;

use serde::Deserialize;
use serde::de::value::StrDeserializer;

use super::labels::LabelIndex;
use super::row_text::{GAP, RowText};

/// The meaning of a word for the number behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WordMeaning {
    /// "Total": the amount of the purchase, or of something else.
    Total,
    /// "Grand total", "Total TTC": the amount with taxes.
    GrossTotal,
    /// "Amount due": what remains to be paid.
    AmountDue,
    /// The amount without taxes, or a subtotal.
    Net,
    Tax,
    /// "Included": a tax in the amount, or an amount with its tax.
    Including,
    /// "Excluding", as above.
    Excluding,
    Cash,
    Card,
    Change,
    Discount,
    Rounding,
    /// A tip, or a charge for service.
    Tip,
    /// Shipping and other charges.
    Charge,
    /// A number of articles.
    Count,
    /// Money that the customer saved, or points that they got.
    Saving,
    /// An amount that was paid before.
    Prepaid,
    /// The balance of an earlier document or of an account.
    Earlier,
    /// A date that may be that of the document.
    Date,
    /// The date of the document.
    DateOfIssue,
    DueDate,
    /// The date of an order, of a delivery, the end of a period.
    OtherDate,
    /// The number of the document.
    Number,
    /// The number of a sale at a till, which may be that of the receipt: "check", "ticket", "transaction".
    SaleNumber,
    /// "No.": a number of something.
    WeakNumber,
    /// The number of a customer, an order, a telephone.
    OtherNumber,
    /// The number under which a company pays taxes.
    TaxNumber,
    Iban,
}

impl WordMeaning {
    /// The meaning of this name in `words.tsv`.
    fn of(name: &str) -> Option<Self> {
        Self::deserialize(StrDeserializer::<serde::de::value::Error>::new(name)).ok()
    }

    pub(super) fn is_total(self) -> bool {
        matches!(self, Self::Total | Self::GrossTotal | Self::AmountDue)
    }

    /// True for a label that the number of a document may have.
    pub(super) fn is_of_documents(self) -> bool {
        matches!(self, Self::Number | Self::SaleNumber | Self::WeakNumber)
    }

    pub(super) fn is_of_amounts(self) -> bool {
        use WordMeaning::{Date, DateOfIssue, DueDate, Iban, OtherDate, OtherNumber, TaxNumber};
        !self.is_of_documents()
            && !matches!(self, Date | DateOfIssue | DueDate | OtherDate | OtherNumber | TaxNumber | Iban)
    }

    /// The meaning of several words of one label: "total" and "excluding" are a net amount.
    pub(super) fn of_amount(words: &[Self]) -> Option<Self> {
        let words: Vec<Self> = words.iter().copied().filter(|word| word.is_of_amounts()).collect();
        let has = |meaning| words.contains(&meaning);
        let first = *words.iter().find(|word| !matches!(word, Self::Including | Self::Excluding)).or(words.first())?;
        Some(match first {
            Self::Total | Self::GrossTotal if has(Self::Excluding) || has(Self::Net) => Self::Net,
            Self::Total if words == [Self::Total, Self::Tax] => Self::Tax,
            Self::Total if has(Self::Including) => Self::GrossTotal,
            Self::Total if has(Self::Cash) || has(Self::Card) || has(Self::AmountDue) || has(Self::GrossTotal) => {
                Self::GrossTotal
            }
            Self::Including | Self::Excluding => return None,
            first => first,
        })
    }
}

/// The words of a row that mean something, from left to right.
pub(super) type RowWords = Vec<(Range<usize>, WordMeaning)>;

/// Where the words of a value stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LabelPlace {
    /// In its row, left of it.
    Beside,
    Above,
}

/// The most letters and digits between a label and its value.
const BETWEEN_MAX: usize = 12;
/// The fewest letters of a label.
const OWN_LABEL_LETTERS: usize = 3;
/// The most rows between a label and its value below it, and the most line heights.
const ROWS_BELOW: usize = 3;
const BELOW_HEIGHTS: f32 = 4.0;

/// Words that name a value.
pub(super) struct ValueLabel {
    pub(super) meaning: WordMeaning,
    pub(super) place: LabelPlace,
    pub(super) row: usize,
    pub(super) chars: Range<usize>,
}

/// The meaning and the place of the label of a value.
pub(super) fn label_of(
    rows: &[RowText<'_>],
    words: &[RowWords],
    index: usize,
    chars: &Range<usize>,
    is_of: impl Fn(WordMeaning) -> bool,
) -> Option<(WordMeaning, LabelPlace)> {
    label(rows, words, index, chars, is_of).map(|label| (label.meaning, label.place))
}

/// The nearest words of some kind at a value: left of it, or else above it.
pub(super) fn label(
    rows: &[RowText<'_>],
    words: &[RowWords],
    index: usize,
    chars: &Range<usize>,
    is_of: impl Fn(WordMeaning) -> bool,
) -> Option<ValueLabel> {
    let row = rows.get(index)?;
    let beside = words.get(index)?.iter().rev().find(|(place, meaning)| place.end <= chars.start && is_of(*meaning));
    if let Some((place, meaning)) = beside {
        let between = row.chars().get(place.end..chars.start).unwrap_or_default();
        if between.iter().filter(|char| char.is_alphanumeric()).count() <= BETWEEN_MAX {
            let label = place.clone();
            return Some(ValueLabel { meaning: *meaning, place: LabelPlace::Beside, row: index, chars: label });
        }
    }
    // Words right before it are a label of its own, though an unknown one.
    let line = row.chars().get(..chars.start)?.iter().rev().take_while(|char| **char != GAP);
    if line.filter(|char| char.is_alphabetic()).count() >= OWN_LABEL_LETTERS {
        return None;
    }
    words_above(rows, words, index, chars).find_map(|(row, over)| {
        let (label, meaning) = over.into_iter().find(|(_, meaning)| is_of(*meaning))?;
        Some(ValueLabel { meaning: *meaning, place: LabelPlace::Above, row, chars: label.clone() })
    })
}

/// The meanings of the words that stand over a value, row by row upwards.
pub(super) fn above<'w>(
    rows: &'w [RowText<'_>],
    words: &'w [RowWords],
    index: usize,
    chars: &Range<usize>,
) -> impl Iterator<Item = Vec<WordMeaning>> + 'w {
    words_above(rows, words, index, chars).map(|(_, over)| over.into_iter().map(|(_, meaning)| *meaning).collect())
}

/// The words that stand over a value, row by row upwards.
fn words_above<'w>(
    rows: &'w [RowText<'_>],
    words: &'w [RowWords],
    index: usize,
    chars: &Range<usize>,
) -> impl Iterator<Item = (usize, Vec<&'w (Range<usize>, WordMeaning)>)> + 'w {
    let own = rows.get(index).and_then(|row| Some((row.page(), row.place(chars)?.0.bounds())));
    (index.saturating_sub(ROWS_BELOW)..index).rev().map_while(move |before| {
        let (page, area) = own?;
        let row = rows.get(before).filter(|row| row.page() == page)?;
        let is_over = |place: &Range<usize>| {
            row.place(place).is_some_and(|(label, _)| {
                let label = label.bounds();
                let gap = area.top - label.bottom;
                label.overlap_across(&area) > 0.0 && gap <= BELOW_HEIGHTS * label.height().max(area.height())
            })
        };
        Some((before, words.get(before)?.iter().filter(|(place, _)| is_over(place)).collect()))
    })
}

/// The words of a row, of which the longest count where several overlap.
pub(super) fn meanings(row: &RowText<'_>) -> RowWords {
    WORDS.longest(row)
}

static WORDS: LazyLock<LabelIndex<WordMeaning>> = LazyLock::new(|| {
    let lines = include_str!("words.tsv").lines().filter_map(|line| line.split_once('\t'));
    let words = lines.filter_map(|(name, words)| Some((WordMeaning::of(name)?, words)));
    LabelIndex::new(words.flat_map(|(meaning, words)| words.split('|').map(move |word| (word, meaning))))
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_the_words_has_a_meaning() {
        for line in include_str!("words.tsv").lines() {
            let (name, words) = line.split_once('\t').unwrap();
            assert!(WordMeaning::of(name).is_some() && words.split('|').all(|word| !word.trim().is_empty()), "{line}");
        }
    }
}
