use std::time::Duration;

use ledge_base::memory_budget::MemoryReservation;
use ledge_base::principal::Principal;
use ledge_engine::Runtimes;
use ledge_features::FeatureStore;
use ledge_features::config::FeaturesConfig;
use ledge_features::registry::Registry;
use ledge_identity::access_config::AccessConfig;
use ledge_isolation::{ChildSettings, ChildStarter, Isolation};
use ledge_models::repository::profile::RunProfiles;
use ledge_models::repository::{ModelDefaults, ModelFolders, Repository};
use ledge_models::scheduling::engine::InferScheduler;
use ledge_models::serving::ServingLimits;
use ledge_service::audit_event::AuditSink;

use super::*;
use crate::bindings::BindingConfig;
use crate::client::packet::{MessageProperties, MqttVersion, PacketId};
use crate::plan::SubscriptionPlanRules;

/// Processes that none is started of: there are no models.
fn no_children() -> ChildSettings {
    ChildSettings {
        starter: ChildStarter::Unavailable("there are no models".into()),
        folder: "instances".into(),
        memory_folder: None,
        memory_bytes: None,
        content_bytes: 0,
        is_yielding: false,
        is_trial: false,
    }
}

/// A serving core without models.
pub(crate) fn serving(features: FeatureStore) -> Serving {
    let audit = AuditSink::to_nowhere();
    let runtimes = Runtimes::new("runtimes".into());
    let defaults = ModelDefaults {
        max_queue_size: 1,
        timeout: Duration::from_secs(1),
        keep_alive: None,
        cache_dir: None,
        isolation: Isolation::default(),
        audit: AuditSink::to_nowhere(),
        profiles: RunProfiles::none(),
        measure: false,
        sealer: ledge_identity::sealing::Sealer::none(),
    };
    let repository = Repository::new(
        ModelFolders::new("models".into()),
        InferScheduler::new(runtimes, vec![0], None, no_children()),
        defaults,
        1,
        audit.clone(),
    );
    let limits = ServingLimits {
        max_pixels: 1,
        cache_bytes: 0,
        quota: ledge_models::repository::model_config::CallLimits::default(),
        batch_windows: vec![],
        memory_bytes: 1 << 20,
    };
    Serving::new(repository, features, audit, &limits)
}

/// A connected dispatcher with a binding of each kind.
fn dispatcher(statistics: &MqttStatistics) -> Dispatcher {
    let bindings = [
        r#"{"topic": "cameras/+", "model": "m", "publish": "seen/{1}"}"#,
        r#"{"topic": "scales/+", "model": "m", "publish": "weighed/{1}", "max_rate": 0.1}"#,
        r#"{"topic": "mixed/+", "model": "m", "publish": "a/{1}", "when": {"$.kind": "a"}, "max_rate": 0.1}"#,
        r#"{"topic": "parsed/+", "model": "m", "publish": "p/{1}", "inputs": {"x": ["$.x"]}}"#,
        r#"{"topic": "mixed/+", "name": "b", "model": "m", "publish": "b/{1}", "when": {"{1}": {"not": "meta"}}}"#,
    ];
    let bindings: Vec<BindingConfig> = bindings.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    let topics = DeviceTopics { device: "box".parse().unwrap(), group: None, has_platform: false };
    let config = MqttConfig { max_payload_bytes: 1 << 10, max_memory_bytes: 1 << 20, ..MqttConfig::default() };
    let bindings = Bindings::new(&bindings);
    let (audit, _queue) = AuditSink::channel();
    let parts = DispatcherParts {
        serving: serving(FeatureStore::without_values(&FeaturesConfig::default(), Registry::default())),
        authenticator: Authenticator::open(&AccessConfig::default(), std::path::Path::new("/nonexistent"), audit),
        statistics: statistics.clone(),
        updates: None,
        listeners: Vec::new(),
        held: HeldBytes::default(),
        shutdown: Shutdown::default(),
    };
    let rules = SubscriptionPlanRules { version: MqttVersion::V5, has_ids: true, splits_rows: true };
    let heard = ["home/status", "cameras/door"].map(|filter| filter.parse().unwrap());
    let plan = Arc::new(SubscriptionPlan::new(&topics, &bindings, &heard, rules));
    let mut dispatcher = Dispatcher::new(topics, &bindings, &config, (SessionName::Main, plan), parts);
    dispatcher.connected(&ConnAck::accepting(), Instant::now());
    sent(&mut dispatcher);
    dispatcher
}

