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
use crate::inference::backend::RunError;
use crate::inference::instance::{Answer, InferError};
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
    max_pixels: u64,
}

impl Serving {
    /// A serving core over a repository. Photographs above `max_pixels` are refused; `decoders` are decoded at a time.
    pub fn new(repository: Repository, audit: AuditSink, decoders: usize, max_pixels: u64) -> Self {
        Self { repository, audit, decoders: Arc::new(Semaphore::new(decoders.max(1))), max_pixels }
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
        let started = Instant::now();
        let pinned = self.repository.pin(&request.model, request.version);
        let model = self.admit(pinned, &request.model, principal)?;
        let result = self.infer_pinned(&model, request, started).await;
        self.finish(&model, principal, started, result.is_ok());
        result
    }

    /// Answers a photograph (JPEG, PNG or WebP) with its best classes. `version` as in a request.
    pub async fn classify(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
        photograph: Bytes,
        principal: &Principal,
    ) -> Result<Classified, ServingError> {
        let started = Instant::now();
        let pinned = self.repository.pin(name, version);
        let model = self.admit(pinned, name, principal)?;
        let result = self.classify_pinned(&model, photograph, started).await;
        self.finish(&model, principal, started, result.is_ok());
        result
    }

    fn admit(
        &self,
        pinned: Result<Arc<LoadedModel>, PinError>,
        name: &ModelName,
        principal: &Principal,
    ) -> Result<Arc<LoadedModel>, ServingError> {
        if pinned.is_err() {
            let (model, principal) = (name.clone(), principal.clone());
            self.audit.record(AuditEvent::Inference { model, version: None, principal, ok: false });
        }
        Ok(pinned?)
    }

    fn finish(&self, model: &LoadedModel, principal: &Principal, started: Instant, ok: bool) {
        if !ok {
            model.statistics.failed(started.elapsed());
        }
        let (name, principal) = (model.name.clone(), principal.clone());
        self.audit.record(AuditEvent::Inference { model: name, version: Some(model.version), principal, ok });
    }

    async fn infer_pinned(
        &self,
        model: &LoadedModel,
        request: InferRequest,
        started: Instant,
    ) -> Result<InferResponse, ServingError> {
        let fitted = inputs::fit(model, request.inputs, request.outputs.as_deref())?;
        let deadline = request.deadline.unwrap_or(started + model.timeout);
        let mut response = run(model, fitted, deadline, started, Duration::ZERO).await?;
        if let Some(wanted) = &request.outputs {
            classify_outputs(model, wanted, &mut response)?;
        }
        Ok(response)
    }

    async fn classify_pinned(
        &self,
        model: &Arc<LoadedModel>,
        photograph: Bytes,
        started: Instant,
    ) -> Result<Classified, ServingError> {
        let misfit = |reason: String| ServingError::Misfit(Misfit::Photograph { reason });
        let Some(pipeline) = &model.config.pipeline.image_classification else {
            return Err(misfit(format!(
                "model '{}' takes no photographs: its model.toml has no [pipeline.image_classification]. Send tensors",
                model.name
            )));
        };
        let (input, output) = model.image_ports().map_err(misfit)?;
        let port = model.signature.inputs.get(input).ok_or_else(|| misfit("the model has no input".to_owned()))?;
        let tensor = self.decode(model.clone(), port.datatype, photograph).await?;
        let decode = started.elapsed();
        let fitted = Fitted { inputs: vec![tensor], outputs: vec![output], batch: 1 };
        let response = run(model, fitted, started + model.timeout, started, decode).await?;
        let (name, scores) = response.outputs.first().ok_or_else(|| misfit("no output came".to_owned()))?;
        let labels = pipeline
            .labels(scores, model.labels.get(name).map_or(&[], Vec::as_slice))
            .map_err(|error| failed(model, error.to_string()))?;
        Ok(Classified { response, labels })
    }

    /// Decodes and prepares a photograph off the async threads.
    async fn decode(
        &self,
        model: Arc<LoadedModel>,
        datatype: crate::tensor::DataType,
        photograph: Bytes,
    ) -> Result<Tensor, ServingError> {
        let limits = DecodeLimits { max_pixels: self.max_pixels };
        // Never closed. Queued here, a photograph waits undecoded: that is a few hundred kB, not some MB.
        let permit = self.decoders.clone().acquire_owned().await;
        let decoded =
            tokio::task::spawn_blocking(move || {
                let _permit = permit;
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

async fn run(
    model: &LoadedModel,
    fitted: Fitted,
    deadline: Instant,
    started: Instant,
    decode: Duration,
) -> Result<InferResponse, ServingError> {
    let Fitted { inputs, outputs, batch } = fitted;
    let names: Vec<String> =
        outputs.iter().filter_map(|&index| Some(model.signature.outputs.get(index)?.name.clone())).collect();
    let Answer { run, queue } = model.run(inputs, outputs, deadline).await.map_err(|error| match error {
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
    model.statistics.succeeded(clock::unix_millis(), batch, started.elapsed(), queue, compute);
    Ok(InferResponse {
        model: model.name.clone(),
        version: model.version,
        runtime: model.runtime(),
        outputs: names.into_iter().zip(run.outputs).collect(),
        timings: Timings { decode, queue, compute: compute.total() },
    })
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
