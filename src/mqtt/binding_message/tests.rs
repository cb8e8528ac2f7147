use std::thread;

use ledge_features::FeatureStore;
use ledge_features::config::FeaturesConfig;
use ledge_identity::sealing::Sealer;
use ledge_service::audit_event::AuditSink;
use ledge_service::shutdown::Shutdown;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use super::*;
use crate::bindings::{BindingConfig, Bindings};
use crate::client::packet::MessageProperties;
use crate::dispatcher::tests::serving;
use crate::held_bytes::HeldBytes;
use crate::model_wait::ModelWait;

#[tokio::test]
async fn only_large_json_is_read_on_another_thread() {
    let here = thread::current().id();
    assert_eq!(parse(INLINE_JSON_BYTES_MAX, || thread::current().id()).await, here);
    assert_ne!(parse(INLINE_JSON_BYTES_MAX + 1, || thread::current().id()).await, here);
}

const VIEWS: &str = "
[[entity]]
name = 'machine'
join_key = 'machine_id'
[[entity]]
name = 'line'
value_type = 'Int64'
[[feature_view]]
name = 'stats'
entities = ['machine']
source = { name = 'push', timestamp_field = 'at' }
schema = [{ name = 'turns', dtype = 'Int32' }, { name = 'heat', dtype = 'Float32', optional = true }]
[[feature_view]]
name = 'tags'
entities = ['machine', 'line']
source = { name = 'push', timestamp_field = 'at' }
schema = [{ name = 'names', dtype = 'Array(String)', optional = true }, { name = 'on', dtype = 'Bool', optional = true }]
";

/// Valid and invalid bindings, including ones that the configuration refuses, since views change while a daemon runs.
fn bindings() -> Vec<Value> {
    let all = [
        json!({"feature_view": "stats"}),
        json!({"feature_view": "tags"}),
        json!({"push_source": "push"}),
        json!({"feature_view": "gone"}),
        json!({"feature_view": "stats", "entities": {"machine_id": "{1}"}}),
        json!({"feature_view": "stats", "entities": {"machine": "{1}"}}),
        json!({"feature_view": "tags", "entities": {"machine_id": "$.id", "line": "{1}"}}),
        json!({"feature_view": "stats", "features": {"turns": "$.v.turns", "heat": "$.heat"}}),
        json!({"feature_view": "stats", "features": {"turn": "$.turns", "heat": "$.heat"}}),
        json!({"feature_view": "stats", "features": {"heat": "$.heat"}, "event_timestamp": "$.at"}),
        json!({"feature_view": "tags", "features": {"onn": "$.on"}}),
        json!({"feature_view": "stats", "model": "gone", "publish": "answers/{1}", "publish_errors": true}),
        json!({"feature_view": "stats", "value": "turns", "entities": {"machine_id": "{1}"}}),
        json!({"feature_view": "tags", "value": "on", "entities": {"machine_id": "{1}", "line": "{1}"}}),
        json!({"feature_view": "stats", "value": "turn", "entities": {"machine_id": "{1}"}}),
        json!({"feature_view": "stats", "event_timestamp": "$.at", "event_timestamp_missing": "arrival",
            "timezone": "Europe/Berlin"}),
        json!({"model": "gone", "publish": "answers/{1}", "inputs": {"x": ["$.turns"]}, "publish_errors": true}),
    ];
    let with_topic = |mut binding: Value| {
        binding["topic"] = json!("machines/+");
        binding
    };
    all.map(with_topic).to_vec()
}

/// Messages with fields that are present or missing, spelt right or wrong, of the right type or another.
fn messages() -> impl Strategy<Value = Value> {
    let cell = prop_oneof![
        4 => Just(json!(97)),
        2 => Just(json!(97.5)),
        1 => Just(json!("press-7")),
        1 => Just(json!(true)),
        1 => Just(Value::Null),
        1 => Just(json!(["a"])),
        1 => Just(json!({"turns": 3})),
        1 => Just(json!(1e30)),
        1 => Just(json!("2026-11-21T01:00:00Z")),
    ];
    let name = prop_oneof![
        6 => Just("machine_id"), 6 => Just("turns"), 3 => Just("heat"), 3 => Just("line"), 2 => Just("on"), 2 => Just("names"),
        2 => Just("at"), 1 => Just("turn"), 1 => Just("id"), 1 => Just("v"), 1 => Just("created"), 1 => Just("Heat"),
    ];
    let row = proptest::collection::vec((name, cell), 0..8);
    let row = row.prop_map(|cells| cells.into_iter().map(|(name, cell)| (name.to_owned(), cell)).collect::<Value>());
    let fits = row.clone().prop_map(|mut row| {
        row["machine_id"] = json!("press-7");
        row["turns"] = json!(97);
        row["line"] = json!(1);
        row
    });
    prop_oneof![
        4 => row.clone(),
        4 => fits,
        1 => proptest::collection::vec(row, 0..3).prop_map(Value::from),
        1 => Just(json!("text")),
        1 => Just(json!(97)),
        1 => Just(json!(true)),
    ]
}

