//! Cut: the picture of one line, level, as high as the models take it.

use super::geometry::{Point, Quadrilateral, coordinate, pixels};
use crate::pipeline::image::Rgb8Image;

/// The height of a line in the tensors of the models.
pub const LINE_HEIGHT: usize = 48;

/// A text that is this many times as high as wide stands on its side.
const STANDING_RATIO: f32 = 1.5;

/// The most places of the page in each direction that are averaged into one pixel of a line.
const SAMPLES_MAX: usize = 4;

/// The picture of a line: [`LINE_HEIGHT`] rows of red, green and blue pixels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineImage {
    width: usize,
    pixels: Vec<[u8; 3]>,
}

/// Turns the corners so that the text lies: one that stands is taken to be read from the top to the bottom.
pub fn lying(area: Quadrilateral) -> Quadrilateral {
    if area.height() >= STANDING_RATIO * area.width() { area.quarter_turned() } else { area }
}

impl LineImage {
    /// The width of a line that is cut with this bound.
    pub fn width_of(area: Quadrilateral, width_max: usize) -> usize {
        let (length, height) = (area.width().max(1.0), area.height().max(1.0));
        pixels(length / height * coordinate(LINE_HEIGHT), width_max).max(1)
    }

    /// Cuts a line out of a page. It is as wide as its proportions ask for, and narrower only if that is above
    /// `width_max`. Beyond the edges of the page, the pixels of the edge continue.
    ///
    /// Pixels are interpolated between four, and averaged over as many places as the page has pixels for one of the
    /// line.
    pub fn cut(page: &Rgb8Image, area: Quadrilateral, width_max: usize) -> Self {
        let (length, height) = (area.width().max(1.0), area.height().max(1.0));
        let width = Self::width_of(area, width_max);
        let samples = |side: f32, pixels: usize| (side / coordinate(pixels)).round();
        let samples_across = pixels_of(samples(length, width));
        let samples_down = pixels_of(samples(height, LINE_HEIGHT));

        let [upper_left, upper_right, lower_right, lower_left] = area.0;
        let (places_across, places_down) = (width * samples_across, LINE_HEIGHT * samples_down);
        let weight = (coordinate(samples_across) * coordinate(samples_down)).recip();
        let (page, mut line) = (PagePixels::new(page), Vec::with_capacity(width * LINE_HEIGHT));
        let mut sums = vec![[0.0; 3]; width];
        for row in 0..LINE_HEIGHT {
            sums.fill([0.0; 3]);
            for sample_row in row * samples_down..(row + 1) * samples_down {
                // The places of a row lie on a straight line, at equal distances.
                let v = (coordinate(sample_row) + 0.5) / coordinate(places_down);
                let from = upper_left.towards(lower_left, v);
                let step = upper_right.towards(lower_right, v).minus(from).times(coordinate(places_across).recip());
                let mut offset = 0.5;
                for sum in &mut sums {
                    for _ in 0..samples_across {
                        let color = page.color(from.plus(step.times(offset)));
                        *sum = [sum[0] + color[0], sum[1] + color[1], sum[2] + color[2]];
                        offset += 1.0;
                    }
                }
            }
            line.extend(sums.iter().map(|sum| sum.map(|channel| rounded(channel * weight))));
        }
        Self { width, pixels: line }
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// The rows from the top.
    pub fn rows(&self) -> impl Iterator<Item = &[[u8; 3]]> {
        self.pixels.chunks_exact(self.width.max(1))
    }
}

/// The pixels of a page.
struct PagePixels<'p> {
    pixels: &'p [[u8; 3]],
    width: usize,
    last_column: f32,
    last_row: f32,
}

impl<'p> PagePixels<'p> {
    fn new(page: &'p Rgb8Image) -> Self {
        let (width, height) = (page.width() as usize, page.height() as usize);
        let last = |side: usize| coordinate(side.saturating_sub(1));
        Self { pixels: page.pixels().as_chunks().0, width, last_column: last(width), last_row: last(height) }
    }

    /// The colour at a point, interpolated between the middles of four pixels.
    fn color(&self, at: Point) -> [f32; 3] {
        let x = (at.x - 0.5).clamp(0.0, self.last_column);
        let y = (at.y - 0.5).clamp(0.0, self.last_row);
        let (left, top) = (whole(x), whole(y));
        let (right_share, lower_share) = (x - coordinate(left), y - coordinate(top));
        let right = left + usize::from(right_share > 0.0);
        let bottom = top + usize::from(lower_share > 0.0);
        let mix = |one: [f32; 3], other: [f32; 3], share: f32| {
            let part = |one: f32, other: f32| one + (other - one) * share;
            [part(one[0], other[0]), part(one[1], other[1]), part(one[2], other[2])]
        };
        let upper = mix(self.pixel(left, top), self.pixel(right, top), right_share);
        let lower = mix(self.pixel(left, bottom), self.pixel(right, bottom), right_share);
        mix(upper, lower, lower_share)
    }

