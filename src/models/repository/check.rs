//! Trials of models in runtimes: every version in every runtime, without serving any.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_base::names::{ModelName, ModelVersion};
use ledge_engine::backend::Runtime;
use ledge_engine::pipeline::table::proposal;
use ledge_identity::sealing::EncryptedFolder;
use ledge_isolation::Isolation;
use ledge_part::check::Finding;

use super::Repository;
use super::folder::{self, ModelFolderError};
use super::loaded_model::{LoadedModel, ModelDefaults};
use super::loading::{self, Predecessor, VersionLoadError, VersionToLoad};
use super::model_config::{DynamicBatching, InstanceGroup, ModelConfig, RuntimeChoice};
use super::profile::{RunProfileChoice, RunProfiles};
use super::reader::ModelReader;
use super::sources::ModelFolders;
use crate::scheduling::batch_policy::BatchPolicy;

/// Result of trying one version in one runtime.
#[derive(Debug)]
pub struct RuntimeTrial {
    pub version: ModelVersion,
    pub runtime: Runtime,
    /// The load, or the reason why it failed.
    pub outcome: Result<TrialLoad, VersionLoadError>,
}

/// A version that was loaded for a trial.
#[derive(Debug)]
pub struct TrialLoad {
    /// Time of the load, golden answers included.
    pub time: Duration,
    /// Description of the runtimes or files that answered golden inputs wrong, and of the one used instead.
    pub stand_in: Option<String>,
    /// The section `[pipeline.table]` that it may get, if it looks like a model of a table and has no pipeline.
    pub table: Option<String>,
}

impl Repository {
    /// The folders that models come from.
    pub fn sources(&self) -> &ModelFolders {
        &self.shared.sources
    }

    /// The models on disk, whether loaded or not.
    pub fn names_on_disk(&self) -> Result<Vec<ModelName>, ModelFolderError> {
        Ok(self.shared.sources.models()?.0)
    }

    /// The finding about folders that are not models because of their names.
    pub fn misnamed_folders(&self) -> Option<Finding> {
        // A folder that cannot be read is reported elsewhere.
        let (_, misnamed) = self.shared.sources.models().unwrap_or_default();
        let lines: Vec<_> = misnamed.iter().map(ToString::to_string).collect();
        let advice = "rename them, and reload the server: systemctl reload ledge";
        (!lines.is_empty()).then(|| Finding::warn("model folders", lines.join("\n"), advice))
    }

    /// The versions of a model on disk that its config selects.
    pub fn selected_on_disk(&self, name: &ModelName) -> Result<Vec<ModelVersion>, ModelFolderError> {
        let path = self.shared.sources.folder(name);
        folder::selected_versions(&path, &folder::model_config(&path)?.0)
    }

    /// The model config and the versions on disk of one model.
    pub fn on_disk(&self, name: &ModelName) -> Result<(ModelConfig, Vec<ModelVersion>), ModelFolderError> {
        let path = self.shared.sources.folder(name);
        Ok((folder::model_config(&path)?.0, folder::versions(&path)?.0))
    }

    /// Loads one version as `choice` says, next to the live versions, for a measurement.
    pub async fn load_as(
        &self,
        name: &ModelName,
        version: ModelVersion,
        choice: RunProfileChoice,
    ) -> Result<Arc<LoadedModel>, String> {
        let (config, _) = self.on_disk(name).map_err(|error| error.to_string())?;
        let path = self.shared.sources.folder(name);
        let instance_group = InstanceGroup {
            count: Some(choice.instances),
            min: None,
            max: None,
            threads: Some(choice.threads),
            keep_alive_s: Some(0),
            ..config.instance_group
        };

        let batched = DynamicBatching {
            max_queue_delay_us: 0,
            preferred_batch_sizes: BatchPolicy::powers_of_two(choice.batch, Duration::ZERO).preferred,
        };
        let config = ModelConfig {
            runtime: pinned(choice.runtime),
            instance_group,
            dynamic_batching: (choice.batch > 1).then_some(batched),
            ..config
        };

        let files = path.join(version.to_string());
        let source = VersionToLoad::new(name, version, (&path, &files), (&config, ""));
        let loaded = self.load_unprofiled(source).await;
        let model = loaded.map_err(|error| error.to_string())?;
        match model.stand_in() {
            None => Ok(Arc::new(model)),
            // A measurement of the stand-in says nothing about the requested choice.
            Some(stand_in) => {
                loading::end(model).await;
                Err(stand_in)
            }
        }
    }

    /// Loads a version for a trial, next to the live versions: from the folder of its model config, golden inputs and
    /// labels, and from that of its files. With `sealed` both contain the decrypted files of that folder. It runs as
    /// `predecessor` does.
    pub async fn load_from(
        &self,
        name: &ModelName,
        version: ModelVersion,
        (folder, files): (&Path, &Path),
        golden_min: Option<f64>,
        sealed: Option<&EncryptedFolder>,
        predecessor: Option<&Predecessor>,
    ) -> Result<Arc<LoadedModel>, VersionLoadError> {
        let (config, config_text) = folder::model_config(folder)?;
        let source = VersionToLoad {
            golden_min,
            sealed,
            predecessor,
            ..VersionToLoad::new(name, version, (folder, files), (&config, &config_text))
        };
        let loaded = loading::load(source, &self.shared.engine, &self.shared.defaults).await;
        loaded.map(Arc::new)
    }

