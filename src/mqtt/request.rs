//! Reads an inference call from a message, or finds the reason why it gets no answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ledge_base::memory_budget::{MemoryAccount, MemoryBudget, MemoryReservation};
use ledge_base::names::{CameraName, DeviceName};
use ledge_base::principal::Principal;
use ledge_identity::access::ViewScope;
use ledge_identity::authentication::{Authenticator, RequestPermit};
use ledge_models::scheduling::terms::Priority;
use ledge_models::serving::Serving;
use ledge_part::api_error::{ApiError, StatusCode};
use ledge_protocol::call::{self, BodyKind, HEADER_LENGTH, InferenceCall};
use ledge_protocol::{ModelTarget, parse_header_length};
use ledge_service::audit_event::AuditSink;

use super::answer::{AnswerDestination, STATUS_PROPERTY};
use super::bindings::Binding;
use super::caller::{self, PresentedKey};
use super::client::packet::{MessageProperties, MqttMessage, ReceivedMessage};
use super::model_wait::ModelWait;
use super::topics::{DeviceTopics, InferRoute, InvalidRoute, TOPIC_ROOT, TopicFilter, TopicName};

/// Allowance for the topic and the properties of a message besides its payload, in bytes.
pub const MESSAGE_HEAD_BYTES: usize = 64 << 10;

/// The longest topic that is used as the name of a caller without hashing, in bytes.
const CALLER_NAME_MAX_BYTES: usize = 256;

/// A message to a topic for inference calls.
#[derive(Debug)]
pub struct CallMessage {
    call: Result<InferenceCall, ApiError>,
    /// The payload, in which an error looks for the id.
    body: Bytes,
    principal: Principal,
    key: Option<PresentedKey>,
    /// Counts against the concurrency limit of the caller.
    place: RequestPermit,
    path: AnswerDestination,
}

/// The reason why a message gets no answer. A closed set, so that log lines can be limited for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum UnansweredReason {
    #[error("it has the user property \"status\", so it is an answer, not a request")]
    Answer,
    #[error("it is a retained message, and a request must not be retained")]
    Retained,
    #[error("its response topic is not a valid topic name")]
    InvalidResponseTopic,
    #[error(
        "its response topic is not allowed: it is one of Ledge's own topics, is taken by a binding, begins with '$', \
         or is not in mqtt.response_topics"
    )]
    ForbiddenResponseTopic,
    #[error("its topic names no model, and it has no response topic")]
    NoModel,
}

impl CallMessage {
    /// Reads a message that arrived at `arrived` with a topic for `route`. A `refusal` becomes the answer.
    pub fn read(
        route: Result<InferRoute, InvalidRoute>,
        received: ReceivedMessage,
        arrived: Instant,
        refusal: Option<ApiError>,
    ) -> Result<Self, UnansweredReason> {
        let ReceivedMessage { message, duplicate, .. } = received;
        let MqttMessage { payload: body, qos, retain, properties, .. } = message;
        if properties.user(STATUS_PROPERTY).is_some() {
            return Err(UnansweredReason::Answer);
        }
        if retain {
            return Err(UnansweredReason::Retained);
        }
        let response_topic = properties.response_topic.as_deref().map(response_topic).transpose()?;
        let result_topic = route.as_ref().ok().map(|route| DeviceTopics::result(&route.owner, &route.model));
        let topic = response_topic.or(result_topic).ok_or(UnansweredReason::NoModel)?;
        let (principal, key) = (principal(&topic), PresentedKey::of(&properties));
        let call = match (refusal, route) {
            (Some(refusal), _) => Err(refusal),
            (None, Err(invalid)) => Err(ApiError::with_code(404, invalid.to_string())),
            (None, Ok(route)) => {
                let target = ModelTarget { model: route.model, version: route.version };
                call(target, body.clone(), &properties, arrived)
            }
        };
        let path = AnswerDestination { topic, correlation_data: properties.correlation_data, qos, duplicate };
        Ok(Self { call, body, principal, key, place: RequestPermit::default(), path })
    }

    /// Authenticates the caller. A caller without permission for the model gets the reason as the answer.
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

    /// Reserves the memory of the request, and of the values made from it, for its caller. Without room, the answer is
    /// that error.
    pub fn counted(&mut self, memory: &MemoryBudget) -> Option<MemoryReservation> {
        let account = memory.account(self.principal.clone());
        match account.take(self.held_bytes()) {
            Ok(hold) => {
                self.call.iter_mut().for_each(|call| call.account = account.clone());
                Some(hold)
            }
            Err(no_room) => {
                self.call = Err(no_room.into());
                None
            }
        }
    }

    /// The memory that it takes, in bytes.
    pub fn held_bytes(&self) -> usize {
        let correlation_data = self.path.correlation_data.as_ref().map_or(0, Bytes::len);
        self.body.len() + 2 * self.path.topic.as_str().len() + correlation_data
    }

    /// The answer to a request that was read with a refusal.
    pub fn refused(&self, device: &DeviceName) -> MqttMessage {
        let failure = self.call.as_ref().err().cloned().unwrap_or_else(overload);
        self.path.failure(device, &failure, &self.body)
    }

