//! Decodes a JPEG: a plain one no larger than needed, any other as a whole.

use ledge_base::memory_budget::{MemoryBudgetExhausted, MemoryReservation};
use zune_core::bytestream::{ZByteReaderTrait, ZCursor};
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;

use super::Photograph;
use super::error::{ImageError, malformed};
use super::format::ImageFormat;
use super::limits::{DecodeLimits, ResizedSize, take_memory};
use super::rgb8::SIDE_MAX;
use super::scaled_jpeg::{self, JpegScale};
use super::upright::upright;
use crate::pipeline::containers;
use crate::pipeline::orientation::Orientation;

/// The most scans of a progressive JPEG. Encoders write about ten, and each costs a pass over the whole picture.
const SCANS_MAX: usize = 32;

/// The end marker of a JPEG (EOI).
const JPEG_END: &[u8] = b"\xFF\xD9";

/// Eight bits of 1, stuffed. A code word of only 1-bits is reserved (ITU-T T.81, section C.2), so no scan contains it.
///
/// The decoder reads an end marker as endless zeros and paints the rest grey. A picture that was cut off and then got
/// an end marker, as from some cameras, would be accepted. With ones before the marker the decoder finds a code that
/// does not exist. It finishes a complete picture before it reads them, even one that lacks only its end marker. A
/// progressive picture with an end marker and without its last scans is still accepted: it is coarser, but complete.
const INVALID_CODE: &[u8] = b"\xFF\x00";

/// Decodes a JPEG that will be resized to [`ResizedSize`].
pub(super) fn decode(
    bytes: &[u8],
    limits: DecodeLimits,
    resized: ResizedSize<'_>,
    hold: &mut MemoryReservation,
) -> Result<Photograph, ImageError> {
    match decode_scaled(bytes, limits, resized, hold)? {
        Some(photograph) => Ok(photograph),
        None => decode_whole(bytes, limits, hold),
    }
}

/// The size at which a JPEG is decoded that will be resized, and the memory of a pixel of it.
pub(super) fn memory_of(bytes: &[u8], resized: ResizedSize<'_>) -> Option<((u32, u32), u64)> {
    let JpegHeaders { size, is_baseline, orientation } = JpegHeaders::read(&mut library(bytes)).ok()?;
    let upright = orientation.upright_size(size);
    let scale = JpegScale::for_resize(upright, resized(upright)).filter(|_| is_baseline);
    let whole = if is_baseline { 3 } else { 9 };
    Some(
        scale.map_or((size, whole + turning_bytes(orientation)), |scale| {
            (scale.size(size), 3 + turning_bytes(orientation))
        }),
    )
}

/// Decodes a JPEG scaled down. `None` where that is not possible, or not enough of it would be left.
fn decode_scaled(
    bytes: &[u8],
    limits: DecodeLimits,
    resized: ResizedSize<'_>,
    hold: &mut MemoryReservation,
) -> Result<Option<Photograph>, MemoryBudgetExhausted> {
    let headers = JpegHeaders::read(&mut library(bytes)).ok().filter(|headers| headers.is_baseline);
    let Some(JpegHeaders { size, orientation, .. }) = headers else { return Ok(None) };
    let is_allowed = limits.check(size).is_ok();
    let upright = orientation.upright_size(size);
    let Some(scale) = JpegScale::for_resize(upright, resized(upright)).filter(|_| is_allowed) else { return Ok(None) };

    let before = hold.bytes();
    take_memory(hold, scale.size(size), 3 + turning_bytes(orientation))?;
    match scaled_jpeg::decode(bytes, scale) {
        Some(image) => Ok(Some(Photograph::scaled(image, size, scale.denominator(), orientation))),
        None => hold.resize(before).map(|()| None),
    }
}

/// Decodes a JPEG as a whole.
fn decode_whole(bytes: &[u8], limits: DecodeLimits, hold: &mut MemoryReservation) -> Result<Photograph, ImageError> {
    let refused = |reason: DecodeErrors| malformed(ImageFormat::Jpeg, reason);
    let cut_off = || ImageError::CutOff { format: ImageFormat::Jpeg };
    let scans = containers::jpeg_scans(bytes).map_err(|_| cut_off())?;
    let mut library = library([scans.bytes, &INVALID_CODE.repeat(8), JPEG_END].concat());
    let JpegHeaders { size, is_baseline, orientation } = JpegHeaders::read(&mut library).map_err(refused)?;
    limits.check(size)?;

    // A progressive picture keeps coefficients until the last scan.
    take_memory(hold, size, if is_baseline { 3 } else { 9 } + turning_bytes(orientation))?;
    let pixels = library.decode().map_err(|reason| if scans.is_ended { refused(reason) } else { cut_off() })?;
    upright(ImageFormat::Jpeg, pixels, size, orientation).map(Photograph::from)
}

/// The library's decoder. Its strict mode refuses damaged and missing data, which it would paint grey.
fn library<B: AsRef<[u8]>>(bytes: B) -> JpegDecoder<ZCursor<B>> {
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(SIDE_MAX as usize)
        .set_max_height(SIDE_MAX as usize)
        .jpeg_set_max_scans(SCANS_MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    JpegDecoder::new_with_options(ZCursor::new(bytes), options)
}

/// The facts in the headers of a JPEG.
struct JpegHeaders {
    /// Width and height, not yet turned upright.
    size: (u32, u32),
    is_baseline: bool,
    orientation: Orientation,
}

impl JpegHeaders {
    fn read(library: &mut JpegDecoder<impl ZByteReaderTrait>) -> Result<Self, DecodeErrors> {
        library.decode_headers()?;
        let info = library.info();
        Ok(Self {
            size: info.as_ref().map(|info| (info.width.into(), info.height.into())).unwrap_or_default(),
            is_baseline: info.is_some_and(|info| info.sof.is_sequential_dct()),
            orientation: library.exif().map(|exif| Orientation::from_exif(exif)).unwrap_or_default(),
        })
    }
}

/// The memory for a pixel of a picture that is turned: it is in memory twice.
fn turning_bytes(orientation: Orientation) -> u64 {
    if orientation.is_upright() { 0 } else { 3 }
}
