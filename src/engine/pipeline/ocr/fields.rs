//! Finds fields of a document, such as the total of a receipt: a value of some form next to or below words that name it,
//! or the value for which there is the most evidence.
//!
//! Files, in reading order:
//! * `fields.rs` - a field as it is declared, and the choice among the values found
//! * `fields/value.rs` - the value of a field, and its place in a row
//! * `fields/row_text.rs` - the characters of a row, with their places on the page
//! * `fields/labels.rs` - words that name a value, however a model read them
//! * `fields/digits.rs` - digits, and the letters that are read in their place
//! * `fields/amount.rs`, `fields/date.rs`, `fields/identifiers.rs` - the forms of values
//! * `fields/words.rs`, `fields/words.tsv` - the meaning of words for the numbers around them
//! * `fields/labelled_amount.rs` - the amounts of a document with their meanings
//! * `fields/origin.rs` - hints on the country
//! * `fields/names.rs` - the words of names
//! * `fields/parties.rs` - the seller's lines and the buyer's
//! * `fields/candidate.rs`, `fields/evidence.rs`, `fields/weights.tsv` - the evidence for a value, and the choice by it
//! * `fields/stated.rs` - the values that a file states as XML, compared with its pages
//! * `fields/total.rs`, `fields/taxes.rs`, `fields/currency.rs`, `fields/document_date.rs`, `fields/document_number.rs`,
//!   `fields/supplier.rs`, `fields/registered_number.rs` - the values that are chosen so

mod amount;
mod candidate;
mod currency;
mod date;
mod digits;
mod document_date;
mod document_number;
mod evidence;
mod identifiers;
mod labelled_amount;
mod labels;
mod names;
mod origin;
mod parties;
mod registered_number;
mod row_text;
mod stated;
mod supplier;
mod taxes;
mod total;
mod value;
mod words;

use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use self::candidate::FieldCandidate;
pub use self::date::DayOrder;
pub use self::evidence::Evidence;
use self::labelled_amount::LabelledAmount;
use self::labels::FieldLabel;
use self::origin::Origin;
use self::registered_number::FoundNumber;
use self::row_text::RowText;
pub use self::stated::StatedField;
use self::words::RowWords;
use super::geometry::{PageArea, Quadrilateral};
use super::line::OcrLine;
use super::order::RowOfLines;
use value::FieldMatch;
pub use value::MoneyAmount;
pub use value::ParsedFieldValue;

/// A field as it is declared: `[[field]]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DocumentFieldDeclaration {
    pub name: String,
    /// Words that stand before or above the value, in any language. Case, accents, spaces and signs do not matter.
    #[serde(default)]
    pub labels: Vec<String>,
    /// Words that contain a label and name something else, such as "sub total".
    #[serde(default)]
    pub not: Vec<String>,
    pub pattern: DocumentFieldPattern,
    #[serde(default)]
    pub choose: DocumentFieldChoice,
    /// Takes a value without a label if no value with one is found.
    #[serde(default)]
    pub unlabelled: bool,
    /// The least confidence of a value that is answered as sure, 0 to 1.
    #[serde(default)]
    pub threshold: f32,
    /// The order of day and month in dates such as 03/04/2026.
    #[serde(default)]
    pub day_order: DayOrder,
}

/// The form of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DocumentFieldPattern {
    /// A number with decimals or a currency.
    Amount,
    Date,
    /// An international bank account number with right check digits.
    Iban,
    /// A tax number: with labels of its own, of a European company; else also of the countries in `identifiers.rs`.
    VatId,
    /// Letters and digits without spaces, with at least one digit.
    Number,
    /// The amount of a purchase with its taxes, by the sums of the document.
    Total,
    /// The same without taxes.
    Net,
    /// The taxes, by rate.
    Tax,
    /// The currency by ISO 4217.
    Currency,
    /// The name of the shop, or of who wrote the invoice.
    Supplier,
    /// The date of a document.
    DocumentDate,
    /// The day on which an invoice is due.
    DueDate,
    /// The number of an invoice or a receipt.
    DocumentNumber,
}

