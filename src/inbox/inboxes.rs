//! All inboxes, and their tasks.

use std::io;
use std::sync::Arc;

use ledge_base::names::DeviceName;
use ledge_egress::{Egress, EgressContent, EgressPurpose, Webhook};
use ledge_models::serving::Serving;
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;
use tokio::sync::Notify;

use crate::config::{InboxConfig, InboxesConfig};
use crate::deliver::{Delivery, DocumentPublisher, DocumentReceiver};
use crate::http::InboxDocument;
use crate::inbox::Inbox;
use crate::workspace::Undelivered;

/// The services that inboxes need.
#[derive(Debug)]
pub struct InboxServices<'a> {
    pub device: DeviceName,
    pub egress: &'a Egress,
    pub serving: &'a Serving,
    /// The longest file, in bytes.
    pub file_bytes_max: usize,
    /// The way to the broker; `None` without one.
    pub publisher: Option<Arc<dyn DocumentPublisher>>,
}

/// A handle to all inboxes. Clones share them.
#[derive(Debug, Clone)]
pub struct Inboxes(Arc<InboxesState>);

#[derive(Debug)]
struct InboxesState {
    inboxes: Vec<Arc<Inbox>>,
    deliveries: Vec<Arc<Delivery>>,
}

impl Inboxes {
    /// The inboxes of the configuration.
    pub fn new(config: &InboxesConfig, services: &InboxServices<'_>) -> io::Result<Self> {
        let (mut inboxes, mut deliveries) = (Vec::new(), Vec::new());
        for config in config.iter() {
            let receivers = receivers(config, services);
            let receivers = receivers.into_iter().map(|receiver| (receiver, Arc::new(Notify::new())));
            let receivers: Vec<_> = receivers.collect();
            let of_receiver = |(receiver, has_message): &(DocumentReceiver, Arc<Notify>)| {
                Undelivered::new(receiver.way(), has_message.clone())
            };
            let undelivered = receivers.iter().map(of_receiver).collect();
            let (device, serving) = (services.device.clone(), services.serving.clone());
            let inbox = Arc::new(Inbox::new(config.clone(), device, serving, services.file_bytes_max, undelivered)?);
            let delivery = |(receiver, has_message)| Arc::new(Delivery::new(inbox.clone(), receiver, has_message));
            deliveries.extend(receivers.into_iter().map(delivery));
            inboxes.push(inbox);
        }
        Ok(Self(Arc::new(InboxesState { inboxes, deliveries })))
    }

    pub(crate) fn inboxes(&self) -> &[Arc<Inbox>] {
        &self.0.inboxes
    }

    /// The state of each inbox.
    pub(crate) fn documents(&self) -> Vec<InboxDocument> {
        let of_inbox = |inbox: &Arc<Inbox>| {
            let own = self.0.deliveries.iter().filter(|delivery| delivery.inbox().config.name == inbox.config.name);
            InboxDocument::new(inbox, own)
        };
        self.0.inboxes.iter().map(of_inbox).collect()
    }

    /// Starts the tasks, which wait until the models are loaded, and end with the shutdown.
    pub(crate) fn start(&self, readiness: &Arc<Readiness>, shutdown: &Shutdown) {
        for inbox in &self.0.inboxes {
            let (inbox, ready, stop) = (inbox.clone(), readiness.clone(), shutdown.clone());
            shutdown.spawn_essential("inbox", async move {
                let run = async {
                    ready.wait().await;
                    inbox.run().await;
                    Err::<(), _>("no more files are claimed")
                };
                tokio::select! {
                    ended = run => ended,
                    () = stop.requested() => Ok(()),
                }
            });
        }
        for delivery in &self.0.deliveries {
            let (delivery, stop) = (delivery.clone(), shutdown.clone());
            shutdown.spawn(async move {
                tokio::select! {
                    () = delivery.run() => {}
                    () = stop.requested() => {}
                }
            });
        }
    }
}

/// The receivers of the messages of an inbox.
fn receivers(config: &InboxConfig, services: &InboxServices<'_>) -> Vec<DocumentReceiver> {
    let webhook = config.webhook.as_ref().map(|webhook| {
        let kind = (EgressPurpose::Document, EgressContent::Document);
        DocumentReceiver::Webhook(Webhook::new(webhook, services.egress, kind))
    });
    let broker = services.publisher.as_ref().filter(|_| config.mqtt);
    let broker = broker.map(|publisher| DocumentReceiver::Broker(publisher.clone()));
    webhook.into_iter().chain(broker).collect()
}