    /// Loads a second copy of a version, in a separate process, as an update loads the next version.
    pub async fn load_copy(&self, live: &LoadedModel) -> Result<Arc<LoadedModel>, VersionLoadError> {
        let golden = &live.golden_files;
        let open = golden.sealed.clone();
        let opened = tokio::task::spawn_blocking(move || open.map(|sealed| sealed.open()).transpose()).await;
        let opened =
            opened.map_err(|panic| VersionLoadError::Sealed(format!("opening the model panicked: {panic}")))?;
        // Held until the model is loaded.
        let opened = opened.map_err(|error| VersionLoadError::Sealed(error.to_string()))?;
        let before = live.as_predecessor();
        let (folder, files) = match &opened {
            Some(opened) => (opened.path(), opened.path()),
            None => (&*golden.folder, &*live.folder),
        };
        let source = VersionToLoad {
            golden_min: golden.min,
            sealed: golden.sealed.as_ref(),
            on_trial: true,
            predecessor: Some(&before),
            ..VersionToLoad::new(&live.name, live.version, (folder, files), (&live.config, &live.config_text))
        };
        // Its runtime and profile are known, and stay.
        self.load_unprofiled(source).await.map(Arc::new)
    }

    /// Loads a version without the profiles of this box, and makes none.
    pub(super) async fn load_unprofiled(&self, source: VersionToLoad<'_>) -> Result<LoadedModel, VersionLoadError> {
        let defaults = ModelDefaults { profiles: RunProfiles::none(), ..self.shared.defaults.clone() };
        loading::load(source, &self.shared.engine, &defaults).await
    }

    /// Ends a model that was loaded next to the live versions, and waits until its memory is freed.
    pub async fn end(&self, model: Arc<LoadedModel>) {
        let ended = model.ended();
        drop(model);
        ended.await;
    }

    /// The names of the inputs of one version, where its file shows them without a runtime.
    pub fn input_names(
        &self,
        name: &ModelName,
        version: ModelVersion,
    ) -> Result<Option<Vec<String>>, ModelFolderError> {
        let folder = self.shared.sources.folder(name).join(version.to_string());
        folder::input_names(&folder, &self.reader(name, version))
    }

    /// Reads files of one version in the process that it would have if it ran alone.
    fn reader(&self, name: &ModelName, version: ModelVersion) -> ModelReader {
        ModelReader::of(&self.shared.engine, Isolation::Own, name, version)
    }

    /// The digest of one version's files, which names its profile, and the runtimes that may run it.
    pub fn tunable(&self, name: &ModelName, version: ModelVersion) -> Result<(String, Vec<Runtime>), ModelFolderError> {
        let (config, _) = self.on_disk(name)?;
        let path = self.shared.sources.folder(name).join(version.to_string());
        let folder = folder::version(&path, config.chain_models(), self.reader(name, version))?;
        Ok((folder.digest, config.runtime.candidates(folder.model.files.format)))
    }

    /// The profiles measured on this box.
    pub fn profiles(&self) -> &RunProfiles {
        &self.shared.defaults.profiles
    }

    /// The cores on which models run.
    pub fn cores(&self) -> &[usize] {
        self.shared.engine.cores()
    }

    /// Tries every version that the model's policy selects in every runtime that its config allows.
    pub async fn try_runtimes(&self, name: &ModelName) -> Result<Vec<RuntimeTrial>, ModelFolderError> {
        let path = self.shared.sources.folder(name);
        let (config, _) = folder::model_config(&path)?;
        let mut trials = Vec::new();
        for version in folder::selected_versions(&path, &config)? {
            let files = path.join(version.to_string());
            // Kept, so that every load finds the process that read the files.
            let read = folder::version(&files, config.chain_models(), self.reader(name, version))?;
            let format = read.model.files.format;
            for runtime in config.runtime.candidates(format) {
                let pinned = ModelConfig { runtime: pinned(runtime), ..config.clone() };
                let source = VersionToLoad::new(name, version, (&path, &files), (&pinned, ""));
                let started = Instant::now();
                let outcome = loading::load(source, &self.shared.engine, &self.shared.defaults).await;
                let outcome = match outcome {
                    Ok(model) => {
                        let time = started.elapsed();
                        let table = match model.pipeline {
                            Some(_) => None,
                            None => proposal::propose(&model.signature, &model.labels),
                        };
                        let tried = TrialLoad { time, stand_in: model.stand_in(), table };
                        loading::end(model).await;
                        Ok(tried)
                    }
                    Err(error) => Err(error),
                };
                trials.push(RuntimeTrial { version, runtime, outcome });
            }
        }
        Ok(trials)
    }
}

fn pinned(runtime: Runtime) -> RuntimeChoice {
    match runtime {
        Runtime::OnnxRuntime => RuntimeChoice::OnnxRuntime,
        Runtime::OpenVino => RuntimeChoice::OpenVino,
    }
}
