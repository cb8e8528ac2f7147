//! The task of one camera: fetch, compare, ask the model, and back off while the camera does not answer.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use ledge_base::backoff::random;
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::names::ModelName;
use ledge_engine::pipeline::image::{DecodeLimits, ImageError};
use ledge_engine::pipeline::picture_size::picture_size;
use tokio::sync::mpsc;

use crate::camera::{Camera, PictureDecision};
use crate::change::{GrayPicture, gray_thumbnail};
use crate::clock::{Clock, Moment};
use crate::counters::CameraCounters;
use crate::fetch::{PictureFetchError, PictureFetcher};
use crate::found::{ExaminedPicture, FoundObjects};
use crate::health::{CameraHealth, CameraState};
use crate::picture_memory::PictureMemory;
use crate::render::{DetectObjectsError, PictureRenderError, PictureRenderer};
use crate::retry::Retries;

/// The intervals after which a camera without an address counts as away, but not before a minute.
const MISSED_INTERVALS: u64 = 3;
const SHORTEST_PATIENCE_MS: u64 = 60_000;

/// The services that the tasks of all cameras share.
#[derive(Debug, Clone)]
pub struct WatcherServices {
    pub renderer: PictureRenderer,
    /// The memory of the pictures that are kept to be shown.
    pub kept: PictureMemory,
    pub clock: Arc<dyn Clock>,
}

impl WatcherServices {
    pub fn now(&self) -> Moment {
        self.clock.now()
    }
}

/// A picture that came with a call, and its objects.
#[derive(Debug)]
pub struct SubmittedPicture {
    /// The model that found them.
    pub model: ModelName,
    pub photograph: Bytes,
    pub found: FoundObjects,
}

/// The result of a first look at a picture.
#[derive(Debug)]
enum FirstLook {
    /// It has had the same bytes for too long; true if that is news.
    Frozen(bool),
    Unchanged(blake3::Hash),
    New {
        hash: blake3::Hash,
        gray: Option<GrayPicture>,
        size: (u32, u32),
    },
}

/// The task of a camera.
#[derive(Debug)]
pub struct CameraWatcher {
    camera: Arc<Camera>,
    watching: WatcherServices,
    /// Set while no picture is published because something cannot be blurred, to log it once.
    cannot_blur: bool,
}

impl CameraWatcher {
    pub fn new(camera: Arc<Camera>, watching: WatcherServices) -> Self {
        Self { camera, watching, cannot_blur: false }
    }

    /// Watches a camera with an address, from `delay_ms` on. It never ends.
    pub async fn run(mut self, mut fetcher: PictureFetcher, delay_ms: u64) {
        let interval_ms = self.camera.config.interval_ms;
        let mut due_ms = self.now().steady_ms + delay_ms;
        let mut retries = Retries::default();
        loop {
            self.watching.clock.sleep_until(due_ms).await;
            let (began, asked) = (Instant::now(), self.now());
            let answer = fetcher.picture().await;
            CameraCounters::spend(&self.camera.counters.fetching_us, began.elapsed());
            match answer {
                Ok(picture) => {
                    retries = Retries::default();
                    match self.account().take(picture.len()) {
                        Ok(held) => self.look_at(held.attach(picture)).await,
                        Err(no_room) => self.failed(&DetectObjectsError::Picture(no_room.into())),
                    }
                    // The next due time on the same grid; times that have passed are left out.
                    let late_ms = self.now().steady_ms.saturating_sub(due_ms);
                    due_ms += interval_ms * (late_ms / interval_ms + 1);
                }
                Err(error) => {
                    let is_login = matches!(error, PictureFetchError::LoginRefused | PictureFetchError::Login(_));
                    self.missed(&error, is_login);
                    // From the beginning of this try on: one that ran into a timeout has waited already.
                    let pause = retries.pause(asked, is_login, random());
                    due_ms = asked.steady_ms + u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
                }
            }
        }
    }

