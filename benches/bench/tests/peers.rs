//! `ledge-bench` over a broker: its counts agree with the answers of the box.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that panics says where")]

#[path = "../../../tests/peers/boxes.rs"]
#[expect(dead_code, reason = "shared with tests/peers, which uses the rest")]
mod boxes;
#[path = "../../../tests/peers/broker.rs"]
#[expect(dead_code, reason = "shared with tests/peers, which uses the rest")]
mod broker;
#[path = "../../../tests/peers/certificates.rs"]
#[expect(dead_code, reason = "shared with tests/peers, which uses the rest")]
mod certificates;
#[path = "../../../tests/it/client.rs"]
#[expect(dead_code, reason = "shared with tests/it, which uses the rest")]
mod client;
#[path = "../../../tests/it/daemon.rs"]
#[expect(dead_code, reason = "shared with tests/it, which uses the rest")]
mod daemon;
#[path = "../../../tests/peers/message.rs"]
#[expect(dead_code, reason = "shared with tests/peers, which uses the rest")]
mod message;
#[path = "../../../tests/peers/mqtt.rs"]
#[expect(dead_code, reason = "shared with tests/peers, which uses the rest")]
mod mqtt;
#[path = "../../../tests/peers/tools.rs"]
#[expect(dead_code, reason = "shared with tests/peers, which uses the rest")]
mod tools;

use serde_json::{Value, json};

use boxes::start_box;
use broker::Broker;
use daemon::TestDaemon;

/// The program that the tests start, and the folder of all sources.
const PROGRAM: &str = env!("CARGO_BIN_EXE_ledge-bench");
const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A fraction of a second under each load.
const SHORT: [&str; 7] = ["--duration", "200ms", "--warmup", "0", "--rounds", "2", "--json"];

fn report(daemon: &TestDaemon, arguments: &[&str]) -> Value {
    let output = daemon.root.command(&["add_sub"]).args(arguments).args(SHORT).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Requests answered, by target.
fn answered(report: &Value, target: &str) -> u64 {
    let results = report["results"].as_array().unwrap().iter().filter(|result| result["target"] == target);
    results.map(|result| result["figures"]["answered"].as_u64().unwrap()).sum()
}

#[test]
fn what_it_counts_is_what_the_box_answered() {
    let broker = Broker::new();
    let daemon = start_box(&broker);
    let (http, mqtt) = (format!("http://{}", daemon.address), broker.url());
    let mut counted = 0;
    for more in [
        &["--url", &mqtt, "--qos", "0,1", "--concurrency", "1,3"][..],
        &["--url", &mqtt, "--rate", "100", "--unique", "--json-tensors"],
        &["--url", &mqtt, "--url", &http, "--http", "--qos", "0", "--echo", "--concurrency", "2", "--unique"],
    ] {
        let report = report(&daemon, &[more, &["--device", "box"]].concat());
        for result in report["results"].as_array().unwrap() {
            assert_eq!(result["figures"]["errors"], json!({}), "{more:?}: {result}");
            assert!(result["figures"]["answered"].as_u64().unwrap() > 0, "{more:?}: {result}");
        }
        assert_eq!(answered(&report, "in-process"), 0, "{more:?}");
        assert_eq!(answered(&report, "echo-qos0") > 0, more.contains(&"--echo"), "the broker's own round trip");
        for target in ["http", "mqtt-qos0", "mqtt-qos1"] {
            let answered = answered(&report, target);
            // One more request is sent first, to detect errors early.
            counted += answered + u64::from(answered > 0);
        }
    }
    assert_eq!(daemon.counted("add_sub"), (Some(counted), Some(0)));
}

#[test]
fn a_box_that_is_not_there_is_said_at_once() {
    let broker = Broker::new();
    let daemon = start_box(&broker);
    let arguments = ["--url", &broker.url(), "--device", "nobody"];
    let output = daemon.root.command(&["add_sub"]).args(arguments).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("no client receives the request"), "{error}");
}
