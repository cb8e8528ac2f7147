//! A repository copied into a folder, file by file and without judging it: root's service verifies it there.

use std::io;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use serde_json::Value;

use crate::source::{RepositorySource, SourceError};

/// The longest metadata file, in bytes.
const METADATA_BYTES_MAX: u64 = 8 << 20;

/// The most versions of the root metadata.
const ROOTS_MAX: u64 = 1_000;

/// The reason why a repository cannot be copied.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("the repository has no {0}")]
    Missing(String),
    #[error("{} cannot be written: {error}", path.display())]
    Disk { path: PathBuf, error: io::Error },
    #[error("{0} cannot be read as metadata")]
    Form(String),
}

/// Copies the metadata of a repository into `metadata/` of `folder`: all roots, and the files of the other roles that the
/// present snapshot names.
pub async fn copy_metadata(source: &RepositorySource, folder: &Path) -> Result<(), MirrorError> {
    let folder = folder.join("metadata");
    for version in 1..ROOTS_MAX {
        let name = format!("{version}.root.json");
        // A root never changes.
        if folder.join(&name).is_file() {
            continue;
        }
        match source.metadata(&name, METADATA_BYTES_MAX).await? {
            Some(content) => write(&folder.join(&name), &content)?,
            None => break,
        }
    }
    let timestamp = fetch(source, "timestamp.json").await?;
    let snapshot_name = versioned("snapshot.json", &timestamp)?;
    let snapshot = fetch(source, &snapshot_name).await?;
    let meta = field(&snapshot, "snapshot.json")?;
    for name in meta.as_object().into_iter().flat_map(|meta| meta.keys()) {
        let name = versioned(name, &snapshot)?;
        let content = fetch(source, &name).await?;
        write(&folder.join(&name), &content)?;
    }
    write(&folder.join(&snapshot_name), &snapshot)?;
    // Last, since it names the others.
    write(&folder.join("timestamp.json"), &timestamp)
}

async fn fetch(source: &RepositorySource, name: &str) -> Result<Vec<u8>, MirrorError> {
    let content = source.metadata(name, METADATA_BYTES_MAX).await?;
    content.ok_or_else(|| MirrorError::Missing(name.to_owned()))
}

/// The table of files in a snapshot or a timestamp.
fn field(content: &[u8], name: &str) -> Result<Value, MirrorError> {
    let read: Option<Value> = serde_json::from_slice(content).ok();
    let meta = read.and_then(|mut metadata| Some(metadata.get_mut("signed")?.get_mut("meta")?.take()));
    meta.ok_or_else(|| MirrorError::Form(name.to_owned()))
}

/// `3.models.json` for `models.json`.
fn versioned(name: &str, listing: &[u8]) -> Result<String, MirrorError> {
    let form = || MirrorError::Form(name.to_owned());
    let is_name = |name: &str| !name.is_empty() && !name.contains(['/', '\\', '\0']) && !name.starts_with('.');
    let version = field(listing, name)?.get(name).and_then(|of| of.get("version")?.as_u64()).ok_or_else(form)?;
    if is_name(name) { Ok(format!("{version}.{name}")) } else { Err(form()) }
}

fn write(path: &Path, content: &[u8]) -> Result<(), MirrorError> {
    durable::replace_in_new_folder(path, content).map_err(|error| MirrorError::Disk { path: path.to_owned(), error })
}
