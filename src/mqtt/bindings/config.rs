//! `[[mqtt.bindings]]` of the configuration.

use std::collections::{BTreeMap, HashMap};

use ledge_base::names::{CameraName, ModelName, ModelVersion};
use ledge_base::toml_check::{ValueProblem, in_range};
use ledge_features::online::PushTarget;
use ledge_models::repository::model_config::CallRate;
use ledge_models::scheduling::terms::Priority;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::event_time::{DeviceZone, MissingTime};
use super::key_source::JoinKeySource;
use super::when::{Condition, MessageConditions};
use crate::client::packet::Qos;
use crate::field_path::FieldPath;
use crate::topics::{TOPIC_ROOT, TopicFilter, TopicTemplate};

/// The most bindings, more than any box needs: each is compared with each other one, and with each message.
const BINDINGS_MAX: usize = 256;

/// From a topic into the feature store, through a model to a topic, or both: a push is durable before the model is
/// called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BindingConfig {
    /// The name in logs and metrics; `None` is the topic filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The topics that it takes.
    pub topic: TopicFilter,
    /// The feature view that rows are pushed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature_view: Option<String>,
    /// The push source. Rows are pushed to all of its views.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push_source: Option<String>,
    /// The path to a row's event time in a JSON message; without it, the view's timestamp field, or else the time of
    /// arrival.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_timestamp: Option<FieldPath>,
    /// The event time of a row that has nothing at that path.
    #[serde(default, skip_serializing_if = "MissingTime::is_default")]
    pub event_timestamp_missing: MissingTime,
    /// The time zone of event times without an offset; `None` is UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<DeviceZone>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelName>,
    /// `None` is the model's default version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<ModelVersion>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish: Option<TopicTemplate>,
    /// The QoS of answers: 0 is at most once; 1 is at least once, if the message was published with QoS 1 itself and
    /// there is no rate limit.
    #[serde(default = "at_least_once", deserialize_with = "read_qos", serialize_with = "write_qos")]
    pub qos: Qos,
    /// Makes the broker retain the last answer for later subscribers.
    #[serde(default)]
    pub retain: bool,
    #[serde(default, deserialize_with = "read_priority", serialize_with = "write_priority")]
    pub priority: Priority,
    /// The time that an answer may take, in milliseconds; `None` is the model's own timeout.
    #[serde(default, deserialize_with = "read_timeout", skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The most messages a second of each topic, of which the newest is kept; 0 is no limit.
    #[serde(default)]
    pub max_rate: CallRate,
    /// Shares the messages among the boxes of the group.
    #[serde(default)]
    pub shared: bool,
    /// Publishes errors like answers.
    #[serde(default)]
    pub publish_errors: bool,
    /// The camera that takes the photographs: the objects that a detector finds on them make its events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub camera: Option<CameraName>,
    /// The path to a photograph in base64 in a JSON message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub photograph: Option<FieldPath>,
    /// The path to a text in a JSON message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<FieldPath>,
    /// The feature, column or input that gets the whole message as its value, without any JSON around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The part of an answer that is published; `None` is all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<FieldPath>,
    /// The conditions on a message; others are skipped.
    #[serde(default, skip_serializing_if = "MessageConditions::is_empty")]
    pub when: MessageConditions,
    /// The paths to the elements of each input in a JSON message.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, Vec<FieldPath>>,
    /// The source of each entity key, by the name of the join key: the topic or a JSON message.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub entities: BTreeMap<String, JoinKeySource>,
    /// The path to each column of a row in a JSON message; without any, columns are top-level fields of their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub features: BTreeMap<String, FieldPath>,
}

fn at_least_once() -> Qos {
    Qos::AtLeastOnce
}

fn read_qos<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Qos, D::Error> {
    let number: u8 = in_range::<0, 1, _, _>(deserializer)?;
    Ok(if number == 0 { Qos::AtMostOnce } else { Qos::AtLeastOnce })
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference to the field")]
fn write_qos<S: Serializer>(qos: &Qos, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(match qos {
        Qos::AtMostOnce => 0,
        Qos::AtLeastOnce => 1,
    })
}

fn read_priority<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Priority, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum BindingPriority {
        Interactive,
        Batch,
    }
    Ok(match BindingPriority::deserialize(deserializer)? {
        BindingPriority::Interactive => Priority::Interactive,
        BindingPriority::Batch => Priority::Batch,
    })
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference to the field")]
fn write_priority<S: Serializer>(priority: &Priority, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(priority.as_str())
}

fn read_timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    in_range::<1, 3_600_000, _, _>(deserializer).map(Some)
}

