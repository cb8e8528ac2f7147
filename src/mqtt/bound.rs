//! A message that a binding takes, and what is published of it.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::answer::{Failure, ReturnPath};
use super::bindings::{Binding, Extracted, request_of_rows};
use super::client::packet::{Message, Qos};
use super::client::session::Delivery;
use super::held::Hold;
use super::request::principal;
use super::topics::TopicName;
use crate::names::DeviceName;
use crate::protocol::call::{self, Answered, Call, Form, LARGE_JSON};
use crate::protocol::{Target, status};
use crate::serving::Serving;

/// A message for one binding.
#[derive(Debug)]
pub struct BoundMessage {
    /// The binding.
    pub binding: Arc<Binding>,
    /// Where the device published it: the device is the one who asks.
    pub source: TopicName,
    /// Where the answer goes.
    pub publish: TopicName,
    /// The content.
    pub payload: Bytes,
    /// Its MIME type.
    pub content_type: Option<String>,
    /// When it came.
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
    /// Counts the message as held until its answer is published.
    pub held: Hold,
}

impl BoundMessage {
    /// Asks the model, and writes what is to be published.
    pub async fn run(self, serving: &Serving, device: &DeviceName) -> Outcome {
        let binding = self.binding.clone();
        let config = binding.config();
        let path = ReturnPath {
            topic: self.publish.clone(),
            correlation_data: None,
            qos: self.qos,
            duplicate: self.duplicate,
        };
        match self.answer(serving).await {
            Ok(answered) => {
                let mut message = path.answer(device, answered);
                message.retain = config.retain;
                if config.select.is_some() {
                    message.properties.content_type = None;
                }
                Outcome { message: Some(message), failure: None, held: self.held }
            }
            Err(failure) => {
                let message = config.publish_errors.then(|| path.failure(device, &failure, &[]));
                Outcome { message, failure: Some(failure), held: self.held }
            }
        }
    }

    async fn answer(&self, serving: &Serving) -> Result<Answered, Failure> {
        let config = self.binding.config();
        let bad = |error: &dyn std::fmt::Display| Failure::new(400, error.to_string());
        let (binding, payload, content_type) = (self.binding.clone(), self.payload.clone(), self.content_type.clone());
        let json = if self.binding.reads_json() { payload.len() } else { 0 };
        let taken = parse(json, move || binding.request(&payload, content_type.as_deref())).await;
        let taken = taken.map_err(|error| bad(&error))?;
        let (body, form) = match taken {
            Extracted::Body(body, form) => (body, form),
            Extracted::Rows(rows) => {
                let model = serving.repository().pin(&config.model, config.version);
                let model = model.map_err(|error| Failure::new(status::of_pin(&error), error.to_string()))?;
                let body = parse(json, move || request_of_rows(&rows, &model.signature)).await;
                let body = body.map_err(|error| bad(&error))?;
                (body, Form::Tensors { header_length: None })
            }
        };
        let call = Call {
            target: Target { model: config.model.clone(), version: config.version },
            body,
            form,
            priority: Some(config.priority),
            deadline: self.binding.timeout().and_then(|timeout| self.arrived.checked_add(timeout)),
            arrived: self.arrived,
        };
        let principal = principal(&self.source);
        let mut answered = call::answer(serving, call, &principal).await?;
        let (binding, body) = (self.binding.clone(), answered.body.clone());
        let json = if config.select.is_some() { body.len() } else { 0 };
        let selected = parse(json, move || binding.answer(&body)).await;
        answered.body = selected.map_err(|error| Failure::new(500, error.to_string()))?;
        Ok(answered)
    }
}

/// Does `work` on so many bytes of JSON; on many not here, where it would keep every other message waiting.
async fn parse<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if bytes <= LARGE_JSON {
        return work();
    }
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn only_json_that_takes_its_time_is_read_on_another_thread() {
        let here = thread::current().id();
        assert_eq!(parse(LARGE_JSON, || thread::current().id()).await, here);
        assert_ne!(parse(LARGE_JSON + 1, || thread::current().id()).await, here);
    }
}
