//! `config check` and `mqtt try` predict the daemon's behaviour, and a push reports the columns that it loses.

use std::process::Output;

use serde_json::{Value, json};

use crate::client::Response;
use crate::daemon::{TestDaemon, TestRoot, write};

/// Presses, and how fast they turn.
const VIEWS: &str = r#"
[[entity]]
name = "machine"
join_key = "machine_id"

[[feature_view]]
name = "turning"
entities = ["machine"]
schema = [
  { name = "turns", dtype = "Int32" },
  { name = "heat", dtype = "Float32", optional = true },
]

[[feature_view]]
name = "notes"
entities = ["machine"]
schema = [{ name = "note", dtype = "String", optional = true }]
"#;

fn root(bindings: &str) -> TestRoot {
    let root = TestRoot::new().models(&["add_sub"]).views(VIEWS);
    write(&root.folder.path().join("ledge.toml"), bindings.as_bytes());
    root
}

fn push(daemon: &TestDaemon, view: &str, df: &Value) -> Response {
    daemon.client().post_json("/write-to-online-store", &json!({"feature_view_name": view, "df": df}))
}

fn run(root: &TestRoot, arguments: &[&str]) -> Output {
    root.command(arguments).output().unwrap()
}

#[test]
fn columns_that_no_view_has_are_named_to_who_pushes_counted_and_logged() {
    let daemon = root("").start();
    let ignored = |df: &Value| {
        let answer = push(&daemon, "turning", df);
        assert_eq!((answer.status, answer.json()), (200, Value::Null), "{answer:?}");
        answer.header("x-ledge-ignored").map(str::to_owned)
    };
    // Columns that Feast's client adds to a row are no mistake.
    let whole = json!({"machine_id": ["a"], "turns": [1], "heat": [2.5], "event_timestamp": [null], "created": [null]});
    assert_eq!(ignored(&whole), None);
    assert_eq!(ignored(&json!({"machine_id": ["a"], "turns": [1], "haet": [2.5]})).as_deref(), Some("haet"));
    // A name may have any characters, but a header may not.
    let odd = json!({"machine_id": ["a"], "turns": [1], "Grad °C,\r\nx: y": [1], "x".repeat(9000): [1]});
    let told = ignored(&odd).unwrap();
    assert!(told.starts_with("Grad%20%C2%B0C%2C%0D%0Ax%3A%20y, xxx") && told.len() < 300, "{told}");
    let mut many = json!({"machine_id": ["a"], "turns": [1]});
    (0..100).for_each(|number| many[format!("c{number:02}")] = json!([null]));
    let told = ignored(&many).unwrap();
    assert!(told.starts_with("c00, c01, ") && told.ends_with("c31, and 68 more"), "{told}");

    let metrics = String::from_utf8(daemon.client().get("/metrics").body).unwrap();
    assert!(metrics.contains("ledge_feature_columns_ignored_total{feature_view=\"turning\"} 103"), "{metrics}");
    let line = daemon.wait_for_event("features.columns_ignored");
    assert_eq!((&line["feature_view"], &line["columns"]), (&json!("turning"), &json!(1)));
    assert!(!daemon.log().contains("haet"), "names are the caller's, and may be what a row is about");
}

#[test]
fn a_push_that_would_set_every_feature_to_null_is_refused_with_the_names() {
    let daemon = root("").start();
    assert_eq!(push(&daemon, "notes", &json!({"machine_id": ["a"], "note": ["kept"]})).status, 200);
    let refused = push(&daemon, "notes", &json!({"machine_id": ["a"], "notes": ["lost"]}));
    assert_eq!(refused.status, 422, "{refused:?}");
    let told =
        "no column is a feature of feature view 'notes', which has 'note'; there is 'notes', which no feature view has";
    assert_eq!(refused.json()["detail"][0]["msg"], told);
    let read = json!({"features": ["notes:note"], "entities": {"machine_id": ["a"]}});
    let answer = daemon.client().post_json("/get-online-features", &read).json();
    assert_eq!(answer["results"][1]["values"], json!(["kept"]));
    let missing = push(&daemon, "turning", &json!({"machine_id": ["a"], "turn": [1], "heat": [1]})).json();
    let told =
        "column 'turns' is missing, which feature view 'turning' needs; there is 'turn', which no feature view has";
    assert_eq!(missing["detail"][0]["msg"], told);
}

