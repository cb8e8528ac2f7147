//! One version of a model, loaded, warmed up and checked, which answers requests.

use std::any::Any;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::principal::Principal;
use ledge_engine::Runtimes;
use ledge_engine::backend::{ModelPort, ModelSignature, Runtime};
use ledge_engine::pipeline::content::PipelineInput;
use ledge_engine::pipeline::kind::Pipeline;
use ledge_engine::pipeline::quantization::Quantization;
use ledge_engine::pipeline::setup::PipelineSetup;
use ledge_identity::sealing::{EncryptedFolder, Sealer};
use ledge_isolation::Isolation;
use ledge_service::audit_event::{AuditSink, GoldenFallback};

use super::super::scheduling::instance_spec::{InstanceScale, InstanceUsage};
use super::folder::VersionFile;
use super::model_config::ModelConfig;
use super::profile::{RunProfile, RunProfiles};
use super::runtime_refusal::RuntimeRefusal;
use super::statistics::VersionStatistics;
use crate::scheduling::batch_policy::BatchPolicy;
use crate::scheduling::faults::ModelFaults;
use crate::scheduling::instance::ModelInstances;
use crate::scheduling::terms::Priority;

/// Settings of the daemon's configuration for every model.
#[derive(Debug, Clone)]
pub struct ModelDefaults {
    /// Requests of each priority that may wait for one model.
    pub max_queue_size: usize,
    /// Time after which a caller gets 504.
    pub timeout: Duration,
    /// Time without a call after which a model is unloaded; `None` is never.
    pub keep_alive: Option<Duration>,
    /// Folder of compiled models, kept between starts; `None` keeps none.
    pub cache_dir: Option<PathBuf>,
    /// The profiles measured on this box.
    pub profiles: RunProfiles,
    /// Set to measure a model at its load, when several runtimes accept it and it was not measured yet.
    pub measure: bool,
    /// The process of a model without a setting in its config.
    pub isolation: Isolation,
    /// Takes the crashes of models.
    pub audit: AuditSink,
    /// Opens the models that updates brought.
    pub sealer: Sealer,
}

/// A loaded version. Dropping the last handle frees the model.
#[derive(Debug)]
pub struct LoadedModel {
    pub name: ModelName,
    pub version: ModelVersion,
    /// BLAKE3 of its files.
    pub digest: String,
    /// Those files.
    pub files: Vec<VersionFile>,
    /// The folder of its files.
    pub folder: PathBuf,
    /// The name of the file that is run.
    pub file: String,
    /// True when the file is the float original instead of the model.
    pub is_fallback: bool,
    /// True when the runtime uses slower instructions, if it can, where the CPU's own for int8 would give wrong sums.
    pub exact_int8: bool,
    /// The runtimes and files that were tried first and answered golden inputs wrong; empty for a model that runs as it
    /// should.
    pub passed_over: Vec<RuntimeRefusal>,
    /// The profile that it runs by; `None` for one that was never measured here.
    pub profile: Option<RunProfile>,
    /// The text of its `model.toml`, to notice a change.
    pub config_text: String,
    pub config: ModelConfig,
    /// Inputs and outputs, with the dimensions that the model config fixes.
    pub signature: ModelSignature,
    /// The most batch elements of a request; `None` when the first dimension is not a batch.
    pub batch_limit: Option<usize>,
    /// The class names of outputs, by output name.
    pub labels: HashMap<String, Arc<[String]>>,
    /// Scale and zero point of the integers of inputs and outputs, by their names, where known.
    pub quantization: HashMap<String, Quantization>,
    /// The content of the files that its pipeline needs, by their names.
    pub pipeline_files: HashMap<String, Bytes>,
    /// The pipeline that its config sets up, if there is one.
    pub pipeline: Option<Arc<dyn Pipeline>>,
    /// When a request without its own deadline is given up.
    pub timeout: Duration,
    /// Counters; they outlive this handle.
    pub statistics: Arc<VersionStatistics>,
    /// State that the layer above attaches to this handle. It is dropped with the handle, so nothing outlives the
    /// weights it was made from.
    pub attached: OnceLock<Box<dyn Any + Send + Sync>>,
    /// Its golden inputs, which are tried again after a crash.
    pub(super) golden_files: GoldenFiles,
    pub(super) instances: ModelInstances,
    /// The other models of a chain.
    pub(super) parts: Vec<LoadedPart>,
    /// The metadata of the files of a chain, by the names of its models.
    pub(super) part_metadata: HashMap<String, HashMap<String, String>>,
}

