//! The things that a camera showed lately, for people who look at it: its condition, its last picture, its last events.
//! They are in memory only, and bounded.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use ledge_base::names::ModelName;
use serde::Serialize;

use crate::picture_memory::PictureMemory;
use crate::presence::{Change, Subject};
use crate::render::Examined;

/// The most events of one camera that are kept.
pub const EVENTS_MAX: usize = 50;

/// The recent things of one camera.
#[derive(Debug, Default)]
pub struct Recent {
    state: Mutex<RecentState>,
    /// The drawing of the last picture. Whoever asks meanwhile waits for it: a picture is drawn once.
    pub drawing: tokio::sync::Mutex<Option<Drawing>>,
}

#[derive(Debug, Default)]
struct RecentState {
    condition: ConditionSince,
    /// The time of the last picture that came, new or not.
    looked_ms: Option<u64>,
    picture: Option<Arc<LastPicture>>,
    events: VecDeque<PastEvent>,
}

/// The condition of a camera.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// No picture came yet.
    #[default]
    Waiting,
    Online,
    /// It gives no pictures.
    Away,
    /// Its pictures come, and its model does not answer.
    Unanswered,
}

/// A condition, with its beginning and its reason.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConditionSince {
    pub condition: Condition,
    /// Milliseconds since the Unix epoch; `None` before the first picture or failure.
    pub since_ms: Option<u64>,
    pub reason: Option<String>,
}

/// The last picture that the model was asked about, as it came: nobody sees it before it is drawn.
#[derive(Debug)]
pub struct LastPicture {
    /// Tells it from the ones before.
    pub number: u64,
    pub at_ms: u64,
    pub bytes: usize,
    pub model: ModelName,
    /// `None` where the memory for kept pictures had no room.
    pub examined: Option<Examined>,
    /// Its size in pixels.
    pub size: (u32, u32),
    /// The reason why it can never be shown.
    pub blur_fault: Option<String>,
}

/// A picture as it is shown.
#[derive(Debug, Clone)]
pub struct Drawing {
    /// That of the picture.
    pub number: u64,
    pub jpeg: Bytes,
}

/// A change of what is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastEvent {
    pub at_ms: u64,
    /// `appeared`, `gone`, or `count` for more or fewer of them.
    pub event: &'static str,
    pub subject: Subject,
    /// How many were there then.
    pub count: usize,
}

impl PastEvent {
    pub fn new(change: &Change, at_ms: u64) -> Self {
        let event = match () {
            () if change.is_end() => "gone",
            () if change.is_appearance() => "appeared",
            () => "count",
        };
        Self { at_ms, event, subject: change.subject.clone(), count: change.count }
    }
}

impl Recent {
    fn lock(&self) -> MutexGuard<'_, RecentState> {
        // Nothing panics under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a picture came.
    pub fn came(&self, now_ms: u64) {
        let mut state = self.lock();
        state.looked_ms = Some(now_ms);
        if matches!(state.condition.condition, Condition::Waiting | Condition::Away) {
            state.condition.set(Condition::Online, None, now_ms);
        }
    }

    /// Notes that no picture came. One failure says little, unless there never was a picture.
    pub fn missed(&self, reason: String, is_away: bool, now_ms: u64) {
        let condition = &mut self.lock().condition;
        if is_away {
            condition.set(Condition::Away, Some(reason), now_ms);
        } else if condition.condition == Condition::Waiting {
            condition.reason = Some(reason);
        }
    }

    /// Notes that the model did not answer.
    pub fn unanswered(&self, reason: String, is_away: bool, now_ms: u64) {
        if is_away {
            self.lock().condition.set(Condition::Unanswered, Some(reason), now_ms);
        }
    }

    /// Notes that the model answered.
    pub fn answered(&self, now_ms: u64) {
        self.lock().condition.set(Condition::Online, None, now_ms);
    }

    /// Keeps a picture in place of the last one, as far as `memory` has room.
    pub fn keep(&self, examined: Examined, model: &ModelName, now_ms: u64, memory: &PictureMemory) {
        let mut state = self.lock();
        // Frees the room of the last one, unless it is being drawn.
        let number = state.picture.take().map_or(0, |last| last.number + 1);
        let (bytes, size) = (examined.photograph.len(), examined.size);
        // A picture that may not be shown is not kept.
        let blur_fault = examined.found.blur_fault.clone();
        let kept = blur_fault.is_none().then(|| memory.try_keep(examined.photograph.clone())).flatten();
        let examined = kept.map(|photograph| Examined { photograph, ..examined });
        let model = model.clone();
        let picture = LastPicture { number, at_ms: now_ms, bytes, model, examined, size, blur_fault };
        state.picture = Some(Arc::new(picture));
    }

