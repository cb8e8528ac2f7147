//! BMP and GIF: a picture that is a document of one page. Of a GIF, the first frame.

use std::io::{Cursor, ErrorKind};

use gif::{DecodeOptions, DecodingError, MemoryLimit};
use image::codecs::bmp::BmpDecoder;
use image::{ColorType, ImageDecoder as _, ImageError};

use crate::order::{DocumentDefect, DocumentLimits};
use crate::pdf::DrawnPage;
use crate::picture_page::{self, PagePicture};
use crate::raster;

/// The place of the resolution in the header of a BMP, in dots per metre across and down.
const BMP_RESOLUTION: std::ops::Range<usize> = 38..46;
/// The least header of a BMP that has a resolution, and the place of its length.
const BMP_INFO_HEADER: u32 = 40;
const BMP_HEADER_LENGTH: std::ops::Range<usize> = 14..18;

/// The pixels of a picture.
pub(crate) struct Bitmap {
    /// Width and height, not zero.
    size: (u32, u32),
    /// Three bytes each, rows from the top.
    pixels: Vec<u8>,
    /// Dots per inch across and down.
    resolution: Option<(f64, f64)>,
}

impl Bitmap {
    pub fn read(file: &[u8]) -> Result<Self, DocumentDefect> {
        Self::read_within(file, raster::PIXELS_MAX)
    }

    /// Reads a picture with up to this many pixels.
    fn read_within(file: &[u8], most: u64) -> Result<Self, DocumentDefect> {
        match file {
            [b'B', b'M', ..] => Self::bmp(file, most),
            [b'G', b'I', b'F', b'8', ..] => Self::gif(file, most),
            _ => Err(DocumentDefect::UnknownPicture),
        }
    }

    fn bmp(file: &[u8], most: u64) -> Result<Self, DocumentDefect> {
        let refused = |error: ImageError| match error {
            ImageError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => cut_off(),
            error => picture_page::undecodable(&error),
        };
        let decoder = BmpDecoder::new(Cursor::new(file)).map_err(refused)?;
        let size = decoder.dimensions();
        check_size(size, most)?;

        let has_alpha = decoder.color_type() == ColorType::Rgba8;
        let mut samples = vec![0; usize::try_from(decoder.total_bytes()).unwrap_or(usize::MAX)];
        decoder.read_image(&mut samples).map_err(refused)?;
        let pixels = if has_alpha { over_white(samples) } else { samples };
        Ok(Self { size, pixels, resolution: bmp_resolution(file) })
    }

    fn gif(file: &[u8], most: u64) -> Result<Self, DocumentDefect> {
        let refused = |error: DecodingError| match error {
            DecodingError::UnexpectedEof => cut_off(),
            error => picture_page::undecodable(&error),
        };
        let mut options = DecodeOptions::new();
        // The pixels are counted here, and all else is no larger than the file.
        options.set_memory_limit(MemoryLimit::Unlimited);
        let mut decoder = options.read_info(file).map_err(refused)?;
        let size = (decoder.width().into(), decoder.height().into());
        check_size(size, most)?;
        let frame = decoder.next_frame_info().map_err(refused)?.ok_or(DocumentDefect::Empty)?;
        check_size((frame.width.into(), frame.height.into()), most)?;

        let (left, top, transparent) = (usize::from(frame.left), usize::from(frame.top), frame.transparent);
        let (frame_width, rows) = (usize::from(frame.width), rows(frame.height.into(), frame.interlaced));
        let mut indexes = vec![0; decoder.buffer_size()];
        // Rows are put in order here: version 0.14.2 takes some interlaced frames for cut off when it does.
        if !decoder.fill_buffer(&mut indexes).map_err(refused)? {
            return Err(cut_off());
        }
        let palette = decoder.palette().map_err(refused)?.as_chunks::<3>().0;

        // The frame may be smaller than the picture, and reach beyond it.
        let (width, height) = (usize::from(decoder.width()), usize::from(decoder.height()));
        let mut pixels = vec![[u8::MAX; 3]; width * height];
        for (row, indexes) in rows.zip(indexes.chunks_exact(frame_width)) {
            let Some(row) = pixels.chunks_exact_mut(width).nth(top + row) else { continue };
            for (pixel, index) in row.iter_mut().skip(left).zip(indexes) {
                match palette.get(usize::from(*index)) {
                    Some(color) if transparent != Some(*index) => *pixel = *color,
                    _ => {}
                }
            }
        }
        Ok(Self { size, pixels: pixels.into_flattened(), resolution: None })
    }

