//! A picture as a page of a PDF. Its pixels are those that were sent: a JPEG and most PNGs are embedded as they are,
//! other pictures are compressed without loss. Pictures with a lossy compression that a PDF does not know become JPEG.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Cursor;

use image::codecs::jpeg::JpegEncoder;
use image::metadata::Orientation;
use image::{ExtendedColorType, ImageEncoder as _};
use image_webp::WebPDecoder;
use png::{BitDepth, ColorType, Transformations};

use crate::bitmap::Bitmap;
use crate::order::DocumentDefect;
use crate::pdf_writer::decimal;
use crate::raster;

/// The most pixels of a picture that is decoded. The photograph of a telephone with 8192 x 6144 has 50.3 million.
pub const PICTURE_PIXELS_MAX: u64 = 52_000_000;
/// The most pixels that are compressed well. 52 million would take most of the CPU time that a document has.
const BALANCED_PIXELS_MAX: u64 = 10_000_000;
/// The resolution of a picture that states none.
const DOTS_PER_INCH: f64 = 200.0;
/// The resolutions that are taken as stated. 72 and 96 are what programs write that do not know it.
const RESOLUTIONS: std::ops::RangeInclusive<f64> = 100.0..=2400.0;
/// The longest side of a page in points (ISO 32000-2, annex C).
const SIDE_MAX: f64 = 14_400.0;
/// The quality of a JPEG that takes the place of another lossy compression.
const JPEG_QUALITY: u8 = 90;

/// A picture as a PDF stores it.
pub(crate) struct PagePicture<'a> {
    width: u32,
    height: u32,
    /// The entries of its dictionary.
    pub entries: String,
    pub data: Cow<'a, [u8]>,
    orientation: Orientation,
    /// Dots per inch across and down, as stored.
    resolution: Option<(f64, f64)>,
}

/// Reads a JPEG, PNG, WebP, GIF or BMP picture.
pub(crate) fn read(file: &[u8]) -> Result<PagePicture<'_>, DocumentDefect> {
    match file {
        [0xFF, 0xD8, ..] => jpeg(file).ok_or(DocumentDefect::Damaged),
        [0x89, b'P', b'N', b'G', ..] => png(file),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => webp(file),
        _ => Bitmap::read(file)?.stored(),
    }
}

impl<'a> PagePicture<'a> {
    /// `more` are the entries for its colours and its compression.
    fn new((width, height): (u32, u32), more: &str, data: impl Into<Cow<'a, [u8]>>) -> Self {
        let entries = format!("/Type/XObject/Subtype/Image/Width {width}/Height {height}{more}");
        Self { width, height, entries, data: data.into(), orientation: Orientation::NoTransforms, resolution: None }
    }

