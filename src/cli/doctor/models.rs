//! The checks of the models: each one in each runtime.

use ledge_base::names::ModelName;
use ledge_models::repository::attempts::{Suspect, log};
use ledge_models::repository::{Repository, RuntimeTrial, TrialLoad};

use crate::cli::block_on;
use crate::cli::checks::Check;
use crate::cli::models::standalone;
use crate::config::Config;

/// Tries every model of the repository in every runtime that its config allows.
pub fn checks(config: &Config) -> Vec<Check> {
    let name = "models";
    let advice = "put models there, or set repository.path";
    let standalone = standalone(config);
    let repository = standalone.repository();
    match repository.names_on_disk() {
        Err(error) => vec![Check::fail(name, error.to_string(), advice)],
        Ok(models) if models.is_empty() => {
            vec![Check::warn(name, format!("none in {}", repository.path().display()), advice)]
        }
        Ok(models) => {
            let suspects = log::suspects(&config.state.path);
            let suspect = |model: &ModelName| suspects.iter().find(|suspect| suspect.model == *model);
            let check_one = |model: &ModelName| suspect(model).map_or_else(|| check(repository, model), crashed_before);
            models.iter().map(check_one).collect()
        }
    }
}

/// The finding about a model that ended the daemon. It is not tried here, because it could end this process too.
fn crashed_before(suspect: &Suspect) -> Check {
    let Suspect { model, version, suspension, .. } = suspect;
    let advice = match suspension {
        Some(_) => "the server does not load it; the other models serve",
        None => "if it ends the daemon again, the server stops loading it",
    };
    Check::warn(&format!("model {model}"), format!("version {version}: {suspect}"), advice)
}

fn check(repository: &Repository, model: &ModelName) -> Check {
    let name = &format!("model {model}");
    let advice = "see `ledge models check`; the other models serve";
    let trials = match block_on(repository.try_runtimes(model)) {
        Ok(Ok(trials)) => trials,
        Ok(Err(error)) => return Check::warn(name, error.to_string(), advice),
        Err(error) => return Check::warn(name, error.to_string(), advice),
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
    if trials.is_empty() {
        return Check::warn(name, "no version folder: expected one named by a positive integer, such as 1", advice);
    }
    if !trials.iter().all(|trial| runs(trial.version)) {
        return Check::warn(name, detail, advice);
    }

    let is_wrong = |trial: &RuntimeTrial| match &trial.outcome {
        Ok(tried) => tried.stand_in.is_some(),
        Err(error) => error.is_wrong(),
    };
    if trials.iter().any(is_wrong) {
        let advice = "the server skips a runtime that gives wrong answers; for int8 models, see the check of the cpu";
        return Check::warn(name, detail, advice);
    }
    if let Some(found) = repository.on_disk(model).ok().and_then(|(config, _)| config.isolation?.finding()) {
        return Check::warn(name, format!("{detail}\nisolation in model.toml: {}", found.detail), found.advice);
    }
    // One runtime is enough: it is not a fault if the other one refuses the model.
    Check::ok(name, detail)
}
