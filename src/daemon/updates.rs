//! Updates as a part of the daemon: what is found before any model is loaded, and the thread that they have to themselves.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ledge_base::backoff;
use ledge_base::names::ModelName;
use ledge_egress::{Egress, HostPort};
use ledge_identity::sealing::{Rekey, Sealer};
use ledge_models::repository::{ManagedVersion, Repository};
use ledge_part::Environment;
use ledge_updates::Updates;
use ledge_updates::config::RepositoryAddress;
use ledge_updates::download::DownloadLimits;
use ledge_updates::handle::UpdaterInbox;
use ledge_updates::part::UpdatesPart;
use ledge_updates::platform::Platform;
use ledge_updates::preflight::PreflightSettings;
use ledge_updates::rollout::manifest_file::ManifestFile;
use ledge_updates::rollout::poller::{DECIDE_INTERVAL, Poller, TufPlatform};
use ledge_updates::source::Source;
use ledge_updates::updater::{self, Parts, Prepared, Updater};
use tokio::sync::oneshot;

use super::notify;
use super::sealing::ClosedStore;
use crate::config::Config;

/// What is known of updates before any model is loaded.
pub struct Found {
    prepared: Option<Prepared>,
    managed: BTreeMap<ModelName, ManagedVersion>,
    /// The handle, and what is behind it, where a platform looks after this box.
    served: Option<(Updates, UpdaterInbox)>,
}

impl Found {
    /// Reads the update store, and counts this start. Nothing that is wrong with updates keeps the daemon from serving.
    pub fn read(config: &Config, sealer: &Sealer) -> Self {
        let folder = &config.updates.path;
        let configured = config.updates.repository.is_some();
        if !configured && !folder.is_dir() {
            return Self { prepared: None, managed: BTreeMap::new(), served: None };
        }
        // A box that nobody looks after any more keeps what it was brought.
        let (prepared, managed) = match updater::prepare(folder, sealer, &notify::starting) {
            Ok(mut prepared) => {
                prepared.store = prepared.store.keeping_free(config.updates.min_free_mb << 20);
                let managed = std::mem::take(&mut prepared.managed);
                (Some(prepared), managed)
            }
            Err(error) => {
                tracing::error!(%error, "there are no updates; what they brought serves as far as it can be read");
                (None, updater::read_managed(folder))
            }
        };
        Self { prepared, managed, served: configured.then(|| Updates::channel(servers(config))) }
    }

    /// Tells the repository which models updates manage.
    pub fn manage(&self, repository: &Repository) {
        repository.manage(self.managed.clone());
    }

    /// Updates for the other parts. Their store is at `folder`; one that could not be opened cannot be encrypted again.
    pub fn part(&self, folder: &Path) -> UpdatesPart {
        let store: Option<Arc<dyn Rekey>> = match &self.prepared {
            Some(prepared) => Some(Arc::new(prepared.store.clone())),
            None => folder.is_dir().then(|| Arc::new(ClosedStore) as Arc<dyn Rekey>),
        };
        UpdatesPart { updates: self.handle(), store }
    }

    /// The handle, where a platform looks after this box.
    pub fn handle(&self) -> Option<Updates> {
        self.served.as_ref().map(|(updates, _)| updates.clone())
    }

    /// Looks after updates from when the models are there until the shutdown, on a thread that may wait for the disk.
    pub fn spawn(self, config: &Config, repository: &Repository, environment: &Environment) {
        let (Some((updates, inbox)), Some(prepared)) = (self.served, self.prepared) else { return };
        let Environment { device, sealer, egress, audit, readiness, shutdown, .. } = environment;
        let preflight = preflight_settings(config, repository, sealer);
        let config = &config.updates;
        let Some(source) = Source::configured(config, egress) else { return };
        let platform = Platform::new(config.path.clone(), config.root_file.clone(), audit.clone(), source.clone());
        let parts = Parts {
            repository: repository.clone(),
            platform: platform.clone(),
            limits: DownloadLimits::new(config),
            preflight,
            updates: updates.clone(),
            audit: audit.clone(),
            shutdown: shutdown.clone(),
        };
        let (orders, checks) = inbox.split();
        let (other, egress) = (config.clone(), egress.clone());
        let connect = move |address: &RepositoryAddress| source_at(address, &other, &egress);
        let address = config.repository.as_ref().map(ToString::to_string).unwrap_or_default();
        let poller = Poller {
            client: TufPlatform::new(platform, source, connect, device, ManifestFile::new(&config.path, &address)),
            repository: address,
            interval: config.poll_interval(),
            decide: DECIDE_INTERVAL,
            device: device.clone(),
            updates,
            checks,
            random: backoff::random,
        };
        let (ready, stop) = (readiness.clone(), shutdown.clone());
        let (ended, end) = oneshot::channel();
        let runtime = tokio::runtime::Handle::current();
        let thread = std::thread::Builder::new().name("updates".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = ready.wait() => {}
                    () = stop.requested() => return,
                }
                let _ = tokio::join!(Updater::new(prepared, parts).run(orders), poller.run(stop.clone()));
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
                tracing::error!(
                    "updates have stopped by a fault of ours; what runs goes on, and so do they at the next start"
                );
            }
        });
    }
}

/// The servers that the configuration names.
fn servers(config: &Config) -> Vec<HostPort> {
    let repository = match &config.updates.repository {
        Some(RepositoryAddress::Http { at, .. }) => Some(at.clone()),
        Some(RepositoryAddress::Folder(_)) | None => None,
    };
    config.egress.allow.iter().map(|allowed| allowed.host.clone()).chain(repository).collect()
}

/// How models are tried on this box.
pub fn preflight_settings(config: &Config, repository: &Repository, sealer: &Sealer) -> PreflightSettings {
    PreflightSettings {
        measure: config.runtimes.measure,
        sealer: sealer.clone(),
        own_folders: repository.runtimes().own_folders(),
        ..PreflightSettings::new(config.runtimes.dir.clone(), config.serving.default_timeout())
    }
}

/// Another repository than the configured one, with the same certificates.
fn source_at(address: &RepositoryAddress, config: &ledge_updates::config::UpdatesConfig, egress: &Egress) -> Source {
    let config = ledge_updates::config::UpdatesConfig { repository: Some(address.clone()), ..config.clone() };
    Source::configured(&config, egress).unwrap_or_else(|| Source::new(address, None))
}
