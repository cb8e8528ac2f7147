//! Documents, PDF, TIFF, GIF and BMP: a page comes out as a picture, or as the lines of its text layer. And the way
//! back: a searchable PDF of a document, with the words of OCR as an invisible text layer.
//!
//! They are foreign, and no library bounds what they may ask for: a few kB of forms that call each other never end. So
//! they are parsed in a process of its own (`ledge pages`) with limits, which may die. The daemon never parses one.
//!
//! Files, in reading order:
//! * `order.rs` - what the daemon and the process say to each other
//! * `pages.rs` - the daemon's side: starts the process, reads page after page, and says why one did not come
//! * `process.rs` - the process, from inside
//! * `pdf.rs` - pages of a PDF file: what is on one, and its picture
//! * `invoice_xml.rs` - the invoice that a PDF carries as XML
//! * `page_work.rs` - the work that a page of a PDF asks for, counted before it is done
//! * `tiff.rs` - pages of a TIFF file
//! * `bitmap.rs` - BMP, and the first frame of a GIF
//! * `raster.rs` - the size at which a page that is a picture is drawn
//! * `text_layer.rs` - lines of text from characters and their places
//! * `searchable.rs` - a searchable PDF: an update behind a PDF, or a new one of pictures
//! * `invisible_text.rs` - the text layer of a page, and its font
//! * `picture_page.rs` - a picture as a page of a PDF
//! * `pdf_writer.rs` - objects of a PDF and their cross-reference section
//!
//! Invariants:
//! * What the process says is as foreign as the document: sizes are compared with limits before memory is taken.
//! * A page is refused for the work that it asks for, and ended by its CPU time.
//! * The daemon holds one page of a document. The process may draw the next one meanwhile, and waits to send it.
//! * The process ends when the document is read, when its caller has gone, and when the daemon ends.
//! * The crate knows no model.
//!
//! # Where it is decided
//!
//! * A page is drawn, or read from its text layer: `pdf.rs` (`SurveyedPage::text`)
//! * The reason why a page did not come: `pages.rs`
//! * A PDF gets an update, or is written again: `searchable.rs` (`add_layer`)
//! * The limit on the work that a page asks for: `page_work.rs`; on its CPU time: `process.rs` (`PageCpuClock`)
#![forbid(unsafe_code)]

mod bitmap;
mod invisible_text;
mod invoice_xml;
mod order;
mod page_work;
mod pages;
mod pdf;
mod pdf_writer;
mod picture_page;
pub mod process;
mod raster;
mod searchable;
mod text_layer;
mod tiff;

#[cfg(any(test, feature = "fuzzing"))]
pub use bitmap::fuzz_bitmap;
pub use invoice_xml::InvoiceXml;
#[cfg(any(test, feature = "fuzzing"))]
pub use invoice_xml::fuzz_invoice_xml;
pub use order::{
    DocumentDefect, DocumentFormat, DocumentLimits, LayerPage, LayerWord, SearchableSource, TextLayerPolicy, TextLine,
};
#[cfg(any(test, feature = "fuzzing"))]
pub use pages::fuzz_page_messages;
pub use pages::{DocumentError, PageContent, PagesProcess, SourcePage, searchable_pdf};
#[cfg(any(test, feature = "fuzzing"))]
pub use pdf::fuzz_pdf;
pub use picture_page::PICTURE_PIXELS_MAX;
#[cfg(any(test, feature = "fuzzing"))]
pub use searchable::fuzz_searchable_pdf;
#[cfg(any(test, feature = "fuzzing"))]
pub use text_layer::fuzz_text_layer;
#[cfg(any(test, feature = "fuzzing"))]
pub use tiff::fuzz_tiff;
