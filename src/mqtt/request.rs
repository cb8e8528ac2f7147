//! An inference call out of a message, or why it gets no answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ledge_base::memory_budget::Account;
use ledge_base::names::DeviceName;
use ledge_base::principal::Principal;
use ledge_identity::access::ViewScope;
use ledge_identity::authentication::{Authenticator, Place};
use ledge_models::scheduling::terms::Priority;
use ledge_models::serving::Serving;
use ledge_protocol::call::{self, Call, Form, HEADER_LENGTH};
use ledge_protocol::{Target, parse_header_length};
use ledge_service::audit_event::AuditSink;

use super::answer::{Failure, ReturnPath, STATUS};
use super::bindings::Binding;
use super::caller::{self, PresentedKey};
use super::client::packet::{Message, Properties, Received};
use super::topics::{DeviceTopics, InferRoute, InvalidRoute, ROOT, TopicFilter, TopicName};

/// Room for the topic and the properties of a message beside its payload, in bytes.
pub const HEAD: usize = 64 << 10;

/// The longest topic that is the name of a caller as it is, in bytes.
const LONGEST_NAME: usize = 256;

/// A message to a topic for inference calls.
#[derive(Debug)]
pub struct Request {
    call: Result<Call, Failure>,
    /// The request, for its id.
    body: Bytes,
    principal: Principal,
    key: Option<PresentedKey>,
    /// Among the requests of its caller that are under way.
    place: Place,
    path: ReturnPath,
}

/// Why a message gets no answer at all. A closed set of words, so that a log line for each can be bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unanswered {
    #[error("it has the user property \"status\", so it is an answer and no request")]
    Answer,
    #[error("it is a retained message: a request is for now")]
    Retained,
    #[error("its response topic is not a valid topic name")]
    InvalidResponseTopic,
    #[error(
        "its response topic is not for results: one of Ledge's own or a device's that is listened to, or with a '$'"
    )]
    ForbiddenResponseTopic,
    #[error("its topic names no model, and it has no response topic")]
    NoModel,
}

impl Request {
    /// Reads a message whose topic says `route`. Taken at `arrived`; with a `refusal` that is the answer.
    pub fn read(
        route: Result<InferRoute, InvalidRoute>,
        received: Received,
        arrived: Instant,
        refusal: Option<Failure>,
    ) -> Result<Self, Unanswered> {
        let Received { message, duplicate, .. } = received;
        let Message { payload: body, qos, retain, properties, .. } = message;
        if properties.user(STATUS).is_some() {
            return Err(Unanswered::Answer);
        }
        if retain {
            return Err(Unanswered::Retained);
        }
        let response_topic = properties.response_topic.as_deref().map(response_topic).transpose()?;
        let result_topic = route.as_ref().ok().map(|route| DeviceTopics::result(&route.owner, &route.model));
        let topic = response_topic.or(result_topic).ok_or(Unanswered::NoModel)?;
        let (principal, key) = (principal(&topic), PresentedKey::of(&properties));
        let call = match (refusal, route) {
            (Some(refusal), _) => Err(refusal),
            (None, Err(invalid)) => Err(Failure::new(404, invalid.to_string())),
            (None, Ok(route)) => {
                let target = Target { model: route.model, version: route.version };
                call(target, body.clone(), &properties, arrived)
            }
        };
        let path = ReturnPath { topic, correlation_data: properties.correlation_data, qos, duplicate };
        Ok(Self { call, body, principal, key, place: Place::default(), path })
    }

    /// Finds out who sent it. One that may not ask is answered with the reason.
    #[must_use]
    pub fn admitted(mut self, authenticator: &Authenticator, audit: &AuditSink, now: Instant) -> Self {
        let model = self.call.as_ref().ok().map(|call| &call.target.model);
        match caller::admit(authenticator, audit, &self.principal, self.key.as_ref(), model, now) {
            Ok((caller, place)) => {
                self.call.iter_mut().for_each(|call| call.views = caller.access.feature_views().clone());
                (self.principal, self.place) = (caller.principal, place);
            }
            Err((principal, failure)) => (self.principal, self.call) = (principal, Err(failure)),
        }
        self
    }

    /// Bytes that it holds.
    pub fn held(&self) -> usize {
        let correlation_data = self.path.correlation_data.as_ref().map_or(0, Bytes::len);
        self.body.len() + 2 * self.path.topic.as_str().len() + correlation_data
    }

