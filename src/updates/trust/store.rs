//! Trusted metadata on disk: one file, replaced as a whole, with its checksum. A damaged or missing file is an alarm.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ledge_base::durable;
use serde::{Deserialize, Serialize};
use sigstore_tuf::{Error, MetadataStore};

use super::{TrustError, time};

/// Folder below the update store.
const TRUST_FOLDER: &str = "tuf";

/// File with all trusted metadata.
const TRUSTED_FILE: &str = "trusted.json";

/// File next to it, as soon as it was written once.
const MARKER_FILE: &str = "trusted.marker";

/// Content of the marker, for people.
const MARKER_TEXT: &[u8] = b"trusted.json was written here. If it is gone, somebody took it away.\n";

/// Entry of the proven time among the metadata files. Their names all end with `.json`.
const PROVEN_TIME_ENTRY: &str = "proven";

/// Reason why an older root is not stored.
const OLDER_ROOT_REASON: &str = "the root file is older than the root that this box trusts, and the roots between them are not \
                          here; put a newer one in its place, or run `ledge update reset-trust`";

/// Largest file that is read, in bytes.
const TRUSTED_FILE_MAX_BYTES: u64 = 64 << 20;

/// Trusted metadata, by the names of its files.
#[derive(Debug)]
pub(super) struct TrustedMetadataStore {
    folder: PathBuf,
    state: Mutex<TrustStoreState>,
}

#[derive(Debug, Default)]
struct TrustStoreState {
    files: BTreeMap<String, String>,
    /// The first write error since [`TrustedMetadataStore::take_failure`].
    failure: Option<TrustError>,
}

/// The content of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrustedFile {
    checksum: String,
    files: BTreeMap<String, String>,
}

/// The store as it was opened.
#[derive(Debug)]
pub(super) enum OpenedStore {
    /// Undamaged, or empty as nothing was written yet.
    Whole(TrustedMetadataStore),
    Damaged(TrustedMetadataStore, String),
}

/// The part that metadata of every role has.
#[derive(Deserialize)]
struct RoleEnvelope {
    signed: Versioned,
}

#[derive(Deserialize)]
struct Versioned {
    version: u64,
}

impl TrustedMetadataStore {
    /// Opens the store below `folder`. A damaged file is set aside under another name.
    pub(super) fn open(folder: &Path) -> Result<OpenedStore, TrustError> {
        let folder = folder.join(TRUST_FOLDER);
        let (file, marker) = (folder.join(TRUSTED_FILE), folder.join(MARKER_FILE));
        let failed = |error: io::Error| TrustError::Store { file: file.clone(), reason: error.to_string() };
        durable::create_folder(&folder).map_err(failed)?;
        // Leftovers that cannot be removed do no harm.
        let _ = durable::remove_leftovers(&folder);

        let was_there = marker.try_exists().map_err(failed)?;
        let (files, damage) = match read(&file) {
            Ok(Some(files)) => (files, None),
            Ok(None) if was_there => (BTreeMap::new(), Some(format!("{} is gone", file.display()))),
            Ok(None) => (BTreeMap::new(), None),
            Err(TrustedFileError::Unreadable(error)) => return Err(failed(error)),
            Err(TrustedFileError::Damaged(reason)) => {
                // Also where the marker is missing as well: the next start has to see that something was here.
                durable::replace_private(&marker, MARKER_TEXT).map_err(failed)?;
                let aside = durable::set_aside(&file).map_err(failed)?;
                (BTreeMap::new(), Some(format!("{}: {reason}; it was renamed to {}", file.display(), aside.display())))
            }
        };

        if !files.is_empty() && !was_there {
            durable::replace_private(&marker, MARKER_TEXT).map_err(failed)?;
        }

        let store = Self { folder, state: Mutex::new(TrustStoreState { files, failure: None }) };
        Ok(match damage {
            None => OpenedStore::Whole(store),
            Some(reason) => OpenedStore::Damaged(store, reason),
        })
    }

