//! The platform as the poller and the updater share it: the trust in its metadata, and the source of its files.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use ledge_base::principal::Principal;
use ledge_service::audit_event::{AuditEvent, AuditSink};
use tokio::sync::{MappedMutexGuard, Mutex as AsyncMutex, MutexGuard};

use super::source::RepositorySource;
use super::trust::{TrustError, TrustedMetadata};

/// The platform, as this box knows it. Clones share one state.
#[derive(Debug, Clone)]
pub struct Platform {
    state: Arc<PlatformState>,
}

#[derive(Debug)]
struct PlatformState {
    folder: PathBuf,
    root_file: PathBuf,
    audit: AuditSink,
    trust: AsyncMutex<Option<TrustedMetadata>>,
    source: Mutex<RepositorySource>,
}

impl Platform {
    /// Makes the platform with files from `source`. `folder`, the update store, has the metadata that is trusted from
    /// `root_file` on. Nothing is opened yet, so a box without its root file starts and serves.
    pub fn new(folder: PathBuf, root_file: PathBuf, audit: AuditSink, source: RepositorySource) -> Self {
        let (trust, source) = (AsyncMutex::new(None), Mutex::new(source));
        Self { state: Arc::new(PlatformState { folder, root_file, audit, trust, source }) }
    }

    /// Returns the trust, and opens it when it is not open yet: a root file that was missing is found once it is there.
    /// Others wait while it is held.
    pub async fn trust(&self) -> Result<MappedMutexGuard<'_, TrustedMetadata>, TrustError> {
        let mut trust = self.state.trust.lock().await;
        if trust.is_none() {
            let PlatformState { folder, root_file, audit, .. } = &*self.state;
            *trust = Some(TrustedMetadata::open(folder, root_file, audit.clone())?);
        }
        MutexGuard::try_map(trust, Option::as_mut).map_err(|_| TrustError::NotRefreshed)
    }

    /// Forgets the trusted metadata, damaged or not; the next refresh begins with the root file. Waits for other users
    /// of it.
    pub async fn reset(&self, principal: Principal) -> Result<(), TrustError> {
        let mut trust = self.state.trust.lock().await;
        TrustedMetadata::reset(&self.state.folder)?;
        self.state.audit.record(&principal, AuditEvent::TrustReset);
        *trust = None;
        Ok(())
    }

    /// Returns the source of files: the repository of the last successful check.
    pub fn source(&self) -> RepositorySource {
        self.state.source.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the source of files, after a successful check of its repository.
    pub fn set_source(&self, source: RepositorySource) {
        *self.state.source.lock().unwrap_or_else(PoisonError::into_inner) = source;
    }
}
