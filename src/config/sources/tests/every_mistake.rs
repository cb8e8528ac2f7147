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
fn mistakes_in(text: &str) -> Vec<ConfigMistake> {
    let root = Root::new(text);
    let views = root.0.path().join("feature_views.d");
    std::fs::create_dir(&views).unwrap();
    ledge_base::durable::replace(&views.join("views.toml"), FEATURE_VIEWS.as_bytes()).unwrap();
    root.sources(&[], &[]).check().mistakes
}

fn places(mistakes: &[ConfigMistake]) -> BTreeSet<(Option<usize>, String)> {
    mistakes.iter().map(|mistake| (mistake.line, mistake.key.clone())).collect()
}

/// Values of the right type that are mistakes of their section.
const WRONG_VALUES: [(&str, &str); 5] = [
    ("http.listen[0]", "0.0.0.0:80"),
    ("access.mqtt.roles[0]", "viewer"),
    ("egress.allow[2].region", "mars"),
    ("mqtt.bindings[0].name", ""),
    ("mqtt.bindings[1].publish", "rooms/{9}"),
];

/// Tables that know all their keys.
const TABLES: [&str; 9] = [
    "http",
    "http.tls",
    "access.users[0]",
    "egress.allow[1]",
    "audit.syslog",
    "mqtt",
    "mqtt.bindings[1]",
    "camera[0]",
    "log",
];

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
fn a_section_is_compared_with_others_once_all_can_be_read() {
    let mut table = settings();
    set(&mut table, "device.group", Value::String("box-7".into()));
    set(&mut table, "mqtt.bindings[2].features.pick", Value::String("$.v.pick".into()));
    let keys =
        |table: &Table| places(&mistakes_in(&table.to_string())).into_iter().map(|(_, key)| key).collect::<Vec<_>>();
    assert_eq!(keys(&table), ["device.group", "mqtt.bindings[2].features.pick"]);
    spoil(&mut table, "log.level");
    assert_eq!(keys(&table), ["log.level"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn unknown_keys_wrong_values_and_problems_are_reported_with_their_lines_whatever_the_layout(
        choices in choices(),
        wrong in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
        spoilt in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
        unknown in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut table = settings();
        let all = leaves(&table);
        let mut expected = BTreeSet::new();
        for index in &wrong {
            let (key, value) = WRONG_VALUES[index.index(WRONG_VALUES.len())];
            set(&mut table, key, Value::String(value.to_owned()));
            expected.insert(key.to_owned());
        }
        let sections: BTreeSet<_> = expected.iter().map(|key| toml_check::section(key).to_owned()).collect();
        for index in &spoilt {
            let key = &all[index.index(all.len())];
            let is_in = |one: &str, other: &str| {
                one.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
            };
            // The problems of a section are reported once it has no wrong value.
            if !sections.contains(toml_check::section(key))
                && !expected.iter().any(|other| is_in(key, other) || is_in(other, key))
            {
                spoil(&mut table, key);
                expected.insert(key.clone());
            }
        }
        for index in &unknown {
            let key = format!("{}.colour", TABLES[index.index(TABLES.len())]);
            set(&mut table, &key, Value::Integer(1));
            expected.insert(key);
        }
        let written = write(&table, &choices);
        let found = mistakes_in(&written.text);
        let expected: BTreeSet<_> = expected.into_iter().map(|key| (written.lines.get(&key).copied(), key)).collect();
        // A mistake of a value may have several consequences in words, but none anywhere else.
        prop_assert_eq!(places(&found), expected, "{:#?} in {}", found, written.text);
    }
}
