//! Models that ended their processes: their golden inputs are tried again after a crash, and findings name them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use ledge_base::principal::Principal;
use ledge_identity::sealing::EncryptedFolder;
use ledge_part::check::Finding;

use super::golden;
use super::golden_error::GoldenError;
use super::{LoadedModel, Repository};
use crate::scheduling::faults::{GoldenTrialChange, GoldenTrialResult};

/// The longest wait for the next trial while none is due.
const IDLE: Duration = Duration::from_hours(1);

impl Repository {
    /// Tries the golden inputs of each live model after a crash, while this is polled. A model that fails them answers
    /// no caller until it passes.
    pub async fn try_crashed(&self) {
        loop {
            let models = self.all_live();
            let due = models.iter().filter_map(|model| model.faults().next_trial()).min();
            let due = due.unwrap_or_else(|| Instant::now() + IDLE);
            drop(models);
            tokio::select! {
                () = self.shared.engine.fault() => {}
                () = tokio::time::sleep_until(due.into()) => {}
            }
            join_all(self.all_live().into_iter().map(|model| self.try_golden(model))).await;
        }
    }

    async fn try_golden(&self, model: Arc<LoadedModel>) {
        if !model.faults().begin_trial(Instant::now()) {
            return;
        }
        let trial = trial(&model).await;
        let reason = match &trial {
            GoldenTrialResult::Passed => "they pass".to_owned(),
            GoldenTrialResult::Failed(reason) | GoldenTrialResult::Unknown(reason) => reason.clone(),
        };
        let (name, version) = (&model.name, model.version);
        match model.faults().end_trial(trial, Instant::now()) {
            GoldenTrialChange::None => tracing::info!(
                name: "model.retried",
                model = %name,
                %version,
                reason,
                "golden inputs tried after a crash"
            ),
            GoldenTrialChange::Unloaded => {
                tracing::error!(model = %name, %version, reason, "golden inputs fail after a crash; the model is tried again later");
                self.audit_unload(&model, &Principal::Local);
                model.evict();
            }
            GoldenTrialChange::Back => {
                tracing::info!(model = %name, %version, "golden inputs pass again; the model is back");
                self.audit_load(&model, &Principal::Local);
            }
        }
    }

    /// The models that end their process again and again, and go on.
    pub fn crashing_models(&self) -> Vec<Finding> {
        let crashing = |model: Arc<LoadedModel>| {
            let reason = model.crashing()?;
            let detail = format!("version {}: {reason}", model.version);
            let advice = "the audit log names callers that are refused (caller_refused); give each caller an API key, so that \
                          others are not slowed down: see docs/isolation.md";
            Some(Finding::fail(&format!("crashes {}", model.name), detail, advice))
        };
        self.all_live().into_iter().filter_map(crashing).collect()
    }
}

/// Runs the golden inputs of a loaded model again.
async fn trial(model: &LoadedModel) -> GoldenTrialResult {
    // A release may be encrypted, and its files are open only while it is loaded.
    let sealed = model.golden_files.sealed.clone();
    let opened = tokio::task::spawn_blocking(move || sealed.as_ref().map(EncryptedFolder::open).transpose()).await;
    let opened = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return GoldenTrialResult::Unknown(error.to_string()),
        Err(panic) => return GoldenTrialResult::Unknown(panic.to_string()),
    };
    let folder = opened.as_ref().map_or(model.golden_files.folder.as_path(), |opened| opened.path());
    match golden::check(model, folder, model.golden_files.min).await {
        Ok(()) => GoldenTrialResult::Passed,
        Err(GoldenError::Wrong(reason)) => GoldenTrialResult::Failed(reason),
        Err(GoldenError::Unchecked(reason)) => GoldenTrialResult::Unknown(reason),
    }
}
