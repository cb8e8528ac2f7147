//! Decodes a plain JPEG at 1/2, 1/4 or 1/8 of its size: the low frequencies of each block are transformed to a smaller
//! block, and the high ones are skipped. This takes half of the time, or less, of decoding the whole picture.
//!
//! It takes only the format that cameras send: baseline, 8 bits, gray or YCbCr with whole or halved colours, one scan
//! that ends with the file's end marker. For another format, and for damage, it returns `None`: the caller then decodes
//! the whole picture, which gives the proper error.
//!
//! Files, in reading order:
//! * `scaled_jpeg.rs` - the scan: blocks into rows of pixels
//! * `scaled_jpeg/scale.rs` - the scales
//! * `scaled_jpeg/band.rs` - the samples of one component
//! * `scaled_jpeg/headers.rs` - the segments before the scan
//! * `scaled_jpeg/huffman.rs` - the codes of the scan
//! * `scaled_jpeg/transform.rs` - frequencies into samples
//! * `scaled_jpeg/color.rs` - samples into RGB

mod band;
mod color;
mod headers;
mod huffman;
mod scale;
mod transform;

use self::huffman::ScanBitReader;
use super::rgb8::Rgb8Image;
use band::McuRowBand;
pub(super) use scale::JpegScale;

/// Decodes a plain JPEG, not yet turned upright; `None` for any other file.
pub(super) fn decode(file: &[u8], scale: JpegScale) -> Option<Rgb8Image> {
    let (frame, scan) = headers::read(file)?;
    let (width, height) = scale.size((frame.width, frame.height));
    let (columns, rows) = frame.mcus();
    let mut bands: Vec<_> = frame
        .components
        .iter()
        .map(|component| McuRowBand::new(&frame, component, scale, columns))
        .collect::<Option<_>>()?;

    let line_length = width as usize * 3;
    let mut pixels = vec![0; line_length * height as usize];
    let lines_of_mcu = frame.blocks_of_mcu().1 * 8 / scale.denominator() as usize;
    let mut lines = pixels.chunks_mut(line_length * lines_of_mcu);
    let mut bits = ScanBitReader::new(scan);
    let mut restarts = RestartMarkers { interval: frame.restart_interval, left: frame.restart_interval, number: 0 };
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
struct RestartMarkers {
    /// The number of MCUs of an interval; 0 is one interval.
    interval: u32,
    /// The MCUs that are left of this one.
    left: u32,
    /// The number of the next marker, 0 to 7.
    number: u8,
}

impl RestartMarkers {
    /// Passes by the marker before an MCU, if there must be one.
    fn before_mcu(&mut self, bits: &mut ScanBitReader<'_>, bands: &mut [McuRowBand]) -> Option<()> {
        if self.interval == 0 {
            return Some(());
        }
        if self.left == 0 {
            let behind = bits.end()?.strip_prefix(&[0xFF, 0xD0 + self.number])?;
            *bits = ScanBitReader::new(behind);
            for band in bands {
                band.prediction = 0;
            }
            (self.left, self.number) = (self.interval, (self.number + 1) % 8);
        }
        self.left -= 1;
        Some(())
    }
}

#[cfg(test)]
mod tests;
