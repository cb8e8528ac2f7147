//! The form of the store: JSON with a version and a closed set of fields.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{ApiKeyRecord, ApiKeysError};

/// The version of the form.
pub const FORMAT_VERSION: u32 = 1;

/// The largest file that is read, in bytes.
pub(super) const STORE_BYTES_MAX: usize = 4 << 20;

/// The size in bytes above which no key is added: some 10,000 keys. Revoking all of them still fits into the file.
pub(super) const STORE_FULL_BYTES: usize = 3 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredApiKeys {
    version: u32,
    keys: Vec<ApiKeyRecord>,
}

/// Identifies the version of a file that was read. A replaced file has another inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyFileStamp {
    modified: (i64, i64),
    changed: (i64, i64),
    size: u64,
    inode: u64,
}

impl KeyFileStamp {
    /// The stamp of the current file; `None` when there is no file.
    pub fn of(path: &Path) -> io::Result<Option<Self>> {
        match fs::metadata(path) {
            Ok(metadata) => Ok(Some(Self {
                modified: (metadata.mtime(), metadata.mtime_nsec()),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
                size: metadata.size(),
                inode: metadata.ino(),
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The keys of a file; none when there is no file.
pub fn read(path: &Path) -> Result<Vec<ApiKeyRecord>, ApiKeysError> {
    let unreadable = |source| ApiKeysError::Unreadable { path: path.to_owned(), source };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened.map_err(unreadable)?,
    };
    if file.metadata().map_err(unreadable)?.mode() & 0o022 != 0 {
        return Err(ApiKeysError::Exposed { path: path.to_owned() });
    }
    let mut text = Vec::new();

    file.take(STORE_BYTES_MAX as u64 + 1).read_to_end(&mut text).map_err(unreadable)?;
    parse(&text).map_err(|reason| ApiKeysError::Damaged { path: path.to_owned(), reason })
}

fn parse(text: &[u8]) -> Result<Vec<ApiKeyRecord>, String> {
    if text.len() > STORE_BYTES_MAX {
        return Err(format!("it is larger than {STORE_BYTES_MAX} bytes"));
    }
    let StoredApiKeys { version, keys } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if version != FORMAT_VERSION {
        return Err(format!("its version is {version}, expected {FORMAT_VERSION}"));
    }
    let mut ids: Vec<_> = keys.iter().map(|key| key.id).collect();
    let mut names: Vec<_> = keys.iter().map(|key| &key.name).collect();
    ids.sort_unstable();
    names.sort_unstable();
    if let Some([name, _]) = names.array_windows().find(|[one, other]| one == other) {
        return Err(format!("the name '{name}' is there twice"));
    }
    if let Some([id, _]) = ids.array_windows().find(|[one, other]| one == other) {
        return Err(format!("the id {id} is there twice"));
    }
    Ok(keys)
}

/// The content of a file.
pub(super) fn write(keys: &[ApiKeyRecord]) -> serde_json::Result<Vec<u8>> {
    let mut content = serde_json::to_vec_pretty(&StoredApiKeys { version: FORMAT_VERSION, keys: keys.to_vec() })?;
    content.push(b'\n');
    Ok(content)
}

/// Reads a store for the fuzzers; true when it is one.
///
/// # Panics
///
/// When writing and reading the store again changes it.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_keys(data: &[u8]) -> bool {
    let Ok(keys) = parse(data) else { return false };
    let written = write(&keys).unwrap_or_default();
    assert_eq!(parse(&written).as_ref(), Ok(&keys));
    true
}
