//! One version of a model, loaded, warmed up and checked: what answers requests.

use std::any::Any;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::folder::{self, FolderError};
use super::golden;
use super::model_config::ModelConfig;
use super::statistics::Statistics;
use crate::inference::Runtimes;
use crate::inference::backend::{LoadError, LoadOptions, Runtime, Signature};
use crate::inference::instance::{Answer, InferError, Instances};
use crate::inference::terms::Terms;
use crate::names::{ModelName, ModelVersion};
use crate::tensor::Tensor;

/// What the daemon's configuration says for every model.
#[derive(Debug, Clone)]
pub struct ModelDefaults {
    /// Threads of one run, when the model config leaves it open.
    pub threads: usize,
    /// Requests that may wait for one model.
    pub max_queue_size: usize,
    /// After this a caller gets 504.
    pub timeout: Duration,
    /// Where compiled models are kept between starts, if anywhere.
    pub cache_dir: Option<PathBuf>,
}

/// Why a version could not be loaded. One line for people.
#[derive(Debug, thiserror::Error)]
pub enum VersionError {
    /// The folder or a file in it is at fault.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// No runtime runs it; the reasons of all that were tried.
    #[error("{}", reasons.join("; "))]
    NoRuntime {
        /// A line for each runtime tried.
        reasons: Vec<String>,
    },
}

/// A loaded version. Dropping the last handle frees the model.
#[derive(Debug)]
pub struct LoadedModel {
    /// The model.
    pub name: ModelName,
    /// Its version.
    pub version: ModelVersion,
    /// BLAKE3 of its files.
    pub digest: String,
    /// The text of its `model.toml`, to notice a change.
    pub config_text: String,
    /// Its model config.
    pub config: ModelConfig,
    /// What it takes and gives, with the dimensions that the model config fixes.
    pub signature: Signature,
    /// The most batch elements of a request; `None` when the first dimension is not a batch.
    pub batch_limit: Option<usize>,
    /// The class names of outputs, by output name.
    pub labels: HashMap<String, Vec<String>>,
    /// When a request without its own deadline is given up.
    pub timeout: Duration,
    /// Counters; they outlive this handle.
    pub statistics: Arc<Statistics>,
    /// What the layer above keeps for this handle, and loses with it: nothing outlives the weights it was made from.
    pub attached: OnceLock<Box<dyn Any + Send + Sync>>,
    instances: Instances,
}

/// Where a version is and what is known before it is loaded.
pub(super) struct VersionSource<'a> {
    pub name: &'a ModelName,
    pub version: ModelVersion,
    /// The model's folder.
    pub folder: &'a Path,
    pub config: &'a ModelConfig,
    pub config_text: &'a str,
    pub statistics: Arc<Statistics>,
}

impl LoadedModel {
    /// Loads a version into the first runtime that accepts it and gives its golden answers.
    pub(super) async fn load(
        source: VersionSource<'_>,
        runtimes: &Runtimes,
        defaults: &ModelDefaults,
    ) -> Result<Self, VersionError> {
        let path = source.folder.join(source.version.to_string());
        let read = tokio::task::spawn_blocking(move || folder::version(&path)).await;
        let folder = read.map_err(|panic| no_runtime(format!("reading the model panicked: {panic}")))??;
        let labels = labels(source.config, source.folder)?;
        let mut reasons = Vec::new();
        for runtime in source.config.runtime.candidates(folder.files.format) {
            match Self::load_in(&source, &folder, labels.clone(), runtime, runtimes, defaults).await {
                Ok(model) => {
                    for reason in reasons {
                        tracing::info!(model = %model.name, version = %model.version, reason, chosen = %runtime,
                            "a runtime was passed over");
                    }
                    return Ok(model);
                }
                Err(reason) => reasons.push(reason),
            }
        }
        Err(VersionError::NoRuntime { reasons })
    }

