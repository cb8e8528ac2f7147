//! Serving: one inference, the same for every protocol. HTTP, MQTT and the command line call it.
//!
//! Files, in reading order:
//! * `request.rs` - a request to a model, and its response
//! * `config.rs` - `[serving]`, `[response_cache]` and `[quota]`
//! * `windows.rs` - the times of day for background work
//! * `admission.rs` - quotas of callers, limits of models, and the times of day
//! * `budgets.rs` - the budgets of callers and models that are spent
//! * `feature_inputs.rs` - inputs made of features, from entity keys
//! * `feature_inputs/` - `feature_columns.rs` has the values of features, `columns.rs` reads keys from tensors,
//!   `rows.rs` makes a tensor of cells, `cells.rs` fills rows of a table
//! * `error.rs` - the reasons why a call has no answer
//! * `inputs.rs` - comparison of a request with the signature of the model
//! * `cache.rs` - the response cache, and equal requests in flight computed once
//! * `cache/` - `key.rs` names a request, `answers.rs` has what one cache keeps, `budget.rs` shares the memory
//! * `answer.rs` - the tensors of an answer: kept, shared with an equal call, or from a run
//! * `call.rs` - one call, from its pin to its count
//! * `usage.rs` - the resources that callers use, for accounts
//! * `detection_sink.rs` - the objects on photographs that callers attribute to a camera
//! * `call_observer.rs` - a look at answered calls, for the watch on drift
//! * `watched.rs` - calls that an update watches, and mirrored calls to its candidate
//!
//! Invariants:
//! * Each call is counted once and audited once, here, when its `CountedCall` is dropped: a call is counted also when
//!   its caller hung up.
//! * A refused call takes nothing: a quota is returned when the model refuses.
//! * Two requests have the same cache key only if their answers are equal. Only whole answers are kept, never an
//!   error.
//! * A mirrored call leaves no trace except in the counts of the update: no quota, no limit, no audit record, no
//!   cache.
//! * A call that a candidate fails is repeated on the live version before it counts.
//! * `windows.rs` is pure. The time is passed in.

pub mod admission;
mod answer;
pub mod budgets;
pub mod cache;
mod call;
pub mod call_observer;
pub mod config;
mod error;
mod feature_inputs;
pub mod inputs;
pub mod request;
pub mod usage;
pub mod detection_sink;
mod watched;
pub mod windows;

use std::sync::Arc;
use std::time::Instant;

use ledge_base::clock;
use ledge_base::memory_budget::{MemoryAccount, MemoryBudget};
use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::principal::Principal;
use ledge_base::tensor::Tensor;
use ledge_engine::pipeline::classification;
use ledge_engine::pipeline::content::{CallContent, ContentError, Texts};
use ledge_engine::pipeline::image::DecodeLimits;
use ledge_engine::pipeline::kind::{Pipeline, PostprocessError};
use ledge_features::FeatureStore;
use ledge_service::audit_event::AuditSink;
use ledge_service::audit_event::inference::{AuditCallGroup, CallOutcome};
use ledge_service::audit_event::tag;
use ledge_service::off_thread::off_thread;
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;
use serde_json::value::RawValue;

use super::scheduling::outcome::{FailureClass, InferError};
use super::status;
use crate::repository::model_config::CallLimits;
use crate::repository::statistics::RefusalReason;
use crate::repository::{LoadedModel, PinError, Pinned, Repository};
use crate::scheduling::terms::{Priority, RunTerms};
use admission::{AdmissionError, AdmissionGate, AdmissionPermit, LimitOwner, Quotas, admit};
use answer::{LookupTimes, cached_or_computed, content_pipeline, run, run_content};
use budgets::SpentBudgets;
use cache::{CacheBudget, CacheKey, CacheKeyBuilder, ResponseCache};
use call::{CallStatistics, CountedCall};
use call_observer::{CallObserver, CallObserverSlot, ObservedInputs};
use detection_sink::{DetectionSink, DetectionSinkSlot};
pub use error::ServingError;
pub use feature_inputs::FeatureInputError;
pub use feature_inputs::join_keys;
pub use feature_inputs::undeclared_features;
use inputs::InvalidRequest;
use request::{
    CallInputs, FeatureRequest, InferRequest, InferResponse, OutputRequest, Payload, PipelineResult, ResultForm,
    TensorPayload, UsedFeature,
};
use usage::UsageMeter;
use windows::DailyWindow;

