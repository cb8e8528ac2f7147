//! The task of one camera: fetch, compare, ask the model, and back off while the camera does not answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ledge_base::backoff::{Backoff, random};
use ledge_base::clock;
use ledge_base::memory_budget::Account;
use ledge_base::names::ModelName;
use ledge_engine::pipeline::image::{DecodeLimits, ImageError};
use ledge_engine::pipeline::picture_size::picture_size;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::camera::{Camera, FAILURES_UNTIL_AWAY, Found, Moment, Verdict};
use crate::change::{GrayPicture, gray_thumbnail};
use crate::fetch::{FetchError, Fetcher};
use crate::metrics::CameraCounters;
use crate::picture_memory::PictureMemory;
use crate::render::{AskError, Examined, RenderError, Renderer};

/// The first and the longest pause after a camera did not answer.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// A camera without an address is away after so many of its intervals, and after a minute at the earliest.
const MISSED_INTERVALS: u64 = 3;
const SHORTEST_PATIENCE_MS: u64 = 60_000;

/// The services that the tasks of all cameras share.
#[derive(Debug, Clone)]
pub struct Watching {
    pub renderer: Renderer,
    /// The memory of the pictures that are kept to be shown.
    pub kept: PictureMemory,
    pub started: Instant,
}

impl Watching {
    pub fn now(&self) -> Moment {
        let steady_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Moment { steady_ms, unix_ms: clock::unix_millis() }
    }
}

/// A picture that came with a call, and its objects.
#[derive(Debug)]
pub struct GivenPicture {
    /// The model that found them.
    pub model: ModelName,
    pub photograph: Bytes,
    pub found: Found,
}

/// The result of a first look at a picture.
#[derive(Debug)]
enum FirstLook {
    Unchanged,
    New { hash: blake3::Hash, gray: Option<GrayPicture>, size: (u32, u32) },
}

/// The task of a camera.
#[derive(Debug)]
pub struct Watcher {
    camera: Arc<Camera>,
    watching: Watching,
    /// Set while the model does not answer, to log it once.
    is_unanswered: bool,
    /// The same while no picture is published because something cannot be blurred.
    cannot_blur: bool,
}

impl Watcher {
    pub fn new(camera: Arc<Camera>, watching: Watching) -> Self {
        Self { camera, watching, is_unanswered: false, cannot_blur: false }
    }

    /// Watches a camera with an address, from `delay` on. It never ends.
    pub async fn run(mut self, mut fetcher: Fetcher, delay: Duration) {
        let interval = self.camera.config.interval();
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + delay, interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut failures = 0;
        loop {
            ticks.tick().await;
            let began = Instant::now();
            let answer = fetcher.picture().await;
            CameraCounters::spend(&self.camera.counters.fetching_us, began.elapsed());
            match answer {
                Ok(picture) => {
                    (failures, backoff) = (0, Backoff::new(FIRST_PAUSE, LONGEST_PAUSE));
                    self.is_back();
                    match self.account().take(picture.len()) {
                        Ok(held) => self.look_at(held.keep(picture)).await,
                        Err(no_room) => self.unanswered(&AskError::Picture(no_room.into())),
                    }
                }
                Err(error) => {
                    self.camera.counters.missing.inc();
                    failures += 1;
                    // A camera locks the user out after some wrong passwords.
                    let is_login = matches!(error, FetchError::LoginRefused | FetchError::Login(_));
                    if is_login {
                        backoff.give_way();
                    }
                    self.failed(&error, is_login || failures >= FAILURES_UNTIL_AWAY);
                    tokio::time::sleep(backoff.pause(random())).await;
                }
            }
        }
    }

