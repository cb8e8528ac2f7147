use std::collections::BTreeSet;

use ledge_test_support::toml_layouts::{choices, leaves, set, spoil, write};
use proptest::prelude::*;
use toml::{Table, Value};

use super::*;

/// The feature views of [`settings`].
const FEATURE_VIEWS: &str = r#"
    entity = [{ name = "machine", join_key = "machine_id", value_type = "String" }]
    [[feature_view]]
    name = "vibration"
    entities = ["machine"]
    schema = [{ name = "rms", dtype = "Float32" }, { name = "peak", dtype = "Float32", optional = true }]
"#;

/// A configuration with entries in every section and without a mistake.
const VALID_SETTINGS: &str = r#"
    [http]
    listen = ["127.0.0.1:0", "unix:ledge.sock", "https://127.0.0.1:1"]
    [http.tls]
    certificate_file = "c.pem"
    key_file = "k.pem"
    client_ca_file = "ca.pem"
    client_certificates = "optional"
    [[access.users]]
    user = "root"
    roles = ["admin"]
    models = ["comfort", "vision"]
    [[access.certificates]]
    name = "till"
    roles = ["infer", "viewer"]
    max_rate = 2.5
    [access.mqtt]
    roles = ["infer", "feature-writer"]
    [egress]
    residency = ["eu"]
    [[egress.allow]]
    host = "broker.example:8883"
    region = "eu"
    [[egress.allow]]
    host = "log.example:6514"
    region = "eu"
    send = ["answers"]
    [[egress.allow]]
    host = "other.example:1"
    region = "eu"
    [audit.syslog]
    to = "log.example:6514"
    [device]
    id = "box-7"
    group = "shop"
    [mqtt]
    broker = "mqtts://broker.example"
    user = "box"
    password_file = "p"
    response_topics = ["tills/#"]
    [[mqtt.bindings]]
    name = "door"
    topic = "cameras/+/snapshot"
    model = "vision"
    publish = "vision/{1}/label"
    select = "$.labels[0].label"
    max_rate = 2.0
    timeout_ms = 100
    priority = "batch"
    retain = true
    [[mqtt.bindings]]
    topic = "rooms/+/climate"
    model = "comfort"
    publish = "rooms/{1}/comfort"
    shared = true
    qos = 0
    [mqtt.bindings.inputs]
    features = ["$.temp", "$.humidity"]
    [[mqtt.bindings]]
    name = "machines"
    topic = "shop/+/vibration"
    feature_view = "vibration"
    event_timestamp = "$.at"
    entities = { machine_id = "{1}" }
    features = { rms = "$.v.rms", peak = "$.v.peak" }
    [[camera]]
    name = "yard"
    labels = ["person"]
    publish_pictures = true
    [home_assistant]
    enable = true
"#;

/// Every key, with its default where [`VALID_SETTINGS`] does not set it.
fn settings() -> Table {
    let mut table = Table::try_from(Config::default()).unwrap();
    overlay(&mut table, VALID_SETTINGS.parse().unwrap());
    table
}

/// The mistakes in a file.
fn mistakes_in(text: &str) -> Vec<Mistake> {
    let root = Root::new(text);
    let views = root.0.path().join("feature_views.d");
    std::fs::create_dir(&views).unwrap();
    ledge_base::durable::replace(&views.join("views.toml"), FEATURE_VIEWS.as_bytes()).unwrap();
    root.sources(&[], &[]).check().mistakes
}

fn places(mistakes: &[Mistake]) -> BTreeSet<(Option<usize>, String)> {
    mistakes.iter().map(|mistake| (mistake.line, mistake.key.clone())).collect()
}

/// A value of the right type that is a mistake, and the keys that make it one.
struct WrongValue {
    key: &'static str,
    value: Value,
    because: &'static [&'static str],
}

