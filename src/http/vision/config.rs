//! `[vision]`: the models for the interface of DeepStack, and the labels to blur in annotated photographs.

use ledge_base::names::ModelName;
use ledge_base::toml_check::{empty_if_none, in_range, none_if_empty};
use ledge_part::section::ConfigSection;
use ledge_protocol::annotated::BlurRule;
use serde::{Deserialize, Serialize};

/// The models and limits of `/v1/vision`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VisionConfig {
    /// The model of `/v1/vision/detection`.
    pub detection: ModelName,
    /// The model of `/v1/vision/face`, which also finds the faces that are blurred.
    pub face: ModelName,
    /// The model of `/v1/vision/scene`; without one the route answers 403.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub scene: Option<ModelName>,
    /// The labels of predictions; empty is all.
    pub labels: Vec<String>,
    /// The most predictions of an answer. Some clients fail on a 21st.
    #[serde(deserialize_with = "in_range::<1, 1000, _, _>")]
    pub max_predictions: usize,
    /// The labels of the objects to blur in annotated photographs.
    pub blur: Vec<String>,
}

impl Default for VisionConfig {
    fn default() -> Self {
        Self {
            detection: ModelName::constant("coco_detector"),
            face: ModelName::constant("face_detector"),
            scene: None,
            labels: Vec::new(),
            max_predictions: 20,
            blur: Vec::new(),
        }
    }
}

impl VisionConfig {
    /// The places that are blurred in annotated photographs.
    pub fn blur_rule(&self) -> BlurRule {
        BlurRule { labels: self.blur.as_slice().into(), faces: self.face.clone() }
    }
}

impl ConfigSection for VisionConfig {}
