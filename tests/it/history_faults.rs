//! The history of a running daemon under kills, power cuts and a full disk: it opens, no row is doubled or invented, what
//! was fsynced is there, and what is lost is told.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot};
use crate::fault_rounds::wait_until;
use crate::feature_faults::disk::{Disk, Log};
use crate::feature_faults::seed::Random;
use crate::feature_faults::shim::Shim;
use crate::moved_clock::MovedClock;

const LIMIT: Duration = Duration::from_secs(30);
const CALLS: usize = 10;
const SERIES: [&str; 3] = ["box", "model:add_sub", "caller:ip:127.0.0.1"];

/// Rows of each series: its name, and a line of its table.
type Rows = BTreeSet<(&'static str, String)>;

fn infer(client: &mut Client) {
    let input = |name| json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![1.0; 16]});
    let answer = client.post_json("/v2/models/add_sub/infer", &json!({"inputs": [input("INPUT0"), input("INPUT1")]}));
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// Calls, which are in the minute that the step of the clock ends.
fn step(daemon: &TestDaemon, clock: &mut MovedClock) {
    let mut client = daemon.client();
    for _ in 0..CALLS {
        infer(&mut client);
    }
    clock.step(daemon);
}

fn table(client: &mut Client, series: &str, resolution: &str) -> Vec<String> {
    let answer = client.get(&format!("/figures/history?series={series}&resolution={resolution}&format=csv"));
    assert_eq!(answer.status, 200, "{answer:?}");
    let text = String::from_utf8(answer.body).unwrap();
    let lines: Vec<_> = text.lines().skip(1).map(str::to_owned).collect();
    // Times of one length are in their order as texts.
    let times: Vec<_> = lines.iter().map(|line| time(line)).collect();
    assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "{series} at {resolution}: {lines:?}");
    lines
}

fn time(line: &str) -> &str {
    line.split(',').next().unwrap()
}

/// A row of a series without calls.
fn is_quiet(line: &str) -> bool {
    line.split(',').skip(1).all(|figure| figure.is_empty() || figure == "0")
}

/// The rows by the minute.
fn rows(daemon: &TestDaemon) -> Rows {
    let mut client = daemon.client();
    let of = |series| table(&mut client, series, "1m").into_iter().map(move |line| (series, line)).collect::<Vec<_>>();
    SERIES.into_iter().flat_map(of).collect()
}

/// What a start after a fault must show.
struct Expected<'a> {
    /// Rows that were fsynced.
    kept: &'a Rows,
    /// All rows that were recorded.
    recorded: &'a Rows,
    /// The time of the start.
    now: String,
    /// The order of writes is not that on the disk: a series may lack a row that the box has.
    is_power_cut: bool,
}

/// Checks the history after a fault. Returns the number of rows that were lost.
fn check(daemon: &TestDaemon, expected: &Expected<'_>) -> usize {
    let mut client = daemon.client();
    let store = client.get("/figures/series").json();
    assert_eq!((&store["problem"], &store["files_set_aside"]), (&Value::Null, &json!(0)), "{store}");
    assert_eq!((daemon.events("unusual.damaged").len(), client.get("/unusual").status), (0, 200));
    for series in SERIES {
        for resolution in ["5s", "1h"] {
            table(&mut client, series, resolution);
        }
    }
    let found: Rows = rows(daemon).into_iter().filter(|(_, line)| time(line) < expected.now.as_str()).collect();
    let missing: Vec<_> = expected.kept.difference(&found).collect();
    assert!(missing.is_empty(), "rows that were fsynced are lost: {missing:?}");
    let may_be = |series: &str, line: &str| expected.is_power_cut && series != "box" && is_quiet(line);
    let made: Vec<_> = found.difference(expected.recorded).filter(|(series, line)| !may_be(series, line)).collect();
    assert!(made.is_empty(), "rows that were never recorded: {made:?}");
    lost_rows_are_null(&mut client, expected.recorded, &found)
}

/// Rows of the box that are lost are `null` in its answer, as far as rows around them are there.
fn lost_rows_are_null(client: &mut Client, recorded: &Rows, found: &Rows) -> usize {
    let lost: Vec<_> = recorded.difference(found).filter(|(series, _)| *series == "box").collect();
    let answer = client.get("/figures/history?series=box&resolution=1m&columns=calls_per_s").json();
    let begin = answer["begin"].as_str().map(millis);
    for (_, line) in &lost {
        let Some(after) = begin.and_then(|begin| millis(time(line)).checked_sub(begin)) else { continue };
        let figure = &answer["columns"]["calls_per_s"][usize::try_from(after / 60_000).unwrap()];
        assert_eq!(figure, &Value::Null, "{line}");
    }
    lost.len()
}

fn millis(time: &str) -> u64 {
    u64::try_from(ledge::clock::parse_micros(time).unwrap() / 1000).unwrap()
}

