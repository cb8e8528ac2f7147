//! Asks the platform again and again, and says what it wants of this box. One task.
//!
//! Between looks it decides anew: waves and windows open by time, with or without a network. Before any manifest was
//! accepted it says nothing, which is not the same as wanting nothing. A failed look changes nothing but what is told.

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

use super::decide::{Authority, Decision, decide};
use super::kept::Kept;
use super::look::{self, Accepted, LookError};
use super::pace::Pace;
use crate::Updates;
use crate::config::RepositoryAddress;
use crate::handle::Look;
use crate::platform::Platform;
use crate::source::Source;
use crate::status::{LookStatus, RoleStatus};

/// How often it is decided anew, as a rule.
pub const DECIDE: Duration = Duration::from_secs(30);

/// The fleet of a box that names none.
const DEFAULT_FLEET: &str = "default";

/// What is asked, and who is told.
pub struct Poller<A> {
    pub asked: A,
    /// The repository, as configured: for people.
    pub repository: String,
    /// The mean time between looks.
    pub interval: Duration,
    pub decide: Duration,
    pub device: DeviceIdentity,
    /// Who is told what the platform wants.
    pub updates: Updates,
    /// Who wants a look now.
    pub looks: mpsc::Receiver<Look>,
    /// Anything from 0 to 1, another each time.
    pub random: fn() -> f64,
}

/// What a poller asks.
pub trait Ask: Send + Sync + Clone + 'static {
    /// Looks at the configured repository, or another one.
    fn look(
        &self,
        from: Option<&RepositoryAddress>,
        known: Option<&Accepted>,
    ) -> impl Future<Output = Result<Accepted, LookError>> + Send;

    /// What is trusted, role by role; and the time which it cannot be before, in milliseconds since the Unix epoch.
    fn trusted(&self) -> impl Future<Output = (BTreeMap<String, RoleStatus>, u64)> + Send;

    /// Forgets what is trusted; the reason in words when that fails.
    fn reset(&self, principal: Principal) -> impl Future<Output = Result<(), String>> + Send;

    /// The time of the system, in milliseconds since the Unix epoch.
    fn system_ms(&self) -> u64;

    /// The manifest that was accepted before the start.
    fn kept(&self) -> Option<Accepted>;

    /// Keeps a manifest for the next start.
    fn keep(&self, accepted: &Accepted);
}

/// The real platform.
#[derive(Clone)]
pub struct Asked<C> {
    /// What is trusted of it.
    pub platform: Platform,
    /// The way to the configured repository.
    pub source: Source,
    /// The way to another one.
    pub connect: C,
    /// The fleet of this box.
    pub fleet: DeviceName,
    /// Where the manifest is kept.
    kept: Kept,
}

impl<C: Fn(&RepositoryAddress) -> Source + Clone + Send + Sync + 'static> Asked<C> {
    /// The platform at `source`, for a box that keeps the manifest by `kept`.
    pub fn new(platform: Platform, source: Source, connect: C, device: &DeviceIdentity, kept: Kept) -> Self {
        Self { platform, source, connect, fleet: fleet(device), kept }
    }
}

/// The fleet of a box.
pub fn fleet(device: &DeviceIdentity) -> DeviceName {
    // The name of the default is one.
    device.fleet.clone().or_else(|| DEFAULT_FLEET.parse().ok()).unwrap_or_else(|| device.id.clone())
}

impl<C: Fn(&RepositoryAddress) -> Source + Clone + Send + Sync + 'static> Ask for Asked<C> {
    async fn look(&self, from: Option<&RepositoryAddress>, known: Option<&Accepted>) -> Result<Accepted, LookError> {
        let source = from.map_or_else(|| self.source.clone(), |address| (self.connect)(address));
        let accepted = look::look(&self.platform, &source, &self.fleet, known, self.system_ms()).await?;
        // Whoever was heard last has the files, too: a USB stick until the network is back.
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

    fn kept(&self) -> Option<Accepted> {
        self.kept.load(&self.fleet)
    }

    fn keep(&self, accepted: &Accepted) {
        if let Err(error) = self.kept.store(accepted) {
            tracing::error!(%error, "the rollout manifest cannot be kept; after a restart the platform must be heard first");
        }
    }
}

/// A look under way.
struct Looking {
    from: Option<RepositoryAddress>,
    answer: Option<oneshot::Sender<Result<(), String>>>,
    work: Pin<Box<dyn Future<Output = Result<Accepted, LookError>> + Send>>,
}

/// What is known between looks.
struct Known {
    accepted: Option<Accepted>,
    status: LookStatus,
    /// It cannot be earlier than this, in milliseconds since the Unix epoch.
    floor_ms: u64,
    /// The last failure that the log has, by its kind.
    told: Option<String>,
}

