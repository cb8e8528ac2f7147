//! Decodes JPEG, PNG and WebP bytes, as cameras and browsers send them, into upright 8-bit RGB pictures.
//!
//! The bytes are foreign: the size is checked before a pixel is decoded, a file that was cut off is an error and never
//! a half-grey picture, and a panic of a decoder is an error of this picture only.
//!
//! Files, in reading order:
//! * `image/format.rs`, `image/limits.rs`, `image/error.rs` - the formats, the limits, and the errors
//! * `image/rgb8.rs`, `image/upright.rs` - the picture, upright
//! * `image.rs` - PNG and WebP
//! * `image/photograph.rs` - a decoded photograph and its place in the one that was sent
//! * `image/jpeg.rs` - JPEG, no larger than needed
//! * `image/scaled_jpeg.rs`, `image/scaled_jpeg/` - the decoder of plain JPEGs at 1/2, 1/4 and 1/8 of their size

mod error;
mod format;
mod jpeg;
mod limits;
mod photograph;
mod rgb8;
mod scaled_jpeg;
mod upright;

use std::io::{self, Cursor};
use std::panic::{AssertUnwindSafe, catch_unwind};

use image_webp::WebPDecoder;
use ledge_base::memory_budget::{MemoryAccount, MemoryReservation};
use png::{BitDepth, ColorType, Transformations};

pub use self::photograph::Photograph;
use super::containers;
use super::content::PipelineInput;
use super::file_format::UnexpectedFile;
use super::orientation::Orientation;
pub use error::ImageError;
use error::malformed;
pub use format::ImageFormat;
use limits::take_memory;
pub use limits::{DecodeLimits, ResizedSize};
pub use rgb8::Rgb8Image;
use upright::upright;

/// The most memory that the PNG decoder may take besides the pixels: for rows, colour profiles and text.
const PNG_METADATA_BYTES_MAX: usize = 64 << 20;

/// Decodes a JPEG, PNG or WebP image.
///
/// Transparent pixels are blended with white: product pictures and scans are made for white paper, and a model trained
/// on photographs takes white for background. Exif orientation is applied; colour profiles are not.
pub fn decode(bytes: &[u8], limits: DecodeLimits) -> Result<Rgb8Image, ImageError> {
    let whole = decode_within(bytes, limits, &|size| size, &mut MemoryAccount::unlimited().hold())?;
    Ok(whole.image)
}

/// [`decode`] for a resize, within a memory limit: `hold` reserves the memory of the decoder and of the picture.
///
/// A plain JPEG is decoded at 1/2, 1/4 or 1/8 of its size where at least 1.5 times the resized size is left. The
/// tensors of 60 pictures, 180 files of 720 to 2160 lines, then differed by .4 of 255 on average and by 16 at most, in
/// few bytes. `docs/performance.md` states the effect on answers.
pub fn decode_within(
    bytes: &[u8],
    limits: DecodeLimits,
    resized: ResizedSize<'_>,
    hold: &mut MemoryReservation,
) -> Result<Photograph, ImageError> {
    let format = ImageFormat::sniff(bytes).ok_or_else(|| UnexpectedFile::new(PipelineInput::Photograph, bytes))?;
    // A panic would end the daemon. No state of a decoder is used afterwards, and a reservation stays consistent.
    catch_unwind(AssertUnwindSafe(|| match format {
        ImageFormat::Jpeg => jpeg::decode(bytes, limits, resized, hold),
        ImageFormat::Png => decode_png(bytes, limits, hold).map(Photograph::from),
        ImageFormat::WebP => decode_webp(bytes, limits, hold).map(Photograph::from),
    }))
    .unwrap_or_else(|_| Err(malformed(format, "the decoder panicked")))
}

