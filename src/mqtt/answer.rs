//! The answer to a message, as a message.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::client::packet::{Message, Properties, Qos};
use super::topics::TopicName;
use crate::names::DeviceName;
use crate::protocol::call::{Answered, CallError};

/// User property: how much of a payload is JSON; what follows is binary tensor data. The header's name in HTTP.
pub const HEADER_LENGTH: &str = "inference-header-content-length";

/// User property of every answer: the status as in HTTP. A message that has it asks for nothing.
pub const STATUS: &str = "status";

/// Where and how an answer goes.
#[derive(Debug, Clone)]
pub struct ReturnPath {
    /// The response topic, or the result topic of the model.
    pub topic: TopicName,
    /// As the request has it.
    pub correlation_data: Option<Bytes>,
    /// As the request was sent.
    pub qos: Qos,
    /// Whether the request may have been answered before.
    pub duplicate: bool,
}

/// Why there is no result.
#[derive(Debug, Clone)]
pub struct Failure {
    /// As in HTTP.
    pub status: u16,
    /// For the one who asked.
    pub message: String,
    /// In whole seconds, when another try is worth it.
    pub retry_after_s: Option<u64>,
}

impl Failure {
    /// A failure without another try.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), retry_after_s: None }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        // Not before the time: who comes early is refused again.
        let whole = |wait: std::time::Duration| (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1);
        Self { retry_after_s: error.retry_after().map(whole), ..Self::new(error.status(), error.to_string()) }
    }
}

/// The body of an answer without a result. The status and id are for clients of 3.1.1, which have no properties.
#[derive(Serialize)]
struct ErrorBody<'a> {
    error: &'a str,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
}

impl ReturnPath {
    /// The message with a result.
    pub fn answer(&self, device: &DeviceName, answered: Answered) -> Message {
        let mut message = self.message(device, 200, answered.body);
        let user = &mut message.properties.user;
        user.push(("model-version".to_owned(), answered.version.to_string()));
        if let Some(outcome) = answered.cache {
            user.push(("cache".to_owned(), outcome.as_str().to_owned()));
        }
        if let Some(length) = answered.header_length {
            user.push((HEADER_LENGTH.to_owned(), length.to_string()));
            message.properties.content_type = Some("application/octet-stream".to_owned());
        }
        message
    }

    /// The message that says why there is none. `request` is the one that failed: its id is in the answer.
    pub fn failure(&self, device: &DeviceName, failure: &Failure, request: &[u8]) -> Message {
        let id = id_of(request);
        let body = ErrorBody { error: &failure.message, status: failure.status, id: id.as_deref() };
        let body = serde_json::to_vec(&body).unwrap_or_default();
        let mut message = self.message(device, failure.status, body.into());
        if let Some(seconds) = failure.retry_after_s {
            message.properties.user.push(("retry-after".to_owned(), seconds.to_string()));
        }
        message
    }

    fn message(&self, device: &DeviceName, status: u16, payload: Bytes) -> Message {
        let mut user = vec![(STATUS.to_owned(), status.to_string()), ("device".to_owned(), device.to_string())];
        if self.duplicate {
            user.push(("duplicate".to_owned(), "true".to_owned()));
        }
        let properties = Properties {
            correlation_data: self.correlation_data.clone(),
            content_type: Some("application/json".to_owned()),
            user,
            ..Properties::default()
        };
        Message { topic: self.topic.clone(), payload, qos: self.qos, retain: false, properties }
    }
}

/// Puts an error in the place of an answer that cannot be sent. `false`: it is one already.
pub fn replace(message: &mut Message, failure: &Failure) -> bool {
    if status(message).is_none_or(|status| status >= 400) {
        return false;
    }
    let id = id_of(&message.payload);
    let body = ErrorBody { error: &failure.message, status: failure.status, id: id.as_deref() };
    let body = serde_json::to_vec(&body).unwrap_or_default();
    let Properties { correlation_data, mut user, .. } = std::mem::take(&mut message.properties);
    user.retain(|(name, _)| name == "device" || name == "duplicate");
    user.insert(0, (STATUS.to_owned(), failure.status.to_string()));
    if let Some(seconds) = failure.retry_after_s {
        user.push(("retry-after".to_owned(), seconds.to_string()));
    }
    let content_type = Some("application/json".to_owned());
    message.properties = Properties { correlation_data, content_type, user, ..Properties::default() };
    message.payload = body.into();
    true
}

/// The status of an answer; `None` for other messages.
pub fn status(message: &Message) -> Option<u16> {
    message.properties.user(STATUS)?.parse().ok()
}

/// The id in the JSON of a request or an answer, as far as it can be read; binary data may follow the JSON.
fn id_of(request: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct OnlyId {
        id: Option<String>,
    }
    let only: OnlyId = serde_json::Deserializer::from_slice(request).into_iter().next()?.ok()?;
    only.id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> ReturnPath {
        let topic = "reply/7".parse().unwrap();
        ReturnPath { topic, correlation_data: Some("c".into()), qos: Qos::AtLeastOnce, duplicate: true }
    }

    #[test]
    fn an_error_says_its_status_and_the_id_of_its_request_in_the_body_too() {
        let failure = Failure { retry_after_s: Some(3), ..Failure::new(429, "too \"many\"") };
        let message = path().failure(&"box".parse().unwrap(), &failure, br#"{"inputs": [], "id": "a\"b"}binary"#);
        assert_eq!(&message.payload[..], br#"{"error":"too \"many\"","status":429,"id":"a\"b"}"#);
        let user = |name| message.properties.user(name);
        assert_eq!((user("status"), user("retry-after"), user("duplicate")), (Some("429"), Some("3"), Some("true")));
        assert_eq!((user("device"), message.qos), (Some("box"), Qos::AtLeastOnce));
        assert_eq!(message.properties.correlation_data.as_deref(), Some(&b"c"[..]));
    }

    #[test]
    fn an_id_that_cannot_be_read_is_left_out() {
        for request in [&b""[..], b"{", b"[1]", b"{\"id\": 7}", b"{\"id\": null}", b"\xff\xd8\xff"] {
            assert_eq!(id_of(request), None, "{request:?}");
        }
    }

    #[test]
    fn a_binary_answer_says_where_its_json_ends() {
        let version = 3.try_into().unwrap();
        let answered = Answered { body: "{}..".into(), header_length: Some(2), version, cache: None };
        let message = path().answer(&"box".parse().unwrap(), answered);
        assert_eq!(message.properties.content_type.as_deref(), Some("application/octet-stream"));
        let user = |name| message.properties.user(name);
        assert_eq!((user(HEADER_LENGTH), user("status"), user("model-version")), (Some("2"), Some("200"), Some("3")));
    }
}
