//! The kind `object_detection`: a photograph in, boxes with labels out.
//!
//! Files, in reading order:
//! * `object_detection.rs` - the section, the common part of the four forms, the answer
//! * `object_detection/values.rs` - outputs as numbers with a shape
//! * `object_detection/candidates.rs` - boxes above their thresholds, and the suppression of doubles
//! * `object_detection/form.rs` - what a form of boxes does
//! * `object_detection/center.rs`, `anchors.rs`, `grid.rs`, `boxes.rs` - the forms in which detectors give boxes

mod anchors;
mod boxes;
mod candidates;
mod center;
mod form;
mod grid;
mod values;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use ledge_base::memory_budget::MemoryReservation;
use ledge_base::tensor::{DataType, Tensor};
use ledge_base::toml_check::ValueProblem;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use self::candidates::{BoxEdges, CandidateBox, CandidateCollector, ClassThresholds, ScoreThresholds};
use self::values::OutputValues;
use super::content::{CallContent, PipelineInput};
use super::detection::{Detection, DetectionBox};
use super::error::{PostprocessError, PreprocessError};
use super::image::DecodeLimits;
use super::image_classification;
use super::kind;
use super::kind::{
    ExpectedDetection, GoldenExpectation, ModelFacts, Pipeline, PipelineKind, PipelineSection, PrintedRow,
};
use super::picture_reading::PictureReading;
use super::preparation::{ChannelOrder, ImagePreparation, PictureFit, PicturePlacement, TensorLayout};
use super::prepared_inputs::PreprocessedInputs;
use super::quantization::Quantization;
use form::{BoxFormat, BoxFormatOutput};

pub const KIND: PipelineKind = PipelineKind {
    name: "object_detection",
    input: PipelineInput::Photograph,
    models: &[],
    member: Detection::MEMBER,
    schema: |generator| generator.subschema_for::<Vec<Detection>>(),
    text: None,
    is_ranked: false,
    rows,
};

/// The longest side of a model's input, in pixels.
const SIDE_MAX: u32 = 4096;
/// The most boxes that an answer may hold.
const DETECTIONS_MAX: usize = 1000;
/// The parts of a pixel to which edges are rounded. A power of two is exact in binary, so a box that ends at the edge
/// of the picture does so in every programming language.
const PARTS_OF_PIXEL: f64 = 8.0;

/// The table `[pipeline.object_detection]` of a model's config. It has the table of one form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectDetection {
    /// The model's input for the picture; may be left out when it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<String>,
    /// Height and width of the model's input.
    size: [u32; 2],
    #[serde(default)]
    fit: DetectionFit,
    /// The value of every channel outside the picture in a letterbox; 114 by default.
    #[serde(default = "gray")]
    padding: u8,
    /// See [`ImagePreparation::mean`]; 0 by default.
    #[serde(default)]
    mean: [f32; 3],
    /// See [`ImagePreparation::std`]; 1 by default.
    #[serde(default = "image_classification::ones")]
    std: [f32; 3],
    /// `NCHW` by default.
    #[serde(default)]
    layout: TensorLayout,
    /// `RGB` by default.
    #[serde(default)]
    color: ChannelOrder,
    /// The least score of a box, 0 to 1; 0.4 by default.
    #[serde(default = "two_fifths")]
    min_score: f32,
    /// Least scores by label, in place of `min_score`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    min_scores: BTreeMap<String, f32>,
    /// The only labels of an answer; empty is all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    labels: Vec<String>,
    /// The most boxes of an answer, 1 to 1000; 100 by default.
    #[serde(default = "hundred")]
    max_detections: usize,
    /// Of two boxes of one label that overlap by more than this share (intersection over union), only the better one is
    /// in the answer; 0.5 by default. 1 leaves them all.
    #[serde(default = "half")]
    iou_threshold: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    center: Option<center::CenterBoxFormat>,
    #[serde(skip_serializing_if = "Option::is_none")]
    anchors: Option<anchors::AnchorBoxFormat>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grid: Option<grid::GridBoxFormat>,
    #[serde(skip_serializing_if = "Option::is_none")]
    boxes: Option<boxes::DirectBoxFormat>,
}

