//! Pictures with the objects that a model found on them.

use bytes::Bytes;
use ledge_engine::pipeline::detection::Detection;

/// The objects that a version of a model found on a picture.
#[derive(Debug, Clone, Default)]
pub struct FoundObjects {
    pub detections: Vec<Detection>,
    /// The objects that its answer leaves out, for instance because it is not sure. They are blurred like the others.
    pub unreported: Vec<Detection>,
    /// The reason why the places to blur are incomplete: that version of the model lacks a label that is to be blurred.
    /// Then the picture is not shown.
    pub blur_fault: Option<String>,
}

/// A picture with its objects, before anything is drawn.
#[derive(Debug, Clone)]
pub struct ExaminedPicture {
    pub photograph: Bytes,
    /// Its width and height in pixels.
    pub size: (u32, u32),
    pub found: FoundObjects,
}
