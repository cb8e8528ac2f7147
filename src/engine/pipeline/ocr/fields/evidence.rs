//! Evidence for a candidate, and the choice among candidates with a probability that one is right.
//!
//! The choice is a conditional logit model (`McFadden` 1974): each candidate has the sum of the weights of its facts, "none
//! of them" has 0, and the softmax of these sums is the probability of each. `benches/documents/fit.py` fits the weights
//! on receipts and invoices with known fields, and writes `weights.tsv`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::LazyLock;

use super::candidate::FieldCandidate;
use super::row_text::RowText;
use super::value::ParsedFieldValue;
use crate::pipeline::ocr::geometry::coordinate;

/// More facts than these that support a value do not count.
const SUPPORT_MAX: usize = 3;

/// The facts of a candidate: each with its strength, 1 if it is simply true.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence(Vec<(&'static str, f32)>);

impl Evidence {
    /// Evidence that a value was found at all.
    pub(super) fn found() -> Self {
        Self(vec![("found", 1.0)])
    }

    pub(super) fn fact(&mut self, name: &'static str, is_so: bool) {
        self.measure(name, if is_so { 1.0 } else { 0.0 });
    }

    pub(super) fn measure(&mut self, name: &'static str, strength: f32) {
        if strength != 0.0 && strength.is_finite() {
            self.0.push((name, strength));
        }
    }

    /// The place of a row among all rows, from 0 at the top to 1.
    pub(super) fn row(&mut self, row: usize, rows: &[RowText<'_>]) {
        self.measure("height on page", coordinate(row) / coordinate(rows.len().max(1)));
    }

    /// The doubt of the line that was read most surely, among those of these places, and that of the least sure
    /// character of the place that was.
    pub(super) fn reading<'c>(
        &mut self,
        rows: &[RowText<'_>],
        places: impl Iterator<Item = (usize, &'c Range<usize>)>,
    ) {
        let sure = places.filter_map(|(row, chars)| rows.get(row)?.confidences(chars));
        let (line, char) =
            sure.fold((0.0, 0.0), |known, (line, char)| (f32::max(known.0, line), f32::max(known.1, char)));
        self.measure("misread", 1.0 - line);
        self.measure("misread character", 1.0 - char);
    }

    pub fn facts(&self) -> &[(&'static str, f32)] {
        &self.0
    }
}

type FactWeights = HashMap<&'static str, f32>;

static WEIGHTS: LazyLock<HashMap<&'static str, FactWeights>> = LazyLock::new(|| {
    let mut weights: HashMap<&'static str, FactWeights> = HashMap::new();
    for line in include_str!("weights.tsv").lines() {
        if let [field, fact, weight] = line.split('\t').collect::<Vec<_>>().as_slice()
            && let Ok(weight) = weight.parse()
        {
            weights.entry(field).or_default().insert(fact, weight);
        }
    }
    weights
});

/// Compares how many of these facts support each candidate: a value that sums contradict is doubtful, whatever stands
/// beside it.
pub(super) fn compare_support(candidates: &mut [FieldCandidate], facts: &[&str]) {
    let support = |candidate: &FieldCandidate| {
        candidate.evidence.0.iter().filter(|(fact, _)| facts.contains(fact)).count().min(SUPPORT_MAX)
    };
    let most = candidates.iter().map(support).max().unwrap_or(0);
    for candidate in candidates {
        let own = support(candidate);
        candidate.evidence.fact("best supported", most > 0 && own == most);
        candidate.evidence.measure("less supported", coordinate(most - own) / coordinate(SUPPORT_MAX));
        candidate.evidence.fact("unsupported, another is", own == 0 && most > 1);
    }
}

/// The likeliest value by its best candidate, and the probability that it is right: the sum over all candidates with
/// this value, or one that agrees with it.
pub(super) fn likeliest(field: &str, candidates: &[FieldCandidate]) -> Option<(usize, f32)> {
    let weights = WEIGHTS.get(field)?;
    let score = |candidate: &FieldCandidate| -> f32 {
        candidate.evidence.0.iter().map(|(fact, strength)| weights.get(fact).unwrap_or(&0.0) * strength).sum()
    };
    let scores: Vec<f32> = candidates.iter().map(score).collect();
    let top = scores.iter().copied().fold(0.0, f32::max);
    let shares: Vec<f32> = scores.iter().map(|score| (score - top).exp()).collect();
    let sum = (-top).exp() + shares.iter().sum::<f32>();
    let of_value = |value: &ParsedFieldValue| -> f32 {
        candidates.iter().zip(&shares).filter(|(other, _)| other.value.agrees(value)).map(|(_, share)| share).sum()
    };
    let totals: Vec<f32> = candidates.iter().map(|candidate| of_value(&candidate.value)).collect();
    let place =
        |index: &usize| (totals.get(*index).copied().unwrap_or(0.0), shares.get(*index).copied().unwrap_or(0.0));
    let best = (0..candidates.len()).max_by(|one, other| {
        let (one, other) = (place(one), place(other));
        one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1))
    })?;
    Some((best, place(&best).0 / sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_the_weights_is_a_number_of_a_known_form() {
        let names = [
            "total",
            "net",
            "tax",
            "currency",
            "supplier",
            "document_date",
            "due_date",
            "document_number",
            "iban",
            "vat_id",
        ];
        for line in include_str!("weights.tsv").lines() {
            let [field, fact, weight] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
            assert!(names.contains(&field) && !fact.is_empty() && weight.parse::<f32>().unwrap().is_finite(), "{line}");
        }
        assert!(names.iter().all(|name| WEIGHTS.contains_key(name)));
    }

    fn candidate(value: &str) -> FieldCandidate {
        let value = ParsedFieldValue::Text(value.to_owned());
        FieldCandidate { row: 0, chars: 0..1, value, evidence: Evidence::default() }
    }

    #[test]
    fn what_nothing_tells_apart_is_equally_likely_and_equal_values_count_together() {
        let (_, probability) = likeliest("total", &[candidate("a"), candidate("b")]).unwrap();
        assert!((probability - 1.0 / 3.0).abs() < 1e-6, "with room for none of them: {probability}");
        let (index, probability) = likeliest("total", &[candidate("a"), candidate("b"), candidate("b")]).unwrap();
        assert!(index > 0 && (probability - 0.5).abs() < 1e-6, "{index} {probability}");
        assert_eq!(likeliest("total", &[]), None);
    }
}
