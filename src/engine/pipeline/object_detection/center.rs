//! The form `center`: a heat map with a peak in the middle of each object, as of `CenterNet` (arXiv:1904.07850).

use serde::{Deserialize, Serialize};

use super::super::error::PostprocessError;
use super::super::preparation::TensorLayout;
use super::candidates::{BoxActivation, BoxEdges, CandidateCollector};
use super::form::{BoxFormat, BoxFormatOutput};
use super::values::OutputValues;

/// The table `[pipeline.object_detection.center]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CenterBoxFormat {
    /// The output with the heat map of each class.
    heat_map: String,
    /// The output with the distances from a cell's upper left corner to the left, upper, right and lower edge of the
    /// box, in pixels of the model's input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    extents: Option<String>,
    /// The output with the width and height of the box, in cells, where there are no `extents`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sizes: Option<String>,
    /// The output with the position of the centre inside its cell, 0 to 1; the middle without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    offsets: Option<String>,
    /// The order of the dimensions of all these outputs.
    #[serde(default)]
    layout: TensorLayout,
    #[serde(default)]
    activation: BoxActivation,
}

impl BoxFormat for CenterBoxFormat {
    fn outputs(&self) -> Vec<BoxFormatOutput<'_>> {
        let others = [("extents", &self.extents), ("sizes", &self.sizes), ("offsets", &self.offsets)];
        let others =
            others.into_iter().filter_map(|(key, name)| Some(BoxFormatOutput { key, name: Some(name.as_ref()?) }));
        std::iter::once(BoxFormatOutput { key: "heat_map", name: Some(&self.heat_map) }).chain(others).collect()
    }

    fn mistakes(&self) -> Vec<(&'static str, String)> {
        match (&self.extents, &self.sizes) {
            (None, None) => vec![("extents", "is missing: name the output with the extents, or set `sizes`".into())],
            (Some(_), Some(_)) => vec![("sizes", "is set as well as `extents`: a box has one size".into())],
            (Some(_), None) if self.offsets.is_some() => {
                vec![("offsets", "goes with `sizes`: extents already say where the edges are".into())]
            }
            _ => Vec::new(),
        }
    }

    fn activation(&self) -> BoxActivation {
        self.activation
    }

    fn collect(
        &self,
        outputs: &[OutputValues<'_>],
        [height, width]: [f32; 2],
        found: &mut CandidateCollector<'_>,
    ) -> Result<Option<usize>, PostprocessError> {
        let [heat, others @ ..] = outputs else { return Err(PostprocessError::Outputs("no heat map".to_owned())) };
        let map = CenterMap::new(heat, self.layout)?;
        let cell = [width / number(map.columns), height / number(map.rows)];
        let mut others = others.iter();
        let mut channels = |count: usize| match others.next() {
            Some(values) => map.channels(values, self.layout, count).map(Some),
            None => Ok(None),
        };
        let (size, offset) = if self.extents.is_some() { (channels(4)?, None) } else { (channels(2)?, channels(2)?) };
        let Some(size) = size else { return Err(PostprocessError::Outputs("no size of the boxes".to_owned())) };

        for (index, &raw) in heat.numbers().iter().enumerate() {
            if !found.may_pass(raw) {
                continue;
            }
            let HeatmapPeak { class, row, column } = map.place(index);
            let Some(score) = found.score(raw, class)?.filter(|_| map.is_peak(heat, raw, class, row, column)) else {
                continue;
            };
            let at = [number(column), number(row)];
            let edges = if self.extents.is_some() {
                let [left, top, right, bottom] = size.read(row, column);
                let [x, y] = [at[0] * cell[0], at[1] * cell[1]];
                BoxEdges { left: x - left, top: y - top, right: x + right, bottom: y + bottom }
            } else {
                let [x, y] = offset.as_ref().map_or([0.5; 2], |offset| offset.read(row, column));
                let [wide, high] = size.read(row, column);
                BoxEdges::around([(at[0] + x) * cell[0], (at[1] + y) * cell[1]], [wide * cell[0], high * cell[1]])
            };
            found.add(edges.divided_by(width, height), score, class)?;
        }
        Ok(Some(map.classes))
    }
}