    fn pixel(&self, x: usize, y: usize) -> [f32; 3] {
        self.pixels.get(y * self.width + x).copied().unwrap_or_default().map(f32::from)
    }
}

fn pixels_of(samples: f32) -> usize {
    pixels(samples, SAMPLES_MAX).max(1)
}

/// The whole part. As a cast it is one instruction on every CPU, where `floor` is a call of a function on most.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates, NaN is 0")]
fn whole(coordinate: f32) -> usize {
    coordinate as u32 as usize
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast keeps to 0..=255")]
fn rounded(channel: f32) -> u8 {
    (channel + 0.5) as u8
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::geometry::PageArea;
    use super::*;

    /// A page with red that increases to the right and green that increases to the bottom.
    fn page(width: u32, height: u32) -> Rgb8Image {
        let shade = |place: u32, side: u32| u8::try_from(place * 255 / (side - 1).max(1)).unwrap();
        let pixel = |x, y| [shade(x, width), shade(y, height), 7];
        let pixels = (0..height).flat_map(|y| (0..width).flat_map(move |x| pixel(x, y)));
        Rgb8Image::new(width, height, pixels.collect()).unwrap()
    }

    fn area(left: f32, top: f32, right: f32, bottom: f32) -> Quadrilateral {
        Quadrilateral::upright(PageArea { left, top, right, bottom })
    }

    #[test]
    fn a_line_of_the_same_height_is_the_page_itself() {
        let line = LineImage::cut(&page(200, 100), area(20.0, 30.0, 120.0, 78.0), 1000);
        assert_eq!(line.width(), 100);
        let page = page(200, 100);
        for (y, row) in line.rows().enumerate() {
            let start = ((y + 30) * 200 + 20) * 3;
            assert_eq!(row.as_flattened(), &page.pixels()[start..start + 300], "row {y}");
        }
    }

    #[test]
    fn a_text_that_stands_is_cut_as_one_that_lies() {
        let standing = area(40.0, 10.0, 88.0, 190.0);
        let line = LineImage::cut(&page(200, 200), lying(standing), 1000);
        assert_eq!(line.width(), 180);
        // Read from the top to the bottom, its upper edge is at the right of the page.
        let [first, .., last] = *line.rows().next().unwrap() else { panic!() };
        assert!(first[0] > 100 && first[1] < 20 && last[0] > 100 && last[1] > 230, "{first:?} {last:?}");
        assert_eq!(lying(area(0.0, 0.0, 10.0, 14.0)), area(0.0, 0.0, 10.0, 14.0));
    }

    #[test]
    fn a_line_that_is_turned_begins_at_its_end() {
        let line = LineImage::cut(&page(200, 100), area(20.0, 30.0, 120.0, 78.0), 1000);
        let turned = LineImage::cut(&page(200, 100), area(20.0, 30.0, 120.0, 78.0).half_turned(), 1000);
        let reversed = LineImage { width: line.width, pixels: line.pixels.iter().rev().copied().collect() };
        assert_eq!(reversed, turned);
    }

    #[test]
    fn a_large_line_is_averaged() {
        // A chessboard of single pixels is gray, whatever pixels a sample would hit.
        let pixels = (0..400).flat_map(|y| (0..400).map(move |x| if (x + y) % 2 == 0 { 0 } else { 255 }));
        let board = Rgb8Image::new(400, 400, pixels.flat_map(|gray| [gray; 3]).collect()).unwrap();
        let line = LineImage::cut(&board, area(10.0, 10.0, 202.0, 202.0), 1000);
        assert!(line.rows().flatten().all(|pixel| (120..=135).contains(&pixel[0])), "{line:?}");
    }

    proptest! {
        #[test]
        fn any_quadrilateral_has_a_bounded_picture(
            corners in proptest::array::uniform4((-5e3_f32..5e3, -5e3_f32..5e3)), width_max in 1_usize..200,
        ) {
            let corners = Quadrilateral(corners.map(|(x, y)| Point::new(x, y)));
            let line = LineImage::cut(&page(30, 20), lying(corners), width_max);
            prop_assert!(line.width() >= 1 && line.width() <= width_max);
            prop_assert_eq!(line.rows().count(), LINE_HEIGHT);
            prop_assert!(line.rows().flatten().all(|pixel| pixel[2] == 7), "an edge continues");
        }
    }
}
