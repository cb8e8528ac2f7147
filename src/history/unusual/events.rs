//! The events that were reported: those that go on, and the last that ended.

use std::collections::VecDeque;

use ledge_anomaly::{Band, Direction, Unusual, UnusualKind};
use ledge_base::names::ModelName;
use ledge_service::audit_event::{AuditEvent, FixedWord};
use serde::{Deserialize, Serialize};

use super::{MODEL_COLUMNS, OTHER_CORES, WATCHED};

/// The ended events that are kept: 100 of about 300 bytes.
pub const ENDED_MAX: usize = 100;

/// The most events that go on: one, and one of a limit, of each of 155 series.
pub const CURRENT_MAX: usize = 310;

/// The end of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnusualEnd {
    /// The figure is as usual again.
    Usual,
    /// It lasted so long that it is what is usual now.
    NewNormal,
    /// An operator called it normal.
    CalledNormal,
    /// The limit is no longer near.
    LimitFar,
    /// The series is not watched any more, or is learnt anew.
    Forgotten,
}

impl UnusualEnd {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Usual => "usual",
            Self::NewNormal => "new_normal",
            Self::CalledNormal => "called_normal",
            Self::LimitFar => "limit_far",
            Self::Forgotten => "forgotten",
        }
    }
}

/// An event that was reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportedEvent {
    /// The series and its column, with a space between.
    pub name: String,
    /// `None` for a limit that comes near.
    pub kind: Option<UnusualKind>,
    pub direction: Direction,
    pub began_ms: u64,
    pub ended: Option<(u64, UnusualEnd)>,
    /// The value with which it began, and the values that were usual then.
    pub value: Option<f64>,
    pub band: Option<Band>,
    /// The words in which it was reported.
    pub text: String,
}

impl ReportedEvent {
    /// The word for its kind.
    pub fn kind_word(&self) -> &'static str {
        self.kind.map_or("limit", UnusualKind::as_str)
    }

    /// The record of its begin. `None` for a series that no version watches.
    pub fn began(&self) -> Option<AuditEvent> {
        let (model, figure) = recorded_name(&self.name)?;
        let direction = self.direction.as_str().into();
        Some(AuditEvent::UnusualBegan { model, figure, kind: self.kind_word().into(), direction })
    }

    /// The record of its end.
    pub fn ended(&self) -> Option<AuditEvent> {
        let (model, figure) = recorded_name(&self.name)?;
        let end = self.ended?.1.as_str().into();
        Some(AuditEvent::UnusualEnded { model, figure, kind: self.kind_word().into(), end })
    }
}

/// The series and the column of a name, which are joined by a space.
pub fn series_and_column(name: &str) -> (&str, &str) {
    name.split_once(' ').unwrap_or((name, ""))
}

/// The model and the column of a series, as records name them.
pub fn recorded_name(name: &str) -> Option<(Option<ModelName>, FixedWord)> {
    let (series, column) = name.split_once(' ')?;
    let columns = WATCHED.iter().map(|(column, _)| *column).chain([OTHER_CORES]).chain(MODEL_COLUMNS);
    let figure = columns.into_iter().find(|known| *known == column)?;
    let model = series.strip_prefix("model:").map(str::parse).transpose().ok()?;
    Some((model, figure.into()))
}

/// The events that go on, and the last that ended.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ReportedEvents {
    current: Vec<ReportedEvent>,
    ended: VecDeque<ReportedEvent>,
}

impl ReportedEvents {
    /// Keeps an event that began.
    pub fn begin(&mut self, event: ReportedEvent) {
        self.current.retain(|known| (&known.name, known.kind.is_none()) != (&event.name, event.kind.is_none()));
        self.current.push(event);
    }

    /// Gives the event of a series the kind and the words for what it became. False where none was reported.
    pub fn rename(&mut self, name: &str, event: &Unusual, text: &str) -> bool {
        let known = self.current.iter_mut().find(|known| known.name == name && known.kind.is_some());
        known.is_some_and(|known| {
            (known.kind, known.direction, known.text) = (Some(event.kind), event.direction, text.to_owned());
            true
        })
    }

    /// Ends the event of a series, or that of its limit. `kind` is a better name for it, if there is one. `None` where none
    /// was reported.
    pub fn end(
        &mut self,
        name: &str,
        kind: Option<UnusualKind>,
        now_ms: u64,
        end: UnusualEnd,
    ) -> Option<&ReportedEvent> {
        let is_it = |known: &ReportedEvent| known.name == name && known.kind.is_none() == kind.is_none();
        let mut event = self.current.extract_if(.., |known| is_it(known)).next()?;
        (event.kind, event.ended) = (kind, Some((now_ms, end)));
        if self.ended.len() >= ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(event);
        self.ended.back()
    }

    /// Ends the events of the series that `is_gone` names, and returns their records.
    pub fn forget(&mut self, now_ms: u64, is_gone: impl Fn(&ReportedEvent) -> bool) -> Vec<AuditEvent> {
        let gone: Vec<_> = self.current.iter().filter(|event| is_gone(event)).cloned().collect();
        let end = |event: ReportedEvent| self.end(&event.name, event.kind, now_ms, UnusualEnd::Forgotten)?.ended();
        gone.into_iter().filter_map(end).collect()
    }

    /// The event of a series that goes on, or that of its limit.
    pub fn current(&self, name: &str, is_limit: bool) -> Option<&ReportedEvent> {
        self.current.iter().find(|event| event.name == name && event.kind.is_none() == is_limit)
    }

    /// The events that go on, the oldest first.
    pub fn going_on(&self) -> impl Iterator<Item = &ReportedEvent> {
        self.current.iter()
    }

    /// All events: those that go on, then those that ended, each the newest first.
    pub fn all(&self) -> impl Iterator<Item = &ReportedEvent> {
        self.current.iter().rev().chain(self.ended.iter().rev())
    }

    pub fn is_bounded(&self) -> bool {
        self.current.len() <= CURRENT_MAX && self.ended.len() <= ENDED_MAX
    }
}