    async fn load_in(
        source: &VersionSource<'_>,
        folder: &folder::VersionFolder,
        labels: HashMap<String, Vec<String>>,
        runtime: Runtime,
        runtimes: &Runtimes,
        defaults: &ModelDefaults,
    ) -> Result<Self, String> {
        let config = source.config;
        let threads = if config.instance_group.threads == 0 { defaults.threads } else { config.instance_group.threads };
        let options = LoadOptions { threads, cache_dir: defaults.cache_dir.clone() };
        let queue_limit = config.queue.max_size.unwrap_or(defaults.max_queue_size);
        let (name, count) = (source.name.as_str(), config.instance_group.count);
        let instances = Instances::start(name, count, queue_limit, runtimes, runtime, &folder.files, &options)
            .await
            .map_err(|error: LoadError| error.to_string())?;
        let completed = config.complete(instances.signature()).map_err(|mistakes| mistakes.join("; "));
        let completed = completed.and_then(|signature| Ok((config.batch_limit(&signature)?, signature)));
        let (batch_limit, signature) = match completed {
            Ok(completed) => completed,
            Err(reason) => {
                let ended = instances.ended();
                drop(instances);
                ended.await;
                return Err(reason);
            }
        };
        let model = Self {
            name: source.name.clone(),
            version: source.version,
            digest: folder.digest.clone(),
            config_text: source.config_text.to_owned(),
            config: config.clone(),
            batch_limit,
            signature,
            labels,
            timeout: config.queue.default_timeout_ms.map_or(defaults.timeout, Duration::from_millis),
            statistics: source.statistics.clone(),
            attached: OnceLock::new(),
            instances,
        };
        let checked = match model.check_config() {
            Ok(()) => golden::check(&model, source.folder).await.map_err(|reason| format!("{runtime}: {reason}")),
            Err(reason) => Err(reason),
        };
        match checked {
            Ok(()) => Ok(model),
            Err(reason) => {
                model.end().await;
                Err(reason)
            }
        }
    }

    /// Ends the model and waits until its memory is given back. A process that ends while a runtime still tears a
    /// model down crashes.
    pub(super) async fn end(self) {
        let ended = self.ended();
        drop(self);
        ended.await;
    }

    /// What the model config promises that the signature does not hold.
    fn check_config(&self) -> Result<(), String> {
        if self.config.pipeline.image_classification.is_some() {
            let (input, _) = self.image_ports()?;
            if let (Some(pipeline), Some(port)) =
                (&self.config.pipeline.image_classification, self.signature.inputs.get(input))
            {
                let prepared = pipeline.preparation().shape();
                let fits = port.shape.len() == prepared.len()
                    && port
                        .shape
                        .iter()
                        .zip(prepared)
                        .all(|(&dim, made)| dim == -1 || usize::try_from(dim) == Ok(made));
                if !fits {
                    return Err(format!(
                        "pipeline.image_classification makes tensors of shape {prepared:?}, input {:?} takes {:?}",
                        port.name, port.shape
                    ));
                }
            }
        }
        Ok(())
    }

    /// The input that takes the photograph and the output that holds the scores, as indices into the signature.
    pub fn image_ports(&self) -> Result<(usize, usize), String> {
        let Some(pipeline) = &self.config.pipeline.image_classification else {
            return Err("the model has no image pipeline".to_owned());
        };
        let find = |kind: &str, ports: &[crate::inference::backend::Port], name: Option<&String>| match name {
            Some(name) => ports
                .iter()
                .position(|port| port.name == *name)
                .ok_or_else(|| format!("pipeline.image_classification.{kind} names {name:?}, which the model lacks")),
            None if ports.len() == 1 => Ok(0),
            None => Err(format!(
                "the model has {} {kind}s: pipeline.image_classification.{kind} must name one",
                ports.len()
            )),
        };
        let input = find("input", &self.signature.inputs, pipeline.input.as_ref())?;
        let output = find("output", &self.signature.outputs, pipeline.output.as_ref())?;
        if self.signature.inputs.len() != 1 {
            return Err("an image model has one input".to_owned());
        }
        Ok((input, output))
    }

    /// The runtime that runs it.
    pub fn runtime(&self) -> Runtime {
        self.instances.runtime()
    }

    /// How many instances run it.
    pub fn instance_count(&self) -> usize {
        self.instances.count()
    }

    /// How many requests wait for it.
    pub fn queue_depth(&self) -> usize {
        self.instances.queue_depth()
    }

    /// Runs the model once. The inputs are in the signature's order and fit it.
    pub async fn run(&self, inputs: Vec<Tensor>, outputs: Vec<usize>, terms: Terms) -> Result<Answer, InferError> {
        self.instances.run(inputs, outputs, terms).await
    }

    /// A future that ends when the model's memory is given back.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        self.instances.ended()
    }
}

fn no_runtime(reason: String) -> VersionError {
    VersionError::NoRuntime { reasons: vec![reason] }
}

pub(super) fn labels(config: &ModelConfig, folder: &Path) -> Result<HashMap<String, Vec<String>>, FolderError> {
    let named = config.output.iter().filter_map(|output| Some((&output.name, output.labels.as_ref()?)));
    named.map(|(name, file)| Ok((name.clone(), folder::labels(&folder.join(file))?))).collect()
}