/// The way in which a picture fills the model's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DetectionFit {
    /// Resized to the input's size.
    #[default]
    Stretch,
    /// Resized as a whole and put into the middle, as by Ultralytics.
    Letterbox,
    /// The same in the upper left corner, as by YOLOX.
    LetterboxCorner,
}

fn gray() -> u8 {
    114
}

fn two_fifths() -> f32 {
    0.4
}

fn hundred() -> usize {
    100
}

fn half() -> f32 {
    0.5
}

impl ObjectDetection {
    /// The tables of all forms, each with its key.
    fn forms(&self) -> [(&'static str, Option<&dyn BoxFormat>); 4] {
        [
            ("center", self.center.as_ref().map(|form| form as _)),
            ("anchors", self.anchors.as_ref().map(|form| form as _)),
            ("grid", self.grid.as_ref().map(|form| form as _)),
            ("boxes", self.boxes.as_ref().map(|form| form as _)),
        ]
    }

    /// The key and the table of the form. [`Self::mistakes`] makes sure that there is one.
    fn form(&self) -> Option<(&'static str, &dyn BoxFormat)> {
        self.forms().into_iter().find_map(|(key, form)| Some((key, form?)))
    }

    fn preparation(&self) -> ImagePreparation {
        let &Self { size, padding: gray, mean, std, layout, color, .. } = self;
        let fit = match self.fit {
            DetectionFit::Stretch => PictureFit::Stretch,
            DetectionFit::Letterbox => PictureFit::Letterbox { gray, centred: true },
            DetectionFit::LetterboxCorner => PictureFit::Letterbox { gray, centred: false },
        };
        ImagePreparation { fit, size, mean, std, layout, color }
    }

    /// The least scores of each class, or the label that no class has.
    fn thresholds(&self, names: &[String]) -> Result<ScoreThresholds, String> {
        let with_score = self.min_scores.keys().map(|label| ("min_scores", label));
        let mut asked_for = with_score.chain(self.labels.iter().map(|label| ("labels", label)));
        if let Some((key, label)) = asked_for.find(|(_, label)| !names.contains(label)) {
            return Err(format!("pipeline.object_detection.{key} names {label:?}, which is no label of the model"));
        }
        let least = |name: &String| {
            let is_wanted = self.labels.is_empty() || self.labels.contains(name);
            ClassThresholds::new(self.min_scores.get(name).copied().unwrap_or(self.min_score), is_wanted)
        };
        let others = ClassThresholds::new(self.min_score, self.labels.is_empty());
        Ok(ScoreThresholds { by_class: names.iter().map(least).collect(), others })
    }
}

impl PipelineSection for ObjectDetection {
    fn kind(&self) -> &'static PipelineKind {
        &KIND
    }

    fn mistakes(&self) -> Vec<ValueProblem> {
        let mut mistakes = Vec::new();
        let mut mistake = |key: &str, message: String| mistakes.push(ValueProblem::new(key, message));
        let [height, width] = self.size;
        for (name, side) in [("height", height), ("width", width)] {
            if !(1..=SIDE_MAX).contains(&side) {
                mistake("size", format!("{name} is {side}, expected 1 to {SIDE_MAX}"));
            }
        }
        for (key, message) in self.preparation().mistakes() {
            mistake(key, message);
        }
        for (key, share) in [("min_score", self.min_score), ("iou_threshold", self.iou_threshold)] {
            if !(0.0..=1.0).contains(&share) {
                mistake(key, format!("is {share}, expected 0 to 1"));
            }
        }
        for (label, share) in &self.min_scores {
            if !(0.0..=1.0).contains(share) {
                mistake("min_scores", format!("of {label:?} is {share}, expected 0 to 1"));
            }
        }
        if !(1..=DETECTIONS_MAX).contains(&self.max_detections) {
            mistake("max_detections", format!("is {}, expected 1 to {DETECTIONS_MAX}", self.max_detections));
        }

        let mut found = self.forms().into_iter().filter_map(|(key, form)| Some((key, form?)));
        match (found.next(), found.next()) {
            (Some((key, form)), None) => {
                let within = |(name, message): (&str, String)| ValueProblem::new(name, message).within(key);
                let of_form = form.mistakes().into_iter().chain(form.check_size(self.size).err());
                mistakes.extend(of_form.map(within));
            }
            (Some((first, _)), Some((second, _))) => {
                mistake(second, format!("is set as well as `{first}`: a model gives boxes in one form"));
            }
            (None, _) => {
                let message = "no table says in which form the model gives boxes: set up [pipeline.object_detection.\
                               center], .anchors, .grid or .boxes";
                mistake("", message.to_owned());
            }
        }
        mistakes
    }

