//! Updates as a part of the daemon: what is found before any model is loaded, and the thread that they have to themselves.

use std::sync::Arc;

use tokio::sync::{Mutex, oneshot};

use crate::audit_event::AuditSink;
use crate::config::Config;
use crate::egress::Egress;
use crate::fleet::poller::Poller;
use crate::identity::device::DeviceIdentity;
use crate::readiness::Readiness;
use crate::repository::Repository;
use crate::shutdown::Shutdown;
use crate::updates::Updates;
use crate::updates::handle::UpdaterInbox;
use crate::updates::source::{Source, SourceInUse};
use crate::updates::status::LookStatus;
use crate::updates::trust::Trust;
use crate::updates::updater::{self, Parts, Prepared, Updater};

/// What is known of updates before any model is loaded.
pub struct Found {
    prepared: Option<Prepared>,
    /// The handle, and what is behind it, where a platform looks after this box.
    served: Option<(Updates, UpdaterInbox)>,
}

impl Found {
    /// Reads the update store, and tells `repository` which models it manages. Nothing that is wrong with updates keeps
    /// the daemon from serving.
    pub fn read(config: &Config, repository: &Repository) -> Self {
        let folder = &config.updates.path;
        let configured = config.updates.repository.is_some();
        if !configured && !folder.is_dir() {
            return Self { prepared: None, served: None };
        }
        // A box that nobody looks after any more keeps what it was brought.
        let prepared = match updater::prepare(folder) {
            Ok(prepared) => {
                repository.manage(prepared.managed.clone());
                Some(prepared)
            }
            Err(error) => {
                tracing::error!(%error, "the update store cannot be used; the owner's models serve");
                None
            }
        };
        Self { prepared, served: configured.then(Updates::channel) }
    }

    /// The handle, where a platform looks after this box.
    pub fn updates(&self) -> Option<Updates> {
        self.served.as_ref().map(|(updates, _)| updates.clone())
    }

    /// Looks after updates from when the models are there until the shutdown, on a thread that may wait for the disk.
    pub fn spawn(
        self,
        config: &Config,
        device: &DeviceIdentity,
        egress: &Egress,
        repository: &Repository,
        audit: &AuditSink,
        readiness: &Arc<Readiness>,
        shutdown: &Shutdown,
    ) {
        let (Some((updates, inbox)), Some(prepared)) = (self.served, self.prepared) else { return };
        let Some(source) = Source::configured(&config.updates, egress) else { return };
        let trust = match Trust::open(&config.updates.path, &config.updates.root_file, audit.clone()) {
            Ok(trust) => Arc::new(Mutex::new(trust)),
            Err(error) => {
                tracing::error!(%error, "there are no updates");
                updates.tell_look(LookStatus { error: Some(error.to_string()), ..LookStatus::default() });
                return;
            }
        };
        let in_use = SourceInUse::new(source);
        let parts = Parts {
            repository: repository.clone(),
            trust: trust.clone(),
            source: in_use.clone(),
            max_bytes_per_s: config.updates.max_bytes_per_s,
            min_free_bytes: config.updates.min_free_mb << 20,
            runtimes: config.runtimes.dir.clone(),
            updates: updates.clone(),
            audit: audit.clone(),
            shutdown: shutdown.clone(),
        };
        let (orders, looks) = inbox.split();
        let poller = Poller::new(&config.updates, device, egress.clone(), trust, in_use, updates, looks);
        let (ready, stop) = (readiness.clone(), shutdown.clone());
        let (ended, end) = oneshot::channel();
        let runtime = tokio::runtime::Handle::current();
        let thread = std::thread::Builder::new().name("updates".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = ready.wait() => {}
                    () = stop.requested() => return,
                }
                tokio::join!(Updater::new(prepared, parts).run(orders), poller.run(stop.clone()));
            });
            // The other end may be gone at the end of the grace period.
            let _ = ended.send(());
        });
        if let Err(error) = thread {
            tracing::error!(%error, "there are no updates: their thread does not start");
            return;
        }
        let stop = shutdown.clone();
        shutdown.spawn(async move {
            // Not essential: models go on being served without updates.
            if end.await.is_err() && !stop.is_requested() {
                tracing::error!("updates have stopped by a fault of ours; what runs goes on, the next start takes them up");
            }
        });
    }
}
