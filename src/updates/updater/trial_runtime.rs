//! State of one subject that is held in memory only, and made again after a start: its job, its pauses, its models.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::AbortHandle;
use ledge_base::backoff::{Backoff, random};
use ledge_base::names::{DeviceName, ModelVersion};
use ledge_models::repository::trial_mark::TrialMark;
use ledge_models::repository::{
    Candidate, CandidateShare, LoadedModel, ObservationConfig, ObservationSnapshot, Observations,
};

use super::paces::PaceMeasurements;
use crate::state::{InstalledRelease, ReleaseTrial, RollbackReason, RolloutPhase, SubjectState, UpdateAction};

/// Bounds of the pause between two attempts at a job.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_mins(15);

/// First pause after an attempt that counts. Attempts are few, and an obstacle such as memory that others use is seldom
/// gone in seconds.
const FIRST_PAUSE_AFTER_ATTEMPT: Duration = Duration::from_mins(1);

/// The judgement on a stage that sees requests.
pub(super) enum StageVerdict {
    Wait,
    Pass,
    Fail(RollbackReason),
    /// It seems to be slow: its pace is to be measured.
    Measure,
}

/// A job under way.
struct RunningUpdateJob {
    next_action: UpdateAction,
    number: u64,
    end: Option<AbortHandle>,
    /// Set while it waits for the job of another subject to end.
    waits: Arc<AtomicBool>,
}

/// The time between two attempts.
struct RetryPause {
    backoff: Backoff,
    until: Instant,
    reason: RollbackReason,
}

impl RunningUpdateJob {
    fn abort(&self) {
        if let Some(end) = &self.end {
            end.abort();
        }
    }
}

/// The state in memory of one subject.
#[derive(Default)]
pub(super) struct TrialRuntime {
    /// The release that the repository has live.
    pub serving: Option<InstalledRelease>,
    /// The new version, loaded next to the live one.
    pub loaded: Option<Arc<LoadedModel>>,
    /// The previous version, until the new one is committed.
    pub previous: Option<Arc<LoadedModel>>,
    /// Set when the repository counts the requests of the new version that is live.
    pub is_watched: bool,
    /// The trial that all this belongs to.
    of: Option<(DeviceName, ModelVersion)>,
    observations: Option<Arc<Observations>>,
    /// The paces that were measured while it sees requests.
    pub paces: PaceMeasurements,
    /// The mark of the loads and the first run of any trial.
    mark: Option<Arc<TrialMark>>,
    /// The current stage, and the requests that the new version had seen before it.
    since: Option<(RolloutPhase, u64)>,
    /// The candidate that the repository last got: its stage, and the bits of its share.
    shown: Option<(RolloutPhase, u64)>,
    job: Option<RunningUpdateJob>,
    fetched: Arc<AtomicU64>,
    wanted: Arc<std::sync::Mutex<BTreeSet<String>>>,
    pause: Option<RetryPause>,
    passed: Duration,
}

impl TrialRuntime {
    /// Makes the state of a subject of which the repository has `live`.
    pub fn serving(live: Option<InstalledRelease>) -> Self {
        Self { serving: live, ..Self::default() }
    }

    /// Ends the job, and returns the models that are held.
    pub fn into_models(self) -> Vec<Arc<LoadedModel>> {
        if let Some(job) = &self.job {
            job.abort();
        }
        self.loaded.into_iter().chain(self.previous).collect()
    }

    /// Returns the bytes fetched since the last call.
    pub fn take_fetched(&self) -> u64 {
        self.fetched.swap(0, Ordering::Relaxed)
    }

    /// Returns the counter of a download's bytes.
    pub fn fetched(&self) -> Arc<AtomicU64> {
        self.fetched.clone()
    }

    /// Returns the set in which a download names its blobs.
    pub fn wanted(&self) -> Arc<std::sync::Mutex<BTreeSet<String>>> {
        self.wanted.clone()
    }

    /// Returns the blobs of the download under way.
    pub fn wanted_blobs(&self) -> Vec<String> {
        let wanted = self.wanted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        wanted.iter().cloned().collect()
    }

    /// Adds time, and takes whole seconds out of it. Time in which a job waits for a permit does not count.
    pub fn whole_seconds(&mut self, passed: Duration) -> u64 {
        if self.job.as_ref().is_some_and(|job| job.waits.load(Ordering::Relaxed)) {
            return 0;
        }
        self.passed += passed;
        let seconds = self.passed.as_secs();
        self.passed -= Duration::from_secs(seconds);
        seconds
    }

    /// Ends a job that the state no longer asks for.
    pub fn abort_outdated_job(&mut self, state: &SubjectState) {
        let of = state.trial.as_ref().map(|trial| (trial.plan.rollout.clone(), trial.release.version));
        if of != self.of {
            self.pause = None;
        }
        let is_other = |job: &mut RunningUpdateJob| job.next_action != state.next_action() || of != self.of;
        if let Some(job) = self.job.take_if(is_other) {
            job.abort();
        }
    }