/// The golden inputs of a loaded version.
#[derive(Debug)]
pub(super) struct GoldenFiles {
    pub folder: PathBuf,
    /// The least share that must be answered right; `None` is all of them.
    pub min: Option<f64>,
    /// The encrypted folder, instead of `folder`.
    pub sealed: Option<EncryptedFolder>,
}

/// One of the models of a chain, loaded.
#[derive(Debug)]
pub(super) struct LoadedPart {
    pub name: &'static str,
    pub instances: ModelInstances,
}

impl LoadedModel {
    /// The folder of its golden inputs; `None` for an encrypted version while its files are not decrypted.
    pub fn golden_folder(&self) -> Option<&Path> {
        self.golden_files.sealed.is_none().then_some(&self.golden_files.folder)
    }

    /// Compares the model config with the signature, and sets up the pipeline.
    pub(super) fn bind_config(&mut self) -> Result<(), String> {
        if let Some(setup) = self.pipeline_setup()? {
            let pipeline = setup.bind()?;
            if let Some(chain) = pipeline.chain() {
                self.signature = chain.signature();
                self.batch_limit = None;
            }
            self.pipeline = Some(self.instances.pipeline(pipeline, setup));
        }
        for (position, port) in self.signature.outputs.iter().enumerate() {
            // A pipeline knows how its outputs hold classes.
            let is_of_pipeline = self
                .pipeline
                .as_ref()
                .is_some_and(|pipeline| pipeline.outputs().contains(&position) && pipeline.scores() != Some(position));
            if let Some(classes) = class_count(port).filter(|_| !is_of_pipeline) {
                self.check_labels(&port.name, classes)?;
            }
        }
        Ok(())
    }

    /// The facts of which its pipeline is made, if it has one. Of a chain only before its config is bound: afterwards
    /// the signature is the one that callers see.
    fn pipeline_setup(&self) -> Result<Option<PipelineSetup>, String> {
        if self.config.pipeline.section().is_none() {
            return Ok(None);
        }
        let parts = self.all_instances().filter(|_| self.is_chain());
        Ok(Some(PipelineSetup {
            signature: self.signature.clone(),
            labels: self.labels.clone(),
            quantization: self.quantization.clone(),
            files: self.pipeline_files.clone(),
            parts: parts.map(|(name, part)| (name.to_owned(), part.signature().clone())).collect(),
            part_metadata: self.part_metadata.clone(),
            ..PipelineSetup::new(&self.config.pipeline, &self.config.field)?
        }))
    }

    /// The names of these outputs of the model.
    pub fn output_names(&self, outputs: &[usize]) -> Vec<String> {
        outputs.iter().filter_map(|&index| Some(self.signature.outputs.get(index)?.name.clone())).collect()
    }

    /// The content that its pipeline takes; `None` for a model that takes tensors only.
    pub fn input(&self) -> Option<PipelineInput> {
        self.config.pipeline.input()
    }

    /// The names of the results of a pipeline of the model.
    pub fn result_names(&self, pipeline: &dyn Pipeline) -> Vec<String> {
        match pipeline.results() {
            Some(results) => results.iter().map(ToString::to_string).collect(),
            None => self.output_names(pipeline.outputs()),
        }
    }

    /// Checks that the label file of an output has a line for each of its classes.
    pub(super) fn check_labels(&self, output: &str, classes: usize) -> Result<(), String> {
        let Some(labels) = self.labels.get(output) else { return Ok(()) };
        let lines = labels.len();
        let is_rest_empty = labels.get(classes..).is_some_and(|rest| rest.iter().all(String::is_empty));
        if is_rest_empty {
            return Ok(());
        }
        let named = self.config.output.iter().find(|port| port.name == output);
        let file = named.and_then(|port| port.labels.as_deref()).unwrap_or("the label file");
        let hint = match () {
            () if classes == lines + 1 => "; is a first line \"background\" missing?",
            () if lines == classes + 1 => "; does it begin with a background class that the model lacks?",
            () => "",
        };
        Err(format!(
            "output {output:?} has {classes} classes and {file} has {lines} lines: give it a line for each class, in the \
             model's order{hint}"
        ))
    }

    /// For people: the file and runtime that stand in for one that answered golden inputs wrong, and the wrong answers.
    pub fn stand_in(&self) -> Option<String> {
        let wrong = self.passed_over.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        let how = if self.exact_int8 && !self.is_fallback { " with slower, exact instructions" } else { "" };
        (!wrong.is_empty()).then(|| format!("{} in {}{how} stands in: {wrong}", self.file, self.runtime()))
    }

    /// The runtime in which the version's own file passed all its checks; `None` where another stands in for that.
    pub(super) fn checked_in(&self) -> Option<Runtime> {
        self.passed_over.is_empty().then(|| self.runtime())
    }

