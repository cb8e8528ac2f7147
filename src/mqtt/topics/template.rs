//! Topic templates: topics with placeholders.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ledge_base::names::{DeviceName, ModelName};
use ledge_base::toml_check::from_text;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{BROKER_TOPIC_PREFIX, InvalidTopic, TopicFilter, TopicName, check, invalid};

/// A topic with placeholders: `{1}` to `{9}` for the parts that a filter's wildcards matched, `{device}` and `{model}`.
///
/// None of its topics begins with `$`: those are the broker's own, and a leading wildcard, with which
/// [`Self::as_filter`] may begin, would not match them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicTemplate {
    text: Arc<str>,
    pieces: Vec<TemplatePiece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePiece {
    Text(String),
    /// From 1.
    Capture(usize),
    Device,
    Model,
}

const ERROR_SUBJECT: &str = "topic template";

impl FromStr for TopicTemplate {
    type Err = InvalidTopic;

    fn from_str(text: &str) -> Result<Self, InvalidTopic> {
        let wrong = |reason| invalid(ERROR_SUBJECT, text, reason);
        check(ERROR_SUBJECT, text)?;
        if text.contains(['+', '#']) {
            return Err(wrong("has a wildcard: write {1} for what the first wildcard of the filter stands for"));
        }
        if text.starts_with(BROKER_TOPIC_PREFIX) {
            return Err(wrong("begins with '$', which is reserved for topics of the broker"));
        }
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(brace) = rest.find(['{', '}']) {
            let (before, from_brace) = rest.split_at(brace);
            let inside = from_brace.strip_prefix('{').and_then(|inside| inside.split_once('}'));
            let (placeholder, after) = inside.ok_or_else(|| wrong("has a brace without its counterpart"))?;
            if !before.is_empty() {
                pieces.push(TemplatePiece::Text(before.to_owned()));
            }
            pieces.push(match placeholder {
                "device" => TemplatePiece::Device,
                "model" => TemplatePiece::Model,
                _ => match placeholder.as_bytes() {
                    [digit @ b'1'..=b'9'] => TemplatePiece::Capture(usize::from(digit - b'0')),
                    _ => return Err(wrong("has an unknown placeholder: expected {1} to {9}, {device} or {model}")),
                },
            });
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(TemplatePiece::Text(rest.to_owned()));
        }
        Ok(Self { text: text.into(), pieces })
    }
}

impl TopicTemplate {
    /// The topic for these captures. A capture is foreign text and may make the topic too long, empty or one of the
    /// broker's own.
    pub fn fill<C: AsRef<str>>(
        &self,
        captures: &[C],
        device: &DeviceName,
        model: &ModelName,
    ) -> Result<TopicName, InvalidTopic> {
        let topic = self.text(captures, device, Some(model.as_str()))?;
        if topic.starts_with(BROKER_TOPIC_PREFIX) {
            return Err(invalid("topic", &topic, "begins with '$', which is reserved for topics of the broker"));
        }
        topic.parse()
    }

    /// The text for these captures, which need not be a valid topic.
    pub fn text<C: AsRef<str>>(
        &self,
        captures: &[C],
        device: &DeviceName,
        model: Option<&str>,
    ) -> Result<String, InvalidTopic> {
        let lacks = |reason| invalid(ERROR_SUBJECT, &self.text, reason);
        let mut text = String::new();
        for piece in &self.pieces {
            text.push_str(match piece {
                TemplatePiece::Text(text) => text,
                TemplatePiece::Device => device.as_str(),
                TemplatePiece::Model => model.ok_or_else(|| lacks("has {model}, and there is no model"))?,
                TemplatePiece::Capture(number) => {
                    let capture = captures.get(number - 1);
                    capture.ok_or_else(|| lacks("has more captures than the filter has wildcards"))?.as_ref()
                }
            });
        }
        Ok(text)
    }

    /// Returns `true` if it has `{model}`.
    pub fn names_model(&self) -> bool {
        self.pieces.contains(&TemplatePiece::Model)
    }

    /// The highest number among its captures; 0 when it has none.
    pub fn highest_capture(&self) -> usize {
        let numbers =
            self.pieces.iter().map(|piece| if let TemplatePiece::Capture(number) = piece { *number } else { 0 });
        numbers.max().unwrap_or(0)
    }

    /// A filter for every topic that the template makes from a match of `filter`, on any device and for any model.
    pub fn as_filter(&self, filter: &TopicFilter) -> TopicFilter {
        let wildcards: Vec<bool> = filter.wildcards().collect();
        let mut made = String::new();
        // The start of the current level, and whether it has a part that varies.
        let (mut level, mut varies) = (0, false);
        let close = |made: &mut String, level: usize, varies: bool| {
            if varies {
                made.truncate(level);
                made.push('+');
            }
        };
        for piece in &self.pieces {
            match piece {
                TemplatePiece::Text(text) => {
                    for (index, part) in text.split('/').enumerate() {
                        if index > 0 {
                            close(&mut made, level, varies);
                            made.push('/');
                            (level, varies) = (made.len(), false);
                        }
                        made.push_str(part);
                    }
                }
                TemplatePiece::Capture(number) if wildcards.get(number - 1) == Some(&true) => {
                    made.truncate(level);
                    made.push('#');
                    return TopicFilter::valid(&made);
                }
                TemplatePiece::Capture(_) | TemplatePiece::Device | TemplatePiece::Model => varies = true,
            }
        }
        close(&mut made, level, varies);
        TopicFilter::valid(&made)
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for TopicTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for TopicTemplate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for TopicTemplate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}
