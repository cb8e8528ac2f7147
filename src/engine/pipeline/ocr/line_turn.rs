//! Turn: finds the lines that may be upside down, by the model that distinguishes 0 from 180 degrees.
//!
//! The model is wrong about some upright lines: of 82 long ones of a page it turned 3, with scores above .9. Therefore
//! a turned line is read both ways, and [`super::ctc::DecodedText::or_surer`] decides.

use super::line_image::{LINE_HEIGHT, LineImage};
use super::recognition::TextLineBatch;

/// The width of the model's input. Of a longer line, the whole is squeezed into it.
pub const WIDTH: usize = 192;

/// The least score of 180 degrees at which a line is turned: the model is unsure of short lines.
const SCORE_MIN: f32 = 0.9;

/// The tensor `[N, 3, 48, 192]` of lines, for the model of turns.
pub fn batch(lines: &[&LineImage]) -> TextLineBatch {
    TextLineBatch::new(lines, WIDTH)
}

/// Finds the lines that are upside down, by the model's output `[N, 2]`: the scores of 0 and of 180 degrees. `None` for
/// another shape, and for one that the values do not fill.
pub fn upside_down(shape: &[usize], scores: &[f32]) -> Option<Vec<bool>> {
    let [lines, 2] = *shape else { return None };
    let (rows, rest) = scores.as_chunks::<2>();
    let turned = rows.iter().map(|[upright, turned]| *turned > SCORE_MIN && *turned > *upright);
    (rows.len() == lines && rest.is_empty()).then(|| turned.collect())
}

const _: () = assert!(LINE_HEIGHT == 48, "the model of turns takes lines of this height");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_turned_where_the_model_is_sure() {
        let scores = [0.02, 0.98, 0.2, 0.8, 0.99, 0.01, f32::NAN, f32::NAN];
        assert_eq!(upside_down(&[4, 2], &scores), Some(vec![true, false, false, false]));
        assert_eq!(upside_down(&[3, 2], &scores), None);
        assert_eq!(upside_down(&[2, 4], &scores), None);
    }
}
