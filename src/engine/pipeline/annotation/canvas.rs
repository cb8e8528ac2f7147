//! A picture to draw on: filled and blurred areas, and text. Anything outside of the picture is not drawn.

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, RasterizedChar, get_raster, get_raster_width};

use super::super::detection::DetectionBox;
use super::super::image::Rgb8Image;

/// Red, green, blue.
pub type RgbColor = [u8; 3];

/// The most cells along a side of a blurred area. A face has no features left with so few.
const BLURRED_CELLS_MAX: usize = 6;

/// A rectangle in whole pixels, without its right and lower edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PixelArea {
    pub left: usize,
    pub top: usize,
    pub right: usize,
    pub bottom: usize,
}

impl PixelArea {
    /// The same, smaller by `edge` at each side.
    pub fn inset(self, edge: usize) -> Self {
        let Self { left, top, right, bottom } = self;
        Self {
            left: left + edge,
            top: top + edge,
            right: right.saturating_sub(edge),
            bottom: bottom.saturating_sub(edge),
        }
    }
}

/// A size of text.
#[derive(Debug, Clone, Copy)]
pub struct FontSize {
    raster: RasterHeight,
    /// Pixels for each pixel of the raster, both ways.
    scale: usize,
}

impl FontSize {
    /// The largest size with lines of at most `height` pixels; the smallest size has 16.
    pub fn for_lines_of(height: u32) -> Self {
        match usize::try_from(height).unwrap_or(usize::MAX) {
            0..32 => Self { raster: RasterHeight::Size16, scale: 1 },
            height => Self { raster: RasterHeight::Size32, scale: (height / 32).min(8) },
        }
    }

    pub fn line_height(self) -> usize {
        self.raster.val() * self.scale
    }

    pub fn width_of(self, text: &str) -> usize {
        text.chars().count() * get_raster_width(FontWeight::Regular, self.raster) * self.scale
    }

    /// The width of a drawn line that suits letters of this size.
    pub fn line_width(self) -> usize {
        self.line_height() / 8
    }

    /// The picture of a character. The font has Latin letters; another character is shown as a replacement.
    fn glyph(self, character: char) -> Option<RasterizedChar> {
        let raster = |character| get_raster(character, FontWeight::Regular, self.raster);
        raster(character).or_else(|| raster(char::REPLACEMENT_CHARACTER)).or_else(|| raster('?'))
    }
}

pub struct Canvas {
    width: usize,
    height: usize,
    /// Rows from the top, three bytes a pixel.
    pixels: Vec<u8>,
}