    /// The answer to one that was read with a refusal.
    pub fn refused(&self, device: &DeviceName) -> Message {
        let failure = self.call.as_ref().err().cloned().unwrap_or_else(overload);
        self.path.failure(device, &failure, &self.body)
    }

    /// Who sent it, as far as is known.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Where its answer goes.
    pub fn path(&self) -> &ReturnPath {
        &self.path
    }

    /// Refuses it when its answer would go where none may: neither to a topic for results nor to one of `response_topics`
    /// (without any, all are good), or to where one of these bindings would take it for a device's message.
    pub fn unless_misdirected<'b>(
        self,
        response_topics: &[TopicFilter],
        mut bindings: impl Iterator<Item = &'b Arc<Binding>>,
    ) -> Result<Self, Unanswered> {
        let topic = &self.path.topic;
        let known = response_topics.is_empty()
            || topic.as_str().starts_with(ROOT)
            || response_topics.iter().any(|filter| filter.matches(topic));
        let loops = bindings.any(|binding| binding.config().topic.matches(topic));
        if known && !loops { Ok(self) } else { Err(Unanswered::ForbiddenResponseTopic) }
    }

    /// Its answer, and the status of that.
    pub async fn run(self, serving: &Serving, device: &DeviceName) -> (Message, u16) {
        let _place = self.place;
        let answered = match self.call {
            Ok(call) => call::answer(serving, call, &self.principal).await.map_err(Failure::from),
            Err(failure) => Err(failure),
        };
        match answered {
            Ok(answered) => (self.path.answer(device, answered), 200),
            Err(failure) => (self.path.failure(device, &failure, &self.body), failure.status),
        }
    }
}

/// Why a message is refused before anybody looks into it: its size.
pub fn too_large(received: &Received, max_payload: usize) -> Option<Failure> {
    let payload = received.message.payload.len();
    // A packet that was let go by for lack of memory alone is not larger than one with such a payload may be.
    let size = received.oversized.filter(|packet| *packet > max_payload.saturating_add(HEAD)).unwrap_or(payload);
    if size > max_payload {
        let message = format!("the message has {size} bytes, more than {max_payload} (mqtt.max_payload_bytes)");
        return Some(Failure::new(413, message));
    }
    received.oversized.map(|_| overload())
}

/// The refusal of a message for which there is no room now.
pub fn overload() -> Failure {
    let message = "too many messages are under way, or too large ones (mqtt.max_memory_bytes)";
    Failure { retry_after_s: Some(1), ..Failure::new(429, message) }
}

/// Who asks: by the topic that tells callers apart, or a digest of a long one.
pub fn principal(topic: &TopicName) -> Principal {
    let topic = topic.as_str();
    let name = if topic.len() <= LONGEST_NAME {
        topic.into()
    } else {
        blake3::hash(topic.as_bytes()).to_hex().as_str().into()
    };
    Principal::Mqtt(name)
}

/// A response topic may be anybody's, but of Ledge's own only one for results: an answer that lands on a box's `online`
/// would be taken for its presence, and one on `infer/` for a request.
fn response_topic(text: &str) -> Result<TopicName, Unanswered> {
    let topic: TopicName = text.parse().map_err(|_| Unanswered::InvalidResponseTopic)?;
    if topic.as_str().starts_with('$') {
        return Err(Unanswered::ForbiddenResponseTopic);
    }
    let own = topic.as_str().strip_prefix(ROOT);
    let is_result = |own: &str| own.split('/').nth(1) == Some("result");
    if own.is_some_and(|own| !is_result(own)) { Err(Unanswered::ForbiddenResponseTopic) } else { Ok(topic) }
}

