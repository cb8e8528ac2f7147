use std::time::Duration;

use ledge_engine::Runtimes;
use ledge_features::FeatureStore;
use ledge_features::config::FeaturesConfig;
use ledge_features::registry::Registry;
use ledge_identity::access_config::AccessConfig;
use ledge_models::repository::profile::Profiles;
use ledge_models::repository::{ModelDefaults, Repository, Sources};
use ledge_models::scheduling::engine::Engine;
use ledge_models::serving::ServingLimits;
use ledge_service::audit_event::AuditSink;

use super::*;
use crate::bindings::BindingConfig;
use crate::client::packet::{PacketId, Properties};

/// A serving core without models.
pub(crate) fn serving(features: FeatureStore) -> Serving {
    let audit = AuditSink::to_nowhere();
    let runtimes = Runtimes::new("runtimes".into());
    let defaults = ModelDefaults {
        max_queue_size: 1,
        timeout: Duration::from_secs(1),
        keep_alive: None,
        cache_dir: None,
        profiles: Profiles::new(None, runtimes.clone(), 1),
        measure: false,
        sealer: ledge_identity::sealing::Sealer::none(),
    };
    let repository = Repository::new(
        Sources::new("models".into()),
        Engine::new(runtimes, vec![0], None),
        defaults,
        1,
        audit.clone(),
    );
    let limits = ServingLimits {
        max_pixels: 1,
        cache_bytes: 0,
        quota: ledge_models::repository::model_config::Limits::default(),
        batch_windows: vec![],
    };
    Serving::new(repository, features, audit, &limits)
}

/// A connected desk with a binding of each kind.
fn desk(statistics: &MessageStatistics) -> Desk {
    let bindings = [
        r#"{"topic": "cameras/+", "model": "m", "publish": "seen/{1}"}"#,
        r#"{"topic": "scales/+", "model": "m", "publish": "weighed/{1}", "max_rate": 0.1}"#,
    ];
    let bindings: Vec<BindingConfig> = bindings.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    let topics = DeviceTopics { device: "box".parse().unwrap(), group: None, looked_after: false };
    let config = MqttConfig { max_payload_bytes: 1 << 10, max_memory_bytes: 1 << 20, ..MqttConfig::default() };
    let bindings = Bindings::new(&bindings);
    let (audit, _queue) = AuditSink::channel();
    let parts = Parts {
        serving: serving(FeatureStore::without_values(&FeaturesConfig::default(), Registry::default())),
        authenticator: Authenticator::open(&AccessConfig::default(), std::path::Path::new("/nonexistent"), audit),
        statistics: statistics.clone(),
        updates: None,
        shutdown: Shutdown::default(),
    };
    let mut desk = Desk::new(topics, &bindings, &config, parts);
    desk.connected(&ConnAck::accepting(), Instant::now());
    sent(&mut desk);
    desk
}

/// A QoS 1 message comes in.
fn receive(desk: &mut Desk, packet_id: u16, topic: &str, payload: &str, properties: Properties) {
    let payload = payload.to_owned().into();
    let message = Message { topic: topic.parse().unwrap(), payload, qos: Qos::AtLeastOnce, retain: false, properties };
    let received = Received { message, packet_id: PacketId::new(packet_id), duplicate: false, oversized: None };
    desk.receive(Incoming::Publish(received), Instant::now()).unwrap();
}

/// Everything that is to be sent now.
fn sent(desk: &mut Desk) -> Vec<Outgoing> {
    std::iter::from_fn(|| desk.next_packet(|_| 0, Instant::now())).map(|(_, packet)| packet).collect()
}

fn acknowledged(packet_id: u16, reason: Reason) -> Outgoing {
    Outgoing::PubAck { packet_id: PacketId::new(packet_id).unwrap(), reason }
}

#[tokio::test]
async fn the_end_of_a_retained_message_is_acknowledged_and_asks_for_nothing() {
    let statistics = MessageStatistics::default();
    let mut desk = desk(&statistics);
    receive(&mut desk, 7, "cameras/door", "", Properties::default());
    assert_eq!(desk.in_progress, 0);
    assert_eq!(sent(&mut desk), [acknowledged(7, Reason::SUCCESS)]);
    assert_eq!(statistics.snapshot().received, [0, 0, 0]);
    receive(&mut desk, 7, "cameras/door", "anything else", Properties::default());
    assert_eq!((desk.in_progress, sent(&mut desk).len()), (1, 0));
    assert_eq!(statistics.snapshot().received.iter().sum::<u64>(), 1);
}

#[tokio::test]
async fn what_a_rate_limit_keeps_holds_no_other_acknowledgement_up() {
    let statistics = MessageStatistics::default();
    let mut desk = desk(&statistics);
    for packet_id in 1..=3 {
        receive(&mut desk, packet_id, "scales/1", "{}", Properties::default());
    }
    let all = [1, 2, 3].map(|packet_id| acknowledged(packet_id, Reason::SUCCESS));
    assert_eq!(sent(&mut desk), all);
    assert_eq!((desk.in_progress, statistics.snapshot().replaced), (1, 1));
    assert!(desk.held.get() > 0, "what is kept counts");
}

