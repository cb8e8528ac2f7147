use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use super::*;
use crate::handle::{PollerCommandError, UpdaterInbox};
use crate::plan::{DesiredStates, RolloutAllowance};
use crate::sha256::sha256_hex;

const START_MS: u64 = 1_795_132_800_000;
const HOUR_MS: u64 = 3_600_000;

/// A platform that answers as set.
#[derive(Clone, Default)]
struct Fake {
    answer: Arc<Mutex<Option<SignedManifest>>>,
    kept: Arc<Mutex<Option<SignedManifest>>>,
    checks: watch::Sender<u64>,
    elsewhere: Arc<AtomicU64>,
    resets: Arc<AtomicU64>,
    system_ms: Arc<AtomicU64>,
    floor_ms: u64,
    hangs: bool,
}

impl PlatformClient for Fake {
    async fn check(
        &self,
        from: Option<&RepositoryAddress>,
        _: Option<&SignedManifest>,
    ) -> Result<SignedManifest, RolloutCheckError> {
        self.checks.send_modify(|checks| *checks += 1);
        if self.hangs {
            std::future::pending::<()>().await;
        }
        if from.is_some() {
            self.elsewhere.fetch_add(1, Ordering::Relaxed);
        }
        self.answer.lock().unwrap().clone().ok_or(RolloutCheckError::Slow)
    }

    async fn trusted(&self) -> (BTreeMap<String, RoleStatus>, u64) {
        (BTreeMap::new(), self.floor_ms)
    }

    async fn reset(&self, _: Principal) -> Result<(), String> {
        self.resets.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn system_ms(&self) -> u64 {
        self.system_ms.load(Ordering::Relaxed)
    }

    fn stored_manifest(&self) -> Option<SignedManifest> {
        self.kept.lock().unwrap().clone()
    }

    fn store_manifest(&self, accepted: &SignedManifest) {
        *self.kept.lock().unwrap() = Some(accepted.clone());
    }
}

impl Fake {
    fn says(&self, accepted: Option<SignedManifest>) {
        *self.answer.lock().unwrap() = accepted;
    }

    fn it_is(&self, ms: u64) {
        self.system_ms.store(ms, Ordering::Relaxed);
    }
}

/// A manifest that reaches every box an hour after its start, with a signature for a week.
fn accepted() -> SignedManifest {
    let text = r#"{"schema": 1, "fleet": "default", "published": "2026-11-20T00:00:00Z", "rollouts": [
        {"id": "r-1", "target": "models/m/2/model.onnx", "start": "2026-11-20T00:00:00Z",
         "waves": [{"seed_below": 2048, "after_s": 3600}]}]}"#;
    check::read(text.into(), &sha256_hex(text.as_bytes()), &"default".parse().unwrap(), START_MS + 168 * HOUR_MS)
        .unwrap()
}

struct RunningPoller {
    updates: Updates,
    desired_states: watch::Receiver<Option<DesiredStates>>,
    checks: watch::Receiver<u64>,
    retries: Arc<tokio::sync::Notify>,
    shutdown: Shutdown,
    _inbox: mpsc::Receiver<crate::handle::QueuedAdministratorCommand>,
}

/// Starts a poller that checks and decides without much waiting.
fn start(fake: &Fake) -> RunningPoller {
    let often = Duration::from_millis(20);
    start_with(fake, often, often)
}

fn start_with(fake: &Fake, interval: Duration, decide: Duration) -> RunningPoller {
    let (updates, UpdaterInbox { desired_states, orders, checks, retries, desired_packages: _ }) =
        Updates::channel(Vec::new());
    let shutdown = Shutdown::default();
    let poller = Poller {
        client: fake.clone(),
        repository: "file:///nowhere".into(),
        interval,
        decide,
        device: DeviceIdentity { id: "box-1".parse().unwrap(), group: None, fleet: None },
        updates: updates.clone(),
        checks,
        random: || 0.5,
    };
    shutdown.spawn_essential("poller", poller.run(shutdown.clone()));
    RunningPoller { updates, desired_states, checks: fake.checks.subscribe(), retries, shutdown, _inbox: orders }
}

impl RunningPoller {
    fn allowed(&self) -> Option<RolloutAllowance> {
        let desired_states = self.desired_states.borrow();
        Some(desired_states.as_ref()?.get(&"models/m".parse().unwrap())?.desired.as_ref()?.1)
    }

    async fn status_when(&self, what: impl Fn(&CheckStatus) -> bool) -> CheckStatus {
        let mut changes = self.updates.watch();
        loop {
            let status = self.updates.status().check;
            if what(&status) {
                return status;
            }
            changes.changed().await.unwrap();
        }
    }
}

#[tokio::test]
async fn waves_open_by_time_without_another_word_from_the_platform() {
    let fake = Fake::default();
    fake.it_is(START_MS);
    fake.says(Some(accepted()));
    let mut running = start(&fake);
    running.status_when(|status| status.checked_ms == Some(START_MS)).await;
    assert_eq!(running.allowed(), Some(RolloutAllowance::Nothing));
    assert_eq!(fake.stored_manifest(), Some(accepted()));
    fake.says(None);
    fake.it_is(START_MS + HOUR_MS);
    running.desired_states.wait_for(|_| true).await.unwrap();
    running.desired_states.mark_unchanged();
    running.desired_states.changed().await.unwrap();
    assert_eq!(running.allowed(), Some(RolloutAllowance::Everything));
    let status = running.status_when(|status| status.error.is_some()).await;
    assert_eq!(
        running.allowed(),
        Some(RolloutAllowance::Everything),
        "a platform that is not heard takes nothing back"
    );
    assert_eq!((status.checked_ms, status.waiting.len()), (Some(START_MS), 0));
    assert!(running.shutdown.drain(Duration::from_secs(5)).await);
}

