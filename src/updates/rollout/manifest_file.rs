//! The last accepted manifest, on disk, so that a box without a network goes on by it: windows and waves open by time.

use std::io;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_base::names::DeviceName;
use serde::{Deserialize, Serialize};

use super::check::{self, SignedManifest};

/// Name of the file in the update store.
const FILE_NAME: &str = "rollout.json";

/// Largest file that is read, in bytes: the largest manifest with each byte escaped is smaller.
const FILE_MAX_BYTES: u64 = 8 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredManifest {
    /// The repository of the manifest, as configured: a manifest of another platform does not apply.
    repository: String,
    /// The time at which the role that signs it expires, in milliseconds since the Unix epoch.
    expires_ms: u64,
    sha256: String,
    manifest: String,
}

/// The file that stores the manifest.
#[derive(Debug, Clone)]
pub struct ManifestFile {
    path: PathBuf,
    repository: String,
}

impl ManifestFile {
    /// Names the file in the update store at `folder`, for manifests of `repository`.
    pub fn new(folder: &Path, repository: &str) -> Self {
        Self { path: folder.join(FILE_NAME), repository: repository.to_owned() }
    }

    /// Reads the stored manifest, if it is undamaged and of this fleet. Otherwise the next check fetches it again.
    pub fn load(&self, fleet: &DeviceName) -> Option<SignedManifest> {
        let found = self.read(fleet);
        match found {
            Ok(accepted) => Some(accepted),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(file = %self.path.display(), %error, "the stored rollout manifest cannot be used");
                None
            }
        }
    }

    fn read(&self, fleet: &DeviceName) -> io::Result<SignedManifest> {
        if std::fs::metadata(&self.path)?.len() > FILE_MAX_BYTES {
            return Err(io::Error::other("it is too large"));
        }
        self.parse(&std::fs::read(&self.path)?, fleet)
    }

    fn parse(&self, content: &[u8], fleet: &DeviceName) -> io::Result<SignedManifest> {
        let StoredManifest { repository, expires_ms, sha256, manifest } = serde_json::from_slice(content)?;
        if repository != self.repository {
            return Err(io::Error::other(format!("it is of another repository: {repository}")));
        }
        check::read(manifest.into_bytes(), &sha256, fleet, expires_ms).map_err(io::Error::other)
    }

    /// Stores a manifest. When this returns `Ok`, it survives a power cut.
    pub fn store(&self, accepted: &SignedManifest) -> io::Result<()> {
        let form = self.encode(accepted)?;
        if let Some(folder) = self.path.parent() {
            durable::create_folder(folder)?;
        }
        durable::replace(&self.path, &form)
    }

    fn encode(&self, accepted: &SignedManifest) -> serde_json::Result<Vec<u8>> {
        let SignedManifest { text, sha256, expires_ms, .. } = accepted.clone();
        serde_json::to_vec(&StoredManifest { repository: self.repository.clone(), expires_ms, sha256, manifest: text })
    }
}

/// Reads the file of the stored manifest; true when the box may continue with it. Then it is undamaged, of this fleet
/// and of this repository, and the same after it was written and read again.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8], repository: &str, fleet: &DeviceName) -> bool {
    let kept = ManifestFile::new(Path::new(""), repository);
    let Ok(accepted) = kept.parse(data, fleet) else { return false };
    assert_eq!(accepted.manifest.fleet, *fleet);
    assert_eq!(crate::sha256::sha256_hex(accepted.text.as_bytes()), accepted.sha256);
    let written = kept.encode(&accepted).unwrap_or_default();
    assert!(kept.parse(&written, fleet).is_ok_and(|again| again == accepted), "{}", written.escape_ascii());
    let other = ManifestFile::new(Path::new(""), "https://elsewhere/");
    assert!(other.parse(data, fleet).is_err(), "it is of another repository");
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sha256::sha256_hex;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test makes the damage")]
    fn what_was_kept_is_read_again_and_what_is_damaged_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let kept = ManifestFile::new(&folder.path().join("updates"), "https://a/");
        let fleet: DeviceName = "default".parse().unwrap();
        assert_eq!(kept.load(&fleet), None);
        let text = r#"{"schema": 1, "fleet": "default", "published": "2026-11-20T00:00:00Z", "rollouts": []}"#;
        let accepted = check::read(text.into(), &sha256_hex(text.as_bytes()), &fleet, 7).unwrap();
        kept.store(&accepted).unwrap();
        assert_eq!(kept.load(&fleet).as_ref(), Some(&accepted));
        assert_eq!(kept.load(&"other".parse().unwrap()), None);
        assert_eq!(ManifestFile { repository: "https://b/".into(), ..kept.clone() }.load(&fleet), None);
        let whole = std::fs::read(&kept.path).unwrap();
        let manifest = whole.windows(4).position(|bytes| bytes == b"2026").unwrap();
        let mut changed = whole.clone();
        changed[manifest] = b'3';
        for damaged in [&changed[..], &whole[..whole.len() / 2], b""] {
            std::fs::write(&kept.path, damaged).unwrap();
            assert_eq!(kept.load(&fleet), None);
        }
    }
}
