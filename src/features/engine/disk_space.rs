//! Frees space on a full disk, so that reads continue.

use super::super::snapshot;
use super::StoreEngine;

/// Frees space that the store can do without: the rest of a snapshot that was not finished, files set aside as damaged,
/// which are kept only as evidence, then its reserve. Returns true if anything was freed.
pub fn free_space(engine: &StoreEngine) -> bool {
    let unfinished = snapshot::remove_unfinished(engine.files.folder()).unwrap_or(0);
    let removed = remove_damaged_files(engine) || unfinished > 0;
    match engine.files.release_reserve() {
        Ok(0) => removed,
        Ok(bytes) => {
            tracing::warn!(bytes, "the feature store's disk is full: its reserved space is freed to open the index");
            true
        }
        Err(error) => {
            tracing::warn!(%error, "the reserved space of the feature store cannot be freed");
            removed
        }
    }
}

/// Removes files set aside as damaged, to free their space. Returns true if there were any.
pub fn remove_damaged_files(engine: &StoreEngine) -> bool {
    match engine.files.remove_damaged() {
        Ok(removed) => {
            for path in &removed {
                tracing::warn!(
                    name: "features.damaged_removed",
                    removed = %path.display(),
                    "the feature store's disk is full: files set aside as damaged are removed"
                );
            }
            !removed.is_empty()
        }
        Err(error) => {
            tracing::warn!(%error, "files that the feature store set aside as damaged cannot be removed");
            false
        }
    }
}