    /// Takes the pictures of a camera without an address. It never ends.
    pub async fn take(mut self, mut given: mpsc::Receiver<SubmittedPicture>) {
        let patience_ms = (self.camera.config.interval_ms * MISSED_INTERVALS).max(SHORTEST_PATIENCE_MS);
        let clock = self.watching.clock.clone();
        let mut late_ms = self.now().steady_ms + patience_ms;
        loop {
            tokio::select! {
                picture = given.recv() => match picture {
                    Some(picture) => {
                        self.take_one(picture).await;
                        late_ms = self.now().steady_ms + patience_ms;
                    }
                    None => return std::future::pending().await,
                },
                () = clock.sleep_until(late_ms) => {
                    let reason = format!("no picture came with a call for {} s", patience_ms / 1000);
                    let has_changed = self.camera.missed(reason, true, self.now());
                    self.report(has_changed);
                    late_ms = self.now().steady_ms + patience_ms;
                }
            }
        }
    }

    fn now(&self) -> Moment {
        self.watching.now()
    }

    /// The memory of its pictures.
    fn account(&self) -> MemoryAccount {
        self.watching.renderer.account(&self.camera.config)
    }

    /// Logs the state of the camera, if it is another one now: a camera that is away for a night must not fill the log.
    fn report(&self, has_changed: bool) {
        if !has_changed {
            return;
        }
        let CameraHealth { state, reason, .. } = self.camera.health();
        let (camera, reason) = (self.camera.config.name.as_str(), reason.unwrap_or_default());
        match state {
            CameraState::Waiting => {}
            CameraState::Online => tracing::info!(name: "camera.online", camera, "the camera is online"),
            CameraState::Failing => {
                tracing::warn!(name: "camera.failing", camera, reason, "the pictures of the camera cannot be used");
            }
            CameraState::Frozen => tracing::warn!(name: "camera.frozen", camera, reason, "the camera is frozen"),
            CameraState::Away => tracing::warn!(name: "camera.away", camera, reason, "the camera gives no picture"),
        }
    }

    fn missed(&self, error: &PictureFetchError, is_certain: bool) {
        self.camera.counters.missing.inc();
        tracing::debug!(camera = self.camera.config.name.as_str(), %error, "no picture came");
        let has_changed = self.camera.missed(error.to_string(), is_certain, self.now());
        self.report(has_changed);
    }

    fn failed(&self, error: &DetectObjectsError) {
        self.camera.counters.failed.inc();
        tracing::debug!(camera = self.camera.config.name.as_str(), %error, "a picture cannot be used");
        let has_changed = self.camera.failed(error.to_string(), self.now());
        self.report(has_changed);
    }

    fn looked_at(&self, hash: blake3::Hash, now: Moment) {
        let has_changed = self.camera.looked_at(hash, now);
        self.report(has_changed);
    }

    /// Finds the objects on a picture, unless it shows nothing new.
    async fn look_at(&mut self, picture: Bytes) {
        let now = self.now();
        let examined = match self.examine(picture.clone(), now).await {
            Ok(examined) => examined,
            Err(error) => return self.failed(&error.into()),
        };
        let to_publish = match examined {
            FirstLook::Frozen(has_changed) => {
                self.camera.counters.unchanged.inc();
                return self.report(has_changed);
            }
            FirstLook::Unchanged(hash) => {
                self.camera.counters.unchanged.inc();
                self.looked_at(hash, now);
                self.camera.unchanged(now)
            }
            FirstLook::New { hash, gray, size } => {
                let config = &self.camera.config;
                match self.watching.renderer.find(config, picture.clone()).await {
                    Ok(found) => {
                        self.camera.counters.inferred.inc();
                        self.looked_at(hash, now);
                        let seen = self.camera.found(hash, gray, size, found.clone(), now);
                        let examined = ExaminedPicture { photograph: picture.clone(), size, found };
                        self.keep(&config.model, examined.clone(), now);
                        seen.wants_picture.then_some((examined.found, size))
                    }
                    Err(error) => return self.failed(&error),
                }
            }
        };
        if let Some((found, size)) = to_publish {
            self.publish(ExaminedPicture { photograph: picture, size, found }, now).await;
        }
    }