/// The most bytes of results that are written as JSON on an async thread: some tenths of a millisecond.
const INLINE_RESULT_BYTES_MAX: usize = 32 << 10;

/// The bytes of a tree of JSON for each byte of its text, of cells that are short.
const TREE_BYTES: usize = 10;

/// The largest inputs of a call, in bytes, for which the copy for the process of the model is not counted.
const COPIED_BYTES_UNCOUNTED: usize = 1 << 20;

/// Outputs with their names.
type NamedOutputs = Vec<(String, Tensor)>;

/// The memory of one feature of one row while inputs are made of it, in bytes, besides the memory that the store
/// counts.
const FEATURE_CELL_BYTES: usize = 128;

/// Limits of a serving core.
#[derive(Debug, Clone)]
pub struct ServingLimits {
    /// Photographs with more pixels are refused.
    pub max_pixels: u64,
    /// Bytes of cached answers of all models together.
    pub cache_bytes: u64,
    /// Limits of each caller.
    pub quota: CallLimits,
    /// Times of day for background work; empty is always.
    pub batch_windows: Vec<DailyWindow>,
    /// The memory of the calls of all callers together, over all protocols, in bytes.
    pub memory_bytes: usize,
}

/// A handle to the serving core. Clones share it.
#[derive(Debug, Clone)]
pub struct Serving {
    repository: Repository,
    features: FeatureStore,
    audit: AuditSink,
    limits: DecodeLimits,
    cache_budget: Arc<CacheBudget>,
    quotas: Option<Arc<Quotas>>,
    batch_windows: Arc<[DailyWindow]>,
    memory: MemoryBudget,
    /// Requests that are being mirrored to a candidate.
    mirrors: Shutdown,
    sink: DetectionSinkSlot,
    usage: Arc<UsageMeter>,
    observer: CallObserverSlot,
    budgets: Arc<SpentBudgets>,
}

/// Cache and limits that the serving core attaches to a loaded version if its config asks for them.
#[derive(Debug)]
struct ModelAttachment {
    cache: Option<ResponseCache>,
    gate: Option<AdmissionGate>,
}

impl Serving {
    /// A serving core over a repository and a feature store.
    pub fn new(repository: Repository, features: FeatureStore, audit: AuditSink, limits: &ServingLimits) -> Self {
        Self {
            repository,
            features,
            audit,
            limits: DecodeLimits { max_pixels: limits.max_pixels },
            cache_budget: Arc::new(CacheBudget::new(limits.cache_bytes)),
            quotas: Quotas::new(limits.quota.clone()).map(Arc::new),
            batch_windows: limits.batch_windows.as_slice().into(),
            memory: MemoryBudget::new(limits.memory_bytes),
            mirrors: Shutdown::default(),
            sink: DetectionSinkSlot::default(),
            usage: Arc::default(),
            observer: CallObserverSlot::default(),
            budgets: Arc::default(),
        }
    }

    /// True when every part of the daemon has started, and a model serves where one is to serve.
    pub fn is_ready(&self, parts: &Readiness) -> bool {
        parts.is_ready() && self.repository.is_serving()
    }

    /// The model repository.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// The feature store.
    pub fn features(&self) -> &FeatureStore {
        &self.features
    }

    /// Logs which features of models, or of one model, are not declared: calls that need them will be refused.
    pub fn warn_of_undeclared_features(&self, only: Option<&ModelName>) {
        let registry = self.features.registry();
        for model in self.repository.all_live() {
            let reasons = undeclared_features(&model, &registry);
            if reasons.is_empty() || only.is_some_and(|only| *only != model.name) {
                continue;
            }
            let reason = reasons.into_iter().collect::<Vec<_>>().join("; ");
            tracing::warn!(
                name: "model.features_undeclared",
                model = %model.name,
                version = %model.version,
                reason,
                "features of this model are not declared; calls that need them are refused"
            );
        }
    }

    /// Sets the part that takes the objects on photographs of cameras. Called once, at the start.
    pub fn report_sightings_to(&self, sink: Arc<dyn DetectionSink>) {
        self.sink.set(sink);
    }