    fn bind(&self, model: ModelFacts<'_>) -> Result<Arc<dyn Pipeline>, String> {
        let (key, form) = self.form().ok_or("pipeline.object_detection has no form")?;
        let (_, input) = model.input(&KIND, self.input.as_deref())?;
        kind::check_picture_input(&KIND, model, input, &self.preparation())?;

        let (mut positions, mut names, mut quantization) = (Vec::new(), Vec::new(), Vec::new());
        for BoxFormatOutput { key: output, name } in form.outputs() {
            let key = format!("{key}.{output}");
            let (position, port) = kind::find(&KIND, &key, "output", &model.signature.outputs, name)?;
            positions.push(position);
            quantization.push(model.quantization.get(&port.name).copied());
            names.push(port.name.clone());
        }
        let labels: Arc<[String]> = names.first().and_then(|name| model.labels.get(name)).cloned().unwrap_or_default();
        let decoder = DetectionDecoder {
            config: self.clone(),
            names,
            quantization,
            thresholds: self.thresholds(&labels)?,
            labels,
        };
        let datatype = input.datatype;
        let input_quantization = model.quantization.get(&input.name).copied();
        Ok(Arc::new(Detector { decoder: Arc::new(decoder), datatype, input_quantization, positions }))
    }
}

/// The pipeline of one model.
#[derive(Debug)]
struct Detector {
    decoder: Arc<DetectionDecoder>,
    /// The datatype of the model's input.
    datatype: DataType,
    input_quantization: Option<Quantization>,
    /// The positions of the outputs in the signature.
    positions: Vec<usize>,
}

/// The half of a pipeline behind the run: outputs into detections.
#[derive(Debug)]
struct DetectionDecoder {
    config: ObjectDetection,
    /// The names of the outputs.
    names: Vec<String>,
    /// Their quantization.
    quantization: Vec<Option<Quantization>>,
    thresholds: ScoreThresholds,
    labels: Arc<[String]>,
}

impl DetectionDecoder {
    /// The detections in a photograph of `picture` (width, height) pixels, as a tensor of candidates with their edges
    /// in pixels of the photograph.
    fn decode(&self, outputs: &[Tensor], picture: (u32, u32)) -> Result<Vec<Tensor>, PostprocessError> {
        let (_, form) = self.config.form().ok_or_else(|| PostprocessError::Outputs("no form".to_owned()))?;
        let outputs = self.names.iter().zip(outputs).zip(&self.quantization);
        let values: Vec<_> =
            outputs.map(|((name, output), scale)| OutputValues::new(name, output, *scale)).collect::<Result<_, _>>()?;
        let mut found = CandidateCollector::new(&self.thresholds, form.activation());
        #[expect(clippy::cast_precision_loss, reason = "a side is at most 4096")]
        let size = self.config.size.map(|side| side as f32);
        let classes = form.collect(&values, size, &mut found)?;
        if let (Some(classes), false) = (classes, self.labels.is_empty()) {
            self.check_labels(classes)?;
        }

        let iou_threshold = self.config.iou_threshold;
        let placement = self.config.preparation().placement(picture);
        let [height, width] = self.config.size;
        let placement = placement.unwrap_or(PicturePlacement { left: 0, top: 0, width, height });
        let inside = found.finish(iou_threshold).into_iter();
        let inside = inside.filter_map(|candidate| in_picture(candidate, self.config.size, placement, picture));
        let failed = |error| PostprocessError::Values(format!("the detections do not fit into a tensor: {error}"));
        Ok(vec![candidates::to_tensor(&inside.collect::<Vec<_>>()).map_err(failed)?])
    }

