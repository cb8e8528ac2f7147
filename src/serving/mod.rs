//! What HTTP, MQTT and the command line call: one inference, whatever the protocol.
//!
//! Each call is counted once and audited once, here.

pub mod config;
pub mod inputs;
pub mod request;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::audit_event::{AuditEvent, AuditSink};
use crate::clock;
use crate::inference::backend::{ComputeTime, RunError};
use crate::inference::instance::{Answer, InferError};
use crate::inference::terms::{Priority, Terms};
use crate::names::{ModelName, ModelVersion};
use crate::pipeline::classification::{self, Label};
use crate::pipeline::image::{self, DecodeLimits};
use crate::principal::Principal;
use crate::repository::{LoadedModel, PinError, Repository};
use crate::tensor::Tensor;
use inputs::{Fitted, Misfit};
use request::{InferRequest, InferResponse, OutputRequest, Timings};

/// Why a call was not answered.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// No such model or version, or none is loaded.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The request does not fit the model.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// The model's queue is full.
    #[error("Exceeds maximum queue size: {depth} requests wait for '{model}'")]
    Overloaded {
        /// The model.
        model: ModelName,
        /// How many wait.
        depth: usize,
    },
    /// The deadline passed.
    #[error("Request timeout expired for '{model}' after {} ms", waited.as_millis())]
    DeadlineExceeded {
        /// The model.
        model: ModelName,
        /// Since the call came in.
        waited: Duration,
    },
    /// An input that the runtime does not take.
    #[error("model '{model}': {reason}")]
    BadInput {
        /// The model.
        model: ModelName,
        /// What is wrong with it.
        reason: String,
    },
    /// The model failed on this input.
    #[error("model '{model}': {reason}")]
    ModelFailed {
        /// The model.
        model: ModelName,
        /// The runtime's words.
        reason: String,
    },
}

/// The answer to a photograph.
#[derive(Debug)]
pub struct Classified {
    /// The model's answer; its one output is the scores.
    pub response: InferResponse,
    /// The best classes, best first.
    pub labels: Vec<Label>,
}

/// A handle to the serving core. Clones share it.
#[derive(Debug, Clone)]
pub struct Serving {
    repository: Repository,
    audit: AuditSink,
    /// One permit a core: decoding photographs may use all cores, but never more threads than that.
    decoders: Arc<Semaphore>,
    /// One permit for each photograph that is decoded or waits for it.
    photographs: Arc<Semaphore>,
    max_queue_size: usize,
    max_pixels: u64,
}

impl Serving {
    /// A serving core over a repository. Photographs above `max_pixels` are refused; `decoders` are decoded at a time
    /// and `max_queue_size` more may wait for that.
    pub fn new(
        repository: Repository,
        audit: AuditSink,
        decoders: usize,
        max_queue_size: usize,
        max_pixels: u64,
    ) -> Self {
        let decoders = decoders.max(1);
        let photographs = Arc::new(Semaphore::new(decoders.saturating_add(max_queue_size).min(Semaphore::MAX_PERMITS)));
        Self {
            repository,
            audit,
            photographs,
            decoders: Arc::new(Semaphore::new(decoders)),
            max_queue_size,
            max_pixels,
        }
    }

    /// The model repository.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Where audit events go.
    pub fn audit(&self) -> &AuditSink {
        &self.audit
    }

    /// Answers an inference call.
    pub async fn infer(&self, request: InferRequest, principal: &Principal) -> Result<InferResponse, ServingError> {
        let call = self.call(&request.model, request.version, principal)?;
        let (response, counted) = infer_pinned(&call.model, request, call.started, principal).await?;
        call.succeed(counted);
        Ok(response)
    }

    /// Answers a photograph (JPEG, PNG or WebP) with its best classes. `version` as in a request.
    pub async fn classify(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
        photograph: Bytes,
        principal: &Principal,
    ) -> Result<Classified, ServingError> {
        let call = self.call(name, version, principal)?;
        let (classified, counted) = self.classify_pinned(&call.model, photograph, call.started, principal).await?;
        call.succeed(counted);
        Ok(classified)
    }