#[tokio::test]
async fn what_rate_limits_keep_leaves_half_of_the_memory_to_calls() {
    let statistics = MessageStatistics::default();
    let mut desk = desk(&statistics);
    let payload = "x".repeat(1000);
    for scale in 0..2000_u16 {
        for _ in 0..2 {
            receive(&mut desk, scale + 1, &format!("scales/{scale}"), &payload, Properties::default());
            sent(&mut desk);
        }
    }
    assert!(desk.held.get() <= desk.limits.memory / 2 + 1000, "{}", desk.held.get());
    assert!(desk.room() > 0 && statistics.snapshot().replaced > 0);
}

#[tokio::test]
async fn a_response_topic_outside_the_list_is_not_answered() {
    let statistics = MessageStatistics::default();
    let mut desk = desk(&statistics);
    desk.response_topics = vec!["tills/#".parse().unwrap()];
    let to = |topic: &str| Properties { response_topic: Some(topic.into()), ..Properties::default() };
    receive(&mut desk, 1, "ledge/v1/box/infer/m", "{}", to("doors/1/open"));
    assert_eq!((desk.in_progress, statistics.snapshot().unanswered), (0, [1, 0, 0]));
    for (packet_id, properties) in [(2, to("tills/1")), (3, to("ledge/v1/box/result/m")), (4, Properties::default())] {
        receive(&mut desk, packet_id, "ledge/v1/box/infer/m", "{}", properties);
    }
    assert_eq!(desk.in_progress, 3);
}

#[tokio::test]
async fn an_answer_of_another_box_is_no_message_of_a_device() {
    let statistics = MessageStatistics::default();
    let mut desk = desk(&statistics);
    let answer = Properties { user: vec![("status".into(), "200".into())], ..Properties::default() };
    receive(&mut desk, 7, "cameras/door", "{}", answer);
    assert_eq!((desk.in_progress, statistics.snapshot().unanswered), (0, [1, 0, 0]));
    assert_eq!(sent(&mut desk), [acknowledged(7, Reason::IMPLEMENTATION_SPECIFIC)]);
}

#[tokio::test]
async fn a_desk_without_room_lets_messages_go_by_and_answers_429() {
    let statistics = MessageStatistics::default();
    let mut desk = desk(&statistics);
    let all = desk.held.hold(desk.limits.memory);
    assert_eq!(desk.room(), 0);
    receive(&mut desk, 7, "ledge/v1/box/infer/m", "{}", Properties::default());
    assert_eq!(desk.in_progress, 0);
    let answers = sent(&mut desk);
    let [Outgoing::Publish { message, .. }] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!(answer::status(message), Some(429));
    drop(all);
    receive(&mut desk, 8, "ledge/v1/box/infer/m", "{}", Properties::default());
    assert_eq!(desk.in_progress, 1);
}

#[tokio::test]
async fn a_message_that_cannot_be_used_is_settled_and_the_connection_goes_on() {
    let statistics = MessageStatistics::default();
    let mut desk = desk(&statistics);
    let packet = Incoming::Unusable { packet_id: PacketId::new(7), reason: "its topic is not UTF-8".into() };
    desk.receive(packet, Instant::now()).unwrap();
    assert_eq!(sent(&mut desk), [acknowledged(7, Reason::IMPLEMENTATION_SPECIFIC)]);
    assert_eq!(statistics.snapshot().unanswered, [0, 1, 0]);
}

#[test]
fn the_report_of_a_box_replaces_the_one_that_was_not_sent() {
    let statistics = MessageStatistics::default();
    let mut desk = desk(&statistics);
    desk.disconnected();
    for payload in ["old", "new"] {
        let message = Message {
            topic: "ledge/v1/box/reported".parse().unwrap(),
            payload: payload.into(),
            qos: Qos::AtLeastOnce,
            retain: true,
            properties: Properties::default(),
        };
        desk.publish(message, Content::Report);
    }
    assert_eq!(desk.session.unsent(), 1);
}

#[tokio::test]
async fn a_hint_has_the_platform_looked_at_whatever_it_says() {
    let statistics = MessageStatistics::default();
    let (updates, mut inbox) = ledge_updates::Updates::channel(Vec::new());
    let mut desk = desk(&statistics);
    desk.topics.looked_after = true;
    desk.updates = Some(updates);
    let topic = "ledge/v1/box/desired";
    receive(&mut desk, 1, topic, "{\"anything\": [", Properties::default());
    assert!(inbox.looks.try_recv().is_ok());
    receive(&mut desk, 2, topic, "", Properties::default());
    receive(&mut desk, 3, topic, &"x".repeat(MAX_HINT + 1), Properties::default());
    receive(&mut desk, 4, "ledge/v1/other/desired", "now", Properties::default());
    assert!(inbox.looks.try_recv().is_err());
    assert_eq!(sent(&mut desk).len(), 4, "each of them is acknowledged");
    assert_eq!(desk.in_progress, 0);
}
