//! Topics: names, filters, templates, and the ones Ledge uses. Valid by construction (MQTT 5.0, section 4.7).

use std::fmt;
use std::str::FromStr;

mod device;
mod filter;
mod template;

pub use device::{DeviceTopics, InferRoute, InvalidRoute, ROOT};
pub use filter::TopicFilter;
pub use template::TopicTemplate;

/// The longest topic, in bytes.
pub const MAX_LENGTH: usize = 65_535;

/// Why a text is no topic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {text:?} {reason}")]
pub struct InvalidTopic {
    what: &'static str,
    text: String,
    reason: &'static str,
}

/// Where a message is published to: no wildcards.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(std::sync::Arc<str>);

fn invalid(what: &'static str, text: &str, reason: &'static str) -> InvalidTopic {
    InvalidTopic { what, text: text.chars().take(128).collect(), reason }
}

fn check(what: &'static str, text: &str) -> Result<(), InvalidTopic> {
    match text {
        "" => Err(invalid(what, text, "is empty")),
        _ if text.len() > MAX_LENGTH => Err(invalid(what, text, "is longer than 65535 bytes")),
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
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// For people and logs: a control character, of which a caller may put any into a topic, is escaped, so that none begins a
/// line or moves the cursor. The wire has [`TopicName::as_str`].
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

/// Topics whose first level starts with it are the broker's own; no wildcard at the start of a filter matches them
/// (section 4.7.2).
const RESERVED: char = '$';

#[cfg(test)]
mod tests;
