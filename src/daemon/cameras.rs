//! Cameras as a part of the daemon, introduced to MQTT.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ledge_base::log_limiter::LogLimiter;
use ledge_cameras::cameras::{CameraServices, CameraTasks, Cameras};
use ledge_cameras::clock::SystemClock;
use ledge_cameras::messages::{CameraMessage, CameraMessageKind, CameraPublisher};
use ledge_egress::EgressContent;
use ledge_models::serving::Serving;
use ledge_mqtt::publisher::{OutgoingPublication, Publisher, TopicListener};
use ledge_mqtt::topics::DeviceTopics;
use ledge_part::PartEnvironment;
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;
use tokio::sync::mpsc;

use crate::config::Config;

/// The most messages of Home Assistant that wait. Another one says nothing new.
const STATUS_MESSAGES_MAX: usize = 2;

/// The cameras of this box, and the topics that they hear.
pub struct WatchedCameras {
    pub cameras: Cameras,
    tasks: CameraTasks,
    listeners: Vec<TopicListener>,
}

/// Passes messages of cameras on to MQTT.
#[derive(Debug)]
struct CamerasToBroker {
    publisher: Publisher,
    log_limiter: Mutex<LogLimiter>,
}

impl CameraPublisher for CamerasToBroker {
    fn publish(&self, CameraMessage { topic, payload, retain, kind }: CameraMessage) -> bool {
        let (content, content_type) = match kind {
            CameraMessageKind::Data => (EgressContent::Answer, Some("application/json")),
            CameraMessageKind::Presence => (EgressContent::Presence, None),
            CameraMessageKind::Picture => (EgressContent::Picture, Some("image/jpeg")),
        };
        match topic.parse() {
            Ok(topic) => {
                let has_room = self.publisher.publish(OutgoingPublication {
                    topic,
                    payload,
                    retain,
                    content,
                    content_type,
                    receipt: None,
                });
                let mut limiter = self.log_limiter.lock().unwrap_or_else(PoisonError::into_inner);
                if !has_room && let Some(suppressed) = limiter.take(("dropped", 0), Instant::now()) {
                    let dropped = self.publisher.dropped();
                    tracing::warn!(
                        dropped,
                        suppressed,
                        "messages of cameras are dropped: too many wait for the broker"
                    );
                }
                has_room
            }
            // Names are valid topic levels.
            Err(error) => {
                tracing::error!(%error, "a message of a camera is dropped");
                false
            }
        }
    }
}

fn to_broker(publisher: &Publisher) -> Arc<dyn CameraPublisher> {
    Arc::new(CamerasToBroker { publisher: publisher.clone(), log_limiter: Mutex::default() })
}

impl WatchedCameras {
    pub fn new(config: &Config, environment: &PartEnvironment, serving: &Serving, publisher: &Publisher) -> Self {
        let PartEnvironment { state, device, egress, audit, .. } = environment;
        let topics = DeviceTopics { device: device.id.clone(), group: None, has_platform: false };
        let (sender, receiver) = mpsc::channel(STATUS_MESSAGES_MAX);
        let services = CameraServices {
            egress: egress.clone(),
            serving: serving.clone(),
            audit: audit.clone(),
            state: state.clone(),
            device: device.id.clone(),
            faces: config.vision.face.clone(),
            publisher: config.mqtt.broker.is_some().then(|| to_broker(publisher)),
            cameras_topic: topics.cameras().as_str().to_owned(),
            online_topic: topics.online().as_str().to_owned(),
            unusual_topic: config.history.unusual_mqtt.then(|| topics.unusual().as_str().to_owned()),
            clock: Arc::new(SystemClock::default()),
        };
        let (cameras, tasks) = Cameras::new(&config.camera, &config.home_assistant, services, receiver);
        serving.report_sightings_to(Arc::new(cameras.clone()));
        let listeners = config
            .home_assistant_status()
            .map(|filter| TopicListener { filter, messages: sender })
            .into_iter()
            .collect();
        Self { cameras, tasks, listeners }
    }

    /// Starts the tasks of the cameras. Returns the listeners that MQTT needs.
    pub fn spawn(self, readiness: &Arc<Readiness>, shutdown: &Shutdown) -> Vec<TopicListener> {
        self.tasks.spawn(readiness, shutdown);
        self.listeners
    }
}
