//! Moves every model to another library of its runtime, such as one that an update brought.

use std::path::PathBuf;
use std::sync::Arc;

use ledge_base::principal::Principal;
use ledge_engine::Runtimes;
use ledge_engine::backend::Runtime;

use super::{LoadedModel, Repository};

impl Repository {
    /// Moves the models of `runtime` to the library in the folder `own`, or with `None` to that in the folder of all
    /// others. Each is loaded and checked there next to the loaded copy, which ends after its last request. If a model
    /// that answers calls does not load there, or the models cannot be read now, all move back, and the reason is
    /// returned.
    pub async fn move_to_library(&self, runtime: Runtime, own: Option<PathBuf>) -> Result<(), String> {
        // The next move begins with the libraries that this one leaves.
        let _alone = self.shared.moving.lock().await;
        let before = self.runtimes();
        if before.folder_of(runtime) == own.as_deref().unwrap_or(before.folder()) {
            return Ok(());
        }
        let after = before.with_library_in(runtime, own);
        // A model that was unloaded for its faults answers no calls, so its load does not matter.
        let answers = |model: &Arc<LoadedModel>| model.fault().is_none();
        let answering: Vec<_> = self.all_serving().filter(answers).map(|model| model.name.clone()).collect();
        self.shared.engine.set_runtimes(after.clone());
        let read = self.refresh(&Principal::Local).await;
        let failed = match read {
            Err(error) => Some(error.to_string()),
            Ok(()) => self.left_behind(&after, |model| answering.contains(&model.name)),
        };
        let Some(reason) = failed else {
            let library = after.library(runtime).unwrap_or_default();
            tracing::info!(
                name: "runtime.library_changed",
                %runtime,
                library = %library.display(),
                "the models of a runtime have moved to another library"
            );
            return Ok(());
        };
        self.shared.engine.set_runtimes(before);
        if let Err(error) = self.refresh(&Principal::Local).await {
            tracing::error!(%error, "the models that had moved to another library of {runtime} stay there until the next load");
        }
        Err(reason)
    }

    /// The live versions, without the candidates: those stay in their library, and move when they go live.
    fn all_serving(&self) -> impl Iterator<Item = Arc<LoadedModel>> {
        self.models().into_iter().flat_map(|model| model.slot.live())
    }

    /// The models that still run in another library than that of `runtimes`, as one reason.
    fn left_behind(&self, runtimes: &Runtimes, counts: impl Fn(&LoadedModel) -> bool) -> Option<String> {
        let behind = self.all_serving().filter(|model| counts(model) && !model.runs_in(runtimes));
        let reasons: Vec<_> = behind
            .map(|model| {
                let reason = self.model(&model.name).and_then(|model| model.states().fault.clone());
                format!("{} {}: {}", model.name, model.version, reason.unwrap_or_else(|| "it did not load".to_owned()))
            })
            .collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}