    /// Sets the part that looks at answered calls. Called once, at the start.
    pub fn observe_calls_by(&self, observer: Arc<dyn CallObserver>) {
        self.observer.set(observer);
    }

    /// The part that takes the objects on photographs of cameras.
    pub fn sink(&self) -> Option<&dyn DetectionSink> {
        self.sink.get()
    }

    /// The limits of photographs.
    pub fn decode_limits(&self) -> DecodeLimits {
        self.limits
    }

    /// The memory of the calls of all callers: over HTTP, over MQTT, and of cameras.
    pub fn memory(&self) -> &MemoryBudget {
        &self.memory
    }

    /// The resources that callers use. One part takes them.
    pub fn usage(&self) -> &UsageMeter {
        &self.usage
    }

    /// The budgets that are spent. One part sets them.
    pub fn budgets(&self) -> &SpentBudgets {
        &self.budgets
    }

    /// The sink of audit events.
    pub fn audit(&self) -> &AuditSink {
        &self.audit
    }

    /// Pins the version that answers a call before the bytes of the call are interpreted, because their meaning depends
    /// on the version. An update that comes meanwhile changes nothing for this call.
    pub fn pin(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
        principal: &Principal,
    ) -> Result<Pinned, ServingError> {
        self.repository.pin_call(name, version).map_err(|error| {
            // An unknown name is the caller's own text, so it is not recorded.
            let model = (!matches!(error, PinError::UnknownModel { .. })).then(|| name.clone());
            let key = AuditCallGroup {
                model,
                version: None,
                digest: None,
                principal: principal.clone(),
                outcome: CallOutcome::Unavailable,
            };
            self.audit.record_call(key, 0, None, None);
            error.into()
        })
    }

    /// Answers a call with the present default version, for content that does not depend on the version. Returns that
    /// version, too: its number would not be enough to find it afterwards, because a reload replaces a version by
    /// another one with the same number.
    pub async fn pin_and_infer(
        &self,
        name: &ModelName,
        request: InferRequest,
        principal: &Principal,
    ) -> Result<(InferResponse, Arc<LoadedModel>), ServingError> {
        let pinned = self.pin(name, None, principal)?;
        let model = pinned.model.clone();
        Ok((self.infer(pinned, request, principal).await?, model))
    }

    /// Answers a call with the version that it pinned.
    pub async fn infer(
        &self,
        pinned: Pinned,
        mut request: InferRequest,
        principal: &Principal,
    ) -> Result<InferResponse, ServingError> {
        let Pinned { model, watched } = pinned;
        let mut selected = None;
        if let Payload::Tensors(tensors) = &mut request.payload
            && let Some(content) = inputs::content_of(&model, &tensors.inputs).map_err(ContentError::from)?
        {
            selected = tensors.outputs.take();
            request.payload = Payload::Content(content, ResultForm::Tensors);
        }

        let call =
            CountedCall::new((&self.audit, &self.usage), model, principal, Instant::now(), request.payload.bytes());
        let mut response = if let Some(watched) = watched {
            // Boxed: a call that no update watches does not reserve space for this future.
            Box::pin(self.infer_watched(call, watched, request)).await?
        } else {
            let answered = match self.admit(&call, &call.model, request.priority) {
                Ok(_permit) => self.infer_admitted(&call, request, None).await,
                Err(refused) => Err(refused.into()),
            };
            finish(call, answered)?
        };
        if let Some(wanted) = selected {
            inputs::select(&mut response, &wanted)?;
        }
        Ok(response)
    }

    /// Answers a call that has its place. `raw` receives the outputs of the model, before they become classes.
    async fn infer_admitted(
        &self,
        call: &CountedCall<'_>,
        request: InferRequest,
        raw: Option<&mut NamedOutputs>,
    ) -> Result<(InferResponse, CallStatistics), ServingError> {
        let InferRequest { payload, deadline, priority, account } = request;
        let terms = terms(&call.model, deadline, priority, call.started, call.principal);
        match payload {
            Payload::Tensors(tensors) => self.infer_tensors(call, tensors, terms, account, raw).await,
            // Boxed: a call of tensors does not reserve space for this future.
            Payload::Content(content, form) => {
                let answered = Box::pin(self.infer_content(call, content, form, terms, account)).await?;
                if let Some(raw) = raw {
                    raw.clone_from(&answered.0.outputs);
                }
                Ok(answered)
            }
        }
    }

