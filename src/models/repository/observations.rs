//! What an update sees of a new version and of the one before it: counts, times, and whether they agree.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;

/// More classes than this are not counted.
const MAX_CLASSES: usize = 1 << 16;

/// The longest time that is told apart, in microseconds: ten minutes.
const MAX_US: u64 = 600_000_000;

/// What is compared, and how exactly.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservationConfig {
    /// The output whose best class is counted, and compared in the place of its numbers.
    pub reference_output: Option<String>,
    /// How much numbers may differ and still agree, relative to the larger of 1 and the number.
    pub tolerance: f64,
}

/// Which of the two versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Candidate,
    Incumbent,
}

/// What was seen so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observed {
    pub candidate: Side,
    pub incumbent: Side,
    /// Mirrored requests on which both agreed.
    pub agreed: u64,
    /// Mirrored requests on which they did not.
    pub disagreed: u64,
    /// How often each class came first in the candidate's reference output; empty without one.
    pub classes: Vec<u64>,
    /// Requests that the other version was to be asked and was not: too many were under way, or the machine had no time for
    /// them. Those under way when the candidate is taken away count nowhere.
    pub skipped: u64,
}

/// One version's share of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Side {
    /// Requests that it answered or failed. Those that no version could answer are left out.
    pub requests: u64,
    pub errors: u64,
    /// The 95th percentile of the time of a run, preparation included and the queue left out: how long a request waits
    /// depends on what else is asked, and a candidate is asked less. `None` before the first.
    pub p95_us: Option<u64>,
}

/// Counters for both sides.
///
/// One lock, held for some additions; requests of models without an update do not come here.
#[derive(Debug)]
pub struct Observations {
    config: ObservationConfig,
    counted: Mutex<Counted>,
}

#[derive(Debug)]
struct Counted {
    candidate: Counts,
    incumbent: Counts,
    agreed: u64,
    disagreed: u64,
    classes: Vec<u64>,
    skipped: u64,
}

#[derive(Debug)]
struct Counts {
    requests: u64,
    errors: u64,
    times: Option<Histogram<u64>>,
}

impl Observations {
    /// Nothing seen yet.
    pub fn new(config: ObservationConfig) -> Self {
        let counts = || Counts { requests: 0, errors: 0, times: Histogram::new_with_bounds(1, MAX_US, 2).ok() };
        let counted = Counted {
            candidate: counts(),
            incumbent: counts(),
            agreed: 0,
            disagreed: 0,
            classes: Vec::new(),
            skipped: 0,
        };
        Self { config, counted: Mutex::new(counted) }
    }

    /// What is compared.
    pub fn config(&self) -> &ObservationConfig {
        &self.config
    }

    /// Counts an answer; `time` is `None` for one that was kept, and took no run.
    pub fn answered(&self, role: Role, time: Option<Duration>) {
        let counted = &mut *self.lock();
        let counts = counted.of(role);
        counts.requests += 1;
        if let (Some(time), Some(times)) = (time, &mut counts.times) {
            times.saturating_record(u64::try_from(time.as_micros()).unwrap_or(MAX_US).max(1));
        }
    }

    /// Counts a request that the version failed.
    pub fn failed(&self, role: Role) {
        let counted = &mut *self.lock();
        let counts = counted.of(role);
        counts.requests += 1;
        counts.errors += 1;
    }

    /// Counts a mirrored request on which both versions gave an answer.
    pub fn compared(&self, agree: bool) {
        let counted = &mut *self.lock();
        *if agree { &mut counted.agreed } else { &mut counted.disagreed } += 1;
    }

    /// Counts the best classes of the candidate's reference output.
    pub fn classes(&self, best: impl IntoIterator<Item = usize>) {
        let classes = &mut self.lock().classes;
        for class in best.into_iter().filter(|&class| class < MAX_CLASSES) {
            if class >= classes.len() {
                classes.resize(class + 1, 0);
            }
            if let Some(count) = classes.get_mut(class) {
                *count += 1;
            }
        }
    }

    /// Counts a request that the other version was to be asked and was not.
    pub fn skipped(&self) {
        self.lock().skipped += 1;
    }

    /// What was seen so far.
    pub fn snapshot(&self) -> Observed {
        let counted = &*self.lock();
        Observed {
            candidate: counted.candidate.side(),
            incumbent: counted.incumbent.side(),
            agreed: counted.agreed,
            disagreed: counted.disagreed,
            classes: counted.classes.clone(),
            skipped: counted.skipped,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        // Counters that a panic left behind are still counters.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counted {
    fn of(&mut self, role: Role) -> &mut Counts {
        match role {
            Role::Candidate => &mut self.candidate,
            Role::Incumbent => &mut self.incumbent,
        }
    }
}

impl Counts {
    fn side(&self) -> Side {
        let times = self.times.as_ref().filter(|times| !times.is_empty());
        Side { requests: self.requests, errors: self.errors, p95_us: times.map(|times| times.value_at_quantile(0.95)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observations() -> Observations {
        Observations::new(ObservationConfig { reference_output: None, tolerance: 0.01 })
    }

    #[test]
    fn each_side_has_its_own_figures() {
        let observations = observations();
        for ms in 1..=100 {
            observations.answered(Role::Incumbent, Some(Duration::from_millis(ms)));
        }
        observations.answered(Role::Candidate, None);
        observations.failed(Role::Candidate);
        let Observed { candidate, incumbent, .. } = observations.snapshot();
        assert_eq!(candidate, Side { requests: 2, errors: 1, p95_us: None });
        assert_eq!((incumbent.requests, incumbent.errors), (100, 0));
        let p95 = incumbent.p95_us.unwrap();
        assert!((94_000..97_000).contains(&p95), "{p95}");
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
        observations.answered(Role::Candidate, Some(Duration::MAX));
        observations.answered(Role::Candidate, Some(Duration::ZERO));
        assert!(observations.snapshot().candidate.p95_us.unwrap() >= MAX_US);
    }
}
