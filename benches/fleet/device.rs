//! One box: the daemon's own state, and the simulated time of its duties.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use ledge::audit::status::AuditStatus;
use ledge::identity::device::DeviceIdentity;
use ledge::rollout::decide::{ManifestAuthority, RolloutDecision, decide};
use ledge::rollout::manifest::RolloutManifest;
use ledge::telemetry::machine::MachineUsage;
use ledge::updates::artifact::{Artifact, ArtifactKind};
use ledge::updates::package::Package;
use ledge::updates::plan::StagePlan;
use ledge::updates::report::{self, AuditSnapshot, DeviceSnapshot, InventorySnapshot};
use ledge::updates::state::{InstalledRelease, RollbackCause, RollbackReason, SubjectState, UpdateAction, UpdateEvent};
use ledge::updates::status::{CheckStatus, UpdatesStatus};
use serde_json::{Value, json};

use crate::Fleet;

/// The bytes of a release.
const RELEASE_BYTES: u64 = 20_000_000;

/// The last manifest that the platform published.
pub struct Published {
    pub number: u64,
    manifest: RolloutManifest,
    /// The start times of waves. Between two of them the manifest means the same to a box.
    moments: Vec<u64>,
}

impl Published {
    pub fn new(number: u64, manifest: RolloutManifest) -> Self {
        let waves = manifest.rollouts.iter().flat_map(|rollout| {
            rollout.waves.iter().map(|wave| rollout.start_ms.saturating_add(wave.after_s.saturating_mul(1000)))
        });
        let mut moments: Vec<u64> = waves.collect();
        moments.sort_unstable();
        Self { number, manifest, moments }
    }

    /// The number of waves that have started.
    fn waves(&self, now_ms: u64) -> usize {
        self.moments.partition_point(|moment| *moment <= now_ms)
    }
}

/// A simulated box.
pub struct Device {
    identity: DeviceIdentity,
    subject: Artifact,
    state: SubjectState,
    check: CheckStatus,
    started_ms: u64,
    luck: u64,
    poll_ms: u64,
    next_poll_ms: u64,
    /// The next action in progress, with its start and its end.
    work: Option<(UpdateAction, u64, u64)>,
    /// The manifest and the number of waves that it decided by.
    seen: (u64, usize),
    /// The stage that ends the trial here, and the cause; `None` for the death of the box.
    fault: Option<(String, Option<RollbackReason>)>,
    online: bool,
}

impl Device {
    pub fn new(number: u64, fleet: &Fleet) -> Self {
        let id = format!("box-{number}").parse().unwrap();
        let mut hasher = DefaultHasher::new();
        (number, fleet.luck).hash(&mut hasher);
        let mut device = Self {
            identity: DeviceIdentity { id, group: None, fleet: None },
            subject: "models/m".parse().unwrap(),
            state: SubjectState::default(),
            check: CheckStatus::default(),
            started_ms: fleet.now_ms,
            luck: hasher.finish(),
            poll_ms: fleet.poll_s * 1000,
            next_poll_ms: fleet.now_ms,
            work: None,
            seen: (0, 0),
            fault: None,
            online: true,
        };
        device.state.committed = Some(InstalledRelease { version: 1.try_into().unwrap(), digest: "1".repeat(64) });
        device.next_poll_ms += device.between(0, device.poll_ms);
        if device.share() < fleet.broken {
            device.fault =
                Some(("downloading".to_owned(), Some(RollbackReason::new(RollbackCause::Disk, "0 bytes free"))));
        } else if device.share() < fleet.failing {
            let cause = serde_json::from_value::<RollbackCause>(fleet.cause.as_str().into()).ok();
            device.fault = Some((fleet.fails_in.clone(), cause.map(|cause| RollbackReason::new(cause, "simulated"))));
        }
        device
    }

    /// The next random number of this box (splitmix64).
    fn draw(&mut self) -> u64 {
        self.luck = self.luck.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.luck;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.draw() % (most - least).max(1)
    }