/// Delivers a QoS 1 message.
fn receive(dispatcher: &mut Dispatcher, packet_id: u16, topic: &str, payload: &str, properties: MessageProperties) {
    let payload = payload.to_owned().into();
    let message =
        MqttMessage { topic: topic.parse().unwrap(), payload, qos: Qos::AtLeastOnce, retain: false, properties };
    let received = ReceivedMessage {
        message,
        packet_id: PacketId::new(packet_id),
        duplicate: false,
        oversized: None,
        subscription_ids: Vec::new(),
    };
    dispatcher.receive(IncomingPacket::Publish(received), Instant::now()).unwrap();
}

/// All packets that are sent now.
fn sent(dispatcher: &mut Dispatcher) -> Vec<OutgoingPacket> {
    std::iter::from_fn(|| dispatcher.next_packet(|_| 0, Instant::now())).map(|(_, packet)| packet).collect()
}

fn acknowledged(packet_id: u16, reason: ReasonCode) -> OutgoingPacket {
    OutgoingPacket::PubAck { packet_id: PacketId::new(packet_id).unwrap(), reason }
}

#[tokio::test]
async fn the_end_of_a_retained_message_is_acknowledged_and_asks_for_nothing() {
    let statistics = MqttStatistics::default();
    let mut dispatcher = dispatcher(&statistics);
    receive(&mut dispatcher, 7, "cameras/door", "", MessageProperties::default());
    assert_eq!(dispatcher.in_progress, 0);
    assert_eq!(sent(&mut dispatcher), [acknowledged(7, ReasonCode::SUCCESS)]);
    assert_eq!(statistics.snapshot().received, [0, 0, 0]);
    receive(&mut dispatcher, 7, "cameras/door", "anything else", MessageProperties::default());
    assert_eq!((dispatcher.in_progress, sent(&mut dispatcher).len()), (1, 0));
    assert_eq!(statistics.snapshot().received.iter().sum::<u64>(), 1);
}

#[tokio::test]
async fn a_part_hears_its_topic_and_so_does_a_binding() {
    let statistics = MqttStatistics::default();
    let mut dispatcher = dispatcher(&statistics);
    let (messages, mut heard) = tokio::sync::mpsc::channel(1);
    for filter in ["home/status", "cameras/door"] {
        dispatcher.listeners.push(TopicListener { filter: filter.parse().unwrap(), messages: messages.clone() });
    }
    receive(&mut dispatcher, 1, "home/status", "online", MessageProperties::default());
    // There is no room for a second one: it is settled all the same.
    receive(&mut dispatcher, 2, "home/status", "offline", MessageProperties::default());
    assert_eq!(sent(&mut dispatcher), [1, 2].map(|packet_id| acknowledged(packet_id, ReasonCode::SUCCESS)));
    assert!(heard.try_recv().is_ok_and(|message| message == "online") && heard.try_recv().is_err());
    assert_eq!(dispatcher.in_progress, 0);

    receive(&mut dispatcher, 3, "cameras/door", "a picture", MessageProperties::default());
    assert!(heard.try_recv().is_ok());
    assert_eq!(dispatcher.in_progress, 1);
}