#[test]
fn a_trial_of_a_message_refuses_what_the_store_refuses() {
    let root = root(
        "[[mqtt.bindings]]\ntopic = \"press/+\"\nfeature_view = \"turning\"\nentities = { machine_id = \"{1}\" }\n",
    );
    let messages = [
        json!({"turns": 97}),
        json!({"turns": 97.5}),
        json!({"turns": "97"}),
        json!({"turn": 97}),
        json!({"heat": 20.5}),
        json!({"turns": 97, "haet": 20.5, "id": 7}),
        json!({"turns": 97, "heat": "hot"}),
        json!({"turns": 2_147_483_648_i64}),
        json!([{"turns": 97}, {"turns": null}]),
        json!({"turns": 97, "event_timestamp": "noon"}),
        json!({"turns": 97, "event_timestamp": "2999-01-01T00:00:00Z"}),
    ];
    let file = root.folder.path().join("message");
    let tried: Vec<Value> = messages
        .iter()
        .map(|message| {
            write(&file, message.to_string().as_bytes());
            let output = run(&root, &["mqtt", "try", "press/7", file.to_str().unwrap(), "--json"]);
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(output.status.success(), report["handled"][0]["problem"].is_null(), "{report}");
            report["handled"][0].clone()
        })
        .collect();
    // An answer of another box is no message of a device, and not for a dry run either.
    write(&file, b"{\"turns\": 97}");
    let answer = ["mqtt", "try", "press/7", file.to_str().unwrap(), "--json", "--property", "status=200"];
    let report: Value = serde_json::from_slice(&run(&root, &answer).stdout).unwrap();
    assert!(report["handled"][0]["problem"].is_string(), "{report}");

    let daemon = root.start();
    for (message, tried) in messages.iter().zip(&tried) {
        let rows = message.as_array().cloned().unwrap_or_else(|| vec![message.clone()]);
        let mut df = json!({"machine_id": vec!["7"; rows.len()]});
        for name in rows.iter().flat_map(|row| row.as_object().unwrap().keys()) {
            df[name] = rows.iter().map(|row| row[name].clone()).collect();
        }
        let answer = push(&daemon, "turning", &df);
        let taken = answer.status == 200;
        assert_eq!(tried["problem"].is_null(), taken, "{message}: {tried} {answer:?}");
        assert_eq!(tried["pushes"].is_null(), !taken, "{tried}");
        if let Some(told) = answer.json().pointer("/detail/0/msg").and_then(Value::as_str) {
            // Except for the time of the clock, and fields of a message that are no column of a binding by name.
            let (told, tried) = (told.split("clock").next().unwrap(), tried["problem"].as_str().unwrap());
            assert!(tried.contains(told.split("; there is").next().unwrap()), "{tried}: {told}");
        }
    }
    assert_eq!(tried[5]["unused"], json!(["haet", "id"]), "{}", tried[5]);
}

