//! One camera: the objects on its pictures, and the messages about them.
//!
//! No network and no clock: pictures, detections and times are passed in.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use ledge_base::principal::Principal;
use ledge_engine::pipeline::annotation::ZoneOutline;
use ledge_engine::pipeline::detection::Detection;
use ledge_service::audit_event::AuditSink;

use crate::change::{ComparisonMask, GrayPicture};
use crate::clock::Moment;
use crate::config::{CameraConfig, WHOLE_PICTURE, ZoneConfig};
use crate::counters::CameraCounters;
use crate::found::FoundObjects;
use crate::health::{CameraHealth, CameraState};
use crate::messages::{
    CameraEvent, CameraMessage, CameraMessageKind, CameraObjectCounts, CameraPublisher, CameraStatus, CameraTopics,
    EventObject, OFFLINE, ONLINE,
};
use crate::pictures_audit::{PublishedPictures, SeenPictures};
use crate::presence::{CountChange, ObjectCounts, ObjectPresence, ZoneLabel};
use crate::recent::{CameraHistory, RecentEvent};
use crate::zones::ZonePoint;

/// The time in milliseconds after which the model is asked about a picture that shows nothing new, so that slow changes
/// are found too.
const REFRESH_MS: u64 = 60_000;

/// The time in milliseconds after which the status is published again while new pictures come: the time of the last one
/// in it is not older than this.
const STATUS_MS: u64 = 60_000;

/// A camera with the objects it has seen.
#[derive(Debug)]
pub struct Camera {
    pub config: CameraConfig,
    pub counters: CameraCounters,
    pub recent: CameraHistory,
    topics: CameraTopics,
    mask: ComparisonMask,
    publisher: Arc<dyn CameraPublisher>,
    audit: AuditSink,
    state: Mutex<LookState>,
}

#[derive(Debug)]
struct LookState {
    presence: ObjectPresence,
    /// The objects on the last picture that the model was asked about.
    shown: ShownObjects,
    /// That picture, to compare others with it. `None`: the model is asked about the next one.
    reference: Option<ReferencePicture>,
    health: CameraHealth,
    /// The steady time at which the status was published last.
    status_ms: Option<u64>,
    /// The counts that were published last.
    counts: Option<BTreeMap<ZoneLabel, usize>>,
    /// The number of looks since the start.
    looks: u32,
    last_picture_ms: Option<u64>,
    published: PublishedPictures,
    seen: SeenPictures,
}

/// Counts by zone and label.
pub type CountsByZone<'a> = BTreeMap<&'a str, BTreeMap<String, usize>>;

/// A picture that the model was asked about.
#[derive(Debug)]
struct ReferencePicture {
    hash: blake3::Hash,
    gray: Option<GrayPicture>,
    asked_ms: u64,
}

/// The objects on a picture, and its size in pixels.
#[derive(Debug, Clone, Default)]
struct ShownObjects {
    found: FoundObjects,
    size: (u32, u32),
}

/// The decision about a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureDecision {
    /// The model need not be asked.
    Unchanged,
    /// A small grey picture of it decides.
    Compare,
    AskModel,
}

/// The result of a look, for the picture to publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookResult {
    /// True if a picture of it is to be published now.
    pub wants_picture: bool,
}

impl Camera {
    /// A camera that has seen nothing. `all` is the topic of all cameras of this box.
    pub fn new(config: CameraConfig, all: &str, publisher: Arc<dyn CameraPublisher>, audit: AuditSink) -> Self {
        let state = LookState {
            presence: ObjectPresence::new(config.rules()),
            shown: ShownObjects::default(),
            reference: None,
            health: CameraHealth::default(),
            status_ms: None,
            counts: None,
            looks: 0,
            last_picture_ms: None,
            published: PublishedPictures::default(),
            seen: SeenPictures::default(),
        };
        Self {
            topics: CameraTopics::new(all, &config.name),
            mask: ComparisonMask::new(&config.mask),
            counters: CameraCounters::default(),
            recent: CameraHistory::default(),
            publisher,
            audit,
            state: Mutex::new(state),
            config,
        }
    }

