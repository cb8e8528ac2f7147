//! Loads whose model may end the process: noted before they begin, and not begun again once they did. See [`super::attempts`].

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use ledge_base::clock;
use ledge_base::principal::Principal;
use tokio::sync::SemaphorePermit;

use super::attempts::log::AttemptLog;
use super::attempts::{Attempt, AttemptKey, Finding, Suspect, Verdict};
use super::loading::{self, VersionError, VersionSource};
use super::{Effort, LoadedModel, Repository};

/// A version on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct VersionOnDisk {
    /// The folder of its labels and golden inputs.
    pub folder: PathBuf,
    /// The folder of its own files, which may be the same.
    pub files: PathBuf,
    /// The least share of its golden inputs that must be answered right; `None` is all of them.
    pub golden_min: Option<f64>,
}

/// Loads a version in a process of its own.
pub trait SeparateTrial: Send + Sync {
    /// Loads it as the repository would, and ends. `Err` says what came of that.
    fn run(&self, version: VersionOnDisk) -> BoxFuture<'static, Result<(), Finding>>;
}

/// What keeps a model that ends the process from being loaded for ever.
pub(super) struct LoadGuard {
    attempts: AttemptLog,
    trial: Box<dyn SeparateTrial>,
}

impl fmt::Debug for LoadGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadGuard").field("attempts", &self.attempts).finish_non_exhaustive()
    }
}

impl Repository {
    /// Notes each load from here on. To be called before the first one, by the process that serves.
    pub fn guard_loads(&self, attempts: AttemptLog, trial: Box<dyn SeparateTrial>) {
        let guarded = self.shared.guard.set(LoadGuard { attempts, trial });
        debug_assert!(guarded.is_ok(), "loads are guarded once");
    }

    /// From here on the process ends in order, and no load is to blame for it.
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
            if let Some(model) = self.model(&name)
                && let Err(error) = self.load_model(&model, &Principal::Local, Effort::Due).await
            {
                tracing::warn!(model = %name, %error, "a suspended model was tried, and stays suspended");
            }
            // No load came across it.
            if guard.attempts.due().iter().any(|(other, _)| *other == key) {
                guard.attempts.forget(&key);
            }
        }
    }

    /// Loads a version, and returns the time that took. Not the wait for its turn, which is the others', and not a trial.
    pub(super) async fn load_guarded(
        &self,
        source: VersionSource<'_>,
        effort: Effort,
    ) -> Result<(LoadedModel, Duration), VersionError> {
        // Reading takes the memory of a whole model.
        let turn = self.turns(1).await;
        let started = Instant::now();
        let folder = loading::read(source.files).await?;
        let reading = started.elapsed();

        let (_turn, _under_way) = match self.shared.guard.get() {
            None => (turn, None),
            Some(guard) => {
                let key = AttemptKey::new(&folder.digest, source.config_text, &self.runtimes().libraries());
                let turn = self.admit(guard, &source, &key, effort, turn).await?;
                let (model, version) = (source.name.clone(), source.version);
                let attempt = Attempt { key, model, version, began_ms: clock::unix_millis() };
                (turn, Some(guard.attempts.begin(attempt)))
            }
        };
        let started = Instant::now();
        let loaded = loading::load_read(source, &folder, &self.shared.engine, &self.shared.defaults).await;
        Ok((loaded?, reading + started.elapsed()))
    }

    /// Exchanges the turn for the one that the version may be loaded in, once it has passed its trial if it needs one.
    async fn admit<'a>(
        &'a self,
        LoadGuard { attempts, trial }: &LoadGuard,
        source: &VersionSource<'_>,
        key: &AttemptKey,
        effort: Effort,
        turn: Option<SemaphorePermit<'a>>,
    ) -> Result<Option<SemaphorePermit<'a>>, VersionError> {
        match attempts.verdict(key, effort) {
            Verdict::Beside => return Ok(turn),
            Verdict::Refused(reason) => return Err(VersionError::Suspended(reason)),
            Verdict::Alone => drop(turn),
            Verdict::AfterTrial => {
                drop(turn);
                tracing::info!(model = %source.name, version = %source.version,
                    "a load of this model ended the process; it is tried in a process of its own");
                let (folder, files) = (source.folder.to_owned(), source.files.to_owned());
                let tried = trial.run(VersionOnDisk { folder, files, golden_min: source.golden_min }).await;
                tried.map_err(|finding| VersionError::Suspended(attempts.not_passed(key, &finding)))?;
            }
        }
        Ok(self.turns(self.shared.parallel_loads).await)
    }

    /// So many of the places for loads; with all of them no other load is under way.
    async fn turns(&self, places: u32) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.shared.loads.acquire_many(places).await.ok()
    }
}
