//! The client workflow of TUF over a source and a store: refresh, and the walk through delegations.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::time::Duration;

use jiff::Timestamp;
use sigstore_tuf::transport::FetchFuture;
use sigstore_tuf::{Error, MetadataStore, Repository, TargetFile, TrustedMetadataSet, Updater, UpdaterConfig};
use tokio_util::sync::CancellationToken;

use super::snapshot_versions::VersionCheckedStore;
use super::{RefusalKind, TrustError};
use crate::source::{RepositorySource, SourceError, escaped};

/// Longest metadata of each role, in bytes.
const ROOT_MAX_BYTES: u64 = 512 << 10;
const TIMESTAMP_MAX_BYTES: u64 = 64 << 10;
const SNAPSHOT_MAX_BYTES: u64 = 2_000_000;
const TARGETS_MAX_BYTES: u64 = 5_000_000;

/// Most roles that are searched for one target.
const ROLES_MAX: usize = 32;

/// The top-level role of targets.
const TARGETS_ROLE: &str = "targets";

/// Runs `work` on a thread that may wait for the disk, for `limit` at most. Dropping the future stops the work.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
    limit: Duration,
) -> Result<T, TrustError> {
    // tokio compiles a future for each kind of runtime. Behind a pointer it is compiled once.
    let work: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(work);
    let token = CancellationToken::new();
    let _stopped_when_dropped = token.clone().drop_guard();
    let handle = tokio::runtime::Handle::current();
    let working = tokio::task::spawn_blocking(move || {
        handle.block_on(async move {
            tokio::select! {
                done = tokio::time::timeout(limit, work) => done.ok(),
                () = token.cancelled() => None,
            }
        })
    });
    match working.await {
        Ok(done) => done.ok_or(TrustError::Slow { seconds: limit.as_secs() }),
        // A panic over fetched bytes is a refusal of them.
        Err(error) => Err(TrustError::Refused { refusal: RefusalKind::Malformed, reason: error.to_string() }),
    }
}

/// Fetches new metadata into `store`, from the root that is trusted first, all judged at `now`.
pub(super) async fn refresh(
    source: RepositorySource,
    root: Vec<u8>,
    store: impl MetadataStore + 'static,
    now: Timestamp,
) -> Result<TrustedMetadataSet, Error> {
    let mut limits = UpdaterConfig::default();
    limits.root_max_length = ROOT_MAX_BYTES;
    limits.timestamp_max_length = TIMESTAMP_MAX_BYTES;
    limits.snapshot_max_length = SNAPSHOT_MAX_BYTES;
    limits.targets_max_length = TARGETS_MAX_BYTES;
    let (store, refused) = VersionCheckedStore::new(store);
    let mut updater = Updater::new(SourceRepository(source), &root)?.with_config(limits).with_store(store);
    let refreshed = updater.refresh(now).await;
    if let Some(error) = refused.take() {
        return Err(error);
    }
    refreshed?;
    Ok(updater.trusted().clone())
}

/// A source as a repository of the library. Targets are not fetched through it: they are too large to be held in
/// memory.
struct SourceRepository(RepositorySource);

impl Repository for SourceRepository {
    fn fetch_metadata<'a>(&'a self, name: &'a str, max_length: u64) -> FetchFuture<'a> {
        Box::pin(async move { self.0.metadata(name, max_length).await.map_err(|error| failed(name, error)) })
    }

    fn fetch_target<'a>(&'a self, path: &'a str, _: u64) -> FetchFuture<'a> {
        Box::pin(async move { Err(Error::transport(format!("{path}: targets are fetched elsewhere"))) })
    }
}

fn failed(name: &str, error: SourceError) -> Error {
    Error::transport_with_source(format!("{name} cannot be fetched"), error)
}

/// The result of a search for a target.
#[derive(Debug)]
pub(super) enum TargetLookup {
    Target(TargetFile),
    /// It is listed by a role without the permission to list it.
    Elsewhere(String),
    Nowhere,
}

/// The search for targets through delegations, which fetches, checks and stores roles.
pub(super) struct DelegationSearch<S> {
    set: TrustedMetadataSet,
    source: RepositorySource,
    store: S,
    now: Timestamp,
    /// The delegated roles in the set.
    delegated: BTreeSet<String>,
}

impl<S: MetadataStore> DelegationSearch<S> {
    pub(super) fn new(
        set: TrustedMetadataSet,
        source: RepositorySource,
        store: S,
        now: Timestamp,
        delegated: BTreeSet<String>,
    ) -> Self {
        Self { set, source, store, now, delegated }
    }

    pub(super) fn into_parts(self) -> (TrustedMetadataSet, BTreeSet<String>) {
        (self.set, self.delegated)
    }

