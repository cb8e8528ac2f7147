//! Find: the picture that the model of text gets, and quadrilaterals around lines from its map of probabilities, as
//! "Real-time Scene Text Detection with Differentiable Binarization" (arXiv:1911.08947) makes them.

use super::components::{PixelComponent, PixelRun, components};
use super::geometry::{Point, Quadrilateral, coordinate, pixels};
use super::rectangle::Rectangle;
use crate::pipeline::preparation::{ChannelOrder, ImagePreparation, PictureFit, TensorLayout};

/// The sides of the map are multiples of this, because the model halves its input five times.
const STEP: u32 = 32;

/// The shortest side of a line in the map, before and after it is grown.
const SIDE_MIN: f32 = 3.0;
const GROWN_SIDE_MIN: f32 = 5.0;

/// The size of the picture that the model gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextDetectionSize {
    /// A page with a shorter side below this is enlarged.
    pub shorter_side_min: u32,
    /// A page with a longer side above this is made smaller. This limit has precedence over `shorter_side_min`.
    pub longer_side_max: u32,
}

impl TextDetectionSize {
    /// Height and width for a page of this width and height, both multiples of 32 and never more than one step above
    /// `longer_side_max`.
    pub fn fit(self, (width, height): (u32, u32)) -> [u32; 2] {
        let scale = self.scale((width, height));
        [height, width].map(|side| rounded_to_step(f64::from(side) * scale))
    }

    /// The number of pixels in each direction that a pixel of a page of this width and height becomes.
    pub fn scale(self, (width, height): (u32, u32)) -> f64 {
        let (shorter, longer) = (f64::from(width.min(height).max(1)), f64::from(width.max(height).max(1)));
        let enlarged = (f64::from(self.shorter_side_min) / shorter).max(1.0);
        enlarged.min(f64::from(self.longer_side_max) / longer)
    }

    /// The steps from a page of this size to the tensor `[1, 3, height, width]`. Channels are blue, green, red, as
    /// `PaddleOCR` trains its models.
    pub fn preparation(self, page: (u32, u32), mean: [f32; 3], std: [f32; 3]) -> ImagePreparation {
        ImagePreparation {
            fit: PictureFit::Stretch,
            size: self.fit(page),
            mean,
            std,
            layout: TensorLayout::Nchw,
            color: ChannelOrder::Bgr,
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
fn rounded_to_step(side: f64) -> u32 {
    let steps = (side / f64::from(STEP)).round() as u32;
    steps.max(1).saturating_mul(STEP)
}

/// The rules by which a map becomes quadrilaterals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TextDetectionRules {
    /// Pixels above it belong to text.
    pub pixel_threshold: f32,
    /// The least mean of a line's pixels.
    pub line_threshold: f32,
    /// The growth of a line. The model is trained to find its core: the line without its edge.
    pub growth: f32,
    /// Joins parts that are a pixel apart.
    pub closes_gaps: bool,
    /// The largest number of lines; the largest are kept.
    pub lines_max: usize,
}

impl Default for TextDetectionRules {
    fn default() -> Self {
        Self { pixel_threshold: 0.3, line_threshold: 0.5, growth: 1.6, closes_gaps: true, lines_max: 1000 }
    }
}

/// A place with text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DetectedTextLine {
    /// In pixels of the page. It may reach over its edges.
    pub area: Quadrilateral,
    /// The mean probability of its pixels.
    pub score: f32,
}

/// A map of the probability that a pixel belongs to text.
#[derive(Debug, Clone, Copy)]
pub struct ProbabilityMap<'m> {
    values: &'m [f32],
    width: usize,
    height: usize,
}

impl<'m> ProbabilityMap<'m> {
    /// A map from an output of the shape `[1, 1, height, width]` or `[1, height, width]`; `None` for other shapes, and
    /// for one that the values do not fill.
    pub fn new(shape: &[usize], values: &'m [f32]) -> Option<Self> {
        let ([1, 1, height, width] | [1, height, width]) = *shape else { return None };
        let is_filled = width > 0 && height > 0 && width.checked_mul(height) == Some(values.len());
        is_filled.then_some(Self { values, width, height })
    }

