//! A message that a binding takes, up to what is pushed and published of it.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use ledge_base::clock;
use ledge_base::memory_budget::Account;
use ledge_base::names::{DeviceName, ModelName};
use ledge_features::online::{Columns, Ignored, Push};
use ledge_features::registry::Registry;
use ledge_features::view::FeatureView;
use ledge_identity::access::ViewScope;
use ledge_models::serving::Serving;
use ledge_models::status;
use ledge_protocol::Target;
use ledge_protocol::call::{self, Answered, Call, Form, LARGE_JSON};
use ledge_service::off_thread::blocking;

use super::answer::{self, Failure, ReturnPath};
use super::bindings::{Binding, Extracted, Origin, PushRows, entities, join_keys, push_rows, request_of_rows};
use super::client::packet::{Message, Qos};
use super::client::session::Delivery;
use super::held::Hold;
use super::push::{self, Pusher, Unpushed};
use super::request::{Unanswered, principal};
use super::topics::TopicName;

/// A message for one binding.
#[derive(Debug)]
pub struct BoundMessage {
    pub binding: Arc<Binding>,
    /// Where the device published it: the device is the one who asks.
    pub source: TopicName,
    /// What the wildcards of the binding's filter stand for in it.
    pub captures: Vec<String>,
    /// Where the answer goes, of a binding with a model.
    pub publish: Option<TopicName>,
    pub payload: Bytes,
    /// Its MIME type.
    pub content_type: Option<String>,
    pub arrived: Instant,
    /// To be settled when its answer is taken; `None` when it is, or need not be.
    pub delivery: Option<Delivery>,
    /// How often the answer is delivered.
    pub qos: Qos,
    /// Whether it may have been answered before.
    pub duplicate: bool,
    /// Counts the content as held, also while a rate limit keeps it.
    pub held: Hold,
}

/// What came of a message.
#[derive(Debug)]
pub struct Outcome {
    /// What is published; errors are where the binding says so.
    pub message: Option<Message>,
    /// Why there is no result.
    pub failure: Option<Failure>,
    /// Whether its delivery stays unsettled, so that the broker delivers it again.
    pub unsettled: bool,
    /// Counts the message as held until its answer is published.
    pub held: Hold,
}

/// Why a message that bindings would take comes to nothing, before any of them looks into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Dismissal {
    #[error("an empty message asks for nothing: it is how a retained one is cleared")]
    Empty,
    #[error(transparent)]
    Answer(Unanswered),
}

impl Dismissal {
    /// Tells whether a message is dismissed. One that is refused for its size was not read.
    pub fn of(message: &Message, is_refused: bool) -> Option<Self> {
        if message.payload.is_empty() && !is_refused {
            return Some(Self::Empty);
        }
        answer::status(message).map(|_| Self::Answer(Unanswered::Answer))
    }
}

/// The rows of a message.
struct BoundRows {
    views: Vec<Arc<FeatureView>>,
    push: Push,
    /// The entity keys in them.
    entities: Columns,
    unused: Vec<String>,
}

/// The rows of a message that are not pushed.
#[derive(Debug)]
pub struct TriedRows {
    pub columns: Columns,
    /// Set when the store would refuse them.
    pub is_refused: bool,
    /// The columns among them that no feature view has.
    pub ignored: Vec<String>,
    /// Fields of the message that are no columns.
    pub unused: Vec<String>,
}

impl BoundMessage {
    /// The message for a binding that takes it, delivered with QoS 0 so far. Not when what it says of itself makes no topic
    /// for the answer.
    pub fn new(
        binding: &Arc<Binding>,
        message: &Message,
        captures: &[&str],
        device: &DeviceName,
        now: Instant,
        held: Hold,
    ) -> Result<Self, Failure> {
        let publish = binding.model().map(|(model, publish)| publish.fill(captures, device, model)).transpose();
        Ok(Self {
            binding: binding.clone(),
            source: message.topic.clone(),
            captures: captures.iter().map(|&capture| capture.to_owned()).collect(),
            publish: publish.map_err(|error| Failure::new(400, error.to_string()))?,
            payload: message.payload.clone(),
            content_type: message.properties.content_type.clone(),
            arrived: now,
            delivery: None,
            qos: Qos::AtMostOnce,
            duplicate: false,
            held,
        })
    }

