//! What the platform signed, and nothing else: TUF. The only code that knows `sigstore-tuf`.
//!
//! Invariants: metadata is on disk before it is relied on; damage on this box is an alarm and never "none yet"; the clock
//! of the system is never stored; a target counts only through the role that must sign it.

mod engine;
mod error;
mod floor;
pub mod fuzz;
pub mod plain;
mod roles;
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

use super::source::Source;
use engine::Walk;
pub use error::{Refusal, TrustError};
use store::{Opened, TrustedStore};

/// How long a refresh, or finding a target, may take as a whole: who sends slowly enough to never stall holds nobody up
/// for ever.
const LIMIT: Duration = Duration::from_mins(1);

/// So many refusals are remembered. Who signs more of them has them audited twice.
const REMEMBERED: usize = 256;

/// The role that signs who runs what and when.
const FLEET: &str = "fleet";

/// The role that signs what may run.
const MODELS: &str = "models";

/// What this box trusts.
#[derive(Debug)]
pub struct Trust {
    root_file: PathBuf,
    /// The root that this box trusts first.
    root: Vec<u8>,
    store: Arc<TrustedStore>,
    /// Why nothing may be trusted until somebody looked.
    damaged: Option<String>,
    audit: AuditSink,
    current: Option<Current>,
    limit: Duration,
    /// What was refused last of what was asked for, so that the same again is no news.
    refused: BTreeMap<Asked, Refusal>,
}

/// A target by its path, or everything that comes before targets.
type Asked = Option<String>;

/// What the last refresh that went well found.
#[derive(Debug, Clone)]
struct Current {
    set: TrustedMetadataSet,
    /// The delegated roles in it.
    delegated: BTreeSet<String>,
    /// The trusted time of the refresh.
    at_ms: u64,
    since: Instant,
}

/// What a refresh came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refreshed {
    /// The roles whose version changed, and their versions now.
    pub changed: BTreeMap<String, u64>,
    /// When the first of the metadata expires.
    pub expires_ms: u64,
}

/// A target that may be fetched.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// As the metadata has it, such as `models/minilm/2/model.onnx`.
    pub path: String,
    /// In bytes.
    pub length: u64,
    /// In 64 hexadecimal digits, in lower case.
    pub sha256: String,
    /// What is signed of it beside.
    pub custom: Option<Value>,
    /// Where it is below `targets/`.
    pub location: String,
}

impl Trust {
    /// Opens what is trusted in `folder`, the update store, beginning with the root metadata in `root_file`. What is
    /// damaged is audited and told by every refresh.
    pub fn open(folder: &Path, root_file: &Path, audit: AuditSink) -> Result<Self, TrustError> {
        let root = std::fs::read(root_file)
            .map_err(|error| TrustError::RootFile { file: root_file.to_owned(), reason: error.to_string() })?;
        TrustedMetadataSet::from_root(&root)
            .map_err(|error| TrustError::RootFile { file: root_file.to_owned(), reason: error::chain(&error) })?;
        let (store, damaged) = match TrustedStore::open(folder)? {
            Opened::Whole(store) => (store, None),
            Opened::Damaged(store, reason) => {
                audit.record_own(AuditEvent::MetadataDamaged);
                tracing::error!(%reason, "the trusted metadata of signed updates is damaged");
                (store, Some(reason))
            }
        };
        clock::FLOOR.raise(store.proven_ms());
        let (root_file, store) = (root_file.to_owned(), Arc::new(store));
        let (current, refused) = (None, BTreeMap::new());
        Ok(Self { root_file, root, store, damaged, audit, current, limit: LIMIT, refused })
    }

    /// How long a refresh, or finding a target, may take as a whole; a minute, unless it is set.
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// Forgets what is trusted, damaged or not, so that the next refresh begins with the root file. What was there is
    /// kept under another name. Whoever calls it gives up the protection from being offered old metadata once.
    pub fn reset(folder: &Path) -> Result<(), TrustError> {
        TrustedStore::reset(folder)
    }

    /// The time by which expiry is judged: that of the system, but never before this was built, nor before what accepted
    /// metadata proves.
    pub fn now_ms(&self, system_ms: u64) -> u64 {
        time::now_ms(system_ms, self.store.proven_ms())
    }

    /// The versions of what is trusted, by role.
    pub fn versions(&self) -> BTreeMap<String, u64> {
        self.store.versions()
    }

    /// Fetches what is new, from the root on. All of it is judged at the time at which this starts.
    pub async fn refresh(&mut self, source: &Source, system_ms: u64) -> Result<Refreshed, TrustError> {
        self.usable()?;
        let now_ms = self.now_ms(system_ms);
        let before = self.versions();
        let (since, now) = (Instant::now(), time::timestamp(now_ms));
        let work = engine::refresh(source.clone(), self.root.clone(), self.store.clone(), now);
        let refreshed = engine::aside(work, self.limit).await;
        let changed = self.note_changes(&before);
        let refreshed = refreshed.and_then(|refreshed| refreshed.map_err(|error| TrustError::of(error, now)));
        let set = self.judged(None, refreshed)?;
        let signed_at = set.timestamp().and_then(time::signed_at_ms);
        let current = Current { set, delegated: BTreeSet::new(), at_ms: now_ms, since };
        let expires_ms = current.expires_ms();
        self.current = Some(current);
        if let Some(signed_at) = signed_at {
            self.prove(signed_at)?;
        }
        Ok(Refreshed { changed, expires_ms })
    }