    fn lock(&self) -> MutexGuard<'_, LookState> {
        // Nothing panics under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a picture has to be compared at all.
    pub fn judge_bytes(&self, hash: &blake3::Hash, now: Moment) -> PictureDecision {
        let state = self.lock();
        match &state.reference {
            // The model would find the same once more, unless it is another version by now.
            Some(reference)
                if reference.hash == *hash && now.steady_ms.saturating_sub(reference.asked_ms) < REFRESH_MS =>
            {
                PictureDecision::Unchanged
            }
            // While something may appear or be gone, the model is asked: it may have missed something.
            Some(ReferencePicture { gray: Some(_), asked_ms, .. })
                if self.compares()
                    && state.presence.is_settled()
                    && now.steady_ms.saturating_sub(*asked_ms) < REFRESH_MS =>
            {
                PictureDecision::Compare
            }
            _ => PictureDecision::AskModel,
        }
    }

    /// Returns true if a picture differs from the last one that the model was asked about.
    pub fn judge_picture(&self, gray: &GrayPicture) -> PictureDecision {
        let state = self.lock();
        let reference = state.reference.as_ref().and_then(|reference| reference.gray.as_ref());
        match reference.map(|reference| gray.difference(reference, &self.mask)) {
            Some(share) if share <= self.config.change_threshold.get() => PictureDecision::Unchanged,
            _ => PictureDecision::AskModel,
        }
    }

    /// True if small grey pictures are needed to decide.
    pub fn compares(&self) -> bool {
        self.config.change_threshold.get() > 0.0
    }

    /// Notes a picture that shows the same as the last one. Returns the objects and the size of the picture if it is to
    /// be published now.
    pub fn unchanged(&self, now: Moment) -> Option<(FoundObjects, (u32, u32))> {
        let mut state = self.lock();
        let LookResult { wants_picture } = self.look(&mut state, now);
        wants_picture.then(|| (state.shown.found.clone(), state.shown.size))
    }

    /// Notes the objects on a picture of `size`. `gray` is its small copy, to compare the next pictures with.
    pub fn found(
        &self,
        hash: blake3::Hash,
        gray: Option<GrayPicture>,
        size: (u32, u32),
        found: FoundObjects,
        now: Moment,
    ) -> LookResult {
        let mut state = self.lock();
        state.reference = Some(ReferencePicture { hash, gray, asked_ms: now.steady_ms });
        state.shown = ShownObjects { found, size };
        self.look(&mut state, now)
    }

    /// Notes that no picture came. `is_certain`: another try would not help. True if the state changed, as in all that
    /// follow.
    pub fn missed(&self, reason: String, is_certain: bool, now: Moment) -> bool {
        self.observe(now, |health| health.missed(reason, is_certain, now))
    }

    /// Notes that a picture came and could not be decoded, or had no answer.
    pub fn failed(&self, reason: String, now: Moment) -> bool {
        self.observe(now, |health| health.failed(reason, now))
    }

    /// Notes a picture that has had the same bytes for too long. `None` if it is not one: it is to be looked at.
    pub fn froze(&self, hash: &blake3::Hash, now: Moment) -> Option<bool> {
        let is_frozen = self.lock().health.is_frozen_by(hash, self.config.frozen_after_ms, now);
        is_frozen.then(|| self.observe(now, |health| health.froze(now)))
    }

    /// Notes that a picture was looked at: it shows nothing new, or the model answered it.
    pub fn looked_at(&self, hash: blake3::Hash, now: Moment) -> bool {
        self.observe(now, |health| health.looked_at(hash, now))
    }

    /// The state of the camera now.
    pub fn health(&self) -> CameraHealth {
        self.lock().health.clone()
    }

