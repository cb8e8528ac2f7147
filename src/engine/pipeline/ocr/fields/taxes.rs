//! The net amount of a document, and its taxes by rate.

use std::collections::{BTreeMap, BTreeSet};

use super::candidate::FieldCandidate;
use super::evidence::{self, Evidence};
use super::labelled_amount::{self, EQUAL, LabelWay, LabelledAmount, VALUES_MAX, is_equal};
use super::row_text::RowText;
use super::value::{ParsedFieldValue, TaxAmount};
use super::words::WordMeaning;

/// Facts by which a sum supports a net amount, and a tax.
const NET_SUPPORT: &[&str] = &[
    "with tax the total",
    "with taxes the total",
    "with rate the total",
    "rate gives a tax",
    "with another the total",
];
const TAX_SUPPORT: &[&str] =
    &["net and tax are the total", "total without it", "rate of total", "rate of net", "all of one rate"];

/// The most taxes of a document.
const TAXES_MAX: usize = 6;

/// The values that sums are made of.
struct SumValues {
    totals: Vec<i64>,
    nets: Vec<i64>,
    taxes: Vec<i64>,
    all: BTreeSet<i64>,
    /// The rates of the page in hundredths of a percent, with their rows.
    rates: Vec<(i64, usize)>,
}

impl SumValues {
    fn of(rows: &[RowText<'_>], amounts: &[LabelledAmount]) -> Self {
        let labelled = |is_of: fn(WordMeaning) -> bool| -> Vec<i64> {
            let values = labelled_amount::values_of(amounts, is_of);
            values.into_iter().rev().take_while(|value| *value > 0).take(VALUES_MAX).collect()
        };
        Self {
            totals: labelled(WordMeaning::is_total),
            nets: labelled(|meaning| meaning == WordMeaning::Net),
            taxes: labelled(|meaning| meaning == WordMeaning::Tax),
            all: amounts.iter().map(LabelledAmount::thousandths).collect(),
            rates: rows
                .iter()
                .enumerate()
                .flat_map(|(index, row)| rates(row.chars()).into_iter().map(move |rate| (rate, index)))
                .collect(),
        }
    }

    fn has(&self, value: i64) -> bool {
        self.all.range(value - EQUAL + 1..value + EQUAL).next().is_some()
    }

    fn has_total(&self, value: i64) -> bool {
        self.totals.iter().any(|total| is_equal(*total, value))
    }
}

/// Percentages of a text above 0 and below 50, in hundredths of a percent.
fn rates(chars: &[char]) -> Vec<i64> {
    let mut rates = Vec::new();
    for (index, _) in chars.iter().enumerate().filter(|(_, char)| **char == '%') {
        let before: Vec<char> = chars
            .get(..index)
            .unwrap_or_default()
            .iter()
            .rev()
            .skip_while(|char| **char == ' ')
            .copied()
            .take_while(|char| char.is_ascii_digit() || matches!(char, '.' | ','))
            .collect();
        let text: String = before.into_iter().rev().map(|char| if char == ',' { '.' } else { char }).collect();
        if let Some(rate) = rate(&text) {
            rates.push(rate);
        }
    }
    rates
}

fn rate(text: &str) -> Option<i64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let decimals: String = decimals.chars().chain("00".chars()).take(2).collect();
    let rate = whole.parse::<i64>().ok().filter(|whole| *whole < 50)? * 100 + decimals.parse::<i64>().ok()?;
    (rate > 0).then_some(rate)
}

