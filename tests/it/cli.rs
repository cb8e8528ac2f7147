//! The command line as people and scripts use it.

use std::process::Output;

use serde_json::Value;

use crate::daemon::{TestRoot, data, write};

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub fn run(root: &TestRoot, arguments: &[&str]) -> Output {
    root.command(arguments).output().unwrap()
}

/// The lines of `--json`, without the times, which differ.
fn answers(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let parse = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        line.as_object_mut().unwrap().remove("time_ms");
        line
    };
    text(&output.stdout).lines().map(parse).collect()
}

#[test]
fn infer_answers_alike_alone_over_tcp_and_over_the_unix_socket() {
    let root = TestRoot::new().models(&["efficientnet_lite0"]);
    let photos = root.folder.path().join("photos");
    for name in ["coffee.png", "camera.webp"] {
        write(&photos.join(name), &data(&format!("photos/{name}")));
    }
    write(&photos.join("below/notes.txt"), b"not a photograph, and not looked at");
    let photos = photos.display().to_string();
    let infer = ["infer", "efficientnet_lite0", &photos, "--json", "--top", "1"];
    let alone = answers(&run(&root, &infer));
    let labels: Vec<_> = alone.iter().map(|answer| answer["labels"][0]["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["tripod", "espresso"], "in the order of their names");

    let daemon = root.start();
    for url in
        [format!("http://{}", daemon.address), format!("unix:{}/ledge.sock", daemon.root.folder.path().display())]
    {
        let asked = answers(&run(&daemon.root, &[&infer[..], &["--url", &url]].concat()));
        assert_eq!(asked, alone, "{url}");
    }
}

#[test]
fn infer_says_which_file_failed_and_goes_on() {
    let root = TestRoot::new().models(&["efficientnet_lite0", "add_sub"]);
    let bad = root.folder.path().join("bad.png");
    write(&bad, b"\x89PNG\r\n\x1a\nnothing more");
    let good = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/photos/coffee.png");
    let output = run(&root, &["infer", "efficientnet_lite0", &bad.display().to_string(), good]);
    assert_eq!(output.status.code(), Some(1));
    let table = text(&output.stdout);
    assert!(table.contains("bad.png") && table.contains("error:") && table.contains("espresso"), "{table}");
    // Each column begins at one place for all labels and names: a column that may be long is last.
    let answer = table.lines().next().unwrap().find("ANSWER").unwrap();
    for line in table.lines() {
        assert!(line[..answer].ends_with("  ") && !line[answer..].starts_with(' '), "{table}");
    }

    let request = root.folder.path().join("request.json");
    let row = |name: &str| serde_json::json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![2; 16]});
    write(&request, serde_json::json!({"inputs": [row("INPUT0"), row("INPUT1")]}).to_string().as_bytes());
    let output = run(&root, &["infer", "add_sub", &request.display().to_string(), "--format", "jsonl"]);
    assert_eq!(answers(&output)[0]["outputs"][0]["data"][0], 4.0, "the older spelling of --json");

    let output = run(&root, &["infer", "nope", good]);
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("'nope'"), "{output:?}");
}

#[test]
fn models_are_listed_shown_and_checked() {
    let root = TestRoot::new().models(&["add_sub", "ir_add", "broken_png"]);
    let list: Value = serde_json::from_slice(&run(&root, &["models", "list", "--json"]).stdout).unwrap();
    let names: Vec<_> = list.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["add_sub", "broken_png", "ir_add"]);
    let shown: Value = serde_json::from_slice(&run(&root, &["models", "show", "add_sub", "--json"]).stdout).unwrap();
    let input = serde_json::json!({"name": "INPUT1", "datatype": "FP32", "shape": [-1, 16]});
    assert_eq!((&shown["inputs"][1], &shown["runtime"]), (&input, &"onnxruntime".into()), "{shown}");
    let output = run(&root, &["models", "check", "--json"]);
    assert_eq!(output.status.code(), Some(1), "one model is broken");
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = |model: &str, runtime: Option<&str>| {
        let rows = rows.as_array().unwrap();
        rows.iter().find(|row| row["model"] == model && row["runtime"].as_str() == runtime).unwrap().clone()
    };
    assert_eq!(row("add_sub", Some("onnxruntime"))["ok"], true);
    assert_eq!(row("add_sub", Some("openvino"))["ok"], true);
    assert_eq!(row("ir_add", Some("openvino"))["ok"], true);
    let broken = row("broken_png", None);
    assert!(broken["ok"] == false && broken["reason"].as_str().unwrap().contains("model.onnx"), "{broken}");
    assert!(run(&root, &["models", "check", "add_sub"]).status.success());
    assert!(!root.folder.path().join("cache").exists(), "looking leaves nothing behind");
}

