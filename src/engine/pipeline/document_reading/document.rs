//! The answer to a document: its pages with their lines, and its fields.

use std::collections::BTreeMap;

use ledge_base::tensor::Tensor;
use ledge_documents::InvoiceXml;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::error::PostprocessError;
use super::documents;
use crate::pipeline::annotation::TextOutline;
use crate::pipeline::ocr::fields::{
    DocumentFieldDeclaration, DocumentText, FoundDocumentField, ParsedFieldValue, StatedField,
};
use crate::pipeline::ocr::geometry::{Quadrilateral, coordinate};
use crate::pipeline::ocr::line::{OcrLine, OcrWord};
use crate::pipeline::ocr::order::{self, RowOfLines};
use crate::pipeline::ocr::page_turn::QuarterTurns;

/// A document that was read.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Document {
    pages: Vec<DocumentPage>,
    /// Without any for a file of several documents: each has its own.
    #[serde(flatten)]
    fields: DocumentFields,
    /// The documents of a file that has several, in the order of their pages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    documents: Vec<DocumentOfSeveral>,
}

/// The fields of a document.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct DocumentFields {
    /// The fields of `[[field]]` that were found, by their names.
    fields: BTreeMap<String, FieldValue>,
    /// Those whose best value is less likely right than the `threshold` of the field: to look at, not to pay.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    doubtful: BTreeMap<String, FieldValue>,
}

/// One of several documents in a file.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct DocumentOfSeveral {
    /// From 1.
    first_page: usize,
    last_page: usize,
    #[serde(flatten)]
    fields: DocumentFields,
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
    /// The words between spaces, in reading order.
    words: Vec<DocumentWord>,
}

/// A word of a line.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct DocumentWord {
    text: String,
    /// As the corners of its line.
    #[serde(rename = "box")]
    area: QuadrilateralCorners,
    /// 0 to 1: that of its least sure character.
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
    /// The text on the page, if it is on one.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The number of the page, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<usize>,
    #[serde(rename = "box", skip_serializing_if = "Option::is_none")]
    area: Option<QuadrilateralCorners>,
    /// 0 to 1: how likely the value is right, if evidence chose it; else that of the line.
    confidence: f32,
    /// Set for a value of the XML that a PDF carries.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<FieldSource>,
    /// The value of the XML, if the page says something else.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Value>")]
    xml: Option<ParsedFieldValue>,
}

/// The source of a value that is not from a page alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FieldSource {
    Xml,
}

/// The confidence of a value of the XML that no page says.
const UNPRINTED_CONFIDENCE: f32 = 0.95;

/// The most that a value on a page is believed if the XML says another one.
const CONTRADICTED_CONFIDENCE: f32 = 0.5;

impl FieldValue {
    fn on_page(found: FoundDocumentField, pages: &[ReadPage]) -> Option<Self> {
        let page = pages.get(found.page)?;
        Some(Self {
            value: found.value,
            text: Some(found.text),
            page: Some(page.number),
            area: Some(page.corners(found.area)),
            confidence: rounded(found.confidence, 1000.0),
            source: None,
            xml: None,
        })
    }

    fn of_xml(stated: StatedField, pages: &[ReadPage]) -> Option<Self> {
        let source = Some(FieldSource::Xml);
        match stated {
            StatedField::Printed(found) => Some(Self { source, ..Self::on_page(found, pages)? }),
            StatedField::Unprinted(value) => {
                let confidence = UNPRINTED_CONFIDENCE;
                Some(Self { value, text: None, page: None, area: None, confidence, source, xml: None })
            }
            StatedField::Contradicted { stated, printed } => {
                let printed = Self::on_page(printed, pages)?;
                let confidence = printed.confidence.min(CONTRADICTED_CONFIDENCE);
                Some(Self { confidence, xml: Some(stated), ..printed })
            }
        }
    }
}

/// A page that was read.
#[derive(Debug, Clone)]
pub struct ReadPage {
    number: usize,
    /// Width and height of the page as it came in.
    size: (u32, u32),
    /// The rotation that put it upright.
    turn: QuarterTurns,
    source: TextSource,
    /// They lie on the page as it stands upright.
    lines: Vec<OcrLine>,
    rows: Vec<RowOfLines>,
}

/// The source of the text of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TextSource {
    /// The models read it.
    Models,
    /// The file carries it.
    TextLayer,
}

impl ReadPage {
    /// A page by its lines, which lie on the page as it stands upright.
    pub fn new(number: usize, size: (u32, u32), turn: QuarterTurns, source: TextSource, lines: Vec<OcrLine>) -> Self {
        let areas: Vec<_> = lines.iter().map(OcrLine::area).collect();
        Self { number, size, turn, source, rows: order::rows(&areas), lines }
    }

    /// Its lines in rows, to find fields in.
    pub(super) fn text(&self) -> (&[RowOfLines], &[OcrLine]) {
        (&self.rows, &self.lines)
    }

