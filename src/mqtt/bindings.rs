//! Bindings: push the messages of existing devices into the feature store, or infer on them and publish the answer,
//! without any code.

mod bare_value;
mod check;
mod config;
mod error;
mod event_time;
mod extract;
mod key_source;
mod rows;
mod value_kind;
mod when;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ledge_base::names::{DeviceName, ModelName};
use ledge_models::serving::Serving;
use ledge_protocol::call::BodyKind;

pub use self::check::{BindingModel, BindingProblem, MisfitEffect, against_model, against_views};
pub use self::config::{BindingConfig, problems};
pub use self::extract::{ExtractedInput, request_of_rows, request_of_value};
pub use self::rows::{ExtractedPushRows, MessageOrigin, entities, join_keys, push_rows};
pub use self::when::{MessageConditions, MessageParts};
use super::topics::{TopicFilter, TopicName, TopicTemplate};
pub use error::BindingError;
pub use key_source::JoinKeySource;
pub use value_kind::ValueKind;

/// A valid binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    config: BindingConfig,
}

/// All bindings of this box, in the order of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bindings(Vec<Arc<Binding>>);

impl Bindings {
    /// The bindings of a configuration in which [`problems`] finds nothing.
    pub fn new(configs: &[BindingConfig]) -> Self {
        Self(configs.iter().cloned().map(|config| Arc::new(Binding { config })).collect())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Binding>> {
        self.0.iter()
    }

    /// The bindings with filters that match `topic`, each with the parts of it that the wildcards match.
    pub fn matching<'t>(&self, topic: &'t TopicName) -> impl Iterator<Item = (&Arc<Binding>, Vec<&'t str>)> {
        self.0.iter().filter_map(|binding| Some((binding, binding.config.topic.captures(topic)?)))
    }
}

impl Binding {
    pub fn config(&self) -> &BindingConfig {
        &self.config
    }

    /// Its name, which is unique.
    pub fn name(&self) -> &str {
        self.config.name()
    }

    /// The filter to subscribe to. A shared binding has a group: the configuration has checked it.
    pub fn subscription(&self, group: Option<&DeviceName>) -> TopicFilter {
        match group {
            Some(group) if self.config.shared => TopicFilter::shared(group, &self.config.topic),
            _ => self.config.topic.clone(),
        }
    }

    /// The time that an answer may take; `None` is the model's own timeout.
    pub fn timeout(&self) -> Option<Duration> {
        self.config.timeout_ms.map(Duration::from_millis)
    }

    /// The time between two messages of a topic; `None` is no limit.
    pub fn interval(&self) -> Option<Duration> {
        self.config.max_rate.interval()
    }

    /// The reason why `when` excludes a message; `None` for one that it takes.
    pub fn unmet<C: AsRef<str>>(&self, subject: &MessageParts<'_>, captures: &[C]) -> Option<String> {
        self.config.when.unmet(subject, captures, self.config.model.as_ref())
    }

    /// Returns `true` if the message is parsed here, as JSON or as one value.
    pub fn parses(&self) -> bool {
        let config = &self.config;
        config.photograph.is_some()
            || config.value.is_some()
            || config.text.is_some()
            || !config.inputs.is_empty()
            || !config.entities.is_empty()
            || self.pushes()
    }

    /// Returns `true` if it pushes into the feature store.
    pub fn pushes(&self) -> bool {
        self.config.target().is_some()
    }

    /// Returns `true` if it pushes, and asks no model.
    pub fn only_pushes(&self) -> bool {
        self.config.model.is_none()
    }

    /// Its model, and the topic for answers.
    pub fn model(&self) -> Option<(&ModelName, &TopicTemplate)> {
        self.config.model.as_ref().zip(self.config.publish.as_ref())
    }

    /// The request for the model.
    pub fn request(&self, payload: &Bytes, content_type: Option<&str>) -> Result<ExtractedInput, BindingError> {
        if let Some(path) = &self.config.text {
            return extract::text(path, payload);
        }
        if let Some(name) = self.config.value.as_ref().filter(|_| !self.pushes()) {
            return Ok(ExtractedInput::Value(name.clone()));
        }
        match (&self.config.photograph, self.config.inputs.is_empty()) {
            (Some(path), _) => extract::photograph(path, payload),
            (None, false) => extract::rows(&self.config.inputs, payload),
            (None, true) if self.pushes() || !self.config.entities.is_empty() => Ok(ExtractedInput::Rows(Vec::new())),
            (None, true) => Ok(ExtractedInput::Body(payload.clone(), BodyKind::of_message(payload, content_type))),
        }
    }

    /// The part of an answer that is published.
    pub fn answer(&self, answer: &Bytes) -> Result<Bytes, BindingError> {
        match &self.config.select {
            Some(path) => extract::select(path, answer),
            None => Ok(answer.clone()),
        }
    }
}

/// Warns of bindings that do not fit the feature views and the loaded models of now. Both may change while the daemon
/// runs, so a misfit only warns.
pub fn warn_of_misfits(configs: &[BindingConfig], serving: &Serving) {
    let registry = serving.features().registry();
    for config in configs {
        let mut problems = against_views(config, &registry);
        if let Some(name) = &config.model
            && let Ok(model) = serving.repository().pin(name, config.version)
        {
            let inputs: Vec<_> = model.signature.inputs.iter().map(|port| port.name.clone()).collect();
            let known = BindingModel { name, config: &model.config, inputs: Some(&inputs) };
            problems.extend(against_model(config, &registry, known));
        }
        for BindingProblem { key, reason, effect } in problems {
            let (binding, problem) = (config.name(), reason);
            match effect {
                MisfitEffect::Refused => {
                    tracing::warn!(
                        name: "binding.misfits",
                        binding,
                        key,
                        problem,
                        "every message of a binding will be refused"
                    );
                }
                MisfitEffect::PartIgnored => {
                    tracing::warn!(
                        name: "binding.part_misfits",
                        binding,
                        key,
                        problem,
                        "a part of every message of a binding will be ignored"
                    );
                }
                MisfitEffect::OthersErased => {
                    tracing::warn!(
                        name: "binding.nulls_features",
                        binding,
                        key,
                        problem,
                        "every message of a binding will set other features to null"
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
