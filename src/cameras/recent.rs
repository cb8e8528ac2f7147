//! The last picture and the last events of a camera, for people who view it. They are in memory only, and bounded.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use ledge_base::names::ModelName;

use crate::found::ExaminedPicture;
use crate::picture_memory::PictureMemory;
use crate::presence::{CountChange, ZoneLabel};

/// The most events of one camera that are kept.
pub const EVENTS_MAX: usize = 50;

/// The recent things of one camera.
#[derive(Debug, Default)]
pub struct CameraHistory {
    state: Mutex<CameraHistoryState>,
    /// The drawing of the last picture. Requests that come meanwhile wait for it, so that a picture is drawn once.
    pub drawing: tokio::sync::Mutex<Option<DrawnPicture>>,
}

#[derive(Debug, Default)]
struct CameraHistoryState {
    picture: Option<Arc<LastPicture>>,
    events: VecDeque<RecentEvent>,
}

/// The last picture that the model was asked about, as the camera sent it. It is never shown before it is blurred.
#[derive(Debug)]
pub struct LastPicture {
    /// Distinguishes it from the ones before.
    pub number: u64,
    pub at_ms: u64,
    pub bytes: usize,
    pub model: ModelName,
    /// `None` where the memory for kept pictures had no room.
    pub examined: Option<ExaminedPicture>,
    /// Its size in pixels.
    pub size: (u32, u32),
    /// The reason why it can never be shown.
    pub blur_fault: Option<String>,
}

/// A picture as it is shown.
#[derive(Debug, Clone)]
pub struct DrawnPicture {
    /// That of the picture.
    pub number: u64,
    pub jpeg: Bytes,
}

/// A change in the number of objects of a label in a zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentEvent {
    pub at_ms: u64,
    /// `appeared`, `gone`, or `count` for more or fewer of them.
    pub event: &'static str,
    pub subject: ZoneLabel,
    /// The number of objects at that time.
    pub count: usize,
}

impl RecentEvent {
    pub fn new(change: &CountChange, at_ms: u64) -> Self {
        let event = match () {
            () if change.is_end() => "gone",
            () if change.is_appearance() => "appeared",
            () => "count",
        };
        Self { at_ms, event, subject: change.subject.clone(), count: change.count }
    }
}

impl CameraHistory {
    fn lock(&self) -> MutexGuard<'_, CameraHistoryState> {
        // Nothing panics under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a picture in place of the last one, as far as `memory` has room.
    pub fn keep(&self, examined: ExaminedPicture, model: &ModelName, now_ms: u64, memory: &PictureMemory) {
        let mut state = self.lock();
        // Frees the room of the last one, unless it is being drawn.
        let number = state.picture.take().map_or(0, |last| last.number + 1);
        let (bytes, size) = (examined.photograph.len(), examined.size);
        // A picture that must not be shown is not kept.
        let blur_fault = examined.found.blur_fault.clone();
        let kept = blur_fault.is_none().then(|| memory.try_keep(examined.photograph.clone())).flatten();
        let examined = kept.map(|photograph| ExaminedPicture { photograph, ..examined });
        let model = model.clone();
        let picture = LastPicture { number, at_ms: now_ms, bytes, model, examined, size, blur_fault };
        state.picture = Some(Arc::new(picture));
    }

    pub fn picture(&self) -> Option<Arc<LastPicture>> {
        self.lock().picture.clone()
    }

    pub fn note(&self, event: RecentEvent) {
        let events = &mut self.lock().events;
        events.truncate(EVENTS_MAX - 1);
        events.push_front(event);
    }

    /// The last events, the newest first.
    pub fn events(&self) -> Vec<RecentEvent> {
        self.lock().events.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::found::FoundObjects;

    #[test]
    fn only_so_many_events_are_kept_and_the_newest_is_first() {
        let recent = CameraHistory::default();
        let subject = ZoneLabel { zone: 0, label: "cow".into() };
        for at_ms in 0..1000 {
            let change = CountChange { subject: subject.clone(), before: 1, count: 2 };
            recent.note(RecentEvent::new(&change, at_ms));
        }
        let times: Vec<_> = recent.events().iter().map(|event| event.at_ms).collect();
        assert_eq!((times.len(), times.first(), times.last()), (EVENTS_MAX, Some(&999), Some(&950)));
        let kind = |before, count| RecentEvent::new(&CountChange { subject: subject.clone(), before, count }, 0).event;
        assert_eq!([kind(0, 2), kind(2, 1), kind(1, 0)], ["appeared", "count", "gone"]);
    }

    #[test]
    fn a_picture_is_kept_while_there_is_room_and_only_if_it_may_be_shown() {
        let (recent, memory) = (CameraHistory::default(), PictureMemory::new(10 << 10));
        let model = ModelName::constant("m");
        let keep = |recent: &CameraHistory, kib: usize, fault: Option<&str>| {
            let photograph = vec![7; kib << 10].into();
            let found = FoundObjects { blur_fault: fault.map(str::to_owned), ..FoundObjects::default() };
            recent.keep(ExaminedPicture { photograph, size: (4, 3), found }, &model, 1, &memory);
            let picture = recent.picture().unwrap();
            (picture.number, picture.bytes >> 10, picture.examined.is_some())
        };
        // Each one makes room for the next one.
        assert_eq!(keep(&recent, 8, None), (0, 8, true));
        assert_eq!(keep(&recent, 8, None), (1, 8, true));
        assert_eq!(keep(&CameraHistory::default(), 4, None), (0, 4, false));
        assert_eq!(keep(&recent, 4, Some("no label")), (2, 4, false));
        assert_eq!(keep(&CameraHistory::default(), 10, None), (0, 10, true));
    }
}
