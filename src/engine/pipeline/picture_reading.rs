//! Two figures of a photograph, for the watch on drift: a lens that gets dirty, a lamp that fails.

use serde::{Deserialize, Serialize};

use super::image::Rgb8Image;

/// The rows of a picture that are read.
const ROWS_MAX: u32 = 96;

/// The brightness and the sharpness of a photograph, in tenths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PictureReading {
    /// The mean brightness that the eye sees (ITU-R BT.601), 0 to 2550.
    pub brightness: u16,
    /// The standard deviation of the Laplacian of the brightness along a row (after Pech-Pacheco et al. 2000), 0 to 5100.
    pub sharpness: u16,
}

impl PictureReading {
    /// Reads up to [`ROWS_MAX`] rows, at equal distances; `None` for a picture that is narrower than three pixels.
    pub fn of(image: &Rgb8Image) -> Option<Self> {
        let width = image.width() as usize;
        let step = image.height().div_ceil(ROWS_MAX).max(1) as usize;
        let (mut sum, mut edges, mut squares, mut count, mut inner) = (0_u64, 0_i64, 0_u64, 0_u64, 0_u64);
        let mut brightness = Vec::with_capacity(width);
        for row in image.pixels().chunks_exact((width * 3).max(1)).step_by(step) {
            brightness.clear();
            brightness.extend(row.chunks_exact(3).map(luma));
            sum += brightness.iter().map(|value| u64::from(value.unsigned_abs())).sum::<u64>();
            count += brightness.len() as u64;
            for around in brightness.windows(3) {
                let [left, middle, right] = around else { continue };
                let laplacian = left - 2 * middle + right;
                edges += i64::from(laplacian);
                squares += u64::from(laplacian.unsigned_abs()).pow(2);
                inner += 1;
            }
        }
        if inner == 0 {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "sums of small values of at most 2^24 pixels")]
        let [sum, edges, squares, count, inner] =
            [sum as f64, edges as f64, squares as f64, count as f64, inner as f64];
        let variance = squares / inner - (edges / inner).powi(2);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 5100")]
        let tenths = |figure: f64| (figure * 10.0).round() as u16;
        Some(Self { brightness: tenths(sum / count), sharpness: tenths(variance.max(0.0).sqrt()) })
    }
}

fn luma(pixel: &[u8]) -> i32 {
    let [red, green, blue] = pixel else { return 0 };
    (299 * i32::from(*red) + 587 * i32::from(*green) + 114 * i32::from(*blue)) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(width: u32, height: u32, pixel: impl Fn(u32, u32) -> u8) -> Option<PictureReading> {
        let at = |at: u32| [pixel(at % width, at / width); 3];
        PictureReading::of(&Rgb8Image::new(width, height, (0..width * height).flat_map(at).collect()).unwrap())
    }

    #[test]
    fn a_darker_picture_is_darker_and_a_blurred_one_less_sharp() {
        let stripes = |height, light| reading(64, height, move |x, _| if x % 4 < 2 { light } else { 0 }).unwrap();
        let (bright, dark) = (stripes(40, 200), stripes(40, 100));
        assert_eq!((bright.brightness, dark.brightness), (1000, 500));
        assert!(bright.sharpness.abs_diff(2 * dark.sharpness) <= 1 && dark.sharpness > 500, "{bright:?} {dark:?}");
        assert_eq!(stripes(1000, 200), bright, "some rows stand for all");
        let ramp = reading(64, 40, |x, _| u8::try_from(x * 3).unwrap()).unwrap();
        assert_eq!(ramp.sharpness, 0);
        assert_eq!(reading(2, 40, |_, _| 7), None);
    }
}