impl<A: Ask> Poller<A> {
    /// Polls until the shutdown is requested.
    pub async fn run(mut self, shutdown: Shutdown) -> Result<(), Infallible> {
        let mut pace = Pace::new(self.interval, now());
        let status = LookStatus { repository: self.repository.clone(), ..LookStatus::default() };
        let mut known = Known { accepted: self.asked.kept(), status, floor_ms: 0, told: None };
        (known.status.roles, known.floor_ms) = self.asked.trusted().await;
        self.decide(&mut known);
        let mut decide = tokio::time::interval(self.decide);
        decide.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut looking: Option<Looking> = None;
        loop {
            if looking.is_none() && pace.next() <= now() {
                pace.begin(now());
                looking = Some(self.begin(&known, None, None));
            }
            let idle = looking.is_none();
            let looks = async {
                match &mut looking {
                    Some(looking) => (&mut looking.work).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                found = looks => {
                    if let Some(Looking { from, answer, .. }) = looking.take() {
                        self.ended(found, from.is_some(), answer, &mut known, &mut pace).await;
                    }
                }
                _ = decide.tick() => self.decide(&mut known),
                () = tokio::time::sleep_until(pace.next().into()), if idle => {}
                look = self.looks.recv(), if idle => match look {
                    Some(Look::Hint) => pace.hint(now()),
                    Some(Look::Asked { from, answer }) => {
                        pace.begin(now());
                        looking = Some(self.begin(&known, from, Some(answer)));
                    }
                    Some(Look::Reset { principal, answer }) => {
                        self.reset(principal, answer, &mut known).await;
                        pace.hint(now());
                    }
                    // The handle in here keeps the queue open.
                    None => {}
                },
                () = shutdown.requested() => return Ok(()),
            }
        }
    }

    /// Forgets what is trusted. What was wrong with it is told until the next look says something else.
    async fn reset(&self, principal: Principal, answer: oneshot::Sender<Result<(), String>>, known: &mut Known) {
        let result = self.asked.reset(principal).await;
        match &result {
            Ok(()) => {
                tracing::warn!("what was trusted of the platform is forgotten; it begins anew with the root file");
            }
            Err(reason) => tracing::error!(reason, "what is trusted of the platform cannot be forgotten"),
        }
        (known.status.roles, known.floor_ms) = self.asked.trusted().await;
        self.decide(known);
        let _ = answer.send(result);
    }

    fn begin(
        &self,
        known: &Known,
        from: Option<RepositoryAddress>,
        answer: Option<oneshot::Sender<Result<(), String>>>,
    ) -> Looking {
        let (asked, accepted, at) = (self.asked.clone(), known.accepted.clone(), from.clone());
        let work = Box::pin(async move { asked.look(at.as_ref(), accepted.as_ref()).await });
        Looking { from, answer, work }
    }

    /// A look has ended.
    async fn ended(
        &self,
        found: Result<Accepted, LookError>,
        elsewhere: bool,
        answer: Option<oneshot::Sender<Result<(), String>>>,
        known: &mut Known,
        pace: &mut Pace,
    ) {
        (known.status.roles, known.floor_ms) = self.asked.trusted().await;
        let random = (self.random)();
        let result = match found {
            Ok(accepted) => {
                known.status.error = None;
                known.status.checked_ms = Some(self.now_ms(known));
                if known.told.take().is_some() {
                    tracing::info!("the platform is heard again");
                }
                if known.accepted.as_ref() != Some(&accepted) {
                    let (published, sha256) = (clock::rfc3339(accepted.manifest.published_ms), &accepted.sha256);
                    tracing::info!(
                        published,
                        sha256,
                        rollouts = accepted.manifest.rollouts.len(),
                        "rollout manifest accepted"
                    );
                    self.asked.keep(&accepted);
                    known.accepted = Some(accepted);
                }
                pace.succeeded(now(), random);
                Ok(())
            }
            Err(error) => {
                let reason = error.to_string();
                // Another repository that somebody tried once says nothing of the platform.
                if !elsewhere {
                    known.status.error = Some(reason.clone());
                    pace.failed(now(), error.retry_after(), random);
                    // Once: a network that is away for a month is no news.
                    let kind = error.kind();
                    if known.told.as_ref() == Some(&kind) {
                        tracing::debug!(reason, "the platform was not heard");
                    } else {
                        tracing::warn!(reason, "the platform was not heard; what runs goes on");
                        known.told = Some(kind);
                    }
                }
                Err(reason)
            }
        };
        self.decide(known);
        if let Some(answer) = answer {
            if result.is_ok() {
                // Somebody at this box, who may have put right what was in the way.
                self.updates.retry_now();
            }
            let _ = answer.send(result);
        }
    }

    /// Says what the platform wants now, by the manifest that was accepted last.
    fn decide(&self, known: &mut Known) {
        if let Some(accepted) = &known.accepted {
            let now_ms = self.now_ms(known);
            let authority = match accepted.expires_ms {
                expires_ms if expires_ms <= now_ms => Authority::Expired(expires_ms),
                _ => Authority::Valid,
            };
            let Decision { wishes, waiting } = decide(&accepted.manifest, &self.device, now_ms, authority);
            known.status.published_ms = Some(accepted.manifest.published_ms);
            known.status.waiting = waiting;
            self.updates.want(wishes);
        }
        self.updates.tell_look(known.status.clone());
    }

    fn now_ms(&self, known: &Known) -> u64 {
        self.asked.system_ms().max(known.floor_ms)
    }
}

/// The moment, as timers have it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests;
