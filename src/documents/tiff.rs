//! Pages of a TIFF file: scans and faxes, each a picture.

use std::io::Cursor;

use tiff::decoder::ifd::Value;
use tiff::decoder::{Decoder, DecodingResult, Limits};
use tiff::tags::Tag;
use tiff::{ColorType, TiffError};

use crate::order::{DocumentDefect, DocumentLimits};
use crate::pdf::DrawnPage;

/// The most pixels of a page in the file: A3 at 600 dpi has 70 million.
const PIXELS_MAX: u64 = 100_000_000;
/// The flag of `NewSubfileType` for a smaller copy of another page.
const SMALLER_COPY: u32 = 1;
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
        let mut decoder = self.decoder()?;
        let mut page = 1;
        loop {
            if is_page(&mut decoder) {
                take(picture(&mut decoder, page, self.limits)?)?;
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

fn picture(
    decoder: &mut Decoder<Cursor<&[u8]>>,
    page: usize,
    limits: DocumentLimits,
) -> Result<DrawnPage, DocumentDefect> {
    let wrong = |error: TiffError| undecodable(page, &error);
    let (width, height) = decoder.dimensions().map_err(wrong)?;
    if u64::from(width) * u64::from(height) > PIXELS_MAX {
        return Err(DocumentDefect::Image { page, width, height, most: PIXELS_MAX / 1_000_000 });
    }
    let color = decoder.colortype().map_err(wrong)?;
    let unknown =
        || DocumentDefect::Undecodable { page, reason: format!("its colours are {color:?}, which is not read") };
    let stretch = stretch(decoder);
    let (width, height) = (width as usize, height as usize);
    let samples = TiffSamples::of(decoder.read_image().map_err(wrong)?, color, width).ok_or_else(unknown)?;
    if width == 0 || height == 0 || samples.rows() < height {
        return Err(DocumentDefect::Undecodable { page, reason: "it is cut off".to_owned() });
    }

    let most = usize::try_from(limits.pixels_max).unwrap_or(usize::MAX);
    let factor =
        (1..width.max(height)).find(|factor| (width / factor) * (height * stretch / factor) <= most).unwrap_or(1);
    let (wide, high) = ((width / factor).max(1), (height * stretch / factor).max(1));
    let mut pixels = Vec::with_capacity(3 * wide * high);
    for row in 0..high {
        for column in 0..wide {
            // The mean of a square of pixels.
            let (mut sums, mut count) = ([0_u32; 3], 0);
            for y in row * factor..(row + 1) * factor {
                for x in (column * factor..(column + 1) * factor).take_while(|x| *x < width) {
                    let rgb = samples.rgb(x, (y / stretch).min(height - 1)).ok_or_else(unknown)?;
                    sums.iter_mut().zip(rgb).for_each(|(sum, value)| *sum += u32::from(value));
                    count += 1;
                }
            }
            pixels.extend(sums.map(|sum| u8::try_from(sum / count.max(1)).unwrap_or(u8::MAX)));
        }
    }
    let side = |pixels: usize| u32::try_from(pixels).unwrap_or(u32::MAX);
    Ok(DrawnPage::Picture { width: side(wide), height: side(high), pixels })
}

/// The number of times that a row has to be repeated: a fax has fewer dots per inch down than across.
fn stretch(decoder: &mut Decoder<Cursor<&[u8]>>) -> usize {
    let mut dots = |tag| match decoder.find_tag(tag).ok().flatten() {
        Some(Value::Rational(above, below)) if below > 0 => Some(f64::from(above) / f64::from(below)),
        _ => None,
    };
    let (Some(across), Some(down)) = (dots(Tag::XResolution), dots(Tag::YResolution)) else { return 1 };
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
