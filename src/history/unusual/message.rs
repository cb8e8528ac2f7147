//! The message on what is unusual now, for whoever listens.

use ledge_base::clock;
use schemars::JsonSchema;
use serde::Serialize;

use super::UnusualWatch;
use super::events::{ReportedEvent, series_and_column};

/// The events that go on. It has no value, so that it changes only when one begins, ends or gets
/// another name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct UnusualMessage {
    /// The oldest first.
    pub events: Vec<UnusualMessageEvent>,
}

/// An event that goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct UnusualMessageEvent {
    /// `box`, or `model:NAME`.
    pub series: String,
    /// The figure, such as `p99_s`.
    pub column: String,
    /// `spike`, `dip`, `level_shift`, `trend`, `spread`, `stuck`, `silence`, or `limit`.
    pub kind: String,
    /// `up`, `down` or `neither`.
    pub direction: String,
    /// The time of its begin, in RFC 3339.
    pub began: String,
}

/// The JSON schema of the message.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(UnusualMessage)
}

impl UnusualMessage {
    /// The message in bytes.
    pub fn json(&self) -> Vec<u8> {
        // Only texts, so this does not fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl From<&ReportedEvent> for UnusualMessageEvent {
    fn from(event: &ReportedEvent) -> Self {
        let (series, column) = series_and_column(&event.name);
        Self {
            series: series.to_owned(),
            column: column.to_owned(),
            kind: event.kind_word().to_owned(),
            direction: event.direction.as_str().to_owned(),
            began: clock::rfc3339(event.began_ms),
        }
    }
}

impl UnusualWatch {
    /// Tells the listeners the events that go on, if they are others than before.
    pub(super) fn publish(&self) {
        let events = self.events.going_on().map(UnusualMessageEvent::from).collect();
        self.message.send_if_modified(|before| {
            let now = UnusualMessage { events };
            let has_changed = *before != now;
            *before = now;
            has_changed
        });
    }
}
