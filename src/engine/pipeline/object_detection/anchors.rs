//! The form `anchors`: an encoding of a box for each anchor of a table, as of SSD (arXiv:1512.02325). The table is
//! computed from a declared grid, with the options of `SsdAnchorsCalculator` in `MediaPipe`.

use serde::{Deserialize, Serialize};

use super::super::classification::softmax;
use super::super::error::PostprocessError;
use super::candidates::{BoxActivation, BoxEdges, CandidateCollector, RowActivation};
use super::form::{BoxFormat, BoxFormatOutput, strides_mistake};
use super::values::OutputValues;

/// The most anchors of a table: ten times those of detectors for 640 pixels.
const ANCHORS_MAX: usize = 1 << 18;

/// The table `[pipeline.object_detection.anchors]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "the options of `MediaPipe`")]
pub struct AnchorBoxFormat {
    /// The output with the encodings: rows of at least four numbers.
    boxes: String,
    /// The output with the scores of each class, or with one score a row.
    scores: String,
    /// Pixels of the model's input from one anchor to the next, for each layer of the grid.
    strides: Vec<u32>,
    /// The size of anchors in the first layer, as a share of the input.
    min_scale: f32,
    /// The size of anchors in the last layer.
    max_scale: f32,
    /// Width divided by height, for each anchor of a cell.
    #[serde(default = "square")]
    aspect_ratios: Vec<f32>,
    /// The aspect ratio of an additional anchor in each cell, with a size between those of this layer and the next; 0
    /// for no additional anchor.
    #[serde(default = "one")]
    interpolated_scale_aspect_ratio: f32,
    /// The first layer has three anchors a cell: a small square, and those of the ratios 2 and 1/2.
    #[serde(default)]
    reduce_boxes_in_lowest_layer: bool,
    /// All anchors are as large as the input, and encodings are shares of it.
    #[serde(default)]
    fixed_anchor_size: bool,
    /// The position of an anchor inside its cell.
    #[serde(default = "middle")]
    anchor_offset: f32,
    /// Divisors of an encoding: x, y, width, height.
    #[serde(default = "ssd_scales")]
    box_scales: [f32; 4],
    /// The order of the four numbers of an encoding.
    #[serde(default)]
    order: AnchorEncodingOrder,
    /// A size is encoded as its logarithm.
    #[serde(default = "yes")]
    exponential: bool,
    /// The first class stands for no object.
    #[serde(default)]
    background: bool,
    #[serde(default = "sigmoid")]
    activation: RowActivation,
}

/// The order of an encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AnchorEncodingOrder {
    /// y, x, height, width, as of TensorFlow's Object Detection API.
    #[default]
    Yxhw,
    /// x, y, width, height.
    Xywh,
}

fn square() -> Vec<f32> {
    vec![1.0]
}

fn one() -> f32 {
    1.0
}

fn middle() -> f32 {
    0.5
}

fn ssd_scales() -> [f32; 4] {
    [10.0, 10.0, 5.0, 5.0]
}

fn yes() -> bool {
    true
}

fn sigmoid() -> RowActivation {
    RowActivation::Sigmoid
}

/// An anchor: its centre and its size, as shares of the input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Anchor {
    pub centre: [f32; 2],
    pub size: [f32; 2],
}

impl AnchorBoxFormat {
    /// The anchors in the order of the model's rows, for an input of this height and width.
    pub(super) fn table(&self, [height, width]: [f32; 2]) -> Vec<Anchor> {
        let mut anchors = Vec::new();
        let layers: Vec<_> = self.strides.iter().copied().enumerate().collect();
        // Layers with the same stride share their cells.
        for layers in layers.chunk_by(|(_, one), (_, other)| one == other) {
            let sizes: Vec<_> = layers.iter().flat_map(|&(layer, _)| self.sizes(layer)).collect();
            let stride = layers.first().map_or(1, |&(_, stride)| stride);
            let cells = |side: f32| (f64::from(side) / f64::from(stride)).ceil();
            let (rows, columns) = (cells(height), cells(width));
            let centres = positions(rows, self.anchor_offset);
            for y in centres {
                for x in positions(columns, self.anchor_offset) {
                    anchors.extend(sizes.iter().map(|&size| Anchor { centre: [x, y], size }));
                }
            }
        }
        anchors
    }