    /// The sender, as far as it is known.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The destination of its answer.
    pub fn path(&self) -> &AnswerDestination {
        &self.path
    }

    /// Refuses it when its answer would go to a topic that is not allowed: one that is neither a result topic nor
    /// matches `response_topics` (if there are any), or one that a binding takes, as a message of a device.
    pub fn unless_misdirected<'b>(
        self,
        response_topics: &[TopicFilter],
        mut bindings: impl Iterator<Item = &'b Arc<Binding>>,
    ) -> Result<Self, UnansweredReason> {
        let topic = &self.path.topic;
        let known = response_topics.is_empty()
            || topic.as_str().starts_with(TOPIC_ROOT)
            || response_topics.iter().any(|filter| filter.matches(topic));
        let loops = bindings.any(|binding| binding.config().topic.matches(topic));
        if known && !loops { Ok(self) } else { Err(UnansweredReason::ForbiddenResponseTopic) }
    }

    /// Waits until its model is loaded or says why not; a request that is refused anyway does not wait. Returns `false`
    /// if the daemon stops before.
    pub fn wait_for_model(&self, model_wait: ModelWait) -> impl Future<Output = bool> + use<> {
        let target = self.call.as_ref().ok().map(|call| (call.target.model.clone(), call.target.version));
        let bytes = self.held_bytes();
        async move {
            match target {
                Some((model, version)) => model_wait.wait(&model, version, bytes).await,
                None => true,
            }
        }
    }

    /// Runs the call. Returns the answer and its status.
    pub async fn run(self, serving: &Serving, device: &DeviceName) -> (MqttMessage, u16) {
        let _place = self.place;
        let answered = match self.call {
            Ok(call) => call::answer(serving, call, &self.principal).await,
            Err(failure) => Err(failure),
        };
        match answered {
            Ok(answered) => (self.path.answer(device, answered), 200),
            Err(failure) => (self.path.failure(device, &failure, &self.body), failure.status.as_u16()),
        }
    }
}

/// The refusal of a message for its size, before it is read.
pub fn too_large(received: &ReceivedMessage, max_payload: usize) -> Option<ApiError> {
    let payload = received.message.payload.len();
    // A packet that was skipped only for lack of memory is within the limit for the payload.
    let size =
        received.oversized.filter(|packet| *packet > max_payload.saturating_add(MESSAGE_HEAD_BYTES)).unwrap_or(payload);
    if size > max_payload {
        let message = format!("the message has {size} bytes, more than {max_payload} (mqtt.max_payload_bytes)");
        return Some(ApiError::with_code(413, message));
    }
    received.oversized.map(|_| overload())
}

/// The time after which memory for messages may be free again. The message of the refusal names it.
const MEMORY_RETRY_AFTER: Duration = Duration::from_secs(1);

/// The refusal of a message for which there is no memory now.
pub fn overload() -> ApiError {
    let message = "out of memory for messages (mqtt.max_memory_bytes); retry after 1 s";
    ApiError::later(StatusCode::TOO_MANY_REQUESTS, message, MEMORY_RETRY_AFTER)
}

/// The caller, named by the topic that distinguishes callers, or by the digest of a long one.
pub fn principal(topic: &TopicName) -> Principal {
    let topic = topic.as_str();
    let name = if topic.len() <= CALLER_NAME_MAX_BYTES {
        topic.into()
    } else {
        blake3::hash(topic.as_bytes()).to_hex().as_str().into()
    };
    Principal::Mqtt(name)
}

/// Reads a response topic. Of Ledge's own topics only result topics are allowed: an answer on a box's `online` would be
/// read as its presence, and one on `infer/` as a request.
fn response_topic(text: &str) -> Result<TopicName, UnansweredReason> {
    let topic: TopicName = text.parse().map_err(|_| UnansweredReason::InvalidResponseTopic)?;
    if topic.as_str().starts_with('$') {
        return Err(UnansweredReason::ForbiddenResponseTopic);
    }
    let own = topic.as_str().strip_prefix(TOPIC_ROOT);
    let is_result = |own: &str| own.split('/').nth(1) == Some("result");
    if own.is_some_and(|own| !is_result(own)) { Err(UnansweredReason::ForbiddenResponseTopic) } else { Ok(topic) }
}

