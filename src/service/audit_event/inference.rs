//! Inference calls on their way into the audit log: one by one, or counted by the minute, as the policy says.

use std::collections::BTreeSet;
use std::fmt;

use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::principal::Principal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::feature::ENTITIES;
use super::tag::{Tag, TagContent};

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallOutcome {
    /// It was answered.
    Ok,
    /// It failed because of the request or the model, or the caller disconnected.
    Failed,
    /// It was refused: a full queue, a quota, a limit.
    Refused,
    /// Its deadline passed.
    Late,
    /// The model or version does not exist, or is not loaded.
    Unavailable,
}

/// The detail in which inference is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordDetail {
    /// A record for each minute, caller, model and outcome.
    #[default]
    Minutes,
    /// A record for each call, with tags of its inputs and outputs.
    Calls,
}

/// The detail of the records of inference calls and feature calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordPolicy {
    /// The detail for models that are not in `calls`.
    pub detail: RecordDetail,
    /// Models of which each call is recorded.
    pub calls: BTreeSet<ModelName>,
    /// The most entities that a record of feature reads or pushes lists.
    pub feature_entities: u32,
}

impl Default for RecordPolicy {
    fn default() -> Self {
        Self { detail: RecordDetail::default(), calls: BTreeSet::new(), feature_entities: ENTITIES }
    }
}

impl RecordPolicy {
    /// True if each call of a model is recorded.
    pub fn is_each_call(&self, model: &ModelName) -> bool {
        self.detail == RecordDetail::Calls || self.calls.contains(model)
    }
}

/// The first 16 hexadecimal digits of a model's digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DigestPrefix([u8; 16]);

impl DigestPrefix {
    /// The prefix of a digest.
    pub fn of(digest: &str) -> Option<Self> {
        digest.as_bytes().first_chunk().copied().map(Self)
    }
}

impl fmt::Display for DigestPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// The key that calls are counted by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AuditCallGroup {
    /// The model; `None` when no model has the requested name, because a caller chose that name.
    pub model: Option<ModelName>,
    /// The version that was to answer.
    pub version: Option<ModelVersion>,
    /// The digest of its files.
    pub digest: Option<DigestPrefix>,
    pub principal: Principal,
    pub outcome: CallOutcome,
}

/// A tag, or the content for one.
#[derive(Debug, Clone)]
pub enum Taggable {
    Tag(Tag),
    /// The content, which the writer tags later.
    Content(TagContent),
}

/// One call that becomes a separate record.
#[derive(Debug, Clone)]
pub struct CallRecord {
    pub key: AuditCallGroup,
    /// The duration in microseconds.
    pub us: u64,
    pub input: Option<Taggable>,
    pub output: Option<Taggable>,
}

impl CallRecord {
    /// The number of bytes in it that wait to be tagged.
    pub fn waiting(&self) -> usize {
        let size = |taggable: &Taggable| match taggable {
            Taggable::Tag(_) => 0,
            Taggable::Content(content) => content.size(),
        };
        [&self.input, &self.output].into_iter().flatten().map(size).sum()
    }
}

/// The calls of one key within a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallCounts {
    pub calls: u64,
    /// The sum of their durations in microseconds.
    pub us: u64,
    /// The longest duration in microseconds.
    pub us_max: u64,
}

impl CallCounts {
    /// Counts a call.
    pub fn count(&mut self, us: u64) {
        self.calls += 1;
        self.us = self.us.saturating_add(us);
        self.us_max = self.us_max.max(us);
    }
}
