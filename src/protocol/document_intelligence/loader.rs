//! The text of each page in the form of LangChain's documents, as Open WebUI's external loader reads it.

use ledge_part::api_error::ApiError;
use serde::Serialize;

use super::reading::ReadDocument;

#[derive(Debug, Serialize)]
struct LoadedPage<'a> {
    page_content: &'a str,
    metadata: LoadedPageMetadata,
}

#[derive(Debug, Serialize)]
struct LoadedPageMetadata {
    /// From 0, as in other loaders.
    page: usize,
}

/// The pages of a document as JSON, made of the answer of the reader.
pub fn loaded_pages(answer: &str) -> Result<Vec<u8>, ApiError> {
    let document = ReadDocument::parse(answer)?;
    let pages = document.pages.iter().enumerate();
    let pages =
        pages.map(|(page, read)| LoadedPage { page_content: &read.text, metadata: LoadedPageMetadata { page } });
    Ok(serde_json::to_vec(&pages.collect::<Vec<_>>()).unwrap_or_default())
}
