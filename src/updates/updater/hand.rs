//! What the updater holds in its hands for one subject: memory only, made again after a start.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::AbortHandle;
use ledge_base::backoff::{Backoff, random};
use ledge_base::names::{DeviceName, ModelVersion};
use ledge_models::repository::{Candidate, CandidateShare, LoadedModel, ObservationConfig, Observations, Observed};

use crate::package::Package;
use crate::state::{Duty, Installed, Reason, Stage, SubjectState, Trial};

/// The pauses between two attempts.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(15);

/// The first pause after an attempt that counts. There are few of them, and what was in the way, such as memory that others
/// hold, is seldom gone in seconds.
const FIRST_PAUSE_AFTER_ATTEMPT: Duration = Duration::from_mins(1);

/// What came of a job.
pub(super) enum Done {
    /// The release's signed description was read.
    Described {
        digest: String,
        package: Box<Package>,
    },
    /// It is loaded beside the live version.
    Loaded(Arc<LoadedModel>),
    Passed,
    /// It failed, and would again.
    Failed(Reason),
    /// It failed, and may not the next time. It counts.
    Interrupted(Reason),
    /// It cannot be done now, for reasons that lie elsewhere. It does not count.
    Later {
        reason: Reason,
        /// When the server wants to be asked again.
        after: Option<Duration>,
        /// Bytes that were fetched for nothing.
        wasted: u64,
    },
}

/// What is to become of a stage that sees requests.
pub(super) enum Verdict {
    Wait,
    Pass,
    Fail(Reason),
}

/// A job under way.
struct Job {
    duty: Duty,
    number: u64,
    end: Option<AbortHandle>,
    /// Whether it waits for another subject's job to end.
    waits: Arc<AtomicBool>,
}

/// The time between two attempts.
struct Pause {
    backoff: Backoff,
    until: Instant,
    reason: Reason,
}

impl Job {
    fn abort(&self) {
        if let Some(end) = &self.end {
            end.abort();
        }
    }
}

/// What is held for one subject.
#[derive(Default)]
pub(super) struct Hand {
    /// What the repository has live.
    pub serving: Option<Installed>,
    /// The new version, loaded and not live.
    pub beside: Option<Arc<LoadedModel>>,
    /// The version before, until the new one is committed.
    pub kept: Option<Arc<LoadedModel>>,
    /// Whether the repository counts the requests of the new version that is live.
    pub is_watched: bool,
    /// Which trial all this belongs to.
    of: Option<(DeviceName, ModelVersion)>,
    observations: Option<Arc<Observations>>,
    /// In which stage, and the requests that the new version had seen before.
    since: Option<(Stage, u64)>,
    /// What the repository was last told to show.
    shown: Option<(Stage, u64)>,
    job: Option<Job>,
    fetched: Arc<AtomicU64>,
    wanted: Arc<std::sync::Mutex<BTreeSet<String>>>,
    pause: Option<Pause>,
    passed: Duration,
}

impl Hand {
    /// For a subject of which the repository has `live`.
    pub fn serving(live: Option<Installed>) -> Self {
        Self { serving: live, ..Self::default() }
    }

    /// Ends the job, and gives out the models that are held.
    pub fn into_models(self) -> Vec<Arc<LoadedModel>> {
        if let Some(job) = &self.job {
            job.abort();
        }
        self.beside.into_iter().chain(self.kept).collect()
    }

    /// Bytes that came off the network since it was last asked.
    pub fn take_fetched(&self) -> u64 {
        self.fetched.swap(0, Ordering::Relaxed)
    }

    /// Where a download counts its bytes.
    pub fn fetched(&self) -> Arc<AtomicU64> {
        self.fetched.clone()
    }

    /// Where a download names the blobs that it is at.
    pub fn wanted(&self) -> Arc<std::sync::Mutex<BTreeSet<String>>> {
        self.wanted.clone()
    }

    /// The blobs that a download is at.
    pub fn wanted_blobs(&self) -> Vec<String> {
        let wanted = self.wanted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        wanted.iter().cloned().collect()
    }

    /// Adds time, and takes the whole seconds out of it. The time in which a job waits for its turn does not count.
    pub fn whole_seconds(&mut self, passed: Duration) -> u64 {
        if self.job.as_ref().is_some_and(|job| job.waits.load(Ordering::Relaxed)) {
            return 0;
        }
        self.passed += passed;
        let seconds = self.passed.as_secs();
        self.passed -= Duration::from_secs(seconds);
        seconds
    }