    async fn infer_tensors(
        &self,
        call: &CountedCall<'_>,
        request: TensorPayload,
        terms: RunTerms,
        account: MemoryAccount,
        raw: Option<&mut NamedOutputs>,
    ) -> Result<(InferResponse, CallStatistics), ServingError> {
        let (model, started) = (&call.model, call.started);
        // Before the run: an answer for which there is no memory is not computed.
        let outputs = inputs::output_bytes(model, &request.inputs, request.outputs.as_deref());
        // Small inputs that are copied for a process are as few as there are cores.
        let copied = Some(request.inputs.bytes()).filter(|bytes| *bytes > COPIED_BYTES_UNCOUNTED).unwrap_or(0);
        let mut memory = account.take(outputs + copied + request.features.bytes())?;

        let (inputs, used) =
            self.with_features(model, request.inputs, request.features, &terms, (started, &account)).await?;
        let fitted = inputs::fit(model, inputs, request.outputs.as_deref())?;
        call.takes(&fitted.inputs);
        call.given(|| tag::TagContent::Tensors(fitted.named(model)));
        let sampled = self.observer.sample(model, || ObservedInputs::Tensors(fitted.named(model)));

        let names = model.output_names(&fitted.outputs);
        let answer = match self.cache(model) {
            None => run(model, fitted, terms, started).await?,
            // Boxed: a call without a cache does not reserve space for this future.
            Some(cache) => {
                let times = LookupTimes { started, since: Instant::now() };
                let key = cache_key(call, cache.keys.of_tensors(&fitted).await);
                let compute = || run(model, fitted, terms.clone(), started);
                Box::pin(cached_or_computed(cache, key, model, &terms, times, compute)).await?
            }
        };

        let (mut response, counted) = answer.into_response(model, names);
        response.features = used;
        call.answered(&response.outputs);
        self.observer.show(model, sampled, &response.outputs);
        if let Some(raw) = raw {
            raw.clone_from(&response.outputs);
        }
        if let Some(wanted) = &request.outputs {
            classify_outputs(model, wanted, &mut response)?;
        }
        memory.resize(response.outputs.iter().map(|(_, tensor)| tensor.data().len()).sum())?;
        response.memory = memory;
        Ok((response, counted))
    }

    /// Adds the inputs that are made of features, and returns the features they were made of.
    async fn with_features(
        &self,
        model: &LoadedModel,
        inputs: CallInputs,
        features: FeatureRequest,
        terms: &RunTerms,
        (started, account): (Instant, &MemoryAccount),
    ) -> Result<(CallInputs, Vec<UsedFeature>), ServingError> {
        if model.config.has_features() {
            let of_inputs: usize = model.config.feature_inputs().map(|port| port.features.len()).sum();
            let cells = features.rows().max(inputs.batch()).saturating_mul(of_inputs);
            let _cells = account.take(cells.saturating_mul(FEATURE_CELL_BYTES))?;
            // Boxed: a call without features does not reserve space for this future.
            let fill =
                Box::pin(feature_inputs::fill(&self.features, model, inputs, features, (&terms.principal, account)));
            Ok(tokio::time::timeout_at(terms.deadline.into(), fill)
                .await
                .map_err(|_| ServingError::late(model, started))??)
        } else if features.is_empty() {
            Ok((inputs, Vec::new()))
        } else {
            Err(FeatureInputError::NoFeatures { model: model.name.to_string() }.into())
        }
    }