fn call(target: Target, body: Bytes, properties: &Properties, arrived: Instant) -> Result<Call, Failure> {
    let bad = |error: &dyn std::fmt::Display, name: &str| Failure::new(400, format!("user property {name}: {error}"));
    let length = properties.user(HEADER_LENGTH);
    let length = length.map(|text| parse_header_length(text.as_bytes())).transpose();
    let length = length.map_err(|error| Failure::new(400, error.to_string()))?;
    let priority = properties.user("priority").map(str::parse::<Priority>).transpose();
    let priority = priority.map_err(|error| bad(&error, "priority"))?;
    let form = Form::sniffed(&body, properties.content_type.as_deref(), length);
    let deadline = properties.message_expiry_s.and_then(|left| arrived.checked_add(Duration::from_secs(left.into())));
    // Who sent it is found out later, and so what it may see.
    let views = ViewScope::default();
    Ok(Call { target, body, form, priority, deadline, arrived, account: Account::unlimited(), views })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::packet::Qos;

    fn read(topic: &str, message: Message) -> Result<Request, Unanswered> {
        let topics = DeviceTopics { device: "box".parse().unwrap(), group: "shop".parse().ok(), looked_after: false };
        let route = topics.route(&topic.parse().unwrap()).unwrap();
        let received = Received { message, packet_id: None, duplicate: false, oversized: None };
        Request::read(route, received, Instant::now(), None)
    }

    fn message(properties: Properties) -> Message {
        let topic = "t".parse().unwrap();
        Message { topic, payload: "{}".into(), qos: Qos::AtMostOnce, retain: false, properties }
    }

    fn answering_to(topic: &str) -> Message {
        message(Properties { response_topic: Some(topic.to_owned()), ..Properties::default() })
    }

    #[test]
    fn an_answer_goes_to_the_response_topic_or_else_to_the_result_topic_of_whom_was_asked() {
        let answer = |topic, message| read(topic, message).unwrap().path.topic.to_string();
        assert_eq!(answer("ledge/v1/box/infer/m", answering_to("till/7/answers")), "till/7/answers");
        assert_eq!(answer("ledge/v1/box/infer/m", message(Properties::default())), "ledge/v1/box/result/m");
        assert_eq!(
            answer("ledge/v1/shop/infer/m/versions/2", message(Properties::default())),
            "ledge/v1/shop/result/m"
        );
        assert_eq!(answer("ledge/v1/box/infer/m", answering_to("ledge/v1/other/result/m")), "ledge/v1/other/result/m");
    }

    #[test]
    fn what_would_loop_or_pass_for_something_else_is_not_answered() {
        let unanswered = |message| read("ledge/v1/box/infer/m", message).err();
        for topic in ["a/#", "+", "", "a\0"] {
            assert_eq!(unanswered(answering_to(topic)), Some(Unanswered::InvalidResponseTopic), "{topic:?}");
        }
        for topic in
            ["ledge/v1/box/infer/m", "ledge/v1/other/infer/x", "ledge/v1/box/online", "ledge/v1/", "ledge/v1/x"]
        {
            assert_eq!(unanswered(answering_to(topic)), Some(Unanswered::ForbiddenResponseTopic), "{topic:?}");
        }
        let answer = Properties { user: vec![("Status".into(), "200".into())], ..Properties::default() };
        assert_eq!(unanswered(message(answer)), Some(Unanswered::Answer));
        assert_eq!(unanswered(Message { retain: true, ..answering_to("r") }), Some(Unanswered::Retained));
        assert_eq!(read("ledge/v1/box/infer/a/b", message(Properties::default())).err(), Some(Unanswered::NoModel));
    }

    #[test]
    fn a_request_that_cannot_be_read_is_answered_with_the_reason() {
        let status = |topic, message| read(topic, message).unwrap().call.unwrap_err().status;
        assert_eq!(status("ledge/v1/box/infer/a/b", answering_to("r")), 404);
        for (name, value) in [("priority", "urgent"), (HEADER_LENGTH, "-1"), ("Inference-Header-Content-Length", "x")] {
            let user = vec![(name.to_owned(), value.to_owned())];
            assert_eq!(status("ledge/v1/box/infer/m", message(Properties { user, ..Properties::default() })), 400);
        }
    }

    #[test]
    fn an_untyped_photograph_is_known_by_its_first_bytes_and_an_expiry_is_the_deadline() {
        let photograph = Message { payload: vec![0xFF, 0xD8, 0xFF, 0xE0].into(), ..message(Properties::default()) };
        let call = read("ledge/v1/box/infer/m", photograph.clone()).unwrap().call.unwrap();
        assert_eq!((call.form, call.deadline), (Form::Photograph, None));
        let properties = Properties {
            content_type: Some("application/octet-stream".into()),
            message_expiry_s: Some(2),
            ..Properties::default()
        };
        let call = read("ledge/v1/box/infer/m", Message { properties, ..photograph }).unwrap().call.unwrap();
        assert_eq!(call.form, Form::Tensors { header_length: None });
        assert_eq!(call.deadline, Some(call.arrived + Duration::from_secs(2)));
    }
}
