//! Files next to a model, which have its weights.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::text::shortened;

/// The most bytes of the path of such a file, as Linux takes one.
const PATH_BYTES_MAX: usize = 4095;

/// In a location it makes both runtimes take the offset for an address in the memory of the process.
const MEMORY_ADDRESS: &str = "_ORT_MEM_ADDR_";

/// A file beside a model file, with some of its weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalDataFile {
    /// Within the folder of the model file.
    pub path: PathBuf,
    /// The bytes that it must have.
    pub bytes: u64,
}

/// Refuses a path that leads out of the folder of the model by its words, or to an address in the memory of the
/// process. Symbolic links are checked when the file is opened.
pub(crate) fn check_path(path: &Path) -> Result<(), String> {
    let bytes = path.as_os_str().as_encoded_bytes();
    let is_beside = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let is_address = path.to_string_lossy().contains(MEMORY_ADDRESS);
    if bytes.is_empty() || !is_beside || is_address {
        let shown = shortened(&path.to_string_lossy());
        return Err(format!("refers to external data at {shown:?}, outside its own folder"));
    }
    at_most("bytes in the path of its external data", bytes.len(), PATH_BYTES_MAX)
}

pub(super) fn at_most(things: &str, number: usize, most: usize) -> Result<(), String> {
    if number > most { Err(format!("has {number} {things}; the most are {most}")) } else { Ok(()) }
}
