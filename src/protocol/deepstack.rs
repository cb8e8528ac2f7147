//! The interface of DeepStack, which software for cameras calls: forms with a picture to calls, results to answers.
//!
//! DeepStack is no longer kept, and CodeProject.AI, which took its interface over, neither. The forms here are those
//! that their clients send and read (documentation of DeepStack, "Object Detection", "Face Detection", "Scene
//! Recognition", "Custom Models").

mod form;

use ledge_engine::pipeline::detection::{Detection, DetectionBox};
use serde::Serialize;

#[cfg(any(test, feature = "fuzzing"))]
pub use form::fuzz_form;
pub use form::{FormError, VisionForm, api_key_at_start};

/// A result in DeepStack's form: whole pixels, best first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction<'a> {
    /// The label; faces have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    confidence: f32,
    x_min: u32,
    y_min: u32,
    x_max: u32,
    y_max: u32,
}

/// `{"success": true, "predictions": [...]}`.
#[derive(Debug, Serialize)]
pub struct DetectionAnswer<'a> {
    success: bool,
    predictions: Vec<Prediction<'a>>,
    /// The time of the call, in milliseconds.
    duration: u64,
}

/// The predictions of an answer: the objects that a model found, as the caller limits them.
#[derive(Debug, Clone, Copy)]
pub struct PredictionFilter<'a> {
    /// The least score.
    pub min_confidence: f32,
    /// The labels; empty is all.
    pub labels: &'a [String],
    /// The most predictions.
    pub max: usize,
    /// Set where each prediction has a label.
    pub is_labeled: bool,
}

impl<'a> DetectionAnswer<'a> {
    /// The answer with those of `detections`, best first, that `selection` takes.
    pub fn new(detections: &'a [Detection], selection: PredictionFilter<'_>, duration_ms: u64) -> Self {
        let PredictionFilter { min_confidence, labels, max, is_labeled } = selection;
        let wanted = detections.iter().filter(|detection| {
            detection.score >= min_confidence && (labels.is_empty() || labels.contains(&detection.label))
        });
        let prediction = |detection: &'a Detection| {
            let DetectionBox { x, y, width, height } = detection.area;
            let [x_min, x_max] = whole_pixels(x, width);
            let [y_min, y_max] = whole_pixels(y, height);
            let label = is_labeled.then_some(detection.label.as_str());
            Prediction { label, confidence: detection.score, x_min, y_min, x_max, y_max }
        };
        Self { success: true, predictions: wanted.take(max).map(prediction).collect(), duration: duration_ms }
    }
}

/// The first and last edge of a side in whole pixels, at least one apart and never outside of the picture.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates, NaN is 0")]
fn whole_pixels(start: f64, length: f64) -> [u32; 2] {
    // A box ends inside the picture, so the whole pixels that it touches do too.
    let (first, last) = (start.round() as u32, (start + length).round() as u32);
    if first < last { [first, last] } else { [start.floor() as u32, (start + length).ceil() as u32] }
}

/// `{"success": true, "label": "street", "confidence": 0.9}`: the class of a whole photograph.
#[derive(Debug, Serialize)]
pub struct SceneAnswer<'a> {
    success: bool,
    label: &'a str,
    confidence: f64,
}

impl<'a> SceneAnswer<'a> {
    pub fn new(label: &'a str, confidence: f64) -> Self {
        Self { success: true, label, confidence }
    }
}

/// `{"success": true, "models": [...], "duration": 0}`: the names for `/v1/vision/custom/NAME`.
#[derive(Debug, Serialize)]
pub struct ModelListAnswer {
    success: bool,
    models: Vec<String>,
    duration: u64,
}

impl ModelListAnswer {
    pub fn new(models: Vec<String>) -> Self {
        Self { success: true, models, duration: 0 }
    }
}

/// `{"success": true}`.
#[derive(Debug, Serialize)]
pub struct Pong {
    success: bool,
}

impl Default for Pong {
    fn default() -> Self {
        Self { success: true }
    }
}

/// `{"success": false, "error": "..."}`: every error.
#[derive(Debug, Serialize)]
pub struct VisionErrorBody<'a> {
    success: bool,
    error: &'a str,
}

impl<'a> VisionErrorBody<'a> {
    pub fn new(error: &'a str) -> Self {
        Self { success: false, error }
    }

    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_else(|_| br#"{"success":false,"error":"internal error"}"#.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn detection(label: &str, score: f32, [x, y, width, height]: [f64; 4]) -> Detection {
        let area = DetectionBox { x, y, width, height };
        Detection { label: label.to_owned(), score, area, margin: 0.0 }
    }

    fn written(detections: &[Detection], selection: PredictionFilter<'_>) -> Value {
        serde_json::to_value(DetectionAnswer::new(detections, selection, 7)).unwrap()
    }

    const ALL: PredictionFilter<'static> =
        PredictionFilter { min_confidence: 0.0, labels: &[], max: 20, is_labeled: true };

    #[test]
    fn a_prediction_has_whole_pixels_from_edge_to_edge() {
        let found = [detection("dog", 0.5, [1.5, 2.25, 10.25, 20.5])];
        let prediction = json!({"label": "dog", "confidence": 0.5, "x_min": 2, "y_min": 2, "x_max": 12, "y_max": 23});
        assert_eq!(written(&found, ALL), json!({"success": true, "predictions": [prediction], "duration": 7}));
        let faces = written(&found, PredictionFilter { is_labeled: false, ..ALL });
        assert_eq!(faces["predictions"][0].get("label"), None);
    }

    #[test]
    fn a_box_of_less_than_a_pixel_is_one_pixel_inside_the_picture() {
        assert_eq!(whole_pixels(99.75, 0.25), [99, 100]);
        assert_eq!(whole_pixels(0.0, 0.125), [0, 1]);
        assert_eq!(whole_pixels(5.5, 0.5), [5, 6]);
    }

    #[test]
    fn only_wanted_labels_with_enough_confidence_are_answered_and_no_more_than_the_most() {
        let place = [0.0, 0.0, 9.0, 9.0];
        let found: Vec<_> =
            ["dog", "cat", "dog"].iter().zip([0.9, 0.8, 0.3]).map(|(l, s)| detection(l, s, place)).collect();
        let labels = |selection: PredictionFilter<'_>| {
            let answer = written(&found, selection);
            let list = answer["predictions"].as_array().unwrap().clone();
            list.iter().map(|one| one["label"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(labels(ALL), ["dog", "cat", "dog"]);
        assert_eq!(labels(PredictionFilter { min_confidence: 0.8, ..ALL }), ["dog", "cat"]);
        assert_eq!(labels(PredictionFilter { labels: &["dog".to_owned()], ..ALL }), ["dog", "dog"]);
        assert_eq!(labels(PredictionFilter { max: 1, ..ALL }), ["dog"]);
    }
}