/// The dimensions of a map of cells.
#[derive(Debug, Clone, Copy)]
struct CenterMap {
    classes: usize,
    rows: usize,
    columns: usize,
    layout: TensorLayout,
}

struct HeatmapPeak {
    class: usize,
    row: usize,
    column: usize,
}

impl CenterMap {
    fn new(heat: &OutputValues<'_>, layout: TensorLayout) -> Result<Self, PostprocessError> {
        let (classes, rows, columns) = dimensions(heat, layout)?;
        Ok(Self { classes, rows, columns, layout })
    }

    /// The place of an element.
    fn place(self, index: usize) -> HeatmapPeak {
        let Self { classes, rows, columns, layout } = self;
        match layout {
            TensorLayout::Nchw => {
                HeatmapPeak { class: index / (rows * columns), row: index / columns % rows, column: index % columns }
            }
            TensorLayout::Nhwc => HeatmapPeak {
                class: index % classes,
                row: index / (classes * columns),
                column: index / classes % columns,
            },
        }
    }

    fn index(self, class: usize, row: usize, column: usize) -> usize {
        let Self { classes, rows, columns, layout } = self;
        match layout {
            TensorLayout::Nchw => (class * rows + row) * columns + column,
            TensorLayout::Nhwc => (row * columns + column) * classes + class,
        }
    }

    /// Returns true if no neighbour of a cell has more heat of its class.
    fn is_peak(self, heat: &OutputValues<'_>, raw: f32, class: usize, row: usize, column: usize) -> bool {
        let rows = row.saturating_sub(1)..(row + 2).min(self.rows);
        let columns = column.saturating_sub(1)..(column + 2).min(self.columns);
        rows.into_iter().all(|row| {
            columns.clone().all(|column| {
                let neighbour = heat.at(self.index(class, row, column));
                neighbour <= raw || neighbour.is_nan()
            })
        })
    }

    /// An output with `count` numbers for each cell.
    fn channels<'v>(
        self,
        values: &'v OutputValues<'v>,
        layout: TensorLayout,
        count: usize,
    ) -> Result<CenterMapChannels<'v>, PostprocessError> {
        let (channels, rows, columns) = dimensions(values, layout)?;
        if (channels, rows, columns) != (count, self.rows, self.columns) {
            let Self { rows, columns, .. } = self;
            let reason = format!("expected {count} channels of {rows}x{columns} cells, as the heat map has");
            return Err(values.unfit(&reason));
        }
        Ok(CenterMapChannels { values, map: Self { classes: count, ..self } })
    }
}

/// Some numbers for each cell.
#[derive(Debug)]
struct CenterMapChannels<'v> {
    values: &'v OutputValues<'v>,
    map: CenterMap,
}

impl CenterMapChannels<'_> {
    fn read<const N: usize>(&self, row: usize, column: usize) -> [f32; N] {
        std::array::from_fn(|channel| self.values.at(self.map.index(channel, row, column)))
    }
}

/// Channels, rows and columns.
fn dimensions(values: &OutputValues<'_>, layout: TensorLayout) -> Result<(usize, usize, usize), PostprocessError> {
    let (channels, rows, columns) = match layout {
        TensorLayout::Nchw => {
            let [channels, rows, columns] = values.dimensions("channels, rows, columns")?;
            (channels, rows, columns)
        }
        TensorLayout::Nhwc => {
            let [rows, columns, channels] = values.dimensions("rows, columns, channels")?;
            (channels, rows, columns)
        }
    };
    if channels * rows * columns == 0 {
        return Err(values.unfit("expected at least one cell"));
    }
    Ok((channels, rows, columns))
}

#[expect(clippy::cast_precision_loss, reason = "maps have far fewer than 2^24 cells a side")]
fn number(count: usize) -> f32 {
    count as f32
}
