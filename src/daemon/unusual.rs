//! What is unusual of the figures of this box, published at the broker.

use ledge_egress::EgressContent;
use ledge_history::History;
use ledge_mqtt::publisher::{OutgoingPublication, Publisher};
use ledge_mqtt::topics::{DeviceTopics, TopicName};
use ledge_part::PartEnvironment;
use ledge_service::shutdown::Shutdown;

use crate::config::Config;

/// Starts to publish, where the configuration asks for it.
pub fn spawn(config: &Config, environment: &PartEnvironment, history: &History, publisher: &Publisher) {
    if !config.history.unusual_mqtt || config.mqtt.broker.is_none() {
        return;
    }
    let PartEnvironment { device, shutdown, .. } = environment;
    let topics = DeviceTopics { device: device.id.clone(), group: None, has_platform: false };
    shutdown.spawn(publish(history.clone(), publisher.clone(), topics.unusual(), shutdown.clone()));
}

/// Publishes what is unusual, now and whenever it changes, until the shutdown.
async fn publish(history: History, publisher: Publisher, topic: TopicName, shutdown: Shutdown) {
    let mut messages = history.unusual_messages();
    loop {
        let payload = messages.borrow_and_update().json().into();
        let publication = OutgoingPublication::json(topic.clone(), payload, EgressContent::Alert);
        // Without room, the next change tries again.
        publisher.publish(OutgoingPublication { retain: true, ..publication });
        tokio::select! {
            changed = messages.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = shutdown.requested() => return,
        }
    }
}