    async fn infer_content(
        &self,
        call: &CountedCall<'_>,
        content: CallContent,
        form: ResultForm,
        terms: RunTerms,
        account: MemoryAccount,
    ) -> Result<(InferResponse, CallStatistics), ServingError> {
        let (model, started) = (&call.model, call.started);
        let pipeline = content_pipeline(model, content.input())?;
        let content = self.with_feature_cells(model, pipeline, content, call.principal, &account).await?;
        call.given(|| tagged(&content));
        let mut sampled = self.observer.sample(model, || ObservedInputs::Content(content.clone(), None));
        let run =
            |content, terms| run_content(model, pipeline, (content, account.clone()), self.limits, terms, started);
        let answer = match self.cache(model) {
            None => run(content, terms).await?,
            Some(cache) => {
                let times = LookupTimes { started, since: Instant::now() };
                let key = cache_key(call, cache.keys.of_content(&content).await);
                let compute = || run(content, terms.clone());
                Box::pin(cached_or_computed(cache, key, model, &terms, times, compute)).await?
            }
        };
        if let Some(ObservedInputs::Content(_, picture)) = &mut sampled {
            *picture = answer.picture;
        }
        let (mut response, counted) = answer.into_response(model, model.result_names(pipeline.as_ref()));
        response.memory = account.take(response.outputs.iter().map(|(_, tensor)| tensor.data().len()).sum())?;
        call.answered(&response.outputs);
        self.observer.show(model, sampled, &response.outputs);
        if form == ResultForm::Json {
            let json = write_result(pipeline, &response, &account).await;
            let json = json.map_err(|error| ServingError::of_run(model, started, InferError::Outputs(error)))?;
            response.memory.grow(json.get().len())?;
            call.sends(json.get().len());
            response.result = Some(PipelineResult { kind: pipeline.kind(), json });
        }
        Ok((response, counted))
    }

    /// Fills the columns of rows that are made of features.
    async fn with_feature_cells(
        &self,
        model: &LoadedModel,
        pipeline: &Arc<dyn Pipeline>,
        content: CallContent,
        principal: &Principal,
        account: &MemoryAccount,
    ) -> Result<CallContent, ServingError> {
        let columns = pipeline.feature_columns();
        let CallContent::Rows(rows) = &content else { return Ok(content) };
        if columns.is_empty() {
            return Ok(content);
        }
        // The rows as a tree.
        let _tree = account.take(rows.json().len().saturating_mul(TREE_BYTES))?;
        // Boxed: a call without features does not reserve space for this future.
        let fill = feature_inputs::cells::fill(&self.features, model, rows, columns, principal, account);
        let filled = Box::pin(fill).await?;
        Ok(filled.map_or(content, CallContent::Rows))
    }

    /// Refuses a call before its body is read, and counts it, when the queue of its model is full, or its caller is
    /// refused for the model.
    ///
    /// `None` means only that there is a place now. A model with a response cache may have the answer, so its calls are
    /// never refused here.
    pub fn refusal(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
        priority: Option<Priority>,
        principal: &Principal,
    ) -> Option<ServingError> {
        let (model, now) = (self.repository.pin(name, version).ok()?, Instant::now());
        if model.config.response_cache.enable {
            return None;
        }
        let (error, why) = if let Some(reason) = model.faults().refusal(principal, now) {
            (InferError::Blamed(reason), RefusalReason::Blame)
        } else {
            let depth = model.refusal(priority.unwrap_or_default(), principal)?;
            (InferError::Overloaded { depth }, RefusalReason::QueueFull)
        };
        let error = ServingError::of_run(&model, now, error);
        CountedCall::new((&self.audit, &self.usage), model, principal, now, 0).refuse(why);
        Some(error)
    }

    /// Admits a call within the limits of `model`, or returns the reason why not.
    fn admit(
        &self,
        call: &CountedCall<'_>,
        model: &LoadedModel,
        priority: Option<Priority>,
    ) -> Result<AdmissionPermit, AdmissionError> {
        self.budgets.check(call.principal, &model.name)?;
        let limited = model.config.limits.is_set();
        if priority == Some(Priority::Batch) && !self.batch_windows.is_empty() {
            admission::check_window(call.principal, &self.batch_windows, clock::local_second_of_day())?;
        }
        let gate = if limited { self.attached(model).and_then(|attached| attached.gate.as_ref()) } else { None };
        if gate.is_none() && self.quotas.is_none() {
            return Ok(AdmissionPermit::default());
        }
        admit(call.principal, self.quotas.as_deref(), gate, call.started)
    }

