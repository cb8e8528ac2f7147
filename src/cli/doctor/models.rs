//! The checks of the models: each one in each runtime.

use ledge_base::names::{ModelName, ModelVersion};
use ledge_models::repository::load_records::{LoadFailureStreak, file};
use ledge_models::repository::{Repository, RuntimeTrial, TrialLoad};

use super::progress::DoctorProgress;
use crate::cli::block_on;
use crate::cli::checks::Finding;
use crate::cli::standalone::standalone;
use crate::config::Config;

/// Tries every model of the repository in every runtime that its config allows.
pub fn checks(config: &Config, progress: &DoctorProgress) -> Vec<Finding> {
    let name = "models";
    let advice = "put models there, or set repository.path";
    let standalone = standalone(config);
    let repository = standalone.repository();
    let mut checks = match repository.names_on_disk() {
        Err(error) => vec![Finding::fail(name, error.to_string(), advice)],
        Ok(models) if models.is_empty() => {
            vec![Finding::warn(name, format!("none in {}", repository.sources().describe()), advice)]
        }
        Ok(models) => {
            let failures = file::failures(&config.state.path);
            let failed = |model: &ModelName| failures.iter().find(|(name, _, _)| name == model);
            let check_one = |model: &ModelName| match failed(model) {
                Some((_, version, failure)) => failed_before(model, *version, failure),
                None => check(repository, model),
            };
            let check_next = |(number, model): (usize, &ModelName)| {
                progress.step(&format!("trying the model {model} ({} of {})", number + 1, models.len()));
                check_one(model)
            };
            models.iter().enumerate().map(check_next).collect()
        }
    };
    checks.extend(repository.misnamed_folders());
    checks
}

/// The finding about a model that the server failed to load. It is not tried here: it may take as long again.
fn failed_before(model: &ModelName, version: ModelVersion, failure: &LoadFailureStreak) -> Finding {
    let detail = format!("version {version}: {}", failure.describe(model));
    Finding::warn(&format!("model {model}"), detail, "see `ledge models check`; the other models serve")
}

fn check(repository: &Repository, model: &ModelName) -> Finding {
    let name = &format!("model {model}");
    let advice = "see `ledge models check`; the other models serve";
    let trials = match block_on(repository.try_runtimes(model)) {
        Ok(Ok(trials)) => trials,
        Ok(Err(error)) => return Finding::warn(name, error.to_string(), advice),
        Err(error) => return Finding::warn(name, error.to_string(), advice),
    };
    let line = |trial: &RuntimeTrial| {
        let (version, runtime) = (trial.version, trial.runtime);
        match &trial.outcome {
            Ok(TrialLoad { time, stand_in: None, .. }) => {
                format!("version {version} runs in {runtime}, loaded in {} ms", time.as_millis())
            }
            Ok(TrialLoad { stand_in: Some(stand_in), .. }) => format!("version {version}: {stand_in}"),
            Err(error) => format!("version {version}: {error}"),
        }
    };

    let detail = trials.iter().map(line).collect::<Vec<_>>().join("\n");
    let runs = |version| trials.iter().any(|trial| trial.version == version && trial.outcome.is_ok());
    if !trials.iter().all(|trial| runs(trial.version)) {
        return Finding::warn(name, detail, advice);
    }

    let is_wrong = |trial: &RuntimeTrial| match &trial.outcome {
        Ok(tried) => tried.stand_in.is_some(),
        Err(error) => error.is_wrong(),
    };
    if trials.iter().any(is_wrong) {
        let advice = "the server skips a runtime that gives wrong answers; for int8 models, see the check of the cpu";
        return Finding::warn(name, detail, advice);
    }
    if let Some(found) = repository.on_disk(model).ok().and_then(|(config, _)| config.isolation?.finding()) {
        return Finding::warn(name, format!("{detail}\nisolation in model.toml: {}", found.detail), found.advice);
    }
    // One runtime is enough: it is not a fault if the other one refuses the model.
    Finding::ok(name, detail)
}
