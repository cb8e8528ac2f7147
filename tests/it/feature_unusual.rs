//! A simulated machine whose rows are watched: what is unusual, forecasts, and their end with the erasure of the machine.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::daemon::{TestDaemon, TestRoot};

const VIEWS: &str = r#"
[[entity]]
name = "machine"
join_key = "machine_id"

[[feature_view]]
name = "vibration"
entities = ["machine"]
lateness = "1h"
schema = [
  { name = "rms", dtype = "Float64" },
  { name = "heat", dtype = "Float64" },
  { name = "program", dtype = "String", optional = true },
]

[[feature_view.aggregation]]
column = "rms"
function = "mean"
time_window = "10m"
name = "rms_10m"

[feature_view.unusual]
"#;

const PRESS: &str = "press-7";
const ROWS: u64 = 480;
const MINUTE_S: u64 = 60;

/// A machine whose vibration and heat rise and fall together, in a cycle of 16 minutes.
struct Machine {
    begin_s: u64,
    noise: u64,
}

impl Machine {
    fn new() -> Self {
        let now_s = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
        Self { begin_s: now_s - 600 * MINUTE_S, noise: 11 }
    }

    /// A number from -1 to 1.
    fn random(&mut self) -> f64 {
        self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(self.noise >> 32).unwrap()) / f64::from(u32::MAX) * 2.0 - 1.0
    }

    fn values(&mut self, minute: u64) -> (f64, f64) {
        let load = (f64::from(u32::try_from(minute % 16).unwrap()) / 16.0 * std::f64::consts::TAU).sin();
        (10.0 + 3.0 * load + 0.3 * self.random(), 60.0 + 12.0 * load + self.random())
    }

    /// A push of the rows from a minute on.
    fn push(&self, name: &str, from: u64, values: &[(f64, f64)]) -> Value {
        let times: Vec<u64> = (from..).map(|minute| self.begin_s + minute * MINUTE_S).take(values.len()).collect();
        let (rms, heat): (Vec<f64>, Vec<f64>) = values.iter().copied().unzip();
        let names = vec![name; values.len()];
        json!({"push_source_name": "vibration",
            "df": {"machine_id": names, "rms": rms, "heat": heat, "event_timestamp": times}})
    }
}

fn pushed(daemon: &TestDaemon, push: &Value) {
    let answer = daemon.client().post_json("/push", push);
    assert_eq!(answer.status, 200, "{answer:?}");
}

fn disclosed(daemon: &TestDaemon, machine: &str) -> Value {
    let answer = daemon.unix_client().post_json("/features/disclose", &json!({"entity": {"machine_id": machine}}));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["feature_views"][0].clone()
}

/// Waits until so many rows of a machine are learnt.
#[track_caller]
fn until_learnt(daemon: &TestDaemon, machine: &str, rows: u64) -> Value {
    let until = Instant::now() + Duration::from_mins(1);
    loop {
        let view = disclosed(daemon, machine);
        if view["profiles"][0]["rows"] == json!(rows) {
            return view;
        }
        assert!(Instant::now() < until, "{rows} rows: {view}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn unusual(daemon: &TestDaemon) -> Value {
    let answer = daemon.client().get("/features/unusual?view=vibration");
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["feature_views"][0].clone()
}

fn restarted(mut daemon: TestDaemon) -> TestDaemon {
    daemon.signal("TERM");
    assert!(daemon.wait().success());
    daemon.kill().start()
}

/// True when any file below the folder has these bytes.
fn has_bytes(folder: &Path, wanted: &[u8]) -> bool {
    std::fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return has_bytes(&path, wanted);
        }
        std::fs::read(path).unwrap().windows(wanted.len()).any(|bytes| bytes == wanted)
    })
}

