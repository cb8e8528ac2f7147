//! The topics of Ledge: `ledge/v1/NAME/...`, where the name is that of a box or of a group of boxes.

use ledge_base::names::{DeviceName, InvalidName, ModelName, ModelVersion};

use super::{InvalidTopic, TopicFilter, TopicName, invalid};

/// What every topic of Ledge begins with.
pub const ROOT: &str = "ledge/v1/";

/// The topics of one box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceTopics {
    /// The name of the box.
    pub device: DeviceName,
    /// The group whose work it shares.
    pub group: Option<DeviceName>,
    /// Whether a platform looks after it, which has hints for it.
    pub looked_after: bool,
}

/// What a topic for inference calls says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InferRoute {
    /// Who is asked: this box, or its group.
    pub owner: DeviceName,
    pub model: ModelName,
    /// The version; `None` is the model's default.
    pub version: Option<ModelVersion>,
}

/// Why a topic below `infer/` names no model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRoute {
    #[error("{0}")]
    Shape(InvalidTopic),
    #[error("{0}")]
    Name(#[from] InvalidName),
}

impl DeviceTopics {
    /// Calls to this box.
    pub fn infer(&self) -> TopicFilter {
        infer(&self.device)
    }

    /// Calls to the group of this box, each for one of its members.
    pub fn group_infer(&self) -> Option<TopicFilter> {
        self.group.as_ref().map(|group| TopicFilter::shared(group, &infer(group)))
    }

    /// Whether this box is there.
    pub fn online(&self) -> TopicName {
        self.own("online")
    }

    /// What this box runs, and how it is.
    pub fn reported(&self) -> TopicName {
        self.own("reported")
    }

    /// Where the platform says that it has something new; `None` where none looks after this box.
    pub fn desired(&self) -> Option<TopicFilter> {
        self.looked_after.then(|| TopicFilter::valid(self.own("desired").as_str()))
    }

    /// Whether a topic is that of [`Self::desired`].
    pub fn is_desired(&self, topic: &TopicName) -> bool {
        self.looked_after && *topic == self.own("desired")
    }

    /// Where answers go to calls that name no response topic.
    pub fn result(owner: &DeviceName, model: &ModelName) -> TopicName {
        // Two names make no wildcard, no null character, and no topic of 65,535 bytes.
        TopicName(format!("{ROOT}{owner}/result/{model}").into())
    }

    /// Who and what a topic asks. `None`: it is not below `infer/` of this box or its group.
    pub fn route(&self, topic: &TopicName) -> Option<Result<InferRoute, InvalidRoute>> {
        let (owner, path) = topic.as_str().strip_prefix(ROOT)?.split_once("/infer/")?;
        let owner =
            [Some(&self.device), self.group.as_ref()].into_iter().flatten().find(|name| name.as_str() == owner)?;
        Some(parse(owner, path, topic))
    }

    fn own(&self, what: &str) -> TopicName {
        TopicName(format!("{ROOT}{}/{what}", self.device).into())
    }
}

fn infer(name: &DeviceName) -> TopicFilter {
    TopicFilter::valid(&format!("{ROOT}{name}/infer/#"))
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