    /// The page of the answer.
    fn answer(&self) -> DocumentPage {
        let word = |word: OcrWord<'_>| DocumentWord {
            text: word.text.to_owned(),
            area: self.corners(word.area),
            confidence: rounded(word.confidence, 1000.0),
        };
        let line = |line: &OcrLine| DocumentLine {
            text: line.text().to_owned(),
            area: self.corners(line.area()),
            confidence: rounded(line.confidence(), 1000.0),
            words: line.words().map(word).collect(),
        };
        DocumentPage {
            number: self.number,
            width: self.size.0,
            height: self.size.1,
            turned: self.turn.degrees(),
            source: self.source,
            lines: self.rows.iter().flatten().filter_map(|index| self.lines.get(*index)).map(line).collect(),
            text: order::plain_text(&self.rows, &self.lines),
        }
    }

    /// The corners of an area on the page as it came in.
    fn corners(&self, area: Quadrilateral) -> QuadrilateralCorners {
        let side = |pixels: u32| coordinate(usize::try_from(pixels).unwrap_or(usize::MAX));
        let sides = (side(self.size.0), side(self.size.1));
        self.turn.on_page(area, sides).within(sides).0.map(|point| [rounded(point.x, 10.0), rounded(point.y, 10.0)])
    }
}

impl DocumentFields {
    /// Those of pages, and of the XML that their file carries.
    fn of(pages: &[ReadPage], fields: &[DocumentFieldDeclaration], invoice: Option<&InvoiceXml>) -> Self {
        let text = DocumentText::new(pages.iter().map(ReadPage::text));
        let mut found = Self::default();
        for field in fields {
            let value = match invoice.and_then(|invoice| text.stated(field, invoice)) {
                Some(stated) => FieldValue::of_xml(stated, pages),
                None => text.find(field).and_then(|found| FieldValue::on_page(found, pages)),
            };
            let Some(value) = value else { continue };
            let is_sure = value.xml.is_none() && value.confidence >= field.threshold;
            let kind = if is_sure { &mut found.fields } else { &mut found.doubtful };
            kind.insert(field.name.clone(), value);
        }
        found
    }
}

/// The results of a document: the text of each page, and the answer in JSON.
pub fn results(
    pages: &[ReadPage],
    fields: &[DocumentFieldDeclaration],
    invoice: Option<&InvoiceXml>,
) -> Result<Vec<Tensor>, PostprocessError> {
    let wrong = |reason: String| PostprocessError::Values(reason);
    // The XML is about the whole file.
    let several = if invoice.is_some() { Vec::new() } else { documents::documents(pages, fields) };
    let documents: Vec<_> = several
        .into_iter()
        .filter_map(|range| {
            let own = pages.get(range).filter(|own| own.len() < pages.len())?;
            let (first, last) = own.first().zip(own.last())?;
            let fields = DocumentFields::of(own, fields, None);
            Some(DocumentOfSeveral { first_page: first.number, last_page: last.number, fields })
        })
        .collect();
    let fields =
        if documents.is_empty() { DocumentFields::of(pages, fields, invoice) } else { DocumentFields::default() };
    let document = Document { pages: pages.iter().map(ReadPage::answer).collect(), fields, documents };
    let texts = document.pages.iter().map(|page| page.text.as_bytes());
    let texts = Tensor::from_strings(vec![pages.len()], texts).map_err(|error| wrong(error.to_string()))?;
    let json = serde_json::to_vec(&document).map_err(|error| wrong(error.to_string()))?;
    let document = Tensor::from_strings(vec![1], [json]).map_err(|error| wrong(error.to_string()))?;
    Ok(vec![texts, document])
}

/// The lines and the fields of the first page of an answer, to draw.
pub fn outlines(answer: &str) -> Option<Vec<TextOutline>> {
    #[derive(Deserialize)]
    struct DocumentAnswer {
        pages: Vec<AnsweredPage>,
        #[serde(flatten)]
        whole: AnsweredFields,
        #[serde(default)]
        documents: Vec<AnsweredFields>,
    }
    #[derive(Deserialize)]
    struct AnsweredFields {
        fields: BTreeMap<String, FieldPlace>,
    }
    #[derive(Deserialize)]
    struct AnsweredPage {
        lines: Vec<LinePlace>,
    }
    #[derive(Deserialize)]
    struct LinePlace {
        #[serde(rename = "box")]
        corners: QuadrilateralCorners,
    }
    #[derive(Deserialize)]
    struct FieldPlace {
        #[serde(default)]
        page: Option<usize>,
        #[serde(default, rename = "box")]
        corners: Option<QuadrilateralCorners>,
    }
    let DocumentAnswer { pages, whole, documents } = serde_json::from_str(answer).ok()?;
    let lines = pages.into_iter().take(1).flat_map(|page| page.lines);
    let lines = lines.map(|line| TextOutline { corners: line.corners, field: None });
    let fields = documents.into_iter().chain([whole]).flat_map(|document| document.fields);
    let fields = fields.filter(|(_, place)| place.page == Some(1));
    let fields = fields.filter_map(|(name, place)| Some(TextOutline { corners: place.corners?, field: Some(name) }));
    Some(lines.chain(fields).collect())
}

/// Rounded to a multiple of `1 / parts`: people read these numbers, and two runtimes differ in the digits that are cut
/// off.
fn rounded(value: f32, parts: f32) -> f32 {
    (value * parts).round() / parts
}
