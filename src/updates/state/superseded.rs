//! Rollouts that later ones replaced on this box.

use std::collections::BTreeSet;

use ledge_base::names::{DeviceName, ModelVersion};

use super::SubjectState;
use super::subject::Superseded;
use crate::plan::{DesiredState, RolloutAllowance, RolloutPlan};

/// Most superseded rollouts that are remembered, the newest: as many as two manifests may have.
const SUPERSEDED_MAX: usize = 512;

/// Most versions that are remembered to have replaced one rollout, the highest.
const REPLACING_VERSIONS_MAX: usize = 64;

impl SubjectState {
    /// Notes the rollouts that the wanted one supersedes. A rollout that must not move yet has superseded no other.
    pub(super) fn note_superseded(&mut self, desired_state: &DesiredState) {
        let Some((plan, allow)) = &desired_state.desired else { return };
        let version = plan.target.version;
        // On a pinned subject nothing is replaced.
        let may_begin = !self.pinned && *allow != RolloutAllowance::Nothing && !desired_state.revokes(version);
        if may_begin && !self.stays_superseded(plan, desired_state) {
            self.remember_superseded(&desired_state.supersedes, version);
        }
    }

    /// Notes that the rollout of version `by` replaced `rollouts`.
    pub(super) fn remember_superseded<'a>(
        &mut self,
        rollouts: impl IntoIterator<Item = &'a DeviceName>,
        by: ModelVersion,
    ) {
        for rollout in rollouts {
            let mut successes = self.committed_by.iter().chain(&self.previous_by);
            let was_committed = successes.any(|success| success == rollout);
            let known = self.superseded.iter_mut().find(|known| known.rollout == *rollout);
            if let Some(known) = known {
                known.was_committed |= was_committed;
                known.by.insert(by);
                if known.by.len() > REPLACING_VERSIONS_MAX {
                    known.by.pop_first();
                }
            } else {
                let (rollout, by) = (rollout.clone(), BTreeSet::from([by]));
                self.superseded.push(Superseded { rollout, by, was_committed });
            }
        }
        let surplus = self.superseded.len().saturating_sub(SUPERSEDED_MAX);
        self.superseded.drain(..surplus);
    }

    /// Returns true if a rollout does not begin because a version that replaced it was revoked.
    pub(super) fn stays_superseded(&self, plan: &RolloutPlan, desired_state: &DesiredState) -> bool {
        let known = self.superseded.iter().find(|superseded| superseded.rollout == plan.rollout);
        known.is_some_and(|known| !known.was_committed && known.by.iter().any(|by| desired_state.revokes(*by)))
    }
}
