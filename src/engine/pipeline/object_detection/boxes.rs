//! The form `boxes`: finished boxes, where the model suppresses doubles itself or makes none, as DETR
//! (arXiv:2005.12872) and exports with the suppression inside.

use serde::{Deserialize, Serialize};

use super::super::classification::softmax;
use super::super::error::PostprocessError;
use super::candidates::{BoxActivation, BoxEdges, CandidateCollector, RowActivation};
use super::form::{BoxFormat, BoxFormatOutput};
use super::values::OutputValues;

/// The table `[pipeline.object_detection.boxes]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectBoxFormat {
    /// The output with rows of six numbers: the four of a box, score and class. It takes the place of the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    detections: Option<String>,
    /// The output with rows of the four numbers of a box.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boxes: Option<String>,
    /// The output with a score for each box, or with one for each class of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scores: Option<String>,
    /// The output with the class of each box, where there is one score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    classes: Option<String>,
    /// The output with the number of boxes that count; all without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    count: Option<String>,
    /// The order of the four numbers.
    #[serde(default)]
    order: BoxOrder,
    /// Boxes are shares of the input, and not pixels of it.
    #[serde(default)]
    normalized: bool,
    #[serde(default = "none")]
    activation: RowActivation,
    /// The class that stands for no object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    background: Option<BackgroundClass>,
}

/// The order of the four numbers of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum BoxOrder {
    /// Left, upper, right and lower edge.
    #[default]
    Xyxy,
    /// Upper, left, lower and right edge, as of TensorFlow.
    Yxyx,
    /// Left and upper edge, width, height, as of COCO.
    Xywh,
    /// Centre, width, height, as of DETR.
    Cxcywh,
}

fn none() -> RowActivation {
    RowActivation::None
}

/// The place of a class among the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum BackgroundClass {
    First,
    Last,
}

impl BoxOrder {
    fn edges(self, [a, b, c, d]: [f32; 4]) -> BoxEdges {
        match self {
            Self::Xyxy => BoxEdges { left: a, top: b, right: c, bottom: d },
            Self::Yxyx => BoxEdges { left: b, top: a, right: d, bottom: c },
            Self::Xywh => BoxEdges { left: a, top: b, right: a + c, bottom: b + d },
            Self::Cxcywh => BoxEdges::around([a, b], [c, d]),
        }
    }
}