    /// The first look at a picture: is it the last one, or like it?
    async fn examine(&self, picture: Bytes, now: Moment) -> Result<FirstLook, ImageError> {
        let PictureRenderer { serving, .. } = &self.watching.renderer;
        let (camera, limits, account) = (self.camera.clone(), serving.decode_limits(), self.account());
        self.watching
            .renderer
            .on_a_core(move || {
                let began = Instant::now();
                let examined = examine(&camera, &picture, (limits, &account), now);
                CameraCounters::spend(&camera.counters.comparing_us, began.elapsed());
                examined
            })
            .await
    }

    /// Keeps a picture that `model` has just answered, for callers who view it.
    fn keep(&self, model: &ModelName, examined: ExaminedPicture, now: Moment) {
        self.camera.recent.keep(examined, model, now.unix_ms, &self.watching.kept);
    }

    async fn take_one(&mut self, SubmittedPicture { model, photograph, found }: SubmittedPicture) {
        let now = self.now();
        // The copy counts as memory of the camera: the caller has its answer by now.
        let account = self.account();
        let read = move || {
            let (size, hash, held) =
                (picture_size(&photograph)?, blake3::hash(&photograph), account.take(photograph.len())?);
            Ok::<_, ImageError>((size, hash, held.attach(Bytes::copy_from_slice(&photograph))))
        };
        let (size, hash, photograph) = match self.watching.renderer.on_a_core(read).await {
            Ok(read) => read,
            Err(error) => return self.failed(&DetectObjectsError::Picture(error)),
        };
        if let Some(has_changed) = self.camera.froze(&hash, now) {
            self.camera.counters.unchanged.inc();
            return self.report(has_changed);
        }
        self.camera.counters.inferred.inc();
        self.looked_at(hash, now);
        let seen = self.camera.found(hash, None, size, found.clone(), now);
        let examined = ExaminedPicture { photograph, size, found };
        self.keep(&model, examined.clone(), now);
        if seen.wants_picture {
            self.publish(examined, now).await;
        }
    }

    /// Draws the objects that count into a picture, blurs the places that must not be shown, and publishes it. Without
    /// the model's support for every label to blur, no picture is published.
    async fn publish(&mut self, examined: ExaminedPicture, now: Moment) {
        let drawn = self.watching.renderer.draw(&self.camera, examined, Vec::new()).await;
        let cannot_blur = matches!(drawn, Err(PictureRenderError::Blur(_)));
        let could_not_blur = std::mem::replace(&mut self.cannot_blur, cannot_blur);
        match drawn {
            Ok(picture) => self.camera.publish_picture(picture, now),
            Err(PictureRenderError::Blur(reason)) => {
                if !could_not_blur {
                    let message = "no picture of the camera is published: its model lacks a label of camera.blur";
                    tracing::warn!(
                        name: "camera.picture_withheld",
                        camera = self.camera.config.name.as_str(),
                        reason,
                        message
                    );
                }
            }
            Err(error) => {
                tracing::debug!(camera = self.camera.config.name.as_str(), %error, "no picture is published");
            }
        }
    }
}

fn examine(
    camera: &Camera,
    picture: &Bytes,
    (limits, account): (DecodeLimits, &MemoryAccount),
    now: Moment,
) -> Result<FirstLook, ImageError> {
    let hash = blake3::hash(picture);
    if let Some(has_changed) = camera.froze(&hash, now) {
        return Ok(FirstLook::Frozen(has_changed));
    }
    let verdict = camera.judge_bytes(&hash, now);
    if verdict == PictureDecision::Unchanged {
        return Ok(FirstLook::Unchanged(hash));
    }
    if !camera.compares() {
        return Ok(FirstLook::New { hash, gray: None, size: picture_size(picture)? });
    }
    let gray = gray_thumbnail(picture, limits, account)?;
    if verdict == PictureDecision::Compare && camera.judge_picture(&gray) == PictureDecision::Unchanged {
        return Ok(FirstLook::Unchanged(hash));
    }
    Ok(FirstLook::New { hash, size: gray.size, gray: Some(gray) })
}
