//! One check of the platform: fresh metadata, and the rollout manifest that it signs.

use std::time::Duration;

use ledge_base::names::DeviceName;

use super::manifest::{MANIFEST_MAX_BYTES, ManifestError, RolloutManifest};
use crate::platform::Platform;
use crate::sha256::sha256_hex;
use crate::source::{RepositorySource, SourceError};
use crate::trust::{TrustError, TufTarget};

/// The role that signs manifests.
const FLEET_ROLE: &str = "fleet";

/// Timeout of fetching the manifest: a server that sends slowly for ever must not block the poller.
const MANIFEST_TIMEOUT: Duration = Duration::from_mins(1);

/// A manifest that the platform signed.
#[derive(Debug, Clone, PartialEq)]
pub struct SignedManifest {
    pub manifest: RolloutManifest,
    /// Its text, as it was signed.
    pub text: String,
    /// SHA-256 of the text, in hexadecimal.
    pub sha256: String,
    /// The time at which the role that signs it expires, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
}

/// Reasons why a check failed.
#[derive(Debug, thiserror::Error)]
pub enum RolloutCheckError {
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(
        "the rollout manifest did not arrive within {} s: the link is too slow, or somebody slows it down",
        MANIFEST_TIMEOUT.as_secs()
    )]
    Slow,
    #[error("the rollout manifest has {bytes} bytes, and {MANIFEST_MAX_BYTES} at most are allowed")]
    TooLarge { bytes: u64 },
    #[error(
        "the rollout manifest is not the one that was signed: it was damaged on the way, or replaced in the repository"
    )]
    Mismatch,
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("the manifest is of fleet {found}, and this box is in {own}: the platform published it in the wrong place")]
    OtherFleet {
        found: DeviceName,
        /// The fleet of this box.
        own: DeviceName,
    },
}

impl RolloutCheckError {
    /// Returns a text that is the same for two failures of the same kind. The message of some has the time in it.
    pub fn kind(&self) -> String {
        match self {
            Self::Trust(error) => {
                error.refusal().map_or_else(|| error.to_string(), |refusal| refusal.name().to_owned())
            }
            other => other.to_string(),
        }
    }

    /// Returns the time after which the server wants to be asked again, if it names one.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Source(error) => error.retry_after(),
            Self::Trust(error) => error.retry_after(),
            _ => None,
        }
    }
}

/// Refreshes the trusted metadata from `source`, and returns the manifest of `fleet`. It is not fetched when it is the
/// same as `known`.
pub async fn check(
    platform: &Platform,
    source: &RepositorySource,
    fleet: &DeviceName,
    known: Option<&SignedManifest>,
    system_ms: u64,
) -> Result<SignedManifest, RolloutCheckError> {
    let path = format!("{FLEET_ROLE}/{fleet}/rollout.json");
    let (target, expires_ms) = {
        let mut trust = platform.trust().await?;
        trust.refresh(source, system_ms).await?;
        let target = trust.resolve(source, &path).await?;
        // The role was loaded to resolve the target, so it has an expiry.
        let expires_ms = trust.roles().get(FLEET_ROLE).and_then(|role| role.expires_ms).unwrap_or(0);
        (target, expires_ms)
    };
    let accepted = if let Some(known) = known.filter(|known| known.sha256 == target.sha256) {
        SignedManifest { expires_ms, ..known.clone() }
    } else {
        let text = tokio::time::timeout(MANIFEST_TIMEOUT, fetch(source, &target))
            .await
            .map_err(|_| RolloutCheckError::Slow)??;
        read(text, &target.sha256, fleet, expires_ms)?
    };
    platform.trust().await?.prove(accepted.manifest.published_ms)?;
    Ok(accepted)
}

/// Reads a manifest with the digest `sha256`.
pub fn read(
    text: Vec<u8>,
    sha256: &str,
    fleet: &DeviceName,
    expires_ms: u64,
) -> Result<SignedManifest, RolloutCheckError> {
    if sha256_hex(&text) != sha256 {
        return Err(RolloutCheckError::Mismatch);
    }
    let manifest = RolloutManifest::parse(&text)?;
    if manifest.fleet != *fleet {
        return Err(RolloutCheckError::OtherFleet { found: manifest.fleet, own: fleet.clone() });
    }
    // Text that was parsed as JSON is UTF-8.
    let text = String::from_utf8(text).map_err(|_| RolloutCheckError::Mismatch)?;
    Ok(SignedManifest { manifest, text, sha256: sha256.to_owned(), expires_ms })
}

/// Fetches a small target, and not a byte more than its signed length.
async fn fetch(source: &RepositorySource, target: &TufTarget) -> Result<Vec<u8>, RolloutCheckError> {
    if target.length > MANIFEST_MAX_BYTES {
        return Err(RolloutCheckError::TooLarge { bytes: target.length });
    }
    let mut arrival = source.target(&target.location, 0).await?;
    let mut text = Vec::new();
    while let Some(chunk) = arrival.chunk().await? {
        if (text.len() + chunk.len()) as u64 > target.length {
            return Err(RolloutCheckError::Mismatch);
        }
        text.extend_from_slice(&chunk);
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