impl DocumentFieldPattern {
    /// Set for values that a text next to them does not resemble by chance.
    fn is_checked(self) -> bool {
        matches!(self, Self::Iban | Self::VatId)
    }

    /// The name of its weights, if a value of this form is chosen by evidence: words that name it are known, and so
    /// are those of the numbers around it.
    fn by_evidence(self) -> Option<&'static str> {
        match self {
            Self::Amount | Self::Date | Self::Number => None,
            Self::Iban => Some("iban"),
            Self::VatId => Some("vat_id"),
            Self::Total => Some("total"),
            Self::Net => Some("net"),
            Self::Tax => Some("tax"),
            Self::Currency => Some("currency"),
            Self::Supplier => Some("supplier"),
            Self::DocumentDate => Some("document_date"),
            Self::DueDate => Some("due_date"),
            Self::DocumentNumber => Some("document_number"),
        }
    }
}

/// The choice among several values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DocumentFieldChoice {
    /// The one nearest to its label.
    #[default]
    Nearest,
    /// The one at the top of the page.
    First,
    /// The one at the bottom of the page.
    Last,
    /// The largest amount; of other values the last one.
    Largest,
}

/// A field that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FoundDocumentField {
    pub value: ParsedFieldValue,
    /// The text on the page.
    pub text: String,
    /// From 0.
    pub page: usize,
    /// On the page as it stands upright.
    #[serde(rename = "box")]
    pub area: Quadrilateral,
    /// The probability that the value is right, if evidence chose it; else the confidence of its line.
    pub confidence: f32,
}

/// The greatest distance of a value below its label, in line heights.
const BELOW_HEIGHTS: f32 = 3.0;

/// The rows below a label that are looked through.
const ROWS_BELOW: usize = 3;

/// The fewest characters of a number.
const NUMBER_LENGTH: usize = 3;

/// A value that is less likely is none.
const LIKELY_MIN: f32 = 0.2;

/// A document in rows, ready for any number of fields.
#[derive(Debug)]
pub struct DocumentText<'p> {
    rows: Vec<RowText<'p>>,
    words: Vec<RowWords>,
    amounts: Vec<LabelledAmount>,
    tax_numbers: Vec<FoundNumber>,
    origin: Origin,
}