    /// Width and height of each anchor that a layer adds to a cell.
    fn sizes(&self, layer: usize) -> Vec<[f32; 2]> {
        let scale = self.scale(layer);
        let shaped = |(ratio, scale): (f32, f32)| {
            if self.fixed_anchor_size { [1.0; 2] } else { [scale * ratio.sqrt(), scale / ratio.sqrt()] }
        };
        if layer == 0 && self.reduce_boxes_in_lowest_layer {
            return [(1.0, 0.1), (2.0, scale), (0.5, scale)].map(shaped).to_vec();
        }
        let next = if layer + 1 == self.strides.len() { 1.0 } else { self.scale(layer + 1) };
        let between = (self.interpolated_scale_aspect_ratio > 0.0)
            .then_some((self.interpolated_scale_aspect_ratio, (scale * next).sqrt()));
        self.aspect_ratios.iter().map(|&ratio| (ratio, scale)).chain(between).map(shaped).collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "there are few layers")]
    fn scale(&self, layer: usize) -> f32 {
        match self.strides.len() {
            1 => f32::midpoint(self.min_scale, self.max_scale),
            count => self.min_scale + (self.max_scale - self.min_scale) * layer as f32 / (count as f32 - 1.0),
        }
    }

    /// The box that an encoding gives an anchor, as shares of the input.
    fn decode(&self, anchor: Anchor, raw: [f32; 4]) -> BoxEdges {
        let [x, y, width, height] = match self.order {
            AnchorEncodingOrder::Xywh => raw,
            AnchorEncodingOrder::Yxhw => [raw[1], raw[0], raw[3], raw[2]],
        };
        let scales = self.box_scales;
        let size = |raw: f32| if self.exponential { raw.exp() } else { raw };
        let centre =
            [x / scales[0] * anchor.size[0] + anchor.centre[0], y / scales[1] * anchor.size[1] + anchor.centre[1]];
        BoxEdges::around(centre, [size(width / scales[2]) * anchor.size[0], size(height / scales[3]) * anchor.size[1]])
    }
}

/// The positions of cells along a side, as shares of it.
fn positions(cells: f64, offset: f32) -> impl Iterator<Item = f32> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of cells")]
    let count = cells as u32;
    #[expect(clippy::cast_possible_truncation, reason = "a share of a side")]
    (0..count).map(move |cell| ((f64::from(cell) + f64::from(offset)) / cells) as f32)
}

impl BoxFormat for AnchorBoxFormat {
    fn outputs(&self) -> Vec<BoxFormatOutput<'_>> {
        vec![
            BoxFormatOutput { key: "scores", name: Some(&self.scores) },
            BoxFormatOutput { key: "boxes", name: Some(&self.boxes) },
        ]
    }

    fn mistakes(&self) -> Vec<(&'static str, String)> {
        let mut mistakes = Vec::from_iter(strides_mistake(&self.strides, self.strides.is_empty()));
        for (key, scale) in [("min_scale", self.min_scale), ("max_scale", self.max_scale)] {
            if !(scale > 0.0 && scale <= 2.0) {
                mistakes.push((key, format!("is {scale}, expected more than 0, at most 2")));
            }
        }
        if self.aspect_ratios.is_empty() || !self.aspect_ratios.iter().all(|ratio| ratio.is_normal() && *ratio > 0.0) {
            mistakes.push(("aspect_ratios", format!("is {:?}, expected numbers above 0", self.aspect_ratios)));
        }
        let between = self.interpolated_scale_aspect_ratio;
        if !between.is_finite() || between < 0.0 {
            mistakes.push(("interpolated_scale_aspect_ratio", format!("is {between}, expected 0 or more")));
        }
        if !(0.0..=1.0).contains(&self.anchor_offset) {
            mistakes.push(("anchor_offset", format!("is {}, expected 0 to 1", self.anchor_offset)));
        }
        if !self.box_scales.iter().all(|scale| scale.is_normal()) {
            mistakes.push(("box_scales", format!("is {:?}, expected finite numbers other than 0", self.box_scales)));
        }
        mistakes
    }

    fn check_size(&self, [height, width]: [u32; 2]) -> Result<(), (&'static str, String)> {
        let cells = |stride: u32| u64::from(height.div_ceil(stride)) * u64::from(width.div_ceil(stride));
        let anchors: u64 = self.strides.iter().filter(|&&stride| stride > 0).map(|&stride| cells(stride)).sum();
        let anchors = anchors.saturating_mul(self.aspect_ratios.len() as u64 + 1);
        if anchors > ANCHORS_MAX as u64 {
            return Err(("strides", format!("gives {anchors} anchors, expected at most {ANCHORS_MAX}")));
        }
        Ok(())
    }

    fn activation(&self) -> BoxActivation {
        self.activation.of_each()
    }

    fn collect(
        &self,
        outputs: &[OutputValues<'_>],
        size: [f32; 2],
        found: &mut CandidateCollector<'_>,
    ) -> Result<Option<usize>, PostprocessError> {
        let [scores, boxes] = outputs else {
            return Err(PostprocessError::Outputs("no scores or no boxes".to_owned()));
        };
        let anchors = self.table(size);
        let [rows, width] = boxes.rows()?;
        if rows != anchors.len() || width < 4 {
            return Err(boxes.unfit(&format!("expected {} rows of at least 4, one for each anchor", anchors.len())));
        }
        if scores.len() == 0 || scores.len() % anchors.len() != 0 {
            return Err(scores.unfit(&format!("expected the scores of {} anchors", anchors.len())));
        }
        let classes = scores.len() / anchors.len();
        let first = usize::from(self.background);

        let mut shares = vec![0.0; classes];
        for (row, (&anchor, raw)) in anchors.iter().zip(scores.numbers().chunks_exact(classes)).enumerate() {
            let raw = if self.activation == RowActivation::Softmax {
                shares.copy_from_slice(raw);
                softmax(&mut shares);
                &shares
            } else {
                raw
            };
            for (class, &raw) in raw.iter().enumerate().skip(first) {
                if found.may_pass(raw)
                    && let Some(score) = found.score(raw, class)?
                {
                    found.add(self.decode(anchor, boxes.four(row * width)), score, class)?;
                }
            }
        }
        Ok(Some(classes))
    }
}
