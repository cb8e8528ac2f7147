//! The source of a key.

use std::fmt;
use std::str::FromStr;

use ledge_base::toml_check::from_text;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::super::field_path::{FieldPath, InvalidFieldPath};
use super::super::topics::{InvalidTopic, TopicTemplate};

/// The source of the value of a join key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinKeySource {
    /// The topic and the box: `"{1}"`.
    Topic(TopicTemplate),
    /// The message: `"$.machine"`.
    Field(FieldPath),
}

/// The reason why a text is no source of a join key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidJoinKeySource {
    #[error(transparent)]
    Topic(#[from] InvalidTopic),
    #[error(transparent)]
    Field(#[from] InvalidFieldPath),
}

impl FromStr for JoinKeySource {
    type Err = InvalidJoinKeySource;

    fn from_str(text: &str) -> Result<Self, InvalidJoinKeySource> {
        if text.starts_with('$') { Ok(Self::Field(text.parse()?)) } else { Ok(Self::Topic(text.parse()?)) }
    }
}

impl fmt::Display for JoinKeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(template) => template.fmt(f),
            Self::Field(path) => path.fmt(f),
        }
    }
}

impl Serialize for JoinKeySource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for JoinKeySource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}
