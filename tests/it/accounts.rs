//! Accounts, budgets and objectives of the whole daemon: calls are counted over a kill, rows have the CPU time of the
//! service, and a spent budget refuses over a restart.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Response;
use crate::daemon::{TestDaemon, TestRoot, write};

/// Many times the five seconds after which use is summed.
const LIMIT: Duration = Duration::from_mins(2);

fn root(config: &str) -> TestRoot {
    let root = TestRoot::new().models(&["wine_mlp"]);
    write(&root.folder.path().join("ledge.toml"), config.as_bytes());
    root
}

/// The accounts of the present month.
fn accounts(daemon: &TestDaemon) -> Value {
    let months = daemon.client().get("/accounts").json();
    let month = months["months"][0].as_str().unwrap().to_owned();
    daemon.client().get(&format!("/accounts?month={month}")).json()
}

#[track_caller]
fn wait_until<T>(what: &str, daemon: &TestDaemon, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn infer(daemon: &TestDaemon) -> Response {
    let zeros = [0; 13];
    let input = json!({"name": "features", "shape": [1, 13], "datatype": "FP32", "data": zeros});
    daemon.client().post_json("/v2/models/wine_mlp/infer", &json!({"inputs": [input]}))
}

/// CPU time of a process and those below it, in ticks; that of ended and awaited ones is in their parent's.
fn ticks_below(root: u32) -> u64 {
    let stats = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let process: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let fields: Vec<u64> =
            stat.rsplit_once(") ")?.1.split(' ').skip(1).map(|field| field.parse().unwrap_or(0)).collect();
        // Without pid, comm and state: the parent is the first, and utime to cstime the eleventh to fourteenth.
        Some((process, (u32::try_from(fields[0]).unwrap(), fields[10..14].iter().sum::<u64>())))
    });
    let all: BTreeMap<u32, (u32, u64)> = stats.collect();
    let is_below = |mut process: u32| loop {
        match all.get(&process) {
            _ if process == root => return true,
            Some((parent, _)) => process = *parent,
            None => return false,
        }
    };
    all.iter().filter(|(process, _)| is_below(**process)).map(|(_, (_, ticks))| ticks).sum()
}

#[test]
fn all_rows_have_the_cpu_time_of_the_service_and_each_call_is_counted_once() {
    let daemon = root("").start_ready();
    let total = || accounts(&daemon)["total"]["cpu_seconds"].as_f64().unwrap();
    let through = || accounts(&daemon)["through"].clone();
    // An interval has just ended.
    let next_interval = || {
        let before = through();
        wait_until("an interval ends", &daemon, || (through() != before).then_some(()));
    };
    next_interval();
    let (before, ticks) = (total(), ticks_below(daemon.pid()));
    for _ in 0..3000 {
        assert_eq!(infer(&daemon).status, 200);
    }
    next_interval();
    let (counted, ticks) = (total() - before, ticks_below(daemon.pid()) - ticks);
    let used = f64::from(u32::try_from(ticks).unwrap()) / 100.0;
    assert!((counted - used).abs() <= 0.05 * used + 0.05, "{counted} of {used} s");
    let document = accounts(&daemon);
    let rows = document["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["model"], &rows[0]["calls"]), (1, &json!("wine_mlp"), &json!(3000)));
    assert!(document["box"]["cpu_seconds"].as_f64().unwrap() > 0.0 && document["gaps"] == json!([]));

    let month = document["month"].as_str().unwrap();
    let table = daemon.client().get(&format!("/accounts?month={month}&format=csv"));
    assert_eq!(table.header("content-type"), Some("text/csv; charset=utf-8"));
    assert_eq!(daemon.client().get("/accounts?month=1999-01").status, 404);
    assert_eq!(daemon.client().get("/accounts?month=..").status, 400);
}

#[test]
fn a_spent_budget_refuses_calls_over_a_restart_and_is_recorded_once() {
    let text = "[[budget]]\nname = \"wine\"\nmodel = \"wine_mlp\"\ncalls_per_month = 10\nover = \"refuse\"\n";
    let mut daemon = root(text).start_ready();
    let answered = wait_until("the budget is spent", &daemon, || {
        let answer = infer(&daemon);
        if answer.status == 200 {
            return None;
        }
        assert_eq!(answer.status, 429, "{}", answer.error());
        Some(answer)
    });
    let wait: u64 = answered.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=86_400).contains(&wait) && answered.error().contains("budget 'wine'"), "{}", answered.error());
    let state = daemon.client().get("/accounts").json()["budgets"][0]["state"].clone();
    assert_eq!(state, "spent");
    // Stopped in order: nothing is missing.
    daemon.signal("TERM");
    assert!(daemon.wait().success());
    let daemon = daemon.kill().start_ready();
    assert_eq!(infer(&daemon).status, 429);
    assert!(daemon.events("accounts.budget_reached").is_empty(), "it was recorded before the restart");
    assert_eq!(accounts(&daemon)["gaps"], json!([]));
}

#[test]
fn a_killed_daemon_leaves_a_gap_in_its_month() {
    let daemon = root("").start_ready();
    let folder = daemon.root.folder.path().join("accounts");
    let is_written = || fs::read_dir(&folder).is_ok_and(|files| files.count() > 0).then_some(());
    wait_until("the month is written", &daemon, is_written);
    let daemon = daemon.kill().start_ready();
    let gaps = accounts(&daemon)["gaps"].as_array().unwrap().clone();
    assert!(gaps.len() == 1 && gaps[0]["from"].as_str() <= gaps[0]["to"].as_str(), "{gaps:?}");
    let daemon = daemon.kill().start_ready();
    assert_eq!(accounts(&daemon)["gaps"].as_array().unwrap().len(), 2);
}

#[test]
fn an_objective_counts_answers_and_leaves_out_wrong_requests() {
    let text = "[[objective]]\nname = \"wine\"\nmodel = \"wine_mlp\"\np99_ms = 60000\navailability = 99.9\n";
    let daemon = root(text).start_ready();
    for _ in 0..5 {
        assert_eq!(infer(&daemon).status, 200);
    }
    assert_eq!(daemon.client().post_json("/v2/models/wine_mlp/infer", &json!({"inputs": []})).status, 400);
    let of = |index: usize| daemon.client().get("/objectives").json()["objectives"][index].clone();
    wait_until("calls are counted", &daemon, || (of(1)["good"] == 5).then_some(()));
    assert_eq!((&of(0)["kind"], &of(0)["good"], &of(0)["bad"]), (&json!("latency"), &json!(5), &json!(0)));
    assert_eq!((&of(1)["bad"], &of(1)["budget_left"], &of(1)["alert"]), (&json!(0), &json!(1.0), &Value::Null));
    let left: f64 = daemon.metric(r#"ledge_objective_budget_left_ratio{objective="wine",kind="latency"}"#);
    assert!((left - 1.0).abs() < 1e-9);
}
