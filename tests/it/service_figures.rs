//! The figures of cores and memory compared with those of `/proc`: they count the daemon, the fork server and the
//! processes of models.
#![expect(clippy::cast_precision_loss, reason = "ticks and processes are few")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot, processes};
use crate::document_pdf;
use crate::fault_rounds::wait_until;

/// The most by which a figure may be off.
const TOLERANCE: f64 = 0.05;

/// The CPU time of the processes that is measured at least, in seconds: ticks and the time between two readings count
/// little in it.
const CPU_SECONDS_MIN: f64 = 3.0;

const LIMIT: Duration = Duration::from_mins(1);

/// The processes of a daemon, itself first.
fn tree(daemon: &TestDaemon) -> Vec<u32> {
    let mut parents = BTreeMap::<u32, Vec<u32>>::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(fields) = stat(pid) {
            parents.entry(u32::try_from(fields[1]).unwrap()).or_default().push(pid);
        }
    }
    let mut tree = vec![daemon.pid()];
    let mut at = 0;
    while let Some(pid) = tree.get(at) {
        let children = parents.get(pid).cloned().unwrap_or_default();
        tree.extend(children);
        at += 1;
    }
    tree
}

/// The fields of `/proc/pid/stat` behind the name; the state is 0.
fn stat(pid: u32) -> Option<Vec<i64>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    Some(fields.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect())
}

/// The CPU seconds of the processes of a daemon, with those that ended.
fn cpu_seconds(daemon: &TestDaemon) -> f64 {
    // utime, stime, and those of children that were waited for: fields 14 to 17 of proc(5).
    let ticks: i64 = tree(daemon).into_iter().filter_map(stat).map(|fields| fields[11..15].iter().sum::<i64>()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// A line of a file of `/proc`, in bytes.
fn kilobytes(pid: u32, file: &str, name: &str) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<f64>().unwrap() * 1024.0)
}

/// The least and the most memory that the processes of a daemon have together. They are the same for root, since
/// `/proc` shows root the proportional set size of sandboxed processes.
fn memory(daemon: &TestDaemon) -> (f64, f64) {
    let tree = tree(daemon);
    let all = |file: &str, name: &str| tree.iter().map(|pid| kilobytes(*pid, file, name)).sum::<Option<f64>>();
    match all("smaps_rollup", "Pss:") {
        Some(proportional) => (proportional, proportional),
        None => (all("status", "RssAnon:").unwrap(), all("status", "VmRSS:").unwrap()),
    }
}

/// Compares a figure with `/proc` before and after it, because models release memory between calls.
#[track_caller]
fn assert_memory(daemon: &TestDaemon, source: &str, figure: impl FnOnce() -> f64) {
    let before = memory(daemon);
    let figure = figure();
    let after = memory(daemon);
    let (least, most) = (before.0.min(after.0), before.1.max(after.1));
    let range = least * (1.0 - TOLERANCE)..=most * (1.0 + TOLERANCE);
    assert!(range.contains(&figure), "{source} has {figure}, /proc {least} to {most}");
}

fn top(daemon: &TestDaemon, interval: &str) -> Value {
    let url = format!("http://{}", daemon.address);
    let arguments = ["top", "--url", &url, "--once", "--json", "--interval", interval];
    let output = daemon.root.command(&arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn tensors(client: &mut Client) -> u16 {
    let tensor = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [64, 16], "data": vec![1.0; 1024]});
    let request = json!({"inputs": [tensor("INPUT0"), tensor("INPUT1")]});
    client.post_json("/v2/models/add_sub/infer", &request).status
}

fn photograph(client: &mut Client) -> u16 {
    let cows = crate::daemon::data("photos/cows.jpg");
    client.post("/v2/models/coco_detector/infer", &[("content-type", "image/jpeg")], &cows).status
}

fn document(client: &mut Client) -> u16 {
    let pdf = document_pdf::two_pages();
    client.post("/v2/models/document_reader/infer", &[("content-type", "application/pdf")], &pdf).status
}