    /// Checks that there is a label for each class.
    fn check_labels(&self, classes: usize) -> Result<(), PostprocessError> {
        if self.labels.get(classes..).is_some_and(|rest| rest.iter().all(String::is_empty)) {
            return Ok(());
        }
        let (output, lines) = (self.names.first().map_or("", String::as_str), self.labels.len());
        Err(PostprocessError::Outputs(format!(
            "output {output:?} has {classes} classes and its label file has {lines} lines: give it a line for each class, \
             in the model's order"
        )))
    }

    fn label(&self, class: usize) -> String {
        super::classification::class_name(&self.labels, class).unwrap_or_else(|| class.to_string())
    }

    /// The objects of an answer.
    fn detections(&self, results: &[&Tensor]) -> Vec<Detection> {
        let (mut candidates, count) = self.candidates(results);
        candidates.truncate(count);
        self.as_detections(candidates)
    }

    /// The candidates of a result, and how many of them, from the first on, an answer reports.
    fn candidates(&self, results: &[&Tensor]) -> (Vec<CandidateBox>, usize) {
        let found = results.first().map(|tensor| candidates::from_tensor(tensor)).unwrap_or_default();
        let count = found.iter().take_while(|candidate| self.thresholds.reports(candidate)).count();
        (found, count.min(self.config.max_detections))
    }

    fn as_detections(&self, candidates: Vec<CandidateBox>) -> Vec<Detection> {
        let detection = |CandidateBox { edges, score, class }| Detection {
            label: self.label(class),
            score,
            margin: score - self.thresholds.of(class).reported,
            area: DetectionBox {
                x: f64::from(edges.left),
                y: f64::from(edges.top),
                width: f64::from(edges.right) - f64::from(edges.left),
                height: f64::from(edges.bottom) - f64::from(edges.top),
            },
        };
        candidates.into_iter().map(detection).collect()
    }
}

/// A candidate with its edges in pixels of the photograph, inside it; `None` when nothing of it is inside.
fn in_picture(
    candidate: CandidateBox,
    [height, width]: [u32; 2],
    placement: PicturePlacement,
    picture: (u32, u32),
) -> Option<CandidateBox> {
    // A side is below 2^16 pixels, so a multiple of 1/8 is exact in an f32.
    #[expect(clippy::cast_possible_truncation, reason = "exact")]
    let edge = |share: f32, side: u32, start: u32, length: u32, pixels: u32| {
        let inside = (f64::from(share) * f64::from(side) - f64::from(start)) / f64::from(length);
        let at = (inside * f64::from(pixels)).clamp(0.0, f64::from(pixels));
        ((at * PARTS_OF_PIXEL).round() / PARTS_OF_PIXEL) as f32
    };
    let PicturePlacement { left, top, width: wide, height: high } = placement;
    let across = |share: f32| edge(share, width, left, wide, picture.0);
    let down = |share: f32| edge(share, height, top, high, picture.1);
    let BoxEdges { left, top, right, bottom } = candidate.edges;
    let edges = BoxEdges { left: across(left), top: down(top), right: across(right), bottom: down(bottom) };
    (edges.left < edges.right && edges.top < edges.bottom).then_some(CandidateBox { edges, ..candidate })
}

