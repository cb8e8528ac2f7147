//! The daemon's task of upgrades: it copies the repository and the packages that a rollout names for root's service, and
//! reports the state of that service.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ledge_base::names::{DeviceName, ModelVersion};
use ledge_base::{clock, durable};
use tokio::sync::watch;

use super::config::UpgradesConfig;
use super::mirror::{self, MirrorError};
use super::order::{OrderError, OrderedPackage, UpgradeOrder};
use super::package::InstalledPackage;
use super::record::{UpgradeOutcome, UpgradePhase, UpgradeRecord};
use crate::Updates;
use crate::artifact::Artifact;
use crate::download::{self, DownloadError, DownloadLimits};
use crate::plan::{DesiredStates, RolloutAllowance};
use crate::platform::Platform;
use crate::state::RolloutPhase;
use crate::status_report::{IDLE_STAGE, LastReport, ROLLED_BACK, SubjectReport, TrialReport, WaitingRolloutReport};
use crate::store::UpdateStore;
use crate::trust::{TrustError, TufTarget};

/// The folder in the update store. Root's service reads it.
pub const MIRROR_FOLDER: &str = "upgrade";

/// The file whose change starts root's service.
pub const ORDER_FILE: &str = "order";

/// The pause between two looks at the state of root's service.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// The pause before root's service is asked again, or a failed copy is tried again.
const ASK_INTERVAL: Duration = Duration::from_mins(5);

/// The report of a box whose owner does not let the platform upgrade Ledge.
const OFF: &str = "upgrades.enable is false on this box";

/// The task of the daemon.
pub struct UpgradeCourier {
    pub config: UpgradesConfig,
    /// The update store.
    pub updates_path: PathBuf,
    /// The fleet of this box.
    pub fleet: DeviceName,
    pub platform: Platform,
    pub limits: DownloadLimits,
    pub updates: Updates,
    pub desired: watch::Receiver<Option<DesiredStates>>,
}

/// The reason why an order did not reach root's service.
#[derive(Debug, thiserror::Error)]
enum CourierError {
    #[error(transparent)]
    Order(#[from] OrderError),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    #[error(transparent)]
    Download(#[from] DownloadError),
    #[error(
        "no signed release has the installed package {0}, so there would be no way back: sign it first \
             (`ledge-platform upgrade add`)"
    )]
    NoWayBack(String),
    #[error("{0}")]
    Disk(String),
}

impl UpgradeCourier {
    /// Runs until it is dropped.
    pub async fn run(mut self) {
        let mut asked: Option<Instant> = None;
        let mut last_error: Option<String> = None;
        loop {
            // It may have changed while a package was copied, or at the end of a pause.
            if self.desired.has_changed().unwrap_or(false) {
                asked = None;
            }
            let desired = self.desired.borrow_and_update().clone().unwrap_or_default();
            // Written again after each upgrade.
            let installed = match InstalledPackage::read(&self.config.path) {
                Ok(installed) => installed,
                Err(reason) => {
                    self.report_without_package(&desired, &reason);
                    if self.pause().await.is_break() {
                        return;
                    }
                    continue;
                }
            };
            let record = UpgradeRecord::load(&self.config.path).map_err(|error| error.to_string());
            let is_due = asked.is_none_or(|asked| asked.elapsed() >= ASK_INTERVAL);
            if let Ok(record) = &record
                && let Some((plan, allow)) = wanted(&desired, &installed, record)
                && self.config.enable
                && allow >= RolloutAllowance::Prepare
                && is_due
            {
                asked = Some(Instant::now());
                let carried = self.carry(&desired, &installed).await;
                last_error = carried.err().map(|error| error.to_string());
                if let Some(reason) = &last_error {
                    tracing::warn!(rollout = %plan, reason, "the package of a rollout is not ready to be installed");
                }
            }
            let error = last_error.clone().or_else(|| record.as_ref().err().cloned());
            let error = if self.config.enable { error } else { Some(OFF.to_owned()) };
            self.report(&installed, &record.unwrap_or_default(), &desired, error);
            match self.pause().await {
                ControlFlow::Continue(true) => asked = None,
                ControlFlow::Continue(false) => {}
                ControlFlow::Break(()) => return,
            }
        }
    }

    /// Waits for the next look; true if the platform desires something else meanwhile.
    async fn pause(&mut self) -> ControlFlow<(), bool> {
        tokio::select! {
            () = tokio::time::sleep(LOOK_INTERVAL) => ControlFlow::Continue(false),
            changed = self.desired.changed() => match changed {
                Ok(()) => ControlFlow::Continue(true),
                Err(_) => ControlFlow::Break(()),
            },
        }
    }

    /// Reports a rollout of packages on a box where root's service never ran.
    fn report_without_package(&self, desired: &DesiredStates, reason: &str) {
        let report = desired
            .keys()
            .next()
            .map(|subject| subject_report(subject, &UpgradeRecord::default(), None, Some(reason.to_owned())));
        self.updates.update_status(|status| status.package = report);
    }