#[test]
fn a_dry_run_checks_the_push_of_a_model_whose_values_only_the_daemon_has() {
    let root = root(
        "[[mqtt.bindings]]\ntopic = \"press/+\"\nfeature_view = \"turning\"\nentities = { machine_id = \"{1}\" }\n\
         model = \"dynamic_sum\"\npublish = \"sums/{1}\"\n",
    )
    .models(&["dynamic_sum"])
    .file("dynamic_sum/model.toml", "[[input]]\nname = \"IN\"\nfeatures = [\"turning:turns\"]\n");
    let file = root.folder.path().join("message");
    for (message, is_taken) in [(json!({"turns": 97}), true), (json!({"turns": 97.5}), false)] {
        write(&file, message.to_string().as_bytes());
        let output = run(&root, &["mqtt", "try", "press/7", file.to_str().unwrap(), "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let handled = &report["handled"][0];
        assert_eq!((output.status.success(), handled["problem"].is_null()), (is_taken, is_taken), "{report}");
        assert!(handled["not_asked"].is_string(), "{report}");
    }
}

/// The exit code and the words of `config check`.
fn checked(root: &TestRoot) -> (Option<i32>, String) {
    let output = run(root, &["config", "check"]);
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_binding_that_fits_no_view_is_a_mistake_with_its_line() {
    let binding = "[[mqtt.bindings]]\ntopic = \"press/+\"\nfeature_view = \"turning\"\n";
    for (keys, line, key, event) in [
        ("entities = { machine = \"{1}\" }\n", 4, "entities.machine", "binding.part_misfits"),
        ("features = { turns = \"$.t\",\n haet = \"$.h\" }\n", 5, "features.haet", "binding.part_misfits"),
        ("[mqtt.bindings.features]\nheat = \"$.h\"\n", 4, "features", "binding.misfits"),
    ] {
        let root = root(&format!("{binding}{keys}"));
        let mistakes = root.mistakes();
        assert!(mistakes.contains(&format!("ledge.toml:{line} mqtt.bindings[0].{key}")), "{mistakes:?}");
        // The daemon still serves: views may change while it runs, and a start must accept what a reload accepts.
        let daemon = root.start();
        assert_eq!(daemon.wait_for_event_since_start(event)["key"], key);
    }
}

#[test]
fn a_bare_value_needs_a_view_of_its_own_and_every_mistake_of_its_binding_is_told_at_once() {
    let binding = |view: &str, value: &str| {
        format!(
            "[[mqtt.bindings]]\ntopic = \"press/+\"\nfeature_view = \"{view}\"\nvalue = \"{value}\"\n\
             entities = {{ machine_id = \"{{1}}\" }}\n"
        )
    };
    assert_eq!(checked(&root(&binding("notes", "note"))), (Some(0), String::new()));
    let others = root(&binding("turning", "turns"));
    let (code, told) = checked(&others);
    let null = "ledge.toml:4: mqtt.bindings[0].value: is one feature, and each message would set 'heat' of the feature \
                view 'turning' to null";
    assert!(code == Some(78) && told.contains(null), "{code:?} {told}");
    let daemon = others.start();
    daemon.wait_for_event_since_start("binding.nulls_features");
    drop(daemon);

    let wrong = binding("notes", "note")
        + "timezone = \"Europe/Nowhere\"\nwhen = { \"$..a\" = 1, \"{1}\" = [] }\nevent_timestamp_missing = \"now\"\nqos = 9\n";
    let wrong = root(&wrong);
    let expected = [
        "ledge.toml:6: mqtt.bindings[0].timezone: time zone \"Europe/Nowhere\" is not known on this box",
        "ledge.toml:7: mqtt.bindings[0].when",
        "ledge.toml:8: mqtt.bindings[0].event_timestamp_missing",
        "ledge.toml:9: mqtt.bindings[0].qos",
    ];
    for verb in [&["config", "check"][..], &["serve"]] {
        let output = run(&wrong, verb);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{told}");
        assert!(expected.iter().all(|mistake| told.contains(mistake)), "{told}");
    }
}

#[test]
fn a_trial_says_why_a_binding_does_not_take_a_message() {
    let root = root(
        "[[mqtt.bindings]]\nname = \"one\"\ntopic = \"press/+/+\"\nfeature_view = \"turning\"\nentities = { machine_id = \"{1}\" }\n\
         when = { \"$.kind\" = \"turning\" }\n\
         [[mqtt.bindings]]\nname = \"two\"\ntopic = \"press/+/+\"\nfeature_view = \"notes\"\nentities = { machine_id = \"{1}\" }\n\
         value = \"note\"\nwhen = { \"{2}\" = \"note\" }\n",
    );
    let file = root.folder.path().join("message");
    for (topic, message, unmet) in [
        ("press/7/all", r#"{"kind": "turning", "turns": 97}"#, [None, Some(r#"{2} is "all", and not "note""#)]),
        ("press/7/note", "greased", [Some(r#"$.kind is not there, and not "turning""#), None]),
        (
            "press/7/all",
            r#"{"kind": "other"}"#,
            [Some(r#"$.kind is "other", and not "turning""#), Some(r#"{2} is "all", and not "note""#)],
        ),
    ] {
        write(&file, message.as_bytes());
        let words = ["mqtt", "try", topic, file.to_str().unwrap()];
        let report: Value = serde_json::from_slice(&run(&root, &[&words[..], &["--json"]].concat()).stdout).unwrap();
        let output = run(&root, &words);
        let text = String::from_utf8(output.stdout).unwrap();
        for (index, (name, unmet)) in ["one", "two"].into_iter().zip(unmet).enumerate() {
            let handled = &report["handled"][index];
            assert_eq!((handled["unmet"].as_str(), &handled["problem"]), (unmet, &Value::Null), "{report}");
            assert_eq!(handled["pushes"].is_null(), unmet.is_some(), "{report}");
            let told = unmet.map(|unmet| {
                format!(
                    "The binding {name} does not take it ({{1}} = 7, {{2}} = {}), because of its `when`: {unmet}\n",
                    &topic[8..]
                )
            });
            assert!(told.is_none_or(|told| text.contains(&told)), "{text}");
        }
        // A message that nothing takes is a failure.
        assert_eq!(output.status.success(), unmet.contains(&None), "{text}");
    }
}

#[test]
fn a_binding_that_does_not_fit_its_model_is_told_before_any_message() {
    let binding = |inputs: &str| {
        format!(
            "[[mqtt.bindings]]\ntopic = \"a/+\"\nmodel = \"add_sub\"\npublish = \"b/{{1}}\"\n[mqtt.bindings.inputs]\n{inputs}"
        )
    };
    assert_eq!(checked(&root(&binding("INPUT0 = [\"$.x\"]\nINPUT1 = [\"$.y\"]\n"))), (Some(0), String::new()));
    let wrong = binding("INPUT0 = [\"$.x\"]\nINPUT_1 = [\"$.y\"]\n");
    let root_with = root(&wrong);
    let mut mistakes = root_with.mistakes();
    mistakes.sort();
    assert_eq!(mistakes, ["ledge.toml:5 mqtt.bindings[0].inputs", "ledge.toml:7 mqtt.bindings[0].inputs.INPUT_1"]);
    let (_, told) = checked(&root_with);
    assert!(told.contains("INPUT_1") && told.contains("\"INPUT1\""), "{told}");
    // The others serve: a model may change at any time.
    let daemon = root_with.start();
    let line = daemon.wait_for_event_since_start("binding.misfits");
    assert_eq!((&line["binding"], &line["key"]), (&json!("a/+"), &json!("inputs.INPUT_1")));

    let absent = root("[[mqtt.bindings]]\ntopic = \"a\"\nmodel = \"later\"\npublish = \"b\"\n");
    assert_eq!(absent.warnings(), ["ledge.toml:3 mqtt.bindings[0].model"]);
}

#[test]
fn mistakes_of_the_configuration_and_of_feature_views_come_together() {
    let has = |level: &str, qos: &str, places: &[&str]| {
        let root = root(&format!(
            "[log]\n{level}\n[[mqtt.bindings]]\ntopic = \"a\"\nmodel = \"add_sub\"\npublish = \"b\"\nqos = {qos}\ninputs = {{ X = [\"$.x\"] }}\n",
        ));
        write(&root.folder.path().join("feature_views.d/more.toml"), b"[[entity]]\nvalue_type = \"Float32\"\n");
        let mistakes = root.mistakes();
        let all = [places, &["more.toml:1 entity[0]"]].concat();
        assert!(all.iter().all(|place| mistakes.iter().any(|found| found == place)), "{mistakes:?}");
    };
    has("level = 7", "\"one\"", &["ledge.toml:2 log.level", "ledge.toml:7 mqtt.bindings[0].qos"]);
    // Bindings are compared with models once no value is wrong by itself. An unknown key hides nothing.
    has("levl = \"info\"", "1", &["ledge.toml:2 log.levl", "ledge.toml:8 mqtt.bindings[0].inputs.X"]);
}