    /// Applies an observation to the state of the camera, and publishes the change.
    fn observe(&self, now: Moment, observe: impl FnOnce(&mut CameraHealth) -> bool) -> bool {
        let mut state = self.lock();
        let (before, known) = (availability(state.health.state), state.health.new_picture());
        let has_changed = observe(&mut state.health);

        if has_changed && state.health.state != CameraState::Online {
            // While no picture is examined, no object counts as gone.
            state.presence.away();
            if state.health.state == CameraState::Failing {
                // The camera is online again when the model answers, not when a picture is like the last one.
                state.reference = None;
            }
        }
        if let Some(word) = availability(state.health.state).filter(|word| before != Some(*word)) {
            let (topic, payload) = (self.topics.state(), Bytes::from_static(word.as_bytes()));
            self.publisher.publish(CameraMessage { topic, payload, retain: true, kind: CameraMessageKind::Presence });
        }
        let is_due = state.status_ms.is_none_or(|last| now.steady_ms.saturating_sub(last) >= STATUS_MS);
        if has_changed || is_due && state.health.new_picture() != known {
            state.status_ms = Some(now.steady_ms);
            let status = CameraStatus::of(self.config.name.as_str(), &state.health);
            self.publisher.publish(CameraMessage::json(self.topics.status(), &status, true));
        }
        has_changed
    }

    /// Publishes a picture that the box may show.
    pub fn publish_picture(&self, picture: Bytes, now: Moment) {
        let mut state = self.lock();
        state.last_picture_ms = Some(now.steady_ms);
        let topic = self.topics.picture();
        let message = CameraMessage { topic, payload: picture, retain: true, kind: CameraMessageKind::Picture };
        if !self.publisher.publish(message) {
            return;
        }
        self.counters.published.inc();
        if let Some(event) = state.published.count(&self.config.name, now.steady_ms) {
            self.audit.record_own(event);
        }
    }

    /// Notes that a caller gets a picture.
    pub fn seen_by(&self, caller: &Principal, now: Moment) {
        let records = self.lock().seen.count(&self.config.name, caller, now.steady_ms);
        for (caller, event) in records {
            self.audit.record(&caller, event);
        }
    }

    /// Records the published pictures and those that callers saw that no record counts yet, at the end.
    pub fn record_pictures(&self) {
        let mut state = self.lock();
        if let Some(event) = state.published.rest(&self.config.name) {
            self.audit.record_own(event);
        }
        for (caller, event) in state.seen.rest(&self.config.name) {
            self.audit.record(&caller, event);
        }
    }

    /// The zones, as outlines on a picture of `size`.
    pub fn outlines(&self, size: (u32, u32)) -> Vec<ZoneOutline> {
        let outline = |zone: &ZoneConfig| {
            let corners = zone.points.corners().iter().map(|corner| corner.pixels(size)).collect();
            ZoneOutline { name: zone.name.as_str().to_owned(), corners }
        };
        self.config.zones.iter().map(outline).collect()
    }

