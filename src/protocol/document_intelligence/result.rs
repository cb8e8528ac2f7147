//! The analysis of a document: `analyzeResult` ("Get Analyze Result").

use std::collections::BTreeMap;

use ledge_part::api_error::ApiError;
use serde::Serialize;

use super::content::{Content, Span};
use super::fields::{self, DocumentField};
use super::layout::{self, Block, Table};
use super::reading::{Corners, ReadDocument, ReadField, ReadPage, around};
use super::request::{AnalyzeOptions, ContentFormat, DocumentModel, StringIndexType};

/// Pixels of a page of a PDF in each inch, unless the page is so large that it is drawn smaller.
const DOTS_PER_INCH: f64 = 200.0;

/// The pixels of a page that is drawn smaller, at least.
const SMALLER_PIXELS: u64 = 9_900_000;

/// Separates pages in Markdown.
const PAGE_BREAK: &str = "\n\n<!-- PageBreak -->\n\n";

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AnalyzeResult<'a> {
    api_version: &'static str,
    model_id: &'static str,
    string_index_type: StringIndexType,
    content_format: ContentFormat,
    content: String,
    pages: Vec<Page<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    paragraphs: Vec<Paragraph>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tables: Vec<DocumentTable>,
    styles: [(); 0],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    documents: Vec<AnalyzedDocument>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<Warning>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    #[serde(rename = "pageNumber")]
    number: usize,
    /// The direction of the text, clockwise: -180 to 180 degrees.
    angle: i16,
    width: f64,
    height: f64,
    unit: &'static str,
    words: Vec<Word<'a>>,
    lines: Vec<Line<'a>>,
    spans: [Span; 1],
}

#[derive(Debug, Serialize)]
struct Word<'a> {
    content: &'a str,
    polygon: Polygon,
    /// That of the line: the reader knows no other.
    confidence: f64,
    span: Span,
}

#[derive(Debug, Serialize)]
struct Line<'a> {
    content: &'a str,
    polygon: Polygon,
    spans: [Span; 1],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Paragraph {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    content: String,
    #[serde(flatten)]
    place: ContentPlace,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DocumentTable {
    row_count: usize,
    column_count: usize,
    cells: Vec<TableCell>,
    #[serde(flatten)]
    place: ContentPlace,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TableCell {
    row_index: usize,
    column_index: usize,
    content: String,
    #[serde(flatten)]
    place: ContentPlace,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AnalyzedDocument {
    doc_type: &'static str,
    bounding_regions: Vec<Region>,
    spans: [Span; 1],
    fields: BTreeMap<&'static str, DocumentField>,
    /// The mean of the fields.
    confidence: f64,
}

#[derive(Debug, Serialize)]
struct Warning {
    code: &'static str,
    message: String,
    target: &'static str,
}

/// The place of a part on its page and in the content.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ContentPlace {
    bounding_regions: [Region; 1],
    spans: [Span; 1],
}

/// The corners as x and y of each.
pub(super) type Polygon = [f64; 8];

/// An area of a page.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Region {
    page_number: usize,
    polygon: Polygon,
}

/// The unit of the places on a page.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageUnit {
    page: usize,
    name: &'static str,
    /// Pixels in each.
    pixels: f64,
}

impl PageUnit {
    /// Inches for a page of a PDF, as far as their pixels are known; else pixels.
    fn of(page: &ReadPage, is_pdf: bool) -> Self {
        let is_whole = u64::from(page.width) * u64::from(page.height) < SMALLER_PIXELS;
        let (name, pixels) = if is_pdf && is_whole { ("inch", DOTS_PER_INCH) } else { ("pixel", 1.0) };
        Self { page: page.number, name, pixels }
    }

    fn length(self, pixels: f64) -> f64 {
        (pixels / self.pixels * 1e4).round() / 1e4
    }

    fn polygon(self, corners: &Corners) -> Polygon {
        let mut polygon = [0.0; 8];
        for (place, pixels) in polygon.iter_mut().zip(corners.as_flattened()) {
            *place = self.length(*pixels);
        }
        polygon
    }

    pub fn region(self, corners: &Corners) -> Region {
        Region { page_number: self.page, polygon: self.polygon(corners) }
    }
}

