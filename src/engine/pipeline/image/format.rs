//! The formats of pictures.

use std::fmt;

/// An image format that Ledge decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImageFormat {
    /// Baseline or progressive, 8 bits: grayscale, YCbCr, RGB, CMYK or YCCK.
    Jpeg,
    /// Any colour type and depth. Of an animation, the default image.
    Png,
    /// Lossy or lossless. Of an animation, the first frame.
    WebP,
}

impl ImageFormat {
    /// The content type of the format.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Jpeg => "image/jpeg",
            Self::Png => "image/png",
            Self::WebP => "image/webp",
        }
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
        })
    }
}