    /// Compresses samples without loss. Each row begins with a new byte.
    pub fn lossless(
        (width, height): (u32, u32),
        color: ColorType,
        depth: BitDepth,
        samples: &[u8],
    ) -> Result<Self, DocumentDefect> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, width, height);
        encoder.set_color(color);
        encoder.set_depth(depth);
        if u64::from(width) * u64::from(height) > BALANCED_PIXELS_MAX {
            encoder.set_compression(png::Compression::Fast);
        }
        let mut writer = encoder.write_header().map_err(|error| undecodable(&error))?;
        writer.write_image_data(samples).map_err(|error| undecodable(&error))?;
        writer.finish().map_err(|error| undecodable(&error))?;
        let colors = if color == ColorType::Grayscale { "/DeviceGray" } else { "/DeviceRGB" };
        Ok(Self::of_png((width, height), colors, color, depth, &file))
    }

    /// Compresses RGB pixels without loss: in gray, or as a fax, where all of them are.
    pub fn of_pixels(size: (u32, u32), pixels: &[u8]) -> Result<Self, DocumentDefect> {
        let gray = |&[red, green, blue]: &[u8; 3]| (red == green && green == blue).then_some(red);
        let grays: Option<Vec<u8>> = pixels.as_chunks().0.iter().map(gray).collect();
        let Some(grays) = grays else { return Self::lossless(size, ColorType::Rgb, BitDepth::Eight, pixels) };

        let is_black_and_white = grays.iter().all(|gray| matches!(*gray, 0 | u8::MAX));
        let byte = |pixels: &[u8]| (0..8).fold(0, |byte, at| byte << 1 | pixels.get(at).map_or(0, |gray| gray & 1));
        let bits = || grays.chunks(size.0 as usize).flat_map(|row| row.chunks(8).map(byte)).collect::<Vec<u8>>();
        match is_black_and_white.then(|| Self::fax(size, &bits())).flatten() {
            Some(fax) => Ok(fax),
            None => Self::lossless(size, ColorType::Grayscale, BitDepth::Eight, &grays),
        }
    }

    /// The pixels of a PNG as they are: its compression is one of those of a PDF.
    fn of_png(size: (u32, u32), colors: &str, color: ColorType, depth: BitDepth, file: &[u8]) -> Self {
        let (samples, bits, width) = (color.samples(), depth as u8, size.0);
        let more = format!(
            "/ColorSpace{colors}/BitsPerComponent {bits}/Filter/FlateDecode\
             /DecodeParms<</Predictor 15/Colors {samples}/BitsPerComponent {bits}/Columns {width}>>"
        );
        let data = png_chunks(file).filter(|(kind, _)| *kind == b"IDAT").flat_map(|(_, body)| body);
        Self::new(size, &more, data.copied().collect::<Vec<u8>>())
    }

    /// Compresses pixels of one or three bytes as JPEG.
    pub fn lossy(size: (u32, u32), color: ExtendedColorType, pixels: &[u8]) -> Result<Self, DocumentDefect> {
        let mut file = Vec::new();
        let encoder = JpegEncoder::new_with_quality(&mut file, JPEG_QUALITY);
        encoder.write_image(pixels, size.0, size.1, color).map_err(|error| undecodable(&error))?;
        let colors = if color == ExtendedColorType::L8 { "Gray" } else { "RGB" };
        Ok(Self::new(size, &format!("/ColorSpace/Device{colors}/BitsPerComponent 8/Filter/DCTDecode"), file))
    }

    /// A page of black and white as a fax (ITU-T T.6). `bits` has a bit for each pixel, 1 for white.
    pub fn fax((width, height): (u32, u32), bits: &[u8]) -> Option<Self> {
        // The library counts in 16 bits with a sign.
        let columns = u16::try_from(width).ok().filter(|width| *width < 1 << 15)?;
        let mut encoder = fax::encoder::Encoder::new(fax::VecWriter::new());
        for row in bits.chunks(usize::from(columns).div_ceil(8)).take(height as usize) {
            let pixels = row.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1));
            let colors = pixels.map(|bit| if bit == 1 { fax::Color::White } else { fax::Color::Black });
            let Ok(()) = encoder.encode_line(colors.take(columns.into()), columns);
        }
        let Ok(writer) = encoder.finish();
        let more = format!(
            "/ColorSpace/DeviceGray/BitsPerComponent 1/Filter/CCITTFaxDecode\
             /DecodeParms<</K -1/Columns {width}/Rows {height}>>"
        );
        Some(Self::new((width, height), &more, writer.finish()))
    }

    #[must_use]
    pub fn with_resolution(self, resolution: Option<(f64, f64)>) -> Self {
        let is_stated = |(across, down): &(f64, f64)| RESOLUTIONS.contains(across) && *down >= 1.0 && *down <= 1e5;
        Self { resolution: resolution.filter(is_stated), ..self }
    }

    fn with_exif(self, exif: Option<&[u8]>) -> Self {
        let orientation = exif.and_then(Orientation::from_exif_chunk).unwrap_or(Orientation::NoTransforms);
        Self { orientation, ..self }
    }

    /// True where rows are columns of the page; true where left and right, and top and bottom, change places then.
    fn turns(&self) -> (bool, bool, bool) {
        match self.orientation {
            Orientation::NoTransforms => (false, false, false),
            Orientation::FlipHorizontal => (false, true, false),
            Orientation::Rotate180 => (false, true, true),
            Orientation::FlipVertical => (false, false, true),
            Orientation::Rotate90FlipH => (true, false, false),
            Orientation::Rotate90 => (true, true, false),
            Orientation::Rotate270FlipH => (true, true, true),
            Orientation::Rotate270 => (true, false, true),
        }
    }

    /// The size of the page.
    pub fn points(&self) -> (f64, f64) {
        let (across, down) = self.resolution.unwrap_or((DOTS_PER_INCH, DOTS_PER_INCH));
        let (width, height) = (72.0 * f64::from(self.width) / across, 72.0 * f64::from(self.height) / down);
        let shrunk = (SIDE_MAX / width.max(height)).min(1.0);
        let (width, height) = (width * shrunk, height * shrunk);
        if self.turns().0 { (height, width) } else { (width, height) }
    }

    /// The operators that draw it upright over the whole page.
    pub fn operators(&self, name: &str) -> String {
        let (width, height) = self.points();
        let (is_transposed, is_mirrored, is_flipped) = self.turns();
        // A corner of the stored picture on the page, both in shares that count up from the lower left corner.
        let place = |x: f64, y: f64| {
            let (x, y) = if is_transposed { (1.0 - y, 1.0 - x) } else { (x, y) };
            let x = if is_mirrored { 1.0 - x } else { x };
            let y = if is_flipped { 1.0 - y } else { y };
            (x * width, y * height)
        };
        let (origin, right, up) = (place(0.0, 0.0), place(1.0, 0.0), place(0.0, 1.0));
        let sides = [right.0 - origin.0, right.1 - origin.1, up.0 - origin.0, up.1 - origin.1, origin.0, origin.1];
        format!("q {} cm /{name} Do Q\n", sides.map(|side| decimal(side, 4)).join(" "))
    }
}