/// The amounts that may be the net amount.
pub(super) fn net_candidates(rows: &[RowText<'_>], amounts: &[LabelledAmount]) -> Vec<FieldCandidate> {
    let sums = SumValues::of(rows, amounts);
    let values = labelled_amount::by_value(amounts);
    let nets: Vec<i64> =
        amounts.iter().filter(|amount| amount.means(WordMeaning::Net)).map(LabelledAmount::thousandths).collect();
    let candidates = values.into_iter().filter(|(value, _)| *value > 0).filter_map(|(value, same)| {
        let best = same.iter().max_by_key(|amount| (amount.means(WordMeaning::Net), amount.row))?;
        let mut evidence = Evidence::found();
        let net = |ways: &[LabelWay]| {
            same.iter().any(|amount| {
                amount.means(WordMeaning::Net) && amount.label.is_some_and(|label| ways.contains(&label.way))
            })
        };
        evidence.fact("beside net", net(&[LabelWay::Beside]));
        evidence.fact("first beside net", net(&[LabelWay::BesideFirst]));
        evidence.fact("below net", net(&[LabelWay::Above]));
        evidence.fact("next row net", net(&[LabelWay::NextRow]));
        evidence.fact("total", sums.has_total(value));
        evidence.fact("tax", sums.taxes.contains(&value));
        evidence.fact("no label", same.iter().all(|amount| amount.label.is_none()));
        evidence.fact(
            "other label",
            same.iter().all(|amount| {
                amount.label.is_some_and(|label| {
                    !matches!(label.meaning, WordMeaning::Net | WordMeaning::Tax) && !label.meaning.is_total()
                })
            }),
        );
        evidence.fact("twice", same.len() > 1);
        let all_taxes: i64 = sums.taxes.iter().sum();
        let one_tax = sums.taxes.iter().any(|tax| sums.has_total(value + tax));
        evidence.fact("with tax the total", one_tax);
        evidence.fact("with taxes the total", !one_tax && sums.taxes.len() > 1 && sums.has_total(value + all_taxes));
        let by_rate = |rate: i64| value * rate / 10_000;
        evidence.fact("with rate the total", sums.rates.iter().any(|(rate, _)| sums.has_total(value + by_rate(*rate))));
        evidence.fact("rate gives a tax", sums.rates.iter().any(|(rate, _)| sums.has(by_rate(*rate))));
        evidence.fact(
            "with another the total",
            sums.totals.iter().any(|total| total - value > EQUAL && sums.has(total - value)),
        );
        evidence.fact("above all totals", sums.totals.iter().all(|total| *total < value) && !sums.totals.is_empty());
        let differ = sums.nets.len() > 1 && sums.nets.contains(&value);
        evidence.fact("largest net", differ && sums.nets.iter().max() == Some(&value));
        evidence.fact("first net", differ && nets.first() == Some(&value));
        evidence.fact("last net", differ && nets.last() == Some(&value));
        evidence.fact("only net", sums.nets == [value]);
        evidence.fact("beside rate", same.iter().all(|amount| amount.has_rate));
        evidence.fact("not last", same.iter().all(|amount| !amount.is_last));
        evidence.fact("integer", same.iter().all(|amount| amount.is_integer));
        let is_small = |total: &i64| 2 * value < *total;
        evidence.fact("less than half of the total", !sums.totals.is_empty() && sums.totals.iter().all(is_small));
        place(&same, rows, &mut evidence);
        Some(FieldCandidate::of_amount(best, evidence))
    });
    let mut candidates: Vec<FieldCandidate> = candidates.collect();
    evidence::compare_support(&mut candidates, NET_SUPPORT);
    candidates
}

fn place(same: &[&LabelledAmount], rows: &[RowText<'_>], evidence: &mut Evidence) {
    evidence.row(same.last().map_or(0, |amount| amount.row), rows);
    evidence.reading(rows, same.iter().map(|amount| (amount.row, &amount.chars)));
}

/// Taxes that may be those of the document: single ones, and all of a kind together.
pub(super) fn tax_candidates(rows: &[RowText<'_>], amounts: &[LabelledAmount]) -> Vec<FieldCandidate> {
    let sums = SumValues::of(rows, amounts);
    let mut found: Vec<FieldCandidate> = Vec::new();
    let mut push = |taxes: Vec<(Option<i64>, &LabelledAmount)>, kind: &'static str| {
        let Some((_, first)) = taxes.first() else { return };
        let mut evidence = Evidence::found();
        evidence.fact(kind, true);
        let sum: i64 = taxes.iter().map(|(_, tax)| tax.thousandths()).sum();
        facts(&taxes, sum, &sums, amounts, &mut evidence);
        place(&taxes.iter().map(|(_, tax)| *tax).collect::<Vec<_>>(), rows, &mut evidence);
        let value = taxes.iter().map(|(rate, tax)| TaxAmount { rate: *rate, amount: tax.amount }).collect();
        found.push(FieldCandidate {
            row: first.row,
            chars: first.chars.clone(),
            value: ParsedFieldValue::Taxes(value),
            evidence,
        });
    };

    // One of each rate, where the amount is that share of another in the row.
    let mut by_rate: BTreeMap<i64, &LabelledAmount> = BTreeMap::new();
    for (rate, row) in &sums.rates {
        if let Some(tax) = tax_of_rate(*rate, *row, amounts) {
            by_rate.entry(*rate).or_insert(tax);
        }
    }
    let lines: Vec<(Option<i64>, &LabelledAmount)> =
        by_rate.iter().map(|(rate, tax)| (Some(*rate), *tax)).take(TAXES_MAX).collect();
    if lines.len() > 1 {
        push(lines.clone(), "all rates");
    }
    // Each labelled one, and all of them.
    let rate_of = |amount: &LabelledAmount| {
        let lines = by_rate.iter().find(|(_, tax)| tax.thousandths() == amount.thousandths()).map(|(rate, _)| *rate);
        lines.or_else(|| sums.rates.iter().filter(|(_, row)| *row == amount.row).map(|(rate, _)| *rate).next())
    };
    let mut seen = BTreeSet::new();
    let labelled: Vec<&LabelledAmount> = amounts
        .iter()
        .filter(|amount| amount.means(WordMeaning::Tax) && amount.thousandths() >= 0)
        .filter(|amount| seen.insert(amount.thousandths()))
        .collect();
    for tax in &labelled {
        push(vec![(rate_of(tax), tax)], "labelled");
    }
    for (rate, tax) in &lines {
        if !labelled.iter().any(|other| other.thousandths() == tax.thousandths()) {
            push(vec![(*rate, tax)], "of rate");
        }
    }
    let beside: Vec<&LabelledAmount> = amounts
        .iter()
        .filter(|amount| {
            amount.means(WordMeaning::Tax)
                && amount.thousandths() > 0
                && amount.label.is_some_and(|label| label.way == LabelWay::Beside)
        })
        .take(TAXES_MAX)
        .collect();
    if beside.len() > 1 {
        push(beside.into_iter().map(|tax| (rate_of(tax), tax)).collect(), "all labelled");
    }
    // The difference of the total and the net amount.
    let missing: BTreeSet<i64> = sums
        .totals
        .iter()
        .flat_map(|total| sums.nets.iter().map(move |net| total - net))
        .filter(|tax| *tax > EQUAL)
        .collect();
    for tax in amounts.iter().filter(|amount| missing.contains(&amount.thousandths()) && amount.label.is_none()) {
        push(vec![(rate_of(tax), tax)], "difference");
    }
    evidence::compare_support(&mut found, TAX_SUPPORT);
    found
}

/// The amount of a row that is a rate of another one there: of the net amount, or within the gross one.
fn tax_of_rate(rate: i64, row: usize, amounts: &[LabelledAmount]) -> Option<&LabelledAmount> {
    let own: Vec<&LabelledAmount> =
        amounts.iter().filter(|amount| amount.row == row && amount.thousandths() > 0).collect();
    own.iter().copied().find(|tax| {
        own.iter().any(|base| {
            let base = base.thousandths();
            let of_net = is_equal(base * rate / 10_000, tax.thousandths());
            let of_gross = is_equal(base * rate / (10_000 + rate), tax.thousandths());
            of_net || of_gross
        })
    })
}

fn facts(
    taxes: &[(Option<i64>, &LabelledAmount)],
    sum: i64,
    sums: &SumValues,
    amounts: &[LabelledAmount],
    evidence: &mut Evidence,
) {
    evidence.fact("net and tax are the total", sums.nets.iter().any(|net| sums.has_total(net + sum)));
    evidence.fact("total without it", sums.totals.iter().any(|total| *total > sum && sums.has(total - sum)));
    let is_rate_of_total = |rate: &i64| sums.totals.iter().any(|total| is_equal(total * rate / (10_000 + rate), sum));
    let is_rate_of_net = |rate: &i64| sums.nets.iter().any(|net| is_equal(net * rate / 10_000, sum));
    evidence.fact("rate of total", sums.rates.iter().any(|(rate, _)| is_rate_of_total(rate)));
    evidence.fact("rate of net", sums.rates.iter().any(|(rate, _)| is_rate_of_net(rate)));
    evidence.fact(
        "all of one rate",
        taxes.iter().all(|(rate, tax)| rate.is_some_and(|rate| tax_of_rate(rate, tax.row, amounts).is_some())),
    );
    evidence.fact("more than a third", sums.totals.iter().max().is_some_and(|total| sum * 3 > *total));
    evidence.fact("zero", sum == 0);
    evidence.fact("zero beside others", sum == 0 && !sums.taxes.is_empty());
    evidence.fact("total", sums.has_total(sum));
    evidence.fact("net", sums.nets.contains(&sum));
    let ways = |way: LabelWay| taxes.iter().any(|(_, tax)| tax.label.is_some_and(|label| label.way == way));
    evidence.fact("beside", ways(LabelWay::Beside));
    evidence.fact("first beside", ways(LabelWay::BesideFirst));
    evidence.fact("below", ways(LabelWay::Above));
    evidence.fact("next row", ways(LabelWay::NextRow));
    evidence.fact("not last", taxes.iter().any(|(_, tax)| !tax.is_last));
    evidence.fact("integer", taxes.iter().any(|(_, tax)| tax.is_integer));
    let parts: BTreeSet<i64> = taxes.iter().map(|(_, tax)| tax.thousandths()).collect();
    evidence.fact("same twice", parts.len() < taxes.len());
    evidence.fact("sum is on page", taxes.len() > 1 && sums.has(sum));
    let is_sum_of_others = |(_, tax): &(_, &LabelledAmount)| is_equal(2 * tax.thousandths(), sum);
    evidence.fact("has its own sum", taxes.len() > 2 && taxes.iter().any(is_sum_of_others));
    evidence.fact("net and half of it are the total", sums.nets.iter().any(|net| sums.has_total(net + sum / 2)));
    evidence.fact(
        "sum of others",
        taxes.len() == 1 && {
            let others: i64 = sums.taxes.iter().filter(|tax| **tax != sum).sum();
            others > 0 && is_equal(others, sum)
        },
    );
    evidence.fact(
        "part of others",
        taxes.len() == 1
            && sums.taxes.iter().any(|other| {
                *other > sum && sums.has_total(other + sums.nets.iter().max().copied().unwrap_or_default())
            }),
    );
    evidence.fact("only tax", sums.taxes == [sum]);
}