    /// Drops everything that was held for another trial than the state's. Returns whether there was one.
    pub fn drop_stale(&mut self, state: &SubjectState) -> bool {
        let of = state.trial.as_ref().map(|trial| (trial.plan.rollout.clone(), trial.release.version));
        if of == self.of {
            return false;
        }
        let was = std::mem::replace(&mut self.of, of);
        if state.trial.is_none() && state.live() == self.serving.as_ref() {
            // Committed: nothing falls back to it at once any more.
            self.previous = None;
        }
        self.loaded = None;
        self.is_watched = false;
        self.observations = None;
        self.paces = PaceMeasurements::default();
        if let Some(mark) = &self.mark {
            mark.forget_runs();
        }
        self.since = None;
        self.shown = None;
        self.wanted.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
        was.is_some()
    }

    /// Returns true if the pause before the next attempt is over.
    pub fn is_due(&self) -> bool {
        self.pause.as_ref().is_none_or(|pause| Instant::now() >= pause.until)
    }

    /// Returns true if a job for `next_action` should be started.
    pub fn may_start(&self, next_action: UpdateAction) -> bool {
        let loaded = next_action == UpdateAction::LoadCandidate && self.loaded.is_some();
        next_action != UpdateAction::Rest && self.job.is_none() && self.is_due() && !loaded
    }

    /// Notes that a job begins. `end` ends it, and `waits` is set while it waits for a permit.
    pub fn begin(&mut self, next_action: UpdateAction, number: u64, end: Option<AbortHandle>, waits: Arc<AtomicBool>) {
        self.job = Some(RunningUpdateJob { next_action, number, end, waits });
    }

    /// Notes that a job ended by itself. Returns whether its result still counts.
    pub fn finish(&mut self, number: u64) -> bool {
        self.job.take_if(|job| job.number == number).is_some()
    }

    /// Delays the next attempt.
    pub fn pause(&mut self, reason: &RollbackReason) {
        self.pause_from(FIRST_PAUSE, reason);
    }

    /// Delays the next attempt after one that counted.
    pub fn pause_after_attempt(&mut self, reason: &RollbackReason) {
        self.pause_from(FIRST_PAUSE_AFTER_ATTEMPT, reason);
    }

    fn pause_from(&mut self, first: Duration, reason: &RollbackReason) {
        let mut backoff = self.pause.take().map_or_else(|| Backoff::new(first, PAUSE_MAX), |pause| pause.backoff);
        let pause = backoff.pause(random());
        tracing::debug!(name: "update.retry_planned", %reason, retry_in_s = pause.as_secs(), "the next attempt waits");
        self.pause = Some(RetryPause { backoff, until: Instant::now() + pause, reason: reason.clone() });
    }

    /// Makes the next attempt due now. The pause after it keeps its length.
    pub fn end_pause(&mut self) {
        if let Some(pause) = &mut self.pause {
            pause.until = Instant::now();
        }
    }

    /// Forgets the pause: an attempt succeeded.
    pub fn clear_pause(&mut self) {
        self.pause = None;
    }

    /// Returns the reason of the last failed attempt, until another succeeds.
    pub fn error(&self) -> Option<&RollbackReason> {
        self.pause.as_ref().map(|pause| &pause.reason)
    }

    /// Returns the mark of the trial; `open` gives it the first time.
    pub fn mark(&mut self, open: impl FnOnce() -> Arc<TrialMark>) -> Arc<TrialMark> {
        self.mark.get_or_insert_with(open).clone()
    }

    /// Returns the counts of the requests that the trial sees; made when first needed.
    fn watch(&mut self, trial: &ReleaseTrial) -> Arc<Observations> {
        let package = trial.package.as_ref();
        let config = || ObservationConfig {
            reference_output: package.and_then(|package| Some(package.reference.as_ref()?.output.clone())),
            tolerance: package.and_then(|package| package.tolerance).unwrap_or(0.01),
        };
        self.observations.get_or_insert_with(|| Arc::new(Observations::new(config(), self.mark.clone()))).clone()
    }

    /// Returns the counts of the state's trial, if it has one.
    pub fn observations(&mut self, state: &SubjectState) -> Option<Arc<Observations>> {
        state.trial.as_ref().map(|trial| self.watch(trial))
    }

    /// Returns the counts for a live version on trial, unless its requests are counted already.
    pub fn watch_again(&mut self, trial: &ReleaseTrial) -> Option<Arc<Observations>> {
        let counted = std::mem::replace(&mut self.is_watched, true);
        (!counted).then(|| self.watch(trial))
    }

    /// Returns the requests that the new version has seen in this stage, and all counts of the trial.
    pub fn seen(&mut self, trial: &ReleaseTrial) -> (u64, ObservationSnapshot) {
        let stage = trial.stage;
        let observed = self.watch(trial).snapshot();
        let all = observed.candidate.requests;
        let before = match self.since {
            Some((of, before)) if of == stage => before,
            _ => {
                self.since = Some((stage, all));
                all
            }
        };
        (all - before.min(all), observed)
    }