    /// Takes the pictures of a camera without an address. It never ends.
    pub async fn take(mut self, mut given: mpsc::Receiver<GivenPicture>) {
        let patience_ms = (self.camera.config.interval_ms * MISSED_INTERVALS).max(SHORTEST_PATIENCE_MS);
        let mut ticks = tokio::time::interval(Duration::from_millis(patience_ms / 4));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                picture = given.recv() => match picture {
                    Some(picture) => {
                        self.is_back();
                        self.take_one(picture).await;
                    }
                    None => return std::future::pending().await,
                },
                _ = ticks.tick() => {
                    if self.camera.miss(self.now(), patience_ms) {
                        let camera = self.camera.config.name.as_str();
                        let reason = format!("no picture came with a call for {} s", patience_ms / 1000);
                        tracing::warn!(camera, reason, "no pictures of the camera");
                        self.camera.recent.missed(reason, true, self.now().unix_ms);
                    }
                }
            }
        }
    }

    fn now(&self) -> Moment {
        self.watching.now()
    }

    /// The memory of its pictures.
    fn account(&self) -> Account {
        self.watching.renderer.account(&self.camera.config)
    }

    fn is_back(&self) {
        self.camera.recent.came(self.now().unix_ms);
        let was_known = self.camera.is_online().is_some();
        if self.camera.answers(self.now()) {
            let camera = self.camera.config.name.as_str();
            let message = if was_known { "the camera answers again" } else { "the camera answers" };
            tracing::info!(camera, message);
        }
    }

    fn failed(&self, error: &FetchError, is_away: bool) {
        self.camera.recent.missed(error.to_string(), is_away, self.now().unix_ms);
        let camera = self.camera.config.name.as_str();
        // A warning once: a camera that is away for a night would fill the log.
        if is_away && self.camera.is_away() {
            tracing::warn!(camera, %error, "the camera gives no picture");
        } else {
            tracing::debug!(camera, %error, "the camera gives no picture");
        }
    }

    /// Finds the objects on a picture, unless it shows nothing new.
    async fn look_at(&mut self, picture: Bytes) {
        let now = self.now();
        let examined = match self.examine(picture.clone(), now).await {
            Ok(examined) => examined,
            Err(error) => return self.unanswered(&error.into()),
        };
        let to_publish = match examined {
            FirstLook::Unchanged => {
                self.camera.counters.unchanged.inc();
                self.camera.unchanged(now)
            }
            FirstLook::New { hash, gray, size } => {
                let config = &self.camera.config;
                match self.watching.renderer.find(config, picture.clone()).await {
                    Ok(found) => {
                        if std::mem::take(&mut self.is_unanswered) {
                            tracing::info!(camera = config.name.as_str(), "the model answers again");
                        }
                        self.camera.counters.inferred.inc();
                        let seen = self.camera.found(hash, gray, size, found.clone(), now);
                        let examined = Examined { photograph: picture.clone(), size, found };
                        self.keep(&config.model, examined.clone(), now);
                        seen.wants_picture.then_some((examined.found, size))
                    }
                    Err(error) => return self.unanswered(&error),
                }
            }
        };
        if let Some((found, size)) = to_publish {
            self.publish(Examined { photograph: picture, size, found }, now).await;
        }
    }

    /// The first look at a picture: is it the last one, or like it?
    async fn examine(&self, picture: Bytes, now: Moment) -> Result<FirstLook, ImageError> {
        let Renderer { serving, .. } = &self.watching.renderer;
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

    /// Keeps a picture that `model` has just answered, for who asks to see it.
    fn keep(&self, model: &ModelName, examined: Examined, now: Moment) {
        let recent = &self.camera.recent;
        recent.answered(now.unix_ms);
        recent.keep(examined, model, now.unix_ms, &self.watching.kept);
    }

    fn unanswered(&mut self, error: &AskError) {
        self.camera.counters.failed.inc();
        let is_away = self.camera.unanswered();
        self.camera.recent.unanswered(error.to_string(), is_away, self.now().unix_ms);
        let (camera, model) = (self.camera.config.name.as_str(), self.camera.config.model.as_str());
        if std::mem::replace(&mut self.is_unanswered, true) {
            tracing::debug!(camera, model, %error, "a picture of the camera has no answer");
        } else {
            tracing::warn!(camera, model, %error, "a picture of the camera has no answer");
        }
    }

    async fn take_one(&mut self, GivenPicture { model, photograph, found }: GivenPicture) {
        let now = self.now();
        // The copy counts as memory of the camera: the caller has its answer by now.
        let account = self.account();
        let read = move || {
            let (size, hash, held) =
                (picture_size(&photograph)?, blake3::hash(&photograph), account.take(photograph.len())?);
            Ok::<_, ImageError>((size, hash, held.keep(Bytes::copy_from_slice(&photograph))))
        };
        let (size, hash, photograph) = match self.watching.renderer.on_a_core(read).await {
            Ok(read) => read,
            Err(error) => return self.unanswered(&AskError::Picture(error)),
        };
        self.is_unanswered = false;
        self.camera.counters.inferred.inc();
        let seen = self.camera.found(hash, None, size, found.clone(), now);
        let examined = Examined { photograph, size, found };
        self.keep(&model, examined.clone(), now);
        if seen.wants_picture {
            self.publish(examined, now).await;
        }
    }

    /// Draws the objects that count into a picture, blurs what nobody may see, and publishes it. No picture is published
    /// if one of the labels to blur cannot be looked for.
    async fn publish(&mut self, examined: Examined, now: Moment) {
        let drawn = self.watching.renderer.draw(&self.camera, examined, Vec::new()).await;
        let cannot_blur = matches!(drawn, Err(RenderError::Blur(_)));
        let could_not_blur = std::mem::replace(&mut self.cannot_blur, cannot_blur);
        match drawn {
            Ok(picture) => self.camera.publish_picture(picture, now),
            Err(RenderError::Blur(reason)) => {
                if !could_not_blur {
                    let message = "no picture of the camera is published: what camera.blur names cannot be looked for";
                    tracing::warn!(camera = self.camera.config.name.as_str(), reason, message);
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
    (limits, account): (DecodeLimits, &Account),
    now: Moment,
) -> Result<FirstLook, ImageError> {
    let hash = blake3::hash(picture);
    let verdict = camera.judge_bytes(&hash, now);
    if verdict == Verdict::Unchanged {
        return Ok(FirstLook::Unchanged);
    }
    if !camera.compares() {
        return Ok(FirstLook::New { hash, gray: None, size: picture_size(picture)? });
    }
    let gray = gray_thumbnail(picture, limits, account)?;
    if verdict == Verdict::Compare && camera.judge_picture(&gray) == Verdict::Unchanged {
        return Ok(FirstLook::Unchanged);
    }
    Ok(FirstLook::New { hash, size: gray.size, gray: Some(gray) })
}
