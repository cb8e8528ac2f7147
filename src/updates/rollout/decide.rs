//! The decision which rollouts of a manifest apply to this box now. Pure: the identity of the box and the time are
//! passed in.

use std::collections::{BTreeMap, BTreeSet};

use ledge_base::clock;
use ledge_base::names::{DeviceName, ModelVersion};
use ledge_identity::device::DeviceIdentity;

use super::manifest::{LedgeVersion, Rollout, RolloutManifest};
use super::waves::{reached_after_s, seed};
use super::window::WindowOpening;
use crate::artifact::Artifact;
use crate::plan::{DesiredState, DesiredStates, RolloutAllowance, RolloutPlan};
use crate::status::WaitingRollout;

/// The desired states for this box now, and the rollouts that have to wait.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RolloutDecision {
    pub desired_states: DesiredStates,
    /// Rollouts that have to wait, with the reason.
    pub waiting: BTreeMap<Artifact, WaitingRollout>,
}

/// The validity of the platform's signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManifestAuthority {
    Valid,
    /// The metadata that signs the manifest expired then, in milliseconds since the Unix epoch. The platform may have
    /// stopped a rollout since, so nothing begins and nothing goes further. Running versions go on.
    Expired(u64),
}

/// Returns the desired states for `device` at `now_ms`, by a valid manifest.
pub fn desired_states(manifest: &RolloutManifest, device: &DeviceIdentity, now_ms: u64) -> DesiredStates {
    decide(manifest, device, now_ms, ManifestAuthority::Valid).desired_states
}

/// Decides the desired states for `device` at `now_ms`, and the rollouts that have to wait.
pub fn decide(
    manifest: &RolloutManifest,
    device: &DeviceIdentity,
    now_ms: u64,
    authority: ManifestAuthority,
) -> RolloutDecision {
    let own = LedgeVersion::parse(env!("CARGO_PKG_VERSION"));
    let device_now = DeviceNow { device, now_ms, authority, own };
    let mut decision = RolloutDecision::default();
    for subject in manifest.subjects() {
        let mut desired_state = DesiredState {
            desired: None,
            revoked: manifest.revoked.get(subject).cloned().unwrap_or_default(),
            minimum: manifest.minimum.get(subject).copied(),
            supersedes: BTreeSet::new(),
        };
        let (desired, waiting) = device_now.desired(manifest, subject, &desired_state);
        if let Some((plan, _)) = &desired {
            desired_state.supersedes = device_now.before(manifest, plan);
        }
        desired_state.desired = desired;
        if let Some(waiting) = waiting {
            decision.waiting.insert(subject.clone(), waiting);
        }
        decision.desired_states.insert(subject.clone(), desired_state);
    }
    decision
}

/// A box at a moment in time.
struct DeviceNow<'a> {
    device: &'a DeviceIdentity,
    now_ms: u64,
    authority: ManifestAuthority,
    own: Option<LedgeVersion>,
}

