//! What is unusual of the figures of this box, published at the broker.

use ledge_egress::EgressContent;
use ledge_history::History;
use ledge_mqtt::publisher::{OutgoingPublication, Publisher};
use ledge_mqtt::topics::TopicName;
use ledge_service::shutdown::Shutdown;

/// Publishes what is unusual, now and whenever it changes, until the shutdown.
pub async fn publish(history: History, publisher: Publisher, topic: TopicName, shutdown: Shutdown) {
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