/// Lives of a daemon that records. Each ends at some moments, as if each of them had been the last.
fn rounds(lives: usize, ends: usize) {
    let (mut random, shim) = (Random::new("history"), Shim::build());
    // With each step records are written and fsynced.
    let mut clock = MovedClock::new(&shim, Duration::from_mins(10));
    let root = TestRoot::new().models(&["add_sub"]);
    let folder = root.folder.path().canonicalize().unwrap().join("history");
    std::fs::create_dir(&folder).unwrap();
    let root = root.variable("LD_PRELOAD", shim.library()).variable("FAULT_FOLDER", &folder);
    let mut root = root.variable("FAULT_CLOCK", clock.path());
    let log = shim.file("log");
    let (mut cuts, mut lost, mut torn) = (0, 0, 0);
    for _ in 0..lives {
        let disk = Disk::of(&folder);
        let (daemon, marks) = live(root.variable("FAULT_LOG", &log), &log, &mut clock, 2 + random.below(2_usize));
        let recorded: Rows = marks.iter().flat_map(|(_, rows)| rows.clone()).collect();
        root = daemon.kill().variable("FAULT_LOG", shim.file("log-of-checks"));
        let record = Log::read(&log);
        std::fs::remove_file(&log).unwrap();

        for end in 0..ends {
            let cut = random.below(record.calls() + 1);
            let kept = &marks.iter().rev().find(|(length, _)| *length <= record.length(cut)).unwrap().1;
            let mut disk = disk.clone();
            disk.run(&record, cut);
            let is_power_cut = end % 3 != 0;
            if is_power_cut {
                torn += disk.cut_power(&mut random);
                cuts += 1;
            } else {
                disk.kill();
            }
            clock.move_on();
            let now = ledge::clock::rfc3339(clock.minute_ms());
            let daemon = root.start();
            lost += check(&daemon, &Expected { kept, recorded: &recorded, now, is_power_cut });
            root = daemon.kill();
        }
        clock.move_on();
    }
    println!("{cuts} power cuts, {} kills: {torn} torn files, {lost} rows of the box lost", lives * ends - cuts);
    assert!(torn > 0 && lost > 0, "faults that cost nothing show nothing");
}

/// A daemon that records for some steps, and the rows that were fsynced by the length of the log.
fn live(root: TestRoot, log: &Path, clock: &mut MovedClock, steps: usize) -> (TestDaemon, Vec<(u64, Rows)>) {
    let daemon = root.start();
    let mut marks = vec![(0, rows(&daemon))];
    for _ in 0..steps {
        step(&daemon, clock);
        // The answer waits for the store, which writes.
        let rows = rows(&daemon);
        marks.push((std::fs::metadata(log).unwrap().len(), rows));
    }
    (daemon, marks)
}

#[test]
fn the_history_survives_kills_and_power_cuts_and_tells_its_losses() {
    rounds(2, 6);
}

#[test]
#[ignore = "200 rounds: make soak"]
fn the_history_survives_200_kills_and_power_cuts() {
    rounds(10, 20);
}

#[test]
fn the_history_on_a_full_disk_tells_its_losses_and_goes_on_when_there_is_room() {
    let shim = Shim::build();
    let budget = shim.number("budget", 1 << 40);
    let mut clock = MovedClock::new(&shim, Duration::from_mins(1));
    let root = TestRoot::new().models(&["add_sub"]);
    let folder = root.folder.path().canonicalize().unwrap().join("history");
    let root = root.variable("LD_PRELOAD", shim.library()).variable("FAULT_FOLDER", folder);
    let daemon = root.variable("FAULT_BUDGET", &budget.path).variable("FAULT_CLOCK", clock.path()).start();
    let mut client = daemon.client();
    step(&daemon, &mut clock);
    let before = rows(&daemon);
    assert_eq!(before.len(), SERIES.len(), "{before:?}");
    assert_eq!(lost_records(&mut client), 0);

    budget.set(0);
    step(&daemon, &mut clock);
    step(&daemon, &mut clock);
    let store = client.get("/figures/series").json();
    assert!(store["problem"].as_str().unwrap().contains("No space left on device"), "{store}");
    let lost = lost_records(&mut client);
    assert!(lost >= 2 * SERIES.len() as u64, "{lost}");
    wait_until("a finding", LIMIT, || has_finding(&daemon));
    assert!(before.is_subset(&rows(&daemon)));

    budget.set(1 << 40);
    step(&daemon, &mut clock);
    step(&daemon, &mut clock);
    assert_eq!(client.get("/figures/series").json()["problem"], Value::Null);
    assert_eq!(lost_records(&mut client), lost);
    let after = rows(&daemon);
    assert_eq!(after.len(), 3 * SERIES.len(), "one minute before, two after: {after:?}");
    let calls =
        client.get("/figures/history?resolution=1m&columns=calls_per_s").json()["columns"]["calls_per_s"].clone();
    let calls: Vec<_> = calls.as_array().unwrap().iter().map(|figure| !figure.is_null()).collect();
    assert_eq!(calls, [true, false, false, true, true]);

    let daemon = daemon.kill().start();
    assert_eq!(rows(&daemon), after, "after a kill");
}

fn lost_records(client: &mut Client) -> u64 {
    client.metric("ledge_history_lost_records_total")
}

fn has_finding(daemon: &TestDaemon) -> bool {
    let findings = daemon.client().get("/findings").json();
    findings["checks"].as_array().unwrap().iter().any(|check| check["name"] == "history")
}
