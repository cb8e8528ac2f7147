//! Runtime libraries that came as releases: which folder a runtime is loaded from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::configuration::live;
use super::subject::Kind;

/// The folders of the live runtime releases of the update store in `folder`, by the name of the runtime (`onnxruntime`,
/// `openvino`).
pub fn active(folder: &Path) -> BTreeMap<String, PathBuf> {
    live(folder, Kind::Runtime).into_iter().map(|(subject, path)| (subject.name.to_string(), path)).collect()
}
