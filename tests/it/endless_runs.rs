//! Runs that never end, and callers that do not wait: other callers are not affected.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot};
use crate::fault_rounds::{runtime_processes, send_fault, wait_until};
use crate::looping_model::{LOOPING, with_looping};

const LIMIT: Duration = Duration::from_mins(1);

fn trips(client: &mut Client, trips: i64, headers: &[(&str, &str)]) -> Response {
    let body = json!({"inputs": [
        {"name": "trips", "datatype": "INT64", "shape": [1], "data": [trips]},
        {"name": "x", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]},
    ]});
    client.post(&format!("/v2/models/{LOOPING}/infer"), headers, body.to_string().as_bytes())
}

fn wine(client: &mut Client, model: &str) -> Response {
    let input = json!({"name": "features", "datatype": "FP32", "shape": [1, 13], "data": vec![1.0; 13]});
    client.post_json(&format!("/v2/models/{model}/infer"), &json!({"inputs": [input]}))
}

/// The sum of a metric over the versions of a model.
fn counted(client: &mut Client, metric: &str, model: &str) -> f64 {
    let text = String::from_utf8(client.get("/metrics").body).unwrap();
    let start = format!("ledge_{metric}{{model=\"{model}\"");
    let values = text.lines().filter(|line| line.starts_with(&start));
    values.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// The processes of models, when those that tried a model have ended.
fn settled(daemon: &TestDaemon, count: usize) -> Vec<u32> {
    wait_until("the processes of the models", LIMIT, || runtime_processes(daemon).len() == count);
    runtime_processes(daemon)
}

/// Endless calls on every core, while another model is called without a pause.
fn hold_every_core(daemon: &TestDaemon, headers: &[(&str, &str)]) {
    let ended = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let answer = trips(&mut daemon.client(), i64::MAX, headers);
                ended.fetch_add(1, Ordering::Relaxed);
                assert_eq!(answer.status, 504, "{answer:?}");
            });
        }
        let client = &mut daemon.client();
        let (mut answered, mut beside) = (0, 0);
        while ended.load(Ordering::Relaxed) < 2 || answered == 0 {
            let answer = wine(client, "wine_mlp");
            assert_eq!(answer.status, 200, "{answer:?}");
            answered += 1;
            beside += usize::from(ended.load(Ordering::Relaxed) == 0);
        }
        println!("{answered} answers, {beside} of them beside both endless calls");
    });
}

#[test]
fn endless_calls_on_every_core_cost_no_other_call_and_no_process() {
    let root = TestRoot::new().models(&["wine_mlp"]).set("runtimes.isolation=process").set("runtimes.threads=2");
    let daemon = with_looping(root, 4000).start();
    let processes = settled(&daemon, 1);
    let client = &mut daemon.client();
    hold_every_core(&daemon, &[]);
    // Their callers gave up much earlier than the model's own limit.
    hold_every_core(&daemon, &[("x-ledge-timeout-ms", "500")]);

    wait_until("all four are cancelled", LIMIT, || counted(client, "model_cancelled_runs_total", LOOPING) >= 4.0);
    for _ in 0..4 {
        let answer = trips(client, 3, &[]);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["outputs"][0]["data"], json!([8.0, 16.0, 24.0, 32.0]));
    }
    assert_eq!(runtime_processes(&daemon), processes, "no process was ended");
    assert!(counted(client, "model_process_crashes_total", LOOPING) < 1.0);
}

#[test]
fn one_core_answers_other_models_beside_an_endless_call() {
    let root = TestRoot::new().models(&["wine_mlp"]).set("runtimes.isolation=process").set("runtimes.threads=1");
    let daemon = with_looping(root, 8000).start();
    let processes = settled(&daemon, 1);
    std::thread::scope(|scope| {
        let endless = scope.spawn(|| trips(&mut daemon.client(), i64::MAX, &[]));
        let client = &mut daemon.client();
        while !endless.is_finished() {
            let answer = wine(client, "wine_mlp");
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        assert_eq!(endless.join().unwrap().status, 504);
    });
    assert_eq!(runtime_processes(&daemon), processes);
}

#[test]
fn a_run_that_cannot_be_cancelled_ends_its_own_process_alone() {
    let root = TestRoot::new().models(&["wine_mlp"]).model_as("wine_mlp", "faulty").set("runtimes.isolation=own");
    let daemon = root.file("faulty/model.toml", "[queue]\ndefault_timeout_ms = 100\n").start();
    let before = settled(&daemon, 2);
    let answer = send_fault(&mut daemon.client(), "faulty", b'l');
    assert_eq!(answer.status, 504, "{answer:?}");
    let line = daemon.wait_for_event("model.crashed");
    assert!(line["reason"].as_str().unwrap().contains("went on after its deadline"), "{line}");
    // It may have taken a busy machine longer than an idle connection stays open.
    let client = &mut daemon.client();
    wait_until("it answers again", LIMIT, || wine(client, "faulty").status == 200);
    assert_eq!(wine(client, "wine_mlp").status, 200);
    let after = settled(&daemon, 2);
    assert_eq!(after.iter().filter(|pid| before.contains(pid)).count(), 1, "{before:?} {after:?}");
    assert!(counted(client, "model_cancelled_runs_total", "faulty") >= 1.0);
}

#[test]
fn a_thousand_callers_that_hang_up_end_no_process() {
    let root = TestRoot::new().models(&["slow", "wine_mlp"]).set("runtimes.isolation=process");
    let daemon = root.start();
    let processes = settled(&daemon, 1);
    let data = vec![1.0; 16];
    let body = json!({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 16], "data": data}]}).to_string();
    let request = format!(
        "POST /v2/models/slow/infer HTTP/1.1\r\nhost: localhost\r\nx-ledge-timeout-ms: 100\r\ncontent-type: \
         application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for _ in 0..1000 {
        let mut stream = TcpStream::connect(daemon.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
    }
    let client = &mut daemon.client();
    assert_eq!(wine(client, "wine_mlp").status, 200);
    let answer = client.post("/v2/models/slow/infer", &[("content-type", "application/json")], body.as_bytes());
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(runtime_processes(&daemon), processes);
    assert!(processes.iter().all(|pid| Path::new(&format!("/proc/{pid}")).exists()));
    assert!(counted(client, "model_process_crashes_total", "slow") < 1.0);
}
