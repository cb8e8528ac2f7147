//! The scales at which a JPEG is decoded.

/// The scales at which a JPEG is decoded: a block of 8x8 pixels becomes one of 4x4, 2x2 or 1x1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JpegScale {
    Half,
    Quarter,
    Eighth,
}

impl JpegScale {
    /// The scale that leaves the fewest pixels, yet at least 1.5 times the size that the picture will be resized to, in
    /// both directions. With less the resize would have pixels of its own that a whole picture does not lead to.
    pub(crate) fn for_resize((width, height): (u32, u32), resized: (u32, u32)) -> Option<Self> {
        let leaves_enough = |scale: &Self, side: u32, resized: u32| {
            2 * u64::from(side) >= 3 * u64::from(scale.denominator()) * u64::from(resized)
        };
        [Self::Eighth, Self::Quarter, Self::Half]
            .into_iter()
            .find(|scale| leaves_enough(scale, width, resized.0) && leaves_enough(scale, height, resized.1))
    }

    /// The number of pixels, in each direction, that become one.
    pub(crate) fn denominator(self) -> u32 {
        match self {
            Self::Half => 2,
            Self::Quarter => 4,
            Self::Eighth => 8,
        }
    }

    /// Width and height of a scaled picture. The last column and row may stand for less than a whole pixel.
    pub(crate) fn size(self, (width, height): (u32, u32)) -> (u32, u32) {
        (width.div_ceil(self.denominator()), height.div_ceil(self.denominator()))
    }
}