#[tokio::test]
async fn a_box_that_starts_without_a_network_goes_on_by_what_it_kept_until_that_expires() {
    let fake = Fake::default();
    fake.it_is(START_MS + 2 * HOUR_MS);
    fake.store_manifest(&accepted());
    let mut running = start(&fake);
    running.desired_states.wait_for(Option::is_some).await.unwrap();
    assert_eq!(running.allowed(), Some(RolloutAllowance::Everything));
    fake.it_is(START_MS + 168 * HOUR_MS);
    running.desired_states.mark_unchanged();
    running.desired_states.changed().await.unwrap();
    assert_eq!(running.allowed(), Some(RolloutAllowance::Nothing));
    let status = running.status_when(|status| !status.waiting.is_empty()).await;
    assert!(status.waiting.values().all(|waiting| waiting.reason.contains("expired")), "{status:?}");
    // The clock was wrong.
    fake.it_is(START_MS + 2 * HOUR_MS);
    running.desired_states.changed().await.unwrap();
    assert_eq!(running.allowed(), Some(RolloutAllowance::Everything));
}

#[tokio::test]
async fn nothing_is_wanted_before_a_manifest_was_accepted() {
    let fake = Fake::default();
    let running = start(&fake);
    running.status_when(|status| status.error.is_some()).await;
    assert_eq!(*running.desired_states.borrow(), None, "an empty state would end trials");
}

#[tokio::test]
async fn time_never_runs_behind_what_is_proven() {
    let fake = Fake { floor_ms: START_MS + HOUR_MS, ..Fake::default() };
    fake.says(Some(accepted()));
    let mut running = start(&fake);
    running.desired_states.wait_for(Option::is_some).await.unwrap();
    assert_eq!(running.allowed(), Some(RolloutAllowance::Everything), "although the clock of the system is at 1970");
}

#[tokio::test]
async fn an_order_is_a_check_at_once_and_what_failed_is_tried_again() {
    let fake = Fake::default();
    let mut running = start(&fake);
    running.checks.wait_for(|checks| *checks >= 3).await.unwrap();
    fake.says(Some(accepted()));
    running.status_when(|status| status.error.is_none() && status.checked_ms.is_some()).await;

    let day = Duration::from_hours(24);
    let mut running = start_with(&fake, day, day);
    let first = *running.checks.borrow_and_update();
    running.status_when(|status| status.checked_ms.is_some()).await;
    assert_eq!(running.updates.check(None).await, Ok(()));
    assert!(*running.checks.borrow() > first);
    // A check by hand ends the pauses of updates.
    assert!(futures_util::FutureExt::now_or_never(running.retries.notified()).is_some());
}

#[tokio::test]
async fn a_hint_is_a_check_although_the_next_one_is_a_day_away() {
    let fake = Fake::default();
    fake.says(Some(accepted()));
    let day = Duration::from_hours(24);
    let mut running = start_with(&fake, day, day);
    running.checks.wait_for(|checks| *checks == 1).await.unwrap();
    for _ in 0..10 {
        running.updates.check_soon();
    }
    let hinted = running.checks.wait_for(|checks| *checks == 2);
    assert!(tokio::time::timeout(Duration::from_mins(1), hinted).await.is_ok());
    // A hint does not end the pauses of updates.
    let checked = running.status_when(|status| status.checked_ms.is_some());
    assert!(tokio::time::timeout(Duration::from_mins(1), checked).await.is_ok());
    assert!(futures_util::FutureExt::now_or_never(running.retries.notified()).is_none());
}

#[tokio::test]
async fn what_was_trusted_is_forgotten_and_the_platform_asked_soon() {
    let fake = Fake::default();
    fake.says(Some(accepted()));
    let day = Duration::from_hours(24);
    let mut running = start_with(&fake, day, day);
    running.status_when(|status| status.checked_ms.is_some()).await;
    assert_eq!(running.updates.reset_trust(Principal::Local).await, Ok(()));
    assert_eq!(fake.resets.load(Ordering::Relaxed), 1);
    let looked = running.checks.wait_for(|checks| *checks == 2);
    assert!(tokio::time::timeout(Duration::from_mins(1), looked).await.is_ok());
}

#[tokio::test]
async fn another_repository_is_checked_once_and_its_failure_is_not_the_platforms() {
    let fake = Fake::default();
    fake.says(Some(accepted()));
    let day = Duration::from_hours(24);
    let running = start_with(&fake, day, day);
    running.status_when(|status| status.checked_ms.is_some()).await;
    let usb = || "file:///media/usb".parse().ok();
    assert_eq!(running.updates.check(usb()).await, Ok(()));
    fake.says(None);
    let failed = running.updates.check(usb()).await;
    assert_eq!(failed, Err(PollerCommandError::Failed(RolloutCheckError::Slow.to_string())));
    assert_eq!(running.updates.status().check.error, None);
    assert_eq!(fake.elsewhere.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_check_that_hangs_delays_neither_decisions_nor_the_shutdown() {
    let fake = Fake { hangs: true, ..Fake::default() };
    fake.it_is(START_MS);
    fake.store_manifest(&accepted());
    let mut running = start(&fake);
    running.desired_states.wait_for(Option::is_some).await.unwrap();
    running.desired_states.mark_unchanged();
    fake.it_is(START_MS + HOUR_MS);
    running.desired_states.changed().await.unwrap();
    assert_eq!(running.allowed(), Some(RolloutAllowance::Everything));
    assert!(running.shutdown.drain(Duration::from_secs(5)).await);
}