    /// Returns the candidate that the repository should have, when it differs from the last one.
    #[expect(clippy::option_option, reason = "no change, or a change to nothing")]
    pub fn candidate(&mut self, state: &SubjectState) -> Option<Option<Candidate>> {
        let trial = state.trial.as_ref().filter(|trial| !trial.held);
        let share = trial.and_then(|trial| match trial.stage {
            RolloutPhase::Shadow => Some((trial.stage, CandidateShare::Shadow(trial.plan.shadow.share))),
            RolloutPhase::Canary => Some((trial.stage, CandidateShare::Canary(trial.plan.canary.share))),
            _ => None,
        });
        let wanted = share.as_ref().map(|(stage, share)| {
            let (CandidateShare::Shadow(part) | CandidateShare::Canary(part)) = share;
            (*stage, part.to_bits())
        });
        if wanted == self.shown {
            return None;
        }
        self.shown = wanted;
        if trial.is_some_and(|trial| trial.stage == RolloutPhase::Active) {
            // It went live, which removed it as a candidate. Removing it again would end the watch of the soak.
            return None;
        }
        let shown = trial.zip(share).zip(self.loaded.clone());
        Some(shown.map(|((trial, (_, share)), model)| Candidate { model, share, observations: self.watch(trial) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::ArtifactKind;
    use crate::plan::{DesiredState, RolloutAllowance, RolloutGate, RolloutPlan, StagePlan};
    use crate::state::UpdateEvent;

    fn on_trial(allow: RolloutAllowance, reached: RolloutPhase) -> SubjectState {
        let plan = RolloutPlan {
            rollout: "r2".parse().unwrap(),
            target: "models/wine/2/model.onnx".parse().unwrap(),
            shadow: StagePlan::SHADOW,
            canary: StagePlan { share: 0.5, ..StagePlan::CANARY },
            soak: StagePlan::SOAK,
            gate: RolloutGate::default(),
            max_attempts: 5,
            byte_budget: None,
            allow_downgrade: false,
        };
        let wanted = |allow| {
            let desired_state = DesiredState { desired: Some((plan.clone(), allow)), ..DesiredState::default() };
            UpdateEvent::Wanted { desired_state, has_own: true }
        };
        let mut state = SubjectState::default().after(wanted(RolloutAllowance::Everything), ArtifactKind::Model);
        while state.trial.as_ref().unwrap().stage != reached {
            state = state.after(UpdateEvent::Passed, ArtifactKind::Model);
        }
        state.after(wanted(allow), ArtifactKind::Model)
    }

    #[test]
    fn the_time_in_which_a_job_waits_for_its_turn_does_not_count() {
        let (mut trial_runtime, waits) = (TrialRuntime::default(), Arc::new(AtomicBool::new(true)));
        trial_runtime.begin(UpdateAction::Preflight, 1, None, waits.clone());
        assert_eq!(trial_runtime.whole_seconds(Duration::from_hours(2)), 0);
        waits.store(false, Ordering::Relaxed);
        assert_eq!(trial_runtime.whole_seconds(Duration::from_millis(1_500)), 1);
        assert_eq!(trial_runtime.whole_seconds(Duration::from_millis(500)), 1);
    }

    #[test]
    fn attempts_are_minutes_apart() {
        let reason = RollbackReason::new(crate::state::RollbackCause::Memory, "none is left");
        let left = |trial_runtime: &TrialRuntime| {
            trial_runtime.pause.as_ref().unwrap().until.saturating_duration_since(Instant::now())
        };
        let mut trial_runtime = TrialRuntime::default();
        let pauses: Vec<Duration> =
            (0..4).map(|_| (trial_runtime.pause_after_attempt(&reason), left(&trial_runtime)).1).collect();
        assert!(pauses.first().is_some_and(|first| *first > Duration::from_secs(29)), "{pauses:?}");
        // With the random halves included, five attempts spread over several minutes.
        assert!(pauses.iter().sum::<Duration>() > Duration::from_mins(7), "{pauses:?}");
        // The administrator of this box wants it tried now.
        assert!(!trial_runtime.is_due());
        trial_runtime.end_pause();
        assert!(trial_runtime.is_due() && trial_runtime.error() == Some(&reason));
        let mut trial_runtime = TrialRuntime::default();
        trial_runtime.pause(&reason);
        assert!(left(&trial_runtime) <= FIRST_PAUSE);
    }

    #[test]
    fn a_version_that_goes_live_as_a_candidate_stays_watched() {
        let mut trial_runtime = TrialRuntime::default();
        for reached in [RolloutPhase::Shadow, RolloutPhase::Canary] {
            assert!(trial_runtime.candidate(&on_trial(RolloutAllowance::Everything, reached)).is_some());
            // The end of a candidate ends every watch, that of the soak included.
            assert!(trial_runtime.candidate(&on_trial(RolloutAllowance::Everything, RolloutPhase::Active)).is_none());
        }
        assert!(trial_runtime.candidate(&on_trial(RolloutAllowance::Everything, RolloutPhase::Canary)).is_some());
        let held = trial_runtime.candidate(&on_trial(RolloutAllowance::Nothing, RolloutPhase::Canary));
        assert!(held.is_some_and(|shown| shown.is_none()), "a candidate that is held sees no requests");
    }
}
