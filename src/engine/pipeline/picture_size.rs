//! The size of a photograph by its header, without decoding a pixel.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use image_webp::WebPDecoder;
use zune_core::bytestream::ZCursor;
use zune_jpeg::JpegDecoder;

use super::containers;
use super::content::PipelineInput;
use super::file_format::UnexpectedFile;
use super::image::{ImageError, ImageFormat};
use super::orientation::Orientation;

/// The width and height in pixels of a JPEG, PNG or WebP image as it is seen, turned by its Exif orientation: those of
/// the picture that [`super::image::decode`] makes of it, if it can be decoded.
pub fn picture_size(bytes: &[u8]) -> Result<(u32, u32), ImageError> {
    let format = ImageFormat::sniff(bytes).ok_or_else(|| UnexpectedFile::new(PipelineInput::Photograph, bytes))?;
    let failed = |reason: String| ImageError::Malformed { format, reason };
    // As where they decode: a panic of a decoder is an error of this picture only.
    let read = catch_unwind(AssertUnwindSafe(|| match format {
        ImageFormat::Jpeg => jpeg_size(bytes),
        ImageFormat::Png => png_size(bytes),
        ImageFormat::WebP => webp_size(bytes),
    }));
    let (size, orientation) = read.unwrap_or_else(|_| Err("the decoder panicked".to_owned())).map_err(failed)?;
    match orientation.upright_size(size) {
        (0, _) | (_, 0) => Err(failed("it has no pixels".to_owned())),
        size => Ok(size),
    }
}

/// Reads the size of any bytes, for the fuzzers; true for a photograph. It has pixels. The fuzzer's panic hook must not
/// abort, because a decoder's panic is an error here.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_picture_size(data: &[u8]) -> bool {
    let Ok((width, height)) = picture_size(data) else { return false };
    assert!(width > 0 && height > 0, "{width}x{height}");
    true
}

type PictureSizeResult = Result<((u32, u32), Orientation), String>;

fn jpeg_size(bytes: &[u8]) -> PictureSizeResult {
    let mut decoder = JpegDecoder::new(ZCursor::new(bytes));
    decoder.decode_headers().map_err(|error| error.to_string())?;
    let info = decoder.info().ok_or("it has no header")?;
    let orientation = decoder.exif().map(|exif| Orientation::from_exif(exif)).unwrap_or_default();
    Ok(((info.width.into(), info.height.into()), orientation))
}

fn png_size(bytes: &[u8]) -> PictureSizeResult {
    let reader = png::Decoder::new(Cursor::new(bytes)).read_info().map_err(|error| error.to_string())?;
    let orientation = reader.info().exif_metadata.as_deref().map(Orientation::from_exif).unwrap_or_default();
    Ok((reader.info().size(), orientation))
}

fn webp_size(bytes: &[u8]) -> PictureSizeResult {
    let found = containers::inspect_webp(bytes).map_err(|_| "its end is missing")?;
    let decoder = WebPDecoder::new(Cursor::new(found.file)).map_err(|error| error.to_string())?;
    Ok((decoder.dimensions(), found.exif.map(Orientation::from_exif).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pipeline::image::{DecodeLimits, decode};

    macro_rules! photo {
        ($name:literal) => {
            include_bytes!(concat!("../../../tests/data/photos/", $name)).as_slice()
        };
    }

    #[test]
    fn the_size_is_that_of_the_decoded_picture() {
        for photo in [
            photo!("astronaut.jpg"),
            photo!("camera.webp"),
            photo!("camera_orientation6.jpg"),
            photo!("coffee.png"),
            photo!("cows.jpg"),
        ] {
            let decoded = decode(photo, DecodeLimits::default()).unwrap();
            assert_eq!(picture_size(photo), Ok((decoded.width(), decoded.height())));
        }
    }

    proptest! {
        #[test]
        fn damaged_bytes_have_no_size_or_one_of_a_picture(at in 0..4000_usize, value: u8, cut in 0..4000_usize) {
            for photo in [photo!("camera.webp"), photo!("camera_orientation6.jpg"), photo!("coffee.png")] {
                let mut bytes = photo[..photo.len().min(cut)].to_vec();
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
                if let Ok((width, height)) = picture_size(&bytes) {
                    prop_assert!(width > 0 && height > 0);
                }
            }
        }
    }
}
