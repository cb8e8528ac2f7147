//! Inference calls on their way into the audit log: one by one, or counted by the minute, as the policy says.

use std::collections::BTreeSet;
use std::fmt;

use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::principal::Principal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::feature::ENTITIES;
use super::tag::{Content, Tag};

/// What came of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was answered.
    Ok,
    /// It was not, for a fault of the request or the model, or the caller hung up.
    Failed,
    /// It was turned away: a full queue, a quota, a limit.
    Refused,
    /// Its deadline passed.
    Late,
    /// There is no such model or version, or it is not loaded.
    Unavailable,
}

/// How much of inference is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Detail {
    /// A record for each minute, caller, model and outcome.
    #[default]
    Minutes,
    /// A record for each call, with tags of what went in and came out.
    Calls,
}

/// Which inference calls become a record of their own, and how much a record of feature calls has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// What holds for models that are not named.
    pub detail: Detail,
    /// Models of which each call is a record, whatever holds for the others.
    pub calls: BTreeSet<ModelName>,
    /// How many entities a record of feature reads or pushes lists at most.
    pub feature_entities: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self { detail: Detail::default(), calls: BTreeSet::new(), feature_entities: ENTITIES }
    }
}

impl Policy {
    /// Whether each call of a model is a record.
    pub fn is_each_call(&self, model: &ModelName) -> bool {
        self.detail == Detail::Calls || self.calls.contains(model)
    }
}

/// The first 16 hexadecimal digits of a model's digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DigestPrefix([u8; 16]);

impl DigestPrefix {
    /// That of a digest.
    pub fn of(digest: &str) -> Option<Self> {
        digest.as_bytes().first_chunk().copied().map(Self)
    }
}

impl fmt::Display for DigestPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// What calls are counted by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallKey {
    /// The model; `None` when there is none of the name that was asked for: the name is the caller's then.
    pub model: Option<ModelName>,
    /// The version that was to answer.
    pub version: Option<ModelVersion>,
    /// The digest of its files.
    pub digest: Option<DigestPrefix>,
    pub principal: Principal,
    pub outcome: Outcome,
}

/// A tag, or what it is to be made of.
#[derive(Debug, Clone)]
pub enum Taggable {
    Tag(Tag),
    /// What is to be tagged by whoever has the time.
    Content(Content),
}

/// One call that becomes a record.
#[derive(Debug, Clone)]
pub struct CallRecord {
    pub key: CallKey,
    /// How long it took, in microseconds.
    pub us: u64,
    /// What the model was given.
    pub input: Option<Taggable>,
    pub output: Option<Taggable>,
}

impl CallRecord {
    /// How many bytes wait in it to be tagged.
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
    /// How long they took together, in microseconds.
    pub us: u64,
    /// How long the longest took, in microseconds.
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
