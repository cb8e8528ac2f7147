//! The messages of a camera, and the way out of the box for them.

use std::collections::BTreeMap;
use std::fmt::Debug;

use bytes::Bytes;
use ledge_base::names::CameraName;
use ledge_engine::pipeline::detection::DetectionBox;
use schemars::JsonSchema;
use serde::Serialize;

use crate::clock::Moment;
use crate::health::CameraHealth;

/// Payloads of the state of a camera, as Home Assistant expects them by default.
pub const ONLINE: &str = "online";
pub const OFFLINE: &str = "offline";

/// A message of a camera.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CameraMessage {
    pub topic: String,
    pub payload: Bytes,
    /// The broker keeps it for later subscribers. An empty payload removes the kept message.
    pub retain: bool,
    pub kind: CameraMessageKind,
}

/// The kind of content, for the egress policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CameraMessageKind {
    /// Events, counts, the status and the description of entities, in JSON.
    Data,
    /// Online or offline.
    Presence,
    /// A picture.
    Picture,
}

/// Takes the messages of cameras out of the box. It never waits.
pub trait CameraPublisher: Debug + Send + Sync {
    /// False if the message is dropped, because there is no broker or no room.
    fn publish(&self, message: CameraMessage) -> bool;
}

/// The topics of one camera.
#[derive(Debug, Clone)]
pub struct CameraTopics(String);

impl CameraTopics {
    /// The topics of a camera below `all`, the topic of all cameras of this box.
    pub fn new(all: &str, camera: &CameraName) -> Self {
        Self(format!("{all}/{camera}"))
    }

    pub fn events(&self) -> String {
        format!("{}/events", self.0)
    }

    pub fn counts(&self) -> String {
        format!("{}/counts", self.0)
    }

    pub fn state(&self) -> String {
        format!("{}/state", self.0)
    }

    pub fn status(&self) -> String {
        format!("{}/status", self.0)
    }

    pub fn picture(&self) -> String {
        format!("{}/picture", self.0)
    }
}

/// Something appeared, or is gone.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CameraEvent<'a> {
    /// `appeared` or `gone`.
    pub event: &'static str,
    pub camera: &'a str,
    /// The zone; `everywhere` is the whole picture.
    pub zone: &'a str,
    pub label: &'a str,
    /// The number of objects now.
    pub count: usize,
    /// The time, in RFC 3339.
    pub at: String,
    /// The surest one that appeared.
    #[serde(flatten)]
    pub object: Option<EventObject>,
}

/// An object as it was found.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct EventObject {
    pub score: f32,
    /// Its place in the picture, in pixels.
    #[serde(rename = "box")]
    pub area: DetectionBox,
}

/// The counts of a camera.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CameraObjectCounts<'a> {
    pub camera: &'a str,
    /// The time of the last change, in RFC 3339.
    pub at: String,
    /// By zone and label.
    pub zones: BTreeMap<&'a str, BTreeMap<String, usize>>,
}

/// The state of a camera. The reason stays on the box: it may have addresses of the network in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CameraStatus<'a> {
    pub camera: &'a str,
    /// `waiting`, `online`, `failing`, `frozen` or `away`.
    pub state: &'static str,
    /// The time since when it is so, in RFC 3339.
    pub since: Option<String>,
    /// The time of the last picture with other bytes than the one before, in RFC 3339.
    pub new_picture_at: Option<String>,
}

impl<'a> CameraStatus<'a> {
    pub fn of(camera: &'a str, health: &CameraHealth) -> Self {
        let text = |moment: Option<Moment>| moment.map(Moment::text);
        let (since, new_picture_at) = (text(health.since), text(health.new_picture()));
        Self { camera, state: health.state.as_str(), since, new_picture_at }
    }
}

impl CameraMessage {
    /// A message in JSON.
    pub fn json(topic: String, content: &impl Serialize, retain: bool) -> Self {
        // Maps have text keys only, so this does not fail.
        let payload = serde_json::to_vec(content).unwrap_or_default().into();
        Self { topic, payload, retain, kind: CameraMessageKind::Data }
    }
}