impl BindingConfig {
    /// [`Self::name`], or the topic filter.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.topic.as_str())
    }

    /// The feature view or push source that rows are pushed to.
    pub fn target(&self) -> Option<PushTarget> {
        let view = self.feature_view.clone().map(PushTarget::View);
        view.or_else(|| self.push_source.clone().map(PushTarget::Source))
    }

    /// Returns `true` if messages have the elements of this input of a model, or of this column.
    pub fn gives(&self, input: &str) -> bool {
        let is_value = self.target().is_none() && self.value.as_deref() == Some(input);
        is_value || self.inputs.contains_key(input)
    }

    /// The parts of a message that it takes, in a few words.
    pub fn takes(&self) -> String {
        let listed = |columns: Vec<String>| columns.join(", ");
        let entities = listed(self.entities.iter().map(|(name, source)| format!("{name} = {source}")).collect());
        let features = listed(self.features.iter().map(|(name, path)| format!("{name} = {path}")).collect());
        let rows = match (&self.value, self.target(), features.is_empty()) {
            (Some(name), ..) => format!("{name} = the message"),
            (None, Some(_), true) => "columns by name".into(),
            _ => features,
        };
        let model = if self.model.is_some() { self.takes_for_model() } else { String::new() };
        let when = if self.when.is_empty() { String::new() } else { format!("when {}", self.when) };
        [entities, rows, model, when].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
    }

    fn takes_for_model(&self) -> String {
        match (&self.photograph, &self.text) {
            (Some(path), _) => format!("photograph {path}"),
            (None, Some(path)) => format!("text {path}"),
            _ if !self.inputs.is_empty() => {
                let input = |(name, paths): (&String, &Vec<FieldPath>)| {
                    let paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
                    format!("{name} = {}", paths.join(", "))
                };
                self.inputs.iter().map(input).collect::<Vec<_>>().join("; ")
            }
            _ if self.target().is_none() && self.entities.is_empty() && self.value.is_none() => "the message".into(),
            _ => String::new(),
        }
    }

    /// The mistakes in its parts for the feature store and for a model.
    fn problems_of_parts(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        let mut wrong = |holds: bool, key, problem: &str| {
            if !holds {
                problems.push(ValueProblem::new(key, problem));
            }
        };
        let (pushes, asks) = (self.target().is_some(), self.model.is_some());
        let nothing = "is bound to nothing: set model and publish, or feature_view or push_source";
        wrong(pushes || asks, "topic", nothing);
        let one = self.feature_view.is_none() || self.push_source.is_none();
        wrong(one, "push_source", "and feature_view are both set: rows go to one of them");
        wrong(!asks || self.publish.is_some(), "model", "has no topic for its answers: set publish");

        for (key, is_set) in [
            ("publish", self.publish.is_some()),
            ("version", self.version.is_some()),
            ("timeout_ms", self.timeout_ms.is_some()),
            ("priority", self.priority != Priority::default()),
            ("retain", self.retain),
            ("publish_errors", self.publish_errors),
            ("photograph", self.photograph.is_some()),
            ("text", self.text.is_some()),
            ("camera", self.camera.is_some()),
            ("select", self.select.is_some()),
            ("inputs", !self.inputs.is_empty()),
        ] {
            wrong(asks || !is_set, key, "is for a model: set model");
        }

        let is_for_push = "is for a push: set feature_view or push_source";
        wrong(pushes || self.event_timestamp.is_none(), "event_timestamp", is_for_push);
        wrong(pushes || self.features.is_empty(), "features", is_for_push);
        wrong(pushes || self.timezone.is_none(), "timezone", is_for_push);
        wrong(
            self.event_timestamp.is_some() || self.event_timestamp_missing.is_default(),
            "event_timestamp_missing",
            "is for messages without the field of event_timestamp: set that too",
        );
        wrong(
            pushes || self.entities.is_empty() || self.photograph.is_none(),
            "entities",
            "and photograph are both set: a model takes one of them",
        );
        wrong(
            pushes || self.entities.is_empty() || self.text.is_none(),
            "entities",
            "and text are both set: a model takes one of them",
        );

        let entities = self.entities.iter().map(|(name, source)| ("entities", name.clone(), source));
        let conditions = self.when.iter().map(|(source, _)| ("when", source.to_string(), source));
        let count = self.topic.capture_count();
        for (key, name, source) in entities.chain(conditions) {
            let JoinKeySource::Topic(template) = source else { continue };
            let highest = template.highest_capture();
            if highest > count {
                let problem = format!("{name} names {{{highest}}}, and {} has {count} wildcards", self.topic);
                problems.push(ValueProblem::new(key, problem));
            } else if template.names_model() && !asks {
                let problem = format!("{name} names {{model}}, and no model is set");
                problems.push(ValueProblem::new(key, problem));
            }
        }
        for (source, condition) in self.when.iter() {
            if let (JoinKeySource::Topic(template), Condition::Exists(_)) = (source, condition) {
                let problem =
                    format!("{template} is a part of the topic, which is always there: compare it with a text");
                problems.push(ValueProblem::new("when", problem));
            }
        }
        problems.extend(self.problems_of_value());
        problems
    }

    /// The settings that exclude `value`.
    fn problems_of_value(&self) -> Vec<ValueProblem> {
        let Some(name) = &self.value else { return Vec::new() };
        let mut problems = Vec::new();
        for (key, is_set) in [
            ("photograph", self.photograph.is_some()),
            ("text", self.text.is_some()),
            ("inputs", !self.inputs.is_empty()),
            ("features", !self.features.is_empty()),
            ("event_timestamp", self.event_timestamp.is_some()),
            ("timezone", self.timezone.is_some()),
        ] {
            if is_set {
                let problem = format!("and {key} are both set: a message that is one value has no fields");
                problems.push(ValueProblem::new("value", problem));
            }
        }
        if name.is_empty() {
            problems.push(ValueProblem::new("value", "is empty: name the feature, column or input that a message is"));
        }
        if let Some((key, path)) = self.entities.iter().find(|(_, source)| matches!(source, JoinKeySource::Field(_))) {
            let problem =
                format!("{key} is at {path}, and a message that is one value has no fields: take it from the topic");
            problems.push(ValueProblem::new("entities", problem));
        }
        problems
    }

    /// The mistakes in this binding.
    fn own_problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        let mut wrong = |key, problem: String| problems.push(ValueProblem::new(key, problem));
        if self.name.as_ref().is_some_and(|name| name.is_empty() || name.contains(char::is_control)) {
            wrong("name", "is empty or has a control character".into());
        }
        if self.topic.is_shared() {
            let own = self.topic.unshared();
            wrong("topic", format!("contains a group: set topic = \"{own}\", shared = true and device.group"));
        } else if let Some(ledge) = ledge_topics(&self.topic) {
            wrong("topic", format!("takes topics of Ledge itself, {ledge}: name the topics of your devices"));
        }

        let count = self.topic.capture_count();
        if let Some(publish) = &self.publish {
            let highest = publish.highest_capture();
            if highest > count {
                wrong("publish", format!("names {{{highest}}}, and {} has {count} wildcards", self.topic));
            } else if let Some(ledge) = overlapping(&publish.as_filter(&self.topic), &RESERVED_SUBTOPICS) {
                let problem = format!("may be {ledge}, a topic that is reserved for Ledge itself: choose another");
                wrong("publish", problem);
            }
        }

        if self.photograph.is_some() && !self.inputs.is_empty() {
            wrong("photograph", "and inputs are both set: a model takes one of them".into());
        }
        if self.text.is_some() && !self.inputs.is_empty() {
            wrong("text", "and inputs are both set: a model takes one of them".into());
        }
        if self.text.is_some() && self.photograph.is_some() {
            wrong("text", "and photograph are both set: a model takes one of them".into());
        }
        if let Some((name, _)) = self.inputs.iter().find(|(_, paths)| paths.is_empty()) {
            let problem = format!("has no paths for {name:?}: name at least one, as in [\"$.payload.temp\"]");
            wrong("inputs", problem);
        }
        problems.extend(self.problems_of_parts());
        problems
    }
}

