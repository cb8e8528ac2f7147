//! A message for a binding, up to its push and its published answer.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use ledge_base::clock;
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::names::{DeviceName, ModelName};
use ledge_features::online::{FeaturePush, FrameColumns, IgnoredPushPart, bytes_of_json};
use ledge_features::registry::Registry;
use ledge_features::view::FeatureView;
use ledge_identity::access::ViewScope;
use ledge_models::serving::Serving;
use ledge_part::api_error::ApiError;
use ledge_protocol::ModelTarget;
use ledge_protocol::call::{self, BodyKind, CallAnswer, INLINE_JSON_BYTES_MAX, InferenceCall};
use ledge_service::off_thread::blocking;

use super::answer::{self, AnswerDestination};
use super::bindings::{
    Binding, ExtractedInput, ExtractedPushRows, MessageOrigin, MessageParts, entities, join_keys, push_rows,
    request_of_rows, request_of_value,
};
use super::client::packet::{MqttMessage, Qos};
use super::client::session::PendingDelivery;
use super::held_bytes::HeldBytesGuard;
use super::model_wait::ModelWait;
use super::push::{self, FeaturePushError, FeaturePusher};
use super::request::{UnansweredReason, principal};
use super::topics::TopicName;

/// A message for one binding.
#[derive(Debug)]
pub struct BindingMessage {
    pub binding: Arc<Binding>,
    /// The topic on which the device published it: the device is the caller.
    pub source: TopicName,
    /// The parts of that topic that the wildcards of the binding's filter match.
    pub captures: Vec<String>,
    /// The topic for the answer, if the binding has a model.
    pub publish: Option<TopicName>,
    pub payload: Bytes,
    /// Its MIME type.
    pub content_type: Option<String>,
    pub arrived: Instant,
    /// The start of the time that its answer may take.
    pub runs_from: Instant,
    /// The delivery to settle when the broker has accepted the answer; `None` when there is nothing to settle.
    pub delivery: Option<PendingDelivery>,
    /// The QoS of the answer.
    pub qos: Qos,
    /// Set when it may have been answered before.
    pub duplicate: bool,
    /// Counts the payload as memory in use, also while a rate limit keeps it.
    pub held: HeldBytesGuard,
}

/// The outcome of a message.
#[derive(Debug)]
pub struct BindingOutcome {
    /// The message to publish: the answer, or the error where the binding publishes errors.
    pub message: Option<MqttMessage>,
    /// The reason why there is no result.
    pub failure: Option<ApiError>,
    /// Set when its delivery stays unsettled, so that the broker delivers it again.
    pub unsettled: bool,
    /// Set when `when` excludes the message.
    pub skipped: bool,
    /// Counts the message as memory in use until its answer is published.
    pub held: HeldBytesGuard,
}

/// The reason why a message for bindings is dropped before it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BindingDismissal {
    #[error("the message is empty: an empty message only clears a retained one")]
    Empty,
    #[error(transparent)]
    Answer(UnansweredReason),
}

impl BindingDismissal {
    /// The reason to dismiss a message, if there is one. The payload of a refused message was not read.
    pub fn of(message: &MqttMessage, is_refused: bool) -> Option<Self> {
        if message.payload.is_empty() && !is_refused {
            return Some(Self::Empty);
        }
        answer::status(message).map(|_| Self::Answer(UnansweredReason::Answer))
    }
}

/// The rows of a message.
struct BindingPushRows {
    views: Vec<Arc<FeatureView>>,
    push: FeaturePush,
    /// The columns among them that are entity keys.
    entities: FrameColumns,
    unused: Vec<String>,
}

/// The rows that a dry run does not push.
#[derive(Debug)]
pub struct DryRunRows {
    pub columns: FrameColumns,
    /// Set when the store would refuse them.
    pub is_refused: bool,
    /// The columns that no feature view has.
    pub ignored: Vec<String>,
    /// The fields of the message that are not columns.
    pub unused: Vec<String>,
}

