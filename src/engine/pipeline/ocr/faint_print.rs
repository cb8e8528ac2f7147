//! Faint print: lines that are little darker than their paper, and the picture in which they are found nevertheless.
//!
//! The model of text finds next to no print of 6 % contrast, and little of 12 %. The model that reads needs no help: it
//! reads the same words of a line as it is and of a strengthened one.

use super::geometry::{Quadrilateral, coordinate, median};
use super::line_image::LineImage;
use crate::pipeline::image::Rgb8Image;

/// Below this share of the light of its paper, a print is faint. The print of documents is .3 darker and more.
const DEPTH_MIN: f32 = 0.2;

/// The most lines that are looked at. They are cut no wider than this, which is enough for their shades.
const LINES_MAX: usize = 16;
const LINE_WIDTH_MAX: usize = 96;

/// The side of the squares for which the light of the paper is estimated, in pixels of the model's input: two lines of
/// small print.
const SQUARE: usize = 32;

/// The least light of paper: a hundredth of white.
const LIGHT_MIN: f32 = 0.02;

/// The number of times that print is darkened: print of 6 % contrast gets 60 %.
const GAIN: f32 = 10.0;

/// Returns true if most of these lines of a page are faint, and if there are none: they may be too faint to be found.
pub fn is_faint(page: &Rgb8Image, lines: &[Quadrilateral]) -> bool {
    let some = lines.iter().step_by(lines.len().div_ceil(LINES_MAX).max(1));
    let depths = some.map(|area| depth(&LineImage::cut(page, *area, LINE_WIDTH_MAX)));
    median(depths).is_none_or(|depth| depth < DEPTH_MIN)
}

/// The share of the light of the paper that the print of a line lacks.
fn depth(line: &LineImage) -> f32 {
    let light = |[red, green, blue]: &[u8; 3]| u16::from(*red) + 2 * u16::from(*green) + u16::from(*blue);
    let mut lights: Vec<u16> = line.rows().flatten().map(light).collect();
    lights.sort_unstable();
    let at = |percent: usize| f32::from(lights.get(lights.len() * percent / 100).copied().unwrap_or_default());
    1.0 - at(5) / at(90).max(1.0)
}

/// Makes print darker in planes of pixels from -1 to 1, as the model of text gets them, and evens out the light of the
/// paper: each pixel becomes as dark as it is against the paper around it, times [`GAIN`].
pub fn strengthen(planes: &mut [f32], [height, width]: [u32; 2]) {
    let (height, width) = (height as usize, width as usize);
    for plane in planes.chunks_exact_mut((height * width).max(1)) {
        let paper = PaperLight::of(plane, width);
        for (y, row) in plane.chunks_exact_mut(width.max(1)).enumerate() {
            for (pixel, paper) in row.iter_mut().zip(paper.row(y)) {
                let darkness = GAIN * (1.0 - (*pixel + 1.0) / paper);
                *pixel = 1.0 - 2.0 * darkness.clamp(0.0, 1.0);
            }
        }
    }
}

/// The light of the paper at each place of a plane, 0 to 2: a level for each square, interpolated between their middles.
struct PaperLight {
    columns: usize,
    levels: Vec<f32>,
}

impl PaperLight {
    fn of(plane: &[f32], width: usize) -> Self {
        let columns = width.div_ceil(SQUARE);
        let level = |band: &[f32], column: usize| {
            let rows = band.chunks_exact(width).filter_map(|row| row.chunks(SQUARE).nth(column));
            let mut pixels = rows.collect::<Vec<_>>().concat();
            // Print covers less than a fifth of a square, so this is paper.
            let rank = pixels.len() * 4 / 5;
            (*pixels.select_nth_unstable_by(rank, f32::total_cmp).1 + 1.0).max(LIGHT_MIN)
        };
        let bands = plane.chunks(width * SQUARE);
        let levels = bands.flat_map(|band| (0..columns).map(move |column| level(band, column))).collect();
        Self { columns, levels }
    }

    /// The light at each pixel of a row.
    fn row(&self, y: usize) -> impl Iterator<Item = f32> {
        let (upper, lower, down) = between(y, self.levels.len() / self.columns);
        let level =
            |row: usize, column: usize| self.levels.get(row * self.columns + column).copied().unwrap_or(LIGHT_MIN);
        let mixed = move |column| mix(level(upper, column), level(lower, column), down);
        (0..self.columns * SQUARE).map(move |x| {
            let (left, right, across) = between(x, self.columns);
            mix(mixed(left), mixed(right), across)
        })
    }
}

/// The squares between whose middles a pixel lies, and its share of the way from the first to the second.
fn between(pixel: usize, squares: usize) -> (usize, usize, f32) {
    let half = SQUARE / 2;
    let first = (pixel.saturating_sub(half) / SQUARE).min(squares.saturating_sub(1));
    let way = (coordinate(pixel) - coordinate(first * SQUARE + half)) / coordinate(SQUARE);
    (first, (first + 1).min(squares.saturating_sub(1)), way.clamp(0.0, 1.0))
}

fn mix(one: f32, other: f32, share: f32) -> f32 {
    one + (other - one) * share
}

#[cfg(test)]
mod tests {
    use super::super::geometry::PageArea;
    use super::*;

    /// A page on which the light fades from the left to the right, with bars that take this share of it.
    fn page(depth: f32) -> Rgb8Image {
        let shade = |x: u16, y: u16| {
            let paper = 240.0 - f32::from(x) / 16.0;
            let is_print = (8..24).contains(&y) && x % 8 < 2;
            if is_print { paper * (1.0 - depth) } else { paper }
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shades are from 0 to 255")]
        let pixels = (0..64).flat_map(|y| (0..256).flat_map(move |x| [shade(x, y).round() as u8; 3])).collect();
        Rgb8Image::new(256, 64, pixels).unwrap()
    }

    fn line() -> Quadrilateral {
        Quadrilateral::upright(PageArea { left: 0.0, top: 4.0, right: 256.0, bottom: 28.0 })
    }

    #[test]
    fn a_page_is_faint_where_most_of_its_lines_are() {
        assert!(is_faint(&page(0.1), &[line()]));
        assert!(!is_faint(&page(0.6), &[line()]));
        assert!(is_faint(&page(0.6), &[]), "nothing was found");
    }

    #[test]
    fn faint_print_becomes_dark_and_its_paper_white() {
        let page = page(0.08);
        let mut planes: Vec<f32> =
            page.pixels().iter().step_by(3).map(|shade| f32::from(*shade) / 127.5 - 1.0).collect();
        strengthen(&mut planes, [64, 256]);
        for (index, pixel) in planes.iter().enumerate() {
            let (x, y) = (index % 256, index / 256);
            let is_print = (8..24).contains(&y) && x % 8 < 2;
            assert!(if is_print { *pixel < -0.2 } else { *pixel > 0.5 }, "{pixel} at {x}, {y}");
        }
    }

    #[test]
    fn black_paper_and_odd_sizes_are_pictures_too() {
        for (height, width) in [(32, 32), (1, 1), (33, 40)] {
            let mut planes = vec![-1.0; 3 * height * width];
            strengthen(&mut planes, [u32::try_from(height).unwrap(), u32::try_from(width).unwrap()]);
            assert!(planes.iter().all(|pixel| (-1.0..=1.0).contains(pixel)), "{height}x{width}");
        }
    }
}
