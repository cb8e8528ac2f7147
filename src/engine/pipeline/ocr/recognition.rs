//! Read: lines of like width in one batch, as the tensor that the model of characters takes.

use super::geometry::{coordinate, pixels};
use super::line_image::{LINE_HEIGHT, LineImage};

/// The pixels of a line for each place of the scores of the model.
pub const COLUMNS_PER_SCORE: usize = 8;

/// Widths in a tensor are multiples of this. Runtimes prepare and keep something for each new shape: 40 shapes of any
/// multiple of 8 took 105 MiB, and 20 % more time than shapes that came before.
pub const WIDTH_STEP: usize = 32;

/// The rules by which lines are put together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LineBatchRules {
    /// The smallest width of a tensor. Shorter lines are padded, as the model learned them.
    pub width_min: usize,
    /// The most pixels of all lines of a batch, from left to right, padding included. The time of a pixel does not
    /// depend on them (85 to 130 us with 1,024 to 4,096), the memory of a run does: 30 MiB for 1,024.
    pub columns_max: usize,
    /// The largest share of a batch that is padding, besides that of `width_min`.
    pub padding_max: f32,
}

impl Default for LineBatchRules {
    fn default() -> Self {
        Self { width_min: 160, columns_max: 1024, padding_max: 0.15 }
    }
}

/// Puts lines together by their widths: positions in `widths`, each once, from the narrowest to the widest. A batch has
/// at least one line, however wide.
pub fn group(widths: &[usize], rules: LineBatchRules) -> Vec<Vec<usize>> {
    let mut order: Vec<(usize, usize)> =
        widths.iter().copied().enumerate().map(|(index, width)| (width, index)).collect();
    order.sort_unstable();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    // Of the group that is filled: the widths of its lines, each at least the smallest of a tensor.
    let mut taken = 0;
    for (width, index) in order {
        let width = padded(width, rules.width_min);
        let columns = |lines: usize| width.saturating_mul(lines);
        match groups.last_mut() {
            Some(group)
                if columns(group.len() + 1) <= rules.columns_max
                    && coordinate(columns(group.len() + 1) - (taken + width))
                        <= rules.padding_max * coordinate(columns(group.len() + 1)) =>
            {
                group.push(index);
                taken += width;
            }
            _ => {
                groups.push(vec![index]);
                taken = width;
            }
        }
    }
    groups
}

/// The width in a tensor.
fn padded(width: usize, width_min: usize) -> usize {
    width.max(width_min).next_multiple_of(WIDTH_STEP)
}

/// A tensor of lines: `[N, 3, 48, width]`, channels blue, green, red from -1 to 1, and 0 next to a line.
#[derive(Debug, Clone, PartialEq)]
pub struct TextLineBatch {
    pub shape: [usize; 4],
    pub values: Vec<f32>,
    /// The share of the width that each line takes.
    pub filled: Vec<f32>,
}

impl TextLineBatch {
    /// The tensor of lines for the model of characters.
    pub fn of_lines(lines: &[&LineImage], rules: LineBatchRules) -> Self {
        let widest = lines.iter().map(|line| line.width()).max().unwrap_or(0);
        Self::new(lines, padded(widest, rules.width_min))
    }

    /// A tensor of this width. A line that is wider is squeezed into it.
    pub(super) fn new(lines: &[&LineImage], width: usize) -> Self {
        let plane = LINE_HEIGHT * width;
        let mut values = vec![0.0; lines.len() * 3 * plane];
        for (line, planes) in lines.iter().zip(values.chunks_exact_mut((3 * plane).max(1))) {
            let (blue, rest) = planes.split_at_mut(plane);
            let (green, red) = rest.split_at_mut(plane);
            for (channel, plane) in [(2, blue), (1, green), (0, red)] {
                for (row, pixels) in plane.chunks_exact_mut(width.max(1)).zip(line.rows()) {
                    fill(row, pixels, channel);
                }
            }
        }
        let filled = lines.iter().map(|line| (coordinate(line.width()) / coordinate(width.max(1))).min(1.0)).collect();
        Self { shape: [lines.len(), 3, LINE_HEIGHT, width], values, filled }
    }
}

