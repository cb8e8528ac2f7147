//! Observations of a new version and of the previous one: counts, times, and agreement.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use ledge_base::tensor::Tensor;

use super::recent_inputs::{RecentInputs, SampleInput};
use super::trial_mark::{TrialMark, TrialWorkGuard};

/// The most classes that are counted; classes beyond are ignored, to bound the memory.
const CLASSES_MAX: usize = 1 << 16;

/// The longest time that is measured exactly, in microseconds: ten minutes.
const RUN_TIME_US_MAX: u64 = 600_000_000;

/// Answers with finite values from which a version counts as one that gives no others.
pub const FINITE_ANSWERS_MIN: u64 = 20;

/// Settings of the comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservationConfig {
    /// The output of which the best class is counted, and compared instead of its numbers.
    pub reference_output: Option<String>,
    /// Largest difference of numbers that agree, relative to the larger of 1 and the number.
    pub tolerance: f64,
}

/// One of the two versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComparedVersion {
    Candidate,
    Incumbent,
}

/// A snapshot of the observations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObservationSnapshot {
    pub candidate: VersionCounts,
    pub incumbent: VersionCounts,
    /// Mirrored requests on which both agreed.
    pub agreed: u64,
    /// Mirrored requests on which they disagreed.
    pub disagreed: u64,
    /// Count of each class as the best one in the candidate's reference output; empty without one.
    pub classes: Vec<u64>,
    /// Requests that should have been repeated on the other version and were not: too many were in progress, or the
    /// machine had no time. Those in progress when the candidate is removed are not counted.
    pub skipped: u64,
}

/// Counts of one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VersionCounts {
    /// Requests that it answered or failed. Those that no version could answer are left out.
    pub requests: u64,
    pub errors: u64,
    /// Of the errors, the answers with values that are not finite although those of the other version are. For the
    /// previous version, all answers with values that are not finite.
    pub non_finite: u64,
    /// Of the errors, those that ended the process of the version.
    pub crashes: u64,
    /// The 95th percentile of the CPU time of a run where it is known, and of its time otherwise; preparation included
    /// and the queue left out: the wait of a request depends on other requests, and a candidate gets fewer. `None`
    /// before the first.
    pub p95_us: Option<u64>,
}

/// Counters for both sides.
///
/// One lock, held for some additions; requests of models without an update do not come here.
#[derive(Debug)]
pub struct Observations {
    config: ObservationConfig,
    /// Set while the first run of the candidate is under way.
    mark: Option<Arc<TrialMark>>,
    counted: Mutex<ObservationCounts>,
}

#[derive(Debug)]
struct ObservationCounts {
    candidate: ComparedVersionCounts,
    incumbent: ComparedVersionCounts,
    agreed: u64,
    disagreed: u64,
    classes: Vec<u64>,
    skipped: u64,
    recent: RecentInputs,
}

#[derive(Debug)]
struct ComparedVersionCounts {
    requests: u64,
    errors: u64,
    non_finite: u64,
    crashes: u64,
    times: Option<Histogram<u64>>,
}

impl Observations {
    /// No observations yet. `mark` is set while the first run of the candidate is under way.
    pub fn new(config: ObservationConfig, mark: Option<Arc<TrialMark>>) -> Self {
        let counts = || ComparedVersionCounts {
            requests: 0,
            errors: 0,
            non_finite: 0,
            crashes: 0,
            times: Histogram::new_with_bounds(1, RUN_TIME_US_MAX, 2).ok(),
        };
        let counted = ObservationCounts {
            candidate: counts(),
            incumbent: counts(),
            agreed: 0,
            disagreed: 0,
            classes: Vec::new(),
            skipped: 0,
            recent: RecentInputs::default(),
        };
        Self { config, mark, counted: Mutex::new(counted) }
    }

    /// The settings of the comparison.
    pub fn config(&self) -> &ObservationConfig {
        &self.config
    }

    /// Begins a run of the candidate, which ends when the result is dropped.
    pub fn begin_run(&self) -> Option<TrialWorkGuard> {
        self.mark.as_ref()?.run()
    }

    fn end_run(&self, role: ComparedVersion) {
        if let (ComparedVersion::Candidate, Some(mark)) = (role, &self.mark) {
            mark.has_run();
        }
    }

    /// Counts an answer; `time` is `None` for one from the cache, which took no run.
    pub fn answered(&self, role: ComparedVersion, time: Option<Duration>) {
        self.end_run(role);
        let counted = &mut *self.lock();
        let counts = counted.of(role);
        counts.requests += 1;
        if let (Some(time), Some(times)) = (time, &mut counts.times) {
            times.saturating_record(u64::try_from(time.as_micros()).unwrap_or(RUN_TIME_US_MAX).max(1));
        }
    }

    /// Counts a request that the version failed.
    pub fn failed(&self, role: ComparedVersion) {
        self.end_run(role);
        let counted = &mut *self.lock();
        let counts = counted.of(role);
        counts.requests += 1;
        counts.errors += 1;
    }

    /// Counts a request that ended the process of the version.
    pub fn crashed(&self, role: ComparedVersion) {
        self.failed(role);
        self.lock().of(role).crashes += 1;
    }

