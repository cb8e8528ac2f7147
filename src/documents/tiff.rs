//! Pages of a TIFF file: scans and faxes, each a picture.

use std::io::Cursor;

use image::ExtendedColorType;
use png::BitDepth;
use tiff::decoder::ifd::Value;
use tiff::decoder::{Decoder, DecodingResult, Limits};
use tiff::tags::{CompressionMethod, Tag};
use tiff::{ColorType, TiffError};

use crate::order::{DocumentDefect, DocumentLimits};
use crate::pdf::DrawnPage;
use crate::picture_page::PagePicture;
use crate::raster::{self, PIXELS_MAX};

/// The flag of `NewSubfileType` for a smaller copy of another page.
const SMALLER_COPY: u32 = 1;
/// The `ResolutionUnit` of dots per centimetre.
const CENTIMETER: u16 = 3;
/// The greatest factor between the two resolutions of a fax.
const STRETCH_MAX: usize = 4;

/// A TIFF file that can be opened.
pub(crate) struct TiffFile {
    file: Vec<u8>,
    pages: usize,
    limits: DocumentLimits,
}

impl TiffFile {
    pub fn open(file: Vec<u8>, limits: DocumentLimits) -> Result<Self, DocumentDefect> {
        let mut document = Self { file, pages: 0, limits };
        let mut decoder = document.decoder()?;
        let mut pages = 0;
        // Directories that point at each other have no end.
        for _ in 0..4 * limits.pages_max.saturating_add(1) {
            pages += usize::from(is_page(&mut decoder));
            if !decoder.more_images() {
                break;
            }
            decoder.next_image().map_err(|_| DocumentDefect::Damaged)?;
        }
        document.pages = pages;
        match pages {
            0 => Err(DocumentDefect::Empty),
            pages if pages > limits.pages_max => Err(DocumentDefect::Pages { pages, most: limits.pages_max }),
            _ => Ok(document),
        }
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Decodes page after page.
    pub fn draw<E: From<DocumentDefect>>(&self, mut take: impl FnMut(DrawnPage) -> Result<(), E>) -> Result<(), E> {
        self.each_page(|decoder, page| take(picture(decoder, page, self.limits)?))
    }

    /// Gives page after page as a PDF stores it, with all of its pixels.
    pub fn each_stored<E: From<DocumentDefect>>(
        &self,
        mut take: impl FnMut(PagePicture<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.each_page(|decoder, page| take(stored(decoder, page)?))
    }

    fn each_page<E: From<DocumentDefect>>(
        &self,
        mut take: impl FnMut(&mut Decoder<Cursor<&[u8]>>, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut decoder = self.decoder()?;
        let mut page = 1;
        loop {
            if is_page(&mut decoder) {
                take(&mut decoder, page)?;
                page += 1;
            }
            if page > self.pages || !decoder.more_images() {
                return Ok(());
            }
            decoder.next_image().map_err(|error| undecodable(page, &error))?;
        }
    }

    fn decoder(&self) -> Result<Decoder<Cursor<&[u8]>>, DocumentDefect> {
        let mut limits = Limits::default();
        limits.decoding_buffer_size = 6 * usize::try_from(PIXELS_MAX).unwrap_or(usize::MAX);
        limits.intermediate_buffer_size = limits.decoding_buffer_size;
        let decoder = Decoder::new(Cursor::new(self.file.as_slice())).map_err(|_| DocumentDefect::Damaged)?;
        Ok(decoder.with_limits(limits))
    }
}

fn undecodable(page: usize, error: &TiffError) -> DocumentDefect {
    DocumentDefect::Undecodable { page, reason: error.to_string() }
}

fn is_page(decoder: &mut Decoder<Cursor<&[u8]>>) -> bool {
    let kind = decoder.find_tag_unsigned::<u32>(Tag::NewSubfileType).ok().flatten();
    kind.unwrap_or(0) & SMALLER_COPY == 0
}

/// The samples of a page, and its width and height.
fn read(decoder: &mut Decoder<Cursor<&[u8]>>, page: usize) -> Result<(TiffSamples, usize, usize), DocumentDefect> {
    let wrong = |error: TiffError| undecodable(page, &error);
    let (width, height) = decoder.dimensions().map_err(wrong)?;
    raster::check_size(page, (width, height), PIXELS_MAX)?;
    let color = decoder.colortype().map_err(wrong)?;
    let (width, height) = (width as usize, height as usize);
    let stored = decoder.read_image().map_err(wrong)?;
    let samples = TiffSamples::of(stored, color, width).ok_or_else(|| unknown_colors(page, color))?;
    if width == 0 || height == 0 || samples.rows() < height {
        return Err(DocumentDefect::Undecodable { page, reason: "it is cut off".to_owned() });
    }
    Ok((samples, width, height))
}

fn unknown_colors(page: usize, color: ColorType) -> DocumentDefect {
    DocumentDefect::Undecodable { page, reason: format!("its colours are {color:?}, which is not read") }
}

fn picture(
    decoder: &mut Decoder<Cursor<&[u8]>>,
    page: usize,
    limits: DocumentLimits,
) -> Result<DrawnPage, DocumentDefect> {
    let stretch = stretch(decoder);
    let (samples, width, height) = read(decoder, page)?;
    let rgb = |x, y| samples.rgb(x, y / stretch);
    raster::drawn((width, height * stretch), limits, rgb).ok_or_else(|| unknown_colors(page, samples.color))
}

/// A page as a PDF stores it. A page of black and white becomes a fax whatever its compression was.
fn stored(decoder: &mut Decoder<Cursor<&[u8]>>, page: usize) -> Result<PagePicture<'static>, DocumentDefect> {
    let of_page = |defect: DocumentDefect| match defect {
        DocumentDefect::Undecodable { reason, .. } => DocumentDefect::Undecodable { page, reason },
        defect => defect,
    };
    let (samples, width, height) = read(decoder, page)?;
    let size = decoder.dimensions().map_err(|error| undecodable(page, &error))?;
    let compression = decoder.find_tag_unsigned::<u16>(Tag::Compression).ok().flatten();
    let is_jpeg =
        matches!(compression.map(CompressionMethod::from_u16_exhaustive), Some(CompressionMethod::ModernJPEG));
    let rows = samples.bytes.get(..height * samples.row_bytes).unwrap_or_default();
    let gray = match (samples.color, samples.bits) {
        (ColorType::Gray(_), 1) => Some(BitDepth::One),
        (ColorType::Gray(_), 2) => Some(BitDepth::Two),
        (ColorType::Gray(_), 4) => Some(BitDepth::Four),
        (ColorType::Gray(_), _) => Some(BitDepth::Eight),
        _ => None,
    };
    let fax = (gray == Some(BitDepth::One)).then(|| PagePicture::fax(size, rows)).flatten();
    let picture = match (fax, gray) {
        (Some(fax), _) => Ok(fax),
        (None, Some(BitDepth::Eight)) if is_jpeg => PagePicture::lossy(size, ExtendedColorType::L8, rows),
        (None, Some(depth)) => PagePicture::lossless(size, png::ColorType::Grayscale, depth, rows),
        (None, None) => {
            let mut pixels = Vec::with_capacity(3 * width * height);
            for (x, y) in (0..height).flat_map(|y| (0..width).map(move |x| (x, y))) {
                pixels.extend(samples.rgb(x, y).ok_or_else(|| unknown_colors(page, samples.color))?);
            }
            if is_jpeg {
                PagePicture::lossy(size, ExtendedColorType::Rgb8, &pixels)
            } else {
                PagePicture::lossless(size, png::ColorType::Rgb, BitDepth::Eight, &pixels)
            }
        }
    };
    Ok(picture.map_err(of_page)?.with_resolution(resolution(decoder)))
}

/// The dots per inch across and down.
fn resolution(decoder: &mut Decoder<Cursor<&[u8]>>) -> Option<(f64, f64)> {
    let unit = match decoder.find_tag_unsigned::<u16>(Tag::ResolutionUnit).ok().flatten() {
        Some(CENTIMETER) => 2.54,
        _ => 1.0,
    };
    dots(decoder).map(|(across, down)| (unit * across, unit * down))
}

/// The dots of a unit across and down.
fn dots(decoder: &mut Decoder<Cursor<&[u8]>>) -> Option<(f64, f64)> {
    let mut dots = |tag| match decoder.find_tag(tag).ok().flatten() {
        Some(Value::Rational(above, below)) if below > 0 => Some(f64::from(above) / f64::from(below)),
        _ => None,
    };
    dots(Tag::XResolution).zip(dots(Tag::YResolution))
}

/// The number of times that a row has to be repeated: a fax has fewer dots per inch down than across.
fn stretch(decoder: &mut Decoder<Cursor<&[u8]>>) -> usize {
    let Some((across, down)) = dots(decoder) else { return 1 };
    (1..=STRETCH_MAX)
        .rev()
        .find(|times| {
            #[expect(clippy::cast_precision_loss, reason = "up to STRETCH_MAX")]
            let times = *times as f64;
            across >= (times - 0.5) * down && across < (times + 0.5) * down
        })
        .unwrap_or(1)
}

/// The samples of a page as they are stored.
struct TiffSamples {
    bytes: Vec<u8>,
    color: ColorType,
    /// 1, 2, 4 or 8.
    bits: usize,
    of_pixel: usize,
    /// Each row begins with a new byte.
    row_bytes: usize,
}

impl TiffSamples {
    fn of(decoded: DecodingResult, color: ColorType, width: usize) -> Option<Self> {
        let depth = usize::from(color.bit_depth());
        let (bytes, bits) = match decoded {
            DecodingResult::U8(bytes) => (bytes, depth),
            // The upper half.
            DecodingResult::U16(words) if depth == 16 => {
                (words.into_iter().map(|word| word.to_be_bytes()[0]).collect(), 8)
            }
            _ => return None,
        };
        let of_pixel = usize::from(color.num_samples());
        let row_bytes = (width * of_pixel * bits).div_ceil(8);
        matches!(bits, 1 | 2 | 4 | 8).then_some(Self { bytes, color, bits, of_pixel, row_bytes })
    }

    fn rows(&self) -> usize {
        self.bytes.len() / self.row_bytes.max(1)
    }

    /// A sample as it is stored.
    fn sample(&self, x: usize, y: usize, index: usize) -> Option<u8> {
        let bit = (x * self.of_pixel + index) * self.bits;
        let byte = *self.bytes.get(y * self.row_bytes + bit / 8)?;
        if self.bits == 8 {
            return Some(byte);
        }
        Some(byte >> (8 - self.bits - bit % 8) & ((1 << self.bits) - 1))
    }

    /// The colour of a pixel on white paper; `None` for colours that are not read.
    fn rgb(&self, x: usize, y: usize) -> Option<[u8; 3]> {
        let sample = |index| self.sample(x, y, index);
        let most = u8::MAX >> (8 - self.bits);
        let scaled = |index| Some(u8::try_from(u32::from(sample(index)?) * 255 / u32::from(most)).unwrap_or(u8::MAX));
        let times = |a: u8, b: u8| u8::try_from((u32::from(a) * u32::from(b) + 127) / 255).unwrap_or(u8::MAX);
        let over_white = |value: u8, alpha: u8| times(value, alpha).saturating_add(255 - alpha);
        match self.color {
            ColorType::Gray(_) | ColorType::Multiband { .. } => Some([scaled(0)?; 3]),
            ColorType::GrayA(_) => Some([over_white(scaled(0)?, scaled(1)?); 3]),
            ColorType::RGB(_) => Some([scaled(0)?, scaled(1)?, scaled(2)?]),
            ColorType::RGBA(_) => {
                let alpha = scaled(3)?;
                Some([scaled(0)?, scaled(1)?, scaled(2)?].map(|value| over_white(value, alpha)))
            }
            ColorType::CMYK(_) => {
                let light = 255 - scaled(3)?;
                Some([scaled(0)?, scaled(1)?, scaled(2)?].map(|ink| times(255 - ink, light)))
            }
            ColorType::YCbCr(_) => {
                let (luma, blue, red) =
                    (f32::from(scaled(0)?), f32::from(scaled(1)?) - 128.0, f32::from(scaled(2)?) - 128.0);
                let rgb = [luma + 1.402 * red, luma - 0.344_14 * blue - 0.714_14 * red, luma + 1.772 * blue];
                Some(rgb.map(|value| {
                    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 255")]
                    let value = value.round().clamp(0.0, 255.0) as u8;
                    value
                }))
            }
            _ => None,
        }
    }
}

/// Opens a TIFF and decodes its first pages, within small bounds; true when it has one. The folder `fuzz/` and
/// `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_tiff(data: &[u8]) -> bool {
    let limits = DocumentLimits { pixels_max: 10_000, ..DocumentLimits::new(3, 1000) };
    let Ok(document) = TiffFile::open(data.to_vec(), limits) else { return false };
    let is_small = document.decoder().is_ok_and(|mut decoder| {
        decoder.dimensions().is_ok_and(|(width, height)| u64::from(width) * u64::from(height) <= 1_000_000)
    });
    let mut pages = 0;
    if is_small {
        let _ = document.draw::<DocumentDefect>(|page| {
            if let DrawnPage::Picture { width, height, pixels } = page {
                assert_eq!(pixels.len() as u64, 3 * u64::from(width) * u64::from(height));
            }
            pages += 1;
            // One page: the others may be larger.
            Err(DocumentDefect::Empty)
        });
    }
    pages > 0
}