impl Pipeline for Detector {
    fn kind(&self) -> &'static PipelineKind {
        &KIND
    }

    fn memory_of(&self, content: &CallContent, limits: DecodeLimits) -> usize {
        kind::memory_of_photograph(content, limits, &self.decoder.config.preparation())
    }

    fn prepare(
        &self,
        content: &CallContent,
        limits: DecodeLimits,
        hold: &mut MemoryReservation,
    ) -> Result<PreprocessedInputs, PreprocessError> {
        let preparation = self.decoder.config.preparation();
        let photograph = kind::decode_photograph(content, limits, &preparation, hold)?;
        let size = photograph.size();
        let tensor = preparation.prepare(&photograph, self.datatype, self.input_quantization);
        let inputs = vec![tensor.map_err(|error| PreprocessError::Content(error.to_string()))?];
        let decoder = self.decoder.clone();
        let postprocess = Box::new(move |outputs: Vec<Tensor>| decoder.decode(&outputs, size));
        let picture = PictureReading::of(photograph.image());
        Ok(PreprocessedInputs { inputs, postprocess: Some(postprocess), picture })
    }

    fn outputs(&self) -> &[usize] {
        &self.positions
    }

    fn results(&self) -> Option<&'static [&'static str]> {
        Some(&[Detection::MEMBER])
    }

    fn detections(&self, results: &[&Tensor]) -> Option<Vec<Detection>> {
        Some(self.decoder.detections(results))
    }

    fn unreported(&self, results: &[&Tensor]) -> Vec<Detection> {
        let (mut candidates, count) = self.decoder.candidates(results);
        self.decoder.as_detections(candidates.split_off(count))
    }

    fn answer(&self, results: &[&Tensor]) -> Result<Box<RawValue>, PostprocessError> {
        to_raw_value(&self.decoder.detections(results)).map_err(|error| PostprocessError::Outputs(error.to_string()))
    }

    fn judge(&self, results: &[&Tensor], expected: GoldenExpectation<'_>) -> Result<(), String> {
        let found = self.decoder.detections(results);
        if expected.label.is_some() || expected.min_score.is_some() {
            let first = found.first().ok_or("nothing was detected")?;
            if let Some(label) = expected.label.filter(|label| *label != first.label) {
                return Err(format!("expected {label:?} first, got {:?} ({:.3})", first.label, first.score));
            }
            if let Some(least) = expected.min_score.filter(|least| first.score < *least) {
                return Err(format!("{:?} scores {:.3}, expected at least {least}", first.label, first.score));
            }
        }
        expected.detections.map_or(Ok(()), |expected| compare(&found, expected))
    }
}

/// Finds a detection for each expected one. Others may be there too, unless none is expected.
fn compare(found: &[Detection], expected: &[ExpectedDetection]) -> Result<(), String> {
    if let (Some(first), []) = (found.first(), expected) {
        return Err(format!("expected no detection, got {:?} ({:.3})", first.label, first.score));
    }
    let mut left: Vec<_> = found.iter().collect();
    for wanted in expected {
        let same = left.iter().enumerate().filter(|(_, found)| found.label == wanted.label);
        let best = same.map(|(index, found)| (index, found.area.overlap(area(wanted)), found.score));
        let best = best.max_by(|one, other| one.1.total_cmp(&other.1));
        let Some((index, overlap, score)) = best else {
            let others: Vec<_> = left.iter().map(|found| found.label.as_str()).collect();
            return Err(format!(
                "expected {:?} at {:?}, besides what matched only {others:?}",
                wanted.label, wanted.area
            ));
        };
        if overlap < wanted.min_iou {
            return Err(format!(
                "expected {:?} at {:?}, the nearest one overlaps it by {overlap:.2}, expected at least {}",
                wanted.label, wanted.area, wanted.min_iou
            ));
        }
        if let Some(least) = wanted.min_score.filter(|least| score < *least) {
            return Err(format!(
                "{:?} at {:?} scores {score:.3}, expected at least {least}",
                wanted.label, wanted.area
            ));
        }
        left.remove(index);
    }
    Ok(())
}

fn area(expected: &ExpectedDetection) -> DetectionBox {
    let [x, y, width, height] = expected.area;
    DetectionBox { x, y, width, height }
}

fn rows(detections: &Value) -> Vec<PrintedRow> {
    let row = |detection: &Value| {
        let label = detection.get("label").and_then(Value::as_str).unwrap_or_default();
        let number = |key: &str| detection.get("box").and_then(|area| area.get(key)?.as_f64()).unwrap_or_default();
        let [x, y, width, height] = ["x", "y", "width", "height"].map(number);
        PrintedRow {
            score: detection.get("score").and_then(Value::as_f64),
            text: format!("{label} at {x:.0},{y:.0}, {width:.0}x{height:.0}"),
        }
    };
    detections.as_array().into_iter().flatten().map(row).collect()
}

#[cfg(test)]
mod tests;
