//! Alerts as a part of the daemon, connected to MQTT and to the findings about this box.

use std::sync::Arc;

use bytes::Bytes;
use ledge_alerts::alerts::{AlertServices, Alerts};
use ledge_alerts::receiver::AlertPublisher;
use ledge_base::names::AlertName;
use ledge_egress::EgressContent;
use ledge_mqtt::publisher::{OutgoingPublication, Publisher};
use ledge_mqtt::topics::DeviceTopics;
use ledge_part::PartEnvironment;
use ledge_part::findings::FindingsSource;

use crate::config::Config;

/// Passes alerts on to MQTT while there is a connection: a queued alert would arrive late, and twice after a restart.
#[derive(Debug)]
struct AlertsToBroker {
    publisher: Publisher,
    /// The address of the broker.
    broker: String,
    /// The topic of all alerts of this box.
    topic: String,
}

impl AlertPublisher for AlertsToBroker {
    fn broker(&self) -> &str {
        &self.broker
    }

    fn topic(&self, alert: &AlertName) -> String {
        format!("{}/{alert}", self.topic)
    }

    fn publish(&self, alert: &AlertName, payload: Bytes) -> bool {
        // A name is a valid topic level.
        let Ok(topic) = self.topic(alert).parse() else { return false };
        let publication = OutgoingPublication::json(topic, payload, EgressContent::Alert);
        self.publisher.is_connected() && self.publisher.publish(publication)
    }
}

/// The alerts of this box.
pub fn alerts(
    config: &Config,
    environment: &PartEnvironment,
    findings: FindingsSource,
    publisher: &Publisher,
) -> Alerts {
    let PartEnvironment { state, device, egress, .. } = environment;
    let topics = DeviceTopics { device: device.id.clone(), group: None, has_platform: false };
    let publisher = config.mqtt.broker.as_ref().map(|broker| {
        let (publisher, topic) = (publisher.clone(), topics.alerts().as_str().to_owned());
        Arc::new(AlertsToBroker { publisher, broker: broker.to_string(), topic }) as Arc<dyn AlertPublisher>
    });
    Alerts::new(&config.alert, AlertServices { device: device.id.clone(), egress, state, findings, publisher })
}