fn call(
    target: ModelTarget,
    body: Bytes,
    properties: &MessageProperties,
    arrived: Instant,
) -> Result<InferenceCall, ApiError> {
    let bad =
        |error: &dyn std::fmt::Display, name: &str| ApiError::with_code(400, format!("user property {name}: {error}"));
    let length = properties.user(HEADER_LENGTH);
    let length = length.map(|text| parse_header_length(text.as_bytes())).transpose();
    let length = length.map_err(|error| ApiError::with_code(400, error.to_string()))?;
    let priority = properties.user("priority").map(str::parse::<Priority>).transpose();
    let priority = priority.map_err(|error| bad(&error, "priority"))?;
    let camera = properties.user("camera").map(str::parse::<CameraName>).transpose();
    let camera = camera.map_err(|error| bad(&error, "camera"))?;
    let form = BodyKind::sniffed(&body, properties.content_type.as_deref(), length);
    let deadline = properties.message_expiry_s.and_then(|left| arrived.checked_add(Duration::from_secs(left.into())));
    // The sender, its permissions and its memory are found out later.
    let views = ViewScope::default();
    let account = MemoryAccount::unlimited();
    let prefers_text = false;
    Ok(InferenceCall { target, body, form, prefers_text, priority, deadline, arrived, account, views, camera })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::packet::Qos;

    fn read(topic: &str, message: MqttMessage) -> Result<CallMessage, UnansweredReason> {
        let topics = DeviceTopics { device: "box".parse().unwrap(), group: "shop".parse().ok(), has_platform: false };
        let route = topics.route(&topic.parse().unwrap()).unwrap();
        let received = ReceivedMessage {
            message,
            packet_id: None,
            duplicate: false,
            oversized: None,
            subscription_ids: Vec::new(),
        };
        CallMessage::read(route, received, Instant::now(), None)
    }

    fn message(properties: MessageProperties) -> MqttMessage {
        let topic = "t".parse().unwrap();
        MqttMessage { topic, payload: "{}".into(), qos: Qos::AtMostOnce, retain: false, properties }
    }

    fn answering_to(topic: &str) -> MqttMessage {
        message(MessageProperties { response_topic: Some(topic.to_owned()), ..MessageProperties::default() })
    }

    #[test]
    fn an_answer_goes_to_the_response_topic_or_else_to_the_result_topic_of_whom_was_asked() {
        let answer = |topic, message| read(topic, message).unwrap().path.topic.to_string();
        assert_eq!(answer("ledge/v1/box/infer/m", answering_to("till/7/answers")), "till/7/answers");
        assert_eq!(answer("ledge/v1/box/infer/m", message(MessageProperties::default())), "ledge/v1/box/result/m");
        assert_eq!(
            answer("ledge/v1/shop/infer/m/versions/2", message(MessageProperties::default())),
            "ledge/v1/shop/result/m"
        );
        assert_eq!(answer("ledge/v1/box/infer/m", answering_to("ledge/v1/other/result/m")), "ledge/v1/other/result/m");
    }

    #[test]
    fn what_would_loop_or_pass_for_something_else_is_not_answered() {
        let unanswered = |message| read("ledge/v1/box/infer/m", message).err();
        for topic in ["a/#", "+", "", "a\0"] {
            assert_eq!(unanswered(answering_to(topic)), Some(UnansweredReason::InvalidResponseTopic), "{topic:?}");
        }
        for topic in
            ["ledge/v1/box/infer/m", "ledge/v1/other/infer/x", "ledge/v1/box/online", "ledge/v1/", "ledge/v1/x"]
        {
            assert_eq!(unanswered(answering_to(topic)), Some(UnansweredReason::ForbiddenResponseTopic), "{topic:?}");
        }
        let answer = MessageProperties { user: vec![("Status".into(), "200".into())], ..MessageProperties::default() };
        assert_eq!(unanswered(message(answer)), Some(UnansweredReason::Answer));
        assert_eq!(unanswered(MqttMessage { retain: true, ..answering_to("r") }), Some(UnansweredReason::Retained));
        assert_eq!(
            read("ledge/v1/box/infer/a/b", message(MessageProperties::default())).err(),
            Some(UnansweredReason::NoModel)
        );
    }

    #[test]
    fn a_request_that_cannot_be_read_is_answered_with_the_reason() {
        let status = |topic, message| read(topic, message).unwrap().call.unwrap_err().status.as_u16();
        assert_eq!(status("ledge/v1/box/infer/a/b", answering_to("r")), 404);
        for (name, value) in [("priority", "urgent"), (HEADER_LENGTH, "-1"), ("Inference-Header-Content-Length", "x")] {
            let user = vec![(name.to_owned(), value.to_owned())];
            assert_eq!(
                status("ledge/v1/box/infer/m", message(MessageProperties { user, ..MessageProperties::default() })),
                400
            );
        }
    }

    #[test]
    fn an_untyped_photograph_is_known_by_its_first_bytes_and_an_expiry_is_the_deadline() {
        let photograph =
            MqttMessage { payload: vec![0xFF, 0xD8, 0xFF, 0xE0].into(), ..message(MessageProperties::default()) };
        let call = read("ledge/v1/box/infer/m", photograph.clone()).unwrap().call.unwrap();
        assert_eq!((call.form, call.deadline), (BodyKind::Photograph, None));
        let properties = MessageProperties {
            content_type: Some("application/octet-stream".into()),
            message_expiry_s: Some(2),
            ..MessageProperties::default()
        };
        let call = read("ledge/v1/box/infer/m", MqttMessage { properties, ..photograph }).unwrap().call.unwrap();
        assert_eq!(call.form, BodyKind::Tensors { header_length: None });
        assert_eq!(call.deadline, Some(call.arrived + Duration::from_secs(2)));
    }
}
