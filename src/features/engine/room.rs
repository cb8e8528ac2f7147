//! What goes on a full disk, so that reads go on.

use super::Engine;

/// Makes room on a full disk by what the store can do without: first what was set aside as damaged, which is evidence and
/// no more, then its reserve. Whether there was any.
pub fn make_way(engine: &Engine) -> bool {
    let removed = remove_evidence(engine);
    match engine.files.release_reserve() {
        Ok(0) => removed,
        Ok(bytes) => {
            tracing::warn!(
                bytes,
                "the feature store's disk is full: the room that was held in reserve opens its index"
            );
            true
        }
        Err(error) => {
            tracing::warn!(%error, "the room that the feature store holds in reserve cannot be given back");
            removed
        }
    }
}

/// Removes what was set aside as damaged, to have its room. Whether there was any.
pub fn remove_evidence(engine: &Engine) -> bool {
    match engine.files.remove_damaged() {
        Ok(removed) => {
            for path in &removed {
                tracing::warn!(removed = %path.display(), "the feature store's disk is full: what was set aside as damaged goes");
            }
            !removed.is_empty()
        }
        Err(error) => {
            tracing::warn!(%error, "what the feature store set aside as damaged cannot be removed");
            false
        }
    }
}
