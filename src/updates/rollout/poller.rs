//! Checks the platform on a schedule, and passes its desired states to the updater. One task.
//!
//! Between checks it decides again: waves and windows open by time, with or without a network. Before any manifest was
//! accepted it sends no desired states, which is not the same as an empty list of desired states. A failed check
//! changes nothing but the reported status.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::time::{Duration, Instant};

use ledge_base::clock;
use ledge_base::names::DeviceName;
use ledge_base::principal::Principal;
use ledge_identity::device::DeviceIdentity;
use ledge_service::shutdown::Shutdown;
use tokio::sync::{mpsc, oneshot};

use super::check::{self, RolloutCheckError, SignedManifest};
use super::decide::{ManifestAuthority, RolloutDecision, decide};
use super::manifest_file::ManifestFile;
use super::schedule::CheckSchedule;
use crate::Updates;
use crate::config::RepositoryAddress;
use crate::handle::PollerCommand;
use crate::platform::Platform;
use crate::source::RepositorySource;
use crate::status::{CheckStatus, RoleStatus};

/// Default interval at which desired states are decided again.
pub const DECIDE_INTERVAL: Duration = Duration::from_secs(30);

/// The fleet of a box that names none.
const DEFAULT_FLEET: &str = "default";

/// Asks the platform on a schedule, and passes its desired states on.
pub struct Poller<A> {
    pub client: A,
    /// The repository, as configured, for the status.
    pub repository: String,
    /// The mean time between checks.
    pub interval: Duration,
    pub decide: Duration,
    pub device: DeviceIdentity,
    /// Receives the desired states of the platform.
    pub updates: Updates,
    /// Requests for a check now.
    pub checks: mpsc::Receiver<PollerCommand>,
    /// Returns a random number from 0 to 1.
    pub random: fn() -> f64,
}

/// The platform, as the poller uses it.
pub trait PlatformClient: Send + Sync + Clone + 'static {
    /// Checks the configured repository, or another one.
    fn check(
        &self,
        from: Option<&RepositoryAddress>,
        known: Option<&SignedManifest>,
    ) -> impl Future<Output = Result<SignedManifest, RolloutCheckError>> + Send;

    /// Returns the trusted roles, and the earliest possible time, in milliseconds since the Unix epoch.
    fn trusted(&self) -> impl Future<Output = (BTreeMap<String, RoleStatus>, u64)> + Send;

    /// Forgets the trusted metadata; the reason in words when that fails.
    fn reset(&self, principal: Principal) -> impl Future<Output = Result<(), String>> + Send;

    /// Returns the time of the system, in milliseconds since the Unix epoch.
    fn system_ms(&self) -> u64;

    /// Returns the manifest that was accepted before the start.
    fn stored_manifest(&self) -> Option<SignedManifest>;

    /// Stores a manifest for the next start.
    fn store_manifest(&self, accepted: &SignedManifest);
}

/// The platform behind TUF metadata.
#[derive(Clone)]
pub struct TufPlatform<C> {
    /// Its trusted metadata.
    pub platform: Platform,
    /// The configured repository.
    pub source: RepositorySource,
    /// Makes the source of another repository.
    pub connect: C,
    /// The fleet of this box.
    pub fleet: DeviceName,
    /// The file that stores the manifest.
    file: ManifestFile,
}

impl<C: Fn(&RepositoryAddress) -> RepositorySource + Clone + Send + Sync + 'static> TufPlatform<C> {
    /// Makes the platform at `source`, for a box that stores the manifest in `file`.
    pub fn new(
        platform: Platform,
        source: RepositorySource,
        connect: C,
        device: &DeviceIdentity,
        file: ManifestFile,
    ) -> Self {
        Self { platform, source, connect, fleet: fleet(device), file }
    }
}

/// Returns the fleet of a box.
pub fn fleet(device: &DeviceIdentity) -> DeviceName {
    // The name of the default fleet is valid.
    device.fleet.clone().or_else(|| DEFAULT_FLEET.parse().ok()).unwrap_or_else(|| device.id.clone())
}

