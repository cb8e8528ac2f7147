//! Trust in the platform's signatures by TUF. The only code that knows `sigstore-tuf`.
//!
//! Invariants: metadata is on disk before it is relied on; damage on this box is an alarm and never "none yet"; the
//! clock of the system is never stored; a target counts only through the role that must sign it.

mod engine;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod plain;
mod roles;
mod snapshot_versions;
mod store;
pub mod time;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ledge_base::clock;
use ledge_service::audit_event::{AuditEvent, AuditSink};
use serde_json::Value;
use sigstore_tuf::TrustedMetadataSet;
use tokio::time::Instant;

use super::source::RepositorySource;
use engine::DelegationSearch;
pub use error::{RefusalKind, TrustError};
use store::{OpenedStore, TrustedMetadataStore};

/// Timeout of a whole refresh or resolution of a target: a server that is slow but never stalls must not block for
/// ever.
const REFRESH_TIMEOUT: Duration = Duration::from_mins(1);

/// Most refusals that are remembered. With more of them, some are audited twice.
const REFUSALS_MAX: usize = 256;

/// The role that signs rollout manifests.
const FLEET_ROLE: &str = "fleet";

/// The role that signs packages of Ledge itself.
const PACKAGES_ROLE: &str = "packages";

/// The role that signs releases.
const MODELS_ROLE: &str = "models";

/// The trusted metadata of this box.
#[derive(Debug)]
pub struct TrustedMetadata {
    root_file: PathBuf,
    /// The root that this box trusts first.
    root: Vec<u8>,
    store: Arc<TrustedMetadataStore>,
    /// The damage, because of which nothing is trusted until an administrator resets it.
    damaged: Option<String>,
    audit: AuditSink,
    current: Option<CurrentMetadata>,
    timeout: Duration,
    /// The last refusal of each request, so that the same one is audited once.
    refused: BTreeMap<RefusalKey, RefusalKind>,
}

/// A target by its path; `None` is all metadata before targets.
type RefusalKey = Option<String>;

/// The metadata of the last successful refresh.
#[derive(Debug, Clone)]
struct CurrentMetadata {
    set: TrustedMetadataSet,
    /// The delegated roles in it.
    delegated: BTreeSet<String>,
    /// The trusted time of the refresh.
    at_ms: u64,
    since: Instant,
}

/// The result of a refresh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefreshSummary {
    /// The roles with a changed version, and their versions now.
    pub changed: BTreeMap<String, u64>,
    /// The time at which the first of the metadata expires.
    pub expires_ms: u64,
}

/// A target that may be fetched.
#[derive(Debug, Clone, PartialEq)]
pub struct TufTarget {
    /// Its path in the metadata, such as `models/minilm/2/model.onnx`.
    pub path: String,
    /// In bytes.
    pub length: u64,
    /// In 64 hexadecimal digits, in lower case.
    pub sha256: String,
    /// Its signed custom data.
    pub custom: Option<Value>,
    /// Its path below `targets/`.
    pub location: String,
}

impl TrustedMetadata {
    /// Opens the trusted metadata in `folder`, the update store, beginning with the root metadata in `root_file`.
    /// Damage is audited, and reported by every refresh.
    pub fn open(folder: &Path, root_file: &Path, audit: AuditSink) -> Result<Self, TrustError> {
        let root = std::fs::read(root_file)
            .map_err(|error| TrustError::RootFile { file: root_file.to_owned(), reason: error.to_string() })?;
        TrustedMetadataSet::from_root(&root)
            .map_err(|error| TrustError::RootFile { file: root_file.to_owned(), reason: error::chain(&error) })?;
        let (store, damaged) = match TrustedMetadataStore::open(folder)? {
            OpenedStore::Whole(store) => (store, None),
            OpenedStore::Damaged(store, reason) => {
                audit.record_own(AuditEvent::MetadataDamaged);
                tracing::error!(%reason, "the trusted metadata of signed updates is damaged");
                (store, Some(reason))
            }
        };
        clock::FLOOR.raise(store.proven_ms());
        let (root_file, store) = (root_file.to_owned(), Arc::new(store));
        let (current, refused) = (None, BTreeMap::new());
        Ok(Self { root_file, root, store, damaged, audit, current, timeout: REFRESH_TIMEOUT, refused })
    }