#[tokio::test]
async fn a_delivery_is_for_the_bindings_of_the_subscriptions_that_it_names() {
    let statistics = MqttStatistics::default();
    let mut dispatcher = dispatcher(&statistics);
    let plan = dispatcher.plan.clone();
    let id = |filter: &str| {
        let planned = plan.iter().find(|planned| planned.subscription.filter.as_str() == filter).unwrap();
        planned.subscription.id.unwrap()
    };
    let mut deliver = |packet_id: u16, subscription_ids: Vec<_>| {
        let message = MqttMessage {
            topic: "cameras/door".parse().unwrap(),
            payload: "a picture".into(),
            qos: Qos::AtLeastOnce,
            retain: false,
            properties: MessageProperties::default(),
        };
        let packet_id = PacketId::new(packet_id);
        let received = ReceivedMessage { message, packet_id, duplicate: false, oversized: None, subscription_ids };
        let before = statistics.snapshot().received[2];
        dispatcher.receive(IncomingPacket::Publish(received), Instant::now()).unwrap();
        statistics.snapshot().received[2] - before
    };
    // A copy for each subscription, as from mosquitto; and one for all, as from others.
    assert_eq!(deliver(1, vec![id("cameras/door")]), 0);
    assert_eq!(deliver(2, vec![id("cameras/+")]), 1);
    assert_eq!(deliver(3, vec![id("cameras/door"), id("cameras/+")]), 1);
    // By a filter of an earlier configuration, which is not its own, or by one without an identifier.
    assert_eq!(deliver(4, vec![id("scales/+")]), 0);
    assert_eq!(deliver(5, vec![crate::client::packet::SubscriptionId::MIN]), 0);
    assert_eq!(deliver(6, Vec::new()), 1);
}

#[tokio::test]
async fn messages_of_parts_leave_room_for_answers() {
    let mut dispatcher = dispatcher(&MqttStatistics::default());
    let message = |number: usize| MqttMessage {
        topic: format!("own/{number}").parse().unwrap(),
        payload: vec![0; 8000].into(),
        qos: Qos::AtLeastOnce,
        retain: true,
        properties: MessageProperties::default(),
    };
    let taken = (0..1000).take_while(|number| {
        let takes = dispatcher.takes_publications();
        if takes {
            dispatcher.publish(message(*number), EgressContent::Answer);
        }
        takes
    });
    // Half of a mebibyte of memory, with the overhead of each message.
    let count = taken.count();
    assert!((60..=65).contains(&count), "{count}");
    dispatcher.close();
    assert!(!dispatcher.takes_publications());
}

