//! `--out-pdf`: documents that were read, as PDF with a text layer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ledge_base::durable;
use ledge_base::memory_budget::MemoryAccount;
use ledge_engine::pipeline::document_reading;
use ledge_protocol::searchable::searchable_pdf;
use serde_json::{Map, Value};

use super::files::InputFile;

/// The folder that the PDF files are written into, each with the name of its document.
pub struct PdfFolder {
    folder: PathBuf,
}

impl PdfFolder {
    /// Makes the folder. No two documents may have the same name there, and no document may be replaced by its own PDF.
    pub fn open(folder: &Path, inputs: &[InputFile]) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let written = Self { folder: folder.to_owned() };
        let mut names = BTreeMap::new();
        for InputFile { path, .. } in inputs {
            let target = written.target(path);
            if let Some(other) = names.insert(target.clone(), path) {
                bail!("{} and {} would both be {}", other.display(), path.display(), target.display());
            }
            if std::fs::canonicalize(path).ok().is_some_and(|input| std::fs::canonicalize(&target).ok() == Some(input))
            {
                bail!("{} would be replaced: name another folder with --out-pdf", path.display());
            }
        }
        Ok(written)
    }

    fn target(&self, path: &Path) -> PathBuf {
        self.folder.join(path.file_stem().unwrap_or_default()).with_added_extension("pdf")
    }

    /// True for a document that has a PDF.
    pub fn has(&self, path: &Path) -> bool {
        self.target(path).is_file()
    }

    /// Writes the PDF of a file that has this answer.
    pub async fn write(&self, path: &Path, answer: &Map<String, Value>) -> Result<(), String> {
        let read = answer.get(document_reading::KIND.member).ok_or("--out-pdf: the model reads no documents")?;
        let file = std::fs::read(path).map_err(|error| error.to_string())?;
        let pdf = searchable_pdf(file.into(), &read.to_string(), MemoryAccount::unlimited(), None).await;
        let pdf = pdf.map_err(|failure| failure.message)?;
        let target = self.target(path);
        durable::replace(&target, &pdf).map_err(|error| format!("cannot write {}: {error}", target.display()))
    }
}