    /// The lines of text on a page of this width and height, from top to bottom.
    pub fn lines(&self, rules: TextDetectionRules, (page_width, page_height): (u32, u32)) -> Vec<DetectedTextLine> {
        let mut parts = components(&self.runs(rules));
        // The largest count where there are too many; a part is as large as it is high and long.
        let size = |part: &PixelComponent| part.iter().map(|run| run.end - run.start).sum::<usize>();
        if parts.len() > rules.lines_max {
            parts.sort_by_cached_key(|part| std::cmp::Reverse(size(part)));
            parts.truncate(rules.lines_max);
        }

        let scale_x = f64_to_f32(f64::from(page_width) / count(self.width));
        let scale_y = f64_to_f32(f64::from(page_height) / count(self.height));
        // A pixel's value stands for its middle.
        let on_page = |corner: Point| Point::new((corner.x + 0.5) * scale_x, (corner.y + 0.5) * scale_y);
        let line = |part: &PixelComponent| {
            let core = Rectangle::around(ends(part))?;
            let score = self.mean(&core);
            if core.shorter_side() < SIDE_MIN || score.is_nan() || score < rules.line_threshold {
                return None;
            }
            let grown = core.grown(core.area() * rules.growth / core.circumference());
            let Quadrilateral(corners) = grown.corners();
            let area = Quadrilateral(corners.map(on_page));
            (grown.shorter_side() >= GROWN_SIDE_MIN).then_some(DetectedTextLine { area, score })
        };
        let mut lines: Vec<DetectedTextLine> = parts.iter().filter_map(line).collect();
        lines.sort_by(|one, other| one.area.centre().y.total_cmp(&other.area.centre().y));
        lines
    }

    /// The runs of text in each row.
    fn runs(&self, rules: TextDetectionRules) -> Vec<Vec<PixelRun>> {
        let mut above = vec![false; self.width];
        let mut is_text = vec![false; self.width];
        let mut rows = Vec::with_capacity(self.height);
        for (row, values) in self.values.chunks_exact(self.width).enumerate() {
            let current: Vec<bool> = values.iter().map(|value| *value > rules.pixel_threshold).collect();
            is_text.copy_from_slice(&current);
            if rules.closes_gaps {
                // A pixel is text, too, if the one before it or above it is, or the one between them.
                let either: Vec<bool> = above.iter().zip(&current).map(|(one, other)| *one || *other).collect();
                let before = std::iter::once(&false).chain(&either);
                for (place, (here, before)) in is_text.iter_mut().zip(either.iter().zip(before)) {
                    *place = *here || *before;
                }
            }
            rows.push(runs_of(row, &is_text));
            above = current;
        }
        rows
    }

    /// The mean inside of a rectangle.
    fn mean(&self, rectangle: &Rectangle) -> f32 {
        let bounds = rectangle.corners().bounds();
        let (top, bottom) = (bounds.top.floor(), bounds.bottom);
        let rows = self.values.chunks_exact(self.width).enumerate();
        let rows = rows.skip(pixels(top, self.height)).take_while(|(y, _)| coordinate(*y) <= bottom);
        let (mut sum, mut number) = (0.0_f64, 0_usize);
        for (y, values) in rows {
            let Some((from, to)) = rectangle.span(coordinate(y)) else { continue };
            let inside = values.get(pixels(from, self.width)..pixels(to.floor() + 1.0, self.width)).unwrap_or_default();
            sum += inside.iter().copied().filter(|value| !value.is_nan()).map(f64::from).sum::<f64>();
            number += inside.len();
        }
        f64_to_f32(sum / count(number.max(1)))
    }
}

/// The first and the last pixel of each run: the hull needs no others.
fn ends(part: &PixelComponent) -> Vec<[i32; 2]> {
    let place = |pixel: usize| i32::try_from(pixel).unwrap_or(i32::MAX);
    part.iter().flat_map(|run| [run.start, run.end - 1].map(|x| [place(x), place(run.row)])).collect()
}

fn runs_of(row: usize, is_text: &[bool]) -> Vec<PixelRun> {
    let mut runs: Vec<PixelRun> = Vec::new();
    for (x, _) in is_text.iter().enumerate().filter(|(_, is_text)| **is_text) {
        match runs.last_mut() {
            Some(run) if run.end == x => run.end = x + 1,
            _ => runs.push(PixelRun { row, start: x, end: x + 1 }),
        }
    }
    runs
}

#[expect(clippy::cast_precision_loss, reason = "pixels of a map are far below 2^52")]
fn count(number: usize) -> f64 {
    number as f64
}

