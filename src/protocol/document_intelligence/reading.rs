//! The answer of the reader of documents, as this form needs it.

use std::collections::BTreeMap;

use ledge_part::api_error::{ApiError, StatusCode};
use serde::Deserialize;

/// The corners of an area on the page as it came in, clockwise from where the first letter begins at the top.
pub(super) type Corners = [[f64; 2]; 4];

/// A document that was read.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct ReadDocument {
    pub pages: Vec<ReadPage>,
    /// Without any for a file of several documents.
    pub fields: BTreeMap<String, ReadField>,
    #[serde(default)]
    pub documents: Vec<ReadDocumentPart>,
}

/// One of several documents in a file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct ReadDocumentPart {
    /// From 1.
    pub first_page: usize,
    pub last_page: usize,
    pub fields: BTreeMap<String, ReadField>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct ReadPage {
    /// From 1.
    #[serde(rename = "page")]
    pub number: usize,
    /// In pixels, as all corners.
    pub width: u32,
    pub height: u32,
    /// The degrees by which the page had to be turned clockwise to stand upright.
    pub turned: u16,
    /// In reading order.
    pub lines: Vec<ReadLine>,
    /// Rows of lines: those beside each other are joined by a space.
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct ReadLine {
    pub text: String,
    #[serde(rename = "box")]
    pub corners: Corners,
    pub words: Vec<ReadWord>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct ReadWord {
    pub text: String,
    #[serde(rename = "box")]
    pub corners: Corners,
    pub confidence: f64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct ReadField {
    pub value: serde_json::Value,
    /// None, as the page and the corners, for a value that no page says.
    #[serde(default)]
    pub text: Option<String>,
    #[serde(default)]
    pub page: Option<usize>,
    #[serde(default, rename = "box")]
    pub corners: Option<Corners>,
    pub confidence: f64,
}

impl ReadDocument {
    /// Reads the answer of the model that the operator set.
    pub fn parse(answer: &str) -> Result<Self, ApiError> {
        serde_json::from_str(answer).map_err(|error| {
            let message = format!("the model that is set as documents.model reads no documents: {error}");
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
        })
    }
}

impl ReadPage {
    /// The lines of each row, as positions.
    pub fn rows(&self) -> Vec<Vec<usize>> {
        let mut next = 0;
        let row = |row: &str| {
            let (mut rest, mut lines) = (row, Vec::new());
            while let Some(line) = self.lines.get(next).filter(|_| !rest.is_empty()) {
                let Some(behind) = rest.strip_prefix(line.text.as_str()) else { break };
                lines.push(next);
                next += 1;
                rest = behind.trim_start();
            }
            lines
        };
        let rows: Vec<_> = self.text.lines().map(row).collect();
        let others = (next..self.lines.len()).map(|line| vec![line]);
        rows.into_iter().chain(others).filter(|row| !row.is_empty()).collect()
    }

    /// The rectangle of an area on the page as it stands upright: left, top, right and bottom.
    pub fn upright(&self, corners: &Corners) -> [f64; 4] {
        let (width, height) = (f64::from(self.width), f64::from(self.height));
        let turn = |[x, y]: [f64; 2]| match self.turned {
            90 => [height - y, x],
            180 => [width - x, height - y],
            270 => [y, width - x],
            _ => [x, y],
        };
        let points = corners.map(turn);
        let edge = |axis: usize, choose: fn(f64, f64) -> f64| {
            points.iter().filter_map(|point| point.get(axis)).copied().reduce(choose).unwrap_or(0.0)
        };
        [edge(0, f64::min), edge(1, f64::min), edge(0, f64::max), edge(1, f64::max)]
    }
}

/// The rectangle around several areas, with its corners as those of the first.
pub(super) fn around<'a>(areas: impl Iterator<Item = &'a Corners>) -> Corners {
    let mut bounds: Option<[f64; 4]> = None;
    for [x, y] in areas.flatten().copied() {
        let [left, top, right, bottom] = bounds.unwrap_or([x, y, x, y]);
        bounds = Some([left.min(x), top.min(y), right.max(x), bottom.max(y)]);
    }
    let [left, top, right, bottom] = bounds.unwrap_or_default();
    [[left, top], [right, top], [right, bottom], [left, bottom]]
}
