//! Between what people send and tensors: a photograph in, labels with scores out.
//!
//! A pipeline belongs to a model's config and is pure: bytes and tensors go in and come out. It never reads a file,
//! never opens a connection and knows nothing of models or requests; `serving` puts a model between the two halves.
//!
//! | stage | file | turns |
//! |---|---|---|
//! | decode | [`image`] | JPEG, PNG or WebP bytes into an upright RGB image |
//! | prepare | [`preparation`] | an image into the tensor that a model expects |
//! | scale | [`quantization`] | integers into what they are worth, and back |
//! | read | [`classification`] | a tensor of scores into labels, or into Triton's classification strings |

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
