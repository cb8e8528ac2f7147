//! The jobs of a release that is on disk: its preflight in a separate process, then its load next to the live version,
//! or the move of every model to its library.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use ledge_base::names::ModelName;
use ledge_models::repository::trial_mark::{TrialMark, TrialWorkGuard};
use ledge_models::repository::{LoadedModel, Repository, VersionLoadError};

use super::{Updater, paces};
use crate::artifact::{Artifact, ArtifactKind};
use crate::gates;
use crate::plan::RolloutGate;
use crate::preflight::{self, ConfigurationPreflight, PreflightError, PreflightSettings};
use crate::state::{RollbackCause, RollbackReason, SubjectState};
use crate::updater::job_outcome::UpdateJobOutcome;

/// Runs the preflight of a release in a separate process.
pub(super) fn run_preflight(
    updater: &mut Updater,
    subject: &Artifact,
    state: &SubjectState,
) -> Option<BoxFuture<'static, UpdateJobOutcome>> {
    let on_trial = state.trial.as_ref()?;
    let folder = updater.store.release_folder(subject, &on_trial.release);
    let repository = &updater.parts.repository;
    let live = (subject.kind == ArtifactKind::Model).then(|| repository.pin(&subject.name, None).ok()).flatten();
    let settings = PreflightSettings {
        runtimes: repository.runtimes(),
        predecessor: live.map(|live| live.as_predecessor()),
        ..updater.parts.preflight.clone()
    };
    let models = updater.live_models_in(&subject.name);

    // Not marked: its process has limits, and the kernel ends it long before the daemon.
    let gate = on_trial.plan.gate;
    let (package, subject) = (on_trial.package.clone()?, subject.clone());
    Some(Box::pin(async move {
        let tried = match subject.kind {
            ArtifactKind::Model => preflight::run(&settings, &folder, &package, &gate).await.map(|report| {
                tracing::info!(%subject, ?report, "the release passed its preflight");
            }),
            ArtifactKind::Configuration => {
                let as_now = ConfigurationPreflight::of_this_process();
                preflight::run_configuration(&settings, &folder, &package, as_now).await
            }
            ArtifactKind::Runtime => preflight::run_runtime(&settings, &subject.name, &folder, &package, &models).await,
            ArtifactKind::Package => Ok(()),
        };

        tried.map_or_else(stopped, |()| UpdateJobOutcome::Passed)
    }))
}

/// Marks that a release works. The mark waits for the disk.
async fn marked(mark: Arc<TrialMark>) -> Option<TrialWorkGuard> {
    tokio::task::spawn_blocking(move || mark.load()).await.ok()
}

fn stopped(error: PreflightError) -> UpdateJobOutcome {
    match error {
        PreflightError::Failed(reason) => UpdateJobOutcome::Failed(reason),
        PreflightError::Interrupted(reason) => UpdateJobOutcome::Interrupted(reason),
        PreflightError::Postponed(reason) => UpdateJobOutcome::Deferred { reason, after: None, wasted: 0 },
    }
}

/// Loads the release next to the live version and compares the two. Libraries become those of every model.
pub(super) fn load_candidate(
    updater: &mut Updater,
    subject: &Artifact,
    state: &SubjectState,
) -> Option<BoxFuture<'static, UpdateJobOutcome>> {
    let on_trial = state.trial.as_ref()?;
    match subject.kind {
        ArtifactKind::Model => {}
        // Settings are read when the daemon starts.
        // The poller hands packages to `upgrade/`, and not to the updater.
        ArtifactKind::Configuration | ArtifactKind::Package => {
            return Some(Box::pin(async { UpdateJobOutcome::Passed }));
        }
        ArtifactKind::Runtime => {
            let folder = updater.store.release_folder(subject, &on_trial.release);
            let (repository, name, mark) =
                (updater.parts.repository.clone(), subject.name.clone(), updater.mark(subject));
            return Some(Box::pin(async move {
                let _work = marked(mark).await;
                move_models(repository, name, folder).await
            }));
        }
    }

    let managed = updater.managed(subject, &on_trial.release, state);
    let (repository, name, gate) = (updater.parts.repository.clone(), subject.name.clone(), on_trial.plan.gate);
    let mark = updater.mark(subject);
    Some(Box::pin(async move {
        let work = marked(mark).await;
        let loaded = match repository.load_beside(&name, &managed).await {
            Ok(loaded) => loaded,
            Err(error) => return load_failed(&error),
        };

        // Its golden inputs have run.
        drop(work);
        let Ok(incumbent) = repository.pin(&name, None) else { return UpdateJobOutcome::Loaded(loaded) };
        match compare(&repository, &loaded, &incumbent, &gate).await {
            Ok(()) => UpdateJobOutcome::Loaded(loaded),
            Err(error) => {
                repository.end(loaded).await;
                stopped(error)
            }
        }
    }))
}

/// Moves the models of a runtime to the library in `folder`.
async fn move_models(repository: Repository, runtime: ModelName, folder: PathBuf) -> UpdateJobOutcome {
    let Some(runtime) = preflight::runtime_named(&runtime) else { return UpdateJobOutcome::Passed };
    match repository.move_to_library(runtime, Some(folder)).await {
        Ok(()) => UpdateJobOutcome::Passed,
        // They loaded a moment ago, so the obstacle may pass.
        Err(reason) => UpdateJobOutcome::Interrupted(RollbackReason::new(RollbackCause::Load, reason)),
    }
}

/// It loaded a moment ago in a separate process, so the obstacle here may pass: memory that others use, for example.
fn load_failed(error: &VersionLoadError) -> UpdateJobOutcome {
    if error.is_wrong() {
        UpdateJobOutcome::Failed(RollbackReason::new(RollbackCause::Golden, error.to_string()))
    } else if error.is_interrupted() {
        // Somebody killed its process, which is no attempt of the release.
        UpdateJobOutcome::Deferred {
            reason: RollbackReason::new(RollbackCause::Load, error.to_string()),
            after: None,
            wasted: 0,
        }
    } else {
        UpdateJobOutcome::Interrupted(RollbackReason::new(RollbackCause::Load, error.to_string()))
    }
}

/// Compares memory and pace of the new version with those of the live one. Memory is compared within one runtime: of
/// two runtimes, one takes several times as much for the same model.
async fn compare(
    repository: &Repository,
    new: &Arc<LoadedModel>,
    live: &Arc<LoadedModel>,
    gate: &RolloutGate,
) -> Result<(), PreflightError> {
    if new.runtime() == live.runtime() {
        compare_memory(repository, new, live, gate).await?;
    }
    paces::compare(new, live, gate).await
}

async fn compare_memory(
    repository: &Repository,
    new: &LoadedModel,
    live: &LoadedModel,
    gate: &RolloutGate,
) -> Result<(), PreflightError> {
    let [new_bytes, live_bytes] = [new, live].map(|model| model.instance_usage().bytes_each);
    if gates::judge_memory(gate, new_bytes, live_bytes).is_ok() {
        return Ok(());
    }
    // The live version may share its process with others, and use memory of theirs. The new one does not.
    let copy = repository.load_copy(live).await.map_err(|error| {
        let detail = format!("the live version cannot be loaded again, to compare its memory: {error}");
        PreflightError::Postponed(RollbackReason::new(RollbackCause::Memory, detail))
    })?;
    let copy_bytes = copy.instance_usage().bytes_each;
    repository.end(copy).await;
    Ok(gates::judge_memory(gate, new_bytes, live_bytes.max(copy_bytes))?)
}
