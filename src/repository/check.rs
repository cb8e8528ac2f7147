//! Which runtimes run which models: every version tried in every runtime, without serving any.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::folder::{self, FolderError};
use super::loading::{self, VersionSource};
use super::model_config::{ModelConfig, RuntimeChoice};
use super::{Repository, statistics::Statistics};
use crate::inference::backend::Runtime;
use crate::names::{ModelName, ModelVersion};

/// What came of trying one version in one runtime.
#[derive(Debug)]
pub struct Trial {
    /// The version.
    pub version: ModelVersion,
    /// The runtime.
    pub runtime: Runtime,
    /// The time to load it, golden answers included, or why it does not load.
    pub outcome: Result<Duration, String>,
}

impl Repository {
    /// The models on disk, whether loaded or not.
    pub fn names_on_disk(&self) -> Result<Vec<ModelName>, FolderError> {
        Ok(folder::models(self.path())?.0)
    }

    /// The model config and the versions on disk of one model.
    pub fn on_disk(&self, name: &ModelName) -> Result<(ModelConfig, Vec<ModelVersion>), FolderError> {
        let path = self.path().join(name.as_str());
        Ok((folder::model_config(&path)?.0, folder::versions(&path)?.0))
    }

    /// Tries every version that the model's policy selects in every runtime that its config allows.
    pub async fn try_runtimes(&self, name: &ModelName) -> Result<Vec<Trial>, FolderError> {
        let (config, versions) = self.on_disk(name)?;
        let path = self.path().join(name.as_str());
        let mut trials = Vec::new();
        for version in config.version_policy.select(&versions) {
            let format = folder::version(&path.join(version.to_string()))?.files.format;
            for runtime in config.runtime.candidates(format) {
                let choice = match runtime {
                    Runtime::OnnxRuntime => RuntimeChoice::OnnxRuntime,
                    Runtime::OpenVino => RuntimeChoice::OpenVino,
                };
                let pinned = ModelConfig { runtime: choice, ..config.clone() };
                let statistics = Arc::<Statistics>::default();
                let source =
                    VersionSource { name, version, folder: &path, config: &pinned, config_text: "", statistics };
                let started = Instant::now();
                let outcome = loading::load(source, &self.shared.engine, &self.shared.defaults).await;
                let outcome = match outcome {
                    Ok(model) => {
                        let elapsed = started.elapsed();
                        loading::end(model).await;
                        Ok(elapsed)
                    }
                    Err(error) => Err(error.to_string()),
                };
                trials.push(Trial { version, runtime, outcome });
            }
        }
        Ok(trials)
    }
}