/// Gives the analysis of a document to `take`, made of the answer of the reader. `is_pdf` gives places in inches.
pub(super) fn analyze<T>(
    answer: &str,
    (model, options): (DocumentModel, &AnalyzeOptions),
    is_pdf: bool,
    take: impl FnOnce(&AnalyzeResult<'_>) -> T,
) -> Result<T, ApiError> {
    let mut document = ReadDocument::parse(answer)?;
    document.pages.retain(|page| options.pages.contains(page.number));
    Ok(take(&AnalysisWriter::new(options).write(&document, (model, options), is_pdf)))
}

/// Writes the content, and what has its place in it.
struct AnalysisWriter<'a> {
    content: Content,
    format: ContentFormat,
    pages: Vec<Page<'a>>,
    paragraphs: Vec<Paragraph>,
    tables: Vec<DocumentTable>,
    words: Vec<Word<'a>>,
    lines: Vec<Line<'a>>,
    has_title: bool,
}

impl<'a> AnalysisWriter<'a> {
    fn new(options: &AnalyzeOptions) -> Self {
        Self {
            content: Content::new(options.index),
            format: options.format,
            pages: Vec::new(),
            paragraphs: Vec::new(),
            tables: Vec::new(),
            words: Vec::new(),
            lines: Vec::new(),
            has_title: false,
        }
    }

