//! Comparison of two versions' answers to one request. Pure.

use ledge_base::tensor::{Tensor, to_f64};
use ledge_engine::pipeline::detection::{self, Detection};

use super::loaded_model::LoadedModel;

/// One output of an answer.
#[derive(Debug, Clone, Copy)]
pub struct ComparedOutput<'a> {
    /// Its numbers or texts.
    pub tensor: &'a Tensor,
    /// Batch elements.
    pub rows: usize,
    /// True when its numbers are scores of classes.
    pub is_scores: bool,
    /// The names of the classes, as far as they have names.
    pub labels: &'a [String],
}

impl ComparedOutput<'_> {
    /// Returns the best class of each row, if it has classes.
    pub fn best(&self) -> Option<Vec<Option<usize>>> {
        if self.is_scores { best_classes(self.tensor, self.rows) } else { None }
    }

    fn label(&self, class: usize) -> Option<&str> {
        self.labels.get(class).map(String::as_str).filter(|label| !label.is_empty())
    }
}

/// An answer of a version: its outputs by their names.
pub type VersionAnswer<'a> = (&'a LoadedModel, &'a [(String, Tensor)]);

/// Returns true when two versions gave answers to one request that agree: the same objects, else as [`agree`] says.
/// With `in_order` the outputs have their places in common, and not their names: those of a pipeline. `reference` names
/// an output of scores.
pub fn answers_agree(answers: [VersionAnswer<'_>; 2], reference: Option<&str>, in_order: bool, tolerance: f64) -> bool {
    let [one, other] = answers;
    if let Some((one, other)) = detections(one).zip(detections(other)) {
        return detection::agree(&one, &other);
    }
    pairs(answers, reference, in_order).is_some_and(|pairs| agree(&pairs, tolerance))
}

/// Returns the tolerance with which two answers agree, for those that are compared by their numbers.
pub fn difference(answers: [VersionAnswer<'_>; 2], reference: Option<&str>, in_order: bool) -> Option<f64> {
    let [one, other] = answers;
    if detections(one).zip(detections(other)).is_some() {
        return None;
    }
    let pairs = pairs(answers, reference, in_order)?;
    if pairs.iter().any(|(one, other)| one.best().zip(other.best()).is_some()) {
        return None;
    }
    let of_pair = |(one, other): &(ComparedOutput<'_>, ComparedOutput<'_>)| apart(one.tensor, other.tensor);
    pairs.iter().map(of_pair).collect::<Option<Vec<_>>>().map(|all| all.into_iter().fold(0.0, f64::max))
}

/// The outputs of both answers in pairs; `None` when one has no counterpart.
fn pairs<'a>(
    [(one, outputs), (other, others)]: [VersionAnswer<'a>; 2],
    reference: Option<&str>,
    in_order: bool,
) -> Option<Vec<(ComparedOutput<'a>, ComparedOutput<'a>)>> {
    let pair = |(place, (name, tensor)): (usize, &'a (String, Tensor))| {
        // A result of a pipeline may have another name in another version.
        let same = |(at, (other, _)): &(usize, &(String, Tensor))| if in_order { *at == place } else { other == name };
        let (_, (other_name, found)) = others.iter().enumerate().find(same)?;
        Some((output(one, reference, name, tensor), output(other, reference, other_name, found)))
    };
    outputs.iter().enumerate().map(pair).collect()
}

/// The objects in the results of a photograph, for a model that detects some.
fn detections((model, results): VersionAnswer<'_>) -> Option<Vec<Detection>> {
    let pipeline = model.pipeline.as_ref()?;
    let named = |name: &&str| results.iter().find(|(result, _)| result == name).map(|(_, tensor)| tensor);
    let results: Option<Vec<_>> = pipeline.results()?.iter().map(named).collect();
    pipeline.detections(&results?)
}

/// An output in the form in which it is compared.
pub fn output<'a>(
    model: &'a LoadedModel,
    reference: Option<&str>,
    name: &str,
    tensor: &'a Tensor,
) -> ComparedOutput<'a> {
    let rows = model.batch_limit.and_then(|_| tensor.shape().first().copied()).unwrap_or(1);
    let labels = model.labels.get(name).map(AsRef::as_ref);
    let of_pipeline = || {
        let scores = model.pipeline.as_ref().and_then(|pipeline| pipeline.scores());
        scores.and_then(|output| model.signature.outputs.get(output)).is_some_and(|port| port.name == name)
    };
    let is_scores = labels.is_some() || reference == Some(name) || of_pipeline();
    ComparedOutput { tensor, rows, is_scores, labels: labels.unwrap_or_default() }
}