#[tokio::test]
async fn a_message_that_is_not_meant_is_acknowledged_and_counted_and_uses_no_rate() {
    let statistics = MqttStatistics::default();
    let mut dispatcher = dispatcher(&statistics);
    let figures = || (statistics.snapshot().skipped, statistics.snapshot().replaced, statistics.snapshot().answered);
    // Excluded by its topic for one binding, and by its content, or as no JSON, for the other one.
    for (packet_id, payload) in [(1, r#"{"kind": "b"}"#), (2, "online"), (3, "[]"), (4, "\u{0}")] {
        receive(&mut dispatcher, packet_id, "mixed/meta", payload, MessageProperties::default());
        assert_eq!(sent(&mut dispatcher), [acknowledged(packet_id, ReasonCode::SUCCESS)]);
    }
    assert_eq!((figures(), dispatcher.in_progress), ((8, 0, [0; 4]), 0));
    // The rate of the topic is whole: the first message that is meant runs.
    receive(&mut dispatcher, 5, "mixed/meta", r#"{"kind": "a"}"#, MessageProperties::default());
    assert_eq!((figures(), dispatcher.in_progress), ((9, 0, [0; 4]), 1));
    // An unread message is excluded only by its topic.
    let all = dispatcher.held.hold(dispatcher.limits.memory_bytes, None);
    receive(&mut dispatcher, 6, "mixed/meta", r#"{"kind": "b"}"#, MessageProperties::default());
    assert_eq!(figures(), (10, 0, [0, 0, 1, 0]));
    drop(all);
}

#[tokio::test]
async fn what_a_rate_limit_keeps_holds_no_other_acknowledgement_up() {
    let statistics = MqttStatistics::default();
    let mut dispatcher = dispatcher(&statistics);
    for packet_id in 1..=3 {
        receive(&mut dispatcher, packet_id, "scales/1", "{}", MessageProperties::default());
    }
    let all = [1, 2, 3].map(|packet_id| acknowledged(packet_id, ReasonCode::SUCCESS));
    assert_eq!(sent(&mut dispatcher), all);
    assert_eq!((dispatcher.in_progress, statistics.snapshot().replaced), (1, 1));
    assert!(dispatcher.held.get() > 0, "what is kept counts");
}

#[tokio::test]
async fn what_rate_limits_keep_leaves_half_of_the_memory_to_calls() {
    let statistics = MqttStatistics::default();
    let mut dispatcher = dispatcher(&statistics);
    let payload = "x".repeat(1000);
    for scale in 0..2000_u16 {
        for _ in 0..2 {
            receive(&mut dispatcher, scale + 1, &format!("scales/{scale}"), &payload, MessageProperties::default());
            sent(&mut dispatcher);
        }
    }
    assert!(dispatcher.held.get() <= dispatcher.limits.memory_bytes / 2 + 1000, "{}", dispatcher.held.get());
    assert!(dispatcher.free_memory() > 0 && statistics.snapshot().replaced > 0);
}

#[tokio::test]
async fn a_response_topic_outside_the_list_is_not_answered() {
    let statistics = MqttStatistics::default();
    let mut dispatcher = dispatcher(&statistics);
    dispatcher.response_topics = vec!["tills/#".parse().unwrap()];
    let to = |topic: &str| MessageProperties { response_topic: Some(topic.into()), ..MessageProperties::default() };
    receive(&mut dispatcher, 1, "ledge/v1/box/infer/m", "{}", to("doors/1/open"));
    assert_eq!((dispatcher.in_progress, statistics.snapshot().unanswered), (0, [1, 0, 0]));
    for (packet_id, properties) in
        [(2, to("tills/1")), (3, to("ledge/v1/box/result/m")), (4, MessageProperties::default())]
    {
        receive(&mut dispatcher, packet_id, "ledge/v1/box/infer/m", "{}", properties);
    }
    assert_eq!(dispatcher.in_progress, 3);
}

#[tokio::test]
async fn an_answer_of_another_box_is_no_message_of_a_device() {
    let statistics = MqttStatistics::default();
    let mut dispatcher = dispatcher(&statistics);
    let answer = MessageProperties { user: vec![("status".into(), "200".into())], ..MessageProperties::default() };
    receive(&mut dispatcher, 7, "cameras/door", "{}", answer);
    assert_eq!((dispatcher.in_progress, statistics.snapshot().unanswered), (0, [1, 0, 0]));
    assert_eq!(sent(&mut dispatcher), [acknowledged(7, ReasonCode::IMPLEMENTATION_SPECIFIC)]);
}

#[tokio::test]
async fn a_dispatcher_without_memory_lets_messages_go_by_and_answers_429() {
    let statistics = MqttStatistics::default();
    let mut dispatcher = dispatcher(&statistics);
    let all = dispatcher.held.hold(dispatcher.limits.memory_bytes, None);
    assert_eq!(dispatcher.free_memory(), 0);
    receive(&mut dispatcher, 7, "ledge/v1/box/infer/m", "{}", MessageProperties::default());
    assert_eq!(dispatcher.in_progress, 0);
    let answers = sent(&mut dispatcher);
    let [OutgoingPacket::Publish { message, .. }] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!(answer::status(message), Some(429));
    drop(all);
    receive(&mut dispatcher, 8, "ledge/v1/box/infer/m", "{}", MessageProperties::default());
    assert_eq!(dispatcher.in_progress, 1);
}

#[tokio::test]
async fn a_message_that_cannot_be_used_is_settled_and_the_connection_goes_on() {
    let statistics = MqttStatistics::default();
    let mut dispatcher = dispatcher(&statistics);
    let packet = IncomingPacket::Unusable { packet_id: PacketId::new(7), reason: "its topic is not UTF-8".into() };
    dispatcher.receive(packet, Instant::now()).unwrap();
    assert_eq!(sent(&mut dispatcher), [acknowledged(7, ReasonCode::IMPLEMENTATION_SPECIFIC)]);
    assert_eq!(statistics.snapshot().unanswered, [0, 1, 0]);
}

#[test]
fn the_report_of_a_box_replaces_the_one_that_was_not_sent() {
    let statistics = MqttStatistics::default();
    let mut dispatcher = dispatcher(&statistics);
    dispatcher.disconnected();
    for payload in ["old", "new"] {
        let message = MqttMessage {
            topic: "ledge/v1/box/reported".parse().unwrap(),
            payload: payload.into(),
            qos: Qos::AtLeastOnce,
            retain: true,
            properties: MessageProperties::default(),
        };
        dispatcher.publish(message, EgressContent::Report);
    }
    assert_eq!(dispatcher.session.outbox_messages(), 1);
}

#[tokio::test]
async fn a_hint_has_the_platform_looked_at_whatever_it_says() {
    let statistics = MqttStatistics::default();
    let (updates, mut inbox) = ledge_updates::Updates::channel(Vec::new());
    let mut dispatcher = dispatcher(&statistics);
    dispatcher.topics.has_platform = true;
    dispatcher.updates = Some(updates);
    let topic = "ledge/v1/box/desired";
    receive(&mut dispatcher, 1, topic, "{\"anything\": [", MessageProperties::default());
    assert!(inbox.checks.try_recv().is_ok());
    receive(&mut dispatcher, 2, topic, "", MessageProperties::default());
    receive(&mut dispatcher, 3, topic, &"x".repeat(HINT_MAX_BYTES + 1), MessageProperties::default());
    receive(&mut dispatcher, 4, "ledge/v1/other/desired", "now", MessageProperties::default());
    assert!(inbox.checks.try_recv().is_err());
    assert_eq!(sent(&mut dispatcher).len(), 4, "each of them is acknowledged");
    assert_eq!(dispatcher.in_progress, 0);
}

/// Memory of other callers: all there is.
fn take_all(dispatcher: &Dispatcher) -> MemoryReservation {
    dispatcher.serving.memory().account(Principal::Local).force_reserve(1 << 20)
}

#[tokio::test]
async fn a_request_for_which_other_callers_leave_no_memory_is_answered_with_503() {
    let mut dispatcher = dispatcher(&MqttStatistics::default());
    dispatcher.limits.payload_bytes = 1 << 20;
    let all = take_all(&dispatcher);
    receive(&mut dispatcher, 7, "ledge/v1/box/infer/m", &" ".repeat(20_000), MessageProperties::default());
    let finished = dispatcher.finished().await;
    dispatcher.finish(finished, Instant::now());
    let packets = sent(&mut dispatcher);
    let [OutgoingPacket::Publish { message, .. }] = &packets[..] else { panic!("{packets:?}") };
    assert_eq!((answer::status(message), message.properties.user("retry-after")), (Some(503), Some("1")));
    drop(all);
    assert_eq!(dispatcher.serving.memory().used(), 0);
}

#[tokio::test]
async fn a_message_that_the_broker_keeps_waits_for_memory_and_another_one_fails() {
    let mut dispatcher = dispatcher(&MqttStatistics::default());
    dispatcher.limits.payload_bytes = 1 << 20;
    let payload = format!("{{\"x\": [{}0]}}{}", "0, ".repeat(2_000), " ".repeat(20_000));
    let all = take_all(&dispatcher);
    receive(&mut dispatcher, 7, "parsed/1", &payload, MessageProperties::default());
    tokio::task::yield_now().await;
    tokio::select! {
        biased;
        finished = dispatcher.finished() => panic!("it did not wait: {finished:?}"),
        () = std::future::ready(()) => assert!(sent(&mut dispatcher).is_empty()),
    }
    drop(all);
    let finished = dispatcher.finished().await;
    assert_eq!(finished.failed.as_ref().map(|(_, failure)| failure.message.contains("memory")), Some(false));
    dispatcher.finish(finished, Instant::now());
    assert_eq!(sent(&mut dispatcher), [acknowledged(7, ReasonCode::SUCCESS)]);

    let all = take_all(&dispatcher);
    let message = MqttMessage {
        topic: "parsed/1".parse().unwrap(),
        payload: payload.into(),
        qos: Qos::AtMostOnce,
        retain: false,
        properties: MessageProperties::default(),
    };
    let received =
        ReceivedMessage { message, packet_id: None, duplicate: false, oversized: None, subscription_ids: Vec::new() };
    dispatcher.receive(IncomingPacket::Publish(received), Instant::now()).unwrap();
    assert_eq!(dispatcher.in_progress, 0, "it would be lost anyway");
    drop(all);
}
