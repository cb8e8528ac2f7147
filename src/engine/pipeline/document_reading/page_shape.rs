//! The size of a page, and how it was turned.

use serde::{Deserialize, Serialize};

use crate::pipeline::ocr::page_turn::QuarterTurns;

/// A page that stands upright, without its pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageShape {
    pub width: u32,
    pub height: u32,
    /// The turn that put it upright.
    pub turn: QuarterTurns,
}

impl PageShape {
    /// The bytes of its pixels.
    pub fn bytes(&self) -> usize {
        usize::try_from(3 * u64::from(self.width) * u64::from(self.height)).unwrap_or(usize::MAX)
    }

    /// Width and height.
    pub fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }
}
