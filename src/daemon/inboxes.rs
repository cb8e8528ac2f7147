//! Inboxes as a part of the daemon, connected to MQTT.

use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use ledge_base::names::InboxName;
use ledge_egress::EgressContent;
use ledge_inbox::deliver::DocumentPublisher;
use ledge_inbox::inboxes::{InboxServices, Inboxes};
use ledge_models::serving::Serving;
use ledge_mqtt::publisher::{OutgoingPublication, PublicationReceipt, Publisher};
use ledge_mqtt::topics::DeviceTopics;
use ledge_part::PartEnvironment;

use crate::config::Config;

/// Passes messages about documents on to MQTT while there is a connection, and waits for the broker's acknowledgement.
#[derive(Debug)]
struct DocumentsToBroker {
    publisher: Publisher,
    /// The topic of all documents of this box.
    topic: String,
}

impl DocumentPublisher for DocumentsToBroker {
    fn publish<'a>(&'a self, inbox: &'a InboxName, payload: Bytes) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            if !self.publisher.is_connected() {
                return Err("there is no connection to the broker".to_owned());
            }
            let topic = format!("{}/{inbox}", self.topic).parse().map_err(|error| format!("{error}"))?;
            let (receipt, settled) = PublicationReceipt::new();
            let publication = OutgoingPublication::json(topic, payload, EgressContent::Document);
            self.publisher.publish(OutgoingPublication { receipt: Some(receipt), ..publication });
            settled.await.unwrap_or_else(|_| Err("too many messages wait for the broker".to_owned()))
        })
    }
}

/// The inboxes of this box.
pub fn inboxes(
    config: &Config,
    environment: &PartEnvironment,
    serving: &Serving,
    publisher: &Publisher,
) -> anyhow::Result<Inboxes> {
    let PartEnvironment { device, egress, .. } = environment;
    let topics = DeviceTopics { device: device.id.clone(), group: None, has_platform: false };
    let publisher = config.mqtt.broker.is_some().then(|| {
        let topic = topics.documents().as_str().to_owned();
        Arc::new(DocumentsToBroker { publisher: publisher.clone(), topic }) as Arc<dyn DocumentPublisher>
    });
    let file_bytes_max = config.http.max_body_bytes;
    let services = InboxServices { device: device.id.clone(), egress, serving, file_bytes_max, publisher };
    Inboxes::new(&config.inbox, &services).context("the thread of an inbox cannot be started")
}