/// Writes one channel of a row of pixels.
fn fill(row: &mut [f32], pixels_of_line: &[[u8; 3]], channel: usize) {
    let value = |pixel: &[u8; 3]| f32::from(pixel.get(channel).copied().unwrap_or_default()) / 127.5 - 1.0;
    if pixels_of_line.len() <= row.len() {
        for (place, pixel) in row.iter_mut().zip(pixels_of_line) {
            *place = value(pixel);
        }
        return;
    }
    let scale = coordinate(pixels_of_line.len()) / coordinate(row.len());
    for (index, place) in row.iter_mut().enumerate() {
        // Interpolates between two pixels, as OpenCV does: each middle of a new pixel lies between two old ones.
        let at = (coordinate(index) + 0.5) * scale - 0.5;
        let left = pixels(at.floor(), pixels_of_line.len() - 1);
        let share = (at - coordinate(left)).clamp(0.0, 1.0);
        let [from, to] = [left, left + 1].map(|x| pixels_of_line.get(x).or(pixels_of_line.last()).map_or(0.0, value));
        *place = from + (to - from) * share;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::geometry::{PageArea, Quadrilateral};
    use super::*;
    use crate::pipeline::image::Rgb8Image;

    fn line(width: u16, color: [u8; 3]) -> LineImage {
        let pixels = color.repeat(usize::from(width) * 48);
        let page = Rgb8Image::new(width.into(), 48, pixels).unwrap();
        let area = PageArea { left: 0.0, top: 0.0, right: width.into(), bottom: 48.0 };
        LineImage::cut(&page, Quadrilateral::upright(area), 4096)
    }

    #[test]
    fn channels_are_blue_green_red_and_the_rest_is_zero() {
        let rules = LineBatchRules { width_min: 10, ..LineBatchRules::default() };
        let batch = TextLineBatch::of_lines(&[&line(4, [255, 0, 51])], rules);
        assert_eq!(batch.shape, [1, 3, 48, 32]);
        assert_eq!(batch.filled, [0.125]);
        let rows: Vec<&[f32]> = batch.values.chunks(32).collect();
        assert_eq!(rows.len(), 3 * 48);
        for (plane, value) in rows.chunks(48).zip([-0.6, -1.0, 1.0]) {
            for row in plane {
                assert!(row[..4].iter().all(|got| (got - value).abs() < 1e-6) && row[4..] == [0.0; 28], "{row:?}");
            }
        }
    }

    #[test]
    fn a_line_wider_than_the_tensor_is_squeezed() {
        let batch = TextLineBatch::new(&[&line(400, [10, 200, 30])], 192);
        assert_eq!((batch.shape, batch.filled.as_slice()), ([1, 3, 48, 192], &[1.0_f32][..]));
        let blue = &batch.values[..48 * 192];
        assert!(blue.iter().all(|value| (value - (30.0 / 127.5 - 1.0)).abs() < 1e-6));
    }

    proptest! {
        #[test]
        fn each_line_is_in_one_batch_and_batches_are_bounded(
            widths in proptest::collection::vec(1_usize..3000, 0..60), columns_max in 1_usize..5000,
        ) {
            let rules = LineBatchRules { columns_max, ..LineBatchRules::default() };
            let groups = group(&widths, rules);
            let mut all: Vec<usize> = groups.iter().flatten().copied().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..widths.len()).collect::<Vec<_>>());
            for lines in groups {
                let sizes: Vec<usize> = lines.iter().map(|&line| padded(widths[line], rules.width_min)).collect();
                let widest = sizes.iter().max().unwrap();
                prop_assert!(lines.len() == 1 || widest * lines.len() <= columns_max);
                let padding = coordinate(widest * lines.len() - sizes.iter().sum::<usize>());
                prop_assert!(padding <= rules.padding_max * coordinate(widest * lines.len()) + 0.01);
            }
        }
    }
}
