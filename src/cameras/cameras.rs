//! All cameras: their shared parts, and their tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ledge_base::names::{CameraName, DeviceName, ModelName};
use ledge_egress::Egress;
use ledge_engine::pipeline::detection::Detection;
use ledge_models::repository::LoadedModel;
use ledge_models::serving::Serving;
use ledge_models::serving::detection_sink::DetectionSink;
use ledge_part::check::Finding;
use ledge_service::audit_event::AuditSink;
use ledge_service::off_thread::blocking;
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;
use tokio::sync::mpsc;

use crate::camera::Camera;
use crate::clock::Clock;
use crate::config::{CamerasConfig, HomeAssistantConfig};
use crate::discovery::{self, DiscoveryMessages, DiscoverySite};
use crate::doctor;
use crate::fetch::PictureFetcher;
use crate::found::FoundObjects;
use crate::messages::{CameraMessage, CameraMessageKind, CameraPublisher, CameraTopics, ONLINE};
use crate::picture_memory::{KEPT_BYTES_MAX, PICTURES_BYTES_MAX, PictureMemory};
use crate::render::{PictureRenderer, blur_fault};
use crate::retained;
use crate::watch::{CameraWatcher, SubmittedPicture, WatcherServices};

/// The most pictures of one camera that came with calls and wait. Further ones are dropped: a newer one follows.
const GIVEN_PICTURES_MAX: usize = 2;

/// The most time in milliseconds over which the first pictures of all cameras are spread.
const SPREAD_MS: u64 = 10_000;

/// The services that cameras need.
#[derive(Debug, Clone)]
pub struct CameraServices {
    pub egress: Egress,
    pub serving: Serving,
    pub audit: AuditSink,
    /// The state folder.
    pub state: PathBuf,
    pub device: DeviceName,
    /// The model that finds faces to blur.
    pub faces: ModelName,
    /// The way out of the box; `None` without a broker.
    pub publisher: Option<Arc<dyn CameraPublisher>>,
    /// The topic of all cameras of this box.
    pub cameras_topic: String,
    /// The topic that says whether this box is online.
    pub online_topic: String,
    /// The topic of what is unusual of the figures of this box; `None` where it is not published.
    pub unusual_topic: Option<String>,
    pub clock: Arc<dyn Clock>,
}

/// A handle to all cameras. Clones share them.
#[derive(Debug, Clone)]
pub struct Cameras(Arc<CamerasState>);

#[derive(Debug)]
struct CamerasState {
    cameras: Vec<Arc<Camera>>,
    /// Takes the pictures of cameras without an address.
    given: BTreeMap<CameraName, mpsc::Sender<SubmittedPicture>>,
    watching: WatcherServices,
    publisher: Option<Arc<dyn CameraPublisher>>,
    cameras_topic: String,
    unusual_topic: Option<String>,
    announcements: DiscoveryMessages,
}

/// The work of one camera since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CameraWork {
    pub model: ModelName,
    /// Pictures that were compared.
    pub pictures: u64,
    /// Those that the model was asked about.
    pub looked: u64,
    /// Time of decoding and comparing.
    pub comparing: Duration,
}

/// The tasks of the cameras, not yet running.
pub struct CameraTasks {
    cameras: Cameras,
    services: CameraServices,
    given: Vec<(Arc<Camera>, mpsc::Receiver<SubmittedPicture>)>,
    /// Messages of Home Assistant on its own state.
    home_assistant: mpsc::Receiver<Bytes>,
}

/// Drops every message: without a broker, events are only counted.
#[derive(Debug)]
struct DiscardingPublisher;

impl CameraPublisher for DiscardingPublisher {
    fn publish(&self, _message: CameraMessage) -> bool {
        false
    }
}

impl Cameras {
    /// All cameras of the configuration. `home_assistant` receives the messages of `homeassistant/status`.
    pub fn new(
        config: &CamerasConfig,
        home: &HomeAssistantConfig,
        services: CameraServices,
        home_assistant: mpsc::Receiver<Bytes>,
    ) -> (Self, CameraTasks) {
        let publisher = services.publisher.clone().unwrap_or_else(|| Arc::new(DiscardingPublisher));
        let camera = |config: &crate::config::CameraConfig| {
            let (publisher, audit) = (publisher.clone(), services.audit.clone());
            Arc::new(Camera::new(config.clone(), &services.cameras_topic, publisher, audit))
        };
        let cameras: Vec<_> = config.iter().map(camera).collect();
        let without_address = cameras.iter().filter(|camera| camera.config.url.is_none());
        let (senders, given) = without_address
            .map(|camera| {
                let (sender, receiver) = mpsc::channel(GIVEN_PICTURES_MAX);
                ((camera.config.name.clone(), sender), (camera.clone(), receiver))
            })
            .unzip();

        let announcements = if home.enable {
            let site = DiscoverySite {
                prefix: &home.prefix,
                device: &services.device,
                cameras: &services.cameras_topic,
                online: &services.online_topic,
                unusual: services.unusual_topic.as_deref(),
                version: env!("CARGO_PKG_VERSION"),
            };
            discovery::announcements(config, &site)
        } else {
            DiscoveryMessages::new()
        };
        let watching = WatcherServices {
            renderer: PictureRenderer::new(services.serving.clone(), services.faces.clone()),
            kept: PictureMemory::new(KEPT_BYTES_MAX),
            clock: services.clock.clone(),
        };
        let state = CamerasState {
            cameras,
            given: senders,
            watching,
            publisher: services.publisher.clone(),
            cameras_topic: services.cameras_topic.clone(),
            unusual_topic: services.unusual_topic.clone(),
            announcements,
        };
        let cameras = Self(Arc::new(state));
        (cameras.clone(), CameraTasks { cameras, services, given, home_assistant })
    }

