//! The document with a text layer, made of the file and of the reader's answer to it.

use std::time::Instant;

use bytes::Bytes;
use ledge_base::memory_budget::MemoryAccount;
use ledge_documents::{DocumentError, DocumentLimits, LayerPage, LayerWord, SearchableSource};
use serde::Deserialize;

use super::document::{QuadrilateralCorners, TextSource};
use crate::pipeline::file_format::FileFormat;

/// Why there is no document with a text layer.
#[derive(Debug, thiserror::Error)]
pub enum SearchableError {
    #[error("no document that was read")]
    Unread,
    #[error(transparent)]
    Document(#[from] DocumentError),
}

/// Makes a PDF of a file that was answered with this JSON. Pages of a PDF that carry their text stay as they are.
pub async fn searchable_pdf(
    file: Bytes,
    answer: &str,
    account: MemoryAccount,
    deadline: Instant,
) -> Result<Bytes, SearchableError> {
    let source = match FileFormat::of(&file) {
        Some(FileFormat::Pdf) => SearchableSource::Pdf,
        Some(FileFormat::Tiff) => SearchableSource::Tiff,
        Some(FileFormat::Image(_) | FileFormat::Gif | FileFormat::Bmp) => SearchableSource::Picture,
        Some(FileFormat::Foreign(_)) | None => return Err(SearchableError::Unread),
    };
    let pages = layer_pages(answer).ok_or(SearchableError::Unread)?;
    let lines = pages.iter().map(|page| page.lines.len()).max().unwrap_or(0);
    let limits = DocumentLimits::new(pages.len(), lines);
    Ok(ledge_documents::searchable_pdf(file, source, &pages, limits, account, deadline).await?)
}

/// The words that the models read, by page and line.
fn layer_pages(answer: &str) -> Option<Vec<LayerPage>> {
    #[derive(Deserialize)]
    struct AnsweredDocument {
        pages: Vec<AnsweredPage>,
    }
    #[derive(Deserialize)]
    struct AnsweredPage {
        width: u32,
        height: u32,
        source: TextSource,
        lines: Vec<AnsweredLine>,
    }
    #[derive(Deserialize)]
    struct AnsweredLine {
        words: Vec<AnsweredWord>,
    }
    #[derive(Deserialize)]
    struct AnsweredWord {
        text: String,
        #[serde(rename = "box")]
        corners: QuadrilateralCorners,
    }
    let AnsweredDocument { pages } = serde_json::from_str(answer).ok()?;
    let word = |AnsweredWord { text, corners }| LayerWord { text, corners };
    let line = |line: AnsweredLine| line.words.into_iter().map(word).collect();
    let page = |AnsweredPage { width, height, source, lines }| {
        let lines = if source == TextSource::Models { lines.into_iter().map(line).collect() } else { Vec::new() };
        LayerPage { width, height, lines }
    };
    Some(pages.into_iter().map(page).collect())
}
