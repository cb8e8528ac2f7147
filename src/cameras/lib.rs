//! Cameras without other software: this box fetches their pictures, finds objects in those that changed, and publishes
//! events. Authorized callers can view the latest pictures.
//!
//! Files, in reading order:
//! * `config.rs`, `address.rs` - `[[camera]]` and `[home_assistant]`
//! * `zones.rs` - polygons, and the place where an object stands
//! * `presence.rs` - counts that do not flicker
//! * `change.rs` - tells whether a picture shows something new
//! * `messages.rs` - topics and contents of the messages, and the way out of the box
//! * `clock.rs` - the time, which tests pass in
//! * `health.rs` - online, failing, frozen or away, and why
//! * `found.rs` - a picture with the objects on it; `counters.rs` the figures of a camera
//! * `camera.rs` - one camera: from pictures and detections to messages
//! * `login.rs`, `fetch.rs` - pictures from a camera, with basic and digest authentication
//! * `picture_memory.rs` - the bound of the pictures of all cameras
//! * `render.rs` - the questions to models, and pictures as they may be shown
//! * `recent.rs` - the last picture and the last events of a camera
//! * `retry.rs` - the pauses before a camera that gave no picture is asked again
//! * `watch.rs` - the task of a camera: fetch, compare, ask the model
//! * `discovery.rs`, `retained.rs` - entities in Home Assistant, and the memory of what the broker keeps
//! * `pictures_audit.rs` - the audit records of pictures that were published or seen
//! * `http.rs` - `ROUTES`, the table of the routes of this crate; `status.rs` the documents about cameras and events
//! * `cameras.rs` - all cameras, and their tasks
//! * `part.rs`, `metrics.rs`, `doctor.rs` - cameras as a part of the daemon
//!
//! Invariants:
//! * The crate does not know MQTT: messages leave through `CameraPublisher`, pictures come through `egress` or with a
//!   call. Only `http.rs` knows HTTP.
//! * `zones.rs`, `presence.rs`, `health.rs`, `retry.rs`, `discovery.rs` and `camera.rs` are pure: pictures and times
//!   are passed in.
//! * A camera that is not online makes no event. It is online while its last picture was looked at: the
//!   model answered it, or it showed nothing new. In the second case the objects of the last answer are seen once more.
//! * No picture leaves the box, and none is shown to anybody, without its blurred places: `render.rs` is the only way.
//! * A camera has one picture in progress at most, and the fetched pictures of all cameras share one bound. So do those
//!   that are kept to be shown, of each camera the last one. None is written to a disk.
//!
//! # Where it is decided
//!
//! * An object appeared or is gone: `presence.rs`
//! * A picture is passed to the model: `change.rs`
//! * A camera is online, failing, frozen or away: `health.rs`; the time at which it is asked again: `retry.rs`
//! * A picture may be shown, and the places that are blurred on it: `draw` in `render.rs`. A label to blur must be one
//!   of the camera's model (`blur_fault`). Faces are found by another model, the one named in `[vision]`, which must be
//!   loaded (`face_fault`)
//! * The record of who saw a picture: `pictures_audit.rs`
#![forbid(unsafe_code)]

pub mod address;
pub mod camera;
pub mod cameras;
pub mod change;
pub mod clock;
pub mod config;
mod counters;
pub mod discovery;
pub mod doctor;
pub mod health;
pub mod http;
pub mod login;
pub mod messages;
mod metrics;
mod fetch;
mod found;
mod part;
mod picture_memory;
mod pictures_audit;
pub mod presence;
mod recent;
mod render;
mod retained;
mod retry;
mod status;
mod watch;
pub mod zones;