    /// Takes note that it is `ms` at least, because something that was signed says so; but not that it is later than
    /// the first expiry of the metadata which that came with, or one wrong date would lock this box out for ever.
    pub fn prove(&mut self, ms: u64) -> Result<(), TrustError> {
        let Some(current) = &self.current else { return Err(TrustError::NotRefreshed) };
        let proven_ms = ms.min(current.expires_ms());
        self.store.prove(proven_ms)?;
        clock::FLOOR.raise(proven_ms);
        Ok(())
    }

    /// Finds a target through the role that must sign it: `fleet` for what is below `fleet/`, else `models`. Requires a
    /// refresh before.
    pub async fn resolve(&mut self, source: &Source, path: &str) -> Result<Target, TrustError> {
        self.usable()?;
        let Some(current) = self.current.clone() else { return Err(TrustError::NotRefreshed) };
        let role = if path.starts_with("fleet/") { FLEET } else { MODELS };
        let (before, about) = (self.versions(), Some(path.to_owned()));
        let now = time::timestamp(current.at_ms.saturating_add(time::millis(current.since.elapsed())));
        let mut walk = Walk::new(current.set, source.clone(), self.store.clone(), now, current.delegated);
        let asked = path.to_owned();
        let work = async move {
            let found = walk.through(role, &asked).await;
            (walk, found)
        };
        let (walk, found) = match engine::aside(work, self.limit).await {
            Ok(done) => done,
            Err(error) => return self.judged(about, Err(error)),
        };
        if let Some(current) = &mut self.current {
            (current.set, current.delegated) = walk.into_parts();
        }
        self.note_changes(&before);
        let target = match found.map_err(|error| TrustError::of(error, now)) {
            Err(error) => Err(error),
            Ok(engine::Found::Target(target)) => self.target(path, &target),
            Ok(engine::Found::Elsewhere(other)) => {
                Err(TrustError::Unauthorised { path: path.to_owned(), role: other, must: role })
            }
            Ok(engine::Found::Nowhere) => Err(TrustError::NotListed { path: path.to_owned(), role }),
        };
        self.judged(about, target)
    }

    fn target(&self, path: &str, target: &sigstore_tuf::TargetFile) -> Result<Target, TrustError> {
        let hex = |hash: &&String| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        let sha256 = target.hashes.get("sha256").filter(hex).map(|hash| hash.to_ascii_lowercase());
        let Some(sha256) = sha256 else { return Err(TrustError::NoSha256 { path: path.to_owned() }) };
        let consistent = self.current.as_ref().is_some_and(|current| current.set.root().consistent_snapshot);
        let location = match path.rsplit_once('/') {
            _ if !consistent => path.to_owned(),
            Some((folder, name)) => format!("{folder}/{sha256}.{name}"),
            None => format!("{sha256}.{path}"),
        };
        Ok(Target { path: path.to_owned(), length: target.length, sha256, custom: target.custom.clone(), location })
    }

    /// Whether there is anything to build on.
    fn usable(&self) -> Result<(), TrustError> {
        if let Some(reason) = &self.damaged {
            return Err(TrustError::Damaged { reason: reason.clone() });
        }
        match self.store.conflict(&self.root) {
            Some(version) => Err(TrustError::OtherRoot { file: self.root_file.clone(), version }),
            None => Ok(()),
        }
    }

    /// Audits a refusal, once until it is another one or over: a platform is asked again and again. What could not be
    /// written down counts as not accepted, whatever else went well.
    fn judged<T>(&mut self, about: Asked, result: Result<T, TrustError>) -> Result<T, TrustError> {
        let result = match self.store.take_failure() {
            Some(error) => Err(error),
            None => result,
        };
        match result.as_ref().map_err(TrustError::refusal) {
            Ok(_) => {
                self.refused.remove(&about);
            }
            Err(Some(refusal)) => {
                if self.refused.len() >= REMEMBERED && !self.refused.contains_key(&about) {
                    self.refused.clear();
                }
                if self.refused.insert(about, refusal) != Some(refusal) {
                    self.audit.record_own(AuditEvent::MetadataRefused { cause: refusal.name().into() });
                }
            }
            // A network that is away says nothing of what was refused.
            Err(None) => {}
        }
        result
    }

    /// Audits each role whose version changed.
    fn note_changes(&self, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
        let mut changed = self.versions();
        changed.retain(|role, version| before.get(role) != Some(version));
        for (role, version) in &changed {
            self.audit.record_own(AuditEvent::MetadataAccepted { role: role.clone(), version: *version });
        }
        changed
    }
}

impl Current {
    /// When the first of it expires.
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
