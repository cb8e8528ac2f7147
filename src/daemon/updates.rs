//! Updates as a part of the daemon: preparation before any model loads, then a separate thread.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ledge_base::backoff;
use ledge_base::names::ModelName;
use ledge_egress::{Egress, HostPort};
use ledge_identity::authentication::Authenticator;
use ledge_identity::sealing::{Rekey, Sealer};
use ledge_isolation::ChildSettings;
use ledge_models::repository::{ManagedVersion, Repository};
use ledge_part::PartEnvironment;
use ledge_updates::Updates;
use ledge_updates::catalogue::part::CataloguePart;
use ledge_updates::config::RepositoryAddress;
use ledge_updates::download::DownloadLimits;
use ledge_updates::handle::UpdaterInbox;
use ledge_updates::part::UpdatesPart;
use ledge_updates::platform::Platform;
use ledge_updates::preflight::PreflightSettings;
use ledge_updates::rollout::manifest_file::ManifestFile;
use ledge_updates::rollout::poller::{self, DECIDE_INTERVAL, Poller, TufPlatform};
use ledge_updates::source::RepositorySource;
use ledge_updates::updater::{self, UpdateBootState, Updater, UpdaterParts};
use ledge_updates::upgrade::courier::UpgradeCourier;
use tokio::sync::oneshot;

use super::notify;
use super::rekey::UnopenedUpdateStore;
use crate::config::Config;

/// The update store as read before any model is loaded.
pub struct PreparedUpdates {
    prepared: Option<UpdateBootState>,
    managed: BTreeMap<ModelName, ManagedVersion>,
    /// The handle and its other end, if a platform manages this box.
    channel: Option<(Updates, UpdaterInbox)>,
}

impl PreparedUpdates {
    /// Reads the update store, and counts this start. No fault of updates prevents the daemon from serving.
    pub fn read(config: &Config, sealer: &Sealer) -> Self {
        let folder = &config.updates.path;
        let configured = config.updates.repository.is_some();
        if !configured && !folder.is_dir() {
            return Self { prepared: None, managed: BTreeMap::new(), channel: None };
        }
        // A box that no platform manages any more keeps the releases that it has.
        let (prepared, managed) = match updater::prepare(folder, sealer, &notify::starting) {
            Ok(mut prepared) => {
                prepared.store = prepared.store.keeping_free(config.updates.min_free_mb << 20);
                let managed = std::mem::take(&mut prepared.managed);
                (Some(prepared), managed)
            }
            Err(error) => {
                tracing::error!(
                    %error,
                    "updates are off: their store cannot be opened; the releases in it serve as far as they can be read"
                );
                (None, updater::read_managed(folder))
            }
        };
        Self { prepared, managed, channel: configured.then(|| Updates::channel(servers(config))) }
    }

    /// Passes the models that updates manage to the repository.
    pub fn manage(&self, repository: &Repository) {
        repository.manage(self.managed.clone());
    }

    /// Updates for the other parts. Their store is at `folder`; one that could not be opened cannot be encrypted again.
    pub fn part(&self, folder: &Path) -> UpdatesPart {
        let store: Option<Arc<dyn Rekey>> = match &self.prepared {
            Some(prepared) => Some(Arc::new(prepared.store.clone())),
            None => folder.is_dir().then(|| Arc::new(UnopenedUpdateStore) as Arc<dyn Rekey>),
        };
        UpdatesPart { updates: self.handle(), store }
    }

    /// The handle, if a platform manages this box.
    pub fn handle(&self) -> Option<Updates> {
        self.channel.as_ref().map(|(updates, _)| updates.clone())
    }

    /// Runs updates once the models are loaded, until the shutdown, on a thread that may wait for the disk.
    pub fn spawn(
        self,
        config: &Config,
        repository: &Repository,
        environment: &PartEnvironment,
        children: ChildSettings,
    ) {
        let (Some((updates, inbox)), Some(prepared)) = (self.channel, self.prepared) else { return };
        let PartEnvironment { device, sealer, egress, audit, readiness, shutdown, .. } = environment;
        let preflight = preflight_settings(config, repository, sealer, children);
        let (config, upgrades) = (&config.updates, config.upgrades.clone());
        let Some(source) = RepositorySource::configured(config, egress) else { return };
        let platform = Platform::new(config.path.clone(), config.root_file.clone(), audit.clone(), source.clone());
        let parts = UpdaterParts {
            repository: repository.clone(),
            platform: platform.clone(),
            limits: DownloadLimits::new(config),
            preflight,
            updates: updates.clone(),
            audit: audit.clone(),
            shutdown: shutdown.clone(),
        };

        let packages = inbox.desired_packages.clone();
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

        let courier = UpgradeCourier {
            config: upgrades,
            updates_path: config.path.clone(),
            fleet: poller::fleet(device),
            platform: poller.client.platform.clone(),
            limits: DownloadLimits::new(config),
            updates: poller.updates.clone(),
            desired: packages,
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
                let courier = async {
                    tokio::select! {
                        () = courier.run() => {}
                        () = stop.requested() => {}
                    }
                };
                let _ = tokio::join!(Updater::new(prepared, parts).run(orders), poller.run(stop.clone()), courier);
            });
            // The receiver may have been dropped at the end of the grace period.
            let _ = ended.send(());
        });
        if let Err(error) = thread {
            tracing::error!(%error, "updates are off: their thread cannot be started");
            return;
        }

        let stop = shutdown.clone();
        shutdown.spawn(async move {
            // Not essential: models are served without updates, too.
            if end.await.is_err() && !stop.is_requested() {
                tracing::error!(
                    "updates have stopped because of a bug in Ledge. Models are still served. Updates continue after a \
                     restart of the daemon; report the bug with the log"
                );
            }
        });
    }
}

/// The catalogue, for callers that add models.
pub fn catalogue(
    config: &Config,
    repository: &Repository,
    authenticator: &Authenticator,
    environment: &PartEnvironment,
) -> CataloguePart {
    let limits = DownloadLimits::new(&config.updates);
    CataloguePart::new(config.catalogue.clone(), limits, repository.clone(), authenticator.clone(), environment)
}

/// The servers that the configuration names.
fn servers(config: &Config) -> Vec<HostPort> {
    let repository = match &config.updates.repository {
        Some(RepositoryAddress::Http { at, .. }) => Some(at.clone()),
        Some(RepositoryAddress::Folder(_)) | None => None,
    };
    config.egress.allow.iter().map(|allowed| allowed.host.clone()).chain(repository).collect()
}

/// The settings of the preflight of models on this box.
pub fn preflight_settings(
    config: &Config,
    repository: &Repository,
    sealer: &Sealer,
    children: ChildSettings,
) -> PreflightSettings {
    PreflightSettings {
        measure: config.runtimes.measure,
        sealer: sealer.clone(),
        ..PreflightSettings::new(repository.runtimes(), children, config.serving.default_timeout())
    }
}

/// A source for another repository than the configured one, with the same certificates.
fn source_at(
    address: &RepositoryAddress,
    config: &ledge_updates::config::UpdatesConfig,
    egress: &Egress,
) -> RepositorySource {
    let config = ledge_updates::config::UpdatesConfig { repository: Some(address.clone()), ..config.clone() };
    RepositorySource::configured(&config, egress).unwrap_or_else(|| RepositorySource::new(address, None))
}
