//! A decoded photograph and its place in the one that was sent.
//!
//! Boxes and crops are in pixels of the photograph that was sent, whatever the size of the picture that was decoded of
//! it.

use super::rgb8::Rgb8Image;
use crate::pipeline::orientation::Orientation;

/// A photograph that was decoded as a whole or scaled down.
#[derive(Debug, Clone, PartialEq)]
pub struct Photograph {
    pub(super) image: Rgb8Image,
    pub(super) size: (u32, u32),
    /// The pixels of the photograph, in each direction, that became one of the image.
    pub(super) denominator: u32,
    /// The left and upper edge of the photograph, in pixels of the image.
    origin: (f64, f64),
}

impl From<Rgb8Image> for Photograph {
    fn from(image: Rgb8Image) -> Self {
        Self { size: (image.width, image.height), image, denominator: 1, origin: (0.0, 0.0) }
    }
}

impl Photograph {
    /// A photograph from an image of `1 / denominator` of its size, both not yet turned upright.
    pub(super) fn scaled(image: Rgb8Image, size: (u32, u32), denominator: u32, orientation: Orientation) -> Self {
        let (size, image) = (orientation.upright_size(size), orientation.apply(image));
        // The last column and row stand for less than a whole pixel if the sides are no multiples of the denominator.
        // In a mirrored picture they are the first ones.
        let origin = |is_mirrored: bool, length: u32, side: u32| {
            if is_mirrored { f64::from(length) - f64::from(side) / f64::from(denominator) } else { 0.0 }
        };
        let (left, top) = orientation.mirrors();
        let origin = (origin(left, image.width, size.0), origin(top, image.height, size.1));
        Self { image, size, denominator, origin }
    }

    /// The decoded picture: the whole photograph, in this or a smaller size.
    pub fn image(&self) -> &Rgb8Image {
        &self.image
    }

    pub fn into_image(self) -> Rgb8Image {
        self.image
    }

    /// Width and height of the photograph that was sent, upright.
    pub fn size(&self) -> (u32, u32) {
        self.size
    }

    /// A rectangle of the photograph (left, top, width, height) in pixels of [`Self::image`].
    pub(in crate::pipeline) fn in_image(
        &self,
        (left, top, width, height): (f64, f64, f64, f64),
    ) -> (f64, f64, f64, f64) {
        let scale = f64::from(self.denominator);
        let (left, top) = (self.origin.0 + left / scale, self.origin.1 + top / scale);
        let within = |length: f64, start: f64, side: u32| (length / scale).min(f64::from(side) - start);
        (left, top, within(width, left, self.image.width), within(height, top, self.image.height))
    }
}
