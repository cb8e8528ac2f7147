//! `GET /capacity`, `ledge capacity` and `ledge sizing` of a whole box.

use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{TestDaemon, TestRoot};
use crate::fault_rounds::wait_until;

/// Readings are ten seconds apart at least.
const LIMIT: Duration = Duration::from_mins(1);

fn capacity(daemon: &TestDaemon, arguments: &[&str]) -> String {
    let url = format!("http://{}", daemon.address);
    let output = daemon.root.command(&[&["capacity", "--url", &url], arguments].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_box_reports_the_headroom_of_each_model_that_answered_and_its_use_for_autoscalers() {
    let daemon = TestRoot::new().models(&["add_sub", "dynamic_sum"]).start();
    let client = &mut daemon.client();
    let tensor = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [64, 16], "data": vec![1.0; 1024]});
    let request = json!({"inputs": [tensor("INPUT0"), tensor("INPUT1")]});
    assert!(capacity(&daemon, &[]).starts_with("Nothing is measured yet"));

    let mut report = Value::Null;
    wait_until("the calls are measured", LIMIT, || {
        (0..50).for_each(|_| assert_eq!(client.post_json("/v2/models/add_sub/infer", &request).status, 200));
        report = client.get("/capacity").json();
        report["work"].as_array().is_some_and(|work| work.iter().any(|of| of["source"] == "measured"))
    });
    let work = |model: &str| report["work"].as_array().unwrap().iter().find(|of| of["model"] == model).unwrap();
    assert!(work("add_sub")["now"].as_f64().unwrap() > 0.0, "{report}");
    assert!(work("add_sub")["headroom"].as_f64().unwrap() >= 0.0, "{report}");
    assert!(work("add_sub")["cpu_s"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!((&work("dynamic_sum")["source"], &work("dynamic_sum")["headroom"]), (&json!("not_known"), &Value::Null));
    for resource in ["cores", "control_thread", "memory", "disk"] {
        let used = client.metric::<f64>(&format!("ledge_capacity_used_ratio{{resource=\"{resource}\"}}"));
        assert!(used > 0.0, "{resource}: {used}");
    }
    assert!(capacity(&daemon, &[]).contains("more calls a second of add_sub"));
    assert!(capacity(&daemon, &["--json"]).contains("\"growth\""));
}

#[test]
fn the_box_for_a_load_is_named_with_what_was_assumed() {
    let root = TestRoot::new();
    let sizing = |arguments: &[&str]| root.command(&[&["sizing"], arguments].concat()).output().unwrap();
    let output = sizing(&["--cameras", "12", "--documents", "300/day"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("a box with 2 cores and 4 GB"), "{text}");
    assert!(text.contains("3 times the mean hour") && text.contains("Figures of: Intel Xeon"), "{text}");
    let small = sizing(&["--calls", "coco_detector=500/s", "--cores", "2", "--memory", "4"]);
    assert_eq!(small.status.code(), Some(1), "it does not fit");
    assert!(String::from_utf8_lossy(&small.stdout).contains("% of this load"));
    let nothing = sizing(&["--cameras", "1", "--here"]);
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("nothing can be measured"), "there is no model");
    let unknown = sizing(&["--calls", "mine=5/s"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("there are no figures of mine"));
}