    fn write(
        mut self,
        document: &'a ReadDocument,
        (model, options): (DocumentModel, &AnalyzeOptions),
        is_pdf: bool,
    ) -> AnalyzeResult<'a> {
        for page in &document.pages {
            if !self.pages.is_empty() {
                self.content.push(if self.is_markdown() { PAGE_BREAK } else { "\n" });
            }
            self.page(page, PageUnit::of(page, is_pdf));
        }
        let documents = self.documents(document, model, is_pdf);
        let warning = |feature: &&'static str| Warning {
            code: "FeatureNotAvailable",
            message: format!("this box finds nothing by the feature {feature}"),
            target: feature,
        };
        AnalyzeResult {
            api_version: options.api_version,
            model_id: model.id(),
            string_index_type: options.index,
            content_format: options.format,
            content: self.content.text,
            pages: self.pages,
            paragraphs: self.paragraphs,
            tables: if model == DocumentModel::Read { Vec::new() } else { self.tables },
            styles: [],
            documents,
            warnings: options.features.iter().map(warning).collect(),
        }
    }

    fn is_markdown(&self) -> bool {
        self.format == ContentFormat::Markdown
    }

    fn page(&mut self, page: &'a ReadPage, unit: PageUnit) {
        let start = self.content.offset();
        for (index, block) in layout::blocks(page).iter().enumerate() {
            if index > 0 {
                self.content.push(if self.is_markdown() { "\n\n" } else { "\n" });
            }
            match block {
                Block::Heading(row) => {
                    let role = if self.has_title { "sectionHeading" } else { "title" };
                    if self.is_markdown() {
                        self.content.push(if self.has_title { "## " } else { "# " });
                    }
                    self.has_title = true;
                    self.paragraph(page, std::slice::from_ref(row), Some(role), unit);
                }
                Block::Paragraph(rows) => self.paragraph(page, rows, None, unit),
                Block::Table(table) => self.table(page, table, unit),
            }
        }
        self.pages.push(Page {
            number: page.number,
            angle: match page.turned {
                90 => -90,
                180 => 180,
                270 => 90,
                _ => 0,
            },
            width: unit.length(page.width.into()),
            height: unit.length(page.height.into()),
            unit: unit.name,
            words: std::mem::take(&mut self.words),
            lines: std::mem::take(&mut self.lines),
            spans: [self.content.since(start)],
        });
    }

    fn paragraph(&mut self, page: &'a ReadPage, rows: &[Vec<usize>], role: Option<&'static str>, unit: PageUnit) {
        let (start, begin) = (self.content.offset(), self.content.text.len());
        for (index, row) in rows.iter().enumerate() {
            if index > 0 {
                self.content.push("\n");
            }
            self.row(page, row, unit);
        }
        self.paragraphs.push(Paragraph {
            role,
            content: self.text_since(begin),
            place: self.place(page, rows.iter().flatten(), unit, start),
        });
    }

    /// Lines beside each other.
    fn row(&mut self, page: &'a ReadPage, row: &[usize], unit: PageUnit) {
        for (index, line) in row.iter().enumerate() {
            if index > 0 {
                self.content.push(" ");
            }
            self.line(page, *line, unit);
        }
    }

    fn line(&mut self, page: &'a ReadPage, line: usize, unit: PageUnit) {
        let Some(line) = page.lines.get(line) else { return };
        let start = self.content.offset();
        for (index, word) in line.words.iter().enumerate() {
            if index > 0 {
                self.content.push(" ");
            }
            let span = self.content.push(&word.text);
            let polygon = unit.polygon(&word.corners);
            self.words.push(Word { content: &word.text, polygon, confidence: word.confidence, span });
        }
        let (polygon, spans) = (unit.polygon(&line.corners), [self.content.since(start)]);
        self.lines.push(Line { content: &line.text, polygon, spans });
    }

    fn table(&mut self, page: &'a ReadPage, table: &Table, unit: PageUnit) {
        let start = self.content.offset();
        let (mut cells, markdown) = (Vec::new(), self.is_markdown());
        let tag = |content: &mut Content, tag: &str| {
            if markdown {
                content.push(tag);
            }
        };
        tag(&mut self.content, "<table>\n");
        for (row_index, row) in table.rows.iter().enumerate() {
            tag(&mut self.content, "<tr>\n");
            if !markdown && row_index > 0 {
                self.content.push("\n");
            }
            for column_index in 0..table.columns {
                let cell = row.iter().find(|(column, _)| *column == column_index);
                if !markdown && cell.is_some_and(|cell| row.first() != Some(cell)) {
                    self.content.push(" ");
                }
                tag(&mut self.content, "<td>");
                if let Some((_, line)) = cell {
                    let (start, begin) = (self.content.offset(), self.content.text.len());
                    self.line(page, *line, unit);
                    cells.push(TableCell {
                        row_index,
                        column_index,
                        content: self.text_since(begin),
                        place: self.place(page, [line].into_iter(), unit, start),
                    });
                }
                tag(&mut self.content, "</td>\n");
            }
            tag(&mut self.content, "</tr>\n");
        }
        tag(&mut self.content, "</table>");
        let lines = table.rows.iter().flatten().map(|(_, line)| line);
        self.tables.push(DocumentTable {
            row_count: table.rows.len(),
            column_count: table.columns,
            cells,
            place: self.place(page, lines, unit, start),
        });
    }

    /// The place of these lines, whose content begins at `start`.
    fn place<'l>(
        &self,
        page: &ReadPage,
        lines: impl Iterator<Item = &'l usize>,
        unit: PageUnit,
        start: usize,
    ) -> ContentPlace {
        let corners = lines.filter_map(|line| page.lines.get(*line)).map(|line| &line.corners);
        ContentPlace { bounding_regions: [unit.region(&around(corners))], spans: [self.content.since(start)] }
    }

    fn text_since(&self, begin: usize) -> String {
        self.content.text.get(begin..).unwrap_or_default().to_owned()
    }

    /// The receipts or the invoices, for the models that find them.
    fn documents(&self, document: &ReadDocument, model: DocumentModel, is_pdf: bool) -> Vec<AnalyzedDocument> {
        let doc_type = match model {
            DocumentModel::Receipt => "receipt",
            DocumentModel::Invoice => "invoice",
            DocumentModel::Read | DocumentModel::Layout => return Vec::new(),
        };
        let one = (0..=usize::MAX, &document.fields);
        let several = document.documents.iter().map(|part| (part.first_page..=part.last_page, &part.fields));
        let all = several.chain(document.documents.is_empty().then_some(one));
        all.filter_map(|(pages, found)| {
            let own: Vec<&ReadPage> = document.pages.iter().filter(|page| pages.contains(&page.number)).collect();
            // All its pages may be among those that are not asked for.
            let is_asked_for = document.documents.is_empty() || !own.is_empty();
            is_asked_for.then(|| self.document(&own, found, (doc_type, model), is_pdf))
        })
        .collect()
    }

    fn document(
        &self,
        pages: &[&ReadPage],
        found: &BTreeMap<String, ReadField>,
        (doc_type, model): (&'static str, DocumentModel),
        is_pdf: bool,
    ) -> AnalyzedDocument {
        let region = |page: usize, corners: &Corners| {
            let page = pages.iter().find(|known| known.number == page)?;
            Some(PageUnit::of(page, is_pdf).region(corners))
        };
        let fields = fields::document_fields(found, model, region);
        let whole = |page: &&ReadPage| {
            let (width, height) = (f64::from(page.width), f64::from(page.height));
            PageUnit::of(page, is_pdf).region(&[[0.0, 0.0], [width, 0.0], [width, height], [0.0, height]])
        };
        let confidences: Vec<_> = fields.values().filter_map(DocumentField::confidence).collect();
        #[expect(clippy::cast_precision_loss, reason = "some ten fields")]
        let mean = confidences.iter().sum::<f64>() / confidences.len().max(1) as f64;
        AnalyzedDocument {
            doc_type,
            bounding_regions: pages.iter().map(whole).collect(),
            spans: [self.span_of(pages)],
            confidence: (mean * 1e3).round() / 1e3,
            fields,
        }
    }

    /// The content from the first of these pages to the last.
    fn span_of(&self, pages: &[&ReadPage]) -> Span {
        let spans = self.pages.iter().filter(|page| pages.iter().any(|own| own.number == page.number));
        let spans: Vec<Span> = spans.flat_map(|page| page.spans).collect();
        match spans.as_slice() {
            [first, .., last] => Span { offset: first.offset, length: last.offset + last.length - first.offset },
            [only] => *only,
            [] => self.content.since(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn line(text: &str, left: f64, top: f64) -> Value {
        let corners =
            |left: f64, right: f64| json!([[left, top], [right, top], [right, top + 20.0], [left, top + 20.0]]);
        let mut words = Vec::new();
        let mut at = left;
        for word in text.split(' ') {
            let right = at + 10.0 * f64::from(u32::try_from(word.chars().count()).unwrap());
            words.push(json!({"text": word, "box": corners(at, right), "confidence": 0.9}));
            at = right + 10.0;
        }
        json!({"text": text, "box": corners(left, at - 10.0), "confidence": 0.9, "words": words})
    }

    fn answer() -> String {
        let fields = json!({
            "total": field(1, &json!({"amount": "2.00", "currency": "EUR"}), "2.00"),
            "date": field(1, &json!("2026-11-24"), "24.11.2026"),
        });
        json!({"pages": pages(), "fields": fields}).to_string()
    }

    /// A field on a page.
    fn field(page: usize, value: &Value, text: &str) -> Value {
        json!({"value": value, "text": text, "page": page, "confidence": 0.96,
               "box": [[300, 60], [340, 60], [340, 80], [300, 80]]})
    }

    fn pages() -> [Value; 2] {
        let page = |number: usize, lines: Vec<Value>, text: &str| json!({"page": number, "width": 400, "height": 200, "turned": 0, "source": "models", "lines": lines, "text": text});
        let first = vec![
            line("Café é", 0.0, 0.0),
            line("1 Tee", 0.0, 30.0),
            line("2.00", 300.0, 30.0),
            line("Summe", 0.0, 60.0),
            line("2.00", 300.0, 60.0),
        ];
        [page(1, first, "Café é\n1 Tee 2.00\nSumme 2.00\n"), page(2, vec![line("Seite 2", 0.0, 0.0)], "Seite 2\n")]
    }

    fn analyzed(model: DocumentModel, query: &str) -> Value {
        analysis_of(&answer(), model, query)
    }

    fn analysis_of(answer: &str, model: DocumentModel, query: &str) -> Value {
        let options = AnalyzeOptions::parse(&format!("api-version=2024-11-30&{query}")).unwrap();
        analyze(answer, (model, &options), true, |result| serde_json::to_value(result).unwrap()).unwrap()
    }

    #[test]
    fn each_document_of_a_file_has_its_pages_and_fields() {
        let number = |page: usize| json!({"number": field(page, &json!(format!("R-{page}")), "R")});
        let part = |page: usize| json!({"first_page": page, "last_page": page, "fields": number(page)});
        let answer = json!({"pages": pages(), "fields": {}, "documents": [part(1), part(2)]}).to_string();
        let all = analysis_of(&answer, DocumentModel::Invoice, "");
        let pages: Vec<_> = all["pages"].as_array().unwrap().iter().map(|page| &page["spans"]).collect();
        for (document, page) in all["documents"].as_array().unwrap().iter().zip(1_usize..) {
            assert_eq!(document["fields"]["InvoiceId"]["valueString"], format!("R-{page}"));
            assert_eq!(document["boundingRegions"].as_array().unwrap().len(), 1);
            assert_eq!(document["boundingRegions"][0]["pageNumber"], page);
            assert_eq!(&document["spans"], pages[page - 1]);
        }
        assert_eq!(all["documents"].as_array().unwrap().len(), 2);
        let second = analysis_of(&answer, DocumentModel::Invoice, "pages=2");
        assert_eq!(second["documents"].as_array().unwrap().len(), 1);
        assert_eq!(second["documents"][0]["fields"]["InvoiceId"]["valueString"], "R-2");
        assert_eq!(analysis_of(&answer, DocumentModel::Layout, "").get("documents"), None);
    }

    /// The texts at the places of words, lines, paragraphs and cells are their own.
    #[track_caller]
    fn assert_places(result: &Value) {
        let content: Vec<char> = result["content"].as_str().unwrap().chars().collect();
        let at = |span: &Value| {
            let number = |key: &str| usize::try_from(span[key].as_u64().unwrap()).unwrap();
            content[number("offset")..][..number("length")].iter().collect::<String>()
        };
        let mut count = 0;
        for page in result["pages"].as_array().unwrap() {
            for word in page["words"].as_array().unwrap() {
                assert_eq!(at(&word["span"]), word["content"].as_str().unwrap());
                count += 1;
            }
            for line in page["lines"].as_array().unwrap() {
                assert_eq!(at(&line["spans"][0]), line["content"].as_str().unwrap());
            }
        }
        for paragraph in result["paragraphs"].as_array().unwrap() {
            assert_eq!(at(&paragraph["spans"][0]), paragraph["content"].as_str().unwrap());
        }
        for cell in
            result["tables"].as_array().into_iter().flatten().flat_map(|table| table["cells"].as_array().unwrap())
        {
            assert_eq!(at(&cell["spans"][0]), cell["content"].as_str().unwrap());
        }
        assert_eq!(count, 9);
    }

    #[test]
    fn text_has_a_row_a_line_and_each_part_its_place() {
        let result = analyzed(DocumentModel::Read, "stringIndexType=unicodeCodePoint");
        assert_eq!(result["content"], "Café é\n1 Tee 2.00\nSumme 2.00\nSeite 2");
        assert_places(&result);
        assert_eq!(result["pages"][0]["unit"], "inch");
        assert_eq!(result["pages"][0]["width"], 2.0);
        assert_eq!(result["pages"][0]["lines"][2]["polygon"], json!([1.5, 0.15, 1.7, 0.15, 1.7, 0.25, 1.5, 0.25]));
        assert!(result["tables"].is_null() && result["documents"].is_null());
    }

    #[test]
    fn markdown_has_tables_and_page_breaks() {
        let result = analyzed(DocumentModel::Layout, "outputContentFormat=markdown&stringIndexType=unicodeCodePoint");
        let table =
            "<table>\n<tr>\n<td>1 Tee</td>\n<td>2.00</td>\n</tr>\n<tr>\n<td>Summe</td>\n<td>2.00</td>\n</tr>\n</table>";
        assert_eq!(result["content"], format!("Café é\n\n{table}\n\n<!-- PageBreak -->\n\nSeite 2"));
        assert_places(&result);
        assert_eq!(result["tables"][0]["columnCount"], 2);
    }

    #[test]
    fn a_receipt_and_an_invoice_have_their_fields_by_the_services_names() {
        let result = analyzed(DocumentModel::Receipt, "features=barcodes");
        let document = &result["documents"][0];
        assert_eq!(document["docType"], "receipt");
        let total = &document["fields"]["Total"];
        assert_eq!(total["valueCurrency"], json!({"amount": 2.0, "currencyCode": "EUR"}));
        assert_eq!(total["boundingRegions"][0]["pageNumber"], 1);
        assert_eq!(document["fields"]["TransactionDate"]["valueDate"], "2026-11-24");
        assert_eq!(result["warnings"][0]["target"], "barcodes");
        let invoice = analyzed(DocumentModel::Invoice, "pages=2");
        assert_eq!(invoice["content"], "Seite 2");
        assert_eq!(invoice["documents"][0]["fields"], json!({}), "they stand on a page that is not asked for");
    }
}