#[test]
fn an_unusual_row_of_a_machine_is_found_explained_and_forecast_until_the_machine_is_erased() {
    let daemon = TestRoot::new().views(VIEWS).start();
    let mut machine = Machine::new();
    let first: Vec<_> = (0..20).map(|minute| machine.values(minute)).collect();
    pushed(&daemon, &machine.push(PRESS, 0, &first));
    until_learnt(&daemon, PRESS, 20);
    let found = unusual(&daemon);
    assert_eq!((&found["watched"], &found["learning"], &found["unusual"]), (&json!(1), &json!(1), &json!(0)));
    assert_eq!(found["features"], json!(["rms", "heat", "rms_10m"]), "all numbers");
    let declared = daemon.client().get("/feature-views/vibration").json();
    let watched = json!({"features": ["rms", "heat", "rms_10m"], "interval_s": 60.0, "alarms_per_week": 1.0});
    assert_eq!(declared["unusual"], watched);
    let forecast = format!("/features/forecast?feature=vibration:rms&machine_id={PRESS}&count=12");
    let too_few = daemon.client().get(&forecast);
    assert_eq!((too_few.status, too_few.error().as_str()), (409, "44 more samples are needed for a forecast"));

    let rows: Vec<_> = (20..ROWS).map(|minute| machine.values(minute)).collect();
    pushed(&daemon, &machine.push(PRESS, 20, &rows));
    pushed(&daemon, &machine.push("press-8", 0, &rows));
    until_learnt(&daemon, PRESS, ROWS);
    until_learnt(&daemon, "press-8", ROWS - 20);
    let found = unusual(&daemon);
    assert_eq!((&found["watched"], &found["learning"], &found["unusual"]), (&json!(2), &json!(0), &json!(0)));

    // The forecast has the next cycle in its band.
    let answer = daemon.client().get(&forecast).json();
    let values = answer["values"].as_array().unwrap();
    assert_eq!((values.len(), &answer["interval_s"]), (12, &json!(60.0)), "{answer}");
    let number = |value: &Value, key: &str| value[key].as_f64().unwrap();
    let inside = values.iter().zip(ROWS..).filter(|(value, minute)| {
        let (rms, _) = machine.values(*minute);
        (number(value, "low")..=number(value, "high")).contains(&rms)
    });
    assert!(inside.count() >= 9, "{answer}");
    assert!(values.iter().all(|value| number(value, "high") - number(value, "low") < 4.0), "{answer}");

    // Much vibration with little heat: each is usual, and both together are not.
    pushed(&daemon, &machine.push(PRESS, ROWS, &[(12.5, 50.0)]));
    let view = until_learnt(&daemon, PRESS, ROWS + 1);
    assert!(view["profiles"][0]["unusual_since"].is_string(), "{view}");
    let found = unusual(&daemon);
    let [entity] = found["entities"].as_array().unwrap().as_slice() else { panic!("{found}") };
    assert_eq!((&entity["join_keys"], &found["unusual"]), (&json!({"machine_id": PRESS}), &json!(1)));
    let names: Vec<&str> =
        entity["features"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"rms") && names.contains(&"heat"), "{entity}");
    let finding = daemon.root.finding("unusual rows vibration");
    assert_eq!(finding["detail"], "1 of 2 entities of feature view `vibration` are unusual");
    assert!(!finding.to_string().contains(PRESS), "{finding}");
    let listed = daemon.root.command(&["features", "unusual"]).output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.status.code() == Some(1) && text.contains("press-7") && text.contains("usual is"), "{text}");

    // It outlives a restart.
    let daemon = restarted(daemon);
    until_learnt(&daemon, PRESS, ROWS + 1);
    assert_eq!(unusual(&daemon)["unusual"], json!(1));
    let entity = format!("machine_id={PRESS}");
    let forecast_args = ["features", "forecast", "--feature", "vibration:heat", "--entity", &entity, "--count", "2"];
    let told = daemon.root.command(&forecast_args).output().unwrap();
    assert_eq!(String::from_utf8(told.stdout).unwrap().lines().count(), 3);

    let unknown = json!({"feature_view": "vibration", "entity": {"machine_id": "press-9"}});
    let admin = &mut daemon.unix_client();
    assert_eq!(admin.post_json("/features/unusual/normal", &unknown).status, 404);
    let called = daemon.root.command(&["features", "unusual", "normal", "vibration", &entity]).output().unwrap();
    assert!(called.status.success(), "{called:?}");
    assert_eq!(unusual(&daemon)["unusual"], json!(0));
    let records = daemon.root.command(&["audit", "show", "--json", "--action", "unusual_row_called_normal"]).output();
    let records = String::from_utf8(records.unwrap().stdout).unwrap();
    assert!(records.contains("vibration") && !records.contains(PRESS), "{records}");

    let file = daemon.root.folder.path().join("features/profiles");
    assert!(has_bytes(file.parent().unwrap(), PRESS.as_bytes()));
    let erased = admin.post_json("/features/erase", &json!({"entity": {"machine_id": PRESS}}));
    assert_eq!(erased.status, 200, "{erased:?}");
    assert!(!has_bytes(file.parent().unwrap(), PRESS.as_bytes()));
    assert!(disclosed(&daemon, PRESS).get("profiles").is_none());
    assert_eq!(admin.get(&forecast).status, 404);
    let daemon = restarted(daemon);
    until_learnt(&daemon, "press-8", ROWS - 20);
    assert!(disclosed(&daemon, PRESS).get("profiles").is_none());
    assert_eq!(unusual(&daemon)["watched"], json!(1));
    assert!(!daemon.log().contains(PRESS), "no entity in the log");
}
