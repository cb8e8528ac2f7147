//! Messages, as tests write and read them.

use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Publish, PublishProperties};
use serde_json::{Value, json};

/// A message to send, with QoS 1 unless it says otherwise.
#[derive(Debug, Clone)]
pub struct Outgoing(Publish);

impl Outgoing {
    /// A message to a topic.
    pub fn new(topic: &str, payload: impl Into<Vec<u8>>) -> Self {
        Self(Publish::new(topic, QoS::AtLeastOnce, payload.into(), Some(PublishProperties::default())))
    }

    /// JSON to a topic.
    pub fn json(topic: &str, payload: &Value) -> Self {
        Self::new(topic, payload.to_string())
    }

    /// A request to `add_sub` of `box`. The answer has the sum `number + 1`.
    pub fn add_sub(id: &str, number: f64) -> Self {
        Self::json("ledge/v1/box/infer/add_sub", &add_sub(id, number))
    }

    /// The same to another topic.
    pub fn to(mut self, topic: &str) -> Self {
        self.0.topic = topic.to_owned().into();
        self
    }

    /// With QoS 0.
    pub fn at_most_once(mut self) -> Self {
        self.0.qos = QoS::AtMostOnce;
        self
    }

    /// To be kept by the broker.
    pub fn retained(mut self) -> Self {
        self.0.retain = true;
        self
    }

    /// Sets the response topic.
    pub fn answer_to(mut self, topic: &str) -> Self {
        self.properties().response_topic = Some(topic.to_owned());
        self
    }

    /// Sets the correlation data.
    pub fn correlation(mut self, data: &[u8]) -> Self {
        self.properties().correlation_data = Some(data.to_vec().into());
        self
    }

    /// The MIME type of the payload.
    pub fn content_type(mut self, text: &str) -> Self {
        self.properties().content_type = Some(text.to_owned());
        self
    }

    /// Sets the message expiry.
    pub fn expiry(mut self, seconds: u32) -> Self {
        self.properties().message_expiry_interval = Some(seconds);
        self
    }

    /// A user property.
    pub fn user(mut self, name: &str, value: &str) -> Self {
        self.properties().user_properties.push((name.to_owned(), value.to_owned()));
        self
    }

    fn properties(&mut self) -> &mut PublishProperties {
        self.0.properties.get_or_insert_default()
    }

    pub(crate) fn into_publish(self) -> Publish {
        self.0
    }
}

/// A message that came.
#[derive(Clone)]
pub struct Message {
    pub topic: String,
    pub payload: Vec<u8>,
    pub retained: bool,
    pub correlation: Option<Vec<u8>>,
    pub content_type: Option<String>,
    user: Vec<(String, String)>,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let payload: String = self.text().chars().take(300).collect();
        let Self { topic, retained, correlation, content_type, user, payload: bytes } = self;
        write!(
            f,
            "{topic} retained={retained} {correlation:?} {content_type:?} {user:?}: {payload} ({} bytes)",
            bytes.len()
        )
    }
}

impl Message {
    pub(crate) fn new(publish: Publish) -> Self {
        let properties = publish.properties.unwrap_or_default();
        Self {
            topic: String::from_utf8(publish.topic.into()).unwrap(),
            payload: publish.payload.into(),
            retained: publish.retain,
            correlation: properties.correlation_data.map(Into::into),
            content_type: properties.content_type,
            user: properties.user_properties,
        }
    }

    /// A user property.
    pub fn user(&self, name: &str) -> Option<&str> {
        self.user.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The user property `status`, which every answer has.
    #[track_caller]
    pub fn status(&self) -> u16 {
        let status = self.user("status").and_then(|text| text.parse().ok());
        status.unwrap_or_else(|| panic!("no status in {self:?}"))
    }

    /// The box that answered.
    #[track_caller]
    pub fn device(&self) -> &str {
        self.user("device").unwrap_or_else(|| panic!("no device in {self:?}"))
    }

    /// Returns `true` if it answers a request that may have been answered before.
    pub fn is_duplicate(&self) -> bool {
        self.user("duplicate") == Some("true")
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.payload).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The id of the request that this answers.
    #[track_caller]
    pub fn id(&self) -> String {
        self.json()["id"].as_str().unwrap_or_else(|| panic!("no id in {self:?}")).to_owned()
    }

    /// The sum in an answer of `add_sub`.
    #[track_caller]
    pub fn sum(&self) -> f64 {
        assert_eq!(self.status(), 200, "{self:?}");
        self.json()["outputs"][0]["data"][0].as_f64().unwrap_or_else(|| panic!("no sum in {self:?}"))
    }

    /// The text of an error answer. Also checks the form of the answer.
    #[track_caller]
    pub fn error(&self) -> String {
        let json = self.json();
        assert_eq!(json["status"], self.status(), "{self:?}");
        assert_eq!(self.content_type.as_deref(), Some("application/json"), "{self:?}");
        json["error"].as_str().unwrap_or_else(|| panic!("no error in {self:?}")).to_owned()
    }
}

/// A request to `add_sub`: sixteen times `number`, and sixteen times 1. The sum is `number + 1`.
pub fn add_sub(id: &str, number: f64) -> Value {
    let row = |name, value| json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![value; 16]});
    json!({"id": id, "inputs": [row("INPUT0", number), row("INPUT1", 1.0)]})
}
