//! The form `grid`: a box and the scores of all classes for each cell, as the YOLO family has it: YOLOX
//! (arXiv:2107.08430) and the exports of Ultralytics.

use serde::{Deserialize, Serialize};

use super::super::error::PostprocessError;
use super::candidates::{BoxActivation, BoxEdges, CandidateCollector};
use super::form::{BoxFormat, BoxFormatOutput, strides_mistake};
use super::values::OutputValues;

/// The table `[pipeline.object_detection.grid]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GridBoxFormat {
    /// The output; may be left out when the model has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    /// The order of the dimensions; without it the shorter one holds the numbers of a box.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    order: Option<GridDimensionOrder>,
    /// Pixels from one cell to the next, for each layer, when boxes are still encoded relative to their cells, as
    /// YOLOX has them: centre in cells, logarithm of the size in cells. Without it the boxes are decoded.
    #[serde(default)]
    strides: Vec<u32>,
    /// A fifth number says whether there is an object at all; scores are multiplied by it.
    #[serde(default)]
    objectness: bool,
    /// Boxes are shares of the input, and not pixels of it.
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    activation: BoxActivation,
}

/// The order of the dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum GridDimensionOrder {
    /// `[1, N, 4 + C]`: the numbers of a box lie together.
    Rows,
    /// `[1, 4 + C, N]`
    Columns,
}

impl BoxFormat for GridBoxFormat {
    fn outputs(&self) -> Vec<BoxFormatOutput<'_>> {
        vec![BoxFormatOutput { key: "output", name: self.output.as_deref() }]
    }

    fn mistakes(&self) -> Vec<(&'static str, String)> {
        let mut mistakes = Vec::from_iter(strides_mistake(&self.strides, false));
        if !self.strides.is_empty() && self.normalized {
            mistakes.push(("normalized", "is for decoded boxes: leave `strides` out, or this".to_owned()));
        }
        mistakes
    }

    fn activation(&self) -> BoxActivation {
        self.activation
    }

    fn collect(
        &self,
        outputs: &[OutputValues<'_>],
        size: [f32; 2],
        found: &mut CandidateCollector<'_>,
    ) -> Result<Option<usize>, PostprocessError> {
        let [values] = outputs else { return Err(PostprocessError::Outputs("no output".to_owned())) };
        let [first, second] = values.dimensions("boxes, 4 numbers and the scores")?;
        let order =
            self.order.unwrap_or(if second <= first { GridDimensionOrder::Rows } else { GridDimensionOrder::Columns });
        let (boxes, numbers) = if order == GridDimensionOrder::Rows { (first, second) } else { (second, first) };
        let head = 4 + usize::from(self.objectness);
        if numbers <= head {
            let what = if self.objectness { ", an objectness" } else { "" };
            return Err(values.unfit(&format!("expected 4 numbers of a box{what} and at least one score")));
        }
        let cells = self.cells(size, boxes, values)?;
        let number = |index: usize, number: usize| match order {
            GridDimensionOrder::Rows => values.at(index * numbers + number),
            GridDimensionOrder::Columns => values.at(number * boxes + index),
        };

        let classes = numbers - head;
        let mut add = |index: usize, class: usize, raw: f32| {
            if !found.may_pass(raw) {
                return Ok(());
            }
            // The product is compared again: objectness only lowers a score.
            let Some(score) = found.score(raw, class)? else { return Ok(()) };
            let score = if self.objectness { self.activation.apply(number(index, 4)) * score } else { score };
            let Some(score) = found.reaches(score, class)? else { return Ok(()) };
            let raw = std::array::from_fn(|value| number(index, value));
            found.add(self.decode(raw, cells.get(index).copied(), size), score, class)
        };
        // In the order of the memory.
        match order {
            GridDimensionOrder::Rows => {
                for (index, row) in values.numbers().chunks_exact(numbers).enumerate() {
                    for (class, &raw) in row.iter().skip(head).enumerate() {
                        add(index, class, raw)?;
                    }
                }
            }
            GridDimensionOrder::Columns => {
                for (class, column) in values.numbers().chunks_exact(boxes.max(1)).skip(head).enumerate() {
                    for (index, &raw) in column.iter().enumerate() {
                        add(index, class, raw)?;
                    }
                }
            }
        }
        Ok(Some(classes))
    }
}

/// A cell of an encoded grid.
#[derive(Debug, Clone, Copy)]
struct GridCell {
    column: f32,
    row: f32,
    stride: f32,
}

impl GridBoxFormat {
    /// The cells in the order of the boxes; none when boxes are decoded.
    fn cells(
        &self,
        [height, width]: [f32; 2],
        boxes: usize,
        values: &OutputValues<'_>,
    ) -> Result<Vec<GridCell>, PostprocessError> {
        if self.strides.is_empty() {
            return Ok(Vec::new());
        }
        let mut cells = Vec::with_capacity(boxes);
        for &stride in &self.strides {
            #[expect(clippy::cast_precision_loss, reason = "at most the side of an input")]
            let stride = stride as f32;
            for row in count_up(height / stride) {
                cells.extend(count_up(width / stride).map(|column| GridCell { column, row, stride }).take(boxes + 1));
                if cells.len() > boxes {
                    break;
                }
            }
        }
        if cells.len() != boxes {
            let strides = &self.strides;
            return Err(values.unfit(&format!("the strides {strides:?} do not give {boxes} cells")));
        }
        Ok(cells)
    }

    /// The box of four numbers, as shares of the input.
    fn decode(&self, [x, y, wide, high]: [f32; 4], cell: Option<GridCell>, [height, width]: [f32; 2]) -> BoxEdges {
        let edges = match cell {
            Some(GridCell { column, row, stride }) => BoxEdges::around(
                [(x + column) * stride, (y + row) * stride],
                [wide.exp() * stride, high.exp() * stride],
            ),
            None => BoxEdges::around([x, y], [wide, high]),
        };
        if self.normalized { edges } else { edges.divided_by(width, height) }
    }
}

/// 0, 1, 2, ... below the number of whole cells.
fn count_up(cells: f32) -> impl Iterator<Item = f32> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of cells")]
    let count = cells.floor() as u16;
    (0..count).map(f32::from)
}
