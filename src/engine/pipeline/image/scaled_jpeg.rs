//! Decodes a plain JPEG at 1/2, 1/4 or 1/8 of its size: the low frequencies of each block are transformed to a smaller
//! block, and the high ones are only passed by. Half of the time, or less, of decoding the whole picture.
//!
//! It takes what cameras send and nothing else: baseline, 8 bits, gray or YCbCr with whole or halved colours, one scan
//! that ends with the file's end marker. Anything else, and anything wrong, is `None`: the caller then decodes the whole
//! picture, and has the error that belongs to it.
//!
//! Files, in reading order:
//! * `scaled_jpeg.rs` - the scan: blocks into rows of pixels
//! * `scaled_jpeg/headers.rs` - the segments before the scan
//! * `scaled_jpeg/huffman.rs` - the codes of the scan
//! * `scaled_jpeg/transform.rs` - frequencies into samples
//! * `scaled_jpeg/color.rs` - samples into RGB

mod color;
mod headers;
mod huffman;
mod transform;

use self::headers::{JpegComponent, JpegFrame};
use self::huffman::Bits;
use self::transform::Inverse;
use super::Rgb8Image;

/// The scales at which a JPEG is decoded: a block of 8x8 pixels becomes one of 4x4, 2x2 or 1x1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JpegScale {
    Half,
    Quarter,
    Eighth,
}

impl JpegScale {
    /// The scale that leaves the fewest pixels, yet at least 1.5 times the size that the picture will be resized to, in
    /// both directions. With less the resize would have pixels of its own that a whole picture does not lead to.
    pub(super) fn for_resize((width, height): (u32, u32), resized: (u32, u32)) -> Option<Self> {
        let leaves_enough = |scale: &Self, side: u32, resized: u32| {
            2 * u64::from(side) >= 3 * u64::from(scale.denominator()) * u64::from(resized)
        };
        [Self::Eighth, Self::Quarter, Self::Half]
            .into_iter()
            .find(|scale| leaves_enough(scale, width, resized.0) && leaves_enough(scale, height, resized.1))
    }

    /// The number of pixels, in each direction, that become one.
    pub(super) fn denominator(self) -> u32 {
        match self {
            Self::Half => 2,
            Self::Quarter => 4,
            Self::Eighth => 8,
        }
    }

    /// Width and height of a scaled picture. The last column and row may stand for less than a whole pixel.
    pub(super) fn size(self, (width, height): (u32, u32)) -> (u32, u32) {
        (width.div_ceil(self.denominator()), height.div_ceil(self.denominator()))
    }
}

/// Where a component's blocks of one row of MCUs are decoded to.
struct Band {
    /// Turns a block into samples. The colours' blocks become larger ones where there are fewer of them.
    inverse: Inverse,
    /// The index of the last coefficient that it uses.
    last: usize,
    /// Width and height of a block's samples.
    block_size: (usize, usize),
    /// The samples of a line.
    stride: usize,
    samples: Vec<u8>,
    /// The value that the next block's mean is relative to.
    prediction: i32,
}

/// Decodes a plain JPEG, not yet turned upright; `None` for any other file.
pub(super) fn decode(file: &[u8], scale: JpegScale) -> Option<Rgb8Image> {
    let (frame, scan) = headers::read(file)?;
    let (width, height) = scale.size((frame.width, frame.height));
    let (columns, rows) = frame.mcus();
    let mut bands: Vec<_> =
        frame.components.iter().map(|component| Band::new(&frame, component, scale, columns)).collect::<Option<_>>()?;

    let line_length = width as usize * 3;
    let mut pixels = vec![0; line_length * height as usize];
    let lines_of_mcu = frame.blocks_of_mcu().1 * 8 / scale.denominator() as usize;
    let mut lines = pixels.chunks_mut(line_length * lines_of_mcu);
    let mut bits = Bits::new(scan);
    let mut restarts = Restarts { interval: frame.restart_interval, left: frame.restart_interval, number: 0 };
    for _ in 0..rows {
        for column in 0..columns {
            restarts.before_mcu(&mut bits, &mut bands)?;
            for (component, band) in frame.components.iter().zip(&mut bands) {
                band.decode(component, &mut bits, column)?;
            }
            bits.check()?;
        }
        color::convert(&bands, lines.next()?.chunks_exact_mut(line_length));
    }
    // Bytes behind the picture and a missing end are the library's to judge.
    if !bits.end()?.starts_with(b"\xFF\xD9") {
        return None;
    }
    Rgb8Image::new(width, height, pixels)
}

/// The markers between the intervals of a scan.
struct Restarts {
    /// The number of MCUs of an interval; 0 is one interval.
    interval: u32,
    /// The MCUs that are left of this one.
    left: u32,
    /// The number of the next marker, 0 to 7.
    number: u8,
}

impl Restarts {
    /// Passes by the marker before an MCU, if there must be one.
    fn before_mcu(&mut self, bits: &mut Bits<'_>, bands: &mut [Band]) -> Option<()> {
        if self.interval == 0 {
            return Some(());
        }
        if self.left == 0 {
            let behind = bits.end()?.strip_prefix(&[0xFF, 0xD0 + self.number])?;
            *bits = Bits::new(behind);
            for band in bands {
                band.prediction = 0;
            }
            (self.left, self.number) = (self.interval, (self.number + 1) % 8);
        }
        self.left -= 1;
        Some(())
    }
}

impl Band {
    fn new(frame: &JpegFrame, component: &JpegComponent, scale: JpegScale, columns: usize) -> Option<Self> {
        let ((across, down), side) = (frame.blocks_of_mcu(), 8 / scale.denominator() as usize);
        let block_size = (side * across / component.across, side * down / component.down);
        let stride = columns * across * side;
        let samples = vec![0; stride * down * side];
        let inverse = Inverse::to(block_size)?;
        Some(Self { last: inverse.last(), inverse, block_size, stride, samples, prediction: 0 })
    }

    /// Decodes the component's blocks of one MCU.
    fn decode(&mut self, component: &JpegComponent, bits: &mut Bits<'_>, column: usize) -> Option<()> {
        let (width, height) = self.block_size;
        for y in 0..component.down {
            for x in 0..component.across {
                let mut block = transform::Block::default();
                bits.read_block(component, self.last, &mut self.prediction, &mut block)?;
                let start = y * height * self.stride + (column * component.across + x) * width;
                self.inverse.apply(&block, self.samples.get_mut(start..)?, self.stride);
            }
        }
        Some(())
    }

    /// The lines of samples.
    fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.samples.chunks_exact(self.stride)
    }
}

#[cfg(test)]
mod tests;
