//! A picture in memory.

use std::fmt;

use bytes::Bytes;

/// The longest side of a picture, in pixels. This limit of JPEG is used for all formats, because the weights of a
/// resize grow with the sides and not with the area.
pub(super) const SIDE_MAX: u32 = 65_535;

/// An upright picture: rows from the top, three bytes (red, green, blue) a pixel, no padding, no side of zero. Clones
/// share the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Rgb8Image {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) pixels: Bytes,
}

impl Rgb8Image {
    /// A picture of `width * height * 3` bytes; `None` for another number of bytes or a side of zero.
    pub fn new(width: u32, height: u32, pixels: Vec<u8>) -> Option<Self> {
        Self::over(width, height, pixels.into())
    }

    /// [`Self::new`] over bytes that others may share.
    pub fn over(width: u32, height: u32, pixels: Bytes) -> Option<Self> {
        let bytes = u64::from(width).checked_mul(u64::from(height))?.checked_mul(3)?;
        (bytes > 0 && u64::try_from(pixels.len()) == Ok(bytes)).then_some(Self { width, height, pixels })
    }

    /// A rectangle of the picture; `None` for one that reaches over its edges or has no pixel.
    pub fn part(&self, left: u32, top: u32, width: u32, height: u32) -> Option<Self> {
        let (start, length) = (left as usize * 3, width as usize * 3);
        let rows = self.pixels.chunks_exact(self.width as usize * 3).skip(top as usize).take(height as usize);
        let rows: Option<Vec<&[u8]>> = rows.map(|row| row.get(start..start + length)).collect();
        Self::new(width, height, rows?.concat())
    }

    pub fn width(&self) -> u32 {
        self.width
    }

    pub fn height(&self) -> u32 {
        self.height
    }

    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    pub fn into_pixels(self) -> Vec<u8> {
        self.pixels.into()
    }
}

impl fmt::Debug for Rgb8Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rgb8Image({}x{})", self.width, self.height)
    }
}
