//! Compares the answers of two models.

use anyhow::{Context, bail};
use ledge_base::tensor::{Tensor, to_f64};
use serde::Serialize;

/// The named outputs of an answer.
pub type Outputs = [(String, Tensor)];

/// The likeness of two answers to one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Likeness {
    /// True if the greatest element of each row of the first output has the same index.
    pub same_top: bool,
    /// The largest absolute difference of any two elements.
    pub difference: f64,
    /// The cosine of the angle between the answers, 1 when both are zero.
    pub cosine: f64,
}

/// The likeness of many answers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Agreement {
    pub compared: usize,
    /// Of these, the share whose best class is the same.
    pub same_top1: f64,
    /// The largest absolute difference of any output element.
    pub largest_difference: f64,
    /// The file with the largest difference.
    pub largest_difference_at: String,
    /// The mean cosine.
    pub mean_cosine: f64,
    /// The least cosine.
    pub least_cosine: f64,
}

/// Compares two answers to one request: outputs by name, or by position when the names differ.
pub fn likeness(one: &Outputs, other: &Outputs) -> anyhow::Result<Likeness> {
    if one.len() != other.len() {
        bail!("one model has {} outputs, the other {}", one.len(), other.len());
    }
    let (mut same_top, mut difference) = (true, 0.0_f64);
    let (mut product, mut squares, mut other_squares) = (0.0, 0.0, 0.0);
    for (index, (name, tensor)) in one.iter().enumerate() {
        let same_name = other.iter().find(|(other, _)| other == name);
        let (_, counterpart) = same_name.or_else(|| other.get(index)).context("an output is missing")?;
        if tensor.shape() != counterpart.shape() {
            bail!("output {name:?} has the shapes {:?} and {:?}", tensor.shape(), counterpart.shape());
        }
        let numbers = |tensor| to_f64(tensor).with_context(|| format!("output {name:?} contains no numbers"));
        let (mine, theirs) = (numbers(tensor)?, numbers(counterpart)?);
        if index == 0 {
            let row = tensor.shape().last().copied().unwrap_or(1).max(1);
            same_top = mine.chunks(row).map(top).eq(theirs.chunks(row).map(top));
        }
        for (&a, &b) in mine.iter().zip(&theirs) {
            let distance = (a - b).abs();
            // The same infinity or NaN on both sides is no difference; NaN on one side is an infinite one.
            let distance = if a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()) { 0.0 } else { distance };
            difference = if distance.is_nan() { f64::INFINITY } else { difference.max(distance) };
            product += a * b;
            squares += a * a;
            other_squares += b * b;
        }
    }
    let cosine = if squares == 0.0 && other_squares == 0.0 { 1.0 } else { product / (squares * other_squares).sqrt() };
    Ok(Likeness { same_top, difference, cosine: if cosine.is_nan() { 0.0 } else { cosine } })
}

/// The index of the greatest number, the first of equal ones.
fn top(numbers: &[f64]) -> Option<usize> {
    let best = numbers.iter().copied().max_by(f64::total_cmp)?;
    numbers.iter().position(|number| number.to_bits() == best.to_bits())
}

/// All likenesses together; `None` without any.
pub fn agreement(all: &[(String, Likeness)]) -> Option<Agreement> {
    let (file, worst) = all.iter().max_by(|(_, a), (_, b)| a.difference.total_cmp(&b.difference))?;
    #[expect(clippy::cast_precision_loss, reason = "files are few")]
    let share = |sum: f64| sum / all.len() as f64;
    Some(Agreement {
        compared: all.len(),
        same_top1: share(all.iter().map(|(_, one)| f64::from(u8::from(one.same_top))).sum()),
        largest_difference: worst.difference,
        largest_difference_at: file.clone(),
        mean_cosine: share(all.iter().map(|(_, one)| one.cosine).sum()),
        least_cosine: all.iter().map(|(_, one)| one.cosine).fold(f64::INFINITY, f64::min),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outputs(rows: &[(&str, &[f32])]) -> Vec<(String, Tensor)> {
        let one = |(name, row): &(&str, &[f32])| {
            ((*name).to_owned(), Tensor::from_vec(vec![row.len() / 2, 2], row.to_vec()).unwrap())
        };
        rows.iter().map(one).collect()
    }

    #[test]
    fn an_answer_is_like_itself() {
        let answer = outputs(&[("a", &[1.0, 2.0]), ("b", &[f32::INFINITY, f32::NAN])]);
        let likeness = likeness(&answer, &answer).unwrap();
        assert!(likeness.same_top && likeness.difference == 0.0, "{likeness:?}");
        let zero = outputs(&[("a", &[0.0, 0.0])]);
        assert!((super::likeness(&zero, &zero).unwrap().cosine - 1.0).abs() < 1e-12);
    }

    #[test]
    fn outputs_are_paired_by_name_and_rows_by_their_best() {
        let one = outputs(&[("a", &[1.0, 0.0, 0.0, 1.0]), ("b", &[3.0, 4.0])]);
        let other = outputs(&[("b", &[3.0, 4.5]), ("a", &[2.0, 0.0, 1.0, 0.0])]);
        let likeness = likeness(&one, &other).unwrap();
        assert!(!likeness.same_top, "the second row differs");
        assert!((likeness.difference - 1.0).abs() < 1e-12);
        let expected = (2.0 + 9.0 + 18.0) / (27.0_f64 * (5.0 + 29.25)).sqrt();
        assert!((likeness.cosine - expected).abs() < 1e-12, "{}", likeness.cosine);
    }

    #[test]
    fn answers_of_other_shapes_are_not_compared() {
        let (one, two) = (outputs(&[("a", &[1.0, 2.0])]), outputs(&[("a", &[1.0, 2.0, 3.0, 4.0])]));
        assert!(likeness(&one, &two).unwrap_err().to_string().contains("[1, 2] and [2, 2]"));
        assert!(likeness(&one, &[]).is_err());
    }

    #[test]
    fn a_number_on_one_side_alone_differs_without_bound() {
        let (one, two) = (outputs(&[("a", &[1.0, f32::NAN])]), outputs(&[("a", &[1.0, 2.0])]));
        assert!(likeness(&one, &two).unwrap().difference.is_infinite());
    }

    #[test]
    fn an_agreement_names_the_worst_file() {
        let one = |same_top, difference, cosine| Likeness { same_top, difference, cosine };
        let all = [("a".to_owned(), one(true, 0.1, 1.0)), ("b".to_owned(), one(false, 0.5, 0.5))];
        let expected = Agreement {
            compared: 2,
            same_top1: 0.5,
            largest_difference: 0.5,
            largest_difference_at: "b".into(),
            mean_cosine: 0.75,
            least_cosine: 0.5,
        };
        assert_eq!((agreement(&all), agreement(&[])), (Some(expected), None));
    }
}
