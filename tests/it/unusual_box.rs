//! What is unusual of a running box: a model whose calls begin to fail is found, named and ended, through kills.

use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{TestDaemon, TestRoot};
use crate::fault_rounds::wait_until;
use crate::feature_faults::shim::Shim;
use crate::moved_clock::MovedClock;

/// It fails while it runs when a value is negative.
const MODEL: &str = "bad_at_runtime";
const COLUMN: &str = "failed_per_s";
const CALLS: u16 = 25;
const SAMPLE_S: u16 = 5;
const LIMIT: Duration = Duration::from_secs(30);
/// A change of this size is found with the first minutes, and ends three minutes after the last.
const MINUTES_MAX: u32 = 8;

/// A daemon that has learnt for a week, whose minutes are samples.
struct LearntBox {
    daemon: TestDaemon,
    clock: MovedClock,
}

impl LearntBox {
    /// One minute of calls, which fail or not.
    fn minute(&mut self, fails: bool) {
        let (value, status) = if fails { (-1, 500) } else { (2, 200) };
        let input = json!({"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, value]});
        let mut client = self.daemon.client();
        for _ in 0..CALLS {
            let answer = client.post_json(&format!("/v2/models/{MODEL}/infer"), &json!({"inputs": [input]}));
            assert_eq!(answer.status, status, "{answer:?}");
        }
        self.clock.step(&self.daemon);
    }

    /// The minutes of such calls until it is so.
    fn minutes_until(&mut self, fails: bool, what: &str, is_so: impl Fn(&Self) -> bool) -> u32 {
        let minutes = (1..=MINUTES_MAX).find(|_| {
            self.minute(fails);
            is_so(self)
        });
        minutes.unwrap_or_else(|| panic!("not within {MINUTES_MAX} minutes: {what}: {}", self.unusual()))
    }

    fn unusual(&self) -> Value {
        self.daemon.client().get("/unusual").json()
    }

    /// The events of the failing calls, the newest first, each with its end.
    fn events(&self) -> Vec<Value> {
        let events = self.unusual()["events"].as_array().unwrap().clone();
        events.into_iter().filter(is_of_failures).collect()
    }

    /// The state of the series of failing calls.
    fn state(&self) -> Value {
        let series = self.unusual()["series"].as_array().unwrap().clone();
        series.into_iter().find(is_of_failures).unwrap()
    }

    fn is_found(&self) -> bool {
        self.state()["state"] == "unusual"
    }

    fn has_finding(&self) -> bool {
        let findings = self.daemon.client().get("/findings").json();
        let name = format!("unusual model:{MODEL} {COLUMN}");
        findings["checks"].as_array().unwrap().iter().any(|check| check["name"] == name.as_str())
    }

    /// The records in the audit log about the failing calls.
    fn records(&self, action: &str) -> Vec<Value> {
        let output = self.daemon.root.command(&["audit", "tail", "-n", "1000", "--json"]).output().unwrap();
        let records = String::from_utf8(output.stdout).unwrap();
        let events = records.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["event"].clone());
        events
            .filter(|event| event["action"] == action && event["model"] == MODEL && event["figure"] == COLUMN)
            .collect()
    }

    #[track_caller]
    fn wait_for_records(&self, action: &str, count: usize) {
        wait_until(&format!("{count} records {action}"), LIMIT, || self.records(action).len() == count);
    }

    fn kill_and_start(self) -> Self {
        Self { daemon: self.daemon.kill().start(), clock: self.clock }
    }
}

fn is_of_failures(one: &Value) -> bool {
    one["series"] == format!("model:{MODEL}") && one["column"] == COLUMN
}

#[test]
fn a_model_whose_calls_fail_is_found_ended_and_called_normal_through_kills() {
    let shim = Shim::build();
    let clock = MovedClock::new(&shim, Duration::from_mins(1));
    let root = TestRoot::new().models(&[MODEL]).variable("LD_PRELOAD", shim.library());
    let history = root.folder.path().join("history");
    std::fs::create_dir(&history).unwrap();
    let calls_per_s = f32::from(CALLS) / f32::from(SAMPLE_S);
    ledge::history::fuzz::write_learnt_week(&history, MODEL, calls_per_s, clock.minute_ms() - 60_000).unwrap();
    let daemon = root.variable("FAULT_CLOCK", clock.path()).start();
    let mut of = LearntBox { daemon, clock };
    of.minute(false);
    of.minute(false);
    let state = of.state();
    assert_eq!((&state["state"], &state["needed_minutes"]), (&json!("normal"), &json!(0)), "{state}");
    assert_eq!(of.events(), [Value::Null; 0]);

    let found = of.minutes_until(true, "it is found", LearntBox::is_found);
    let began = of.events();
    assert_eq!((began.len(), &began[0]["ended"], &began[0]["direction"]), (1, &Value::Null, &json!("up")), "{began:?}");
    wait_until("a finding", LIMIT, || of.has_finding());
    of.wait_for_records("unusual_began", 1);

    let mut of = of.kill_and_start();
    assert_eq!(of.events(), began, "after a kill");
    let ended = of.minutes_until(false, "it ends", |of| !of.is_found());
    assert_eq!(of.events()[0]["end"], "usual");
    of.wait_for_records("unusual_ended", 1);
    wait_until("no finding", LIMIT, || !of.has_finding());

    let again = of.minutes_until(true, "it is found again", LearntBox::is_found);
    of.minute(true);
    of.minute(true);
    let answer = of.daemon.client().post(&format!("/unusual/model:{MODEL}/{COLUMN}/normal"), &[], b"");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(of.records("unusual_called_normal").len(), 1, "its record is written before the answer");
    assert_eq!(of.state()["state"], "normal");

    let of = of.kill_and_start();
    let ends: Vec<_> = of.events().into_iter().map(|event| event["end"].clone()).collect();
    assert_eq!(ends, ["called_normal", "usual"], "after a kill");
    println!("minutes: found after {found}, ended after {ended}, found again after {again}");
}
