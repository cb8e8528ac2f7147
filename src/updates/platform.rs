//! What the poller and the updater share of the platform: the trust in its metadata, and where its files come from.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use ledge_base::principal::Principal;
use ledge_service::audit_event::{AuditEvent, AuditSink};
use tokio::sync::{MappedMutexGuard, Mutex as AsyncMutex, MutexGuard};

use super::source::Source;
use super::trust::{Trust, TrustError};

/// The platform, as this box knows it. Clones share one state.
#[derive(Debug, Clone)]
pub struct Platform {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    root_file: PathBuf,
    audit: AuditSink,
    trust: AsyncMutex<Option<Trust>>,
    source: Mutex<Source>,
}

impl Platform {
    /// The platform whose metadata is trusted in `folder`, the update store, from `root_file` on, and whose files come from
    /// `source`. Nothing is opened yet, so a box without its root file starts and serves.
    pub fn new(folder: PathBuf, root_file: PathBuf, audit: AuditSink, source: Source) -> Self {
        let (trust, source) = (AsyncMutex::new(None), Mutex::new(source));
        Self { shared: Arc::new(Shared { folder, root_file, audit, trust, source }) }
    }

    /// The trust, opened when it is not yet: a root file that was missing is found once somebody put it there. Whoever
    /// holds it keeps others waiting.
    pub async fn trust(&self) -> Result<MappedMutexGuard<'_, Trust>, TrustError> {
        let mut trust = self.shared.trust.lock().await;
        if trust.is_none() {
            let Shared { folder, root_file, audit, .. } = &*self.shared;
            *trust = Some(Trust::open(folder, root_file, audit.clone())?);
        }
        MutexGuard::try_map(trust, Option::as_mut).map_err(|_| TrustError::NotRefreshed)
    }

    /// Forgets what is trusted, damaged or not; what is trusted next begins with the root file. Waits for whoever uses it.
    pub async fn reset(&self, principal: Principal) -> Result<(), TrustError> {
        let mut trust = self.shared.trust.lock().await;
        Trust::reset(&self.shared.folder)?;
        self.shared.audit.record(&principal, AuditEvent::TrustReset);
        *trust = None;
        Ok(())
    }

    /// Where files come from: the repository that was heard last.
    pub fn source(&self) -> Source {
        self.shared.source.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has files come from another repository, as that one was heard.
    pub fn set_source(&self, source: Source) {
        *self.shared.source.lock().unwrap_or_else(PoisonError::into_inner) = source;
    }
}