pub(crate) fn undecodable(error: &impl ToString) -> DocumentDefect {
    DocumentDefect::Undecodable { page: 1, reason: error.to_string() }
}

/// A JPEG as it is, by the segments before its first scan (ITU-T T.81, annex B).
fn jpeg(file: &[u8]) -> Option<PagePicture<'_>> {
    let (mut frame, mut exif, mut resolution, mut is_adobe) = (None, None, None, false);
    let mut rest = file.get(2..)?;
    loop {
        let marker = rest.iter().position(|byte| *byte == 0xFF)?;
        rest = rest.get(marker..)?;
        let code = *rest.get(1)?;
        if matches!(code, 0xFF | 0 | 1 | 0xD0..=0xD8) {
            rest = rest.get(if code == 0xFF { 1 } else { 2 }..)?;
            continue;
        }
        let length = u16::from_be_bytes(*rest.get(2..)?.first_chunk()?);
        let body = rest.get(4..2 + usize::from(length))?;
        rest = rest.get(2 + usize::from(length)..)?;
        let pair = |at: usize| Some(u16::from_be_bytes(*body.get(at..)?.first_chunk()?));
        match code {
            0xC4 | 0xC8 | 0xCC => {}
            0xC0..=0xCF => frame = Some((pair(3)?, pair(1)?, *body.get(5)?)),
            0xE0 if body.starts_with(b"JFIF\0") => {
                let unit = match body.get(7) {
                    Some(1) => 1.0,
                    Some(2) => 2.54,
                    _ => continue,
                };
                resolution = Some((f64::from(pair(8)?) * unit, f64::from(pair(10)?) * unit));
            }
            0xE1 if exif.is_none() => exif = body.strip_prefix(b"Exif\0\0"),
            0xEE => is_adobe |= body.starts_with(b"Adobe"),
            0xDA => break,
            0xD9 => return None,
            _ => {}
        }
    }
    let (width, height, components) = frame.filter(|(width, height, _)| *width > 0 && *height > 0)?;
    let colors = match components {
        1 => "Gray",
        3 => "RGB",
        4 if is_adobe => "CMYK/Decode[1 0 1 0 1 0 1 0]",
        4 => "CMYK",
        _ => return None,
    };
    let more = format!("/BitsPerComponent 8/Filter/DCTDecode/ColorSpace/Device{colors}");
    Some(PagePicture::new((width.into(), height.into()), &more, file).with_exif(exif).with_resolution(resolution))
}