    pub fn picture(&self) -> Option<Arc<LastPicture>> {
        self.lock().picture.clone()
    }

    /// Its condition, and the time of the last picture that came.
    pub fn condition(&self) -> (ConditionSince, Option<u64>) {
        let state = self.lock();
        (state.condition.clone(), state.looked_ms)
    }

    pub fn note(&self, event: PastEvent) {
        let events = &mut self.lock().events;
        events.truncate(EVENTS_MAX - 1);
        events.push_front(event);
    }

    /// The last events, the newest first.
    pub fn events(&self) -> Vec<PastEvent> {
        self.lock().events.iter().cloned().collect()
    }
}

impl ConditionSince {
    fn set(&mut self, condition: Condition, reason: Option<String>, now_ms: u64) {
        if self.condition != condition {
            self.since_ms = Some(now_ms);
        }
        (self.condition, self.reason) = (condition, reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::camera::Found;

    #[test]
    fn a_condition_lasts_since_it_began_with_its_last_reason() {
        let recent = Recent::default();
        let is = |condition, since_ms: Option<u64>, reason: Option<&str>| {
            let reason = reason.map(str::to_owned);
            assert_eq!(recent.condition().0, ConditionSince { condition, since_ms, reason });
        };
        is(Condition::Waiting, None, None);
        recent.missed("late".into(), false, 1);
        is(Condition::Waiting, None, Some("late"));
        recent.missed("late".into(), true, 2);
        recent.missed("gone".into(), true, 3);
        is(Condition::Away, Some(2), Some("gone"));
        recent.came(4);
        recent.missed("once".into(), false, 5);
        is(Condition::Online, Some(4), None);
        // Pictures come, and the model does not answer them.
        recent.unanswered("full".into(), false, 6);
        is(Condition::Online, Some(4), None);
        recent.unanswered("full".into(), true, 7);
        recent.came(8);
        is(Condition::Unanswered, Some(7), Some("full"));
        recent.answered(9);
        is(Condition::Online, Some(9), None);
        assert_eq!(recent.condition().1, Some(8));
    }

    #[test]
    fn only_so_many_events_are_kept_and_the_newest_is_first() {
        let recent = Recent::default();
        let subject = Subject { zone: 0, label: "cow".into() };
        for at_ms in 0..1000 {
            let change = Change { subject: subject.clone(), before: 1, count: 2 };
            recent.note(PastEvent::new(&change, at_ms));
        }
        let times: Vec<_> = recent.events().iter().map(|event| event.at_ms).collect();
        assert_eq!((times.len(), times.first(), times.last()), (EVENTS_MAX, Some(&999), Some(&950)));
        let kind = |before, count| PastEvent::new(&Change { subject: subject.clone(), before, count }, 0).event;
        assert_eq!([kind(0, 2), kind(2, 1), kind(1, 0)], ["appeared", "count", "gone"]);
    }

    #[test]
    fn a_picture_is_kept_while_there_is_room_and_only_if_it_may_be_shown() {
        let (recent, memory) = (Recent::default(), PictureMemory::new(10 << 10));
        let model = ModelName::constant("m");
        let keep = |recent: &Recent, kib: usize, fault: Option<&str>| {
            let photograph = vec![7; kib << 10].into();
            let found = Found { blur_fault: fault.map(str::to_owned), ..Found::default() };
            recent.keep(Examined { photograph, size: (4, 3), found }, &model, 1, &memory);
            let picture = recent.picture().unwrap();
            (picture.number, picture.bytes >> 10, picture.examined.is_some())
        };
        // Each one makes room for the next one.
        assert_eq!(keep(&recent, 8, None), (0, 8, true));
        assert_eq!(keep(&recent, 8, None), (1, 8, true));
        assert_eq!(keep(&Recent::default(), 4, None), (0, 4, false));
        assert_eq!(keep(&recent, 4, Some("no label")), (2, 4, false));
        assert_eq!(keep(&Recent::default(), 10, None), (0, 10, true));
    }
}
