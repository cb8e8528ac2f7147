use std::time::Duration;

use super::*;
use crate::audit_event::AuditSink;
use crate::inference::Runtimes;
use crate::inference::engine::Engine;
use crate::mqtt::bindings::BindingConfig;
use crate::mqtt::client::packet::{ConnAck, PacketId, Properties};
use crate::repository::profile::Profiles;
use crate::repository::{ModelDefaults, Repository};
use crate::serving::ServingLimits;

/// A serving core without models.
fn serving() -> Serving {
    let (audit, _) = AuditSink::channel();
    let runtimes = Runtimes::new("runtimes".into());
    let defaults = ModelDefaults {
        max_queue_size: 1,
        timeout: Duration::from_secs(1),
        keep_alive: None,
        cache_dir: None,
        profiles: Profiles::new(None, runtimes.clone(), 1),
        measure: false,
    };
    let repository = Repository::new("models".into(), Engine::new(runtimes, vec![0], None), defaults, 1, audit.clone());
    let limits = ServingLimits {
        max_pixels: 1,
        cache_bytes: 0,
        quota: crate::repository::model_config::Limits::default(),
        batch_windows: vec![],
    };
    Serving::new(repository, audit, &limits)
}

/// A connected desk with one binding.
fn desk(statistics: &MessageStatistics) -> Desk {
    let binding = r#"{"topic": "cameras/+", "model": "m", "publish": "seen/{1}"}"#;
    let binding: BindingConfig = serde_json::from_str(binding).unwrap();
    let topics = DeviceTopics { device: "box".parse().unwrap(), group: None };
    let limits = Limits { packet: 1 << 20, memory: 1 << 20 };
    let bindings = Bindings::new(&[binding]);
    let mut desk = Desk::new(topics, &bindings, serving(), statistics.clone(), limits, Shutdown::default());
    desk.session().connected(&ConnAck {
        session_present: false,
        reason: Reason::SUCCESS,
        text: None,
        receive_maximum: 10,
        maximum_packet_size: None,
        maximum_qos: Qos::AtLeastOnce,
        retain_available: true,
        shared_subscriptions: true,
        server_keep_alive_s: None,
        session_expiry_s: None,
    });
    desk
}

/// A QoS 1 message to the binding's topic comes in.
fn receive(desk: &mut Desk, payload: &'static str) {
    let message = Message {
        topic: "cameras/door".parse().unwrap(),
        payload: payload.into(),
        qos: Qos::AtLeastOnce,
        retain: false,
        properties: Properties::default(),
    };
    let received = Received { message, packet_id: PacketId::new(7), duplicate: false, oversized: None };
    let event = desk.session().receive(Incoming::Publish(received));
    desk.take(event, Instant::now());
}

#[tokio::test]
async fn the_end_of_a_retained_message_is_acknowledged_and_asks_for_nothing() {
    let statistics = MessageStatistics::default();
    let mut desk = desk(&statistics);
    receive(&mut desk, "");
    assert!(desk.in_progress == 0 && desk.session().owed() == 0);
    let acknowledged = Outgoing::PubAck { packet_id: PacketId::new(7).unwrap(), reason: Reason::SUCCESS };
    assert_eq!(desk.next_packet(|_| 0), Some((Content::Protocol, acknowledged)));
    assert_eq!(statistics.snapshot().received, [0, 0, 0]);
    receive(&mut desk, "anything else");
    assert!(desk.in_progress == 1 && desk.session().owed() == 1);
    assert_eq!(statistics.snapshot().received.iter().sum::<u64>(), 1);
}
