//! Answers and errors as messages.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use ledge_base::names::DeviceName;
use ledge_part::api_error::{ApiError, ErrorBody};
use ledge_protocol::call::{CallAnswer, ContentType, HEADER_LENGTH};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::client::packet::{MessageProperties, MqttMessage, Qos};
use super::topics::TopicName;

/// User property of every answer: the status as in HTTP. A message that has it is never a request.
pub const STATUS_PROPERTY: &str = "status";

/// The properties of an answer, user properties by their names.
pub const ANSWER_PROPERTIES: [(&str, &str); 9] = [
    ("correlation data", "as the request has it"),
    ("content type", "of the payload"),
    (STATUS_PROPERTY, "as in HTTP"),
    ("device", "the name of this box"),
    ("duplicate", "whether the request may have been answered before"),
    ("model-version", "the version that answered"),
    ("cache", "what the response cache did"),
    (HEADER_LENGTH, "where the JSON ends and numbers in binary begin"),
    ("retry-after", "the number of seconds after which to try again"),
];

/// The destination of an answer, and how it is sent.
#[derive(Debug, Clone)]
pub struct AnswerDestination {
    /// The response topic, or the result topic of the model.
    pub topic: TopicName,
    /// The correlation data of the request.
    pub correlation_data: Option<Bytes>,
    /// The QoS of the request.
    pub qos: Qos,
    /// Set when the request may have been answered before.
    pub duplicate: bool,
}

/// The body of an answer without a result. The status and id are for clients of 3.1.1, which have no properties.
fn error_body(failure: &ApiError, request: &[u8]) -> Bytes {
    let id = id_of(request);
    ErrorBody { error: &failure.message, status: Some(failure.status.as_u16()), id: id.as_deref() }.to_json().into()
}

impl AnswerDestination {
    /// The message with a result.
    pub fn answer(&self, device: &DeviceName, answered: CallAnswer) -> MqttMessage {
        let mut message = self.message(device, 200, answered.body);
        let user = &mut message.properties.user;
        user.push(("model-version".to_owned(), answered.version.to_string()));
        if let Some(outcome) = answered.cache {
            user.push(("cache".to_owned(), outcome.as_str().to_owned()));
        }
        if let ContentType::Binary { header_length: length } = answered.content_type {
            user.push((HEADER_LENGTH.to_owned(), length.to_string()));
            message.properties.content_type = Some("application/octet-stream".to_owned());
        }
        message
    }

    /// The message with an error. The answer repeats the id of the failed `request`.
    pub fn failure(&self, device: &DeviceName, failure: &ApiError, request: &[u8]) -> MqttMessage {
        let mut message = self.message(device, failure.status.as_u16(), error_body(failure, request));
        if let Some(seconds) = failure.retry_after_s {
            message.properties.user.push(("retry-after".to_owned(), seconds.to_string()));
        }
        message
    }

    fn message(&self, device: &DeviceName, status: u16, payload: Bytes) -> MqttMessage {
        let mut user =
            vec![(STATUS_PROPERTY.to_owned(), status.to_string()), ("device".to_owned(), device.to_string())];
        if self.duplicate {
            user.push(("duplicate".to_owned(), "true".to_owned()));
        }
        let properties = MessageProperties {
            correlation_data: self.correlation_data.clone(),
            content_type: Some("application/json".to_owned()),
            user,
            ..MessageProperties::default()
        };
        MqttMessage { topic: self.topic.clone(), payload, qos: self.qos, retain: false, properties }
    }
}

/// Replaces an answer that cannot be sent by an error. `false`: it is an error already.
pub fn replace(message: &mut MqttMessage, failure: &ApiError) -> bool {
    if status(message).is_none_or(|status| status >= 400) {
        return false;
    }
    let body = error_body(failure, &message.payload);
    let MessageProperties { correlation_data, mut user, .. } = std::mem::take(&mut message.properties);
    user.retain(|(name, _)| name == "device" || name == "duplicate");
    user.insert(0, (STATUS_PROPERTY.to_owned(), failure.status.to_string()));
    if let Some(seconds) = failure.retry_after_s {
        user.push(("retry-after".to_owned(), seconds.to_string()));
    }
    let content_type = Some("application/json".to_owned());
    message.properties = MessageProperties { correlation_data, content_type, user, ..MessageProperties::default() };
    message.payload = body;
    message.retain = false;
    true
}

/// The status of an answer; `None` for other messages.
pub fn status(message: &MqttMessage) -> Option<u16> {
    message.properties.user(STATUS_PROPERTY)?.parse().ok()
}