    /// Copies what root's service needs; with permission to install, it asks that service to look.
    async fn carry(&self, desired: &DesiredStates, installed: &InstalledPackage) -> Result<(), CourierError> {
        let source = self.platform.source();
        let order = UpgradeOrder::find(&mut *self.platform.trust().await?, &source, desired, installed).await?;
        let Some(order) = order else { return Ok(()) };
        let Some(previous) = &order.previous else {
            return Err(CourierError::NoWayBack(installed.version.clone()));
        };
        let folder = self.updates_path.join(MIRROR_FOLDER);
        let (at, store) = (folder.clone(), folder.join("store"));
        let store = tokio::task::spawn_blocking(move || {
            durable::create_folder(&at).map_err(|error| error.to_string())?;
            UpdateStore::open(&store).map_err(|error| error.to_string())
        });
        let store = store.await.map_err(|error| CourierError::Disk(error.to_string()))?.map_err(CourierError::Disk)?;
        for OrderedPackage { target, .. } in [&order.package, previous] {
            let count = |bytes| {
                self.updates.update_status(|status| status.fetched_bytes += bytes);
                ControlFlow::Continue(())
            };
            download::fetch(&store, &source, target, &self.limits, count).await.map_err(|failure| failure.error)?;
            link(&blob(&store, target)?, &folder.join("targets").join(&target.location))?;
        }
        if order.allow < RolloutAllowance::Everything {
            return Ok(());
        }
        mirror::copy_metadata(&source, &folder).await?;
        let manifest = {
            let path = format!("fleet/{}/rollout.json", self.fleet);
            self.platform.trust().await?.resolve(&source, &path).await?
        };
        download::fetch(&store, &source, &manifest, &self.limits, |_| ControlFlow::Continue(()))
            .await
            .map_err(|failure| failure.error)?;
        link(&blob(&store, &manifest)?, &folder.join("targets").join(&manifest.location))?;
        let kept = [&order.package.target, &previous.target, &manifest];
        mirror::remove_others(
            &folder.join("targets"),
            &kept.map(|target| folder.join("targets").join(&target.location)).into(),
        )?;
        let wanted = kept.map(|target| target.sha256.clone()).into();
        store.collect(&BTreeMap::new(), &wanted).map_err(|error| CourierError::Disk(error.to_string()))?;
        let order_text = format!("{} {}\n", order.plan.rollout, order.plan.target);
        durable::replace(&folder.join(ORDER_FILE), order_text.as_bytes())
            .map_err(|error| CourierError::Disk(format!("{}: {error}", folder.display())))?;
        tracing::info!(rollout = %order.plan.rollout, version = order.package.version, "a package is ready to be installed");
        Ok(())
    }

    fn report(
        &self,
        installed: &InstalledPackage,
        record: &UpgradeRecord,
        desired: &DesiredStates,
        error: Option<String>,
    ) {
        let subject = installed.subject();
        let waiting = self.updates.status().check.waiting.get(&subject).cloned();
        let report =
            subject_report(&subject, record, waiting.map(|waiting| WaitingRolloutReport::from(&waiting)), error);
        let is_known = desired.contains_key(&subject) || *record != UpgradeRecord::default();
        self.updates.update_status(|status| status.package = is_known.then_some(report));
    }
}

/// The name of the rollout to carry, and what it allows. Nothing while root's service is at work, for the installed
/// release, and for one that was taken back here.
fn wanted(
    desired: &DesiredStates,
    installed: &InstalledPackage,
    record: &UpgradeRecord,
) -> Option<(String, RolloutAllowance)> {
    let (plan, allow) = desired.get(&installed.subject())?.desired.as_ref()?;
    let version = plan.target.version;
    let is_open = record.phase == UpgradePhase::Idle && record.release != Some(version);
    (is_open && !record.refused.contains(&version)).then(|| (plan.rollout.to_string(), *allow))
}

/// The state of root's service as the report of a subject.
fn subject_report(
    subject: &Artifact,
    record: &UpgradeRecord,
    waiting: Option<WaitingRolloutReport>,
    error: Option<String>,
) -> SubjectReport {
    let (stage, job, since_ms) = match &record.phase {
        UpgradePhase::Idle => (IDLE_STAGE, None, 0),
        UpgradePhase::Installing { job, .. } => (RolloutPhase::Staged.name(), Some(job), 0),
        UpgradePhase::Watching { job, since_ms, .. } => (RolloutPhase::Active.name(), Some(job), *since_ms),
        UpgradePhase::Returning { job, .. } => (RolloutPhase::Active.name(), Some(job), 0),
    };
    let in_stage_ms = if since_ms == 0 { 0 } else { clock::unix_millis().saturating_sub(since_ms) };
    let version = job.map_or(record.release, |job| Some(job.release));
    SubjectReport {
        subject: subject.to_string(),
        version: version.map(ModelVersion::get),
        digest: None,
        previous: job.and_then(|job| job.previous_release).map(ModelVersion::get),
        pinned: false,
        stage: stage.to_owned(),
        trial: job.map(|job| TrialReport {
            rollout: job.rollout.to_string(),
            version: job.release.get(),
            since_s: in_stage_ms / 1000,
            held: None,
            fault: None,
        }),
        waiting,
        error,
        last: record.last.as_ref().map(|UpgradeOutcome { rollout, release, fault }| LastReport {
            rollout: rollout.to_string(),
            version: release.get(),
            result: if fault.is_some() { ROLLED_BACK } else { "committed" }.to_owned(),
            stage: fault.as_ref().map(|_| RolloutPhase::Active.name().to_owned()),
            cause: fault.as_ref().map(|(fault, _)| fault.name().to_owned()),
            detail: fault.as_ref().map(|(_, detail)| detail.clone()),
        }),
    }
}

fn blob(store: &UpdateStore, target: &TufTarget) -> Result<PathBuf, CourierError> {
    store.blob(&target.sha256).map_err(|error| CourierError::Disk(error.to_string()))
}

/// Gives a file of the store a second name.
fn link(file: &Path, path: &Path) -> Result<(), CourierError> {
    let linked =
        path.parent().map_or(Ok(()), durable::create_folder).and_then(|()| match std::fs::hard_link(file, path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        });
    linked.map_err(|error| CourierError::Disk(format!("{}: {error}", path.display())))
}
