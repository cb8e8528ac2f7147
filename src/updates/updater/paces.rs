//! The measurements of the pace of a version on trial: one that seems slow is measured again, some time later, before
//! it is stopped. A busy moment of the machine ends nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use ledge_models::repository::LoadedModel;
use ledge_models::repository::pace::{self, PaceError, SampleInput};

use crate::gates::{self, PaceJudgement};
use crate::plan::RolloutGate;
use crate::preflight::PreflightError;
use crate::state::{RollbackCause, RollbackReason};
use crate::updater::job_outcome::UpdateJobOutcome;

/// Measurements that must find a version slow, and those that may be unclear in a row before the limit counts as kept.
const SLOW_MIN: u32 = 2;
const UNCLEAR_MAX: u32 = 6;

/// The pause before a second measurement. It doubles with each further one.
const PAUSE: Duration = Duration::from_secs(5);

/// The time for which a pace within the limit is trusted.
const TRUSTED_FOR: Duration = Duration::from_mins(2);

/// The measurements so far. Pure.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct PaceMeasurements {
    slow: u32,
    unclear: u32,
    /// No measurement begins before.
    next: Option<Instant>,
    trusted_until: Option<Instant>,
}

/// The consequence of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum PaceVerdict {
    WithinLimit,
    TooSlow(RollbackReason),
    /// Measured again, after this pause.
    Again(Duration),
}

impl PaceMeasurements {
    /// Returns the consequence of a measurement.
    pub fn measured(&mut self, pace: PaceJudgement, now: Instant) -> PaceVerdict {
        match pace {
            PaceJudgement::Slow(reason) => {
                self.slow += 1;
                if self.slow >= SLOW_MIN {
                    return PaceVerdict::TooSlow(reason);
                }
            }
            PaceJudgement::Unclear => self.unclear += 1,
            PaceJudgement::WithinLimit => self.unclear = UNCLEAR_MAX,
        }
        if self.unclear >= UNCLEAR_MAX {
            // Within the limit, or not shown to be beyond it.
            *self = Self { trusted_until: Some(now + TRUSTED_FOR), ..Self::default() };
            return PaceVerdict::WithinLimit;
        }
        let pause = PAUSE * 2_u32.saturating_pow(self.slow + self.unclear - 1);
        self.next = Some(now + pause);
        PaceVerdict::Again(pause)
    }

    /// Returns true if the last measurement stands for now.
    pub fn are_trusted(&self) -> bool {
        self.trusted_until.is_some_and(|until| Instant::now() < until)
    }

    /// Returns true if a measurement is due.
    pub fn are_due(&self) -> bool {
        self.next.is_none_or(|next| Instant::now() >= next)
    }
}

/// Measures the pace of a version that sees requests, once.
pub(super) fn measure(
    new: Arc<LoadedModel>,
    live: Arc<LoadedModel>,
    limit: f64,
    recent: Vec<SampleInput>,
) -> BoxFuture<'static, UpdateJobOutcome> {
    Box::pin(async move {
        let pace = match pace::pairs(&new, &live, recent).await {
            Ok(pairs) => gates::judge_pace(limit, &pairs),
            // A version that fails is judged by its errors.
            Err(PaceError::Failed(_)) => PaceJudgement::Unclear,
            Err(PaceError::NoInput) => PaceJudgement::WithinLimit,
        };
        UpdateJobOutcome::Paced(pace)
    })
}

/// Compares the pace of a version that was just loaded with that of the live one.
pub(super) async fn compare(
    new: &Arc<LoadedModel>,
    live: &Arc<LoadedModel>,
    gate: &RolloutGate,
) -> Result<(), PreflightError> {
    let Some(limit) = gate.p95_ratio_max else { return Ok(()) };
    let (mut paces, mut pairs) = (PaceMeasurements::default(), Vec::new());
    loop {
        let measured = match pace::pairs(new, live, Vec::new()).await {
            Ok(measured) => measured,
            Err(PaceError::NoInput) => {
                tracing::debug!(model = %new.name, version = %new.version, "not timed: the live version answers no input");
                return Ok(());
            }
            Err(error @ PaceError::Failed(_)) => {
                // It is not too slow, but it cannot go on untimed either.
                return Err(PreflightError::Interrupted(RollbackReason::new(
                    RollbackCause::Latency,
                    error.to_string(),
                )));
            }
        };
        let pace = match gates::judge_pace(limit, &measured) {
            PaceJudgement::Unclear => {
                // More pairs make a narrower interval.
                pairs.extend(measured);
                gates::judge_pace(limit, &pairs)
            }
            pace => pace,
        };
        match paces.measured(pace, Instant::now()) {
            PaceVerdict::WithinLimit => return Ok(()),
            PaceVerdict::TooSlow(reason) => return Err(reason.into()),
            PaceVerdict::Again(pause) => {
                tracing::debug!(name: "update.timed_again", model = %new.name, version = %new.version, pause_s = pause.as_secs(), "timed again");
                tokio::time::sleep(pause).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow() -> PaceJudgement {
        PaceJudgement::Slow(RollbackReason::new(RollbackCause::Latency, "slow"))
    }

    #[test]
    fn one_slow_measurement_stops_nothing_and_a_second_does() {
        let (mut paces, now) = (PaceMeasurements::default(), Instant::now());
        assert_eq!(paces.measured(slow(), now), PaceVerdict::Again(PAUSE));
        assert!(!paces.are_trusted() && !paces.are_due());
        assert!(matches!(paces.measured(slow(), now), PaceVerdict::TooSlow(_)));
        // One that was not confirmed is forgotten.
        let mut paces = PaceMeasurements::default();
        paces.measured(slow(), now);
        assert_eq!(paces.measured(PaceJudgement::WithinLimit, now), PaceVerdict::WithinLimit);
        assert!(paces.are_trusted() && paces.are_due());
        assert_eq!(paces.measured(slow(), now), PaceVerdict::Again(PAUSE));
    }

    #[test]
    fn a_machine_that_is_too_busy_to_tell_is_asked_again_and_not_without_end() {
        let (mut paces, now) = (PaceMeasurements::default(), Instant::now());
        let pauses: Vec<_> = std::iter::from_fn(|| match paces.measured(PaceJudgement::Unclear, now) {
            PaceVerdict::Again(pause) => Some(pause.as_secs()),
            _ => None,
        })
        .collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80]);
        assert!(paces.are_trusted());
    }
}