/// One call of a load, which returns its status.
type Call = fn(&mut Client) -> u16;

#[test]
fn cores_and_memory_are_those_of_all_processes_under_three_loads() {
    let daemon = TestRoot::new().models(&["add_sub", "coco_detector", "document_reader"]).start();
    let client = &mut daemon.client();
    let loads: [(&str, Call); 3] = [("tensors", tensors), ("photographs", photograph), ("documents", document)];
    for (name, call) in loads {
        assert_eq!(call(client), 200, "{name}");
        let (before, shown_before) = (cpu_seconds(&daemon), client.metric::<f64>("ledge_service_cpu_seconds_total"));
        while cpu_seconds(&daemon) < before + CPU_SECONDS_MIN {
            // Looking takes longer than a call of a tiny model.
            let calls = if name == "tensors" { 100 } else { 1 };
            (0..calls).for_each(|_| assert_eq!(call(client), 200, "{name}"));
        }
        let least = cpu_seconds(&daemon) - before;
        let shown = client.metric::<f64>("ledge_service_cpu_seconds_total") - shown_before;
        let most = cpu_seconds(&daemon) - before;
        let range = least * (1.0 - TOLERANCE)..=most * (1.0 + TOLERANCE);
        assert!(range.contains(&shown), "{name}: {shown} of {least} to {most} s");
        assert_memory(&daemon, name, || client.metric::<f64>("ledge_service_memory_bytes"));
    }

    // The daemon itself is a small part of it.
    let whole = client.metric::<f64>("ledge_service_memory_bytes");
    assert!(client.metric::<f64>("ledge_process_resident_memory_bytes") < whole / 2.0);
    let processes = client.metric::<f64>("ledge_service_processes");
    assert!((processes - tree(&daemon).len() as f64).abs() < 0.5, "{processes}");
    assert_memory(&daemon, "ledge top", || top(&daemon, "0.2")["process"]["memory_bytes"].as_f64().unwrap());

    let figures = |client: &mut Client| client.get("/figures").json()["hour"].clone();
    let mut end = figures(client)["end"].clone();
    let (began, before) = (Instant::now(), cpu_seconds(&daemon));
    // The second one is of a whole interval of this load.
    let mut samples = Vec::new();
    while samples.len() < 2 {
        assert_eq!(photograph(client), 200);
        let hour = figures(client);
        if hour["end"] != end {
            end = hour["end"].clone();
            samples.push(hour);
        }
    }
    let hour = samples.pop().unwrap();
    let used = (cpu_seconds(&daemon) - before) / began.elapsed().as_secs_f64();
    let last = |name: &str| hour["columns"][name].as_array().unwrap().last().unwrap().as_f64().unwrap();
    assert_memory(&daemon, "the console", || last("ledge_memory_bytes"));
    // Its interval is another one.
    assert!((last("ledge_cores") / used - 1.0).abs() < 0.3, "{} of {used} cores", last("ledge_cores"));
}

#[test]
fn figures_go_on_after_a_process_of_models_was_killed() {
    let daemon = TestRoot::new().models(&["coco_detector"]).start();
    let client = &mut daemon.client();
    let before = cpu_seconds(&daemon);
    while cpu_seconds(&daemon) < before + 1.0 {
        assert_eq!(photograph(client), 200);
    }
    let counted = client.metric::<f64>("ledge_service_cpu_seconds_total");
    let [spawner] = processes(daemon.pid(), "spawner")[..] else { panic!("one spawner") };
    let [worker] = processes(spawner, "runtime")[..] else { panic!("one process of models") };
    crate::daemon::send_signal(worker, "KILL");
    while photograph(client) != 200 || processes(spawner, "runtime") == [worker] {}

    let least = cpu_seconds(&daemon);
    let shown = client.metric::<f64>("ledge_service_cpu_seconds_total");
    let range = least * (1.0 - TOLERANCE)..=cpu_seconds(&daemon) * (1.0 + TOLERANCE);
    assert!(shown >= counted && range.contains(&shown), "{counted}, then {shown} s of {range:?}");
    assert_memory(&daemon, "after a crash", || client.metric::<f64>("ledge_service_memory_bytes"));
}

