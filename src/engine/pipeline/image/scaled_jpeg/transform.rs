//! The inverse discrete cosine transform (ITU-T T.81, section A.3.3) of the low frequencies of a block, to fewer
//! samples.

/// The place of each coefficient of a scan in its block.
#[rustfmt::skip]
pub(super) const ZIGZAG: [u8; 64] = [
     0,  1,  8, 16,  9,  2,  3, 10, 17, 24, 32, 25, 18, 11,  4,  5,
    12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,  6,  7, 14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
    58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// The largest coefficient that a picture of 8 bits has, with the error of its quantization.
const COEFFICIENT_MAX: i32 = 2047;

/// The frequencies of a block.
pub(super) struct CoefficientBlock {
    /// In rows; the first row has the frequencies across.
    coefficients: [i16; 64],
    /// The index of the last coefficient that was set, in the order of the scan.
    pub(super) reach: usize,
}

impl Default for CoefficientBlock {
    fn default() -> Self {
        Self { coefficients: [0; 64], reach: 0 }
    }
}

impl CoefficientBlock {
    /// Sets the coefficient at a place to a number of quantization steps; `None` if no picture has so large a one.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "at most 2047")]
    pub(super) fn set(&mut self, (place, step): (u8, i32), number: i32) -> Option<()> {
        let value = number * step;
        if value.abs() > COEFFICIENT_MAX {
            return None;
        }
        *self.coefficients.get_mut(usize::from(place))? = value as i16;
        Some(())
    }
}

/// The transform to a block of some size.
pub(super) struct InverseDct {
    transform: fn(&CoefficientBlock, &mut [u8], usize),
    width: usize,
    height: usize,
}

impl InverseDct {
    /// The transform to `width` by `height` samples.
    pub(super) fn to((width, height): (usize, usize)) -> Option<Self> {
        let transform = match (width, height) {
            (1, 1) => transform::<1, 1>,
            (2, 1) => transform::<2, 1>,
            (2, 2) => transform::<2, 2>,
            (4, 2) => transform::<4, 2>,
            (4, 4) => transform::<4, 4>,
            (8, 4) => transform::<8, 4>,
            (8, 8) => transform::<8, 8>,
            _ => return None,
        };
        Some(Self { transform, width, height })
    }

    /// The index of the last coefficient that it uses, in the order of the scan.
    pub(super) fn last(&self) -> usize {
        let is_used = |place: &u8| usize::from(place % 8) < self.width && usize::from(place / 8) < self.height;
        ZIGZAG.iter().rposition(is_used).unwrap_or_default()
    }

    /// Writes the samples of a block to lines of length `stride`.
    #[inline]
    pub(super) fn apply(&self, block: &CoefficientBlock, samples: &mut [u8], stride: usize) {
        (self.transform)(block, samples, stride);
    }
}

fn transform<const W: usize, const H: usize>(block: &CoefficientBlock, samples: &mut [u8], stride: usize) {
    // In the order of the scan, the coefficients before an index are in a corner of the block.
    match block.reach {
        0 => flat::<W, H>(block, samples, stride),
        1..=2 => corner::<W, H, 2>(block, samples, stride),
        3..=9 => corner::<W, H, 4>(block, samples, stride),
        _ => corner::<W, H, 8>(block, samples, stride),
    }
}

/// Transforms a block that has no frequency besides its mean.
#[expect(clippy::cast_sign_loss, reason = "clamped to 8 bits")]
fn flat<const W: usize, const H: usize>(block: &CoefficientBlock, samples: &mut [u8], stride: usize) {
    let [mean, ..] = block.coefficients;
    let sample = (((mean + 4) >> 3) + 128).clamp(0, 255) as u8;
    for line in samples.chunks_mut(stride).take(H) {
        if let Some(line) = line.first_chunk_mut::<W>() {
            *line = [sample; W];
        }
    }
}

/// Transforms the first `K` frequencies of each direction.
///
/// A coefficient is at most [`COEFFICIENT_MAX`], so a transformed line is within 16 bits and every sum within 32.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within 16 bits; clamped to 8")]
#[inline]
fn corner<const W: usize, const H: usize, const K: usize>(block: &CoefficientBlock, samples: &mut [u8], stride: usize) {
    // Transformed across; with 2 bits behind the point.
    let mut lines = [[0_i16; W]; H];
    for (line, row) in lines.iter_mut().zip(block.coefficients.as_chunks::<8>().0).take(K) {
        let mut sums = [1 << 10; W];
        for (coefficient, wave) in row.iter().zip(&CosineWaves::<W>::WAVES).take(K) {
            for (sum, height) in sums.iter_mut().zip(wave) {
                *sum += i32::from(*coefficient) * i32::from(*height);
            }
        }
        *line = sums.map(|sum| (sum >> 11) as i16);
    }
    for (y, out) in samples.chunks_mut(stride).take(H).enumerate() {
        let mut sums = [(128 << 15) + (1 << 14); W];
        for (line, wave) in lines.iter().zip(&CosineWaves::<H>::WAVES).take(K) {
            let height = wave.get(y).copied().unwrap_or_default();
            for (sum, value) in sums.iter_mut().zip(line) {
                *sum += i32::from(*value) * i32::from(height);
            }
        }
        if let Some(out) = out.first_chunk_mut::<W>() {
            *out = sums.map(|sum| (sum >> 15).clamp(0, 255) as u8);
        }
    }
}

/// `cos(n pi / 16) / 2`, in 1/8192.
const COSINES: [i16; 9] = [4096, 4017, 3784, 3406, 2896, 2276, 1567, 799, 0];

struct CosineWaves<const N: usize>;

impl<const N: usize> CosineWaves<N> {
    /// The waves of the first `N` frequencies at `N` samples, in 1/8192.
    const WAVES: [[i16; N]; N] = waves();
}

/// `cos((2x + 1) u pi / 2N) C(u) / 2`.
#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn waves<const N: usize>() -> [[i16; N]; N] {
    let mut waves = [[0; N]; N];
    let mut u = 0;
    while u < N {
        let mut x = 0;
        while x < N {
            // The angle in 1/16 of pi, within a full turn of 32; a mean is divided by the root of 2.
            let angle = if u == 0 { 4 } else { (2 * x + 1) * u * (8 / N) % 32 };
            waves[u][x] = match angle {
                0..=8 => COSINES[angle],
                9..=16 => -COSINES[16 - angle],
                17..=24 => -COSINES[angle - 16],
                _ => COSINES[32 - angle],
            };
            x += 1;
        }
        u += 1;
    }
    waves
}