impl<'p> DocumentText<'p> {
    /// The rows of all pages, each by the positions of its lines.
    pub fn new<'r>(pages: impl IntoIterator<Item = (&'r [RowOfLines], &'p [OcrLine])>) -> Self {
        let rows = pages.into_iter().enumerate().flat_map(|(page, (rows, lines))| {
            rows.iter().map(move |row| RowText::new(page, row.iter().filter_map(|index| lines.get(*index))))
        });
        let rows: Vec<RowText<'p>> = rows.collect();
        let words: Vec<RowWords> = rows.iter().map(words::meanings).collect();
        let mut amounts = labelled_amount::of_rows(&rows, &words);
        let origin = Origin::of(&rows, &amounts);
        for labelled in &mut amounts {
            labelled.amount = origin.of_amount(labelled.amount);
        }
        let tax_numbers = registered_number::tax_numbers(&rows, &words);
        Self { rows, words, amounts, tax_numbers, origin }
    }

    /// The values that may be those of a form which is chosen by evidence.
    pub fn candidates(&self, pattern: DocumentFieldPattern) -> Vec<FieldCandidate> {
        use DocumentFieldPattern as Pattern;
        let Self { rows, words, amounts, tax_numbers, origin } = self;
        match pattern {
            Pattern::Total => total::candidates(rows, amounts),
            Pattern::Net => taxes::net_candidates(rows, amounts),
            Pattern::Tax => taxes::tax_candidates(rows, amounts),
            Pattern::Currency => currency::candidates(rows, tax_numbers, amounts, origin),
            Pattern::Supplier => supplier::candidates(rows, words, amounts),
            Pattern::DocumentDate | Pattern::DueDate => document_date::candidates(rows, words, origin),
            Pattern::DocumentNumber => document_number::candidates(rows, words, amounts, tax_numbers),
            Pattern::Iban => registered_number::iban_candidates(rows, words),
            Pattern::VatId => registered_number::candidates(rows, tax_numbers),
            Pattern::Amount | Pattern::Date | Pattern::Number => Vec::new(),
        }
    }

    /// The value of a field, if the document has one.
    pub fn find(&self, field: &DocumentFieldDeclaration) -> Option<FoundDocumentField> {
        if field.by_evidence().is_some() {
            return self.likeliest(field, self.candidates(field.pattern));
        }
        let matches: Vec<Vec<FieldMatch>> = self.rows.iter().map(|row| field.matches(row, 0)).collect();
        let mut candidates = self.labelled(field, &matches);
        if candidates.is_empty() && (field.unlabelled || field.labels.is_empty()) {
            let all = matches.iter().enumerate().flat_map(|(row, found)| found.iter().map(move |found| (row, found)));
            candidates.extend(all.map(|(row, found)| LabelledMatch { row, found: found.clone(), distance: 0.0 }));
        }
        // A field is that of the first page which has it.
        let page = |candidate: &LabelledMatch| self.rows.get(candidate.row).map(RowText::page);
        let first = candidates.iter().map(page).min()?;
        candidates.retain(|candidate| page(candidate) == first);
        let chosen = choose(field.choose, candidates)?;
        self.found(chosen.row, &chosen.found.chars, chosen.found.value, None)
    }

    /// The likeliest value of a field that is chosen by evidence.
    fn likeliest(
        &self,
        field: &DocumentFieldDeclaration,
        candidates: Vec<FieldCandidate>,
    ) -> Option<FoundDocumentField> {
        let (index, confidence) = evidence::likeliest(field.by_evidence()?, &candidates)?;
        let chosen = candidates.into_iter().nth(index).filter(|_| confidence >= LIKELY_MIN)?;
        self.found(chosen.row, &chosen.chars, chosen.value, Some(confidence))
    }

    /// A field by the place of its value. Without a probability its confidence is that of its line.
    fn found(
        &self,
        row: usize,
        chars: &Range<usize>,
        value: ParsedFieldValue,
        probability: Option<f32>,
    ) -> Option<FoundDocumentField> {
        let row = self.rows.get(row)?;
        let (area, confidence) = row.place(chars)?;
        let value = match value {
            ParsedFieldValue::Amount(amount) => ParsedFieldValue::Amount(self.origin.of_amount(amount)),
            other => other,
        };
        let confidence = probability.unwrap_or(confidence);
        Some(FoundDocumentField { value, text: row.text(chars), page: row.page(), area, confidence })
    }

    /// The values next to a label, or else below it.
    fn labelled(&self, field: &DocumentFieldDeclaration, matches: &[Vec<FieldMatch>]) -> Vec<LabelledMatch> {
        let (wanted, others) = (FieldLabel::all(&field.labels), FieldLabel::all(&field.not));
        let mut candidates = Vec::new();
        for (index, row) in self.rows.iter().enumerate() {
            for label in labels::occurrences(row, &wanted, &others, field.pattern.is_checked()) {
                let Some((label_area, _)) = row.place(&label) else { continue };
                let label_area = label_area.bounds();
                let before = candidates.len();
                // The space behind a label is lost often, so a value may begin right there.
                candidates.extend(field.matches(row, label.end).into_iter().filter_map(|found| {
                    let area = row.place(&found.chars)?.0.bounds();
                    let distance = (area.left - label_area.right).max(0.0) / label_area.height().max(1.0);
                    Some(LabelledMatch { row: index, found, distance })
                }));
                if candidates.len() == before {
                    candidates.extend(self.below(index, &label_area, matches));
                }
            }
        }
        candidates
    }

    /// The values of the next row below a label that has any there.
    fn below(&self, row: usize, label: &PageArea, matches: &[Vec<FieldMatch>]) -> Vec<LabelledMatch> {
        let height = label.height().max(1.0);
        let page = self.rows.get(row).map(RowText::page);
        let next = self.rows.iter().zip(matches).enumerate().skip(row + 1).take(ROWS_BELOW);
        for (index, (row, found)) in next.filter(|(_, (row, _))| Some(row.page()) == page) {
            let candidate = |found: &FieldMatch| {
                let area = row.place(&found.chars)?.0.bounds();
                let gap = area.top - label.bottom;
                let is_below = gap <= BELOW_HEIGHTS * height && label.overlap_across(&area) > -0.5 * height;
                let distance = gap.max(0.0) / height;
                is_below.then(|| LabelledMatch { row: index, found: found.clone(), distance })
            };
            let candidates: Vec<LabelledMatch> = found.iter().filter_map(candidate).collect();
            if !candidates.is_empty() {
                return candidates;
            }
        }
        Vec::new()
    }
}