    /// Sets the timeout of a whole refresh or resolution; a minute, unless it is set.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Forgets the trusted metadata, damaged or not, so that the next refresh begins with the root file. The old file
    /// is kept under another name. The next refresh is not protected from old metadata.
    pub fn reset(folder: &Path) -> Result<(), TrustError> {
        TrustedMetadataStore::reset(folder)
    }

    /// Returns the time by which expiry is judged: that of the system, but never before the build, nor before the time
    /// that accepted metadata proves.
    pub fn now_ms(&self, system_ms: u64) -> u64 {
        time::now_ms(system_ms, self.store.proven_ms())
    }

    /// Returns the versions of the trusted metadata, by role.
    pub fn versions(&self) -> BTreeMap<String, u64> {
        self.store.versions()
    }

    /// Fetches new metadata, from the root on. All of it is judged at the time at which this starts.
    pub async fn refresh(&mut self, source: &RepositorySource, system_ms: u64) -> Result<RefreshSummary, TrustError> {
        self.check_usable()?;
        let now_ms = self.now_ms(system_ms);
        let before = self.versions();
        let (since, now) = (Instant::now(), time::timestamp(now_ms));
        let work = engine::refresh(source.clone(), self.root.clone(), self.store.clone(), now);
        let refreshed = engine::run_blocking(work, self.timeout).await;
        let changed = self.note_changes(&before);
        let refreshed = refreshed.and_then(|refreshed| refreshed.map_err(|error| TrustError::of(error, now)));
        let set = self.audit_refusal(None, refreshed)?;
        let signed_at = set.timestamp().and_then(time::signed_at_ms);
        let current = CurrentMetadata { set, delegated: BTreeSet::new(), at_ms: now_ms, since };
        let expires_ms = current.expires_ms();
        self.current = Some(current);
        if let Some(signed_at) = signed_at {
            self.prove(signed_at)?;
        }
        Ok(RefreshSummary { changed, expires_ms })
    }

    /// Notes that it is `ms` at least, because signed data proves it; but no later than the first expiry of the
    /// metadata around it, or one wrong date would lock this box out for ever.
    pub fn prove(&mut self, ms: u64) -> Result<(), TrustError> {
        let Some(current) = &self.current else { return Err(TrustError::NotRefreshed) };
        let proven_ms = ms.min(current.expires_ms());
        self.store.prove(proven_ms)?;
        clock::FLOOR.raise(proven_ms);
        Ok(())
    }

    /// Finds a target through the role that must sign it: `fleet` for paths below `fleet/`, `packages` for those below
    /// `packages/`, else `models`. Requires a refresh before.
    pub async fn resolve(&mut self, source: &RepositorySource, path: &str) -> Result<TufTarget, TrustError> {
        self.check_usable()?;
        let Some(current) = self.current.clone() else { return Err(TrustError::NotRefreshed) };
        let role = match path.split_once('/') {
            Some(("fleet", _)) => FLEET_ROLE,
            Some(("packages", _)) => PACKAGES_ROLE,
            _ => MODELS_ROLE,
        };
        let (before, about) = (self.versions(), Some(path.to_owned()));

        let now = time::timestamp(current.at_ms.saturating_add(time::millis(current.since.elapsed())));
        let mut walk = DelegationSearch::new(current.set, source.clone(), self.store.clone(), now, current.delegated);
        let asked = path.to_owned();
        let work = async move {
            let found = walk.through(role, &asked).await;
            (walk, found)
        };
        let (walk, found) = match engine::run_blocking(work, self.timeout).await {
            Ok(done) => done,
            Err(error) => return self.audit_refusal(about, Err(error)),
        };

        if let Some(current) = &mut self.current {
            (current.set, current.delegated) = walk.into_parts();
        }
        self.note_changes(&before);

        let target = match found.map_err(|error| TrustError::of(error, now)) {
            Err(error) => Err(error),
            Ok(engine::TargetLookup::Target(target)) => self.target(path, &target),
            Ok(engine::TargetLookup::Elsewhere(other)) => {
                Err(TrustError::Unauthorised { path: path.to_owned(), role: other, must: role })
            }
            Ok(engine::TargetLookup::Nowhere) => Err(TrustError::NotListed { path: path.to_owned(), role }),
        };
        self.audit_refusal(about, target)
    }

