//! The topics of Ledge: `ledge/v1/NAME/...`, where the name is that of a box or of a group of boxes.

use ledge_base::names::{DeviceName, InvalidName, ModelName, ModelVersion};

use super::{InvalidTopic, TopicFilter, TopicName, invalid};

/// The beginning of every topic of Ledge.
pub const TOPIC_ROOT: &str = "ledge/v1/";

/// The topics of one box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceTopics {
    pub device: DeviceName,
    /// The group that shares its calls.
    pub group: Option<DeviceName>,
    /// Set when a platform manages the box, and sends hints to it.
    pub has_platform: bool,
}

/// The contents of a topic for inference calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InferRoute {
    /// The name that is called: this box, or its group.
    pub owner: DeviceName,
    pub model: ModelName,
    /// `None` is the model's default version.
    pub version: Option<ModelVersion>,
}

/// The reason why a topic below `infer/` names no model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRoute {
    #[error("{0}")]
    Shape(InvalidTopic),
    #[error("{0}")]
    Name(#[from] InvalidName),
}

impl DeviceTopics {
    /// The filter for calls to this box.
    pub fn infer(&self) -> TopicFilter {
        infer(&self.device)
    }

    /// The filter for calls to the group of this box, each of which goes to one member.
    pub fn group_infer(&self) -> Option<TopicFilter> {
        self.group.as_ref().map(|group| TopicFilter::shared(group, &infer(group)))
    }

    /// The topic of this box's presence: online or offline.
    pub fn online(&self) -> TopicName {
        self.own("online")
    }

    /// The topic of this box's report: versions, models and health.
    pub fn reported(&self) -> TopicName {
        self.own("reported")
    }

    /// The beginning of the topics of this box's cameras: the name of the camera and its own topic follow.
    pub fn cameras(&self) -> TopicName {
        self.own("cameras")
    }

    /// The beginning of the topics of this box's alerts: the name of the alert follows.
    pub fn alerts(&self) -> TopicName {
        self.own("alerts")
    }

    /// The topic of what is unusual now of this box's figures.
    pub fn unusual(&self) -> TopicName {
        self.own("unusual")
    }

    /// The beginning of the topics of this box's documents: the name of the inbox follows.
    pub fn documents(&self) -> TopicName {
        self.own("documents")
    }

    /// The topic of the platform's hints; `None` where no platform manages this box.
    pub fn desired(&self) -> Option<TopicFilter> {
        self.has_platform.then(|| TopicFilter::valid(self.own("desired").as_str()))
    }

    /// Returns `true` if a topic is that of [`Self::desired`].
    pub fn is_desired(&self, topic: &TopicName) -> bool {
        self.has_platform && *topic == self.own("desired")
    }

    /// The topic for answers to calls that name no response topic.
    pub fn result(owner: &DeviceName, model: &ModelName) -> TopicName {
        // Valid: two names contain no wildcard and no null character, and are far shorter than 65,535 bytes.
        TopicName(format!("{TOPIC_ROOT}{owner}/result/{model}").into())
    }

    /// The route of a call. `None`: the topic is not below `infer/` of this box or its group.
    pub fn route(&self, topic: &TopicName) -> Option<Result<InferRoute, InvalidRoute>> {
        let (owner, path) = topic.as_str().strip_prefix(TOPIC_ROOT)?.split_once("/infer/")?;
        let owner =
            [Some(&self.device), self.group.as_ref()].into_iter().flatten().find(|name| name.as_str() == owner)?;
        Some(parse(owner, path, topic))
    }

    fn own(&self, what: &str) -> TopicName {
        TopicName(format!("{TOPIC_ROOT}{}/{what}", self.device).into())
    }
}

fn infer(name: &DeviceName) -> TopicFilter {
    TopicFilter::valid(&format!("{TOPIC_ROOT}{name}/infer/#"))
}

fn parse(owner: &DeviceName, path: &str, topic: &TopicName) -> Result<InferRoute, InvalidRoute> {
    let levels: Vec<&str> = path.split('/').collect();
    let (model, version) = match levels.as_slice() {
        [model] => (model, None),
        [model, "versions", version] => (model, Some(version.parse()?)),
        _ => {
            let reason = "does not end in infer/MODEL or infer/MODEL/versions/VERSION";
            return Err(InvalidRoute::Shape(invalid("topic", topic.as_str(), reason)));
        }
    };
    Ok(InferRoute { owner: owner.clone(), model: model.parse()?, version })
}
