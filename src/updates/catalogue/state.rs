//! The state of the catalogue that its routes share.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ledge_base::clock;
use ledge_base::names::ModelName;
use ledge_egress::Egress;
use ledge_identity::authentication::{Authenticator, Caller};
use ledge_models::repository::Repository;
use ledge_service::audit_event::{AuditEvent, AuditSink};
use ledge_service::off_thread::blocking;
use ledge_service::shutdown::Shutdown;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::super::download::DownloadLimits;
use super::config::CatalogueConfig;
use super::upload::UploadLimits;
use super::{Catalogue, CatalogueError, CatalogueModel, find};

#[derive(Debug)]
pub(super) struct CatalogueState {
    pub config: CatalogueConfig,
    pub repository: Repository,
    pub audit: AuditSink,
    pub shutdown: Shutdown,
    pub(super) egress: Egress,
    pub(super) limits: DownloadLimits,
    pub(super) authenticator: Authenticator,
    /// The one turn for a change, or for reading the list.
    pub(super) turns: Arc<Semaphore>,
    pub(super) seen: Mutex<CatalogueView>,
}

/// The state that callers see without waiting.
#[derive(Debug, Default, Clone)]
pub(super) struct CatalogueView {
    /// The list that was read last, with the time in milliseconds since the Unix epoch.
    pub list: Option<(u64, Arc<[CatalogueModel]>)>,
    pub addition: Option<Addition>,
    pub last: Option<AdditionResult>,
}

/// An addition under way.
#[derive(Debug, Clone)]
pub(super) struct Addition {
    pub name: ModelName,
    /// The bytes of its files; 0 until the list is read.
    pub bytes: u64,
    pub fetched: Arc<AtomicU64>,
}

/// The result of the last addition.
#[derive(Debug, Clone)]
pub(super) struct AdditionResult {
    pub name: ModelName,
    pub at_ms: u64,
    pub error: Option<String>,
}

impl CatalogueState {
    pub fn seen(&self) -> MutexGuard<'_, CatalogueView> {
        // Nothing panics under this lock.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The folder of the owner's models.
    pub fn folder(&self) -> &Path {
        self.repository.path()
    }

    pub fn upload_limits(&self) -> UploadLimits {
        UploadLimits { bytes: self.config.upload_max_mb << 20, min_free_bytes: self.limits.min_free_bytes }
    }

    /// Takes the turn, or refuses.
    pub fn turn(&self) -> Result<OwnedSemaphorePermit, CatalogueError> {
        self.turns.clone().try_acquire_owned().map_err(|_| CatalogueError::Busy { folder: self.config.path.clone() })
    }

    /// Reads the list of the catalogue.
    pub async fn refresh(self: Arc<Self>) -> Result<(), CatalogueError> {
        let _turn = self.turn()?;
        let (state, runtime) = (self.clone(), Handle::current());
        blocking(move || state.read_list(&runtime).map(|_| ())).await
    }

    /// Refuses a name that a new model cannot have.
    pub fn check_name(&self, name: &ModelName) -> Result<(), CatalogueError> {
        if self.repository.is_managed(name) {
            return Err(CatalogueError::Managed { name: name.clone() });
        }
        let folder = self.folder().join(name.as_str());
        if folder.symlink_metadata().is_ok() { Err(CatalogueError::Exists { folder }) } else { Ok(()) }
    }

    /// Refuses a change of a caller that is not admitted any more: its key may have been revoked meanwhile. Also
    /// refuses it once the service stops.
    pub fn may_change(&self, caller: &Caller) -> Result<(), CatalogueError> {
        if self.shutdown.is_requested() {
            return Err(CatalogueError::Stopping);
        }
        if self.authenticator.is_current(caller) { Ok(()) } else { Err(CatalogueError::NotAdmitted) }
    }

    /// Begins to add a model. The result is in [`CatalogueView`].
    pub fn begin_addition(self: Arc<Self>, name: ModelName, caller: Caller) -> Result<(), CatalogueError> {
        self.check_name(&name)?;
        if self.config.source(None)?.is_none() {
            return Err(CatalogueError::NoCatalogue);
        }
        let turn = self.turn()?;
        self.seen().addition = Some(Addition { name: name.clone(), bytes: 0, fetched: Arc::default() });

        let state = self.clone();
        self.shutdown.spawn(async move {
            let principal = caller.principal.clone();
            let (adding, runtime, wanted) = (state.clone(), Handle::current(), name.clone());
            let added = blocking(move || adding.add(&wanted, &caller, &runtime)).await;
            let loaded = match added {
                Ok(()) => state.repository.load(&name, &principal).await.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = &loaded {
                tracing::warn!(model = %name, %error, "a model of the catalogue was not added, or cannot be loaded");
            }
            let mut seen = state.seen();
            seen.addition = None;
            seen.last = Some(AdditionResult { name, at_ms: clock::unix_millis(), error: loaded.err() });
            drop((seen, turn));
        });
        Ok(())
    }

    /// Opens the catalogue and reads its list. Waits for the network and for disks.
    fn read_list(&self, runtime: &Handle) -> Result<(Catalogue, Arc<[CatalogueModel]>), CatalogueError> {
        let mut catalogue = Catalogue::open(&self.config, None, &self.egress, self.limits.clone())?;
        let models: Arc<[_]> = runtime.block_on(catalogue.models())?.into();
        self.seen().list = Some((clock::unix_millis(), models.clone()));
        Ok((catalogue, models))
    }

    fn add(&self, name: &ModelName, caller: &Caller, runtime: &Handle) -> Result<(), CatalogueError> {
        let (catalogue, models) = self.read_list(runtime)?;
        let model = find(&models, name)?;
        let fetched = Arc::new(AtomicU64::new(0));
        self.seen().addition = Some(Addition { name: name.clone(), bytes: model.bytes(), fetched: fetched.clone() });
        let advance = |bytes| {
            fetched.fetch_add(bytes, Ordering::Relaxed);
            // Fetched bytes are kept for the next attempt.
            if self.shutdown.is_requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        runtime.block_on(catalogue.fetch(model, advance))?;
        let added = catalogue.install(model, self.folder(), || self.may_change(caller))?;
        let (model, origin, digest) = (name.clone(), "catalogue".into(), added.digest);
        self.audit.record(&caller.principal, AuditEvent::ModelAdded { model, origin, digest });
        Ok(())
    }
}
