//! Writes plain JPEGs of every kind that the decoder takes. Its Huffman codes are of all lengths, and not those that
//! other encoders use.

use super::super::transform::ZIGZAG;

/// The kind of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct JpegEncoding {
    /// The sampling factors of luma; `None` is a gray picture.
    pub(super) luma: Option<u8>,
    pub(super) restart_interval: u16,
    /// The step of all coefficients.
    pub(super) step: u8,
    /// Exif's number.
    pub(super) orientation: u8,
}

/// The codes of 2, 5, 8, 10 and 16 bits of the AC table.
const AC_COUNTS: [u8; 16] = [0, 1, 0, 0, 7, 0, 0, 30, 0, 60, 0, 0, 0, 0, 0, 64];

/// Encodes a picture with pixels that a function computes.
pub(super) fn encode(
    (width, height): (u16, u16),
    encoding: JpegEncoding,
    pixel: impl Fn(usize, usize) -> [f32; 3],
) -> Vec<u8> {
    let luma = encoding.luma.unwrap_or(0x11);
    let sampling = if encoding.luma.is_some() { vec![luma, 0x11, 0x11] } else { vec![0x11] };
    let count = u8::try_from(sampling.len()).unwrap();
    let (across, down) = (usize::from(luma >> 4), usize::from(luma & 15));

    let mut file = b"\xFF\xD8".to_vec();
    let mut segment = |code: u8, body: &[u8]| {
        file.extend([0xFF, code]);
        file.extend(u16::try_from(body.len() + 2).unwrap().to_be_bytes());
        file.extend(body);
    };
    let orientation = [0, encoding.orientation];
    segment(0xE1, &[&b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01"[..], &orientation, &[0; 6]].concat());
    segment(0xDB, &[&[0][..], &[encoding.step; 64]].concat());
    let ids = (1..).zip(&sampling);
    let components: Vec<u8> = ids.clone().flat_map(|(id, sampling)| [id, *sampling, 0]).collect();
    segment(0xC0, &[&[8][..], &height.to_be_bytes(), &width.to_be_bytes(), &[count], &components].concat());
    let mut dc_counts = [0; 16];
    dc_counts[3] = 12;
    let (dc, ac) = ((0..12).collect::<Vec<u8>>(), ac_symbols());
    segment(0xC4, &[&[0x00][..], &dc_counts, &dc, &[0x10], &AC_COUNTS, &ac].concat());
    segment(0xDD, &encoding.restart_interval.to_be_bytes());
    let selectors: Vec<u8> = ids.flat_map(|(id, _)| [id, 0]).collect();
    segment(0xDA, &[&[count][..], &selectors, &[0, 63, 0]].concat());

    let (dc, ac) = (SymbolCodes::new(dc_counts, &dc), SymbolCodes::new(AC_COUNTS, &ac));
    let (columns, rows) = (usize::from(width).div_ceil(8 * across), usize::from(height).div_ceil(8 * down));
    let last = (usize::from(width) - 1, usize::from(height) - 1);
    let mut scan = ScanWriter { bytes: file, bits: Vec::new() };
    let mut means = [0; 3];
    for mcu in 0..columns * rows {
        let interval = usize::from(encoding.restart_interval);
        if interval > 0 && mcu > 0 && mcu % interval == 0 {
            scan.pad();
            scan.bytes.extend([0xFF, 0xD0 + u8::try_from((mcu / interval - 1) % 8).unwrap()]);
            means = [0; 3];
        }
        for (component, sampling) in sampling.iter().enumerate() {
            let (own_across, own_down) = (usize::from(sampling >> 4), usize::from(sampling & 15));
            // The pixels, across and down, of one sample.
            let (wide, high) = (across / own_across, down / own_down);
            for block in 0..own_across * own_down {
                let left = (mcu % columns * own_across + block % own_across) * 8;
                let top = (mcu / columns * own_down + block / own_across) * 8;
                let sample = |x: usize, y: usize| {
                    let pixels =
                        (0..wide * high).map(|at| ((left + x) * wide + at % wide, (top + y) * high + at / wide));
                    let value = |(x, y): (usize, usize)| ycbcr(pixel(x.min(last.0), y.min(last.1)))[component];
                    pixels.map(value).sum::<f32>() / (wide * high) as f32
                };
                let coefficients = transformed(sample).map(|value| (value / f32::from(encoding.step)).round() as i32);
                scan.block(&coefficients, &mut means[component], &dc, &ac);
            }
        }
    }
    scan.pad();
    scan.bytes.extend(b"\xFF\xD9");
    scan.bytes
}

/// All symbols of AC coefficients, the frequent ones first.
fn ac_symbols() -> Vec<u8> {
    let of_numbers = (1..=10).flat_map(|size| (0..16).map(move |zeros| zeros << 4 | size));
    [0x00, 0xF0].into_iter().chain(of_numbers).collect()
}

fn ycbcr([red, green, blue]: [f32; 3]) -> [f32; 3] {
    let luma = 0.299 * red + 0.587 * green + 0.114 * blue;
    [luma, 128.0 + (blue - luma) / 1.772, 128.0 + (red - luma) / 1.402]
}

/// The coefficients of a block, in rows.
fn transformed(sample: impl Fn(usize, usize) -> f32) -> [f32; 64] {
    let wave = |u: usize, x: usize| {
        let scale = if u == 0 { std::f32::consts::FRAC_1_SQRT_2 / 2.0 } else { 0.5 };
        scale * ((2 * x + 1) as f32 * u as f32 * std::f32::consts::PI / 16.0).cos()
    };
    let across: [f32; 64] =
        std::array::from_fn(|at| (0..8).map(|x| wave(at % 8, x) * (sample(x, at / 8) - 128.0)).sum());
    std::array::from_fn(|at| (0..8).map(|y| wave(at / 8, y) * across[y * 8 + at % 8]).sum())
}

/// The code of each symbol: its bits, and how many they are.
struct SymbolCodes([(u32, u32); 256]);

impl SymbolCodes {
    fn new(counts: [u8; 16], symbols: &[u8]) -> Self {
        let (mut codes, mut code, mut symbols) = ([(0, 0); 256], 0, symbols.iter());
        for (length, count) in (1..).zip(counts) {
            for symbol in symbols.by_ref().take(count.into()) {
                codes[usize::from(*symbol)] = (code, length);
                code += 1;
            }
            code <<= 1;
        }
        Self(codes)
    }
}

struct ScanWriter {
    bytes: Vec<u8>,
    /// Bits that do not fill a byte yet.
    bits: Vec<bool>,
}

impl ScanWriter {
    fn put(&mut self, (value, count): (u32, u32)) {
        self.bits.extend((0..count).rev().map(|bit| value >> bit & 1 == 1));
        for byte in self.bits.chunks_exact(8) {
            let byte = byte.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
            self.bytes.push(byte);
            if byte == 0xFF {
                self.bytes.push(0);
            }
        }
        self.bits.drain(..self.bits.len() / 8 * 8);
    }

    /// Fills the last byte with ones.
    fn pad(&mut self) {
        let rest = self.bits.len();
        if rest > 0 {
            self.put((0xFF, 8 - u32::try_from(rest).unwrap()));
        }
    }

    /// Writes the code of a symbol that ends with the size of a number, and then the number.
    fn put_number(&mut self, codes: &SymbolCodes, zeros: u8, number: i32) {
        let size = 32 - number.unsigned_abs().leading_zeros();
        self.put(codes.0[usize::from(zeros << 4) + size as usize]);
        let bits = if number < 0 { number - 1 } else { number };
        self.put((bits.cast_unsigned() & ((1 << size) - 1), size));
    }

    fn block(&mut self, coefficients: &[i32; 64], mean: &mut i32, dc: &SymbolCodes, ac: &SymbolCodes) {
        self.put_number(dc, 0, coefficients[0] - *mean);
        *mean = coefficients[0];
        let mut zeros = 0;
        for place in &ZIGZAG[1..] {
            match coefficients[usize::from(*place)] {
                0 => zeros += 1,
                number => {
                    (0..zeros / 16).for_each(|_| self.put(ac.0[0xF0]));
                    self.put_number(ac, zeros % 16, number);
                    zeros = 0;
                }
            }
        }
        if zeros > 0 {
            self.put(ac.0[0x00]);
        }
    }
}
