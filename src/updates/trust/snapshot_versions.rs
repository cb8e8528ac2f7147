//! A store that refuses versions of roles lower than those in the last accepted snapshot.
//!
//! The library compares a new snapshot with the stored one only if the stored timestamp leads to it. After a refresh
//! that ended between the two (by its own refusal, at worst) it does not, and the next refresh would accept the
//! snapshot that the previous one refused. Therefore the stored snapshot is compared again when the new one is to be
//! stored.

use std::sync::{Arc, Mutex, PoisonError};

use sigstore_tuf::{Error, Metadata, MetadataStore, Result, Root, Snapshot};

const SNAPSHOT_FILE: &str = "snapshot.json";

/// A store that refuses a snapshot with a lower version of any role, and all files after it.
pub(super) struct VersionCheckedStore<S> {
    store: S,
    refused: SnapshotRefusal,
}

/// The refusal of a [`VersionCheckedStore`], kept because the library goes on regardless.
#[derive(Clone, Default)]
pub(super) struct SnapshotRefusal(Arc<Mutex<Option<Error>>>);

impl SnapshotRefusal {
    pub(super) fn take(&self) -> Option<Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<S: MetadataStore> VersionCheckedStore<S> {
    pub(super) fn new(store: S) -> (Self, SnapshotRefusal) {
        let refused = SnapshotRefusal::default();
        (Self { store, refused: refused.clone() }, refused)
    }

    /// Relative to the trusted snapshot, nothing may be removed or have a lower version (TUF 1.0.34, section 5.5.5).
    fn check(&self, new: &[u8]) -> Result<()> {
        let Some(old) = self.trusted()? else { return Ok(()) };
        let new = Metadata::<Snapshot>::from_slice(new)?;
        for (name, old) in &old.signed().meta {
            match new.signed().meta.get(name) {
                Some(new) if new.version >= old.version => {}
                Some(new) => {
                    let role = format!("{name} (via snapshot)");
                    return Err(Error::Rollback { role, trusted: old.version, new: new.version });
                }
                None => return Err(Error::IntegrityMismatch(format!("the snapshot has no {name} any more"))),
            }
        }
        Ok(())
    }

    /// Returns the stored snapshot, unless a new root revoked the keys that signed it: that is how a platform recovers
    /// from versions that no version can follow (section 5.3.11).
    fn trusted(&self) -> Result<Option<Metadata<Snapshot>>> {
        let (Some(root), Some(snapshot)) = (self.store.load("root.json")?, self.store.load(SNAPSHOT_FILE)?) else {
            return Ok(None);
        };
        let (root, snapshot) = (Metadata::<Root>::from_slice(&root)?, Metadata::<Snapshot>::from_slice(&snapshot)?);
        let (keys, role) = (&root.signed().keys, root.signed().role("snapshot"));
        let signed = role.is_some_and(|role| snapshot.verify_threshold(keys, role, "snapshot").is_ok());
        Ok(signed.then_some(snapshot))
    }
}

impl<S: MetadataStore> MetadataStore for VersionCheckedStore<S> {
    fn load(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.store.load(name)
    }

    fn store(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut refused = self.refused.0.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.is_some() {
            return Err(Error::Malformed(format!("{name} follows a refused snapshot")));
        }
        if name == SNAPSHOT_FILE
            && let Err(error) = self.check(bytes)
        {
            let told = Error::Malformed(error.to_string());
            *refused = Some(error);
            return Err(told);
        }
        self.store.store(name, bytes)
    }
}
