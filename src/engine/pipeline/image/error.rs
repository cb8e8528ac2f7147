//! Reasons why a picture is not decoded.

use std::fmt;

use ledge_base::memory_budget::MemoryBudgetExhausted;

use super::super::file_format::UnexpectedFile;
use super::format::ImageFormat;
use super::rgb8::SIDE_MAX;

/// Bytes that are not a picture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    #[error(transparent)]
    Unrecognized(#[from] UnexpectedFile),
    /// The size in the header is above [`DecodeLimits`](super::limits::DecodeLimits).
    #[error("image of {width}x{height} pixels: expected at most {max_pixels} pixels and {SIDE_MAX} a side")]
    TooLarge {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        max_pixels: u64,
    },
    #[error("the {format} image is cut off: its end is missing")]
    CutOff { format: ImageFormat },
    #[error(transparent)]
    NoRoom(#[from] MemoryBudgetExhausted),
    #[error("the {format} image cannot be decoded: {reason}")]
    Malformed { format: ImageFormat, reason: String },
}

pub(super) fn malformed(format: ImageFormat, reason: impl fmt::Display) -> ImageError {
    ImageError::Malformed { format, reason: reason.to_string() }
}