impl BindingMessage {
    /// The message for a binding that takes it, with QoS 0 and without a delivery. An error if its topic makes no valid
    /// topic for the answer.
    pub fn new(
        binding: &Arc<Binding>,
        message: &MqttMessage,
        captures: &[&str],
        device: &DeviceName,
        now: Instant,
        held: HeldBytesGuard,
    ) -> Result<Self, ApiError> {
        let publish = binding.model().map(|(model, publish)| publish.fill(captures, device, model)).transpose();
        Ok(Self {
            binding: binding.clone(),
            source: message.topic.clone(),
            captures: captures.iter().map(|&capture| capture.to_owned()).collect(),
            publish: publish.map_err(|error| ApiError::with_code(400, error.to_string()))?,
            payload: message.payload.clone(),
            content_type: message.properties.content_type.clone(),
            arrived: now,
            runs_from: now,
            delivery: None,
            qos: Qos::AtMostOnce,
            duplicate: false,
            held,
        })
    }

    /// Waits for its model, if it has one. Then pushes its rows, calls the model, and makes the message to publish.
    pub async fn run(
        mut self,
        serving: &Serving,
        device: &DeviceName,
        pusher: &FeaturePusher,
        model_wait: &ModelWait,
    ) -> BindingOutcome {
        let binding = self.binding.clone();
        if let Some((model, _)) = binding.model()
            && model_wait.is_needed(model, binding.config().version)
        {
            if !model_wait.wait(model, binding.config().version, self.payload.len()).await {
                return BindingOutcome { unsettled: true, ..self.outcome(Ok(None), device) };
            }
            self.runs_from = Instant::now();
        }
        if self.is_large() && self.unmet_off_thread(device).await {
            return BindingOutcome { skipped: true, ..self.outcome(Ok(None), device) };
        }
        match self.push_and_call(serving, device, pusher).await {
            Ok(answered) => self.outcome(Ok(answered), device),
            Err(FeaturePushError::Failed(failure)) => self.outcome(Err(failure), device),
            Err(FeaturePushError::Stopped) => BindingOutcome { unsettled: true, ..self.outcome(Ok(None), device) },
        }
    }

    async fn push_and_call(
        &self,
        serving: &Serving,
        device: &DeviceName,
        pusher: &FeaturePusher,
    ) -> Result<Option<CallAnswer>, FeaturePushError> {
        let account = self.account(serving);
        // Its values, and the request or the rows that are made of them.
        let bytes = if self.binding.parses() { 2 * bytes_of_json(&self.payload) } else { 0 };
        let _parsed =
            self.waiting_for_memory(pusher, || std::future::ready(account.take(bytes).map_err(ApiError::from))).await?;
        let rows = self.push(serving, device, pusher).await?;
        let Some(call) = self.call(serving, device, rows).await.map_err(FeaturePushError::Failed)? else {
            return Ok(None);
        };
        let caller = principal(&self.source);
        let answer = || call::answer(serving, call.clone(), &caller);
        let answered = self.waiting_for_memory(pusher, answer).await?;
        self.selected(answered, &account).await.map(Some).map_err(FeaturePushError::Failed)
    }