    pub(crate) fn all(&self) -> &[Arc<Camera>] {
        &self.0.cameras
    }

    pub(crate) fn watching(&self) -> &WatcherServices {
        &self.0.watching
    }

    /// The work of each camera since the start.
    pub fn work(&self) -> Vec<CameraWork> {
        let of = |camera: &Arc<Camera>| {
            let counters = &camera.counters;
            let looked = counters.inferred.get();
            CameraWork {
                model: camera.config.model.clone(),
                pictures: looked + counters.unchanged.get(),
                looked,
                comparing: Duration::from_micros(counters.comparing_us.get()),
            }
        };
        self.0.cameras.iter().map(of).collect()
    }

    /// The findings about cameras, as they are watched now.
    pub fn findings(&self) -> Vec<Finding> {
        doctor::watched(self.0.cameras.iter().map(|camera| &**camera))
    }

    /// The topics for which the broker keeps a message.
    fn retained_topics(&self) -> BTreeSet<String> {
        let CamerasState { cameras, cameras_topic, unusual_topic, announcements, .. } = &*self.0;
        let of_camera = |camera: &Arc<Camera>| {
            let topics = CameraTopics::new(cameras_topic, &camera.config.name);
            let picture = camera.config.publish_pictures.then(|| topics.picture());
            [topics.counts(), topics.state(), topics.status()].into_iter().chain(picture)
        };
        let of_box = unusual_topic.iter().chain(announcements.keys()).cloned();
        cameras.iter().flat_map(of_camera).chain(of_box).collect()
    }

    /// Publishes the entities for Home Assistant.
    fn announce(&self) {
        let Some(publisher) = &self.0.publisher else { return };
        for (topic, entity) in &self.0.announcements {
            publisher.publish(CameraMessage::json(topic.clone(), entity, true));
        }
    }

    /// Removes the retained messages of cameras and entities that no longer exist.
    async fn remove_outdated(&self, state: PathBuf) {
        let Some(publisher) = &self.0.publisher else { return };
        let topics = self.retained_topics();
        for topic in blocking(move || retained::replace(&state, topics)).await {
            let payload = Bytes::new();
            publisher.publish(CameraMessage { topic, payload, retain: true, kind: CameraMessageKind::Data });
        }
    }
}

impl CameraTasks {
    /// Starts the tasks, which wait until the models are loaded and end with the shutdown.
    pub fn spawn(self, readiness: &Arc<Readiness>, shutdown: &Shutdown) {
        let Self { cameras, services, given, mut home_assistant } = self;
        let CamerasState { cameras: all, announcements, watching, .. } = &*cameras.0;
        let spawn = |task: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
            let (ready, stop) = (readiness.clone(), shutdown.clone());
            shutdown.spawn(async move {
                let run = async {
                    ready.wait().await;
                    task.await;
                };
                tokio::select! {
                    () = run => {}
                    () = stop.requested() => {}
                }
            });
        };

        for (camera, given) in given {
            spawn(Box::pin(CameraWatcher::new(camera, watching.clone()).take(given)));
        }
        let memory = PictureMemory::new(PICTURES_BYTES_MAX);
        let count = u64::try_from(all.len()).unwrap_or(u64::MAX).max(1);
        for (camera, number) in all.iter().zip(0_u64..) {
            if let Some(fetcher) = PictureFetcher::new(&camera.config, &services.egress, &memory) {
                // Not all at once: the cores are busy evenly.
                let delay_ms = camera.config.interval_ms.min(SPREAD_MS) * number / count;
                spawn(Box::pin(CameraWatcher::new(camera.clone(), watching.clone()).run(fetcher, delay_ms)));
            }
        }

        let (ended, stop) = (cameras.clone(), shutdown.clone());
        shutdown.spawn(async move {
            stop.requested().await;
            ended.0.cameras.iter().for_each(|camera| camera.record_pictures());
        });

        let has_entities = !announcements.is_empty();
        let all = cameras.clone();
        spawn(Box::pin(async move {
            all.remove_outdated(services.state).await;
            all.announce();
            while has_entities && let Some(message) = home_assistant.recv().await {
                // Home Assistant has started: it knows no entity that the broker did not keep.
                if *message == *ONLINE.as_bytes() {
                    all.announce();
                }
            }
        }));
    }
}

impl DetectionSink for Cameras {
    fn takes(&self, camera: &CameraName) -> bool {
        self.0.given.contains_key(camera)
    }

    fn on_detections(
        &self,
        camera: &CameraName,
        model: &LoadedModel,
        photograph: Bytes,
        detections: Vec<Detection>,
        unreported: Vec<Detection>,
    ) {
        if let Some(given) = self.0.given.get(camera)
            && let Some(camera) = self.0.cameras.iter().find(|known| known.config.name == *camera)
        {
            // Judged now: a picture that waits does not keep a version in memory that is gone.
            let found = FoundObjects { detections, unreported, blur_fault: blur_fault(&camera.config, model) };
            // Full: newer pictures follow.
            let _ = given.try_send(SubmittedPicture { model: model.name.clone(), photograph, found });
        }
    }
}
