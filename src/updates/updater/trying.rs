//! The jobs of a release that is on disk: in a process of its own, then beside the live version.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use ledge_models::repository::{LoadedModel, VersionError, tuning};

use super::Updater;
use super::hand::Done;
use crate::gates;
use crate::plan::Gate;
use crate::state::{Cause, Reason, SubjectState};
use crate::subject::{Kind, Subject};
use crate::trial::{self, ConfigurationTrial, TrialError};

/// Versions are timed against each other in so many turns of such a length.
const TURNS: u32 = 3;
const TURN: Duration = Duration::from_millis(200);

/// And in so many more as long as the new one seems too slow: a refusal is for good, and a busy machine is none.
const MORE_TURNS: u32 = 12;

/// Runs the release in a process of its own.
pub(super) fn in_a_process(
    updater: &mut Updater,
    subject: &Subject,
    state: &SubjectState,
) -> Option<BoxFuture<'static, Done>> {
    let on_trial = state.trial.as_ref()?;
    let folder = updater.store.release_folder(subject, &on_trial.release);
    let settings = updater.parts.trials.clone();
    let mut models = updater.live_models_in(&subject.name);
    let gate = on_trial.plan.gate;
    let (package, subject) = (on_trial.package.clone()?, subject.clone());
    Some(Box::pin(async move {
        let tried = match subject.kind {
            Kind::Model => {
                let opened = match trial::open(&folder, &settings).await {
                    Ok(opened) => opened,
                    Err(reason) => return Done::Later { reason, after: None, wasted: 0 },
                };
                let folder = opened.as_ref().map_or(folder.as_path(), |opened| opened.path());
                trial::run(&settings, folder, &package, &gate).await.map(|report| {
                    tracing::info!(%subject, ?report, "the release ran right in a process of its own");
                })
            }
            Kind::Configuration => {
                let as_now = ConfigurationTrial::of_this_process();
                trial::run_configuration(&settings, &folder, &package, as_now).await
            }
            Kind::Runtime => {
                let _opened = match trial::open_all(&mut models, &settings).await {
                    Ok(opened) => opened,
                    Err(reason) => return Done::Later { reason, after: None, wasted: 0 },
                };
                trial::run_runtime(&settings, &subject.name, &folder, &package, models).await
            }
        };
        match tried {
            Ok(()) => Done::Passed,
            Err(TrialError::Failed(reason)) => Done::Failed(reason),
            Err(TrialError::Interrupted(reason)) => Done::Interrupted(reason),
        }
    }))
}

/// Loads the release beside the live version and compares the two.
pub(super) fn beside(
    updater: &mut Updater,
    subject: &Subject,
    state: &SubjectState,
) -> Option<BoxFuture<'static, Done>> {
    let on_trial = state.trial.as_ref()?;
    if subject.kind != Kind::Model {
        // Settings and libraries have nothing to be beside.
        return Some(Box::pin(async { Done::Passed }));
    }
    let managed = updater.managed(subject, &on_trial.release, state);
    let (repository, name, gate) = (updater.parts.repository.clone(), subject.name.clone(), on_trial.plan.gate);
    Some(Box::pin(async move {
        let loaded = match repository.load_beside(&name, &managed).await {
            Ok(loaded) => loaded,
            Err(error) => return load_failed(&error),
        };
        let Ok(incumbent) = repository.pin(&name, None) else { return Done::Loaded(loaded) };
        match compare(&loaded, &incumbent, &gate).await {
            Ok(()) => Done::Loaded(loaded),
            Err(error) => {
                repository.end(loaded).await;
                match error {
                    TrialError::Failed(reason) => Done::Failed(reason),
                    TrialError::Interrupted(reason) => Done::Interrupted(reason),
                }
            }
        }
    }))
}

/// It loaded a moment ago in a process of its own, so what is in its way here may pass: memory that others hold, say.
fn load_failed(error: &VersionError) -> Done {
    if error.is_wrong() {
        Done::Failed(Reason::new(Cause::Golden, error.to_string()))
    } else {
        Done::Interrupted(Reason::new(Cause::Load, error.to_string()))
    }
}

/// Latency and memory of the new version against those of the live one, by turns, so that a busy moment of the machine
/// slows both. By the median: on a machine with more to do than it has cores for, some runs wait for a core, and only the
/// 95th percentile shows it.
async fn compare(new: &Arc<LoadedModel>, live: &Arc<LoadedModel>, gate: &Gate) -> Result<(), TrialError> {
    gates::judge_memory(gate, new.residence().bytes_each, live.residence().bytes_each)?;
    let Some(limit) = gate.p95_ratio_max else { return Ok(()) };
    if [new, live].into_iter().any(|model| tuning::sample(model).is_none()) {
        tracing::debug!(model = %new.name, version = %new.version, "its inputs are too large to be timed with");
        return Ok(());
    }
    let (mut best, mut judged) = ([Duration::MAX; 2], Ok(()));
    for turn in 1..=TURNS + MORE_TURNS {
        let median = async |model| Ok(tuning::closed_loop(model, 1, TURN).await?.percentile(0.5));
        let Some(timed) = both_timed(median(new).await, median(live).await)? else {
            tracing::debug!(model = %new.name, version = %new.version, "not timed: the live version has no answer to zeros");
            return Ok(());
        };
        best = [best[0].min(timed[0]), best[1].min(timed[1])];
        let [new_us, live_us] = best.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        judged = gates::judge_latency(limit, "half of the runs alone", new_us, live_us);
        if turn >= TURNS && judged.is_ok() {
            break;
        }
    }
    Ok(judged?)
}

/// The times of both versions in one turn; `None` for a model that refuses zeros, which cannot be timed without requests. A
/// version that fails what the live one answers is not too slow, but it cannot go on untimed either.
fn both_timed(
    new: Result<Duration, String>,
    live: Result<Duration, String>,
) -> Result<Option<[Duration; 2]>, TrialError> {
    match (new, live) {
        (Ok(new), Ok(live)) => Ok(Some([new, live])),
        (_, Err(_)) => Ok(None),
        (Err(error), Ok(_)) => {
            let detail = format!("cannot be timed beside the live version, which answers: {error}");
            Err(TrialError::Interrupted(Reason::new(Cause::Latency, detail)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_fails_what_the_live_one_answers_does_not_pass_untimed() {
        let (time, error) = (Duration::from_millis(3), || Err("zeros are refused".to_owned()));
        assert_eq!(both_timed(Ok(time), Ok(2 * time)), Ok(Some([time, 2 * time])));
        assert_eq!(both_timed(error(), error()), Ok(None));
        assert_eq!(both_timed(Ok(time), error()), Ok(None));
        let Err(TrialError::Interrupted(reason)) = both_timed(error(), Ok(time)) else { panic!("it passes") };
        assert!(reason.cause == Cause::Latency && reason.detail.ends_with("answers: zeros are refused"), "{reason}");
    }
}