#[test]
fn a_document_leaves_no_memory_behind_once_its_models_are_idle() {
    const MIB: f64 = (1 << 20) as f64;
    let daemon = TestRoot::new().models(&["document_reader"]).start();
    let [spawner] = processes(daemon.pid(), "spawner")[..] else { panic!("one spawner") };
    let [worker] = processes(spawner, "runtime")[..] else { panic!("one process of models") };
    let resident = || kilobytes(worker, "status", "VmRSS:").unwrap();
    // Golden inputs of the load were two pages.
    wait_until("the memory of the load", LIMIT, || {
        resident() < kilobytes(worker, "status", "VmHWM:").unwrap() - 100.0 * MIB
    });
    let before = resident();
    let client = &mut daemon.client();
    assert_eq!(document(client), 200);
    let grown = resident() - before;
    assert!(grown > 32.0 * MIB, "{grown} more than {before}");
    wait_until("the memory of the document", LIMIT, || resident() < before + grown / 2.0);
    assert_eq!(document(client), 200);
}

#[test]
fn an_unloaded_model_of_texts_leaves_no_tokenizer_behind() {
    const MIB: f64 = (1 << 20) as f64;
    let root = TestRoot::new().models(&["use_multilingual_v3", "fixed_shape"]).set("runtimes.isolation=\"process\"");
    let daemon = root.start();
    daemon.wait_for_event_since_start("instance.unloaded");
    let [spawner] = processes(daemon.pid(), "spawner")[..] else { panic!("one spawner") };
    let [worker] = processes(spawner, "runtime")[..] else { panic!("one process of models") };
    let kept = |line| kilobytes(worker, "status", line).unwrap();
    // It has 100 MiB of pieces of words, beside weights and an arena.
    wait_until("the memory of the tokenizer", LIMIT, || kept("RssAnon:") < 64.0 * MIB);
    let vectors = || {
        let answer = daemon
            .client()
            .post_json("/v1/embeddings", &json!({"model": "use_multilingual_v3", "input": ["Guten Tag"]}));
        answer.json()["data"][0]["embedding"].as_array().map(Vec::len)
    };
    assert_eq!((vectors(), vectors()), (Some(512), Some(512)));
}

#[test]
fn memory_of_a_model_is_told_where_it_has_a_process_of_its_own() {
    let root = TestRoot::new().models(&["add_sub", "fixed_shape"]).set("runtimes.isolation=\"process\"");
    let daemon = root.file("add_sub/model.toml", "isolation = \"own\"\n").start();
    let client = &mut daemon.client();
    let of = |client: &mut Client, model: &str| {
        let statistics = client.get(&format!("/v2/models/{model}/stats")).json();
        statistics["model_stats"][0]["memory_usage"].clone()
    };
    assert_eq!(of(client, "fixed_shape"), json!([]));
    let own = of(client, "add_sub")[0]["byte_size"].as_f64().unwrap();
    let [spawner] = processes(daemon.pid(), "spawner")[..] else { panic!("one spawner") };
    let workers = processes(spawner, "runtime");
    let resident = |pid: u32| kilobytes(pid, "status", "VmRSS:").unwrap();
    assert!(workers.len() == 2 && workers.iter().any(|pid| (own / resident(*pid) - 1.0).abs() < TOLERANCE), "{own}");

    let metrics = String::from_utf8(client.get("/metrics").body).unwrap();
    let told: Vec<_> = metrics.lines().filter(|line| line.starts_with("ledge_model_memory_bytes{")).collect();
    assert!(told.len() == 1 && told[0].contains("add_sub"), "{told:?}");
}
