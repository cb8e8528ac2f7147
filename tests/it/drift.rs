//! The watch on what a model gets and gives: a lasting shift is found in its column, and accepted.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot};

/// The longest time for a few windows of a second.
const LIMIT: Duration = Duration::from_secs(90);

/// Six wines, and their 13 measurements.
fn wines(root: &TestRoot) -> Vec<Vec<f64>> {
    let golden: Value =
        serde_json::from_slice(&std::fs::read(root.model("wine_mlp/golden/rows.json")).unwrap()).unwrap();
    let data: Vec<f64> = serde_json::from_value(golden["inputs"][0]["data"].clone()).unwrap();
    data.chunks(13).map(<[f64]>::to_vec).collect()
}

/// Calls whose rows are never the same twice, with this much more alcohol.
struct Callers {
    wines: Vec<Vec<f64>>,
    number: u32,
}

impl Callers {
    fn call(&mut self, client: &mut Client, more_alcohol: f64) {
        let mut data = Vec::new();
        for _ in 0..12 {
            self.number += 1;
            let wine = &self.wines[self.number as usize % self.wines.len()];
            // A tenth more or less, in another order in each column.
            let vary = |column: usize| {
                0.9 + 0.2 * f64::from((self.number.wrapping_mul(2_654_435_769) >> column) % 997) / 997.0
            };
            data.extend(wine.iter().enumerate().map(|(column, value)| value * vary(column)));
            let first = data.len() - 13;
            data[first] += more_alcohol;
        }
        let input = json!({"name": "features", "datatype": "FP32", "shape": [12, 13], "data": data});
        let answer = client.post_json("/v2/models/wine_mlp/infer", &json!({"inputs": [input]}));
        assert_eq!(answer.status, 200, "{}", answer.error());
    }

    /// Calls until the watch on the model is as wanted, and returns it.
    #[track_caller]
    fn call_until(&mut self, daemon: &TestDaemon, more_alcohol: f64, wanted: impl Fn(&Value) -> bool) -> Value {
        let (mut client, end) = (daemon.client(), Instant::now() + LIMIT);
        loop {
            for _ in 0..20 {
                self.call(&mut client, more_alcohol);
            }
            let watch = client.get("/v2/models/wine_mlp/drift").json()["versions"][0].clone();
            if wanted(&watch) {
                return watch;
            }
            assert!(Instant::now() < end, "{watch:#}");
        }
    }
}

fn finding(daemon: &TestDaemon) -> Option<Value> {
    let findings = daemon.client().get("/findings").json();
    findings["checks"].as_array().unwrap().iter().find(|check| check["name"] == "drift wine_mlp").cloned()
}

#[test]
fn a_lasting_shift_names_its_column_over_kills_and_ends_when_it_is_accepted() {
    let root = TestRoot::new().models(&["wine_mlp"]);
    let settings = ["window_s=1", "calls_min=150", "learning_windows=3", "persistence=2"];
    let root = settings.iter().fold(root, |root, setting| root.set(&format!("drift.{setting}")));
    let mut callers = Callers { wines: wines(&root), number: 0 };
    let daemon = root.start();

    let learnt = callers.call_until(&daemon, 0.0, |watch| watch["reference"] == "learnt");
    daemon.wait_for_event_since_start("drift.reference_fixed");
    let fixed = learnt["fixed_ms"].clone();
    let judged = callers.call_until(&daemon, 0.0, |watch| watch["judged_calls"].as_u64() > Some(0));
    assert_eq!(judged["drifting"], false, "{judged:#}");
    let names: Vec<_> =
        judged["columns"].as_array().unwrap().iter().map(|column| column["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"alcohol") && names.contains(&"probabilities"), "{names:?}");
    assert!(finding(&daemon).is_none());

    // The reference is on the disk: a judged window is written after it, by the same task.
    let daemon = daemon.kill().start();
    let again = callers.call_until(&daemon, 3.0, |watch| watch["drifting"] == true);
    assert_eq!((&again["fixed_ms"], &again["reference"]), (&fixed, &json!("learnt")));
    let found = finding(&daemon).unwrap();
    assert_eq!(found["status"], "warn");
    assert!(found["detail"].as_str().unwrap().contains("column `alcohol`: values above 1"), "{found}");
    assert!(daemon.metric::<u64>("ledge_model_drift_columns{model=\"wine_mlp\",version=\"1\"}") >= 1);

    let shown = daemon.root.command(&["models", "drift", "wine_mlp", "--accept"]).output().unwrap();
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    // It is on the disk when the command ends.
    let daemon = daemon.kill().start();
    let accepted = callers.call_until(&daemon, 3.0, |watch| watch["judged_calls"].as_u64() > Some(0));
    assert_eq!((&accepted["reference"], &accepted["drifting"]), (&json!("accepted"), &json!(false)));
    assert!(finding(&daemon).is_none());
    let records = daemon.root.command(&["audit", "show", "--action", "drift_reference_fixed"]).output().unwrap();
    let records = String::from_utf8_lossy(&records.stdout);
    assert!(records.contains("learnt") && records.contains("accepted"), "{records}");
}

#[test]
fn a_model_that_was_not_called_is_not_watched_and_a_box_can_turn_it_off() {
    let daemon = TestRoot::new().models(&["wine_mlp"]).start();
    assert_eq!(daemon.client().get("/v2/models/wine_mlp/drift").json(), json!({"versions": []}));
    assert_eq!(daemon.client().get("/v2/models/unknown/drift").status, 404);
    assert_eq!(daemon.client().post_json("/v2/models/wine_mlp/drift/accept", &json!({})).status, 409);
    let daemon = TestRoot::new().models(&["wine_mlp"]).set("drift.enabled=false").start();
    let mut callers = Callers { wines: wines(&daemon.root), number: 0 };
    callers.call(&mut daemon.client(), 0.0);
    assert_eq!(daemon.client().get("/v2/models/wine_mlp/drift").status, 404);
    assert!(!daemon.root.folder.path().join("drift").exists());
}