    /// Forgets everything; the file is kept under another name.
    pub(super) fn reset(folder: &Path) -> Result<(), TrustError> {
        let folder = folder.join(TRUST_FOLDER);
        let (file, marker) = (folder.join(TRUSTED_FILE), folder.join(MARKER_FILE));
        let forgotten = (|| {
            if file.try_exists()? {
                durable::set_aside(&file)?;
            }
            match std::fs::remove_file(&marker) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                Err(_) => Ok(()),
                Ok(()) => durable::sync_folder(&folder),
            }
        })();
        forgotten.map_err(|error| TrustError::Store { file, reason: error.to_string() })
    }

    /// Returns the version of each role.
    pub(super) fn versions(&self) -> BTreeMap<String, u64> {
        let state = self.state();
        let role = |(name, text): (&String, &String)| {
            let role = name.strip_suffix(".json").filter(|role| !role.contains('/'))?;
            Some((role.to_owned(), version(text)?))
        };
        state.files.iter().filter_map(role).collect()
    }

    /// Returns the latest proven time, or 0.
    pub(super) fn proven_ms(&self) -> u64 {
        self.state().files.get(PROVEN_TIME_ENTRY).and_then(|text| time::parse_ms(text)).unwrap_or(0)
    }

    /// Stores a later proven time.
    pub(super) fn prove(&self, ms: u64) -> Result<(), TrustError> {
        if ms <= self.proven_ms() {
            return Ok(());
        }
        self.write(PROVEN_TIME_ENTRY, &time::timestamp(ms).to_string())
    }

    /// Returns the version of `root`, if another root of this version is trusted.
    pub(super) fn conflict(&self, root: &[u8]) -> Option<u64> {
        let version = version(std::str::from_utf8(root).ok()?)?;
        let state = self.state();
        let trusted = state.files.get(&history(version))?;
        (trusted.as_bytes() != root).then_some(version)
    }

    /// Returns the first write error since the last call.
    pub(super) fn take_failure(&self) -> Option<TrustError> {
        self.state().failure.take()
    }

    fn write(&self, name: &str, text: &str) -> Result<(), TrustError> {
        let mut state = self.state();
        if state.failure.is_some() {
            // The library goes on after an error; the next file would leave a gap.
            return Err(self.failed("an earlier file could not be written"));
        }
        if state.files.get(name).is_some_and(|kept| kept == text) {
            return Ok(());
        }
        let mut files = state.files.clone();
        files.insert(name.to_owned(), text.to_owned());
        let (file, marker) = (self.folder.join(TRUSTED_FILE), self.folder.join(MARKER_FILE));
        let written = encode(files.clone()).and_then(|content| {
            durable::replace_private(&file, &content)?;
            if state.files.is_empty() { durable::replace_private(&marker, MARKER_TEXT) } else { Ok(()) }
        });
        written.map_err(|error| self.failed(error))?;
        state.files = files;
        Ok(())
    }

    fn failed(&self, reason: impl std::fmt::Display) -> TrustError {
        TrustError::Store { file: self.folder.join(TRUSTED_FILE), reason: reason.to_string() }
    }

    fn state(&self) -> MutexGuard<'_, TrustStoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MetadataStore for TrustedMetadataStore {
    fn load(&self, name: &str) -> sigstore_tuf::Result<Option<Vec<u8>>> {
        Ok(self.state().files.get(name).map(|text| text.as_bytes().to_vec()))
    }

    fn store(&self, name: &str, bytes: &[u8]) -> sigstore_tuf::Result<()> {
        if !is_kept(name) {
            return Ok(());
        }
        let text = std::str::from_utf8(bytes).map_err(|error| Error::Malformed(error.to_string()))?;
        let older = name == "root.json" && self.versions().get("root") > version(text).as_ref();
        let written = if older { Err(self.failed(OLDER_ROOT_REASON)) } else { self.write(name, text) };
        // The library only warns when a file cannot be stored; the refresh must fail.
        written.map_err(|error| {
            let told = Error::io(error.to_string(), io::Error::other("not stored"));
            self.state().failure.get_or_insert(error);
            told
        })
    }
}

/// Returns true if a file is kept: the library stores the snapshot a second time under its version.
fn is_kept(name: &str) -> bool {
    !(name.ends_with(".snapshot.json") && name.starts_with(|first: char| first.is_ascii_digit()))
}

fn history(version: u64) -> String {
    format!("root_history/{version}.root.json")
}

fn version(text: &str) -> Option<u64> {
    serde_json::from_str::<RoleEnvelope>(text).ok().map(|envelope| envelope.signed.version)
}

fn checksum(files: &BTreeMap<String, String>) -> String {
    let mut hasher = blake3::Hasher::new();
    for (name, text) in files {
        for part in [name, text] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
    }
    hasher.finalize().to_hex().to_string()
}

pub(super) fn encode(files: BTreeMap<String, String>) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(&TrustedFile { checksum: checksum(&files), files })?)
}

/// Reads the content of the file, or returns its damage. Bytes that are not exactly those that would be written are
/// damage.
pub(super) fn decode(content: &[u8]) -> Result<BTreeMap<String, String>, &'static str> {
    let read: TrustedFile = serde_json::from_slice(content).map_err(|_| "it cannot be read")?;
    if read.checksum != checksum(&read.files) {
        return Err("its checksum is wrong");
    }
    match encode(read.files.clone()) {
        Ok(written) if written == content && !read.files.is_empty() => Ok(read.files),
        _ => Err("it is not as it was written"),
    }
}

fn read(file: &Path) -> Result<Option<BTreeMap<String, String>>, TrustedFileError> {
    let metadata = match std::fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    if metadata.len() > TRUSTED_FILE_MAX_BYTES {
        return Err(TrustedFileError::Damaged("it is too large"));
    }
    decode(&std::fs::read(file)?).map(Some).map_err(TrustedFileError::Damaged)
}

/// The reason why the file has no trusted metadata to give.
#[derive(Debug)]
enum TrustedFileError {
    /// The content may be intact: too many open files, or a folder without the permission to enter it.
    Unreadable(io::Error),
    Damaged(&'static str),
}

impl From<io::Error> for TrustedFileError {
    fn from(error: io::Error) -> Self {
        Self::Unreadable(error)
    }
}

#[cfg(test)]
mod tests;
