//! One look at the platform: fresh metadata, and the rollout manifest that it vouches for.

use std::time::Duration;

use ledge_base::names::DeviceName;

use super::manifest::{MAX_BYTES, Manifest, ManifestError};
use crate::platform::Platform;
use crate::sha256::sha256_hex;
use crate::source::{Source, SourceError};
use crate::trust::{Target, TrustError};

/// The role that signs manifests.
const FLEET: &str = "fleet";

/// How long the manifest may take: a server that sends slowly for ever holds nobody up.
const LIMIT: Duration = Duration::from_mins(1);

/// A manifest that the platform vouches for.
#[derive(Debug, Clone, PartialEq)]
pub struct Accepted {
    pub manifest: Manifest,
    /// The same as it was signed.
    pub text: String,
    /// SHA-256 of the text, in hexadecimal.
    pub sha256: String,
    /// When the role that signs it expires, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
}

/// Why a look brought nothing new.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("the rollout manifest did not come within {} s: the link is too slow, or somebody slows it down", LIMIT.as_secs())]
    Slow,
    #[error("the rollout manifest has {bytes} bytes, {MAX_BYTES} at most")]
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

impl LookError {
    /// What two failures of the same kind share. The words of some say what time it is.
    pub fn kind(&self) -> String {
        match self {
            Self::Trust(error) => {
                error.refusal().map_or_else(|| error.to_string(), |refusal| refusal.name().to_owned())
            }
            other => other.to_string(),
        }
    }

    /// After what time another try is worth it, where the server says it.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Source(error) => error.retry_after(),
            Self::Trust(error) => error.retry_after(),
            _ => None,
        }
    }
}

/// Refreshes the trusted metadata from `source`, and gives the manifest of `fleet`. It is not fetched when it is the one
/// that `known` is.
pub async fn look(
    platform: &Platform,
    source: &Source,
    fleet: &DeviceName,
    known: Option<&Accepted>,
    system_ms: u64,
) -> Result<Accepted, LookError> {
    let path = format!("{FLEET}/{fleet}/rollout.json");
    let (target, expires_ms) = {
        let mut trust = platform.trust().await?;
        trust.refresh(source, system_ms).await?;
        let target = trust.resolve(source, &path).await?;
        // A role that was resolved through has been loaded, and so has an expiry.
        let expires_ms = trust.roles().get(FLEET).and_then(|role| role.expires_ms).unwrap_or(0);
        (target, expires_ms)
    };
    let accepted = if let Some(known) = known.filter(|known| known.sha256 == target.sha256) {
        Accepted { expires_ms, ..known.clone() }
    } else {
        let text = tokio::time::timeout(LIMIT, fetch(source, &target)).await.map_err(|_| LookError::Slow)??;
        read(text, &target.sha256, fleet, expires_ms)?
    };
    platform.trust().await?.prove(accepted.manifest.published_ms)?;
    Ok(accepted)
}

/// Reads a manifest whose digest is `sha256`.
pub fn read(text: Vec<u8>, sha256: &str, fleet: &DeviceName, expires_ms: u64) -> Result<Accepted, LookError> {
    if sha256_hex(&text) != sha256 {
        return Err(LookError::Mismatch);
    }
    let manifest = Manifest::parse(&text)?;
    if manifest.fleet != *fleet {
        return Err(LookError::OtherFleet { found: manifest.fleet, own: fleet.clone() });
    }
    // What was parsed as JSON is UTF-8.
    let text = String::from_utf8(text).map_err(|_| LookError::Mismatch)?;
    Ok(Accepted { manifest, text, sha256: sha256.to_owned(), expires_ms })
}

/// Fetches a small target: not a byte more than was signed.
async fn fetch(source: &Source, target: &Target) -> Result<Vec<u8>, LookError> {
    if target.length > MAX_BYTES {
        return Err(LookError::TooLarge { bytes: target.length });
    }
    let mut arrival = source.target(&target.location, 0).await?;
    let mut text = Vec::new();
    while let Some(chunk) = arrival.chunk().await? {
        if (text.len() + chunk.len()) as u64 > target.length {
            return Err(LookError::Mismatch);
        }
        text.extend_from_slice(&chunk);
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
