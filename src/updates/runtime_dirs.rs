//! Runtime libraries that came as releases (`runtimes/onnxruntime/VERSION/...`): which folder a runtime is loaded from.
//!
//! A library that is loaded cannot be taken out of a process, so a release of one takes effect when the daemon starts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::configuration::live;
use super::subject::Kind;

/// The folders of the runtimes that are live as releases, by the state of the update store in `folder`: for
/// [`ledge_engine::Runtimes::with_own_folders`].
pub fn active(folder: &Path) -> BTreeMap<String, PathBuf> {
    live(folder, Kind::Runtime).into_iter().map(|(subject, release)| (subject.name.to_string(), release)).collect()
}