    /// The counts as they were published last; `None` before the first ones are known.
    pub fn counts(&self) -> Option<CountsByZone<'_>> {
        let counts = self.lock().counts.clone();
        counts.map(|counts| self.by_zone(&counts))
    }

    /// The detections that count somewhere.
    pub fn counted(&self, detections: &[Detection], size: (u32, u32)) -> Vec<Detection> {
        let is_counted = |found: &&Detection| self.zones_of(found, size).next().is_some();
        detections.iter().filter(is_counted).cloned().collect()
    }

    fn look(&self, state: &mut LookState, now: Moment) -> LookResult {
        let look = self.look_of(&state.shown);
        let changes = state.presence.look(&look, now.steady_ms);
        for change in &changes {
            self.recent.note(RecentEvent::new(change, now.unix_ms));
            if change.is_appearance() || change.is_end() {
                self.publish_event(change, &state.shown, now);
            }
        }

        // A label that is seen for the first time counts once it is there.
        let was_there = |subject: &ZoneLabel| state.counts.as_ref().is_some_and(|counts| counts.contains_key(subject));
        let counts = state.presence.counts().filter(|(subject, count)| *count > 0 || was_there(subject));
        let counts: BTreeMap<ZoneLabel, usize> = counts.map(|(subject, count)| (subject.clone(), count)).collect();
        state.looks = state.looks.saturating_add(1);
        // At a start, the broker keeps the counts of before until something can be there.
        let is_known = state.counts.is_some() || state.looks >= self.config.appear_after;
        if is_known && state.counts.as_ref() != Some(&counts) {
            self.publish_counts(&counts, now);
            state.counts = Some(counts);
        }

        let is_due = state
            .last_picture_ms
            .is_none_or(|last| now.steady_ms.saturating_sub(last) >= self.config.picture_interval_ms);
        LookResult { wants_picture: self.config.publish_pictures && (is_due || !changes.is_empty()) }
    }

    fn look_of(&self, shown: &ShownObjects) -> ObjectCounts {
        let mut look = ObjectCounts::new();
        for found in &shown.found.detections {
            for zone in self.zones_of(found, shown.size) {
                *look.entry(ZoneLabel { zone, label: found.label.as_str().into() }).or_default() += 1;
            }
        }
        look
    }

    /// The zones in which a detection counts: 0 is the whole picture.
    fn zones_of<'a>(&'a self, found: &'a Detection, size: (u32, u32)) -> impl Iterator<Item = usize> + 'a {
        let config = &self.config;
        let foot = ZonePoint::foot_of(found.area, size);
        let counts = |labels: &[String]| labels.is_empty() || labels.contains(&found.label);
        let is_hidden = f64::from(found.score) < config.min_score.get()
            || config.mask.iter().any(|mask| mask.contains(foot))
            || !counts(&config.labels);
        let is_in = move |zone: &ZoneConfig| counts(&zone.labels) && zone.points.contains(foot);
        let zones = config.zones.iter().zip(1..).filter(move |(zone, _)| is_in(zone)).map(|(_, number)| number);
        std::iter::once(0).chain(zones).filter(move |_| !is_hidden)
    }

    /// The name of a zone by its place in the configuration.
    pub fn zone_name(&self, zone: usize) -> &str {
        let zone = zone.checked_sub(1).and_then(|index| self.config.zones.get(index));
        zone.map_or(WHOLE_PICTURE, |zone| zone.name.as_str())
    }

    fn publish_event(&self, change: &CountChange, shown: &ShownObjects, now: Moment) {
        let CountChange { subject, count, .. } = change;
        let is_there = |found: &Detection| self.zones_of(found, shown.size).any(|zone| zone == subject.zone);
        let surest = shown
            .found
            .detections
            .iter()
            .filter(|found| *found.label == *subject.label && is_there(found))
            .max_by(|one, other| one.score.total_cmp(&other.score));
        let event = CameraEvent {
            event: if change.is_end() { "gone" } else { "appeared" },
            camera: self.config.name.as_str(),
            zone: self.zone_name(subject.zone),
            label: &subject.label,
            count: *count,
            at: now.text(),
            object: surest
                .filter(|_| !change.is_end())
                .map(|found| EventObject { score: found.score, area: found.area }),
        };
        self.counters.events.inc();
        self.publisher.publish(CameraMessage::json(self.topics.events(), &event, false));
    }

    fn publish_counts(&self, counts: &BTreeMap<ZoneLabel, usize>, now: Moment) {
        let zones = self.by_zone(counts);
        let content = CameraObjectCounts { camera: self.config.name.as_str(), at: now.text(), zones };
        self.publisher.publish(CameraMessage::json(self.topics.counts(), &content, true));
    }

    fn by_zone(&self, counts: &BTreeMap<ZoneLabel, usize>) -> CountsByZone<'_> {
        let mut zones = CountsByZone::new();
        let config = &self.config;
        // The labels of the configuration are there before they are seen.
        zones.insert(WHOLE_PICTURE, config.labels.iter().map(|label| (label.clone(), 0)).collect());
        for zone in &config.zones {
            let labels = config.labels_of(zone).iter().map(|label| (label.clone(), 0));
            zones.insert(zone.name.as_str(), labels.collect());
        }
        for (subject, count) in counts {
            zones.entry(self.zone_name(subject.zone)).or_default().insert(subject.label.to_string(), *count);
        }
        zones
    }
}

/// The word for a state on the topic by which Home Assistant knows whether the counts are to be believed; `None` before
/// anything is known.
fn availability(state: CameraState) -> Option<&'static str> {
    match state {
        CameraState::Waiting => None,
        CameraState::Online => Some(ONLINE),
        CameraState::Failing | CameraState::Frozen | CameraState::Away => Some(OFFLINE),
    }
}

#[cfg(test)]
mod tests;
