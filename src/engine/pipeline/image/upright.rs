//! Pixels as an upright picture.

use super::super::orientation::Orientation;
use super::error::{ImageError, malformed};
use super::format::ImageFormat;
use super::rgb8::Rgb8Image;

pub(super) fn upright(
    format: ImageFormat,
    pixels: Vec<u8>,
    (width, height): (u32, u32),
    orientation: Orientation,
) -> Result<Rgb8Image, ImageError> {
    let picture = Rgb8Image::new(width, height, pixels);
    let picture = picture.ok_or_else(|| malformed(format, "its pixels do not fill its size, or it has none"))?;
    Ok(orientation.apply(picture))
}
