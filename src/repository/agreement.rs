//! Whether two versions agree on a request. Pure.

use crate::tensor::{Tensor, to_f64};

/// The best class of each row of an output of scores; `None` for a row with one that is not a number. `rows` is the number
/// of batch elements; an output of fewer than two scores a row, or of other than numbers, has no classes.
pub fn best_classes(scores: &Tensor, rows: usize) -> Option<Vec<Option<usize>>> {
    let numbers = to_f64(scores)?;
    let classes = numbers.len().checked_div(rows)?;
    if classes < 2 || classes * rows != numbers.len() {
        return None;
    }
    Some(numbers.chunks_exact(classes).map(best).collect())
}

/// Among equals the first.
fn best(scores: &[f64]) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (index, &score) in scores.iter().enumerate() {
        if score.is_nan() {
            return None;
        }
        if best.is_none_or(|(_, highest)| score > highest) {
            best = Some((index, score));
        }
    }
    best.map(|(index, _)| index)
}

/// Whether two outputs are the same to within `tolerance`, relative to the larger of 1 and the number. What is not a number
/// in one must not be in the other; texts must be equal.
pub fn within(one: &Tensor, other: &Tensor, tolerance: f64) -> bool {
    if one.shape() != other.shape() {
        return false;
    }
    match (to_f64(one), to_f64(other)) {
        (Some(one), Some(other)) => one.iter().zip(&other).all(|(&a, &b)| close(a, b, tolerance)),
        (None, None) => one.data() == other.data(),
        _ => false,
    }
}

fn close(a: f64, b: f64, tolerance: f64) -> bool {
    if a.is_nan() || b.is_nan() {
        return a.is_nan() && b.is_nan();
    }
    // Equal infinities have no difference that is a number.
    a == b || (a - b).abs() <= tolerance * a.abs().max(1.0)
}
