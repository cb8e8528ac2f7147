//! The messages between the daemon and the process. The order is a line of JSON and the bytes of the document; for a
//! searchable PDF, the text layers follow as JSON. Each answer is a line of JSON; behind a picture come its pixels,
//! three bytes each, and behind the answer for a searchable PDF its bytes.

use serde::{Deserialize, Serialize};

use crate::invoice_xml::InvoiceXml;

/// A form of documents whose pages come from the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DocumentFormat {
    Pdf,
    Tiff,
    /// A BMP, or the first frame of a GIF: one page.
    Bitmap,
}

/// The pages for which the text layer of a PDF is used in place of OCR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextLayerPolicy {
    /// Pages with a text layer that no picture mostly covers. The models read a scan with a text layer behind it, and
    /// one that has no text but the line of a fax machine.
    #[default]
    Auto,
    /// Wherever the page has any.
    Always,
    /// No page: the models read the picture of each page.
    Never,
}

/// Limits of one document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentLimits {
    /// The most pages.
    pub pages_max: usize,
    /// The most lines of a text layer; a page with more is drawn.
    pub lines_max: usize,
    /// The most pixels of a page; a larger page is drawn smaller.
    pub pixels_max: u64,
    /// The most memory of the process, in bytes.
    pub memory_bytes: u64,
    /// The most CPU time of the process, in seconds.
    pub cpu_seconds: u64,
    /// The most CPU time of a page, in seconds.
    pub page_cpu_seconds: u64,
}

impl DocumentLimits {
    /// The limits of a document with up to this many pages. A page of 200 dpi takes some .1 s and 100 MB, a colour scan
    /// of A3 at 600 dpi .5 GB.
    pub fn new(pages_max: usize, lines_max: usize) -> Self {
        Self {
            pages_max,
            lines_max,
            pixels_max: 10_000_000,
            memory_bytes: 1 << 30,
            cpu_seconds: 30 + u64::try_from(pages_max).unwrap_or(u64::MAX).min(1000),
            page_cpu_seconds: 5,
        }
    }
}

/// The kind of a document that becomes a searchable PDF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchableSource {
    Pdf,
    Tiff,
    /// A JPEG, PNG, WebP, GIF or BMP picture.
    Picture,
}

/// A word for a text layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerWord {
    /// In logical order.
    pub text: String,
    /// In pixels of the page, clockwise from the top of the first letter, where the word begins.
    pub corners: [[f32; 2]; 4],
}

/// The words of a page, line by line. Without lines the page stays as it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerPage {
    /// The size at which the page was read: that of [`crate::SourcePage`], or that of the upright picture.
    pub width: u32,
    pub height: u32,
    pub lines: Vec<Vec<LayerWord>>,
}

/// The first line that the process gets. Behind it come `bytes` bytes, those of the document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PagesRequest {
    pub bytes: usize,
    pub task: PagesTask,
    pub limits: DocumentLimits,
}

/// The work of the process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PagesTask {
    /// Gives page after page.
    Draw { format: DocumentFormat, text_layer: TextLayerPolicy },
    /// Makes a searchable PDF. Behind the document come `layer_bytes` bytes: a list of [`LayerPage`] as JSON.
    MakeSearchable { source: SearchableSource, layer_bytes: usize },
}

/// A line that the process says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PagesMessage {
    /// The first one. A PDF may carry an invoice as XML.
    Document { pages: usize, invoice: Option<Box<InvoiceXml>> },
    /// The next page, drawn. Behind it come `3 * width * height` bytes.
    Picture { width: u32, height: u32 },
    /// The next page, by its text layer; sizes are those that its picture would have.
    Text { width: u32, height: u32, lines: Vec<TextLine> },
    /// The searchable PDF. Behind it come `bytes` bytes.
    Searchable { bytes: usize },
    /// The document is refused; the last one.
    Refused(DocumentDefect),
}

/// A line of a text layer, with the upright rectangle around it in pixels of the page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TextLine {
    pub text: String,
    pub left: f32,
    pub top: f32,
    pub right: f32,
    pub bottom: f32,
}

/// The error of a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum DocumentDefect {
    #[error("the PDF is encrypted with a password: send it without one")]
    Encrypted,
    #[error("the PDF is encrypted in a way that is not known")]
    UnknownEncryption,
    #[error("the picture is none that is read: send JPEG, PNG, WebP, GIF or BMP")]
    UnknownPicture,
    #[error("the PDF is damaged: no text layer can be added to its list of pages")]
    NoLayer,
    #[error("the document is damaged: it cannot be opened")]
    Damaged,
    #[error("the document has no pages")]
    Empty,
    #[error("the document has {pages} pages, and at most {most} are read: divide it")]
    Pages { pages: usize, most: usize },
    #[error("page {page} has an image of {width}x{height} pixels, at most {most} megapixels are read")]
    Image { page: usize, width: u32, height: u32, most: u64 },
    #[error("page {page} has more than {most} characters")]
    Characters { page: usize, most: usize },
    #[error(
        "page {page} asks for too much work: more than {most} operators, with those of the forms, patterns and glyphs that \
         it repeats, and with the bytes of all of them"
    )]
    Work { page: usize, most: u64 },
    #[error("page {page} cannot be decoded: {reason}")]
    Undecodable { page: usize, reason: String },
    #[error("page {page} cannot be drawn: its size is {width}x{height} points")]
    Size { page: usize, width: String, height: String },
}
