//! `[openai]`: other names for models, which software has built in.

use std::collections::BTreeMap;

use ledge_base::names::ModelName;
use ledge_part::section::ConfigSection;
use serde::{Deserialize, Serialize};

/// The section `[openai]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OpenAiConfig {
    /// The model that answers for a name of another service, such as `text-embedding-3-small`. There is none by default: an
    /// index of vectors belongs to one model, so only the owner may choose it.
    pub aliases: BTreeMap<String, ModelName>,
}

impl ConfigSection for OpenAiConfig {}
