//! A repository copied into a folder, file by file and without judging it: root's service verifies it there.

use std::collections::BTreeSet;
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
    #[error("{} cannot be changed: {error}", path.display())]
    Disk { path: PathBuf, error: io::Error },
    #[error("{0} cannot be read as metadata")]
    Form(String),
}

/// Copies the metadata of a repository into `metadata/` of `folder`: all roots, and the files of the other roles that the
/// present snapshot names. Those of earlier snapshots are removed.
pub async fn copy_metadata(source: &RepositorySource, folder: &Path) -> Result<(), MirrorError> {
    let folder = folder.join("metadata");
    let mut kept = BTreeSet::new();
    for version in 1..ROOTS_MAX {
        let name = format!("{version}.root.json");
        kept.insert(folder.join(&name));
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
        kept.insert(folder.join(&name));
    }
    write(&folder.join(&snapshot_name), &snapshot)?;
    // Last, since it names the others.
    let last = folder.join("timestamp.json");
    write(&last, &timestamp)?;
    kept.extend([folder.join(&snapshot_name), last]);
    remove_others(&folder, &kept)
}

/// Removes all files below `folder` that are not `kept`, and the folders that become empty.
pub fn remove_others(folder: &Path, kept: &BTreeSet<PathBuf>) -> Result<(), MirrorError> {
    let failed = |error| MirrorError::Disk { path: folder.to_owned(), error };
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        if entry.file_type().map_err(failed)?.is_dir() {
            remove_others(&path, kept)?;
            // It fails while there are files in it.
            let _ = std::fs::remove_dir(&path);
        } else if !kept.contains(&path) {
            std::fs::remove_file(&path).map_err(failed)?;
        }
    }
    Ok(())
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
