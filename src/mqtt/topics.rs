//! Topics: names, filters, templates, and Ledge's own topics. Valid by construction (MQTT 5.0, section 4.7).

use std::fmt;
use std::str::FromStr;

mod device;
mod filter;
mod template;

pub use device::{DeviceTopics, InferRoute, InvalidRoute, TOPIC_ROOT};
pub use filter::TopicFilter;
pub use template::TopicTemplate;

/// The longest topic, in bytes.
pub const TOPIC_MAX_BYTES: usize = 65_535;

/// The reason why a text is no topic, filter or template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {text:?} {reason}")]
pub struct InvalidTopic {
    what: &'static str,
    text: String,
    reason: &'static str,
}

/// The topic that a message is published to. It has no wildcards.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(std::sync::Arc<str>);

fn invalid(what: &'static str, text: &str, reason: &'static str) -> InvalidTopic {
    InvalidTopic { what, text: text.chars().take(128).collect(), reason }
}

fn check(what: &'static str, text: &str) -> Result<(), InvalidTopic> {
    match text {
        "" => Err(invalid(what, text, "is empty")),
        _ if text.len() > TOPIC_MAX_BYTES => Err(invalid(what, text, "is longer than 65535 bytes")),
        _ if text.contains('\0') => Err(invalid(what, text, "has a null character")),
        _ => Ok(()),
    }
}

impl FromStr for TopicName {
    type Err = InvalidTopic;

    fn from_str(text: &str) -> Result<Self, InvalidTopic> {
        check("topic", text)?;
        if text.contains(['+', '#']) {
            return Err(invalid("topic", text, "has a wildcard: '+' and '#' are for filters"));
        }
        Ok(Self(text.into()))
    }
}

impl TopicName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// For people and logs: control characters are escaped, so that a topic of a caller neither begins a line nor moves the
/// cursor. The wire has [`TopicName::as_str`].
impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.split_inclusive(char::is_control) {
            let mut plain = part.chars();
            match plain.next_back().filter(|last| last.is_control()) {
                Some(control) => write!(f, "{}{}", plain.as_str(), control.escape_default())?,
                None => f.write_str(part)?,
            }
        }
        Ok(())
    }
}

/// The first character of the broker's own topics; no wildcard at the start of a filter matches them (section 4.7.2).
const BROKER_TOPIC_PREFIX: char = '$';

#[cfg(test)]
mod tests;