impl<C: Fn(&RepositoryAddress) -> RepositorySource + Clone + Send + Sync + 'static> PlatformClient for TufPlatform<C> {
    async fn check(
        &self,
        from: Option<&RepositoryAddress>,
        known: Option<&SignedManifest>,
    ) -> Result<SignedManifest, RolloutCheckError> {
        let source = from.map_or_else(|| self.source.clone(), |address| (self.connect)(address));
        let accepted = check::check(&self.platform, &source, &self.fleet, known, self.system_ms()).await?;
        // The repository of the last successful check has the files, too: a USB stick until the network is back.
        self.platform.set_source(source);
        Ok(accepted)
    }

    async fn trusted(&self) -> (BTreeMap<String, RoleStatus>, u64) {
        match self.platform.trust().await {
            Ok(trust) => (trust.roles(), trust.now_ms(0)),
            Err(_) => (BTreeMap::new(), clock::built_ms()),
        }
    }

    async fn reset(&self, principal: Principal) -> Result<(), String> {
        self.platform.reset(principal).await.map_err(|error| error.to_string())
    }

    fn system_ms(&self) -> u64 {
        clock::unix_millis()
    }

    fn stored_manifest(&self) -> Option<SignedManifest> {
        self.file.load(&self.fleet)
    }

    fn store_manifest(&self, accepted: &SignedManifest) {
        if let Err(error) = self.file.store(accepted) {
            tracing::error!(
                %error,
                "the rollout manifest cannot be stored; after a restart this box waits for the platform"
            );
        }
    }
}

/// A check under way.
struct RunningCheck {
    from: Option<RepositoryAddress>,
    answer: Option<oneshot::Sender<Result<(), String>>>,
    work: Pin<Box<dyn Future<Output = Result<SignedManifest, RolloutCheckError>> + Send>>,
}

/// The state of the poller between checks.
struct PollerState {
    accepted: Option<SignedManifest>,
    status: CheckStatus,
    /// The earliest possible time, in milliseconds since the Unix epoch.
    floor_ms: u64,
    /// The kind of the last logged failure.
    logged: Option<String>,
}

impl<A: PlatformClient> Poller<A> {
    /// Polls until the shutdown is requested.
    pub async fn run(mut self, shutdown: Shutdown) -> Result<(), Infallible> {
        let mut schedule = CheckSchedule::new(self.interval, now());
        let status = CheckStatus { repository: self.repository.clone(), ..CheckStatus::default() };
        let mut known = PollerState { accepted: self.client.stored_manifest(), status, floor_ms: 0, logged: None };
        (known.status.roles, known.floor_ms) = self.client.trusted().await;
        self.decide(&mut known);

        let mut decide = tokio::time::interval(self.decide);
        decide.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut running: Option<RunningCheck> = None;
        loop {
            if running.is_none() && schedule.next() <= now() {
                schedule.begin(now());
                running = Some(self.begin(&known, None, None));
            }

            let idle = running.is_none();
            let check_ended = async {
                match &mut running {
                    Some(running) => (&mut running.work).await,
                    None => std::future::pending().await,
                }
            };

            tokio::select! {
                found = check_ended => {
                    if let Some(RunningCheck { from, answer, .. }) = running.take() {
                        self.ended(found, from.is_some(), answer, &mut known, &mut schedule).await;
                    }
                }
                _ = decide.tick() => self.decide(&mut known),
                () = tokio::time::sleep_until(schedule.next().into()), if idle => {}
                request = self.checks.recv(), if idle => match request {
                    Some(PollerCommand::Hint) => schedule.hint(now()),
                    Some(PollerCommand::Now { from, answer }) => {
                        schedule.begin(now());
                        running = Some(self.begin(&known, from, Some(answer)));
                    }
                    Some(PollerCommand::Reset { principal, answer }) => {
                        self.reset(principal, answer, &mut known).await;
                        schedule.hint(now());
                    }
                    // The handle in this struct keeps the queue open.
                    None => {}
                },
                () = shutdown.requested() => return Ok(()),
            }
        }
    }

