//! Loads that may end the process: recorded before they begin, and not repeated once they did. See [`super::attempts`].

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use ledge_base::clock;
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_engine::Runtimes;
use ledge_identity::sealing::SealedFolder;
use tokio::sync::SemaphorePermit;

use super::attempts::log::AttemptLog;
use super::attempts::{Attempt, AttemptKey, Suspect, TrialFailure, Verdict};
use super::loading::{self, VersionError, VersionSource};
use super::{LoadMode, LoadedModel, Repository};

/// A version on disk. The files of a release may be encrypted.
#[derive(Debug, Clone, PartialEq)]
pub struct VersionOnDisk {
    /// The folder of its labels and golden inputs.
    pub folder: PathBuf,
    /// The folder of its own files, which may be the same.
    pub files: PathBuf,
    /// The least share of its golden inputs that must be answered right; `None` is all of them.
    pub golden_min: Option<f64>,
}

/// Loads a version in a separate process.
pub trait SeparateTrial: Send + Sync {
    /// Loads it into `runtimes` as the repository would, and ends. `Err` is the failure of the trial.
    fn run(&self, version: VersionOnDisk, runtimes: Runtimes) -> BoxFuture<'static, Result<(), TrialFailure>>;
}

/// Keeps a model that ends the process from being loaded again and again.
pub(super) struct LoadGuard {
    attempts: AttemptLog,
    trial: Box<dyn SeparateTrial>,
    /// The models that were not loaded, each with the suspect's key.
    refused: Mutex<BTreeSet<(AttemptKey, ModelName)>>,
}

impl LoadGuard {
    /// Takes the models that would no longer be refused.
    fn take_freed(&self) -> Vec<ModelName> {
        let is_refused =
            |key: &AttemptKey| matches!(self.attempts.verdict(key, LoadMode::Changed), Verdict::Refused(_));
        let freed = self.refused().extract_if(.., |(key, _)| !is_refused(key)).collect::<Vec<_>>();
        freed.into_iter().map(|(_, name)| name).collect()
    }

    fn refused(&self) -> MutexGuard<'_, BTreeSet<(AttemptKey, ModelName)>> {
        // Nothing panics under this lock.
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LoadGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadGuard").field("attempts", &self.attempts).finish_non_exhaustive()
    }
}

impl Repository {
    /// Records each load from here on. The process that serves calls it before the first load.
    pub fn guard_loads(&self, attempts: AttemptLog, trial: Box<dyn SeparateTrial>) {
        let guarded = self.shared.guard.set(LoadGuard { attempts, trial, refused: Mutex::default() });
        debug_assert!(guarded.is_ok(), "loads are guarded once");
    }

    /// Declares that the process ends in order from here on: no load is to blame for it.
    pub fn end_in_order(&self) {
        if let Some(guard) = self.shared.guard.get() {
            guard.attempts.stop();
        }
    }

    /// The models during whose load a process died.
    pub fn suspects(&self) -> Vec<Suspect> {
        self.shared.guard.get().map(|guard| guard.attempts.suspects()).unwrap_or_default()
    }

    /// Tries each suspended model when its trial is due, and loads those that pass.
    pub async fn try_suspended(&self) {
        let Some(guard) = self.shared.guard.get() else { return };
        loop {
            guard.attempts.trial_due().await;
            self.try_due(guard).await;
        }
    }

    async fn try_due(&self, guard: &LoadGuard) {
        for (key, name) in guard.attempts.due() {
            self.load_suspended(&name).await;
            // Still due, so no load found these files.
            if guard.attempts.due().iter().any(|(other, _)| *other == key) {
                guard.attempts.forget(&key);
            }
        }
        // Several models may have the same files: one that passed frees the others.
        for name in guard.take_freed() {
            self.load_suspended(&name).await;
        }
    }

    async fn load_suspended(&self, name: &ModelName) {
        if let Some(model) = self.model(name)
            && let Err(error) = self.load_model(&model, &Principal::Local, LoadMode::Due).await
        {
            tracing::warn!(model = %name, %error, "a suspended model failed its trial and stays suspended");
        }
    }

    /// Loads a version, and returns the time that took, without the wait for its turn and without a trial.
    pub(super) async fn load_guarded(
        &self,
        source: VersionSource<'_>,
        mode: LoadMode,
    ) -> Result<(LoadedModel, Duration), VersionError> {
        // Reading takes the memory of a whole model, so it takes a turn too.
        let turn = self.turns(1).await;
        let started = Instant::now();
        let reader = loading::reader(&source, &self.shared.engine, &self.shared.defaults);
        let folder = loading::read(source.files, source.config, reader).await?;
        let reading = started.elapsed();

        let (_turn, _under_way) = match self.shared.guard.get() {
            None => (turn, None),
            Some(guard) => {
                let key = AttemptKey::new(&folder.digest, source.config_text, &self.runtimes().libraries());
                let turn = self.admit(guard, &source, &key, mode, turn).await?;
                let (model, version) = (source.name.clone(), source.version);
                let attempt = Attempt { key, model, version, began_ms: clock::unix_millis() };
                (turn, Some(guard.attempts.begin(attempt)))
            }
        };
        let started = Instant::now();
        let loaded = loading::load_read(source, &folder, &self.shared.engine, &self.shared.defaults).await;
        Ok((loaded?, reading + started.elapsed()))
    }

    /// Exchanges the turn for the one in which the version may be loaded, after its trial if it needs one.
    async fn admit<'a>(
        &'a self,
        guard: &LoadGuard,
        source: &VersionSource<'_>,
        key: &AttemptKey,
        mode: LoadMode,
        turn: Option<SemaphorePermit<'a>>,
    ) -> Result<Option<SemaphorePermit<'a>>, VersionError> {
        let LoadGuard { attempts, trial, .. } = guard;
        match attempts.verdict(key, mode) {
            Verdict::Concurrent => return Ok(turn),
            Verdict::Refused(reason) => {
                guard.refused().insert((key.clone(), source.name.clone()));
                return Err(VersionError::Suspended(reason));
            }
            Verdict::Alone => drop(turn),
            Verdict::AfterTrial => {
                drop(turn);
                let reason = match mode {
                    LoadMode::AfterTrial => "it came from elsewhere",
                    _ => "an earlier load of it ended the process",
                };
                tracing::info!(model = %source.name, version = %source.version, reason,
                    "a model is tried in a separate process first");
                let home = source.sealed.map(SealedFolder::home);
                let (folder, files) =
                    (home.unwrap_or(source.folder).to_owned(), home.unwrap_or(source.files).to_owned());
                let version = VersionOnDisk { folder, files, golden_min: source.golden_min };
                let tried = trial.run(version, self.runtimes()).await;
                tried.map_err(|finding| VersionError::Suspended(attempts.record_failed_trial(key, &finding)))?;
            }
        }
        Ok(self.turns(self.shared.parallel_loads).await)
    }

    /// Waits for this many of the places for loads; with all of them no other load is in progress.
    async fn turns(&self, places: u32) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.shared.loads.acquire_many(places).await.ok()
    }
}