#[expect(clippy::cast_possible_truncation, reason = "pixels and probabilities do not need more digits")]
fn f64_to_f32(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A map with rectangles of text: left, top, width and height.
    fn map(width: usize, height: usize, texts: &[[usize; 4]]) -> Vec<f32> {
        let inside = |x, y| texts.iter().any(|[l, t, w, h]| (*l..l + w).contains(&x) && (*t..t + h).contains(&y));
        (0..height).flat_map(|y| (0..width).map(move |x| if inside(x, y) { 0.9 } else { 0.01 })).collect()
    }

    fn lines(width: usize, height: usize, values: &[f32], page: (u32, u32)) -> Vec<DetectedTextLine> {
        let rules = TextDetectionRules { closes_gaps: false, ..TextDetectionRules::default() };
        ProbabilityMap::new(&[1, 1, height, width], values).unwrap().lines(rules, page)
    }

    #[test]
    fn a_line_grows_by_its_area_over_its_circumference() {
        let values = map(128, 64, &[[10, 20, 81, 9]]);
        let [line] = lines(128, 64, &values, (256, 64)).try_into().unwrap();
        // 80 x 8 between the middles of the outer pixels; 640 * 1.6 / 176 = 5.82 on each side.
        let bounds = line.area.bounds();
        let expected = [(10.5 - 5.82) * 2.0, 20.5 - 5.82, (90.5 + 5.82) * 2.0, 28.5 + 5.82];
        for (got, want) in [bounds.left, bounds.top, bounds.right, bounds.bottom].iter().zip(expected) {
            assert!((got - want).abs() < 0.02, "{bounds:?}");
        }
        assert!((line.score - 0.9).abs() < 1e-6);
    }

    #[test]
    fn thin_and_faint_places_are_no_lines() {
        assert_eq!(lines(64, 64, &map(64, 64, &[[5, 5, 50, 3]]), (64, 64)), [], "2 between the middles");
        let faint: Vec<f32> = map(64, 64, &[[5, 5, 50, 9]]).iter().map(|value| value / 2.0).collect();
        assert_eq!(lines(64, 64, &faint, (64, 64)), []);
    }

    #[test]
    fn values_that_are_no_numbers_are_no_text() {
        assert_eq!(lines(64, 64, &vec![f32::NAN; 64 * 64], (64, 64)), []);
        let mut values = map(64, 64, &[[5, 5, 50, 9]]);
        values[70] = f32::NAN;
        values[64 * 9 + 9] = f32::NAN;
        let found = lines(64, 64, &values, (64, 64));
        assert!(found.iter().all(|line| line.score.is_finite()) && found.len() == 1, "{found:?}");
    }

    #[test]
    fn of_too_many_lines_the_largest_stay() {
        let values = map(64, 128, &[[5, 5, 20, 9], [5, 40, 50, 9], [5, 80, 40, 9]]);
        let rules = TextDetectionRules { lines_max: 2, ..TextDetectionRules::default() };
        let found = ProbabilityMap::new(&[1, 128, 64], &values).unwrap().lines(rules, (64, 128));
        let tops: Vec<bool> = found.iter().map(|line| line.area.bounds().top > 30.0).collect();
        assert_eq!(tops, [true, true]);
    }

    #[test]
    fn a_gap_of_one_pixel_is_closed_where_that_is_wanted() {
        let values = map(64, 64, &[[5, 5, 20, 9], [26, 5, 20, 9]]);
        let found = |closes_gaps| {
            let rules = TextDetectionRules { closes_gaps, ..TextDetectionRules::default() };
            ProbabilityMap::new(&[1, 64, 64], &values).unwrap().lines(rules, (64, 64)).len()
        };
        assert_eq!((found(false), found(true)), (2, 1));
    }

    #[test]
    fn another_shape_than_that_of_a_map_is_refused() {
        assert!(ProbabilityMap::new(&[2, 1, 1, 2], &[0.0; 4]).is_none());
        assert!(ProbabilityMap::new(&[1, 1, 2, 2], &[0.0; 3]).is_none());
        assert!(ProbabilityMap::new(&[1, 0, 2], &[]).is_none());
    }

    proptest! {
        #[test]
        fn the_size_is_bounded_and_keeps_the_proportions(width in 1_u32..70_000, height in 1_u32..70_000) {
            let [rows, columns] =
                TextDetectionSize { shorter_side_min: 736, longer_side_max: 1280 }.fit((width, height));
            prop_assert!(rows % 32 == 0 && columns % 32 == 0 && rows.min(columns) >= 32, "{rows}x{columns}");
            prop_assert!(rows.max(columns) <= 1280 + 32);
            let stretch = f64::from(rows) / f64::from(height) / (f64::from(columns) / f64::from(width));
            let step = f64::from(rows.min(columns)).recip() * 17.0;
            prop_assert!(rows.min(columns) == 32 || (1.0 - step..1.0 / (1.0 - step)).contains(&stretch), "{stretch}");
        }

        #[test]
        fn any_map_has_bounded_finite_lines(
            (width, values) in (1_usize..40).prop_flat_map(|width| {
                let value = prop_oneof![4 => 0.0_f32..1.0, 1 => Just(f32::NAN), 1 => any::<f32>()];
                (Just(width), proptest::collection::vec(value, width..width * 40))
            }),
            closes_gaps: bool,
        ) {
            let height = values.len() / width;
            let map = ProbabilityMap::new(&[1, height, width], &values[..width * height]).unwrap();
            let rules = TextDetectionRules { closes_gaps, lines_max: 5, line_threshold: 0.0, ..TextDetectionRules::default() };
            let found = map.lines(rules, (1000, 1000));
            prop_assert!(found.len() <= 5);
            for line in found {
                prop_assert!(line.area.0.iter().all(|point| point.x.is_finite() && point.y.is_finite()));
                prop_assert!(!line.score.is_nan());
            }
        }
    }
}