    /// The page as the models read it.
    pub fn drawn(&self, limits: DocumentLimits) -> Result<DrawnPage, DocumentDefect> {
        let (width, height) = (self.size.0 as usize, self.size.1 as usize);
        let pixels = self.pixels.as_chunks::<3>().0;
        let drawn = raster::drawn((width, height), limits, |x, y| pixels.get(y * width + x).copied());
        drawn.ok_or(DocumentDefect::Damaged)
    }

    /// The page as a PDF stores it.
    pub fn stored(&self) -> Result<PagePicture<'static>, DocumentDefect> {
        Ok(PagePicture::of_pixels(self.size, &self.pixels)?.with_resolution(self.resolution))
    }
}

/// The rows of a frame of a GIF in the order of the file (`GIF89a`, appendix E).
fn rows(height: usize, is_interlaced: bool) -> impl Iterator<Item = usize> {
    let passes: &[(usize, usize)] = if is_interlaced { &[(0, 8), (4, 8), (2, 4), (1, 2)] } else { &[(0, 1)] };
    passes.iter().flat_map(move |(first, step)| (*first..height).step_by(*step))
}

fn check_size(size: (u32, u32), most: u64) -> Result<(), DocumentDefect> {
    if size.0 == 0 || size.1 == 0 {
        return Err(picture_page::undecodable(&"it has no pixels"));
    }
    raster::check_size(1, size, most)
}

fn cut_off() -> DocumentDefect {
    picture_page::undecodable(&"it is cut off")
}

/// RGB of pixels with alpha. Programs that know no alpha write zeros there.
fn over_white(mut samples: Vec<u8>) -> Vec<u8> {
    let pixels = samples.as_chunks_mut::<4>().0;
    if pixels.iter().all(|[.., alpha]| *alpha == 0) {
        for [.., alpha] in pixels.iter_mut() {
            *alpha = u8::MAX;
        }
    }
    picture_page::blended(png::ColorType::Rgba, samples).1
}

fn bmp_resolution(file: &[u8]) -> Option<(f64, f64)> {
    let header = u32::from_le_bytes(*file.get(BMP_HEADER_LENGTH)?.as_array()?);
    let [across, down] = *file.get(BMP_RESOLUTION)?.as_chunks::<4>().0 else { return None };
    let inch = |dots| f64::from(u32::from_le_bytes(dots)) * 0.0254;
    (header >= BMP_INFO_HEADER).then(|| (inch(across), inch(down)))
}

/// Decodes a BMP or a GIF within small bounds; true for a picture. Its page has three bytes a pixel. The folder `fuzz/`
/// and `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_bitmap(data: &[u8]) -> bool {
    let Ok(bitmap) = Bitmap::read_within(data, 1 << 20) else { return false };
    let (width, height) = bitmap.size;
    assert_eq!(bitmap.pixels.len() as u64, 3 * u64::from(width) * u64::from(height));
    let limits = DocumentLimits { pixels_max: 10_000, ..DocumentLimits::new(1, 1000) };
    let drawn = bitmap.drawn(limits);
    assert!(
        matches!(&drawn, Ok(DrawnPage::Picture { width, height, pixels })
            if pixels.len() as u64 == 3 * u64::from(*width) * u64::from(*height)),
        "a picture is drawn"
    );
    assert!(bitmap.stored().is_ok());
    true
}

#[cfg(test)]
mod tests;
