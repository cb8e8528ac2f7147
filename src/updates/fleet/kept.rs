//! The manifest that was accepted last, on disk, so that a box without a network goes on by it: windows and waves open by
//! time.

use std::io;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_base::names::DeviceName;
use serde::{Deserialize, Serialize};

use super::look::{self, Accepted};
use crate::sha256::sha256_hex;

/// Its file, in the update store.
const FILE: &str = "rollout.json";

/// Larger than the largest manifest, each of whose bytes may be escaped.
const MAX_FILE: u64 = 8 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    /// The repository that it is of, as configured: another platform's is none of this box's business.
    repository: String,
    /// When the role that signs it expires.
    expires_ms: u64,
    sha256: String,
    manifest: String,
}

/// Where the manifest is kept.
#[derive(Debug, Clone)]
pub struct Kept {
    path: PathBuf,
    repository: String,
}

impl Kept {
    /// In the update store, for what comes from `repository`.
    pub fn new(folder: &Path, repository: &str) -> Self {
        Self { path: folder.join(FILE), repository: repository.to_owned() }
    }

    /// What was kept, if it is whole and of this fleet. Whatever is not, the next look brings again.
    pub fn load(&self, fleet: &DeviceName) -> Option<Accepted> {
        let found = self.read(fleet);
        match found {
            Ok(accepted) => Some(accepted),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(file = %self.path.display(), %error, "the rollout manifest kept here cannot be used");
                None
            }
        }
    }

    fn read(&self, fleet: &DeviceName) -> io::Result<Accepted> {
        if std::fs::metadata(&self.path)?.len() > MAX_FILE {
            return Err(io::Error::other("it is larger than any"));
        }
        self.parse(&std::fs::read(&self.path)?, fleet)
    }

    fn parse(&self, content: &[u8], fleet: &DeviceName) -> io::Result<Accepted> {
        let Form { repository, expires_ms, sha256, manifest } = serde_json::from_slice(content)?;
        if repository != self.repository {
            return Err(io::Error::other(format!("it came from {repository}")));
        }
        look::read(manifest.into_bytes(), &sha256, fleet, expires_ms).map_err(io::Error::other)
    }

    /// Keeps a manifest. When this returns `Ok`, it survives a power cut.
    pub fn store(&self, accepted: &Accepted) -> io::Result<()> {
        let form = self.encode(accepted)?;
        if let Some(folder) = self.path.parent() {
            durable::create_folder(folder)?;
        }
        durable::replace(&self.path, &form)
    }

    fn encode(&self, accepted: &Accepted) -> serde_json::Result<Vec<u8>> {
        let Accepted { text, sha256, expires_ms, .. } = accepted.clone();
        serde_json::to_vec(&Form { repository: self.repository.clone(), expires_ms, sha256, manifest: text })
    }
}

/// Reads the file of the manifest that was kept; true when the box may go on by it. It is whole, of this fleet and of this
/// repository then, and the same after it was written and read again.
///
/// # Panics
/// When an invariant does not hold.
pub(super) fn fuzz(data: &[u8], repository: &str, fleet: &DeviceName) -> bool {
    let kept = Kept::new(Path::new(""), repository);
    let Ok(accepted) = kept.parse(data, fleet) else { return false };
    assert_eq!(accepted.manifest.fleet, *fleet);
    assert_eq!(sha256_hex(accepted.text.as_bytes()), accepted.sha256);
    let written = kept.encode(&accepted).unwrap_or_default();
    assert!(kept.parse(&written, fleet).is_ok_and(|again| again == accepted), "{}", written.escape_ascii());
    let other = Kept::new(Path::new(""), "https://elsewhere/");
    assert!(other.parse(data, fleet).is_err(), "it is of another repository");
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test makes the damage")]
    fn what_was_kept_is_read_again_and_what_is_damaged_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::new(&folder.path().join("updates"), "https://a/");
        let fleet: DeviceName = "default".parse().unwrap();
        assert_eq!(kept.load(&fleet), None);
        let text = r#"{"schema": 1, "fleet": "default", "published": "2026-11-20T00:00:00Z", "rollouts": []}"#;
        let accepted = look::read(text.into(), &sha256_hex(text.as_bytes()), &fleet, 7).unwrap();
        kept.store(&accepted).unwrap();
        assert_eq!(kept.load(&fleet).as_ref(), Some(&accepted));
        assert_eq!(kept.load(&"other".parse().unwrap()), None);
        assert_eq!(Kept { repository: "https://b/".into(), ..kept.clone() }.load(&fleet), None);
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
