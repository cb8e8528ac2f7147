//! The pipeline of a model that takes images: an image in, labels with scores out. It belongs to the model's config;
//! `serving` in the crate `models` puts the model between the two halves.
//!
//! Files, in reading order:
//! * `containers.rs` - sizes and ends of image files, read before a decoder gets them
//! * `image.rs`, `image/` - decode: JPEG, PNG or WebP bytes into an upright RGB image
//! * `preparation.rs` - prepare: an image into the tensor that a model expects
//! * `quantization.rs` - scale: integers into the real numbers that they stand for, and back
//! * `classification.rs`, `classification/` - read: a tensor of scores into labels, or into Triton's classification
//!   strings
//!
//! Invariants:
//! * The pipeline is pure: bytes and tensors come in, tensors and labels go out. It reads no file and opens no
//!   connection.
//! * It knows nothing of loaded models or requests.
//! * The size of an image is known before a pixel is decoded. A file that was cut off is an error, never a half-grey
//!   image.

pub mod classification;
mod containers;
pub mod image;
pub mod preparation;
pub mod quantization;

use serde::{Deserialize, Serialize};

use self::classification::ImageClassification;

/// The table `[pipeline]` of a model's config: what the model is for, if Ledge is to know it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// `[pipeline.image_classification]`: a picture in, labels out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_classification: Option<ImageClassification>,
}

impl Pipeline {
    /// Every mistake of the table, each with its key; empty when there is none.
    pub fn validate(&self) -> Vec<(String, String)> {
        self.image_classification.as_ref().map(ImageClassification::validate).unwrap_or_default()
    }
}