/// The memory that [`decode_within`] takes for these bytes, by their headers: nothing is decoded. 0 for bytes that are
/// no picture, and for one that is too large.
pub fn memory_of(bytes: &[u8], limits: DecodeLimits, resized: ResizedSize<'_>) -> usize {
    let of = |size: (u32, u32), bytes_each: u64| {
        let is_allowed = limits.check(size).is_ok();
        is_allowed.then(|| u64::from(size.0) * u64::from(size.1) * bytes_each)
    };
    // As in decoding: no panic of a decoder gets out.
    let found = catch_unwind(AssertUnwindSafe(|| match ImageFormat::sniff(bytes)? {
        ImageFormat::Jpeg => jpeg::memory_of(bytes, resized).and_then(|(size, each)| of(size, each)),
        ImageFormat::Png => {
            let metadata = png::Limits { bytes: PNG_METADATA_BYTES_MAX };
            let reader = png::Decoder::new_with_limits(Cursor::new(bytes), metadata).read_info().ok()?;
            let info = reader.info();
            let sample_bytes = if info.bit_depth == BitDepth::Sixteen { 2 } else { 1 };
            // With transparency, for any colour type.
            of(info.size(), bytes_each(4 * sample_bytes))
        }
        ImageFormat::WebP => {
            let found = containers::inspect_webp(bytes).ok()?;
            of((found.largest.1, found.largest.2), bytes_each(4))
        }
    }));
    found.ok().flatten().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0)
}

/// Decodes any bytes with small limits, for the fuzzers; true for a photograph. Its bytes fill its size, within the
/// limits. The fuzzer's panic hook must not abort, because a decoder's panic is an error here.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_image(data: &[u8]) -> bool {
    let limits = DecodeLimits { max_pixels: 1 << 20 };
    let Ok(Rgb8Image { width, height, pixels }) = decode(data, limits) else { return false };
    assert!(width > 0 && height > 0 && limits.check((width, height)).is_ok(), "{width}x{height}");
    assert_eq!(pixels.len(), width as usize * height as usize * 3);
    true
}

/// Decodes any bytes at each scale, for the fuzzers; true for a photograph that was scaled down. Its size is the one
/// that the library finds, which decodes the same bytes as a whole.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_scaled_jpeg(data: &[u8]) -> bool {
    let limits = DecodeLimits { max_pixels: 1 << 20 };
    let scaled = [2, 4, 8].map(|denominator| {
        let resized = |side: u32| 2 * side / (3 * denominator);
        let hold = &mut MemoryAccount::unlimited().hold();
        let decoded = decode_within(data, limits, &|(width, height)| (resized(width), resized(height)), hold);
        decoded.ok().filter(|photograph| photograph.denominator > 1)
    });
    for photograph in scaled.iter().flatten() {
        let Photograph { image, size: (width, height), denominator, .. } = photograph;
        let sides = (width.div_ceil(*denominator), height.div_ceil(*denominator));
        assert_eq!((image.width, image.height), sides, "{width}x{height}");
        assert_eq!(image.pixels.len(), image.width as usize * image.height as usize * 3);
        let whole = decode(data, limits).expect("the library decodes what is decoded scaled down");
        assert_eq!((whole.width, whole.height), (*width, *height));
    }
    scaled.iter().any(Option::is_some)
}

fn decode_png(bytes: &[u8], limits: DecodeLimits, hold: &mut MemoryReservation) -> Result<Rgb8Image, ImageError> {
    let metadata = png::Limits { bytes: PNG_METADATA_BYTES_MAX };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), metadata);
    // Palettes become colours, and fewer than 8 bits become 8. 16 bits stay, to be rounded.
    decoder.set_transformations(Transformations::EXPAND);
    let mut reader = decoder.read_info().map_err(refused_png)?;
    let size = reader.info().size();
    limits.check(size)?;
    let (color, depth) = reader.output_color_type();
    let sample_bytes = if depth == BitDepth::Sixteen { 2 } else { 1 };
    take_memory(hold, size, bytes_each(color.samples() * sample_bytes))?;
    let orientation = reader.info().exif_metadata.as_deref().map(Orientation::from_exif).unwrap_or_default();

    let mut samples = vec![0; buffer_size(ImageFormat::Png, reader.output_buffer_size())?];
    reader.next_frame(&mut samples).map_err(refused_png)?;
    if sample_bytes == 2 {
        samples = samples.as_chunks().0.iter().map(|sample| rounded(u16::from_be_bytes(*sample))).collect();
    }
    let pixels = match color {
        ColorType::Rgb => samples,
        ColorType::Rgba => blend_with_white(samples.as_chunks().0.iter().copied()),
        ColorType::Grayscale => samples.iter().map(|gray| [*gray; 3]).collect::<Vec<_>>().into_flattened(),
        ColorType::GrayscaleAlpha => {
            blend_with_white(samples.as_chunks().0.iter().map(|&[gray, alpha]| [gray, gray, gray, alpha]))
        }
        ColorType::Indexed => return Err(malformed(ImageFormat::Png, "it has a palette and no colours")),
    };
    upright(ImageFormat::Png, pixels, size, orientation)
}