    /// Pins the model for one call.
    fn call<'a>(
        &'a self,
        name: &ModelName,
        version: Option<ModelVersion>,
        principal: &'a Principal,
    ) -> Result<Call<'a>, ServingError> {
        let started = Instant::now();
        match self.repository.pin(name, version) {
            Ok(model) => Ok(Call { audit: &self.audit, model, principal, started, counted: None }),
            Err(error) => {
                let (model, principal) = (name.clone(), principal.clone());
                self.audit.record(AuditEvent::Inference { model, version: None, principal, ok: false });
                Err(error.into())
            }
        }
    }

    async fn classify_pinned(
        &self,
        model: &Arc<LoadedModel>,
        photograph: Bytes,
        started: Instant,
        principal: &Principal,
    ) -> Result<(Classified, Counted), ServingError> {
        let misfit = |reason: String| ServingError::Misfit(Misfit::Photograph { reason });
        let Some(pipeline) = &model.config.pipeline.image_classification else {
            return Err(misfit(format!(
                "model '{}' takes no photographs: its model.toml has no [pipeline.image_classification]. Send tensors",
                model.name
            )));
        };
        let (input, output) = model.image_ports().map_err(misfit)?;
        let port = model.signature.inputs.get(input).ok_or_else(|| misfit("the model has no input".to_owned()))?;
        let deadline = started + model.timeout;
        let tensor = self.decode(model.clone(), port.datatype, photograph, started, deadline).await?;
        let decode = started.elapsed();
        let fitted = Fitted { inputs: vec![tensor], outputs: vec![output], batch: 1 };
        let terms = Terms { deadline, priority: Priority::default(), principal: principal.clone() };
        let (response, counted) = run(model, fitted, terms, started, decode).await?;
        let (name, scores) = response.outputs.first().ok_or_else(|| misfit("no output came".to_owned()))?;
        let labels = pipeline
            .labels(scores, model.labels.get(name).map_or(&[], Vec::as_slice))
            .map_err(|error| failed(model, error.to_string()))?;
        Ok((Classified { response, labels }, counted))
    }

    /// Decodes and prepares a photograph off the async threads.
    async fn decode(
        &self,
        model: Arc<LoadedModel>,
        datatype: crate::tensor::DataType,
        photograph: Bytes,
        started: Instant,
        deadline: Instant,
    ) -> Result<Tensor, ServingError> {
        let limits = DecodeLimits { max_pixels: self.max_pixels };
        let place = self
            .photographs
            .clone()
            .try_acquire_owned()
            .map_err(|_| ServingError::Overloaded { model: model.name.clone(), depth: self.max_queue_size })?;
        // Queued here, a photograph waits undecoded: that is a few hundred kB, not some MB.
        let turn = tokio::time::timeout_at(deadline.into(), self.decoders.clone().acquire_owned());
        let permit = turn
            .await
            .map_err(|_| ServingError::DeadlineExceeded { model: model.name.clone(), waited: started.elapsed() })?;
        let decoded =
            tokio::task::spawn_blocking(move || {
                let _held = (permit, place);
                let pipeline = model.config.pipeline.image_classification.as_ref()?;
                let image = image::decode(&photograph, limits).map_err(|error| error.to_string());
                Some(image.and_then(|image| {
                    pipeline.preparation().prepare(&image, datatype).map_err(|error| error.to_string())
                }))
            });
        let reason = match decoded.await {
            Ok(Some(Ok(tensor))) => return Ok(tensor),
            Ok(Some(Err(reason))) => reason,
            Ok(None) => "the model takes no photographs".to_owned(),
            Err(_) => "the photograph cannot be decoded".to_owned(),
        };
        Err(Misfit::Photograph { reason }.into())
    }
}

