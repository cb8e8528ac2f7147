//! The files of a version on the disk: whether they are those that were read before, without reading them again where
//! the file system shows that they have not changed.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ledge_base::clock;
use serde::{Deserialize, Serialize};

/// A file that changed so shortly before it was read may change again without another time in the file system.
const SETTLED_MS: u64 = 2000;

/// The most files and levels of folders that a stamp looks at.
const STAMP_FILES_MAX: usize = 10_000;
const STAMP_DEPTH_MAX: usize = 5;

/// A file of a version, as it counts in the digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionFile {
    /// Its path in the version's folder.
    pub path: String,
    /// Its name in the digest.
    pub hashed_as: String,
    /// True for a model file, which says which other files there are.
    pub is_model: bool,
    pub bytes: u64,
    /// `None` for a file that had just been changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<FileMark>,
}

/// Facts of the file system that differ after a file was changed or replaced. The time of the last change of the inode
/// is not among them: a load links the file, which changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileMark {
    device: u64,
    inode: u64,
    modified_s: i64,
    modified_ns: i64,
}

impl FileMark {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
        }
    }

    /// The mark of a file before it is read.
    pub fn settled(metadata: &Metadata) -> Option<Self> {
        let mark = Self::of(metadata);
        let modified_ms = u64::try_from(mark.modified_s).unwrap_or(0).saturating_mul(1000);
        (modified_ms.saturating_add(SETTLED_MS) < clock::unix_millis()).then_some(mark)
    }
}

impl VersionFile {
    /// The same file without its mark, so that only its content shows whether it has changed.
    pub fn unmarked(&self) -> Self {
        Self { mark: None, ..self.clone() }
    }

    /// `Some(true)`: the file has not changed. `None`: only its content shows whether it has.
    pub fn is_same(&self, folder: &Path) -> Option<bool> {
        let Ok(metadata) = std::fs::metadata(folder.join(&self.path)) else { return Some(false) };
        match self.mark {
            _ if metadata.len() != self.bytes => Some(false),
            Some(mark) if mark == FileMark::of(&metadata) => Some(true),
            _ => None,
        }
    }
}

/// A fingerprint of the files of a model that failed to load: those in its `folder` and in the version's own `files`,
/// but not those of other versions. Uses only names, sizes and times.
pub fn stamp(folder: &Path, files: &Path) -> String {
    let mut found = Vec::new();
    let is_other_version = |path: &Path| {
        let is_number = path.file_name().is_some_and(|name| name.to_string_lossy().parse::<u64>().is_ok());
        path.parent() == Some(folder) && path != files && is_number
    };
    collect(folder, 0, &is_other_version, &mut found);
    if !files.starts_with(folder) {
        collect(files, 0, &|_| false, &mut found);
    }
    found.sort_unstable_by(|(one, _, _), (other, _, _)| one.cmp(other));
    let mut hasher = blake3::Hasher::new();
    for (path, bytes, mark) in found {
        let path = path.as_os_str().as_encoded_bytes();
        hasher.update(format!("{} {bytes} {mark:?} ", path.len()).as_bytes()).update(path);
    }
    hasher.finalize().to_hex().to_string()
}

fn collect(
    folder: &Path,
    depth: usize,
    is_left_out: &impl Fn(&Path) -> bool,
    found: &mut Vec<(PathBuf, u64, FileMark)>,
) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()).filter(|path| !is_left_out(path)) {
        if found.len() >= STAMP_FILES_MAX {
            return;
        }
        // Follows links, as a load does.
        let Ok(metadata) = std::fs::metadata(&path) else { continue };
        if !metadata.is_dir() {
            let mark = FileMark::of(&metadata);
            found.push((path, metadata.len(), mark));
        } else if depth < STAMP_DEPTH_MAX {
            collect(&path, depth + 1, is_left_out, found);
        }
    }
}

/// True when `folder` has the files `before`, with the digest `digest`. `models` are the model files in it now, in the
/// order of the digest; `hash` hashes a file.
pub fn are_unchanged(
    folder: &Path,
    models: &[PathBuf],
    (before, digest): (&[VersionFile], &str),
    mut hash: impl FnMut(&mut blake3::Hasher, &VersionFile) -> io::Result<()>,
) -> io::Result<bool> {
    let known = before.iter().filter(|file| file.is_model).map(|file| Path::new(&file.path));
    if !known.eq(models.iter().map(PathBuf::as_path)) {
        return Ok(false);
    }
    let same: Vec<_> = before.iter().map(|file| file.is_same(folder)).collect();
    if same.contains(&Some(false)) {
        return Ok(false);
    }
    if same.iter().all(|same| *same == Some(true)) {
        return Ok(true);
    }
    let mut hasher = blake3::Hasher::new();
    for file in before {
        hash(&mut hasher, file)?;
    }
    Ok(hasher.finalize().to_hex().as_str() == digest)
}