    /// Pushes its rows, then asks the model, and writes what is to be published.
    pub async fn run(self, serving: &Serving, device: &DeviceName, pusher: &Pusher) -> Outcome {
        let result = match self.push(serving, device, pusher).await {
            Ok(rows) => self.ask(serving, device, rows).await,
            Err(Unpushed::Failed(failure)) => Err(failure),
            Err(Unpushed::Stopped) => {
                return Outcome { message: None, failure: None, unsettled: true, held: self.held };
            }
        };
        self.outcome(result, device)
    }

    /// Does the same without writing: the push is checked as the store checks it, and the model is asked.
    pub async fn try_out(self, serving: &Serving, device: &DeviceName) -> (Option<TriedRows>, Outcome) {
        let tried = match self.try_push(serving, device).await {
            Ok(tried) => tried,
            Err((tried, failure)) => return (tried, self.outcome(Err(failure), device)),
        };
        let (tried, entities) = tried.unzip();
        let result = self.ask(serving, device, entities).await;
        (tried, self.outcome(result, device))
    }

    /// The push alone.
    pub async fn try_out_push(self, serving: &Serving, device: &DeviceName) -> (Option<TriedRows>, Option<Failure>) {
        match self.try_push(serving, device).await {
            Ok(tried) => (tried.map(|(rows, _)| rows), None),
            Err((tried, failure)) => (tried, Some(failure)),
        }
    }

    async fn try_push(
        &self,
        serving: &Serving,
        device: &DeviceName,
    ) -> Result<Option<(TriedRows, Columns)>, (Option<TriedRows>, Failure)> {
        let rows = self.rows(serving, device).await.map_err(|failure| (None, failure))?;
        let Some(BoundRows { push, entities, unused, .. }) = rows else { return Ok(None) };
        let columns = push.columns.clone();
        match serving.features().check(push).await {
            Ok(ignored) => Ok(Some((TriedRows { columns, is_refused: false, ignored, unused }, entities))),
            Err(error) => {
                let tried = TriedRows { columns, is_refused: true, ignored: Vec::new(), unused };
                Err((Some(tried), push::failure(&error)))
            }
        }
    }

