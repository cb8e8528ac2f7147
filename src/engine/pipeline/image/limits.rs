//! The limits of a picture.

use ledge_base::memory_budget::{MemoryBudgetExhausted, MemoryReservation};
use ledge_documents::PICTURE_PIXELS_MAX;
use serde::{Deserialize, Serialize};

use super::error::ImageError;
use super::rgb8::SIDE_MAX;

/// The limits of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecodeLimits {
    /// The largest width times height. Decoding takes at most about 12 bytes of memory a pixel (a 16-bit RGBA PNG); a
    /// baseline JPEG takes 3, or less where it is scaled down, a progressive one 9.
    pub max_pixels: u64,
}

impl Default for DecodeLimits {
    fn default() -> Self {
        Self { max_pixels: PICTURE_PIXELS_MAX }
    }
}

impl DecodeLimits {
    /// Refuses a size that is too large, before memory is allocated for it.
    pub(crate) fn check(self, (width, height): (u32, u32)) -> Result<(), ImageError> {
        if width.max(height) > SIDE_MAX || u64::from(width) * u64::from(height) > self.max_pixels {
            return Err(ImageError::TooLarge { width, height, max_pixels: self.max_pixels });
        }
        Ok(())
    }
}

/// Takes the memory for a picture with so many bytes a pixel.
pub(super) fn take_memory(
    hold: &mut MemoryReservation,
    (width, height): (u32, u32),
    bytes_each: u64,
) -> Result<(), MemoryBudgetExhausted> {
    let bytes = u64::from(width) * u64::from(height) * bytes_each;
    hold.grow(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// The width and height that a photograph of some width and height will be resized to.
pub type ResizedSize<'r> = &'r dyn Fn((u32, u32)) -> (u32, u32);
