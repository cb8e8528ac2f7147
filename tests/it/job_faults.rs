//! Jobs under power cuts, on a full disk, and with a clock that is set: each row is answered once, and the daemon goes on.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot};
use crate::feature_faults::disk::{Disk, Log};
use crate::feature_faults::seed::Random;
use crate::feature_faults::shim::Shim;

/// Rows of a table, which take 20 calls.
const ROWS: usize = 10_000;

const LIMIT: Duration = Duration::from_mins(2);

fn root() -> TestRoot {
    let columns = "[pipeline.table]\ncolumns = [{ name = \"a\" }, { name = \"b\", missing = \"nan\" }]\n";
    TestRoot::new().model_as("identity_fp64", "echo").file("echo/model.toml", columns)
}

fn table() -> String {
    (0..ROWS).fold("a,b\n".to_owned(), |text, row| text + &format!("{row},{}.5\n", row % 7))
}

/// Sends a job; returns its id, or the status of the refusal.
fn send(client: &mut Client) -> Result<String, u16> {
    let answer = client.post("/jobs?model=echo", &[("content-type", "text/csv")], table().as_bytes());
    if answer.status == 200 { Ok(answer.json()["id"].as_str().unwrap().to_owned()) } else { Err(answer.status) }
}

fn wait(client: &mut Client, id: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let job = client.get(&format!("/jobs/{id}")).json();
        if is_so(&job) {
            return job;
        }
        assert!(begun.elapsed() < LIMIT && job["state"] != "failed", "{job}");
        std::thread::yield_now();
    }
}

/// The job ends with each row answered once, in order, with its own answer.
fn ends_once(daemon: &TestDaemon, id: &str) {
    let mut client = daemon.client();
    let job = wait(&mut client, id, |job| job["state"] == "done");
    assert_eq!((job["answered"].as_u64(), job["failed"].as_u64()), (Some(ROWS as u64), Some(0)), "{job}");
    let result = client.get(&format!("/jobs/{id}/result")).body;
    let expected = (0..ROWS)
        .fold("row,value_0,value_1\n".to_owned(), |text, row| text + &format!("{row},{row}.0,{}.5\n", row % 7));
    assert!(result == expected.as_bytes(), "{}", String::from_utf8_lossy(&result[..result.len().min(300)]));
}

#[test]
fn a_job_whose_power_is_cut_anywhere_is_answered_once_and_not_lost_after_its_answer() {
    let (mut random, shim) = (Random::new("job power cuts"), Shim::build());
    let root = root();
    let folder = root.folder.path().canonicalize().unwrap().join("jobs");
    std::fs::create_dir(&folder).unwrap();
    let mut root = root.variable("LD_PRELOAD", shim.library()).variable("FAULT_FOLDER", &folder);
    // The job whose answer was given before the cut: it must be there.
    let mut promised: Option<String> = None;
    let (mut lost, mut resumed) = (0, 0);
    for round in 0..12 {
        let log = shim.file(&format!("log-{round}"));
        let mut disk = Disk::of(&folder);
        let daemon = root.variable("FAULT_LOG", &log).start();
        let mut client = daemon.client();
        let jobs = client.get("/jobs").json()["jobs"].as_array().unwrap().clone();
        if let Some(id) = &promised {
            let job = jobs.iter().find(|job| job["id"] == id.as_str()).unwrap_or_else(|| panic!("{id}: {jobs:?}"));
            resumed += u32::from(job["done"].as_u64() > Some(0));
        }
        let id = match jobs.iter().find(|job| job["state"] != "done") {
            Some(job) => job["id"].as_str().unwrap().to_owned(),
            None => send(&mut client).unwrap(),
        };
        let added = std::fs::metadata(&log).unwrap().len();
        let enough = random.below(ROWS) as u64;
        wait(&mut client, &id, |job| job["state"] == "done" || job["done"].as_u64() >= Some(enough));
        root = daemon.kill();
        let record = Log::read(&log);
        let cut = if random.one_in(2) { record.calls() } else { random.below(record.calls() + 1) };
        let was_promised = promised.as_deref() == Some(&id) || record.length(cut) >= added;
        lost += u32::from(!was_promised);
        promised = was_promised.then_some(id);
        disk.run(&record, cut);
        disk.cut_power(&mut random);
        if !folder.exists() {
            std::fs::create_dir(&folder).unwrap();
        }
        std::fs::remove_file(&log).unwrap();
    }
    println!("12 power cuts: {lost} before the answer, {resumed} in the middle of a job");
    assert!(resumed > 0);
    let daemon = root.start();
    let jobs = daemon.client().get("/jobs").json()["jobs"].as_array().unwrap().clone();
    assert!(!jobs.is_empty());
    for job in &jobs {
        ends_once(&daemon, job["id"].as_str().unwrap());
    }
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), jobs.len(), "nothing half made is left: {left:?}");
}

#[test]
fn a_job_on_a_full_disk_waits_and_ends_once_when_there_is_room() {
    let shim = Shim::build();
    let budget = shim.number("budget", 1 << 40);
    let root = root();
    let folder = root.folder.path().canonicalize().unwrap().join("jobs");
    let root = root.variable("LD_PRELOAD", shim.library()).variable("FAULT_FOLDER", folder);
    let daemon = root.variable("FAULT_BUDGET", &budget.path).start();
    let mut client = daemon.client();
    let id = send(&mut client).unwrap();
    // In the middle of a frame.
    budget.set(1234);
    let job = wait(&mut client, &id, |job| job["state"] == "stuck" || job["state"] == "done");
    let refused = send(&mut client);
    assert!(refused.is_err_and(|status| status >= 500), "no room for another job");
    assert_eq!(client.get("/v2/health/live").status, 200);
    if job["state"] == "stuck" {
        assert!(job["reason"].as_str().unwrap().contains("No space left on device"), "{job}");
    }
    budget.set(1 << 40);
    ends_once(&daemon, &id);
    let daemon = daemon.kill().start();
    ends_once(&daemon, &id);
}

#[test]
fn a_clock_that_jumps_a_year_ahead_and_back_removes_no_result() {
    let shim = Shim::build();
    let ahead = shim.number("clock", 0);
    let root = root().variable("LD_PRELOAD", shim.library()).variable("FAULT_CLOCK", &ahead.path);
    let daemon = root.start();
    let id = send(&mut daemon.client()).unwrap();
    ends_once(&daemon, &id);
    ahead.set(365 * 86_400);
    let other = send(&mut daemon.client()).unwrap();
    ends_once(&daemon, &other);
    ends_once(&daemon, &id);
    let daemon = daemon.kill().start();
    ends_once(&daemon, &id);
    ahead.set(-86_400);
    let again = send(&mut daemon.client()).unwrap();
    for id in [&id, &other, &again] {
        ends_once(&daemon, id);
    }
}