    /// The same as [`Self::stand_in`] for a record of the audit log.
    pub(super) fn fell_back_to(&self) -> Option<GoldenFallback> {
        let to = if self.is_fallback { GoldenFallback::Float } else { GoldenFallback::Runtime };
        (!self.passed_over.is_empty()).then_some(to)
    }

    /// The runtime that runs it.
    pub fn runtime(&self) -> Runtime {
        self.instances.runtime()
    }

    /// True when it runs in the library of these runtimes.
    pub(super) fn runs_in(&self, runtimes: &Runtimes) -> bool {
        self.instances.runs_in(runtimes)
    }

    /// The faults of its processes; those of all models of a chain.
    pub fn faults(&self) -> &ModelFaults {
        self.instances.faults()
    }

    /// The reason why it was unloaded, because its processes ended too often or its golden inputs failed after that;
    /// `None` while it runs.
    pub fn fault(&self) -> Option<String> {
        self.faults().unloaded()
    }

    /// The report about it while it runs: calls end its process again and again.
    pub fn crashing(&self) -> Option<String> {
        if self.fault().is_some() { None } else { self.faults().crashing(Instant::now()) }
    }

    /// Unloads the instances that do not run now. The next call loads them again.
    pub(super) fn evict(&self) {
        self.all_instances().for_each(|(_, instances)| instances.evict());
    }

    /// Bounds of the number of its instances, and the cores of one run.
    pub fn scale(&self) -> InstanceScale {
        self.instances.scale()
    }

    /// Current rule for joining requests; `None` when each runs by itself.
    pub fn batching(&self) -> Option<BatchPolicy> {
        self.instances.batching()
    }

    /// The most requests of each priority that may wait.
    pub fn queue_limit(&self) -> usize {
        self.instances.limits().jobs
    }

    /// Number of waiting requests, when another request of that caller would be refused now because the queue is full;
    /// otherwise `None`.
    pub fn refusal(&self, priority: Priority, principal: &Principal) -> Option<usize> {
        self.instances.refusal(priority, principal)
    }

    /// Number of instances now, their memory, and the number of waiting requests. Of a chain, the memory and the
    /// requests of all its models.
    pub fn instance_usage(&self) -> InstanceUsage {
        self.parts.iter().fold(self.instances.instance_usage(), |mut usage, part| {
            let InstanceUsage { bytes, bytes_each, queued, queued_interactive, .. } = part.instances.instance_usage();
            usage.bytes += bytes;
            usage.bytes_each += bytes_each;
            usage.queued += queued;
            usage.queued_interactive += queued_interactive;
            usage
        })
    }

    /// Counts runs from now on: they answer requests.
    pub(super) fn count_runs(&self) {
        self.all_instances().for_each(|(_, instances)| instances.count_runs());
    }

    /// True for a model that consists of several.
    pub fn is_chain(&self) -> bool {
        !self.config.chain_models().is_empty()
    }

    /// The instances of all its models, by their names.
    fn all_instances(&self) -> impl Iterator<Item = (&'static str, &ModelInstances)> {
        let first = self.config.chain_models().first().map_or("model", |model| model.name);
        std::iter::once((first, &self.instances)).chain(self.parts.iter().map(|part| (part.name, &part.instances)))
    }

    /// The instances of a model of a chain.
    pub(super) fn part(&self, name: &str) -> Option<&ModelInstances> {
        self.all_instances().find(|(known, _)| *known == name).map(|(_, instances)| instances)
    }

    /// Number of waiting requests.
    pub fn queue_depth(&self) -> usize {
        self.instance_usage().queued
    }

    /// Memory of the model's own process, in bytes. `None` for a shared process: the kernel does not know which model a
    /// page belongs to, and the growth during a load says little, because a load uses memory that others have freed.
    pub fn memory_bytes(&self) -> Option<u64> {
        // The parts of a chain are in the same process.
        self.instances.own_memory()
    }

    /// A future that ends when the model's memory is freed.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let all: Vec<_> = self.all_instances().map(|(_, instances)| instances.ended()).collect();
        async move {
            for ended in all {
                ended.await;
            }
        }
    }
}

/// Number of classes of an output of scores; `None` where its signature does not say, or it has no scores.
fn class_count(port: &ModelPort) -> Option<usize> {
    let of_one = match port.shape.as_slice() {
        [] => return None,
        [classes] => std::slice::from_ref(classes),
        [_, rest @ ..] => rest,
    };
    let mut sides = of_one.iter().filter(|&&side| side != 1);
    let classes = sides.next().copied().unwrap_or(1);
    sides.next().is_none().then(|| usize::try_from(classes).ok())?
}
