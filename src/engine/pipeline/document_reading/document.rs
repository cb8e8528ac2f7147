//! The answer to a document: its pages with their lines, and its fields.

use std::collections::BTreeMap;

use ledge_base::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::error::PostprocessError;
use crate::pipeline::annotation::TextOutline;
use crate::pipeline::ocr::fields::{DocumentFieldDeclaration, PageTextRows as FieldsOfPage, ParsedFieldValue};
use crate::pipeline::ocr::geometry::Quadrilateral;
use crate::pipeline::ocr::line::OcrLine;
use crate::pipeline::ocr::order;

/// A document that was read.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Document {
    pages: Vec<DocumentPage>,
    /// The fields of `[[field]]` that were found, by their names.
    fields: BTreeMap<String, FieldValue>,
}

/// A page of a document.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct DocumentPage {
    /// From 1.
    #[serde(rename = "page")]
    number: usize,
    /// In pixels of the picture that was read, as all boxes.
    width: u32,
    height: u32,
    /// The degrees by which the page had to be turned clockwise to stand upright.
    turned: u16,
    source: TextSource,
    /// In reading order.
    lines: Vec<DocumentLine>,
    /// The lines that are next to each other on a line of this text.
    text: String,
    #[serde(skip)]
    fields: BTreeMap<String, FieldValue>,
}

/// A line of text.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct DocumentLine {
    text: String,
    /// The corners on the page as it came in, clockwise from where the first letter begins at the top.
    #[serde(rename = "box")]
    area: QuadrilateralCorners,
    /// 0 to 1: the mean of the characters.
    confidence: f32,
}

/// Four points, each as x and y.
pub type QuadrilateralCorners = [[f32; 2]; 4];

/// A field that was found.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct FieldValue {
    /// An amount as `{"amount": "12.50", "currency": "EUR"}`, a date as `"2026-11-24"`, else a text.
    #[schemars(with = "serde_json::Value")]
    value: ParsedFieldValue,
    /// The text on the page.
    text: String,
    /// The number of the page, from 1.
    page: usize,
    #[serde(rename = "box")]
    area: QuadrilateralCorners,
    /// That of the line.
    confidence: f32,
}

/// The size of a page, and how it was turned.
#[derive(Debug, Clone, Copy)]
pub struct PageSize {
    pub number: usize,
    pub width: u32,
    pub height: u32,
    pub turned: u16,
    pub source: TextSource,
}

/// The source of the text of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TextSource {
    /// The models read it.
    Models,
    /// The file carries it.
    TextLayer,
}

impl DocumentPage {
    /// A page by its lines, which lie on the page as it stands upright. `on_page` is the place on the page that came
    /// in.
    pub fn new(
        size: PageSize,
        lines: &[OcrLine],
        fields: &[DocumentFieldDeclaration],
        on_page: impl Fn(Quadrilateral) -> Quadrilateral,
    ) -> Self {
        let areas: Vec<_> = lines.iter().map(OcrLine::area).collect();
        let rows = order::rows(&areas);
        let corners =
            |area: Quadrilateral| on_page(area).0.map(|point| [rounded(point.x, 10.0), rounded(point.y, 10.0)]);
        let line = |line: &OcrLine| DocumentLine {
            text: line.text().to_owned(),
            area: corners(line.area()),
            confidence: rounded(line.confidence(), 1000.0),
        };
        let in_order = rows.iter().flatten().filter_map(|index| lines.get(*index)).map(line).collect();
        let page = FieldsOfPage::new(&rows, lines);
        let found = fields.iter().filter_map(|field| {
            let found = page.find(field)?;
            let value = FieldValue {
                value: found.value,
                text: found.text,
                page: size.number,
                area: corners(found.area),
                confidence: rounded(found.confidence, 1000.0),
            };
            Some((field.name.clone(), value))
        });
        Self {
            number: size.number,
            width: size.width,
            height: size.height,
            turned: size.turned,
            source: size.source,
            text: order::plain_text(&rows, lines),
            lines: in_order,
            fields: found.collect(),
        }
    }
}

/// The results of a document: the text of each page, and the answer in JSON. A field is that of the first page which
/// has it.
pub fn results(pages: Vec<DocumentPage>) -> Result<Vec<Tensor>, PostprocessError> {
    let wrong = |reason: String| PostprocessError::Values(reason);
    let texts = Tensor::from_strings(vec![pages.len()], pages.iter().map(|page| page.text.as_bytes()));
    let mut fields = BTreeMap::new();
    for page in &pages {
        for (name, value) in &page.fields {
            fields.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
    let document = serde_json::to_vec(&Document { pages, fields }).map_err(|error| wrong(error.to_string()))?;
    let document = Tensor::from_strings(vec![1], [document]);
    Ok(vec![texts.map_err(|error| wrong(error.to_string()))?, document.map_err(|error| wrong(error.to_string()))?])
}

/// The lines and the fields of the first page of an answer, to draw.
pub fn outlines(answer: &str) -> Option<Vec<TextOutline>> {
    #[derive(Deserialize)]
    struct DocumentAnswer {
        pages: Vec<AnsweredPage>,
        fields: BTreeMap<String, FieldPlace>,
    }
    #[derive(Deserialize)]
    struct AnsweredPage {
        lines: Vec<FieldPlace>,
    }
    #[derive(Deserialize)]
    struct FieldPlace {
        #[serde(default)]
        page: Option<usize>,
        #[serde(rename = "box")]
        corners: QuadrilateralCorners,
    }
    let DocumentAnswer { pages, fields } = serde_json::from_str(answer).ok()?;
    let lines = pages.into_iter().take(1).flat_map(|page| page.lines);
    let lines = lines.map(|line| TextOutline { corners: line.corners, field: None });
    let fields = fields.into_iter().filter(|(_, place)| place.page == Some(1));
    let fields = fields.map(|(name, place)| TextOutline { corners: place.corners, field: Some(name) });
    Some(lines.chain(fields).collect())
}

/// Rounded to a multiple of `1 / parts`: people read these numbers, and two runtimes differ in the digits that are cut
/// off.
fn rounded(value: f32, parts: f32) -> f32 {
    (value * parts).round() / parts
}
