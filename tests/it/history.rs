//! Figures over time: what is kept on the disk, by box, model and caller.

use serde_json::{Value, json};

use crate::access_matrix::key;
use crate::daemon::{TestDaemon, TestRoot, write};

fn infer(daemon: &TestDaemon, key: &str) -> u16 {
    let input = |name| json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![1.0; 16]});
    let body = json!({"inputs": [input("INPUT0"), input("INPUT1")]}).to_string();
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    daemon.client().request("POST", "/v2/models/add_sub/infer", &headers, body.as_bytes()).status
}

/// The calls in the hours of a series: as many as were in the first minutes of this test.
fn calls(daemon: &TestDaemon, series: &str) -> f64 {
    let path = format!("/figures/history?series={series}&columns=calls_per_s&format=json");
    let answer = daemon.client().get(&path).json();
    answer["columns"]["calls_per_s"].as_array().unwrap().iter().filter_map(Value::as_f64).sum()
}

fn stop(mut daemon: TestDaemon) -> TestRoot {
    daemon.signal("TERM");
    assert!(daemon.wait().success());
    daemon.kill()
}

#[test]
fn calls_are_kept_by_model_and_caller_through_a_restart() {
    let root = TestRoot::new().models(&["add_sub"]);
    let till = key(&root, &["till-7", "--role", "infer"]);
    let daemon = root.start();
    // The counting begins with the task that reads the figures.
    let before = daemon.client().get("/figures/series").json();
    assert_eq!((&before["problem"], &before["lost_records"]), (&Value::Null, &json!(0)), "{before}");
    daemon.client().get("/figures/live?events=1");
    for _ in 0..12 {
        assert_eq!(infer(&daemon, &till), 200);
    }
    let daemon = stop(daemon).start();
    let series = daemon.client().get("/figures/series").json();
    let names: Vec<_> = series["series"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["box", "model:add_sub", "caller:key:till-7"], "{series}");
    for series in ["box", "model:add_sub", "caller:key:till-7"] {
        assert!(calls(&daemon, series) > 0.0, "{series}");
    }
    // The samples of before are in the ring that the page shows, with a gap.
    let figures = daemon.client().get("/figures").json();
    let rates = figures["hour"]["columns"]["calls_per_s"].as_array().unwrap();
    assert!(rates.iter().any(|rate| rate.as_f64() > Some(0.0)), "{figures}");

    let table = daemon.client().get("/figures/history?series=caller:key:till-7&columns=calls_per_s,p99_s&format=csv");
    assert_eq!(table.header("content-type"), Some("text/csv; charset=utf-8"));
    let text = String::from_utf8(table.body).unwrap();
    assert!(text.starts_with("time,calls_per_s,p99_s\r\n20"), "{text}");
    for wrong in ["series=nobody", "resolution=1d", "columns=secret", "until=now"] {
        assert_eq!(daemon.client().get(&format!("/figures/history?{wrong}")).status, 400, "{wrong}");
    }
}

#[test]
fn without_the_history_the_figures_of_the_box_are_in_memory() {
    let daemon = TestRoot::new().models(&["add_sub"]).set("history.enabled=false").start();
    daemon.client().get("/figures/live?events=1");
    let figures = daemon.client().get("/figures").json();
    assert!(!figures["hour"]["columns"]["queue"].as_array().unwrap().is_empty(), "{figures}");
    assert_eq!(daemon.client().get("/figures/series").json()["series"], json!([]));
    assert!(!daemon.root.folder.path().join("history").exists());
}

#[test]
fn a_folder_that_cannot_be_written_is_a_finding_and_the_figures_go_on() {
    // A file in the place of the folder, which also root cannot write into.
    let root = TestRoot::new().models(&["add_sub"]);
    write(&root.folder.path().join("history"), b"");
    let daemon = root.start();
    let findings = daemon.client().get("/findings").json();
    let names: Vec<_> =
        findings["checks"].as_array().unwrap().iter().filter_map(|check| check["name"].as_str()).collect();
    assert!(names.contains(&"history"), "{findings}");
    daemon.client().get("/figures/live?events=1");
    assert_eq!(daemon.client().get("/figures").status, 200);
}