    /// Ends a job that is not what the state asks for.
    pub fn keep_to(&mut self, state: &SubjectState) {
        let of = state.trial.as_ref().map(|trial| (trial.plan.rollout.clone(), trial.release.version));
        if of != self.of {
            self.pause = None;
        }
        let is_other = |job: &mut Job| job.duty != state.duty() || of != self.of;
        if let Some(job) = self.job.take_if(is_other) {
            job.abort();
        }
    }

    /// Lets go of what was held for another trial than the state's. Whether there was one.
    pub fn let_go_of_stale(&mut self, state: &SubjectState) -> bool {
        let of = state.trial.as_ref().map(|trial| (trial.plan.rollout.clone(), trial.release.version));
        if of == self.of {
            return false;
        }
        let was = std::mem::replace(&mut self.of, of);
        if state.trial.is_none() && state.live() == self.serving.as_ref() {
            // Committed: nothing goes back to it at once any more.
            self.kept = None;
        }
        self.beside = None;
        self.is_watched = false;
        self.observations = None;
        self.since = None;
        self.shown = None;
        self.wanted.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
        was.is_some()
    }

    /// Whether the pause before the next attempt is over.
    pub fn is_due(&self) -> bool {
        self.pause.as_ref().is_none_or(|pause| Instant::now() >= pause.until)
    }

    /// Whether a job for `duty` should be started.
    pub fn may_start(&self, duty: Duty) -> bool {
        let loaded = duty == Duty::LoadBeside && self.beside.is_some();
        duty != Duty::Rest && self.job.is_none() && self.is_due() && !loaded
    }

    /// A job begins. `end` ends it, and `waits` says whether it waits for its turn.
    pub fn begin(&mut self, duty: Duty, number: u64, end: Option<AbortHandle>, waits: Arc<AtomicBool>) {
        self.job = Some(Job { duty, number, end, waits });
    }

    /// A job ended by itself. Whether it still counts.
    pub fn finish(&mut self, number: u64) -> bool {
        self.job.take_if(|job| job.number == number).is_some()
    }

    /// What cannot be done now is done later.
    pub fn pause(&mut self, reason: &Reason) {
        self.pause_from(FIRST_PAUSE, reason);
    }

    /// The next attempt, of which there are few, comes later.
    pub fn pause_after_attempt(&mut self, reason: &Reason) {
        self.pause_from(FIRST_PAUSE_AFTER_ATTEMPT, reason);
    }

    fn pause_from(&mut self, first: Duration, reason: &Reason) {
        let mut backoff = self.pause.take().map_or_else(|| Backoff::new(first, LONGEST_PAUSE), |pause| pause.backoff);
        let pause = backoff.pause(random());
        tracing::debug!(%reason, retry_in_s = pause.as_secs(), "the next attempt waits");
        self.pause = Some(Pause { backoff, until: Instant::now() + pause, reason: reason.clone() });
    }

    /// The next attempt is made now. The one after it waits as long as it would have.
    pub fn end_pause(&mut self) {
        if let Some(pause) = &mut self.pause {
            pause.until = Instant::now();
        }
    }

    /// An attempt went well.
    pub fn went_well(&mut self) {
        self.pause = None;
    }

    /// Why the last attempt failed, when it did.
    pub fn error(&self) -> Option<&Reason> {
        self.pause.as_ref().map(|pause| &pause.reason)
    }

    /// What is counted of the requests that the trial sees; made when it is first needed.
    fn watch(&mut self, trial: &Trial) -> Arc<Observations> {
        let package = trial.package.as_ref();
        let config = || ObservationConfig {
            reference_output: package.and_then(|package| Some(package.reference.as_ref()?.output.clone())),
            tolerance: package.and_then(|package| package.tolerance).unwrap_or(0.01),
        };
        self.observations.get_or_insert_with(|| Arc::new(Observations::new(config()))).clone()
    }

    /// The same for a state, if it has a trial.
    pub fn observations(&mut self, state: &SubjectState) -> Option<Arc<Observations>> {
        state.trial.as_ref().map(|trial| self.watch(trial))
    }

    /// Where the requests of a live version on trial are counted, unless they are counted already.
    pub fn watch_again(&mut self, trial: &Trial) -> Option<Arc<Observations>> {
        let counted = std::mem::replace(&mut self.is_watched, true);
        (!counted).then(|| self.watch(trial))
    }