impl Canvas {
    pub fn new(picture: Rgb8Image) -> Self {
        let side = |side: u32| usize::try_from(side).unwrap_or(usize::MAX);
        Self { width: side(picture.width()), height: side(picture.height()), pixels: picture.into_pixels() }
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn shorter_side(&self) -> u32 {
        u32::try_from(self.width.min(self.height)).unwrap_or(u32::MAX)
    }

    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// The pixels that a box touches.
    pub fn area(&self, DetectionBox { x, y, width, height }: DetectionBox) -> PixelArea {
        PixelArea {
            left: pixel(x.floor(), self.width),
            top: pixel(y.floor(), self.height),
            right: pixel((x + width).ceil(), self.width),
            bottom: pixel((y + height).ceil(), self.height),
        }
    }

    /// The pixels that lie around some corners.
    pub fn around(&self, corners: &[[f32; 2]]) -> PixelArea {
        let places = |axis: usize| corners.iter().filter_map(move |corner| corner.get(axis).copied().map(f64::from));
        let least = |axis: usize| places(axis).fold(f64::INFINITY, f64::min);
        let most = |axis: usize| places(axis).fold(0.0, f64::max);
        PixelArea {
            left: pixel(least(0).floor(), self.width),
            top: pixel(least(1).floor(), self.height),
            right: pixel(most(0).ceil(), self.width),
            bottom: pixel(most(1).ceil(), self.height),
        }
    }

    /// Draws the edges between corners, `line` pixels wide.
    pub fn polygon(&mut self, corners: &[[f32; 2]], line: usize, color: RgbColor) {
        for (from, to) in corners.iter().zip(corners.iter().cycle().skip(1)) {
            self.edge(*from, *to, line, color);
        }
    }

    /// Draws a straight line, as a square for each pixel of its way.
    fn edge(&mut self, [x, y]: [f32; 2], [to_x, to_y]: [f32; 2], line: usize, color: RgbColor) {
        let (across, down) = (f64::from(to_x) - f64::from(x), f64::from(to_y) - f64::from(y));
        let most = self.width.max(self.height);
        // No longer than the picture: corners lie in it.
        let steps = pixel(across.abs().max(down.abs()).ceil(), most).max(1);
        for step in 0..=steps {
            #[expect(clippy::cast_precision_loss, reason = "sides of pictures are far below 2^52")]
            let share = step as f64 / steps as f64;
            let place = |from: f32, way: f64, side: usize| {
                let middle = pixel((f64::from(from) + way * share).floor(), side.saturating_sub(1));
                middle.saturating_sub(line / 2)
            };
            let (left, top) = (place(x, across, self.width), place(y, down, self.height));
            self.fill(PixelArea { left, top, right: left + line, bottom: top + line }, color);
        }
    }

    pub fn fill(&mut self, area: PixelArea, color: RgbColor) {
        self.rows(area).for_each(|row| row.fill(color));
    }

    /// Makes an area a mosaic of a few cells, each of the mean of its pixels. Details within a cell cannot be
    /// reconstructed, as they can from a smooth blur.
    pub fn blur(&mut self, area: PixelArea) {
        let PixelArea { left, top, right, bottom } = area;
        let cell = right.saturating_sub(left).max(bottom.saturating_sub(top)).div_ceil(BLURRED_CELLS_MAX).max(1);
        for top in (top..bottom).step_by(cell) {
            for left in (left..right).step_by(cell) {
                let cell = PixelArea { left, top, right: right.min(left + cell), bottom: bottom.min(top + cell) };
                let mean = self.mean(cell);
                self.fill(cell, mean);
            }
        }
    }

    fn mean(&mut self, area: PixelArea) -> RgbColor {
        let (mut sums, mut count) = ([0_u64; 3], 0_u64);
        for pixel in self.rows(area).flat_map(|row| row.iter()) {
            count += 1;
            for (sum, channel) in sums.iter_mut().zip(pixel) {
                *sum += u64::from(*channel);
            }
        }
        sums.map(|sum| u8::try_from(sum / count.max(1)).unwrap_or(u8::MAX))
    }

    /// Writes text in one line from its upper left corner.
    pub fn text(&mut self, (left, top): (usize, usize), size: FontSize, color: RgbColor, text: &str) {
        let mut left = left;
        for character in text.chars() {
            let Some(glyph) = size.glyph(character) else { continue };
            let (width, height) = (glyph.width() * size.scale, glyph.height() * size.scale);
            let rows = self.rows(PixelArea { left, top, right: left + width, bottom: top + height });
            for (y, row) in rows.enumerate() {
                for (x, pixel) in row.iter_mut().enumerate() {
                    let ink = glyph.pixel(x / size.scale, y / size.scale).unwrap_or(0);
                    *pixel = mixed(*pixel, color, ink);
                }
            }
            left += width;
        }
    }

    /// The rows of an area, from the top, as far as it is inside the picture.
    fn rows(&mut self, PixelArea { left, top, right, bottom }: PixelArea) -> impl Iterator<Item = &mut [RgbColor]> {
        let (left, right) = (left.min(self.width), right.min(self.width));
        let rows = self.pixels.as_chunks_mut().0.chunks_exact_mut(self.width.max(1));
        rows.take(bottom).skip(top).filter_map(move |row| row.get_mut(left..right))
    }
}

/// A side or place as a whole number of pixels, 0 to `most`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates, NaN is 0")]
fn pixel(place: f64, most: usize) -> usize {
    (place as usize).min(most)
}

/// The colour between two: `ink` of 255 parts are the second.
fn mixed(below: RgbColor, above: RgbColor, ink: u8) -> RgbColor {
    let part = |below: u8, above: u8| {
        let sum = u16::from(below) * u16::from(255 - ink) + u16::from(above) * u16::from(ink);
        u8::try_from((sum + 127) / 255).unwrap_or(u8::MAX)
    };
    let ([red, green, blue], [to_red, to_green, to_blue]) = (below, above);
    [part(red, to_red), part(green, to_green), part(blue, to_blue)]
}
