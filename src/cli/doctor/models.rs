//! The checks of the models: which loads in which runtime.

use crate::cli::block_on;
use crate::cli::checks::Check;
use crate::cli::models::repository;
use crate::config::Config;
use crate::names::ModelName;
use crate::repository::Repository;

/// Tries every model of the repository in every runtime that its config allows.
pub fn checks(config: &Config) -> Vec<Check> {
    let name = "models";
    let advice = "put models there, or set repository.path";
    let repository = repository(config);
    match repository.names_on_disk() {
        Err(error) => vec![Check::fail(name, error.to_string(), advice)],
        Ok(models) if models.is_empty() => {
            vec![Check::warn(name, format!("none in {}", repository.path().display()), advice)]
        }
        Ok(models) => models.iter().map(|model| check(&repository, model)).collect(),
    }
}

fn check(repository: &Repository, model: &ModelName) -> Check {
    let name = &format!("model {model}");
    let advice = "see `ledge models check`; the other models serve";
    let trials = match block_on(repository.try_runtimes(model)) {
        Ok(Ok(trials)) => trials,
        Ok(Err(error)) => return Check::warn(name, error.to_string(), advice),
        Err(error) => return Check::warn(name, error.to_string(), advice),
    };
    let line = |trial: &crate::repository::Trial| match &trial.outcome {
        Ok(time) => format!("version {} runs in {}, loaded in {} ms", trial.version, trial.runtime, time.as_millis()),
        Err(reason) => format!("version {}: {reason}", trial.version),
    };
    let detail = trials.iter().map(line).collect::<Vec<_>>().join("\n");
    let runs = |version| trials.iter().any(|trial| trial.version == version && trial.outcome.is_ok());
    if trials.is_empty() {
        return Check::warn(name, "no version folder: expected one named by a positive integer, such as 1", advice);
    }
    // One runtime is enough; that the other refuses a model is a fact, not a fault.
    if trials.iter().all(|trial| runs(trial.version)) {
        Check::ok(name, detail)
    } else {
        Check::warn(name, detail, advice)
    }
}
