//! The client workflow of TUF over a source and a store: refresh, and the walk through delegations.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use sigstore_tuf::transport::FetchFuture;
use sigstore_tuf::{Error, MetadataStore, Repository, TargetFile, TrustedMetadataSet, Updater, UpdaterConfig};
use tokio_util::sync::CancellationToken;

use super::floor::Floor;
use super::{Refusal, TrustError};
use crate::source::{Source, SourceError, escaped};

/// The longest metadata of each role, in bytes.
const ROOT_MAX: u64 = 512 << 10;
const TIMESTAMP_MAX: u64 = 64 << 10;
const SNAPSHOT_MAX: u64 = 2_000_000;
const TARGETS_MAX: u64 = 5_000_000;

/// The most roles that are asked for one target.
const MOST_ROLES: usize = 32;

/// The top-level role of targets.
const TARGETS: &str = "targets";

/// Does `work` where it may wait for the disk, in `limit` at most. Whoever stops waiting for it stops it.
pub(super) async fn aside<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
    limit: Duration,
) -> Result<T, TrustError> {
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
        // A panic over what was fetched is a refusal of it.
        Err(error) => Err(TrustError::Refused { refusal: Refusal::Malformed, reason: error.to_string() }),
    }
}

/// Fetches what is new into `store`, from the root that is trusted first, all judged at `now`.
pub(super) async fn refresh(
    source: Source,
    root: Vec<u8>,
    store: impl MetadataStore + 'static,
    now: Timestamp,
) -> Result<TrustedMetadataSet, Error> {
    let mut limits = UpdaterConfig::default();
    limits.root_max_length = ROOT_MAX;
    limits.timestamp_max_length = TIMESTAMP_MAX;
    limits.snapshot_max_length = SNAPSHOT_MAX;
    limits.targets_max_length = TARGETS_MAX;
    let (store, refused) = Floor::new(store);
    let mut updater = Updater::new(Fetched(source), &root)?.with_config(limits).with_store(store);
    let refreshed = updater.refresh(now).await;
    if let Some(error) = refused.take() {
        return Err(error);
    }
    refreshed?;
    Ok(updater.trusted().clone())
}

/// A source as the library asks for it. Targets are not fetched through it: they are too large to be held in memory.
struct Fetched(Source);

impl Repository for Fetched {
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

/// Where a target was found.
#[derive(Debug)]
pub(super) enum Found {
    Target(TargetFile),
    /// With a role that may not list it.
    Elsewhere(String),
    Nowhere,
}

/// The search for targets through delegations. Roles are fetched, checked and stored on the way.
pub(super) struct Walk<S> {
    set: TrustedMetadataSet,
    source: Source,
    store: S,
    now: Timestamp,
    /// The delegated roles in the set.
    delegated: BTreeSet<String>,
}

impl<S: MetadataStore> Walk<S> {
    pub(super) fn new(
        set: TrustedMetadataSet,
        source: Source,
        store: S,
        now: Timestamp,
        delegated: BTreeSet<String>,
    ) -> Self {
        Self { set, source, store, now, delegated }
    }

    pub(super) fn into_parts(self) -> (TrustedMetadataSet, BTreeSet<String>) {
        (self.set, self.delegated)
    }

    /// Looks for `path` with the delegated role `role` and those below it; and if it is not there, who lists it
    /// although they may not.
    pub(super) async fn through(&mut self, role: &str, path: &str) -> Result<Found, Error> {
        self.check_chain()?;
        if self.delegates(TARGETS, role, path)?
            && let Some(target) = self.below(role, TARGETS, path).await?
        {
            return Ok(Found::Target(target));
        }
        if self.lists(TARGETS, path) {
            return Ok(Found::Elsewhere(TARGETS.to_owned()));
        }
        for other in self.children(TARGETS).into_iter().filter(|other| other != role).take(MOST_ROLES) {
            // One that cannot be loaded authorizes nothing, and it is not the one that was asked.
            if self.load(&other, TARGETS).await.unwrap_or(false) && self.lists(&other, path) {
                return Ok(Found::Elsewhere(other));
            }
        }
        Ok(Found::Nowhere)
    }

    /// Looks for `path` wherever it may be: in pre-order, depth first (TUF 1.0.34, section 5.6.7).
    pub(super) async fn anywhere(&mut self, path: &str) -> Result<Option<TargetFile>, Error> {
        self.check_chain()?;
        self.below(TARGETS, "root", path).await
    }

    async fn below(&mut self, role: &str, delegator: &str, path: &str) -> Result<Option<TargetFile>, Error> {
        let mut waiting = vec![(role.to_owned(), delegator.to_owned())];
        let mut visited = BTreeSet::new();
        // The last is the next.
        while let Some((role, delegator)) = waiting.pop() {
            if visited.contains(&role) || visited.len() >= MOST_ROLES {
                continue;
            }
            if role != TARGETS && !self.load(&role, &delegator).await? {
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

    /// Makes sure of a delegated role: from the set, the store, or the source. `false`: the snapshot does not have it.
    async fn load(&mut self, role: &str, delegator: &str) -> Result<bool, Error> {
        if self.set.targets_role(role).is_some() {
            // Another delegator may demand other keys.
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
        let fetched = self.source.metadata(&file, TARGETS_MAX).await.map_err(|error| failed(&file, error))?;
        let fetched = fetched.ok_or_else(|| Error::transport(format!("{file} not found")))?;
        self.set.update_delegated_targets(&fetched, role, delegator, self.now)?;
        self.store.store(&name, &fetched)?;
        self.delegated.insert(role.to_owned());
        Ok(true)
    }

    /// Whether everything that authorizes targets is there, fits together and has not expired meanwhile.
    fn check_chain(&self) -> Result<(), Error> {
        self.set.check_root_expired(self.now)?;
        self.set.check_timestamp_expired(self.now)?;
        self.set.check_snapshot_expired(self.now)?;
        let targets = self.set.targets_role(TARGETS).ok_or(Error::NotRefreshed)?;
        if targets.expires < self.now {
            return Err(Error::Expired { role: TARGETS.to_owned(), expires: targets.expires });
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

/// A delegated role of such a name would take the place of that one in the store.
fn is_top_level(role: &str) -> bool {
    matches!(role, "root" | "timestamp" | "snapshot" | TARGETS)
}
