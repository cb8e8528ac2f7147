//! Azure AI Document Intelligence's form of document analysis, version 4.0, which software for documents calls: requests
//! to documents, answers of the reader to analyses.
//!
//! The form is that of the reference of the REST API (`2024-11-30`: "Analyze Document", "Get Analyze Result") and of the
//! Python package `azure-ai-documentintelligence` 1.0.2. Barcodes, formulas, figures, selection marks and fonts are never
//! found here; a caller that asks for them gets a warning.
//!
//! Files, in reading order:
//! * `request.rs` - the request of an analysis
//! * `reading.rs` - the answer of the reader of documents, as this form needs it
//! * `layout.rs` - paragraphs, headings and tables of a page, by the places of its lines
//! * `content.rs` - the text of all pages, with the places of its parts in it
//! * `result.rs` - the analysis
//! * `fields.rs` - fields of receipts and invoices, by the names of this form
//! * `loader.rs` - the text of each page, for Open WebUI
//! * `error.rs` - the form of errors
//! * `operation.rs` - an operation as its caller sees it

mod content;
mod error;
mod fields;
mod layout;
mod loader;
mod operation;
mod reading;
mod request;
mod result;

pub use error::{AnalysisErrorBody, ErrorSubject};
pub use loader::loaded_pages;
pub use operation::{failed_operation, running_operation, succeeded_operation};
#[cfg(any(test, feature = "fuzzing"))]
pub use request::fuzz_analyze_request;
pub use request::{AnalyzeOptions, AnalyzeRequestBody, ContentFormat, DocumentModel, PageSelection, StringIndexType};