/// The topics below `ledge/v1/NAME/` that a binding can neither take nor publish to.
const RESERVED_SUBTOPICS: [&str; 4] = ["infer/#", "desired", "online", "reported"];

/// A topic of Ledge that `filter` may match.
fn ledge_topics(filter: &TopicFilter) -> Option<TopicFilter> {
    if filter.as_str().starts_with(TOPIC_ROOT) {
        return Some(filter.clone());
    }
    overlapping(filter, &RESERVED_SUBTOPICS).or_else(|| overlapping(filter, &["result/+"]))
}

fn overlapping(filter: &TopicFilter, topics: &[&str]) -> Option<TopicFilter> {
    let mut all = topics.iter().filter_map(|topic| format!("{TOPIC_ROOT}+/{topic}").parse().ok());
    all.find(|topic| filter.overlaps(topic))
}

/// The mistakes in bindings with well-formed values, with keys such as `bindings[0].publish`.
pub fn problems(bindings: &[BindingConfig]) -> Vec<ValueProblem> {
    if bindings.len() > BINDINGS_MAX {
        let problem = format!("are more than {BINDINGS_MAX}: join some with wildcards in their topics");
        return vec![ValueProblem::new("bindings", problem)];
    }
    let mut problems = Vec::new();
    let mut names = HashMap::new();
    for (index, binding) in bindings.iter().enumerate() {
        let table = format!("bindings[{index}]");
        problems.extend(binding.own_problems().into_iter().map(|problem| problem.within(&table)));
        if names.insert(binding.name(), index).is_some() {
            let key = if binding.name.is_some() { "name" } else { "topic" };
            let problem = format!("makes two bindings named {:?}: give this one another name", binding.name());
            problems.push(ValueProblem::new(key, problem).within(&table));
        }

        let made = binding.publish.as_ref().map(|publish| (publish, publish.as_filter(&binding.topic)));
        if let Some((publish, made)) = made
            && let Some(taker) = bindings.iter().find(|other| made.overlaps(&other.topic))
        {
            let taker = taker.name();
            let problem = format!("{publish} may be a topic that the binding {taker:?} takes: answers would loop");
            problems.push(ValueProblem::new("publish", problem).within(&table));
        }
    }
    problems
}