impl BoxFormat for DirectBoxFormat {
    fn outputs(&self) -> Vec<BoxFormatOutput<'_>> {
        if self.detections.is_some() {
            return vec![BoxFormatOutput { key: "detections", name: self.detections.as_deref() }];
        }
        // The first one carries the labels.
        let outputs = match &self.classes {
            Some(_) => [("classes", &self.classes), ("scores", &self.scores), ("boxes", &self.boxes)],
            None => [("scores", &self.scores), ("boxes", &self.boxes), ("classes", &None)],
        };
        let named = outputs.into_iter().chain([("count", &self.count)]);
        named.filter_map(|(key, name)| Some(BoxFormatOutput { key, name: Some(name.as_ref()?) })).collect()
    }

    fn mistakes(&self) -> Vec<(&'static str, String)> {
        let mut mistakes = Vec::new();
        let others = [("boxes", &self.boxes), ("scores", &self.scores)];
        for (key, name) in others {
            match (&self.detections, name) {
                (Some(_), Some(_)) => mistakes.push((key, "is set as well as `detections`, which has it".to_owned())),
                (None, None) => mistakes.push((key, "is missing: name the output, or set `detections`".to_owned())),
                _ => {}
            }
        }
        if self.detections.is_some() && self.classes.is_some() {
            mistakes.push(("classes", "is set as well as `detections`, which has it".to_owned()));
        }
        let has_one_score = self.detections.is_some() || self.classes.is_some();
        if has_one_score && self.activation == RowActivation::Softmax {
            mistakes.push(("activation", "is softmax, which needs the scores of all classes".to_owned()));
        }
        if has_one_score && self.background.is_some() {
            mistakes.push(("background", "is for the scores of all classes".to_owned()));
        }
        mistakes
    }

    fn activation(&self) -> BoxActivation {
        self.activation.of_each()
    }

    fn collect(
        &self,
        outputs: &[OutputValues<'_>],
        [height, width]: [f32; 2],
        found: &mut CandidateCollector<'_>,
    ) -> Result<Option<usize>, PostprocessError> {
        let add = |found: &mut CandidateCollector<'_>, raw: [f32; 4], score: f32, class: usize| {
            let edges = self.order.edges(raw);
            found.add(if self.normalized { edges } else { edges.divided_by(width, height) }, score, class)
        };
        match (outputs, &self.classes) {
            ([detections, rest @ ..], _) if self.detections.is_some() => {
                let [rows, numbers] = detections.rows()?;
                if numbers != 6 {
                    return Err(detections.unfit("expected rows of 6: four of a box, score, class"));
                }
                for row in 0..counted(rest.first(), rows)? {
                    let raw = detections.at(row * 6 + 4);
                    if found.may_pass(raw) {
                        let class = class(detections.at(row * 6 + 5), detections)?;
                        if let Some(score) = found.score(raw, class)? {
                            add(found, detections.four(row * 6), score, class)?;
                        }
                    }
                }
                Ok(None)
            }
            ([classes, scores, boxes, rest @ ..], Some(_)) => {
                let rows = box_rows(boxes)?;
                if classes.len() != rows || scores.len() != rows {
                    return Err(boxes.unfit("expected as many boxes as scores and classes"));
                }
                for row in 0..counted(rest.first(), rows)? {
                    let raw = scores.at(row);
                    if found.may_pass(raw) {
                        let class = class(classes.at(row), classes)?;
                        if let Some(score) = found.score(raw, class)? {
                            add(found, boxes.four(row * 4), score, class)?;
                        }
                    }
                }
                Ok(None)
            }
            ([scores, boxes, rest @ ..], None) => {
                let rows = box_rows(boxes)?;
                let count = scores.len().checked_div(rows).unwrap_or(0);
                if count * rows != scores.len() {
                    return Err(scores.unfit(&format!("expected the scores of {rows} boxes")));
                }
                let objects = match self.background {
                    Some(BackgroundClass::First) => 1..count,
                    Some(BackgroundClass::Last) => 0..count.saturating_sub(1),
                    None => 0..count,
                };
                let mut shares = vec![0.0; count];
                let rows_wanted = counted(rest.first(), rows)?;
                for (row, raw) in scores.numbers().chunks_exact(count.max(1)).take(rows_wanted).enumerate() {
                    shares.copy_from_slice(raw);
                    if self.activation == RowActivation::Softmax {
                        softmax(&mut shares);
                    }
                    // A box has one class, its best.
                    let best = shares.get(objects.clone()).and_then(best).map(|index| index + objects.start);
                    let Some((class, raw)) = best.and_then(|class| Some((class, *shares.get(class)?))) else {
                        continue;
                    };
                    if found.may_pass(raw)
                        && let Some(score) = found.score(raw, class)?
                    {
                        add(found, boxes.four(row * 4), score, class)?;
                    }
                }
                Ok((rows > 0).then_some(count))
            }
            _ => Err(PostprocessError::Outputs("an output is missing".to_owned())),
        }
    }
}

/// The index of the largest number; of a NaN, where there is one.
fn best(numbers: &[f32]) -> Option<usize> {
    if let Some(index) = numbers.iter().position(|number| number.is_nan()) {
        return Some(index);
    }
    let ranked = numbers.iter().enumerate().max_by(|one, other| one.1.total_cmp(other.1).then(other.0.cmp(&one.0)));
    ranked.map(|(index, _)| index)
}

fn box_rows(boxes: &OutputValues<'_>) -> Result<usize, PostprocessError> {
    match boxes.rows()? {
        [rows, 4] => Ok(rows),
        _ => Err(boxes.unfit("expected rows of 4")),
    }
}

/// The number of rows that count.
fn counted(count: Option<&OutputValues<'_>>, rows: usize) -> Result<usize, PostprocessError> {
    let Some(values) = count else { return Ok(rows) };
    let [count] = values.numbers() else { return Err(values.unfit("expected one number")) };
    if !count.is_finite() {
        return Err(PostprocessError::Values("the number of boxes is not a finite number".to_owned()));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    let count = *count as usize;
    Ok(count.min(rows))
}

fn class(number: f32, of: &OutputValues<'_>) -> Result<usize, PostprocessError> {
    // Beyond this, neighbouring whole numbers are the same f32.
    if (0.0..16_777_216.0).contains(&number) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
        return Ok(number as usize);
    }
    Err(PostprocessError::Values(of.unfit(&format!("{number} is no class")).to_string()))
}