    /// Requests that the new version has seen in this stage, and all that was seen of the trial.
    pub fn seen(&mut self, trial: &Trial) -> (u64, Observed) {
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

    /// What the repository is to show of the new version, when that is something else than before.
    #[expect(clippy::option_option, reason = "no change, or a change to nothing")]
    pub fn candidate(&mut self, state: &SubjectState) -> Option<Option<Candidate>> {
        let trial = state.trial.as_ref().filter(|trial| !trial.held);
        let share = trial.and_then(|trial| match trial.stage {
            Stage::Shadow => Some((trial.stage, CandidateShare::Shadow(trial.plan.shadow.share))),
            Stage::Canary => Some((trial.stage, CandidateShare::Canary(trial.plan.canary.share))),
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
        if trial.is_some_and(|trial| trial.stage == Stage::Active) {
            // It went live, which took it away as a candidate. Taking it away once more would end the watch of the soak.
            return None;
        }
        let shown = trial.zip(share).zip(self.beside.clone());
        Some(shown.map(|((trial, (_, share)), model)| Candidate { model, share, observations: self.watch(trial) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Allow, Gate, Plan, Step, Wish};
    use crate::state::Event;
    use crate::subject::Kind;

    fn on_trial(allow: Allow, reached: Stage) -> SubjectState {
        let plan = Plan {
            rollout: "r2".parse().unwrap(),
            target: "models/wine/2/model.onnx".parse().unwrap(),
            shadow: Step::SHADOW,
            canary: Step { share: 0.5, ..Step::CANARY },
            soak: Step::SOAK,
            gate: Gate::default(),
            max_attempts: 5,
            byte_budget: None,
            allow_downgrade: false,
        };
        let wanted = |allow| {
            let wish = Wish { desired: Some((plan.clone(), allow)), ..Wish::default() };
            Event::Wanted { wish, has_own: true }
        };
        let mut state = SubjectState::default().after(wanted(Allow::Everything), Kind::Model);
        while state.trial.as_ref().unwrap().stage != reached {
            state = state.after(Event::Passed, Kind::Model);
        }
        state.after(wanted(allow), Kind::Model)
    }

    #[test]
    fn the_time_in_which_a_job_waits_for_its_turn_does_not_count() {
        let (mut hand, waits) = (Hand::default(), Arc::new(AtomicBool::new(true)));
        hand.begin(Duty::Try, 1, None, waits.clone());
        assert_eq!(hand.whole_seconds(Duration::from_hours(2)), 0);
        waits.store(false, Ordering::Relaxed);
        assert_eq!(hand.whole_seconds(Duration::from_millis(1_500)), 1);
        assert_eq!(hand.whole_seconds(Duration::from_millis(500)), 1);
    }

    #[test]
    fn attempts_are_minutes_apart() {
        let reason = Reason::new(crate::state::Cause::Memory, "none is left");
        let left = |hand: &Hand| hand.pause.as_ref().unwrap().until.saturating_duration_since(Instant::now());
        let mut hand = Hand::default();
        let pauses: Vec<Duration> = (0..4).map(|_| (hand.pause_after_attempt(&reason), left(&hand)).1).collect();
        assert!(pauses.first().is_some_and(|first| *first > Duration::from_secs(29)), "{pauses:?}");
        // The drawn halves included, five attempts spread over several minutes.
        assert!(pauses.iter().sum::<Duration>() > Duration::from_mins(7), "{pauses:?}");
        // Somebody at this box wants it tried now.
        assert!(!hand.is_due());
        hand.end_pause();
        assert!(hand.is_due() && hand.error() == Some(&reason));
        let mut hand = Hand::default();
        hand.pause(&reason);
        assert!(left(&hand) <= FIRST_PAUSE);
    }

    #[test]
    fn a_version_that_goes_live_as_a_candidate_stays_watched() {
        let mut hand = Hand::default();
        for reached in [Stage::Shadow, Stage::Canary] {
            assert!(hand.candidate(&on_trial(Allow::Everything, reached)).is_some());
            // The end of a candidate ends every watch, that of the soak included.
            assert!(hand.candidate(&on_trial(Allow::Everything, Stage::Active)).is_none());
        }
        assert!(hand.candidate(&on_trial(Allow::Everything, Stage::Canary)).is_some());
        let held = hand.candidate(&on_trial(Allow::Nothing, Stage::Canary));
        assert!(held.is_some_and(|shown| shown.is_none()), "a candidate that is held sees no requests");
    }
}