/// A PNG as it is, unless it has transparent pixels or is interlaced.
fn png(file: &[u8]) -> Result<PagePicture<'_>, DocumentDefect> {
    let mut decoder = png::Decoder::new(Cursor::new(file));
    decoder.set_transformations(Transformations::EXPAND);
    let mut reader = decoder.read_info().map_err(|error| undecodable(&error))?;
    let info = reader.info();
    let (size, color, depth) = (info.size(), info.color_type, info.bit_depth);
    let alphas = info.trns.as_deref();
    let exif = info.exif_metadata.as_deref().map(<[u8]>::to_vec);
    let resolution = info.pixel_dims.filter(|dots| dots.unit == png::Unit::Meter);
    let resolution = resolution.map(|dots| (f64::from(dots.xppu) * 0.0254, f64::from(dots.yppu) * 0.0254));
    let colors = match (color, &info.palette) {
        _ if info.interlaced => None,
        (ColorType::Grayscale, _) if alphas.is_none() => Some("/DeviceGray".to_owned()),
        (ColorType::Rgb, _) if alphas.is_none() => Some("/DeviceRGB".to_owned()),
        (ColorType::Indexed, Some(palette)) => {
            let alphas = alphas.unwrap_or_default().iter().copied().chain(std::iter::repeat(u8::MAX));
            let entries = palette.as_chunks::<3>().0.iter().zip(alphas);
            let mut colors = format!("[/Indexed/DeviceRGB {} <", (palette.len() / 3).saturating_sub(1));
            for value in entries.flat_map(|(rgb, alpha)| rgb.map(|value| over_white(value, alpha))) {
                let _ = write!(colors, "{value:02X}");
            }
            Some(colors + ">]")
        }
        _ => None,
    };
    let picture = if let Some(colors) = colors {
        PagePicture::of_png(size, &colors, color, depth, file)
    } else {
        raster::check_size(1, size, PICTURE_PIXELS_MAX)?;
        let (color, depth) = reader.output_color_type();
        let mut samples = vec![0; reader.output_buffer_size().ok_or(DocumentDefect::Damaged)?];
        reader.next_frame(&mut samples).map_err(|error| undecodable(&error))?;
        if depth == BitDepth::Sixteen {
            samples = samples.as_chunks::<2>().0.iter().map(|[high, _]| *high).collect();
        }
        let (color, samples) = blended(color, samples);
        PagePicture::lossless(size, color, BitDepth::Eight, &samples)?
    };
    Ok(picture.with_exif(exif.as_deref()).with_resolution(resolution))
}

/// The chunks of a PNG: kind and body.
fn png_chunks(file: &[u8]) -> impl Iterator<Item = (&[u8; 4], &[u8])> {
    let mut rest = file.get(8..).unwrap_or_default();
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_be_bytes(*rest.first_chunk()?)).ok()?;
        let kind = rest.get(4..)?.first_chunk()?;
        let body = rest.get(8..length.checked_add(8)?)?;
        // The checksum.
        rest = rest.get(length.checked_add(12)?..).unwrap_or_default();
        Some((kind, body))
    })
}

fn webp(file: &[u8]) -> Result<PagePicture<'_>, DocumentDefect> {
    let mut decoder = WebPDecoder::new(Cursor::new(file)).map_err(|error| undecodable(&error))?;
    let size = decoder.dimensions();
    raster::check_size(1, size, PICTURE_PIXELS_MAX)?;
    let mut samples = vec![0; decoder.output_buffer_size().ok_or(DocumentDefect::Damaged)?];
    decoder.read_image(&mut samples).map_err(|error| undecodable(&error))?;
    let color = if decoder.has_alpha() { ColorType::Rgba } else { ColorType::Rgb };
    let (color, samples) = blended(color, samples);
    let picture = if decoder.is_lossy() {
        PagePicture::lossy(size, ExtendedColorType::Rgb8, &samples)?
    } else {
        PagePicture::lossless(size, color, BitDepth::Eight, &samples)?
    };
    Ok(picture.with_exif(webp_exif(file)))
}

/// The Exif data of a WebP, in one of its chunks.
fn webp_exif(file: &[u8]) -> Option<&[u8]> {
    let mut rest = file.get(12..)?;
    loop {
        let length = usize::try_from(u32::from_le_bytes(*rest.get(4..)?.first_chunk()?)).ok()?;
        let body = rest.get(8..length.checked_add(8)?)?;
        if rest.starts_with(b"EXIF") {
            return Some(body.strip_prefix(b"Exif\0\0").unwrap_or(body));
        }
        // A chunk has an even length.
        rest = rest.get(length.checked_add(8 + length % 2)?..)?;
    }
}

/// 8-bit samples without alpha: transparent pixels are blended with white, as the models read them.
pub(crate) fn blended(color: ColorType, samples: Vec<u8>) -> (ColorType, Vec<u8>) {
    match color {
        ColorType::Rgba => {
            let pixels = samples.as_chunks::<4>().0.iter();
            (ColorType::Rgb, pixels.flat_map(|&[r, g, b, alpha]| [r, g, b].map(|it| over_white(it, alpha))).collect())
        }
        ColorType::GrayscaleAlpha => {
            let pixels = samples.as_chunks::<2>().0.iter();
            (ColorType::Grayscale, pixels.map(|&[gray, alpha]| over_white(gray, alpha)).collect())
        }
        color => (color, samples),
    }
}

fn over_white(value: u8, alpha: u8) -> u8 {
    let sum = u16::from(value) * u16::from(alpha) + 255 * (255 - u16::from(alpha));
    u8::try_from((sum + 127) / 255).unwrap_or(u8::MAX)
}
