//! The documents about cameras and their events.

use ledge_base::names::ModelName;
use serde::Serialize;

use crate::camera::{Camera, CountsByZone};
use crate::cameras::Cameras;
use crate::clock::{Moment, text};
use crate::config::ZoneConfig;
use crate::health::{CameraHealth, CameraState};
use crate::recent::LastPicture;
use crate::render::PictureRenderer;

/// The most events of all cameras in an answer.
const EVENTS_MAX: usize = 200;

/// The answer of `GET /cameras`.
#[derive(Debug, Serialize)]
pub struct CamerasDocument<'a> {
    cameras: Vec<CameraDocument<'a>>,
}

#[derive(Debug, Serialize)]
struct CameraDocument<'a> {
    name: &'a str,
    state: CameraState,
    /// The time since when it is so.
    since: Option<String>,
    /// The reason for which it is not online.
    reason: Option<String>,
    /// The address of its pictures, with `<hidden>` in place of a password; `None` if they come with calls.
    url: Option<String>,
    interval_ms: u64,
    /// The model that finds the objects; `None` if that is the one of each call.
    model: Option<&'a ModelName>,
    /// The labels that count; all of the model's if it is empty.
    labels: &'a [String],
    /// The labels that are blurred.
    blur: &'a [String],
    zones: &'a [ZoneConfig],
    /// By zone and label; `None` before the first ones are known.
    counts: Option<CountsByZone<'a>>,
    /// The time of the last picture that came, new or not.
    looked_at: Option<String>,
    /// The time of the last picture that was looked at and had other bytes than the one before.
    new_picture_at: Option<String>,
    /// The last picture that showed something new.
    picture: Option<PictureDocument>,
}

#[derive(Debug, Serialize)]
struct PictureDocument {
    at: String,
    model: String,
    bytes: usize,
    width: u32,
    height: u32,
    /// The reason why it cannot be shown to anybody.
    hidden: Option<String>,
}

/// The answer of `GET /cameras/events`.
#[derive(Debug, Serialize)]
pub struct EventsDocument<'a> {
    events: Vec<EventDocument<'a>>,
}

#[derive(Debug, Serialize)]
struct EventDocument<'a> {
    at: String,
    camera: &'a str,
    /// `appeared`, `gone`, or `count` for more or fewer of them.
    event: &'static str,
    /// The zone; `everywhere` is the whole picture.
    zone: &'a str,
    label: String,
    /// The number of objects at that time.
    count: usize,
}

impl<'a> CamerasDocument<'a> {
    pub fn of(cameras: &'a Cameras) -> Self {
        let renderer = &cameras.watching().renderer;
        Self { cameras: cameras.all().iter().map(|camera| CameraDocument::of(camera, renderer)).collect() }
    }
}

impl<'a> CameraDocument<'a> {
    fn of(camera: &'a Camera, renderer: &PictureRenderer) -> Self {
        let config = &camera.config;
        let health = camera.health();
        let new_picture_at = health.new_picture().map(Moment::text);
        let CameraHealth { state, since, reason, came, .. } = health;
        let picture = camera.recent.picture().map(|last| PictureDocument {
            at: text(last.at_ms),
            model: last.model.as_str().to_owned(),
            bytes: last.bytes,
            width: last.size.0,
            height: last.size.1,
            hidden: hidden(camera, &last, renderer),
        });
        Self {
            name: config.name.as_str(),
            state,
            since: since.map(Moment::text),
            reason,
            url: config.url.as_ref().map(ToString::to_string),
            interval_ms: config.interval_ms,
            model: config.url.as_ref().map(|_| &config.model),
            labels: &config.labels,
            blur: &config.blur,
            zones: &config.zones,
            counts: camera.counts(),
            looked_at: came.map(Moment::text),
            new_picture_at,
            picture,
        }
    }
}

/// The reason why a picture cannot be shown to anybody now.
pub fn hidden(camera: &Camera, last: &LastPicture, renderer: &PictureRenderer) -> Option<String> {
    let unkept = || {
        let reason = "the pictures of other cameras take all the memory that there is for them";
        last.examined.is_none().then(|| reason.to_owned())
    };
    last.blur_fault.clone().or_else(|| renderer.face_fault(&camera.config)).or_else(unkept)
}

impl<'a> EventsDocument<'a> {
    /// The last events of all cameras, the newest first.
    pub fn of(cameras: &'a Cameras) -> Self {
        let of_camera = |camera: &'a std::sync::Arc<Camera>| {
            camera.recent.events().into_iter().map(move |event| (&**camera, event))
        };
        let mut events: Vec<_> = cameras.all().iter().flat_map(of_camera).collect();
        events.sort_by_key(|(_, event)| std::cmp::Reverse(event.at_ms));
        events.truncate(EVENTS_MAX);
        let document = |(camera, event): (&'a Camera, crate::recent::RecentEvent)| EventDocument {
            at: text(event.at_ms),
            camera: camera.config.name.as_str(),
            event: event.event,
            zone: camera.zone_name(event.subject.zone),
            label: event.subject.label.to_string(),
            count: event.count,
        };
        Self { events: events.into_iter().map(document).collect() }
    }
}