    /// Tries again where there is no memory now, if the broker keeps the message until then.
    async fn waiting_for_memory<T, F: Future<Output = Result<T, ApiError>>>(
        &self,
        pusher: &FeaturePusher,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, FeaturePushError> {
        match self.delivery {
            Some(_) => pusher.with_memory(attempt).await,
            None => attempt().await.map_err(FeaturePushError::Failed),
        }
    }

    /// The memory of the device.
    fn account(&self, serving: &Serving) -> MemoryAccount {
        serving.memory().account(principal(&self.source))
    }

    /// Returns `true` for a message of which [`is_judged_inline`] judged only the topic.
    fn is_large(&self) -> bool {
        !is_judged_inline(&self.payload)
    }

    /// Returns `true` if `when` excludes the message, which is large.
    async fn unmet_off_thread(&self, device: &DeviceName) -> bool {
        if !self.binding.config().when.reads_payload() {
            return false;
        }
        let (binding, payload, captures) = (self.binding.clone(), self.payload.clone(), self.captures.clone());
        let device = device.clone();
        let judge = move || binding.unmet(&MessageParts::new(Some(&payload), &device), &captures).is_some();
        parse(self.payload.len(), judge).await
    }

    /// Does the same without a push: the rows are checked as the store checks them, and the model is called.
    pub async fn dry_run(self, serving: &Serving, device: &DeviceName) -> (Option<DryRunRows>, BindingOutcome) {
        let tried = match self.check_push(serving, device).await {
            Ok(tried) => tried,
            Err((tried, failure)) => return (tried, self.outcome(Err(failure), device)),
        };
        let (tried, entities) = tried.unzip();
        let result = self.call_model(serving, device, entities).await;
        (tried, self.outcome(result, device))
    }

    /// Checks only the push.
    pub async fn dry_run_push(self, serving: &Serving, device: &DeviceName) -> (Option<DryRunRows>, Option<ApiError>) {
        match self.check_push(serving, device).await {
            Ok(tried) => (tried.map(|(rows, _)| rows), None),
            Err((tried, failure)) => (tried, Some(failure)),
        }
    }

    async fn check_push(
        &self,
        serving: &Serving,
        device: &DeviceName,
    ) -> Result<Option<(DryRunRows, FrameColumns)>, (Option<DryRunRows>, ApiError)> {
        let rows = self.rows(serving, device).await.map_err(|failure| (None, failure))?;
        let Some(BindingPushRows { push, entities, unused, .. }) = rows else { return Ok(None) };
        let columns = push.columns.clone();
        match serving.features().check(push).await {
            Ok(ignored) => Ok(Some((DryRunRows { columns, is_refused: false, ignored, unused }, entities))),
            Err(error) => {
                let tried = DryRunRows { columns, is_refused: true, ignored: Vec::new(), unused };
                Err((Some(tried), push::failure(&error)))
            }
        }
    }

    fn outcome(self, result: Result<Option<CallAnswer>, ApiError>, device: &DeviceName) -> BindingOutcome {
        let config = self.binding.config();
        let path = self.publish.clone().map(|topic| AnswerDestination {
            topic,
            correlation_data: None,
            qos: self.qos,
            duplicate: self.duplicate,
        });
        let (message, failure) = match result {
            Ok(answered) => {
                let message = path.zip(answered).map(|(path, answered)| {
                    let mut message = path.answer(device, answered);
                    message.retain = config.retain;
                    if config.select.is_some() {
                        message.properties.content_type = None;
                    }
                    message
                });
                (message, None)
            }
            Err(failure) => {
                let path = path.filter(|_| config.publish_errors);
                (path.map(|path| path.failure(device, &failure, &[])), Some(failure))
            }
        };
        BindingOutcome { message, failure, unsettled: false, skipped: false, held: self.held }
    }

    /// Pushes the rows of the message. Returns their entity keys once the rows are durable.
    async fn push(
        &self,
        serving: &Serving,
        device: &DeviceName,
        pusher: &FeaturePusher,
    ) -> Result<Option<FrameColumns>, FeaturePushError> {
        let Some(rows) = self.rows(serving, device).await.map_err(FeaturePushError::Failed)? else { return Ok(None) };
        pusher.push(serving.features(), rows.push, principal(&self.source)).await?;
        serving.features().note_ignored(&rows.views, IgnoredPushPart::Fields(rows.unused.len()));
        Ok(Some(rows.entities))
    }

    async fn rows(&self, serving: &Serving, device: &DeviceName) -> Result<Option<BindingPushRows>, ApiError> {
        let Some(target) = self.binding.config().target() else { return Ok(None) };
        let views = serving.features().registry().targets(&target).map_err(|error| push::failure(&error))?;
        let for_rows = views.clone();
        let extract = move |binding: &Binding, payload: &Bytes, origin: MessageOrigin<'_>| {
            push_rows(binding.config(), &for_rows, payload, origin)
        };
        let ExtractedPushRows { columns, unused } = self.extract(device, extract).await?;
        let entities = if self.publish.is_some() { join_keys(&columns, &views) } else { FrameColumns::new() };
        Ok(Some(BindingPushRows { views, push: FeaturePush { target, columns }, entities, unused }))
    }

    /// Runs `extract` on the message, on another thread if the message is large.
    async fn extract<T: Send + 'static>(
        &self,
        device: &DeviceName,
        extract: impl FnOnce(&Binding, &Bytes, MessageOrigin<'_>) -> Result<T, super::bindings::BindingError>
        + Send
        + 'static,
    ) -> Result<T, ApiError> {
        let (binding, payload, captures) = (self.binding.clone(), self.payload.clone(), self.captures.clone());
        let device = device.clone();
        let waited = i64::try_from(self.arrived.elapsed().as_micros()).unwrap_or(i64::MAX);
        let arrived_us = clock::unix_micros().saturating_sub(waited);
        let parsed = if binding.parses() { payload.len() } else { 0 };
        let work =
            move || extract(&binding, &payload, MessageOrigin { captures: &captures, device: &device, arrived_us });
        parse(parsed, work).await.map_err(|error| bad_request(&error))
    }