    /// Forgets the trusted metadata. Its last error is reported until the next check has another result.
    async fn reset(&self, principal: Principal, answer: oneshot::Sender<Result<(), String>>, known: &mut PollerState) {
        let result = self.client.reset(principal).await;
        match &result {
            Ok(()) => {
                tracing::warn!(
                    "the trusted metadata of the platform was reset; the next check begins with the root file"
                );
            }
            Err(reason) => tracing::error!(reason, "the trusted metadata of the platform cannot be reset"),
        }
        (known.status.roles, known.floor_ms) = self.client.trusted().await;
        self.decide(known);
        let _ = answer.send(result);
    }

    fn begin(
        &self,
        known: &PollerState,
        from: Option<RepositoryAddress>,
        answer: Option<oneshot::Sender<Result<(), String>>>,
    ) -> RunningCheck {
        let (client, accepted, at) = (self.client.clone(), known.accepted.clone(), from.clone());
        let work = Box::pin(async move { client.check(at.as_ref(), accepted.as_ref()).await });
        RunningCheck { from, answer, work }
    }

    /// Handles the end of a check.
    async fn ended(
        &self,
        found: Result<SignedManifest, RolloutCheckError>,
        elsewhere: bool,
        answer: Option<oneshot::Sender<Result<(), String>>>,
        known: &mut PollerState,
        schedule: &mut CheckSchedule,
    ) {
        (known.status.roles, known.floor_ms) = self.client.trusted().await;
        let random = (self.random)();

        let result = match found {
            Ok(accepted) => {
                known.status.error = None;
                known.status.checked_ms = Some(self.now_ms(known));
                if known.logged.take().is_some() {
                    tracing::info!("the platform can be reached again");
                }
                if known.accepted.as_ref() != Some(&accepted) {
                    let (published, sha256) = (clock::rfc3339(accepted.manifest.published_ms), &accepted.sha256);
                    tracing::info!(
                        name: "rollout.accepted",
                        published,
                        sha256,
                        rollouts = accepted.manifest.rollouts.len(),
                        "rollout manifest accepted"
                    );
                    self.client.store_manifest(&accepted);
                    known.accepted = Some(accepted);
                }
                schedule.succeeded(now(), random);
                Ok(())
            }
            Err(error) => {
                let reason = error.to_string();
                // The failure of another repository says nothing of the platform.
                if !elsewhere {
                    known.status.error = Some(reason.clone());
                    schedule.failed(now(), error.retry_after(), random);
                    // Warn once for each kind: a network may be away for a month.
                    let kind = error.kind();
                    if known.logged.as_ref() == Some(&kind) {
                        tracing::debug!(reason, "the check of the platform failed");
                    } else {
                        tracing::warn!(reason, "the check of the platform failed; running versions go on");
                        known.logged = Some(kind);
                    }
                }
                Err(reason)
            }
        };
        self.decide(known);

        if let Some(answer) = answer {
            if result.is_ok() {
                // The administrator of this box asked, and may have removed the obstacle.
                self.updates.retry_now();
            }
            let _ = answer.send(result);
        }
    }

    /// Sends the desired states of the platform for now, by the last accepted manifest.
    fn decide(&self, known: &mut PollerState) {
        if let Some(accepted) = &known.accepted {
            let now_ms = self.now_ms(known);
            let authority = match accepted.expires_ms {
                expires_ms if expires_ms <= now_ms => ManifestAuthority::Expired(expires_ms),
                _ => ManifestAuthority::Valid,
            };
            let RolloutDecision { desired_states, waiting } =
                decide(&accepted.manifest, &self.device, now_ms, authority);
            known.status.published_ms = Some(accepted.manifest.published_ms);
            known.status.waiting = waiting;
            self.updates.set_desired_states(desired_states);
        }
        self.updates.set_check(known.status.clone());
    }

    fn now_ms(&self, known: &PollerState) -> u64 {
        self.client.system_ms().max(known.floor_ms)
    }
}

/// Returns the current instant of the timers.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests;
