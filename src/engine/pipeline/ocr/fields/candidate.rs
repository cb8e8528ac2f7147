//! A value that may be that of a field.

use std::ops::Range;

use super::evidence::Evidence;
use super::value::ParsedFieldValue;

/// A value with its place, and what speaks for it.
#[derive(Debug, Clone)]
pub struct FieldCandidate {
    pub(super) row: usize,
    pub(super) chars: Range<usize>,
    pub value: ParsedFieldValue,
    pub evidence: Evidence,
}