impl DocumentFieldDeclaration {
    /// The name of its weights, if its value is chosen by evidence: account and tax numbers with labels of their own are
    /// chosen by these.
    fn by_evidence(&self) -> Option<&'static str> {
        self.pattern.by_evidence().filter(|_| self.labels.is_empty() || !self.pattern.is_checked())
    }

    /// The values of the field's form in a row, from a character on that begins a word.
    fn matches(&self, row: &RowText<'_>, start: usize) -> Vec<FieldMatch> {
        let chars = row.chars().get(start..).unwrap_or_default();
        let found = match self.pattern {
            DocumentFieldPattern::Amount => amount::amounts(chars),
            DocumentFieldPattern::Date => date::dates(chars, self.day_order),
            DocumentFieldPattern::Iban => identifiers::ibans(chars),
            DocumentFieldPattern::VatId => identifiers::vat_ids(chars),
            DocumentFieldPattern::Number => {
                let dates = date::dates(chars, self.day_order);
                let is_of_date = |found: &FieldMatch| {
                    dates.iter().any(|date| date.chars.start <= found.chars.start && found.chars.end <= date.chars.end)
                };
                identifiers::numbers(chars, NUMBER_LENGTH).into_iter().filter(|found| !is_of_date(found)).collect()
            }
            _ => Vec::new(),
        };
        let on_row =
            |found: FieldMatch| FieldMatch { chars: start + found.chars.start..start + found.chars.end, ..found };
        found.into_iter().map(on_row).collect()
    }
}

/// A value with its label.
#[derive(Debug, Clone)]
struct LabelledMatch {
    row: usize,
    found: FieldMatch,
    /// The way from the label in line heights.
    distance: f32,
}

impl LabelledMatch {
    fn place(&self) -> (usize, usize) {
        (self.row, self.found.chars.start)
    }

    fn size(&self) -> i64 {
        if let ParsedFieldValue::Amount(amount) = &self.found.value { amount.thousandths() } else { 0 }
    }
}

fn choose(choice: DocumentFieldChoice, candidates: Vec<LabelledMatch>) -> Option<LabelledMatch> {
    let candidates = candidates.into_iter();
    match choice {
        DocumentFieldChoice::Nearest => candidates.min_by(|one, other| one.distance.total_cmp(&other.distance)),
        DocumentFieldChoice::First => candidates.min_by_key(LabelledMatch::place),
        DocumentFieldChoice::Last => candidates.max_by_key(LabelledMatch::place),
        DocumentFieldChoice::Largest => candidates.max_by_key(|candidate| (candidate.size(), candidate.place())),
    }
}

#[cfg(test)]
mod tests;