    /// Counts an answer with values that are not finite: of the candidate a failure, because the other version's are
    /// finite.
    pub fn answered_not_finite(&self, role: ComparedVersion, time: Option<Duration>) {
        match role {
            ComparedVersion::Candidate => self.failed(role),
            ComparedVersion::Incumbent => self.answered(role, time),
        }
        self.lock().of(role).non_finite += 1;
    }

    /// True when the previous version answered many requests, and each with finite values.
    pub fn incumbent_is_finite(&self) -> bool {
        let incumbent = &self.lock().incumbent;
        incumbent.requests - incumbent.errors >= FINITE_ANSWERS_MIN && incumbent.non_finite == 0
    }

    /// Counts a mirrored request on which both versions gave an answer.
    pub fn compared(&self, agree: bool) {
        let counted = &mut *self.lock();
        *if agree { &mut counted.agreed } else { &mut counted.disagreed } += 1;
    }

    /// Counts the best classes of the candidate's reference output.
    pub fn classes(&self, best: impl IntoIterator<Item = usize>) {
        let classes = &mut self.lock().classes;
        for class in best.into_iter().filter(|&class| class < CLASSES_MAX) {
            if class >= classes.len() {
                classes.resize(class + 1, 0);
            }
            if let Some(count) = classes.get_mut(class) {
                *count += 1;
            }
        }
    }

    /// Counts a request that should have been repeated on the other version and was not.
    pub fn skipped(&self) {
        self.lock().skipped += 1;
    }

    /// Remembers an input that a caller sent, for measurements.
    pub fn keep_input(&self, inputs: &[Tensor]) {
        self.lock().recent.keep(inputs);
    }

    /// The last inputs of callers.
    pub fn recent_inputs(&self) -> Vec<SampleInput> {
        self.lock().recent.all()
    }

    /// A snapshot of the observations.
    pub fn snapshot(&self) -> ObservationSnapshot {
        let counted = &*self.lock();
        ObservationSnapshot {
            candidate: counted.candidate.side(),
            incumbent: counted.incumbent.side(),
            agreed: counted.agreed,
            disagreed: counted.disagreed,
            classes: counted.classes.clone(),
            skipped: counted.skipped,
        }
    }

    fn lock(&self) -> MutexGuard<'_, ObservationCounts> {
        // Counters that a panic left behind are still counters.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObservationCounts {
    fn of(&mut self, role: ComparedVersion) -> &mut ComparedVersionCounts {
        match role {
            ComparedVersion::Candidate => &mut self.candidate,
            ComparedVersion::Incumbent => &mut self.incumbent,
        }
    }
}

impl ComparedVersionCounts {
    fn side(&self) -> VersionCounts {
        let times = self.times.as_ref().filter(|times| !times.is_empty());
        VersionCounts {
            requests: self.requests,
            errors: self.errors,
            non_finite: self.non_finite,
            crashes: self.crashes,
            p95_us: times.map(|times| times.value_at_quantile(0.95)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observations() -> Observations {
        Observations::new(ObservationConfig { reference_output: None, tolerance: 0.01 }, None)
    }

    #[test]
    fn each_side_has_its_own_figures() {
        let observations = observations();
        for ms in 1..=100 {
            observations.answered(ComparedVersion::Incumbent, Some(Duration::from_millis(ms)));
        }
        observations.answered(ComparedVersion::Candidate, None);
        observations.failed(ComparedVersion::Candidate);
        let ObservationSnapshot { candidate, incumbent, .. } = observations.snapshot();
        assert_eq!(candidate, VersionCounts { requests: 2, errors: 1, ..VersionCounts::default() });
        assert_eq!((incumbent.requests, incumbent.errors), (100, 0));
        let p95 = incumbent.p95_us.unwrap();
        assert!((94_000..97_000).contains(&p95), "{p95}");
    }

    #[test]
    fn a_crash_and_an_answer_that_is_not_finite_are_failures_of_the_candidate() {
        let observations = observations();
        observations.crashed(ComparedVersion::Candidate);
        observations.answered_not_finite(ComparedVersion::Candidate, Some(Duration::from_millis(1)));
        assert!(!observations.incumbent_is_finite());
        for _ in 0..FINITE_ANSWERS_MIN {
            observations.answered(ComparedVersion::Incumbent, None);
        }
        assert!(observations.incumbent_is_finite());
        observations.answered_not_finite(ComparedVersion::Incumbent, None);
        assert!(!observations.incumbent_is_finite());
        let ObservationSnapshot { candidate, incumbent, .. } = observations.snapshot();
        assert_eq!((candidate.requests, candidate.errors, candidate.crashes, candidate.non_finite), (2, 2, 1, 1));
        assert_eq!((incumbent.requests, incumbent.errors, incumbent.non_finite), (FINITE_ANSWERS_MIN + 1, 0, 1));
    }

    #[test]
    fn classes_grow_with_what_is_seen_and_not_without_end() {
        let observations = observations();
        observations.classes([2, 0, 2, usize::MAX]);
        assert_eq!(observations.snapshot().classes, [1, 0, 2]);
    }

    #[test]
    fn a_time_beyond_all_bounds_is_the_longest() {
        let observations = observations();
        observations.answered(ComparedVersion::Candidate, Some(Duration::MAX));
        observations.answered(ComparedVersion::Candidate, Some(Duration::ZERO));
        assert!(observations.snapshot().candidate.p95_us.unwrap() >= RUN_TIME_US_MAX);
    }
}