#[test]
fn a_wrong_configuration_ends_with_78_and_every_mistake() {
    let root = TestRoot::new();
    let file = "[http]\nlisten = [\"0.0.0.0:8000\"]\nmax_body = 3\n[log]\nformat = \"xml\"\n";
    write(&root.folder.path().join("ledge.toml"), file.as_bytes());
    for verb in [&["serve"][..], &["config", "check"], &["models", "list"]] {
        let output = run(&root, verb);
        assert_eq!(output.status.code(), Some(78), "{verb:?}");
        let mistakes = text(&output.stderr);
        assert!(mistakes.contains("ledge.toml:3") && mistakes.contains("max_body"), "{mistakes}");
        assert!(mistakes.contains("ledge.toml:5") && mistakes.contains("xml"), "{mistakes}");
    }
}

#[test]
fn doctor_fails_without_the_broker_and_says_why() {
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let output = run(&TestRoot::new().set(&format!("mqtt.broker=mqtt://127.0.0.1:{port}")), &["doctor", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mqtt = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "mqtt").unwrap();
    assert_eq!(mqtt["status"], "fail");
    assert!(mqtt["detail"].as_str().unwrap().contains("nothing listens on this port"), "{mqtt}");
}

#[test]
fn a_user_who_has_left_keeps_no_box_from_starting() {
    let root = TestRoot::new().set("access.users=[{user=\"gone\", roles=[\"admin\"]}]");
    let checked = run(&root, &["config", "check"]);
    assert!(checked.status.success() && text(&checked.stdout) == "ok\n", "{checked:?}");
    assert!(text(&checked.stderr).contains("\"gone\""), "{checked:?}");
    assert_eq!(root.warnings(), ["--set access.users access.users[0].user"]);
    let daemon = root.start();
    daemon.wait_for_event_since_start("setting.ignored");
}

#[test]
fn wrong_feature_views_end_with_78_and_every_mistake_of_every_file() {
    let root = TestRoot::new();
    let views = root.folder.path().join("feature_views.d");
    write(&views.join("a.toml"), b"[[entity]]\nname = \"machine\"\nvalue_type = \"Float64\"\n");
    write(&views.join("b.toml"), b"[[feature_service]]\nname = \"s\"\nfeatures = [\"stats:heat\"]\n");
    for verb in [&["serve"][..], &["config", "check"]] {
        let output = run(&root, verb);
        assert_eq!(output.status.code(), Some(78), "{verb:?}");
        let mistakes = text(&output.stderr);
        assert!(mistakes.contains("a.toml:3:") && mistakes.contains("b.toml:3:"), "{mistakes}");
    }
    assert_eq!(root.mistakes(), ["a.toml:3 entity[0].value_type", "b.toml:3 feature_service[0].features[0]"]);
    assert!(!root.folder.path().join("features").exists(), "a refused start leaves nothing behind");
}

#[test]
fn doctor_tells_of_the_machine_the_runtimes_and_the_models() {
    let root = TestRoot::new().models(&["add_sub"]);
    let output = run(&root, &["doctor", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let check = |name: &str| {
        let checks = report["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name} in {report}")).clone()
    };
    assert!(check("onnxruntime")["detail"].as_str().unwrap().starts_with("1.31.1"));
    assert!(check("openvino")["detail"].as_str().unwrap().starts_with("2026.4.1"));
    let model = check("model add_sub");
    let detail = model["detail"].as_str().unwrap();
    assert!(detail.contains("onnxruntime") && detail.contains("openvino"), "{detail}");
}

#[test]
fn doctor_reports_a_bad_configuration_and_goes_on() {
    let output = run(&TestRoot::new().set("log.level=\"loud\""), &["doctor", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let names: Vec<_> = checks.iter().filter_map(|check| check["name"].as_str()).collect();
    assert_eq!(
        names,
        [
            "configuration",
            "cpu",
            "cores",
            "memory",
            "state",
            "access",
            "onnxruntime",
            "openvino",
            "egress",
            "audit log",
            "audit key",
            "seal of the daemon",
            "seal of models",
            "models"
        ]
    );
    assert_eq!((report["status"].as_str(), checks[0]["status"].as_str()), (Some("fail"), Some("fail")));
}

/// A root with bindings: a camera's photographs, and fields of a sensor's messages.
fn with_bindings() -> TestRoot {
    let root = TestRoot::new().models(&["efficientnet_lite0", "add_sub"]).set("device.id=\"box\"");
    let temperatures = vec!["\"$.temp\""; 16].join(", ");
    let bindings = format!(
        "[[mqtt.bindings]]\ntopic = \"cameras/+/snapshot\"\nmodel = \"efficientnet_lite0\"\n\
         publish = \"seen/{{1}}\"\nretain = true\nmax_rate = 2\n\
         [[mqtt.bindings]]\nname = \"sum\"\ntopic = \"plant/+/reading\"\nmodel = \"add_sub\"\n\
         publish = \"warm/{{1}}\"\nselect = \"$.outputs[0].data[15]\"\nqos = 0\n\
         [mqtt.bindings.inputs]\nINPUT0 = [{temperatures}]\nINPUT1 = [\"$.zeros\"]\n"
    );
    write(&root.folder.path().join("ledge.toml"), bindings.as_bytes());
    root
}

#[test]
fn a_message_tried_out_says_what_is_published_where_and_how() {
    let root = with_bindings();
    let photograph = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/photos/chelsea.jpg");
    let output = run(&root, &["mqtt", "try", "cameras/door/snapshot", photograph]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}");
    for part in
        ["{1} = door", "2 messages a second", "publishes to seen/door with QoS 1, retained", "cat", "status: 200"]
    {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }

    let reading = root.folder.path().join("reading.json");
    write(&reading, serde_json::json!({"temp": 21.5, "zeros": vec![0.0; 16]}).to_string().as_bytes());
    let mut command = root.command(&["mqtt", "try", "plant/hall/reading", "-", "--json"]);
    let output = command.stdin(std::fs::File::open(&reading).unwrap()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let handled = &report["handled"][0];
    assert_eq!((&handled["binding"], &handled["captures"][0]), (&"sum".into(), &"hall".into()));
    let message = &handled["publishes"];
    assert_eq!((&message["topic"], &message["qos"]), (&"warm/hall".into(), &0.into()));
    assert_eq!(message["payload"].as_str().unwrap().parse::<f64>(), Ok(21.5));
    assert!(!root.folder.path().join("state").exists(), "a dry run leaves nothing behind");
}

#[test]
fn a_call_tried_out_is_answered_to_whom_the_daemon_would_answer() {
    let root = with_bindings();
    let file = root.folder.path().join("call.json");
    let input = |name| serde_json::json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![1; 16]});
    write(&file, serde_json::json!({"inputs": [input("INPUT0"), input("INPUT1")]}).to_string().as_bytes());
    let topic = "ledge/v1/box/infer/add_sub";
    let attempt = |more: &[&str]| {
        let output = run(&root, &[&["mqtt", "try", topic, file.to_str().unwrap(), "--json"], more].concat());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let handled = &report["handled"][0];
        (output.status.success(), handled["principal"].clone(), handled["problem"].clone())
    };
    let anonymous = Value::from("mqtt:ledge/v1/box/result/add_sub");
    assert_eq!(attempt(&[]), (true, anonymous.clone(), Value::Null));
    let refused = Value::from("the answer is an error, with status 401");
    assert_eq!(attempt(&["--set", "access.mqtt.roles=[]"]), (false, anonymous.clone(), refused.clone()));
    assert_eq!(attempt(&["--property", "authorization=Bearer ledge_x"]), (false, anonymous, refused));
    let text = run(&root, &["mqtt", "try", topic, file.to_str().unwrap()]);
    assert!(text.status.success() && self::text(&text.stdout).contains("mqtt:ledge/v1/box/result/add_sub"), "{text:?}");
}

#[test]
fn a_message_without_a_result_says_why_and_fails() {
    let root = with_bindings();
    let file = root.folder.path().join("message");
    let file = file.to_str().unwrap();
    let attempt = |topic: &str, content: &[u8], more: &[&str]| {
        write(std::path::Path::new(file), content);
        let output = run(&root, &[&["mqtt", "try", topic, file, "--json"], more].concat());
        assert_eq!(output.status.code(), Some(1), "{topic}: {output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["handled"].clone()
    };
    // Over MQTT, as an answer to whom asked.
    let handled = attempt("ledge/v1/box/infer/add_sub", b"{", &["--response-topic", "till/answers"]);
    let message = &handled[0]["publishes"];
    assert_eq!(message["topic"], "till/answers");
    let error: Value = serde_json::from_str(message["payload"].as_str().unwrap()).unwrap();
    assert!(error["status"] == 400 && error["error"].as_str().unwrap().contains("JSON"), "{error}");
    let handled = attempt("ledge/v1/box/infer/gone", br#"{"inputs": []}"#, &[]);
    assert!(handled[0]["not_loaded"].is_string(), "{handled}");
    // With no answer at all.
    let large = vec![b' '; 70_000];
    for (topic, content, more, why) in [
        ("ledge/v1/box/infer/add_sub", &b"{}"[..], &["--property", "status=200"][..], "it is an answer"),
        (
            "ledge/v1/box/infer/add_sub",
            b"{}",
            &["--response-topic", "plant/x/reading"],
            "its response topic is not allowed",
        ),
        ("plant/hall/reading", b"{\"temp\": 1}", &[], "the message has nothing at $.zeros"),
        ("plant/hall/reading", b"", &[], "an empty message only clears a retained one"),
        ("plant/hall/reading", b"{}", &["--set", "mqtt.max_payload_bytes=1024"], "nothing at $.temp"),
        ("plant/hall/reading", &large, &["--set", "mqtt.max_payload_bytes=1024"], "mqtt.max_payload_bytes"),
    ] {
        let handled = attempt(topic, content, more);
        let problem = handled[0]["problem"].as_str().unwrap();
        assert!(problem.contains(why) && handled[0]["publishes"].is_null(), "{handled}");
    }
    assert_eq!(attempt("doors/1", b"{}", &[]), serde_json::json!([]));
    let output = run(&root, &["mqtt", "try", "doors/1", file]);
    assert!(text(&output.stdout).contains("cameras/+/snapshot, plant/+/reading"), "{output:?}");
}
