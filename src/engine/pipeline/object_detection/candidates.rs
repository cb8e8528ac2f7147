//! Candidates: the boxes that a detector's outputs give, before one object is left one box.

use ledge_base::tensor::{Tensor, TensorError};

use super::super::detection;
use super::super::error::PostprocessError;

/// The most candidates of one picture that are compared with each other, best first: two of a model that calls every
/// cell an object must not take seconds.
const CANDIDATES_MAX: usize = 4096;

/// The most candidates that are left of one picture, those that no answer reports included.
const KEPT_MAX: usize = 1000;

/// The share of its least score from which a candidate is kept to be blurred. A person is often found with less than
/// the score that an answer needs.
const KEPT_SHARE: f32 = 0.5;

/// A rectangle by its edges.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoxEdges {
    pub left: f32,
    pub top: f32,
    pub right: f32,
    pub bottom: f32,
}

impl BoxEdges {
    /// The rectangle around a centre.
    pub fn around([x, y]: [f32; 2], [width, height]: [f32; 2]) -> Self {
        let (half_width, half_height) = (width / 2.0, height / 2.0);
        Self { left: x - half_width, top: y - half_height, right: x + half_width, bottom: y + half_height }
    }

    /// The rectangle with every x divided by `width` and every y by `height`.
    pub fn divided_by(self, width: f32, height: f32) -> Self {
        let Self { left, top, right, bottom } = self;
        Self { left: left / width, top: top / height, right: right / width, bottom: bottom / height }
    }

    fn is_finite(self) -> bool {
        [self.left, self.top, self.right, self.bottom].into_iter().all(f32::is_finite)
    }

    /// The part inside the unit square.
    fn clamped(self) -> Self {
        let Self { left, top, right, bottom } = self;
        let inside = |edge: f32| edge.clamp(0.0, 1.0);
        Self { left: inside(left), top: inside(top), right: inside(right), bottom: inside(bottom) }
    }

    fn area(self) -> f32 {
        (self.right - self.left).max(0.0) * (self.bottom - self.top).max(0.0)
    }

    /// See [`detection::overlap`].
    fn overlap(self, other: Self) -> f64 {
        let edges = |Self { left, top, right, bottom }: Self| [left, top, right, bottom].map(f64::from);
        detection::overlap(edges(self), edges(other))
    }
}

/// A box that may hold an object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CandidateBox {
    /// As fractions of the model's input: 0 is its left or upper edge, 1 its right or lower one.
    pub edges: BoxEdges,
    pub score: f32,
    pub class: usize,
}

/// The function that turns a model's number into a score of 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BoxActivation {
    /// The number is the score.
    #[default]
    None,
    Sigmoid,
}

impl BoxActivation {
    pub fn apply(self, raw: f32) -> f32 {
        match self {
            Self::None => raw,
            Self::Sigmoid => 1.0 / (1.0 + (-raw).exp()),
        }
    }

    /// A number below which no score reaches `least`. A little too low, so that rounding loses none.
    fn lower_bound(self, least: f32) -> f32 {
        match self {
            Self::None => least,
            Self::Sigmoid if least >= 1.0 => 15.0,
            Self::Sigmoid => (least / (1.0 - least)).ln() - 0.001,
        }
    }
}

/// The function that turns the numbers of all classes of a box into scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowActivation {
    None,
    Sigmoid,
    /// Over all classes, the background included.
    Softmax,
}

impl RowActivation {
    /// The function for each number that is left once [`Self::Softmax`] is applied to the row.
    pub fn of_each(self) -> BoxActivation {
        match self {
            Self::Sigmoid => BoxActivation::Sigmoid,
            Self::None | Self::Softmax => BoxActivation::None,
        }
    }
}

/// The least scores of a class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassThresholds {
    /// Of an object that an answer reports; infinity for a class that is not wanted there.
    pub reported: f32,
    /// Of a candidate that is kept.
    kept: f32,
}

impl ClassThresholds {
    pub fn new(least: f32, is_wanted: bool) -> Self {
        Self { reported: if is_wanted { least } else { f32::INFINITY }, kept: least * KEPT_SHARE }
    }
}

/// The least scores of each class.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreThresholds {
    pub by_class: Vec<ClassThresholds>,
    /// Of the classes beyond these.
    pub others: ClassThresholds,
}

impl ScoreThresholds {
    pub fn of(&self, class: usize) -> ClassThresholds {
        self.by_class.get(class).copied().unwrap_or(self.others)
    }

