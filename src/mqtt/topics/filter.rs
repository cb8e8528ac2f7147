//! Topic filters of subscriptions.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ledge_base::names::DeviceName;
use ledge_base::toml_check::from_text;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{BROKER_TOPIC_PREFIX, InvalidTopic, TopicName, check, invalid};

/// The beginning of a shared subscription (section 4.8.2).
const SHARE_PREFIX: &str = "$share/";

/// The filter of a subscription: `+` matches one level, a last `#` all levels that follow. `$share/GROUP/FILTER` is a
/// subscription shared by a group: each message goes to one of its members.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicFilter(Arc<str>);

impl FromStr for TopicFilter {
    type Err = InvalidTopic;

    fn from_str(text: &str) -> Result<Self, InvalidTopic> {
        let wrong = |reason| Err(invalid("topic filter", text, reason));
        check("topic filter", text)?;
        if let Some(shared) = text.strip_prefix(SHARE_PREFIX) {
            let Some((group, filter)) = shared.split_once('/') else {
                return wrong("has no filter after its group: expected $share/GROUP/FILTER");
            };
            if group.is_empty() || group.contains(['+', '#']) || filter.is_empty() {
                return wrong("is not $share/GROUP/FILTER with a group that has no wildcard");
            }
        }
        let mut levels = text.split('/').peekable();
        while let Some(level) = levels.next() {
            if level.contains('#') && (level != "#" || levels.peek().is_some()) {
                return wrong("has a '#' that is not its whole last level");
            }
            if level.contains('+') && level != "+" {
                return wrong("has a '+' that is not a whole level");
            }
        }
        Ok(Self(text.into()))
    }
}

impl TopicFilter {
    /// A filter from a text that is known to be valid.
    pub(super) fn valid(text: &str) -> Self {
        Self(text.into())
    }

    /// The filter as `group` shares it: each message goes to one member of the group.
    pub fn shared(group: &DeviceName, filter: &Self) -> Self {
        Self(format!("{SHARE_PREFIX}{group}/{}", filter.own()).into())
    }

    /// The filter without the group that shares it.
    #[must_use]
    pub fn unshared(&self) -> Self {
        if self.is_shared() { Self(self.own().into()) } else { self.clone() }
    }

    /// Returns `true` if a group shares the messages.
    pub fn is_shared(&self) -> bool {
        self.0.starts_with(SHARE_PREFIX)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns `true` if messages to `topic` are delivered. Sharing by a group does not matter here.
    pub fn matches(&self, topic: &TopicName) -> bool {
        self.captures(topic).is_some()
    }

    /// The part of `topic` that each wildcard matches, in order; `None` when the filter does not match. A `#` matches
    /// all levels that follow, slashes included, and the empty text in a topic that ends where the `#` would begin.
    pub fn captures<'t>(&self, topic: &'t TopicName) -> Option<Vec<&'t str>> {
        if self.begins_with_wildcard() && topic.as_str().starts_with(BROKER_TOPIC_PREFIX) {
            return None;
        }
        let mut captures = Vec::new();
        let mut rest = Some(topic.as_str());
        for level in self.own().split('/') {
            if level == "#" {
                captures.push(rest.unwrap_or_default());
                return Some(captures);
            }
            let text = rest?;
            let (first, after) = text.split_once('/').map_or((text, None), |(first, after)| (first, Some(after)));
            match level {
                "+" => captures.push(first),
                _ if level == first => {}
                _ => return None,
            }
            rest = after;
        }
        rest.is_none().then_some(captures)
    }

    /// Returns `true` if some topic matches both. The empty text counts as a topic here, so that `+` overlaps `/#`.
    pub fn overlaps(&self, other: &Self) -> bool {
        let reserved = |filter: &Self| filter.own().starts_with(BROKER_TOPIC_PREFIX);
        if (self.begins_with_wildcard() && reserved(other)) || (other.begins_with_wildcard() && reserved(self)) {
            return false;
        }
        let (mut ours, mut theirs) = (self.own().split('/'), other.own().split('/'));
        loop {
            match (ours.next(), theirs.next()) {
                // A `#` also matches the level above it, where the other filter may end.
                (Some("#"), _) | (_, Some("#")) | (None, None) => return true,
                (Some(our), Some(their)) if our == "+" || their == "+" || our == their => {}
                _ => return false,
            }
        }
    }

    /// Its wildcards, in order: true for `#`, false for `+`.
    pub(super) fn wildcards(&self) -> impl Iterator<Item = bool> {
        self.own().split('/').filter(|level| matches!(*level, "+" | "#")).map(|level| level == "#")
    }

    /// The number of its wildcards, which is the number of captures.
    pub fn capture_count(&self) -> usize {
        self.wildcards().count()
    }

    fn begins_with_wildcard(&self) -> bool {
        self.own().starts_with(['+', '#'])
    }

    /// The text without the group.
    fn own(&self) -> &str {
        let shared = self.0.strip_prefix(SHARE_PREFIX).and_then(|rest| rest.split_once('/'));
        shared.map_or(&self.0, |(_, filter)| filter)
    }
}

impl fmt::Display for TopicFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for TopicFilter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for TopicFilter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}
