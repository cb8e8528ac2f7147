//! What speaks for a candidate, and the choice among candidates with a probability that one is right.
//!
//! The choice is a conditional logit model (`McFadden` 1974): each candidate has the sum of the weights of its facts, "none
//! of them" has 0, and the softmax of these sums is the probability of each. `benches/documents/fit.py` fits the weights
//! on receipts and invoices with known fields, and writes `weights.tsv`.

use std::collections::HashMap;
use std::sync::LazyLock;

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

/// The likeliest candidate, and the probability that it is right.
pub(super) fn likeliest<'e>(field: &str, candidates: impl Iterator<Item = &'e Evidence>) -> Option<(usize, f32)> {
    let weights = WEIGHTS.get(field)?;
    let score = |evidence: &Evidence| -> f32 {
        evidence.0.iter().map(|(fact, strength)| weights.get(fact).unwrap_or(&0.0) * strength).sum()
    };
    let scores: Vec<f32> = candidates.map(score).collect();
    let (best, most) = scores.iter().copied().enumerate().max_by(|one, other| one.1.total_cmp(&other.1))?;
    let top = most.max(0.0);
    let sum = (-top).exp() + scores.iter().map(|score| (score - top).exp()).sum::<f32>();
    Some((best, (most - top).exp() / sum))
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

    #[test]
    fn the_probabilities_of_candidates_that_nothing_tells_apart_are_equal_and_leave_room_for_none() {
        let (index, probability) = likeliest("total", [Evidence::default(), Evidence::default()].iter()).unwrap();
        assert!(index < 2 && (probability - 1.0 / 3.0).abs() < 1e-6);
        assert_eq!(likeliest("total", std::iter::empty()), None);
    }
}
