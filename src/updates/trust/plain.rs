//! A plain TUF client with the clock of the system and a folder of metadata, for the public conformance suite of TUF.
//! It shares refresh and walk with [`super::TrustedMetadata`], but neither its store nor its time.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::digest;
use ledge_base::durable;
use sigstore_tuf::{Error, MetadataStore, TargetFile, TrustedMetadataSet};

use super::engine::{self, DelegationSearch};
use super::{TrustError, time};
use crate::source::{RepositorySource, escaped};

/// Timeout of one refresh.
const STEP_TIMEOUT: Duration = Duration::from_mins(1);

/// A client with its trusted metadata in a folder.
#[derive(Debug)]
pub struct PlainClient {
    store: FolderMetadataStore,
    root: Vec<u8>,
    now: jiff::Timestamp,
    set: Option<(TrustedMetadataSet, BTreeSet<String>)>,
}

/// A folder of metadata under the names of its roles.
#[derive(Debug, Clone)]
struct FolderMetadataStore(PathBuf);

/// Makes a root the trusted root of `folder`.
pub fn init(folder: &Path, root_file: &Path) -> Result<(), TrustError> {
    let wrong = |reason: String| TrustError::RootFile { file: root_file.to_owned(), reason };
    let root = std::fs::read(root_file).map_err(|error| wrong(error.to_string()))?;
    TrustedMetadataSet::from_root(&root).map_err(|error| wrong(super::error::chain(&error)))?;
    let file = folder.join("root.json");
    durable::replace(&file, &root).map_err(|error| TrustError::Store { file, reason: error.to_string() })
}

impl PlainClient {
    /// Opens a client for `folder`, with `now_ms` as its time.
    pub fn open(folder: &Path, now_ms: u64) -> Result<Self, TrustError> {
        let file = folder.join("root.json");
        let root = std::fs::read(&file).map_err(|error| TrustError::RootFile { file, reason: error.to_string() })?;
        Ok(Self { store: FolderMetadataStore(folder.to_owned()), root, now: time::timestamp(now_ms), set: None })
    }

    /// Fetches new metadata.
    pub async fn refresh(&mut self, source: &RepositorySource) -> Result<(), TrustError> {
        let work = engine::refresh(source.clone(), self.root.clone(), self.store.clone(), self.now);
        let set = engine::run_blocking(work, STEP_TIMEOUT).await?.map_err(|error| TrustError::of(error, self.now))?;
        self.set = Some((set, BTreeSet::new()));
        Ok(())
    }

    /// Fetches a target into `folder`, unless it is there, and returns its path.
    pub async fn download(
        &mut self,
        source: &RepositorySource,
        path: &str,
        folder: &Path,
    ) -> Result<PathBuf, TrustError> {
        let Some((set, delegated)) = self.set.clone() else { return Err(TrustError::NotRefreshed) };
        let mut walk = DelegationSearch::new(set, source.clone(), self.store.clone(), self.now, delegated);
        let found = walk.anywhere(path).await;
        let (set, delegated) = walk.into_parts();
        let consistent = set.root().consistent_snapshot;
        self.set = Some((set, delegated));
        let listed = found.map_err(|error| TrustError::of(error, self.now))?;
        let target = listed.ok_or_else(|| TrustError::NotListed { path: path.to_owned(), role: "targets" })?;
        let file = folder.join(escaped(path));
        if std::fs::read(&file).is_ok_and(|kept| is_target(&kept, &target)) {
            return Ok(file);
        }
        let bytes = fetch(source, path, &target, consistent).await?;
        match durable::replace(&file, &bytes) {
            Ok(()) => Ok(file),
            Err(error) => Err(TrustError::Store { file, reason: error.to_string() }),
        }
    }
}

async fn fetch(
    source: &RepositorySource,
    path: &str,
    target: &TargetFile,
    consistent: bool,
) -> Result<Vec<u8>, TrustError> {
    let mismatch =
        || TrustError::of(Error::IntegrityMismatch(format!("{path} is not the signed file")), time::timestamp(0));
    let hash = ["sha256", "sha512"].into_iter().find_map(|name| target.hashes.get(name)).ok_or_else(mismatch)?;
    let location = match path.rsplit_once('/') {
        _ if !consistent => path.to_owned(),
        Some((folder, name)) => format!("{folder}/{hash}.{name}"),
        None => format!("{hash}.{path}"),
    };
    let mut arrival = source.target(&location, 0).await.map_err(TrustError::Source)?;
    let mut bytes = Vec::new();
    while let Some(chunk) = arrival.chunk().await.map_err(TrustError::Source)? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() as u64 > target.length {
            return Err(mismatch());
        }
    }
    if is_target(&bytes, target) { Ok(bytes) } else { Err(mismatch()) }
}

fn is_target(bytes: &[u8], target: &TargetFile) -> bool {
    let mut checked = false;
    for (name, expected) in &target.hashes {
        let algorithm = match name.as_str() {
            "sha256" => &digest::SHA256,
            "sha512" => &digest::SHA512,
            _ => continue,
        };
        if !is_hex_of(expected, digest::digest(algorithm, bytes).as_ref()) {
            return false;
        }
        checked = true;
    }
    checked && bytes.len() as u64 == target.length
}

fn is_hex_of(text: &str, bytes: &[u8]) -> bool {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(u32::from);
    text.chars().map(|digit| digit.to_digit(16)).eq(digits.map(Some))
}

impl MetadataStore for FolderMetadataStore {
    fn load(&self, name: &str) -> sigstore_tuf::Result<Option<Vec<u8>>> {
        let file = self.0.join(name);
        match std::fs::read(&file) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(file.display().to_string(), error)),
        }
    }

    fn store(&self, name: &str, bytes: &[u8]) -> sigstore_tuf::Result<()> {
        // One file for each role, under its name without a version.
        if name.contains('/') || name.starts_with(|first: char| first.is_ascii_digit()) {
            return Ok(());
        }
        let file = self.0.join(name);
        durable::replace(&file, bytes).map_err(|error| Error::io(file.display().to_string(), error))
    }
}
