//! The task of one camera: fetch, compare, ask the model, and back off while the camera does not answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ledge_base::backoff::{Backoff, random};
use ledge_base::clock;
use ledge_base::memory_budget::Account;
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_engine::pipeline::annotation::{
    Annotation, PictureFormat, annotate, as_faces, blurred_places, blurs_faces, is_face,
};
use ledge_engine::pipeline::content::Content;
use ledge_engine::pipeline::detection::Detection;
use ledge_engine::pipeline::image::{DecodeLimits, ImageError, ImageFormat};
use ledge_engine::pipeline::picture_size::picture_size;
use ledge_models::serving::request::{ContentRequest, ResultForm};
use ledge_models::serving::{Serving, ServingError};
use ledge_service::off_thread::blocking;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::MissedTickBehavior;

use crate::camera::{Camera, FAILURES_UNTIL_AWAY, Moment, Verdict};
use crate::change::{GrayPicture, gray_thumbnail};
use crate::fetch::{FetchError, Fetcher};
use crate::metrics::CameraCounters;

/// The first and the longest pause after a camera did not answer.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// The longest time of an inference, waiting included. A picture is old by then.
const INFERENCE_TIMEOUT: Duration = Duration::from_secs(10);

/// A camera without an address is away after so many of its intervals, and after a minute at the earliest.
const MISSED_INTERVALS: u64 = 3;
const SHORTEST_PATIENCE_MS: u64 = 60_000;

/// The services that the tasks of all cameras share.
#[derive(Debug, Clone)]
pub struct Watching {
    pub serving: Serving,
    /// The model that finds faces to blur.
    pub faces: ModelName,
    /// Bounds the pictures that are decoded at a time, one for each core.
    pub turns: Arc<Semaphore>,
    pub started: Instant,
}

/// A picture that came with a call, and its objects.
#[derive(Debug)]
pub struct GivenPicture {
    /// The model that found them.
    pub model: ModelName,
    pub photograph: Bytes,
    pub detections: Vec<Detection>,
}

