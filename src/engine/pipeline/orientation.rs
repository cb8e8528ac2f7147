//! Turns a picture upright: cameras store the sensor's rows, and say in Exif how the camera was held.

use super::image::Rgb8Image;

/// The rotation and mirroring of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Orientation {
    /// Swaps rows and columns; before the others.
    is_transposed: bool,
    /// Mirrors left and right.
    is_mirrored: bool,
    /// Mirrors top and bottom.
    is_flipped: bool,
}

/// Exif's tag of the orientation (CIPA DC-008, section 4.6.4).
const TAG: u16 = 0x0112;

/// TIFF's type of a 16-bit number.
const SHORT: u16 = 3;

impl Orientation {
    /// Reads it from Exif data, which begins with the header of TIFF. Data that is damaged, or says nothing, leaves a
    /// picture as it is.
    pub(super) fn from_exif(exif: &[u8]) -> Self {
        read_tag(exif).map(Self::from_number).unwrap_or_default()
    }

    fn from_number(number: u16) -> Self {
        let (is_transposed, is_mirrored, is_flipped) = match number {
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, true, false),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => (false, false, false),
        };
        Self { is_transposed, is_mirrored, is_flipped }
    }

    /// True if the picture is upright already.
    pub(super) fn is_upright(self) -> bool {
        self == Self::default()
    }

    /// Returns true if left and right, and whether top and bottom, change places; after rows and columns did.
    pub(super) fn mirrors(self) -> (bool, bool) {
        (self.is_mirrored, self.is_flipped)
    }

    /// Width and height of a picture that was turned upright.
    pub(super) fn upright_size(self, (width, height): (u32, u32)) -> (u32, u32) {
        if self.is_transposed { (height, width) } else { (width, height) }
    }

    /// Turns a picture upright.
    pub(super) fn apply(self, picture: Rgb8Image) -> Rgb8Image {
        if self.is_upright() {
            return picture;
        }
        let (width, height) = (picture.width(), picture.height());
        let (new_width, new_height) = self.upright_size((width, height));
        let source = picture.pixels().as_chunks::<3>().0;

        let mut pixels = Vec::with_capacity(source.len());
        for y in 0..new_height {
            let y = if self.is_flipped { new_height - 1 - y } else { y };
            for x in 0..new_width {
                let x = if self.is_mirrored { new_width - 1 - x } else { x };
                let (column, row) = if self.is_transposed { (y, x) } else { (x, y) };
                let at = row as usize * width as usize + column as usize;
                pixels.push(source.get(at).copied().unwrap_or_default());
            }
        }
        Rgb8Image::new(new_width, new_height, pixels.into_flattened()).unwrap_or(picture)
    }
}

/// The number of the orientation in the first directory of TIFF (TIFF 6.0, section 2).
fn read_tag(exif: &[u8]) -> Option<u16> {
    let is_little = match exif.first_chunk()? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let u16_at = |at: usize| {
        let bytes = *exif.get(at..)?.first_chunk()?;
        Some(if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let u32_at = |at: usize| {
        let bytes = *exif.get(at..)?.first_chunk()?;
        Some(if is_little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };

    let directory = usize::try_from(u32_at(4)?).ok()?;
    let entries = directory.checked_add(2)?;
    for index in 0..usize::from(u16_at(directory)?) {
        // An entry has 12 bytes: tag, type, count, value. The crate `image` takes no part of one.
        let entry = entries.checked_add(index * 12)?;
        exif.get(entry..)?.first_chunk::<12>()?;
        if (u16_at(entry)?, u16_at(entry + 2)?, u32_at(entry + 4)?) == (TAG, SHORT, 1) {
            return u16_at(entry + 8);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use image::metadata::Orientation as Reference;
    use image::{DynamicImage, RgbImage};
    use proptest::prelude::*;

    use super::*;

    /// Exif data with one entry.
    fn exif(is_little: bool, orientation: u16) -> Vec<u8> {
        let u16 = |number: u16| if is_little { number.to_le_bytes() } else { number.to_be_bytes() };
        let u32 = |number: u32| if is_little { number.to_le_bytes() } else { number.to_be_bytes() };
        let start: &[u8] = if is_little { b"II*\0" } else { b"MM\0*" };
        [start, &u32(8), &u16(1), &u16(TAG), &u16(SHORT), &u32(1), &u16(orientation), &[0; 6]].concat()
    }

    #[test]
    fn every_orientation_turns_as_the_crate_image_does() {
        for number in 0..=9_u8 {
            for [width, height] in [[3_u8, 2], [1, 5], [4, 4]] {
                let pixels: Vec<u8> = (0..width * height * 3).collect();
                let picture = RgbImage::from_raw(width.into(), height.into(), pixels.clone()).unwrap();
                let mut expected = DynamicImage::from(picture);
                expected.apply_orientation(Reference::from_exif(number).unwrap_or(Reference::NoTransforms));

                let orientation = Orientation::from_number(number.into());
                let turned = orientation.apply(Rgb8Image::new(width.into(), height.into(), pixels).unwrap());
                assert_eq!((turned.width(), turned.height()), (expected.width(), expected.height()), "{number}");
                assert_eq!(turned.pixels(), expected.into_rgb8().into_raw(), "{number}");
            }
        }
    }

    #[test]
    fn both_byte_orders_are_read() {
        for is_little in [true, false] {
            assert_eq!(read_tag(&exif(is_little, 6)), Some(6));
        }
        assert_eq!(read_tag(b"II*\0\x08\0\0\0\0\0"), None, "no entry");
        assert_eq!(read_tag(b"MM*\0"), None, "another byte order than it says");
        let whole = exif(false, 2);
        assert_eq!([20, 21, 22].map(|cut| read_tag(&whole[..cut])), [None, None, Some(2)], "a part of an entry");
    }

    proptest! {
        #[test]
        fn foreign_exif_is_read_as_the_crate_image_reads_it(is_little: bool, orientation: u16, cut in 0_usize..32, junk: Vec<u8>) {
            let whole = exif(is_little, orientation);
            for bytes in [&whole[..cut.min(whole.len())], &junk, &[&whole[..8.min(cut)], &junk].concat()] {
                let expected = Reference::from_exif_chunk(bytes).map_or(1, Reference::to_exif);
                prop_assert_eq!(Orientation::from_exif(bytes), Orientation::from_number(expected.into()));
            }
        }
    }
}