/// The result of a message: the failure, the answer, and how many columns and fields were ignored.
#[derive(Debug, PartialEq)]
struct Came {
    failure: Option<(u16, String)>,
    published: Option<(String, Bytes)>,
    ignored: u64,
}

fn came(outcome: &BindingOutcome, ignored: u64) -> Came {
    let failure = outcome.failure.as_ref().map(|failure| (failure.status.as_u16(), failure.message.clone()));
    let published = outcome.message.as_ref().map(|message| (message.topic.to_string(), message.payload.clone()));
    Came { failure, published, ignored }
}

#[tokio::test]
async fn a_dry_run_reports_what_the_daemon_does_with_a_message() {
    let folder = tempfile::tempdir().unwrap();
    let config = FeaturesConfig { path: folder.path().join("features"), ..FeaturesConfig::default() };
    let store = FeatureStore::open(&config, Registry::parse(VIEWS).unwrap(), AuditSink::to_nowhere(), Sealer::none());
    store.opened().await;
    let daemon = serving(store.clone());
    let without_values = serving(FeatureStore::without_values(&config, Registry::parse(VIEWS).unwrap()));
    let pusher = FeaturePusher::new(Shutdown::default());
    let model_wait = ModelWait::new(daemon.repository().clone(), Shutdown::default());
    let device: DeviceName = "box".parse().unwrap();
    let configs = bindings();
    let configs: Vec<BindingConfig> =
        configs.iter().map(|text| serde_json::from_value(text.clone()).unwrap()).collect();
    let ignored = || {
        let views = store.statistics().unwrap().views;
        views.iter().map(|view| (view.view.clone(), view.ignored)).collect::<Vec<_>>()
    };

    let mut runner = TestRunner::deterministic();
    let (mut refused, mut taken) = (0, 0);
    for _ in 0..60 {
        let payload = messages().new_tree(&mut runner).unwrap().current().to_string();
        for binding in Bindings::new(&configs).iter() {
            let message = MqttMessage {
                topic: "machines/7".parse().unwrap(),
                payload: payload.clone().into(),
                qos: Qos::AtLeastOnce,
                retain: false,
                properties: MessageProperties::default(),
            };
            let message_of_binding = || {
                let held = HeldBytes::default().hold(0, None);
                BindingMessage::new(binding, &message, &["7"], &device, Instant::now(), held).unwrap()
            };
            let before = ignored();
            let run = message_of_binding().run(&daemon, &device, &pusher, &model_wait).await;
            // A push source counts a column that no view has once for each of its views.
            let counted = before.iter().zip(ignored()).map(|((_, before), (_, after))| after - before).max().unwrap();
            let (rows, tried) = message_of_binding().dry_run(&without_values, &device).await;
            let rows = rows.filter(|rows| !rows.is_refused);
            let told = rows.map_or(0, |rows| rows.ignored.len() + rows.unused.len());
            assert_eq!(came(&tried, told as u64), came(&run, counted), "{:?} {payload}", binding.config());
            *if run.failure.is_some() { &mut refused } else { &mut taken } += 1;
        }
    }
    assert!(refused > 50 && taken > 50, "{refused} {taken}");
    store.close();
}

#[tokio::test]
async fn a_large_message_is_judged_in_its_own_task() {
    let store = FeatureStore::without_values(&FeaturesConfig::default(), Registry::default());
    let (serving, pusher) = (serving(store), FeaturePusher::new(Shutdown::default()));
    let device: DeviceName = "box".parse().unwrap();
    let config = json!({"topic": "in", "model": "gone", "publish": "out", "when": {"$.kind": "a"}});
    let bindings = Bindings::new(&[serde_json::from_value(config).unwrap()]);
    for (kind, is_skipped) in [("a", false), ("b", true)] {
        let payload = json!({"kind": kind, "filler": "x".repeat(INLINE_JSON_BYTES_MAX)}).to_string();
        let message = MqttMessage {
            topic: "in".parse().unwrap(),
            payload: payload.into(),
            qos: Qos::AtLeastOnce,
            retain: false,
            properties: MessageProperties::default(),
        };
        assert!(!is_judged_inline(&message.payload));
        let (binding, held) = (bindings.iter().next().unwrap(), HeldBytes::default().hold(0, None));
        let message = BindingMessage::new(binding, &message, &[], &device, Instant::now(), held).unwrap();
        let model_wait = ModelWait::new(serving.repository().clone(), Shutdown::default());
        let outcome = message.run(&serving, &device, &pusher, &model_wait).await;
        assert_eq!((outcome.skipped, outcome.failure.is_none()), (is_skipped, is_skipped), "{kind}");
    }
}