impl DeviceNow<'_> {
    /// Returns the rollout that counts for one subject, how far it may go, and the rollout that waits.
    fn desired(
        &self,
        manifest: &RolloutManifest,
        subject: &Artifact,
        desired_state: &DesiredState,
    ) -> (Option<(RolloutPlan, RolloutAllowance)>, Option<WaitingRollout>) {
        let pin = self.pin(manifest, subject);

        let meant: Vec<&Rollout> = manifest
            .rollouts
            .iter()
            .filter(|rollout| {
                let target = &rollout.plan.target;
                target.subject == *subject && !desired_state.revokes(target.version) && self.is_meant(rollout, pin)
            })
            .collect();

        let takes = |rollout: &Rollout| rollout.requires_ledge.is_none_or(|least| self.own >= Some(least));
        let reached = |rollout: &Rollout| self.reached_ms(rollout, pin).is_some_and(|moment| moment <= self.now_ms);
        // The last rollout that has reached its time; a box that is too old for it continues with the previous one. If
        // no rollout has reached its time, the last one may be a trial that the platform postponed: it pauses, and is
        // not withdrawn.
        let Some(chosen) = (meant.iter().rev().find(|rollout| takes(rollout) && reached(rollout)))
            .or_else(|| meant.iter().rev().find(|rollout| reached(rollout)))
            .or_else(|| meant.last())
        else {
            return (None, None);
        };

        let (allow, held) = self.allowed(chosen, pin);
        let mut plan = chosen.plan.clone();
        // A pin names a box and a version, which may be below or above the running one.
        plan.allow_downgrade |= pin.is_some();

        let too_old = meant.iter().rev().find(|rollout| reached(rollout)).filter(|rollout| !takes(rollout));
        let waiting = match too_old {
            Some(rollout) => Some((*rollout, self.too_old(rollout).unwrap_or_default())),
            None => held.map(|reason| (*chosen, reason)),
        };
        let waiting = waiting.map(|(rollout, reason)| WaitingRollout {
            rollout: rollout.plan.rollout.clone(),
            version: rollout.plan.target.version,
            reason,
        });
        (Some((plan, allow)), waiting)
    }

    /// Returns the rollouts of the same subject for this box that stand before that of `plan`.
    fn before(&self, manifest: &RolloutManifest, plan: &RolloutPlan) -> BTreeSet<DeviceName> {
        let pin = self.pin(manifest, &plan.target.subject);
        let earlier = manifest.rollouts.iter().take_while(|rollout| rollout.plan.rollout != plan.rollout);
        let same =
            earlier.filter(|rollout| rollout.plan.target.subject == plan.target.subject && self.is_meant(rollout, pin));
        same.map(|rollout| rollout.plan.rollout.clone()).collect()
    }

    fn pin(&self, manifest: &RolloutManifest, subject: &Artifact) -> Option<ModelVersion> {
        manifest.pins.get(&self.device.id).and_then(|pins| pins.get(subject)).copied()
    }

    /// Returns true if a rollout is for this box at all. A pin names the box, and the version that is for it.
    fn is_meant(&self, rollout: &Rollout, pin: Option<ModelVersion>) -> bool {
        if let Some(version) = pin {
            return rollout.plan.target.version == version;
        }
        let Rollout { groups, devices, .. } = rollout;
        let by_name = devices.as_ref().is_some_and(|devices| devices.contains(&self.device.id));
        let group = self.device.group.as_ref();
        let by_group = groups.as_ref().is_some_and(|groups| group.is_some_and(|group| groups.contains(group)));
        by_name || by_group || (groups.is_none() && devices.is_none())
    }

    /// Returns the time at which a rollout reaches this box. Waves do not apply to a pinned box.
    fn reached_ms(&self, rollout: &Rollout, pin: Option<ModelVersion>) -> Option<u64> {
        let after_s = match pin {
            Some(_) => 0,
            None => reached_after_s(&rollout.waves, seed(&self.device.id, &rollout.plan.rollout))?,
        };
        Some(rollout.start_ms.saturating_add(after_s.saturating_mul(1000)))
    }

    fn too_old(&self, rollout: &Rollout) -> Option<String> {
        let least = rollout.requires_ledge.filter(|least| self.own < Some(*least))?;
        Some(format!("needs Ledge {least}, this is {}: update the daemon", env!("CARGO_PKG_VERSION")))
    }

    /// Returns how far a rollout may go now, and the condition that it waits for if that is not to its end.
    fn allowed(&self, rollout: &Rollout, pin: Option<ModelVersion>) -> (RolloutAllowance, Option<String>) {
        let nothing = |reason: String| (RolloutAllowance::Nothing, Some(reason));
        if let ManifestAuthority::Expired(expired_ms) = self.authority {
            let since = clock::rfc3339(expired_ms);
            return nothing(format!(
                "the fleet's metadata expired at {since}: waiting for fresh metadata from the platform"
            ));
        }

        if rollout.paused {
            return nothing("paused by the platform".to_owned());
        }

        match self.reached_ms(rollout, pin) {
            None => return nothing("no wave reaches this box yet".to_owned()),
            Some(moment) if moment > self.now_ms => {
                return nothing(format!("its wave comes at {}", clock::rfc3339(moment)));
            }
            Some(_) => {}
        }

        if let Some(reason) = self.too_old(rollout) {
            return nothing(reason);
        }

        let Some(window) = &rollout.window else { return (RolloutAllowance::Everything, None) };
        match window.at(self.now_ms) {
            Ok(WindowOpening::Open { .. }) => (RolloutAllowance::Everything, None),
            Ok(WindowOpening::Closed { opens_ms }) => {
                let opens = opens_ms.map_or_else(
                    || "it does not open within a week".to_owned(),
                    |opens_ms| format!("it opens {}", clock::rfc3339(opens_ms)),
                );
                (RolloutAllowance::Prepare, Some(format!("outside the maintenance window ({window}); {opens}")))
            }
            Err(unknown) => (RolloutAllowance::Prepare, Some(unknown.to_string())),
        }
    }
}

#[cfg(test)]
mod tests;