/// Returns true when two answers agree: where there are scores, the same class comes first in each row, by its name
/// when both versions have names; otherwise all outputs are the same to within `tolerance`.
pub fn agree(answers: &[(ComparedOutput<'_>, ComparedOutput<'_>)], tolerance: f64) -> bool {
    let mut scored =
        answers.iter().filter_map(|(one, other)| Some((one, one.best()?, other, other.best()?))).peekable();
    if scored.peek().is_none() {
        return answers.iter().all(|(one, other)| within(one.tensor, other.tensor, tolerance));
    }
    scored.all(|(one, best, other, others)| {
        let same = |(a, b): (&Option<usize>, &Option<usize>)| match (a, b) {
            (&Some(a), &Some(b)) => match (one.label(a), other.label(b)) {
                (Some(a), Some(b)) => a == b,
                _ => a == b,
            },
            _ => a == b,
        };
        best.len() == others.len() && best.iter().zip(&others).all(same)
    })
}

/// The best class of each row of an output of scores; `None` for a row with a NaN. `rows` is the number of batch
/// elements; an output of fewer than two scores a row, or of other than numbers, has no classes.
fn best_classes(scores: &Tensor, rows: usize) -> Option<Vec<Option<usize>>> {
    let numbers = to_f64(scores)?;
    let classes = numbers.len().checked_div(rows)?;
    if classes < 2 || classes * rows != numbers.len() {
        return None;
    }
    Some(numbers.chunks_exact(classes).map(best).collect())
}

/// Index of the best score; among equal ones the first.
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

/// True when two outputs are the same to within `tolerance`, relative to the larger of 1 and the number. NaN matches
/// only NaN; texts must be equal.
fn within(one: &Tensor, other: &Tensor, tolerance: f64) -> bool {
    if one.shape() != other.shape() {
        return false;
    }
    match (to_f64(one), to_f64(other)) {
        (Some(one), Some(other)) => one.iter().zip(&other).all(|(&a, &b)| close(a, b, tolerance)),
        (None, None) => one.data() == other.data(),
        _ => false,
    }
}

/// The least tolerance within which two outputs are the same; infinite where none is enough, `None` for texts.
fn apart(one: &Tensor, other: &Tensor) -> Option<f64> {
    let (numbers, others) = (to_f64(one)?, to_f64(other)?);
    if one.shape() != other.shape() {
        return Some(f64::INFINITY);
    }
    let of = |(&a, &b): (&f64, &f64)| {
        if close(a, b, 0.0) {
            0.0
        } else {
            Some((a - b).abs() / a.abs().max(1.0)).filter(|by| by.is_finite()).unwrap_or(f64::INFINITY)
        }
    };
    Some(numbers.iter().zip(&others).map(of).fold(0.0, f64::max))
}