    #[expect(clippy::cast_precision_loss, reason = "53 bits are enough for a share")]
    fn share(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The time of its next event.
    pub fn next_ms(&self) -> u64 {
        if !self.online {
            return u64::MAX;
        }
        self.work.map_or(self.next_poll_ms, |(_, _, end)| end.min(self.next_poll_ms))
    }

    /// Runs its event at a moment. True if that changes its report.
    pub fn happen(&mut self, now_ms: u64, published: Option<&Published>) -> bool {
        if !self.online {
            return false;
        }
        let (before, was_online) = (self.state.clone(), self.online);
        if let Some((next_action, since, _)) = self.work.filter(|(_, _, end)| *end <= now_ms) {
            self.apply(UpdateEvent::Waited { seconds: (now_ms - since) / 1000 });
            self.finish(next_action);
        }
        if self.next_poll_ms <= now_ms {
            self.next_poll_ms = now_ms + self.between(self.poll_ms * 3 / 4, self.poll_ms * 5 / 4);
            if let Some(published) = published {
                self.poll(published, now_ms);
            }
        }
        let next_action = self.state.next_action();
        if self.work.is_none_or(|(doing, _, end)| doing != next_action || end <= now_ms) {
            self.work =
                (next_action != UpdateAction::Rest).then(|| (next_action, now_ms, now_ms + self.takes_ms(next_action)));
        }
        self.state != before || self.online != was_online
    }

    /// Lets the daemon's own code decide by the manifest. It decides again only when the result may differ.
    fn poll(&mut self, published: &Published, now_ms: u64) {
        let seen = (published.number, published.waves(now_ms));
        if seen == self.seen {
            return;
        }
        self.seen = seen;
        let RolloutDecision { desired_states, waiting } =
            decide(&published.manifest, &self.identity, now_ms, ManifestAuthority::Valid);
        (self.check.checked_ms, self.check.waiting) = (Some(now_ms), waiting);
        let desired_state = desired_states.get(&self.subject).cloned().unwrap_or_default();
        self.apply(UpdateEvent::Wanted { desired_state, has_own: false });
    }

    fn apply(&mut self, event: UpdateEvent) {
        self.state = std::mem::take(&mut self.state).after(event, ArtifactKind::Model);
    }

    /// Ends a next action, with or without success.
    fn finish(&mut self, next_action: UpdateAction) {
        if self.state.next_action() != next_action {
            return;
        }
        if next_action == UpdateAction::Download {
            self.apply(UpdateEvent::Described { digest: "2".repeat(64), package: Arc::new(Package::default()) });
            self.apply(UpdateEvent::Fetched { bytes: RELEASE_BYTES });
        }
        let stage = self.state.trial.as_ref().map(|trial| trial.stage.name());
        match self.fault.as_ref().filter(|(fails_in, _)| Some(fails_in.as_str()) == stage) {
            Some((_, Some(reason))) => self.apply(UpdateEvent::Failed(reason.clone())),
            Some((_, None)) => self.online = false,
            None => self.apply(UpdateEvent::Passed),
        }
    }

    fn takes_ms(&mut self, next_action: UpdateAction) -> u64 {
        let step = self.state.trial.as_ref().map(|trial| match next_action {
            UpdateAction::Mirror => trial.plan.shadow,
            UpdateAction::Share => trial.plan.canary,
            _ => trial.plan.soak,
        });
        let seconds = match next_action {
            UpdateAction::Rest => 0,
            UpdateAction::Download => self.between(30, 900),
            UpdateAction::Preflight => self.between(10, 60),
            UpdateAction::LoadCandidate => self.between(5, 30),
            UpdateAction::Mirror | UpdateAction::Share | UpdateAction::Soak => {
                let StagePlan { share, min_s, min_requests, max_s, .. } = step.unwrap_or(StagePlan::SOAK);
                let share = if next_action == UpdateAction::Soak { 1.0 } else { share };
                // From a request in two minutes to ten a second.
                let (low, part) = (1.0_f64 / 120.0, self.share());
                let rate = low * (10.0 / low).powf(part) * share;
                #[expect(
                    clippy::cast_precision_loss,
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "seconds"
                )]
                let needed = (min_requests as f64 / rate).ceil() as u64;
                needed.clamp(min_s, max_s.max(min_s))
            }
        };
        seconds.max(1) * 1000
    }

    /// The report at a moment: the daemon's own document, or only offline for a dead box.
    pub fn heard(&self, now_ms: u64) -> Value {
        json!({"device": self.identity.id, "online": self.online, "reported": self.online.then(|| self.reported(now_ms))})
    }

    fn reported(&self, at_ms: u64) -> String {
        let subjects = [(self.subject.clone(), self.state.clone())].into();
        let updates = UpdatesStatus { check: self.check.clone(), subjects, ..UpdatesStatus::default() };
        let snapshot = DeviceSnapshot {
            device: self.identity.clone(),
            ledge_version: env!("CARGO_PKG_VERSION"),
            started_ms: self.started_ms,
            at_ms,
            index: Vec::new(),
            origins: BTreeMap::new(),
            live: Vec::new(),
            machine: MachineUsage { cores: Vec::new(), temperatures: BTreeMap::new() },
            memory: None,
            service: None,
            updates: Some(updates),
            audit: AuditSnapshot { status: AuditStatus::default(), checkpoint: None },
            inventory: InventorySnapshot::default(),
        };
        String::from_utf8(report::document(&snapshot)).unwrap()
    }
}
