//! One version of a model, loaded, warmed up and checked: what answers requests.

use std::any::Any;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use ledge_base::memory_budget::Account;
use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::principal::Principal;
use ledge_base::tensor::Tensor;
use ledge_engine::backend::{Port, Runtime, Signature};
use ledge_engine::pipeline::image::DecodeLimits;
use ledge_engine::pipeline::kind::{InputError, Model, Pipeline};
use ledge_engine::pipeline::quantization::Quantization;
use ledge_identity::sealing::Sealer;
use ledge_service::audit_event::Fallback;

use super::loading::Refusal;
use super::model_config::ModelConfig;
use super::profile::Profiles;
use super::statistics::Statistics;
use crate::scheduling::batcher::BatchPolicy;
use crate::scheduling::instance::{Answer, InferError, Instances, Residence};
use crate::scheduling::queue::Unprepared;
use crate::scheduling::scheduler::Scale;
use crate::scheduling::terms::{Priority, Terms};

/// What the daemon's configuration says for every model.
#[derive(Debug, Clone)]
pub struct ModelDefaults {
    /// Requests of each priority that may wait for one model.
    pub max_queue_size: usize,
    /// After this a caller gets 504.
    pub timeout: Duration,
    /// After how long without a call a model gives its memory back; `None` is never.
    pub keep_alive: Option<Duration>,
    /// Where compiled models are kept between starts, if anywhere.
    pub cache_dir: Option<PathBuf>,
    /// What was measured on this box.
    pub profiles: Profiles,
    /// Whether a model that several runtimes accept, and that was not measured yet, is measured when it is loaded.
    pub measure: bool,
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
    /// The folder of its files.
    pub folder: PathBuf,
    /// The name of the file that is run.
    pub file: String,
    /// Whether that is the float original, in the place of the model.
    pub is_fallback: bool,
    /// Whether the runtime takes slower instructions where the CPU's own for int8 would give wrong sums, if it can.
    pub exact_int8: bool,
    /// Which runtimes and files were tried before and answered golden inputs wrong; none for one that runs as it should.
    pub passed_over: Vec<Refusal>,
    /// The text of its `model.toml`, to notice a change.
    pub config_text: String,
    pub config: ModelConfig,
    /// What it takes and gives, with the dimensions that the model config fixes.
    pub signature: Signature,
    /// The most batch elements of a request; `None` when the first dimension is not a batch.
    pub batch_limit: Option<usize>,
    /// The class names of outputs, by output name.
    pub labels: HashMap<String, Arc<[String]>>,
    /// What the integers of inputs and outputs are worth, by their names, where that is known.
    pub quantization: HashMap<String, Quantization>,
    /// The pipeline that its config sets up, if there is one.
    pub pipeline: Option<Arc<dyn Pipeline>>,
    /// When a request without its own deadline is given up.
    pub timeout: Duration,
    /// Counters; they outlive this handle.
    pub statistics: Arc<Statistics>,
    /// What the layer above keeps for this handle, and loses with it: nothing outlives the weights it was made from.
    pub attached: OnceLock<Box<dyn Any + Send + Sync>>,
    pub(super) instances: Instances,
}

impl LoadedModel {
    /// Compares the model config with the signature, and sets up the pipeline.
    pub(super) fn bind_config(&mut self) -> Result<(), String> {
        for port in &self.signature.outputs {
            if let Some(classes) = class_count(port) {
                self.check_labels(&port.name, classes)?;
            }
        }
        let Some(section) = self.config.pipeline.section() else { return Ok(()) };
        let model = Model { signature: &self.signature, labels: &self.labels, quantization: &self.quantization };
        self.pipeline = Some(section.bind(model)?);
        Ok(())
    }

    /// Whether the label file of an output has a line for each of its classes.
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

    /// For people: what is run instead of that which answered golden inputs wrong, and what was wrong.
    pub fn stand_in(&self) -> Option<String> {
        let wrong = self.passed_over.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        let how = if self.exact_int8 && !self.is_fallback { " with slower, exact instructions" } else { "" };
        (!wrong.is_empty()).then(|| format!("{} in {}{how} stands in: {wrong}", self.file, self.runtime()))
    }

    /// The same for a record of the audit log, where it is no text.
    pub(super) fn fell_back_to(&self) -> Option<Fallback> {
        let to = if self.is_fallback { Fallback::Float } else { Fallback::Runtime };
        (!self.passed_over.is_empty()).then_some(to)
    }

    /// The runtime that runs it.
    pub fn runtime(&self) -> Runtime {
        self.instances.runtime()
    }

    /// Its instances: between which numbers, and cores of one run.
    pub fn scale(&self) -> Scale {
        self.instances.scale()
    }

    /// How requests are put together now; `None` when each runs alone.
    pub fn batching(&self) -> Option<BatchPolicy> {
        self.instances.batching()
    }

    /// How many requests of each priority may wait.
    pub fn queue_limit(&self) -> usize {
        self.instances.limits().jobs
    }

    /// How many wait, when another request of that caller would be refused for their number as things stand.
    pub fn refusal(&self, priority: Priority, principal: &Principal) -> Option<usize> {
        self.instances.refusal(priority, principal)
    }

    /// How many instances there are now, what they take, and how many requests wait.
    pub fn residence(&self) -> Residence {
        self.instances.residence()
    }

    /// How many requests wait for it.
    pub fn queue_depth(&self) -> usize {
        self.instances.residence().queued
    }

    /// The memory of its instances in bytes, as far as it could be measured when they were loaded.
    pub fn memory_bytes(&self) -> u64 {
        self.instances.residence().bytes
    }

    /// Runs the model once. The inputs are in the signature's order and fit it.
    pub async fn run(&self, inputs: Vec<Tensor>, outputs: Vec<usize>, terms: Terms) -> Result<Answer, InferError> {
        let rows = self.batch_limit.and_then(|_| inputs.first()?.shape().first().copied()).unwrap_or(1);
        self.instances.run(inputs, outputs, rows, terms).await
    }

    /// Runs the model on what `pipeline`, the model's own, makes of `content`, on a core of its own. Intermediate results
    /// count for `account` while they are there.
    pub async fn run_pipeline(
        &self,
        pipeline: &Arc<dyn Pipeline>,
        content: Bytes,
        limits: DecodeLimits,
        account: Account,
        outputs: Vec<usize>,
        terms: Terms,
    ) -> Result<Answer, InferError> {
        let (pipeline, bytes) = (pipeline.clone(), content.len());
        let make = move || {
            let mut hold = account.hold();
            pipeline.prepare(&content, limits, &mut hold).map_err(|error| match error {
                InputError::Content(reason) => Unprepared::Misfit(reason),
                InputError::NoRoom(error) => Unprepared::NoRoom(error),
            })
        };
        self.instances.run_prepared(Box::new(make), bytes, outputs, terms).await
    }

    /// A future that ends when the model's memory is given back.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        self.instances.ended()
    }
}

/// How many classes an output of scores has; `None` where its signature does not say, or it is of something else.
fn class_count(port: &Port) -> Option<usize> {
    let of_one = match port.shape.as_slice() {
        [] => return None,
        [classes] => std::slice::from_ref(classes),
        [_, rest @ ..] => rest,
    };
    let mut sides = of_one.iter().filter(|&&side| side != 1);
    let classes = sides.next().copied().unwrap_or(1);
    sides.next().is_none().then(|| usize::try_from(classes).ok())?
}