fn wrong_values() -> Vec<WrongValue> {
    let wrong = |key, value: &str, because| WrongValue { key, value: Value::String(value.to_owned()), because };
    vec![
        wrong("http.listen[0]", "0.0.0.0:80", &[]),
        wrong("device.group", "box-7", &["device.id"]),
        wrong("access.mqtt.roles[0]", "viewer", &[]),
        wrong("egress.allow[2].region", "mars", &["egress.residency"]),
        wrong("mqtt.bindings[0].name", "", &[]),
        wrong("mqtt.bindings[1].publish", "rooms/{9}", &["mqtt.bindings[1].topic"]),
        wrong(
            "mqtt.bindings[2].features.pick",
            "$.v.pick",
            &[
                "mqtt.bindings[2].feature_view",
                "features.views",
                "mqtt.bindings[2].features.rms",
                "mqtt.bindings[2].features.peak",
            ],
        ),
        wrong(
            "mqtt.bindings[2].entities.machine",
            "{1}",
            &["mqtt.bindings[2].feature_view", "features.views", "mqtt.bindings[2].entities.machine_id"],
        ),
    ]
}

#[test]
fn the_settings_of_these_tests_have_no_mistake() {
    assert_eq!(mistakes_in(&settings().to_string()), []);
    assert!(leaves(&settings()).len() > 100);
}

#[test]
fn a_value_of_the_wrong_type_is_one_mistake_whatever_hangs_on_it() {
    let mut wrong = Vec::new();
    for key in leaves(&settings()) {
        let mut table = settings();
        spoil(&mut table, &key);
        let written = write(&table, &[1, 2, 0]);
        let found = mistakes_in(&written.text);
        if places(&found) != [(written.lines.get(&key).copied(), key.clone())].into() {
            wrong.push((key, found));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_mistake_of_a_value_hides_one_of_a_type_or_the_other_way_round() {
    for WrongValue { key, value, .. } in wrong_values() {
        let mut table = settings();
        set(&mut table, key, value);
        spoil(&mut table, "log.level");
        spoil(&mut table, "mqtt.bindings[0].qos");
        let written = write(&table, &[0]);
        let lines = [key, "log.level", "mqtt.bindings[0].qos"];
        let expected: BTreeSet<_> = lines.map(|key| (written.lines.get(key).copied(), key.to_owned())).into();
        let found = mistakes_in(&written.text);
        let found: BTreeSet<_> = places(&found).into_iter().filter(|(_, key)| lines.contains(&key.as_str())).collect();
        assert_eq!(found, expected, "{key}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_mistake_is_reported_with_its_line_whatever_the_layout(
        choices in choices(),
        spoilt in proptest::collection::vec(any::<prop::sample::Index>(), 0..20),
        wrong in proptest::collection::vec(any::<prop::sample::Index>(), 0..5),
    ) {
        let mut table = settings();
        let (mut expected, mut kept) = (BTreeSet::new(), BTreeSet::new());
        for index in &wrong {
            let WrongValue { key, value, because } = &wrong_values()[index.index(wrong_values().len())];
            set(&mut table, key, value.clone());
            expected.insert((*key).to_owned());
            kept.extend(because.iter().map(ToString::to_string));
        }
        let all = leaves(&table);
        for index in &spoilt {
            let key = &all[index.index(all.len())];
            let is_in = |one: &str, other: &str| {
                one.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
            };
            if !expected.iter().chain(&kept).any(|other| is_in(key, other) || is_in(other, key)) {
                spoil(&mut table, key);
                expected.insert(key.clone());
            }
        }
        let written = write(&table, &choices);
        let found = mistakes_in(&written.text);
        let expected: BTreeSet<_> = expected.into_iter().map(|key| (written.lines.get(&key).copied(), key)).collect();
        // A mistake of a value may have several consequences in words, but none anywhere else.
        prop_assert_eq!(places(&found), expected, "{:#?} in {}", found, written.text);
    }
}