    /// Returns the targets that the top-level role of targets lists itself. Requires a refresh before.
    pub fn top_level_targets(&self) -> Result<Vec<TufTarget>, TrustError> {
        let Some(current) = &self.current else { return Err(TrustError::NotRefreshed) };
        let listed = current.set.targets_role("targets").into_iter().flat_map(|targets| &targets.targets);
        listed.map(|(path, target)| self.target(path, target)).collect()
    }

    /// Returns the targets below `packages/NAME/` that their role lists. Requires that one of them was resolved before.
    pub fn packages(&self, name: &str) -> Result<Vec<TufTarget>, TrustError> {
        let Some(current) = &self.current else { return Err(TrustError::NotRefreshed) };
        let below = format!("{PACKAGES_ROLE}/{name}/");
        let listed = current.set.targets_role(PACKAGES_ROLE).into_iter().flat_map(|targets| &targets.targets);
        let listed = listed.filter(|(path, _)| path.starts_with(&below));
        listed.map(|(path, target)| self.target(path, target)).collect()
    }

    fn target(&self, path: &str, target: &sigstore_tuf::TargetFile) -> Result<TufTarget, TrustError> {
        let hex = |hash: &&String| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        let sha256 = target.hashes.get("sha256").filter(hex).map(|hash| hash.to_ascii_lowercase());
        let Some(sha256) = sha256 else { return Err(TrustError::NoSha256 { path: path.to_owned() }) };
        let consistent = self.current.as_ref().is_some_and(|current| current.set.root().consistent_snapshot);
        let location = match path.rsplit_once('/') {
            _ if !consistent => path.to_owned(),
            Some((folder, name)) => format!("{folder}/{sha256}.{name}"),
            None => format!("{sha256}.{path}"),
        };
        Ok(TufTarget { path: path.to_owned(), length: target.length, sha256, custom: target.custom.clone(), location })
    }

    /// Checks that the trusted metadata can be used.
    fn check_usable(&self) -> Result<(), TrustError> {
        if let Some(reason) = &self.damaged {
            return Err(TrustError::Damaged { reason: reason.clone() });
        }
        match self.store.conflict(&self.root) {
            Some(version) => Err(TrustError::OtherRoot { file: self.root_file.clone(), version }),
            None => Ok(()),
        }
    }

    /// Audits a refusal, once until there is another one or it is over, because a platform is checked again and again.
    /// Metadata that could not be stored counts as not accepted, even when all else succeeded.
    fn audit_refusal<T>(&mut self, about: RefusalKey, result: Result<T, TrustError>) -> Result<T, TrustError> {
        let result = match self.store.take_failure() {
            Some(error) => Err(error),
            None => result,
        };
        match result.as_ref().map_err(TrustError::refusal) {
            Ok(_) => {
                self.refused.remove(&about);
            }
            Err(Some(refusal)) => {
                if self.refused.len() >= REFUSALS_MAX && !self.refused.contains_key(&about) {
                    self.refused.clear();
                }
                if self.refused.insert(about, refusal) != Some(refusal) {
                    self.audit.record_own(AuditEvent::MetadataRefused { cause: refusal.name().into() });
                }
            }
            // A network error does not end a refusal.
            Err(None) => {}
        }
        result
    }

    /// Audits each role with a changed version.
    fn note_changes(&self, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
        let mut changed = self.versions();
        changed.retain(|role, version| before.get(role) != Some(version));
        for (role, version) in &changed {
            self.audit.record_own(AuditEvent::MetadataAccepted { role: role.clone(), version: *version });
        }
        changed
    }
}

impl CurrentMetadata {
    /// Returns the time at which the first of it expires.
    fn expires_ms(&self) -> u64 {
        let top = [
            Some(self.set.root().expires),
            self.set.timestamp().map(|timestamp| timestamp.expires),
            self.set.snapshot().map(|snapshot| snapshot.expires),
            self.set.targets_role("targets").map(|targets| targets.expires),
        ];
        let delegated = self.delegated.iter().filter_map(|role| Some(self.set.targets_role(role)?.expires));
        top.into_iter().flatten().chain(delegated).map(time::unix_ms).min().unwrap_or(0)
    }
}

#[cfg(test)]
pub(crate) mod tests;