    fn outcome(self, result: Result<Option<Answered>, Failure>, device: &DeviceName) -> Outcome {
        let config = self.binding.config();
        let path = self.publish.clone().map(|topic| ReturnPath {
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
        Outcome { message, failure, unsettled: false, held: self.held }
    }

    /// Pushes what the binding takes for the feature store. Gives the entities of the rows, once they are durable.
    async fn push(&self, serving: &Serving, device: &DeviceName, pusher: &Pusher) -> Result<Option<Columns>, Unpushed> {
        let Some(rows) = self.rows(serving, device).await.map_err(Unpushed::Failed)? else { return Ok(None) };
        pusher.push(serving.features(), rows.push, principal(&self.source)).await?;
        serving.features().note_ignored(&rows.views, Ignored::Fields(rows.unused.len()));
        Ok(Some(rows.entities))
    }

    async fn rows(&self, serving: &Serving, device: &DeviceName) -> Result<Option<BoundRows>, Failure> {
        let Some(target) = self.binding.config().target() else { return Ok(None) };
        let views = serving.features().registry().targets(&target).map_err(|error| push::failure(&error))?;
        let kept = views.clone();
        let take = move |binding: &Binding, payload: &Bytes, origin: Origin<'_>| {
            push_rows(binding.config(), &kept, payload, origin)
        };
        let PushRows { columns, unused } = self.taken(device, take).await?;
        let entities = if self.publish.is_some() { join_keys(&columns, &views) } else { Columns::new() };
        Ok(Some(BoundRows { views, push: Push { target, columns }, entities, unused }))
    }

    /// What `take` makes of the message, on another thread if that takes its time.
    async fn taken<T: Send + 'static>(
        &self,
        device: &DeviceName,
        take: impl FnOnce(&Binding, &Bytes, Origin<'_>) -> Result<T, super::bindings::BindingError> + Send + 'static,
    ) -> Result<T, Failure> {
        let (binding, payload, captures) = (self.binding.clone(), self.payload.clone(), self.captures.clone());
        let device = device.clone();
        let waited = i64::try_from(self.arrived.elapsed().as_micros()).unwrap_or(i64::MAX);
        let arrived_us = clock::unix_micros().saturating_sub(waited);
        let json = if binding.reads_json() { payload.len() } else { 0 };
        let work = move || take(&binding, &payload, Origin { captures: &captures, device: &device, arrived_us });
        parse(json, work).await.map_err(|error| bad(&error))
    }

    /// Asks the model, if the binding has one, of `pushed` entities if there are any.
    async fn ask(
        &self,
        serving: &Serving,
        device: &DeviceName,
        pushed: Option<Columns>,
    ) -> Result<Option<Answered>, Failure> {
        let config = self.binding.config();
        let Some((model, _)) = self.binding.model() else { return Ok(None) };
        let content_type = self.content_type.clone();
        let taken = self.taken(device, move |binding, payload, _| binding.request(payload, content_type.as_deref()));
        let (body, form) = match taken.await? {
            Extracted::Body(body, form) => (body, form),
            Extracted::Rows(rows) => {
                let entities = match pushed {
                    Some(entities) => entities,
                    None => self.entities(serving.features().registry(), device).await?,
                };
                (self.request(serving, model, rows, entities).await?, Form::Tensors { header_length: None })
            }
        };
        let call = Call {
            target: Target { model: model.clone(), version: config.version },
            body,
            form,
            priority: Some(config.priority),
            deadline: self.binding.timeout().and_then(|timeout| self.arrived.checked_add(timeout)),
            arrived: self.arrived,
            account: Account::unlimited(),
            views: ViewScope::ALL,
        };
        let principal = principal(&self.source);
        let mut answered = call::answer(serving, call, &principal).await?;
        let (binding, body) = (self.binding.clone(), answered.body.clone());
        let json = if config.select.is_some() { body.len() } else { 0 };
        let selected = parse(json, move || binding.answer(&body)).await;
        answered.body = selected.map_err(|error| Failure::new(500, error.to_string()))?;
        Ok(Some(answered))
    }

    /// The entity keys of a message that is not pushed.
    async fn entities(&self, registry: Arc<Registry>, device: &DeviceName) -> Result<Columns, Failure> {
        if self.binding.config().entities.is_empty() {
            return Ok(Columns::new());
        }
        self.taken(device, move |binding, payload, origin| entities(binding.config(), &registry, payload, origin)).await
    }

    async fn request(
        &self,
        serving: &Serving,
        model: &ModelName,
        rows: Vec<(String, Vec<serde_json::Value>)>,
        entities: Columns,
    ) -> Result<Bytes, Failure> {
        let model = serving.repository().pin(model, self.binding.config().version);
        let model = model.map_err(|error| Failure::new(status::of_pin(&error), error.to_string()))?;
        // They may be there for the push alone.
        let unused = !rows.is_empty() && !model.config.has_features();
        let entities = if unused { Columns::new() } else { entities };
        let body = parse(self.payload.len(), move || request_of_rows(&rows, &model.signature, entities)).await;
        body.map_err(|error| bad(&error))
    }
}

fn bad(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(400, error.to_string())
}

/// Does `work` on so many bytes of JSON; on many not here, where it would keep every other message waiting.
async fn parse<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if bytes <= LARGE_JSON {
        return work();
    }
    blocking(work).await
}

#[cfg(test)]
mod tests;