    /// Calls the model, if the binding has one, for the `pushed` entities if there are any.
    async fn call_model(
        &self,
        serving: &Serving,
        device: &DeviceName,
        pushed: Option<FrameColumns>,
    ) -> Result<Option<CallAnswer>, ApiError> {
        let Some(call) = self.call(serving, device, pushed).await? else { return Ok(None) };
        let account = call.account.clone();
        let answered = call::answer(serving, call, &principal(&self.source)).await?;
        self.selected(answered, &account).await.map(Some)
    }

    /// The part of an answer that is published.
    async fn selected(&self, mut answered: CallAnswer, account: &MemoryAccount) -> Result<CallAnswer, ApiError> {
        if self.binding.config().select.is_none() {
            return Ok(answered);
        }
        let (binding, body) = (self.binding.clone(), answered.body.clone());
        let _parsed = account.take(bytes_of_json(&body))?;
        let selected = parse(body.len(), move || binding.answer(&body)).await;
        let selected = selected.map_err(|error| ApiError::with_code(500, error.to_string()))?;
        answered.body = account.force_reserve(selected.len()).attach(selected);
        Ok(answered)
    }

    /// The call of the model, if the binding has one.
    async fn call(
        &self,
        serving: &Serving,
        device: &DeviceName,
        pushed: Option<FrameColumns>,
    ) -> Result<Option<InferenceCall>, ApiError> {
        let config = self.binding.config();
        let Some((model, _)) = self.binding.model() else { return Ok(None) };
        let content_type = self.content_type.clone();
        let extracted =
            self.extract(device, move |binding, payload, _| binding.request(payload, content_type.as_deref()));
        let (body, form) = match extracted.await? {
            ExtractedInput::Body(body, form) => (body, form),
            ExtractedInput::Rows(rows) => {
                let entities = match pushed {
                    Some(entities) => entities,
                    None => self.entities(serving.features().registry(), device).await?,
                };
                (self.request(serving, model, rows, entities).await?, BodyKind::Tensors { header_length: None })
            }
            ExtractedInput::Value(name) => {
                let entities = self.entities(serving.features().registry(), device).await?;
                let model = serving.repository().pin(model, config.version)?;
                let payload = self.payload.clone();
                let make = move || request_of_value(&name, &payload, &model, entities);
                let body = parse(self.payload.len(), make).await;
                (body.map_err(|error| bad_request(&error))?, BodyKind::Tensors { header_length: None })
            }
        };

        Ok(Some(InferenceCall {
            target: ModelTarget { model: model.clone(), version: config.version },
            body,
            form,
            prefers_text: false,
            priority: Some(config.priority),
            deadline: self.binding.timeout().and_then(|timeout| self.runs_from.checked_add(timeout)),
            arrived: self.arrived,
            account: self.account(serving),
            views: ViewScope::ALL,
            camera: config.camera.clone(),
        }))
    }

    /// The entity keys of a message that is not pushed.
    async fn entities(&self, registry: Arc<Registry>, device: &DeviceName) -> Result<FrameColumns, ApiError> {
        if self.binding.config().entities.is_empty() {
            return Ok(FrameColumns::new());
        }
        self.extract(device, move |binding, payload, origin| entities(binding.config(), &registry, payload, origin))
            .await
    }

    async fn request(
        &self,
        serving: &Serving,
        model: &ModelName,
        rows: Vec<(String, Vec<serde_json::Value>)>,
        entities: FrameColumns,
    ) -> Result<Bytes, ApiError> {
        let model = serving.repository().pin(model, self.binding.config().version);
        let model = model?;
        // The entity keys may be there only for the push.
        let unused = !rows.is_empty() && !model.config.has_features();
        let entities = if unused { FrameColumns::new() } else { entities };
        let body = parse(self.payload.len(), move || request_of_rows(&rows, &model.signature, entities)).await;
        body.map_err(|error| bad_request(&error))
    }
}

fn bad_request(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::with_code(400, error.to_string())
}

/// Returns `true` if the conditions of a binding on this payload may be judged on an async thread: JSON of many bytes
/// would delay all other messages.
pub fn is_judged_inline(payload: &[u8]) -> bool {
    payload.len() <= INLINE_JSON_BYTES_MAX
}

/// Does `work` on this many bytes of JSON; a large amount on another thread, since it would delay all other messages
/// here.
async fn parse<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if bytes <= INLINE_JSON_BYTES_MAX {
        return work();
    }
    blocking(work).await
}

#[cfg(test)]
mod tests;
