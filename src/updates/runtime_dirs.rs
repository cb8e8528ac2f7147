//! Runtime libraries that came as releases (`runtimes/onnxruntime/VERSION/...`): the folders from which runtimes are
//! loaded.
//!
//! A loaded library cannot be removed from a process, so a release of one takes effect when the daemon starts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::artifact::ArtifactKind;
use super::configuration::live;

/// Returns the folders of the runtimes that are live as releases, by the state of the update store in `folder`: for
/// [`ledge_engine::Runtimes::with_own_folders`].
pub fn active(folder: &Path) -> BTreeMap<String, PathBuf> {
    live(folder, ArtifactKind::Runtime)
        .into_iter()
        .map(|(subject, release)| (subject.name.to_string(), release))
        .collect()
}