    /// True for a candidate that an answer reports, if it has room.
    pub fn reports(&self, candidate: &CandidateBox) -> bool {
        candidate.score >= self.of(candidate.class).reported
    }

    fn lowest(&self) -> f32 {
        self.by_class.iter().map(|scores| scores.kept).fold(self.others.kept, f32::min)
    }
}

/// Collects the candidates of one run.
#[derive(Debug)]
pub struct CandidateCollector<'t> {
    thresholds: &'t ScoreThresholds,
    activation: BoxActivation,
    /// Numbers below this one are no candidates, whatever their class.
    lower_bound: f32,
    found: Vec<CandidateBox>,
}

impl<'t> CandidateCollector<'t> {
    pub fn new(thresholds: &'t ScoreThresholds, activation: BoxActivation) -> Self {
        let lower_bound = activation.lower_bound(thresholds.lowest());
        Self { thresholds, activation, lower_bound, found: Vec::new() }
    }

    /// Returns true if a number of the model may be the score of a candidate. NaN may: [`Self::score`] refuses it.
    pub fn may_pass(&self, raw: f32) -> bool {
        raw >= self.lower_bound || raw.is_nan()
    }

    /// The score that `raw` is for `class`, if it is enough for a candidate.
    pub fn score(&self, raw: f32, class: usize) -> Result<Option<f32>, PostprocessError> {
        self.reaches(self.activation.apply(raw), class)
    }

    /// `score`, if it is enough for a candidate of `class`.
    pub fn reaches(&self, score: f32, class: usize) -> Result<Option<f32>, PostprocessError> {
        if !score.is_finite() {
            return Err(PostprocessError::Values(format!("a score of class {class} is not a finite number")));
        }
        Ok((score >= self.thresholds.of(class).kept).then_some(score))
    }

    /// Adds a candidate. `edges` are fractions of the model's input.
    pub fn add(&mut self, edges: BoxEdges, score: f32, class: usize) -> Result<(), PostprocessError> {
        let candidate = CandidateBox { edges: edges.clamped(), score, class };
        if edges.is_finite() {
            self.found.push(candidate);
        } else if self.thresholds.reports(&candidate) {
            return Err(PostprocessError::Values(format!("a box of class {class} is not of finite numbers")));
        }
        Ok(())
    }

    /// The candidates that are left, first those that an answer reports, each time the best first: of two with the same
    /// class that overlap by more than `iou_threshold`, the better one.
    pub fn finish(self, iou_threshold: f32) -> Vec<CandidateBox> {
        let Self { thresholds, mut found, .. } = self;
        found.retain(|candidate| candidate.edges.area() > 0.0);
        // A stable sort: equal ones stay in the model's order.
        found.sort_by(|one, other| {
            let reported = thresholds.reports(other).cmp(&thresholds.reports(one));
            reported.then(other.score.total_cmp(&one.score))
        });
        found.truncate(CANDIDATES_MAX);
        let mut kept: Vec<CandidateBox> = Vec::new();
        for candidate in found {
            if kept.len() == KEPT_MAX {
                break;
            }
            let same = kept.iter().filter(|other| other.class == candidate.class);
            if same.into_iter().all(|other| other.edges.overlap(candidate.edges) <= f64::from(iou_threshold)) {
                kept.push(candidate);
            }
        }
        kept
    }
}

/// Values of a candidate in a tensor of candidates: four edges, the score, the class.
const COLUMNS: usize = 6;

/// The candidates as a tensor of shape `[count, 6]`, FP32: left, top, right, bottom, score and class of each.
pub fn to_tensor(candidates: &[CandidateBox]) -> Result<Tensor, TensorError> {
    #[expect(clippy::cast_precision_loss, reason = "classes are far below 2^24")]
    let row = |&CandidateBox { edges, score, class }: &CandidateBox| {
        [edges.left, edges.top, edges.right, edges.bottom, score, class as f32]
    };
    Tensor::from_vec(vec![candidates.len(), COLUMNS], candidates.iter().flat_map(row).collect())
}

/// The candidates in a tensor of candidates.
pub fn from_tensor(tensor: &Tensor) -> Vec<CandidateBox> {
    let elements = tensor.elements::<f32>().unwrap_or_default();
    let rows = elements.as_chunks::<COLUMNS>().0.iter();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "written by `to_tensor`")]
    let candidate = |&[left, top, right, bottom, score, class]: &[f32; COLUMNS]| CandidateBox {
        edges: BoxEdges { left, top, right, bottom },
        score,
        class: class as usize,
    };
    rows.map(candidate).collect()
}