/// The reason why the model did not answer.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error(transparent)]
    Serving(#[from] ServingError),
    #[error(transparent)]
    Picture(#[from] ImageError),
    #[error("the model does not find objects: its answers have {0:?} and no detections")]
    NoDetector(&'static str),
}

/// The result of a first look at a picture.
#[derive(Debug)]
enum Examined {
    Unchanged,
    New { hash: blake3::Hash, gray: Option<GrayPicture>, size: (u32, u32) },
}

/// The task of a camera.
#[derive(Debug)]
pub struct Watcher {
    camera: Arc<Camera>,
    watching: Watching,
    principal: Principal,
    /// Set while the model does not answer, to log it once.
    is_unanswered: bool,
    /// The same while no picture is published because something cannot be blurred.
    cannot_blur: bool,
}

impl Watcher {
    pub fn new(camera: Arc<Camera>, watching: Watching) -> Self {
        let principal = Principal::Camera(camera.config.name.as_str().into());
        Self { camera, watching, principal, is_unanswered: false, cannot_blur: false }
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
                    self.look_at(picture).await;
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
                        tracing::warn!(camera, "no picture of the camera came with a call for {} s", patience_ms / 1000);
                    }
                }
            }
        }
    }

    fn now(&self) -> Moment {
        let steady_ms = u64::try_from(self.watching.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Moment { steady_ms, unix_ms: clock::unix_millis() }
    }

    fn is_back(&self) {
        let was_known = self.camera.is_online().is_some();
        if self.camera.answers(self.now()) {
            let camera = self.camera.config.name.as_str();
            let message = if was_known { "the camera answers again" } else { "the camera answers" };
            tracing::info!(camera, message);
        }
    }

    fn failed(&self, error: &FetchError, is_away: bool) {
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
            Examined::Unchanged => {
                self.camera.counters.unchanged.inc();
                self.camera.unchanged(now)
            }
            Examined::New { hash, gray, size } => match self.ask(&self.camera.config.model, picture.clone()).await {
                Ok(detections) => {
                    if std::mem::take(&mut self.is_unanswered) {
                        tracing::info!(camera = self.camera.config.name.as_str(), "the model answers again");
                    }
                    self.camera.counters.inferred.inc();
                    let seen = self.camera.found(hash, gray, size, &detections, now);
                    seen.wants_picture.then_some((detections, size))
                }
                Err(error) => return self.unanswered(&error),
            },
        };
        if let Some((detections, size)) = to_publish {
            let model = self.camera.config.model.clone();
            self.publish(picture, &model, detections, size, now).await;
        }
    }

    /// The first look at a picture: is it the last one, or like it?
    async fn examine(&self, picture: Bytes, now: Moment) -> Result<Examined, ImageError> {
        let (camera, limits) = (self.camera.clone(), self.watching.serving.decode_limits());
        self.on_a_core(move || {
            let began = Instant::now();
            let examined = examine(&camera, &picture, limits, now);
            CameraCounters::spend(&camera.counters.comparing_us, began.elapsed());
            examined
        })
        .await
    }

    /// A label that is to be blurred and that `model` does not have: nobody could tell where such objects are.
    fn unknown_blur(&self, model: &ModelName) -> Option<&str> {
        let loaded = self.watching.serving.repository().pin(model, None).ok()?;
        let has = |label: &str| loaded.labels.values().any(|labels| labels.iter().any(|known| known == label));
        self.camera.config.blur.iter().map(String::as_str).find(|label| !is_face(label) && !has(label))
    }

    async fn ask(&self, model: &ModelName, photograph: Bytes) -> Result<Vec<Detection>, AskError> {
        let config = &self.camera.config;
        let request = ContentRequest {
            model: model.clone(),
            version: None,
            content: Content::Photograph(photograph),
            form: ResultForm::Json,
            deadline: Some(Instant::now() + INFERENCE_TIMEOUT),
            priority: Some(config.priority.into()),
            // A camera has one picture in progress at most.
            account: Account::unlimited(),
        };
        let answer = self.watching.serving.infer_content(request, &self.principal).await?;
        answer.detections().ok_or(AskError::NoDetector(answer.kind.member))
    }

    fn unanswered(&mut self, error: &AskError) {
        self.camera.counters.failed.inc();
        self.camera.unanswered();
        let (camera, model) = (self.camera.config.name.as_str(), self.camera.config.model.as_str());
        if std::mem::replace(&mut self.is_unanswered, true) {
            tracing::debug!(camera, model, %error, "a picture of the camera has no answer");
        } else {
            tracing::warn!(camera, model, %error, "a picture of the camera has no answer");
        }
    }

    async fn take_one(&mut self, GivenPicture { model, photograph, detections }: GivenPicture) {
        let now = self.now();
        let (bytes, hashed) = (photograph.clone(), photograph.clone());
        let read = self.on_a_core(move || Ok((picture_size(&bytes)?, blake3::hash(&hashed)))).await;
        let (size, hash) = match read {
            Ok(read) => read,
            Err(error) => return self.unanswered(&AskError::Picture(error)),
        };
        self.is_unanswered = false;
        self.camera.counters.inferred.inc();
        if self.camera.found(hash, None, size, &detections, now).wants_picture {
            self.publish(photograph, &model, detections, size, now).await;
        }
    }

    /// Draws the objects that count into a picture, blurs what nobody may see, and publishes it. No picture is published
    /// if one of the labels to blur cannot be looked for.
    async fn publish(
        &mut self,
        picture: Bytes,
        model: &ModelName,
        detections: Vec<Detection>,
        size: (u32, u32),
        now: Moment,
    ) {
        let mut hidden = detections.clone();
        let cannot_blur = match self.unknown_blur(model) {
            Some(label) => Some(format!("the model {model} has no label {label:?}")),
            None if blurs_faces(&self.camera.config.blur) => {
                match self.ask(&self.watching.faces, picture.clone()).await {
                    Ok(found) => {
                        hidden.extend(as_faces(found));
                        None
                    }
                    Err(error) => Some(format!("the model {} does not find faces: {error}", self.watching.faces)),
                }
            }
            None => None,
        };
        if let Some(reason) = cannot_blur {
            if !std::mem::replace(&mut self.cannot_blur, true) {
                let message = "no picture of the camera is published: what camera.blur names cannot be looked for";
                tracing::warn!(camera = self.camera.config.name.as_str(), reason, message);
            }
            return;
        }
        self.cannot_blur = false;
        let (camera, limits) = (self.camera.clone(), self.watching.serving.decode_limits());
        let drawn = self
            .on_a_core(move || {
                let counted = camera.counted(&detections, size);
                let blurred = blurred_places(&camera.config.blur, &hidden);
                let annotation =
                    Annotation { detections: &counted, texts: &[], blurred: &blurred, format: PictureFormat::Jpeg };
                annotate(&picture, &annotation, limits, &mut Account::unlimited().hold())
            })
            .await;
        match drawn {
            Ok(picture) => self.camera.publish_picture(picture, now),
            Err(error) => {
                tracing::debug!(camera = self.camera.config.name.as_str(), %error, "no picture is published");
            }
        }
    }

    /// Runs work of milliseconds outside of the async threads, for as many cameras at a time as there are cores. A panic
    /// is an error of this picture only: the task of a camera must not end unnoticed.
    async fn on_a_core<T: Send + 'static, E: From<ImageError> + Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        // The semaphore is never closed.
        let turn = self.watching.turns.clone().acquire_owned().await.ok();
        blocking(move || {
            let _turn = turn;
            catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
                let reason = "its processing panicked".to_owned();
                Err(ImageError::Malformed { format: ImageFormat::Jpeg, reason }.into())
            })
        })
        .await
    }
}

fn examine(camera: &Camera, picture: &Bytes, limits: DecodeLimits, now: Moment) -> Result<Examined, ImageError> {
    let hash = blake3::hash(picture);
    let verdict = camera.judge_bytes(&hash, now);
    if verdict == Verdict::Unchanged {
        return Ok(Examined::Unchanged);
    }
    if !camera.compares() {
        return Ok(Examined::New { hash, gray: None, size: picture_size(picture)? });
    }
    let gray = gray_thumbnail(picture, limits)?;
    if verdict == Verdict::Compare && camera.judge_picture(&gray) == Verdict::Unchanged {
        return Ok(Examined::Unchanged);
    }
    Ok(Examined::New { hash, size: gray.size, gray: Some(gray) })
}