    /// Searches for `path` in the delegated role `role` and those below it; and if it is not there, for a role that
    /// lists it without permission.
    pub(super) async fn through(&mut self, role: &str, path: &str) -> Result<TargetLookup, Error> {
        self.check_chain()?;
        if self.delegates(TARGETS_ROLE, role, path)?
            && let Some(target) = self.below(role, TARGETS_ROLE, path).await?
        {
            return Ok(TargetLookup::Target(target));
        }
        if self.lists(TARGETS_ROLE, path) {
            return Ok(TargetLookup::Elsewhere(TARGETS_ROLE.to_owned()));
        }
        for other in self.children(TARGETS_ROLE).into_iter().filter(|other| other != role).take(ROLES_MAX) {
            // A role that cannot be loaded authorizes nothing, and it is not the requested one.
            if self.load(&other, TARGETS_ROLE).await.unwrap_or(false) && self.lists(&other, path) {
                return Ok(TargetLookup::Elsewhere(other));
            }
        }
        Ok(TargetLookup::Nowhere)
    }

    /// Searches for `path` in all delegations: in pre-order, depth first (TUF 1.0.34, section 5.6.7).
    pub(super) async fn anywhere(&mut self, path: &str) -> Result<Option<TargetFile>, Error> {
        self.check_chain()?;
        self.below(TARGETS_ROLE, "root", path).await
    }

    async fn below(&mut self, role: &str, delegator: &str, path: &str) -> Result<Option<TargetFile>, Error> {
        let mut waiting = vec![(role.to_owned(), delegator.to_owned())];
        let mut visited = BTreeSet::new();
        // The last entry is visited next.
        while let Some((role, delegator)) = waiting.pop() {
            if visited.contains(&role) || visited.len() >= ROLES_MAX {
                continue;
            }
            if role != TARGETS_ROLE && !self.load(&role, &delegator).await? {
                continue;
            }

            let Some(targets) = self.set.targets_role(&role) else { continue };
            if let Some(target) = targets.target(path) {
                return Ok(Some(target.clone()));
            }

            let mut matching = Vec::new();
            for child in targets.delegations.iter().flat_map(|delegations| &delegations.roles) {
                if is_top_level(&child.name) || !child.matches_path(path)? {
                    continue;
                }
                matching.push((child.name.clone(), role.clone()));
                if child.terminating {
                    waiting.clear();
                    break;
                }
            }
            waiting.extend(matching.into_iter().rev());
            visited.insert(role);
        }
        Ok(None)
    }

    /// Loads a delegated role from the set, the store, or the source. `false`: the snapshot does not have it.
    async fn load(&mut self, role: &str, delegator: &str) -> Result<bool, Error> {
        if self.set.targets_role(role).is_some() {
            // Another delegator may require other keys.
            self.set.verify_delegated_targets(role, delegator, self.now)?;
            return Ok(true);
        }
        let key = format!("{role}.json");
        let pinned = self.set.snapshot().and_then(|snapshot| snapshot.meta.get(&key)).map(|pin| pin.version);
        let Some(version) = pinned else { return Ok(false) };
        // Names of roles are escaped in names of files.
        let name = format!("{}.json", escaped(role));
        if let Some(kept) = self.store.load(&name)?
            && self.set.update_delegated_targets(&kept, role, delegator, self.now).is_ok()
        {
            self.delegated.insert(role.to_owned());
            return Ok(true);
        }
        let file = if self.set.root().consistent_snapshot { format!("{version}.{name}") } else { name.clone() };
        let fetched = self.source.metadata(&file, TARGETS_MAX_BYTES).await.map_err(|error| failed(&file, error))?;
        let fetched = fetched.ok_or_else(|| Error::transport(format!("{file} not found")))?;
        self.set.update_delegated_targets(&fetched, role, delegator, self.now)?;
        self.store.store(&name, &fetched)?;
        self.delegated.insert(role.to_owned());
        Ok(true)
    }

    /// Checks that all metadata that authorizes targets is there, is consistent and has not expired meanwhile.
    fn check_chain(&self) -> Result<(), Error> {
        self.set.check_root_expired(self.now)?;
        self.set.check_timestamp_expired(self.now)?;
        self.set.check_snapshot_expired(self.now)?;
        let targets = self.set.targets_role(TARGETS_ROLE).ok_or(Error::NotRefreshed)?;
        if targets.expires < self.now {
            return Err(Error::Expired { role: TARGETS_ROLE.to_owned(), expires: targets.expires });
        }
        Ok(())
    }

    fn lists(&self, role: &str, path: &str) -> bool {
        self.set.targets_role(role).is_some_and(|targets| targets.target(path).is_some())
    }

    fn delegates(&self, delegator: &str, role: &str, path: &str) -> Result<bool, Error> {
        let delegations = self.set.targets_role(delegator).and_then(|targets| targets.delegations.as_ref());
        let child = delegations.and_then(|delegations| delegations.roles.iter().find(|child| child.name == role));
        child.map_or(Ok(false), |child| child.matches_path(path))
    }

    fn children(&self, delegator: &str) -> Vec<String> {
        let delegations = self.set.targets_role(delegator).and_then(|targets| targets.delegations.as_ref());
        let names = delegations.iter().flat_map(|delegations| &delegations.roles).map(|child| child.name.clone());
        names.filter(|name| !is_top_level(name)).collect()
    }
}

/// Returns true if a name is that of a top-level role: a delegated role of that name would replace it in the store.
fn is_top_level(role: &str) -> bool {
    matches!(role, "root" | "timestamp" | "snapshot" | TARGETS_ROLE)
}
