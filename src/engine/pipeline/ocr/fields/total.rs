//! The total: the amount that the sums of a document support.

use std::collections::BTreeSet;

use super::candidate::FieldCandidate;
use super::evidence::{self, Evidence};
use super::labelled_amount::{self, LabelWay, LabelledAmount, VALUES_MAX, is_equal};
use super::row_text::RowText;
use super::words::WordMeaning;
use crate::pipeline::ocr::geometry::median;

/// Facts by which a sum supports a total.
const SUPPORT: &[&str] = &[
    "paid less change",
    "paid exactly",
    "net and tax",
    "net and additions",
    "sum of articles",
    "sum of articles and tax",
    "rounded",
];

/// The most that a total is rounded where no word says so.
const ROUNDING: i64 = 25;
/// What amounts to pay are rounded to, in thousandths.
const ROUND_UNITS: [i64; 5] = [1000, 500, 100, 50, 10];
/// The most amounts that are added up, from the bottom.
const SUMMED_MAX: usize = 60;

/// All values that may be the total.
pub(super) fn candidates(rows: &[RowText<'_>], amounts: &[LabelledAmount]) -> Vec<FieldCandidate> {
    let sums = Sums::of(amounts);
    let values = labelled_amount::by_value(amounts);
    let facts = DocumentFacts::of(rows, amounts);
    let candidates = values.iter().filter(|(value, _)| **value != 0).filter_map(|(value, occurrences)| {
        let best = occurrences.iter().max_by_key(|amount| (rank(amount), amount.row))?;
        Some(FieldCandidate::of_amount(best, evidence_for(*value, occurrences, rows, &facts, &sums)))
    });
    let mut candidates: Vec<FieldCandidate> = candidates.collect();
    evidence::compare_support(&mut candidates, SUPPORT);
    candidates
}

/// The occurrence whose place is shown.
fn rank(amount: &LabelledAmount) -> u8 {
    match amount.label {
        Some(label) if label.meaning.is_total() && label.way == LabelWay::Beside => 3,
        Some(label) if label.meaning.is_total() => 2,
        None => 1,
        Some(_) => 0,
    }
}

/// The facts of the document as a whole.
struct DocumentFacts {
    largest: i64,
    /// The largest that nobody paid with.
    largest_unpaid: i64,
    /// The values with a label of a total, and their rows.
    totals: Vec<(i64, usize)>,
    first_payment: Option<usize>,
    height: f32,
}

impl DocumentFacts {
    fn of(rows: &[RowText<'_>], amounts: &[LabelledAmount]) -> Self {
        let is_paid = |amount: &LabelledAmount| {
            amount.means(WordMeaning::Cash) || amount.means(WordMeaning::Change) || amount.means(WordMeaning::Earlier)
        };
        let totals: Vec<(i64, usize)> = amounts
            .iter()
            .filter(|amount| amount.label.is_some_and(|label| label.meaning.is_total()) && amount.thousandths() != 0)
            .map(|amount| (amount.thousandths(), amount.row))
            .collect();
        Self {
            largest: amounts
                .iter()
                .map(LabelledAmount::thousandths)
                .filter(|value| *value != 0)
                .max()
                .unwrap_or_default(),
            largest_unpaid: amounts
                .iter()
                .filter(|amount| !is_paid(amount))
                .map(LabelledAmount::thousandths)
                .max()
                .unwrap_or_default(),
            first_payment: amounts
                .iter()
                .find(|amount| {
                    amount.means(WordMeaning::Cash)
                        || amount.means(WordMeaning::Card)
                        || amount.means(WordMeaning::Change)
                })
                .map(|amount| amount.row),
            totals,
            height: median(amounts.iter().filter_map(|amount| height(rows, amount))).unwrap_or(1.0),
        }
    }
}

fn height(rows: &[RowText<'_>], amount: &LabelledAmount) -> Option<f32> {
    Some(rows.get(amount.row)?.place(&amount.chars)?.0.height())
}

fn evidence_for(
    value: i64,
    occurrences: &[&LabelledAmount],
    rows: &[RowText<'_>],
    facts: &DocumentFacts,
    sums: &Sums,
) -> Evidence {
    use WordMeaning::{
        AmountDue, Card, Cash, Change, Charge, Discount, Earlier, GrossTotal, Net, Prepaid, Rounding, Saving, Tax, Tip,
        Total,
    };
    let mut evidence = Evidence::found();
    let labelled = |meanings: &[WordMeaning], ways: &[LabelWay]| {
        occurrences
            .iter()
            .filter_map(|amount| amount.label)
            .any(|label| meanings.contains(&label.meaning) && ways.contains(&label.way))
    };
    let any = [LabelWay::Beside, LabelWay::BesideFirst, LabelWay::Above, LabelWay::NextRow];
    evidence.fact("beside total", labelled(&[Total], &[LabelWay::Beside]));
    evidence.fact("beside gross total", labelled(&[GrossTotal], &[LabelWay::Beside]));
    evidence.fact("beside amount due", labelled(&[AmountDue], &[LabelWay::Beside]));
    evidence.fact("first beside total", labelled(&[Total, GrossTotal, AmountDue], &[LabelWay::BesideFirst]));
    evidence.fact("below total", labelled(&[Total], &[LabelWay::Above]));
    evidence.fact("below gross total", labelled(&[GrossTotal, AmountDue], &[LabelWay::Above]));
    evidence.fact("next row total", labelled(&[Total, GrossTotal, AmountDue], &[LabelWay::NextRow]));
    evidence.fact("net", labelled(&[Net], &any));
    evidence.fact("tax", labelled(&[Tax], &any));
    evidence.fact("cash", labelled(&[Cash], &any));
    evidence.fact("card", labelled(&[Card], &any));
    evidence.fact("change", labelled(&[Change], &any));
    evidence.fact("earlier", labelled(&[Earlier], &any));
    evidence
        .fact("other label", labelled(&[Discount, Rounding, Tip, Charge, Saving, Prepaid, WordMeaning::Count], &any));
    evidence.fact("no label", occurrences.iter().all(|amount| amount.label.is_none()));
    evidence.fact("twice", occurrences.len() >= 2);
    evidence.fact("three times", occurrences.len() >= 3);
    evidence.fact("largest", value == facts.largest);
    evidence.fact("largest unpaid", value == facts.largest_unpaid);
    let largest_total = facts.totals.iter().map(|(value, _)| *value).max();
    let is_total = facts.totals.iter().any(|(total, _)| *total == value);
    let differ = facts.totals.iter().map(|(total, _)| *total).collect::<BTreeSet<_>>().len() > 1;
    evidence.fact("largest total", is_total && differ && Some(value) == largest_total);
    evidence.fact("first total", is_total && differ && facts.totals.first().is_some_and(|(total, _)| *total == value));
    evidence.fact("last total", is_total && differ && facts.totals.last().is_some_and(|(total, _)| *total == value));
    evidence.fact("no total elsewhere", !facts.totals.iter().any(|(total, _)| *total != value));
    let is_later = |amount: &&LabelledAmount| facts.first_payment.is_some_and(|payment| amount.row > payment);
    evidence.fact("after payment", occurrences.iter().all(is_later));
    evidence.fact("beside rate", occurrences.iter().all(|amount| amount.has_rate));
    evidence.fact("currency", occurrences.iter().any(|amount| amount.amount.currency().is_some()));
    evidence.fact("negative", value < 0);
    evidence.fact("integer", occurrences.iter().all(|amount| amount.is_integer));
    evidence.fact("not last", occurrences.iter().all(|amount| !amount.is_last));
    evidence.row(occurrences.last().map_or(0, |amount| amount.row), rows);
    let tallest = occurrences.iter().filter_map(|amount| height(rows, amount)).fold(0.0, f32::max);
    evidence.measure("larger letters", (tallest / facts.height.max(1.0)).ln().clamp(-1.0, 1.0));
    evidence.reading(rows, occurrences.iter().map(|amount| (amount.row, &amount.chars)));
    sums.support(value, &mut evidence);
    evidence
}

/// The sums of a document.
struct Sums {
    nets: Vec<i64>,
    taxes: Vec<i64>,
    /// Taxes, tips, charges and roundings, which are added to a net amount; discounts are taken off.
    additions: Vec<i64>,
    paid: Vec<i64>,
    cards: Vec<i64>,
    change: Vec<i64>,
    totals: Vec<i64>,
    roundings: Vec<i64>,
    printed: BTreeSet<i64>,
    /// The sums of articles.
    runs: BTreeSet<i64>,
    prepaid: Vec<i64>,
}

impl Sums {
    fn of(amounts: &[LabelledAmount]) -> Self {
        use WordMeaning::{Card, Cash, Change, Charge, Discount, Net, Prepaid, Rounding, Tax, Tip};
        let all = |meanings: &[WordMeaning]| -> Vec<i64> {
            let values = labelled_amount::values_of(amounts, |meaning| meanings.contains(&meaning));
            values.into_iter().filter(|value| *value != 0).take(VALUES_MAX).collect()
        };
        let mut additions = all(&[Tax, Tip, Charge, Rounding]);
        additions.extend(all(&[Discount]).into_iter().map(|value| -value.abs()));
        Self {
            nets: all(&[Net]),
            taxes: all(&[Tax]),
            additions,
            paid: all(&[Cash, Card]),
            cards: all(&[Card]),
            change: amounts
                .iter()
                .filter(|amount| amount.means(Change))
                .map(LabelledAmount::thousandths)
                .take(VALUES_MAX)
                .collect(),
            totals: all(&[WordMeaning::Total, WordMeaning::GrossTotal, WordMeaning::AmountDue]),
            roundings: all(&[Rounding]),
            printed: amounts.iter().map(LabelledAmount::thousandths).collect(),
            runs: run_sums(amounts),
            prepaid: all(&[Prepaid]),
        }
    }

    /// The facts of sums that have this value.
    fn support(&self, value: i64, evidence: &mut Evidence) {
        let changed =
            self.paid.iter().any(|paid| self.change.iter().any(|change| is_equal(paid - change.abs(), value)));
        evidence.fact("paid less change", changed);
        evidence.fact("another was paid", !changed && !self.paid.is_empty() && !self.change.is_empty());
        evidence.fact("paid exactly", self.cards.iter().any(|paid| is_equal(*paid, value)));
        let one_tax = self.nets.iter().any(|net| self.taxes.iter().any(|tax| is_equal(net + tax, value)));
        let all_taxes: i64 = self.taxes.iter().sum();
        let with_all = self.nets.iter().any(|net| is_equal(net + all_taxes, value)) && self.taxes.len() > 1;
        let two = self.nets.iter().any(|net| {
            self.additions.iter().enumerate().any(|(index, one)| {
                is_equal(net + one, value)
                    || self.additions.iter().skip(index + 1).any(|other| is_equal(net + one + other, value))
            })
        });
        evidence.fact("net and tax", one_tax || with_all);
        let has_both = !self.nets.is_empty() && !self.taxes.is_empty();
        evidence.fact("net and tax of another", has_both && !one_tax && !with_all && !two);
        evidence.fact("net and additions", two && !one_tax && !with_all);
        evidence.fact(
            "net of another",
            self.totals.iter().any(|total| self.taxes.iter().any(|tax| is_equal(value + tax, *total))),
        );
        let add = |total: &i64, to: i64| {
            self.additions.iter().any(|more| is_equal(total + more, to)) && !is_equal(*total, to)
        };
        evidence.fact("another total and additions", self.totals.iter().any(|total| add(total, value)));
        evidence.fact("additions of another total", self.totals.iter().any(|total| add(&value, *total)));
        let by_rounding = |one: i64, other: i64| self.roundings.iter().any(|by| (one - other).abs() == by.abs());
        let is_near = |one: i64, other: i64| (one - other).abs() <= ROUNDING;
        let mut before = self.totals.iter().chain(&self.nets).copied().filter(|other| is_rounder(value, *other));
        evidence.fact("rounded", before.clone().any(|other| by_rounding(value, other)));
        evidence.fact("rounded by little", before.any(|other| is_near(value, other)));
        let mut after = self.printed.iter().copied().filter(|other| is_rounder(*other, value));
        evidence.fact("before rounding", after.clone().any(|other| by_rounding(value, other)));
        evidence.fact("a rounder one is near", after.any(|other| is_near(value, other)));
        evidence.fact("sum of articles", self.runs.contains(&value));
        let sum_and_tax = self.additions.iter().any(|more| self.runs.contains(&(value - more)));
        evidence.fact("sum of articles and tax", sum_and_tax && !self.runs.contains(&value));
        evidence.fact(
            "less prepaid",
            self.totals.iter().any(|total| self.prepaid.iter().any(|paid| is_equal(total - paid.abs(), value))),
        );
        evidence.fact(
            "before prepaid",
            self.totals.iter().any(|due| self.prepaid.iter().any(|paid| is_equal(due + paid.abs(), value))),
        );
    }
}

/// Returns true if one value, and not the other, is a multiple of what amounts to pay are rounded to.
fn is_rounder(one: i64, other: i64) -> bool {
    let unit = |value: i64| ROUND_UNITS.iter().find(|unit| value % *unit == 0).copied().unwrap_or(1);
    unit(one) > unit(other)
}

/// The sums of two or more amounts of rows one after the other, which end where the first total or net amount is.
fn run_sums(amounts: &[LabelledAmount]) -> BTreeSet<i64> {
    let is_end = |amount: &LabelledAmount| {
        amount.label.is_some_and(|label| {
            label.way != LabelWay::Above && (label.meaning.is_total() || label.meaning == WordMeaning::Net)
        })
    };
    let mut sums = BTreeSet::new();
    let ends: Vec<usize> =
        amounts.iter().enumerate().filter(|(_, amount)| is_end(amount)).map(|(index, _)| index).take(3).collect();
    for end in ends {
        let articles = amounts.get(..end).unwrap_or_default().iter().rev().filter(|amount| amount.is_last);
        let articles = articles.filter(|amount| {
            amount.label.is_none_or(|label| label.way == LabelWay::Above || label.meaning == WordMeaning::Discount)
        });
        let mut sum = 0_i64;
        for (count, article) in articles.take(SUMMED_MAX).enumerate() {
            sum = sum.saturating_add(article.thousandths());
            if count > 0 && sum > 0 {
                sums.insert(sum);
            }
        }
    }
    sums
}
