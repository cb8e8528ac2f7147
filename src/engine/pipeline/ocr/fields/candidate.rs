//! A value that may be that of a field.

use std::ops::Range;

use super::evidence::Evidence;
use super::labelled_amount::LabelledAmount;
use super::value::ParsedFieldValue;

/// A value with its place, and the evidence for it.
#[derive(Debug, Clone)]
pub struct FieldCandidate {
    pub(super) row: usize,
    pub(super) chars: Range<usize>,
    pub value: ParsedFieldValue,
    pub evidence: Evidence,
}

impl FieldCandidate {
    pub(super) fn of_amount(amount: &LabelledAmount, evidence: Evidence) -> Self {
        let value = ParsedFieldValue::Amount(amount.amount);
        Self { row: amount.row, chars: amount.chars.clone(), value, evidence }
    }
}
