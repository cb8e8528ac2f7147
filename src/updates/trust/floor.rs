//! No role behind the versions of the last snapshot that was accepted.
//!
//! The library compares a new snapshot with the stored one only if the stored timestamp leads to that. After a refresh
//! that ended between the two (by its own refusal, at worst) it does not, and the next refresh would accept what the one
//! before refused. So the stored snapshot is compared once more when the new one is to be stored.

use std::sync::{Arc, Mutex, PoisonError};

use sigstore_tuf::{Error, Metadata, MetadataStore, Result, Root, Snapshot};

const SNAPSHOT: &str = "snapshot.json";

/// A store that takes no snapshot which takes something back, and nothing after that.
pub(super) struct Floor<S> {
    store: S,
    refused: Refused,
}

/// What a [`Floor`] refused: the library goes on regardless.
#[derive(Clone, Default)]
pub(super) struct Refused(Arc<Mutex<Option<Error>>>);

impl Refused {
    pub(super) fn take(&self) -> Option<Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<S: MetadataStore> Floor<S> {
    pub(super) fn new(store: S) -> (Self, Refused) {
        let refused = Refused::default();
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

    /// The stored snapshot, unless a new root took the trust from those who signed it: that is how a platform recovers
    /// from versions that nothing can follow (section 5.3.11).
    fn trusted(&self) -> Result<Option<Metadata<Snapshot>>> {
        let (Some(root), Some(snapshot)) = (self.store.load("root.json")?, self.store.load(SNAPSHOT)?) else {
            return Ok(None);
        };
        let (root, snapshot) = (Metadata::<Root>::from_slice(&root)?, Metadata::<Snapshot>::from_slice(&snapshot)?);
        let (keys, role) = (&root.signed().keys, root.signed().role("snapshot"));
        let signed = role.is_some_and(|role| snapshot.verify_threshold(keys, role, "snapshot").is_ok());
        Ok(signed.then_some(snapshot))
    }
}

impl<S: MetadataStore> MetadataStore for Floor<S> {
    fn load(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.store.load(name)
    }

    fn store(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut refused = self.refused.0.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.is_some() {
            return Err(Error::Malformed(format!("{name} follows what was refused")));
        }
        if name == SNAPSHOT
            && let Err(error) = self.check(bytes)
        {
            let told = Error::Malformed(error.to_string());
            *refused = Some(error);
            return Err(told);
        }
        self.store.store(name, bytes)
    }
}