/// One call on its way. When it is dropped it is counted and audited, once: as a failure unless it succeeded, so a
/// caller that hung up leaves its trace too.
struct Call<'a> {
    audit: &'a AuditSink,
    model: Arc<LoadedModel>,
    principal: &'a Principal,
    started: Instant,
    counted: Option<Counted>,
}

/// What an answered call adds to the statistics.
struct Counted {
    batch: usize,
    queue: Duration,
    compute: ComputeTime,
}

impl Call<'_> {
    fn succeed(mut self, counted: Counted) {
        self.counted = Some(counted);
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let (statistics, total) = (&self.model.statistics, self.started.elapsed());
        match &self.counted {
            Some(Counted { batch, queue, compute }) => {
                statistics.succeeded(clock::unix_millis(), *batch, total, *queue, *compute);
                statistics.executed(*batch, *compute, Duration::ZERO);
            }
            None => statistics.failed(total),
        }
        self.audit.record(AuditEvent::Inference {
            model: self.model.name.clone(),
            version: Some(self.model.version),
            principal: self.principal.clone(),
            ok: self.counted.is_some(),
        });
    }
}

async fn infer_pinned(
    model: &LoadedModel,
    request: InferRequest,
    started: Instant,
    principal: &Principal,
) -> Result<(InferResponse, Counted), ServingError> {
    let fitted = inputs::fit(model, request.inputs, request.outputs.as_deref())?;
    // A caller may only shorten the model's own deadline.
    let longest = started + model.timeout;
    let deadline = request.deadline.map_or(longest, |asked| asked.min(longest));
    let terms = Terms { deadline, priority: request.priority.unwrap_or_default(), principal: principal.clone() };
    let (mut response, counted) = run(model, fitted, terms, started, Duration::ZERO).await?;
    if let Some(wanted) = &request.outputs {
        classify_outputs(model, wanted, &mut response)?;
    }
    Ok((response, counted))
}

async fn run(
    model: &LoadedModel,
    fitted: Fitted,
    terms: Terms,
    started: Instant,
    decode: Duration,
) -> Result<(InferResponse, Counted), ServingError> {
    let Fitted { inputs, outputs, batch } = fitted;
    let names: Vec<String> =
        outputs.iter().filter_map(|&index| Some(model.signature.outputs.get(index)?.name.clone())).collect();
    let Answer { run, queue } = model.run(inputs, outputs, terms).await.map_err(|error| match error {
        InferError::Overloaded { depth } => ServingError::Overloaded { model: model.name.clone(), depth },
        InferError::DeadlineExceeded { .. } => {
            ServingError::DeadlineExceeded { model: model.name.clone(), waited: started.elapsed() }
        }
        InferError::Run(error @ RunError::Input { .. }) => {
            ServingError::BadInput { model: model.name.clone(), reason: error.to_string() }
        }
        InferError::Run(error) => failed(model, error.to_string()),
    })?;
    let compute = run.time;
    let response = InferResponse {
        model: model.name.clone(),
        version: model.version,
        runtime: model.runtime(),
        outputs: names.into_iter().zip(run.outputs).collect(),
        timings: Timings { decode, queue, compute: compute.total() },
    };
    Ok((response, Counted { batch, queue, compute }))
}

fn failed(model: &LoadedModel, reason: String) -> ServingError {
    ServingError::ModelFailed { model: model.name.clone(), reason }
}

/// Replaces the outputs for which the caller asked classes.
fn classify_outputs(
    model: &LoadedModel,
    wanted: &[OutputRequest],
    response: &mut InferResponse,
) -> Result<(), ServingError> {
    for (wanted, (name, tensor)) in wanted.iter().zip(&mut response.outputs) {
        let Some(count) = wanted.classification else { continue };
        let labels = model.labels.get(name).map_or(&[][..], Vec::as_slice);
        *tensor = classification::classify(tensor, count, labels).map_err(|error| Misfit::Classification {
            model: model.name.to_string(),
            output: name.clone(),
            reason: error.to_string(),
        })?;
    }
    Ok(())
}