    /// The response cache of a model, if its config enables it.
    fn cache<'m>(&self, model: &'m LoadedModel) -> Option<&'m ResponseCache> {
        if model.config.response_cache.enable { self.attached(model)?.cache.as_ref() } else { None }
    }

    /// The attachment of a loaded version; created at the first use.
    fn attached<'m>(&self, model: &'m LoadedModel) -> Option<&'m ModelAttachment> {
        let new = || Box::new(ModelAttachment { cache: self.new_cache(model), gate: new_gate(model) }) as _;
        model.attached.get_or_init(new).downcast_ref()
    }

    fn new_cache(&self, model: &LoadedModel) -> Option<ResponseCache> {
        let config = &model.config.response_cache;
        let version = model.version.to_string();
        let identity = [model.name.as_str(), &version, &model.digest, &model.config_text, model.runtime().as_str()];
        let keys = CacheKeyBuilder::new(&identity, &model.signature.inputs);
        let max_bytes = config.max_bytes.unwrap_or(self.cache_budget.total() / 4);
        config.enable.then(|| ResponseCache::new(keys, &self.cache_budget, max_bytes, config.ttl()))?
    }
}

/// The content of a call, for its tag in the audit log. Texts have the tag of their tensor.
fn tagged(content: &CallContent) -> tag::TagContent {
    match content {
        CallContent::Texts(texts) => tag::TagContent::Tensors(vec![(Texts::TENSOR.to_owned(), texts.tensor().clone())]),
        CallContent::Rows(rows) => tag::TagContent::Rows(rows.json().clone()),
        // All files have tags alike.
        file => tag::TagContent::Photograph(file.data().clone()),
    }
}

/// Writes the result of a pipeline as JSON, a large one off the async thread.
async fn write_result(
    pipeline: &Arc<dyn Pipeline>,
    response: &InferResponse,
    account: &MemoryAccount,
) -> Result<Box<RawValue>, PostprocessError> {
    let results: Vec<_> = response.outputs.iter().map(|(_, tensor)| tensor.clone()).collect();
    let bytes: usize = results.iter().map(|tensor| tensor.data().len()).sum();
    let pipeline = pipeline.clone();
    let write = move || pipeline.answer(&results.iter().collect::<Vec<_>>());
    if bytes <= INLINE_RESULT_BYTES_MAX { write() } else { off_thread(account, write).await }
}

/// The key of an answer for the caller of `call`.
fn cache_key(call: &CountedCall<'_>, key: CacheKey) -> CacheKey {
    if call.model.config.response_cache.share { key } else { key.of_caller(call.principal) }
}

fn new_gate(model: &LoadedModel) -> Option<AdmissionGate> {
    let limits = &model.config.limits;
    limits.is_set().then(|| AdmissionGate::new(LimitOwner::Model(model.name.clone()), limits, Instant::now()))
}

/// Counts a call and returns its answer without the counts.
fn finish<T>(
    mut call: CountedCall<'_>,
    answered: Result<(T, CallStatistics), ServingError>,
) -> Result<T, ServingError> {
    match answered {
        Ok((answer, counted)) => {
            call.model.statistics.failing_calls.answered(Instant::now());
            call.succeed(counted);
            Ok(answer)
        }
        Err(error) => {
            if let ServingError::Run { error, .. } = &error
                && error.class() == FailureClass::Failed
            {
                call.model.statistics.failing_calls.failed(Instant::now(), &error.to_string());
            }
            call.blame((400..500).contains(&status::of_serving(&error)));
            if let Some(why) = error.refusal() {
                call.refuse(why);
            }
            Err(error)
        }
    }
}

/// Builds the terms of a run. A caller may only shorten the model's own deadline.
fn terms(
    model: &LoadedModel,
    deadline: Option<Instant>,
    priority: Option<Priority>,
    started: Instant,
    principal: &Principal,
) -> RunTerms {
    let longest = started + model.timeout;
    let deadline = deadline.map_or(longest, |asked| asked.min(longest));
    RunTerms { deadline, priority: priority.unwrap_or_default(), principal: principal.clone() }
}

/// Replaces the outputs for which the caller asked classes.
fn classify_outputs(
    model: &LoadedModel,
    wanted: &[OutputRequest],
    response: &mut InferResponse,
) -> Result<(), ServingError> {
    for (wanted, (name, tensor)) in wanted.iter().zip(&mut response.outputs) {
        let Some(count) = wanted.classification else { continue };
        let labels = model.labels.get(name).map_or(&[][..], AsRef::as_ref);
        *tensor = classification::classify(tensor, count, labels).map_err(|error| InvalidRequest::Classification {
            model: model.name.to_string(),
            output: name.clone(),
            reason: error.to_string(),
        })?;
    }
    Ok(())
}