fn decode_webp(bytes: &[u8], limits: DecodeLimits, hold: &mut MemoryReservation) -> Result<Rgb8Image, ImageError> {
    let found = containers::inspect_webp(bytes).map_err(|_| ImageError::CutOff { format: ImageFormat::WebP })?;
    let (_, width, height) = found.largest;
    limits.check((width, height))?;
    let mut decoder = WebPDecoder::new(Cursor::new(found.file)).map_err(refused_webp)?;
    let size = decoder.dimensions();
    limits.check(size)?;
    take_memory(hold, size, bytes_each(if decoder.has_alpha() { 4 } else { 3 }))?;
    // The decoder's own method for Exif would allocate any size that the chunk claims.
    let orientation = found.exif.map(Orientation::from_exif).unwrap_or_default();

    let mut samples = vec![0; buffer_size(ImageFormat::WebP, decoder.output_buffer_size())?];
    decoder.read_image(&mut samples).map_err(refused_webp)?;
    let pixels = if decoder.has_alpha() { blend_with_white(samples.as_chunks().0.iter().copied()) } else { samples };
    upright(ImageFormat::WebP, pixels, size, orientation)
}

/// The memory for a pixel that is decoded to a number of bytes: these, and a copy with 8 bits a sample or as RGB.
/// Turning it takes twice 3 bytes.
fn bytes_each(decoded: usize) -> u64 {
    u64::try_from(decoded + 4).unwrap_or(u64::MAX).max(6)
}

/// The bytes of a decoder's pixels; it has none for a picture beyond the address space.
fn buffer_size(format: ImageFormat, bytes: Option<usize>) -> Result<usize, ImageError> {
    bytes.ok_or_else(|| malformed(format, "it is larger than the memory"))
}

/// A 16-bit sample as 8 bits, the nearest.
fn rounded(sample: u16) -> u8 {
    u8::try_from((u32::from(sample) + 128) / 257).unwrap_or(u8::MAX)
}

/// Blends transparent pixels with white; returns RGB.
fn blend_with_white(pixels: impl ExactSizeIterator<Item = [u8; 4]>) -> Vec<u8> {
    let blended = pixels.map(|[red, green, blue, alpha]| {
        let blend = |channel: u8| {
            let sum = u16::from(channel) * u16::from(alpha) + 255 * (255 - u16::from(alpha));
            u8::try_from((sum + 127) / 255).unwrap_or(u8::MAX)
        };
        [blend(red), blend(green), blend(blue)]
    });
    blended.collect::<Vec<_>>().into_flattened()
}

fn refused_png(error: png::DecodingError) -> ImageError {
    match error {
        png::DecodingError::IoError(error) => refused_by_reader(ImageFormat::Png, &error),
        error => malformed(ImageFormat::Png, error),
    }
}

fn refused_webp(error: image_webp::DecodingError) -> ImageError {
    match error {
        image_webp::DecodingError::IoError(error) => refused_by_reader(ImageFormat::WebP, &error),
        error => malformed(ImageFormat::WebP, error),
    }
}

/// Converts an error of reading the bytes. A file that is cut off has a separate error.
fn refused_by_reader(format: ImageFormat, error: &io::Error) -> ImageError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => ImageError::CutOff { format },
        _ => malformed(format, error),
    }
}

#[cfg(test)]
mod tests;