fn close(a: f64, b: f64, tolerance: f64) -> bool {
    if a.is_nan() || b.is_nan() {
        return a.is_nan() && b.is_nan();
    }
    if a.is_infinite() || b.is_infinite() {
        return a.total_cmp(&b).is_eq();
    }
    (a - b).abs() <= tolerance * a.abs().max(1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use ledge_base::tensor::DataType;

    fn scores(rows: usize, values: &[f32]) -> Tensor {
        Tensor::from_vec(vec![rows, values.len() / rows], values.to_vec()).unwrap()
    }

    fn output<'a>(tensor: &'a Tensor, is_scores: bool, labels: &'a [String]) -> ComparedOutput<'a> {
        ComparedOutput { tensor, rows: tensor.shape()[0], is_scores, labels }
    }

    fn agree_on(one: &Tensor, other: &Tensor, is_scores: bool) -> bool {
        agree(&[(output(one, is_scores, &[]), output(other, is_scores, &[]))], 0.01)
    }

    #[test]
    fn scores_agree_when_the_same_class_comes_first_in_every_row() {
        let one = scores(2, &[0.6, 0.4, 0.1, 0.9]);
        assert!(agree_on(&one, &scores(2, &[0.9, 0.1, 0.4, 0.6]), true));
        assert!(!agree_on(&one, &scores(2, &[0.9, 0.1, 0.6, 0.4]), true));
        assert!(!agree_on(&one, &scores(1, &[0.9, 0.1]), true), "rows are missing");
        assert!(!agree_on(&one, &scores(2, &[f32::NAN, 0.1, 0.4, 0.6]), true), "no class comes first");
    }

    #[test]
    fn numbers_agree_within_a_share_of_what_they_are() {
        let one = scores(1, &[1000.0, 0.0]);
        assert!(agree_on(&one, &scores(1, &[1009.0, 0.009]), false));
        assert!(!agree_on(&one, &scores(1, &[1011.0, 0.0]), false));
        assert!(!agree_on(&one, &scores(1, &[1000.0, 0.011]), false));
        assert!(!agree_on(&one, &scores(1, &[1000.0, f32::NAN]), false));
        assert!(!agree_on(&one, &scores(2, &[1000.0, 0.0]), false), "another shape");
        let infinite = scores(1, &[f32::INFINITY, f32::NAN]);
        assert!(agree_on(&infinite, &infinite, false));
    }

    #[test]
    fn a_single_score_is_a_number() {
        assert!(!agree_on(&scores(2, &[0.1, 0.9]), &scores(2, &[0.9, 0.1]), true));
    }

    #[test]
    fn classes_are_known_by_their_names_where_they_have_names() {
        let labels = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let (two, three) = (labels(&["cat", "dog"]), labels(&["ant", "cat", "dog"]));
        let (one, other) = (scores(1, &[0.2, 0.8]), scores(1, &[0.1, 0.1, 0.8]));
        assert!(agree(&[(output(&one, true, &two), output(&other, true, &three))], 0.0));
        assert!(!agree(&[(output(&one, true, &two), output(&other, true, &[]))], 0.0));
    }

    #[test]
    fn where_there_are_scores_they_alone_decide() {
        let (one, other) = (scores(1, &[0.2, 0.8]), scores(1, &[0.4, 0.6]));
        let pairs = [
            (output(&one, true, &[]), output(&other, true, &[])),
            (output(&one, false, &[]), output(&other, false, &[])),
        ];
        assert!(agree(&pairs, 0.01));
        assert!(!agree(&pairs[1..], 0.01));
    }

    #[test]
    fn a_difference_is_the_tolerance_that_is_needed() {
        let one = scores(1, &[1000.0, 0.5]);
        let by = |values: &[f32]| apart(&one, &scores(1, values)).unwrap();
        assert!(by(&[1000.0, 0.5]) == 0.0 && (by(&[1020.0, 0.5]) - 0.02).abs() < 1e-9);
        assert!((by(&[1000.0, 0.25]) - 0.25).abs() < 1e-9);
        assert!(by(&[f32::NAN, 0.5]).is_infinite() && by(&[1.0]).is_infinite());
        let other = scores(1, &[1020.0, 0.5]);
        assert!(within(&one, &other, by(&[1020.0, 0.5])) && !within(&one, &other, 0.019));
    }

    proptest! {
        #[test]
        fn an_answer_agrees_with_itself_whatever_it_is(values in prop::collection::vec(any::<f32>(), 1..20), is_scores: bool) {
            let tensor = scores(1, &values);
            prop_assert!(agree_on(&tensor, &tensor, is_scores));
        }

        #[test]
        fn texts_agree_when_they_are_equal(one in ".{0,8}", other in ".{0,8}") {
            let text = |text: &str| {
                let mut data = Vec::new();
                ledge_base::tensor::push_string(&mut data, text.as_bytes());
                Tensor::new(DataType::Bytes, vec![1], data.into()).unwrap()
            };
            prop_assert_eq!(agree_on(&text(&one), &text(&other), false), one == other);
        }
    }
}