/// The part of a request that is searched for its id, in bytes: the answer need not wait for all of a large one.
const ID_SEARCH_BYTES: usize = 64 << 10;

/// The longest id that an error repeats, in characters.
const ID_MAX_CHARS: usize = 256;

/// The id in the JSON of a request or an answer, if it can be read; anything may follow it.
fn id_of(request: &[u8]) -> Option<String> {
    struct Id<'a>(&'a mut Option<String>);

    impl<'de> Visitor<'de> for Id<'_> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                if key == "id" {
                    *self.0 = map.next_value::<Option<String>>()?;
                    break;
                }
                map.next_value::<IgnoredAny>()?;
            }
            Ok(())
        }
    }

    let mut id = None;
    let start = request.get(..ID_SEARCH_BYTES).unwrap_or(request);
    // Mistakes after the id do not matter.
    let _ = serde_json::Deserializer::from_slice(start).deserialize_map(Id(&mut id));
    id.filter(|id| id.chars().nth(ID_MAX_CHARS).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> AnswerDestination {
        let topic = "reply/7".parse().unwrap();
        AnswerDestination { topic, correlation_data: Some("c".into()), qos: Qos::AtLeastOnce, duplicate: true }
    }

    #[test]
    fn an_error_says_its_status_and_the_id_of_its_request_in_the_body_too() {
        let failure = ApiError { retry_after_s: Some(3), ..ApiError::with_code(429, "too \"many\"") };
        let message = path().failure(&"box".parse().unwrap(), &failure, br#"{"inputs": [], "id": "a\"b"}binary"#);
        assert_eq!(&message.payload[..], br#"{"error":"too \"many\"","status":429,"id":"a\"b"}"#);
        let user = |name| message.properties.user(name);
        assert_eq!((user("status"), user("retry-after"), user("duplicate")), (Some("429"), Some("3"), Some("true")));
        assert_eq!((user("device"), message.qos), (Some("box"), Qos::AtLeastOnce));
        assert_eq!(message.properties.correlation_data.as_deref(), Some(&b"c"[..]));
    }

    #[test]
    fn the_properties_that_are_told_are_those_that_are_sent() {
        let device = "box".parse().unwrap();
        let cache = Some(ledge_models::serving::request::CacheOutcome::Hit);
        let answered = CallAnswer {
            body: "{}..".into(),
            content_type: ContentType::Binary { header_length: 2 },
            version: 3.try_into().unwrap(),
            cache,
        };
        let failure = ApiError { retry_after_s: Some(3), ..ApiError::with_code(429, "no") };
        let messages = [path().answer(&device, answered), path().failure(&device, &failure, b"")];
        let mut sent = std::collections::BTreeSet::from(["correlation data".to_owned(), "content type".to_owned()]);
        for message in messages {
            let mut properties = message.properties;
            assert!(properties.correlation_data.take().is_some() && properties.content_type.take().is_some());
            sent.extend(std::mem::take(&mut properties.user).into_iter().map(|(name, _)| name));
            assert_eq!(properties, MessageProperties::default(), "and nothing else");
        }
        assert_eq!(sent, ANSWER_PROPERTIES.into_iter().map(|(name, _)| name.to_owned()).collect());
    }

    #[test]
    fn an_id_that_cannot_be_read_is_left_out() {
        let long = format!("{{\"id\":\"{}\"}}", "x".repeat(300));
        for request in [&b""[..], long.as_bytes(), b"{", b"[1]", b"{\"id\": 7}", b"{\"id\": null}", b"\xff\xd8\xff"] {
            assert_eq!(id_of(request), None, "{request:?}");
        }
    }

    #[test]
    fn an_id_is_found_in_front_of_whatever_follows() {
        let large = format!("{{\"parameters\":{{\"a\":[1]}},\"id\":\"x\",\"inputs\":[{}", "1,".repeat(1 << 20));
        assert_eq!(id_of(large.as_bytes()).as_deref(), Some("x"));
        assert_eq!(id_of(b"{\"id\":\"x\", oops").as_deref(), Some("x"));
    }

    #[test]
    fn a_binary_answer_says_where_its_json_ends() {
        let version = 3.try_into().unwrap();
        let answered = CallAnswer {
            body: "{}..".into(),
            content_type: ContentType::Binary { header_length: 2 },
            version,
            cache: None,
        };
        let message = path().answer(&"box".parse().unwrap(), answered);
        assert_eq!(message.properties.content_type.as_deref(), Some("application/octet-stream"));
        let user = |name| message.properties.user(name);
        assert_eq!((user(HEADER_LENGTH), user("status"), user("model-version")), (Some("2"), Some("200"), Some("3")));
    }
}
