//! The serving core: batches, turns, priorities, instances that come and go, and the cores they run on.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot, data};
use crate::fault_rounds::wait_until;

/// `rows` rows of 16 numbers that no other caller sends.
pub fn add_sub_request(rows: usize, value: usize) -> Value {
    let data: Vec<usize> = (0..rows * 16).map(|place| value * 1000 + place).collect();
    json!({"inputs": [
        {"name": "INPUT0", "datatype": "FP32", "shape": [rows, 16], "data": data},
        {"name": "INPUT1", "datatype": "FP32", "shape": [rows, 16], "data": vec![1; rows * 16]},
    ]})
}

fn slow_request(value: f64) -> Value {
    json!({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 16], "data": vec![value; 16]}]})
}

fn statistics(client: &mut Client, model: &str) -> Value {
    client.get(&format!("/v2/models/{model}/stats")).json()["model_stats"][0].clone()
}

/// The threads of the daemon: name and allowed cores.
fn threads(daemon: &TestDaemon) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let status = |path: std::path::PathBuf| fs::read_to_string(path.join("status")).unwrap_or_default();
    let field = |status: &str, name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned()
    };
    tasks
        .map(|task| status(task.unwrap().path()))
        .map(|status| (field(&status, "Name:"), field(&status, "Cpus_allowed_list:")))
        .collect()
}

#[test]
fn rows_of_different_callers_never_mix_whatever_their_sizes() {
    let batching = "max_batch_size = 32\n[dynamic_batching]\nmax_queue_delay_us = 2000\n";
    let daemon = TestRoot::new().models(&["add_sub"]).file("add_sub/model.toml", batching).start();
    std::thread::scope(|scope| {
        for caller in 0..16 {
            let daemon = &daemon;
            scope.spawn(move || {
                let mut client = daemon.client();
                for round in 0..30 {
                    let (rows, value) = ((caller * 7 + round * 3) % 9 + 1, caller * 100 + round);
                    let answer = client.post_json("/v2/models/add_sub/infer", &add_sub_request(rows, value)).json();
                    let outputs = answer["outputs"].as_array().unwrap_or_else(|| panic!("{answer}"));
                    for (output, change) in outputs.iter().zip([1.0, -1.0]) {
                        assert_eq!(output["shape"], json!([rows, 16]));
                        let expected: Vec<f64> = (0..rows * 16)
                            .map(|place| f64::from(u32::try_from(value * 1000 + place).unwrap()) + change)
                            .collect();
                        assert_eq!(output["data"], json!(expected));
                    }
                }
            });
        }
    });
    let statistics = statistics(&mut daemon.client(), "add_sub");
    let (requests, runs) = (&statistics["inference_stats"]["success"]["count"], &statistics["execution_count"]);
    assert_eq!(*requests, 480);
    assert!(runs.as_u64() < requests.as_u64(), "{runs} runs for {requests} requests: nothing was put together");
}

#[test]
fn one_bad_request_spoils_no_batch() {
    let batching = "[dynamic_batching]\nmax_queue_delay_us = 20000\n";
    let daemon = TestRoot::new().models(&["bad_at_runtime"]).file("bad_at_runtime/model.toml", batching).start();
    std::thread::scope(|scope| {
        for caller in 0..8 {
            let daemon = &daemon;
            scope.spawn(move || {
                let mut client = daemon.client();
                let value = if caller == 3 { -1.0 } else { f64::from(caller) };
                for _ in 0..10 {
                    let input = json!({"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": vec![value; 4]});
                    let answer = client.post_json("/v2/models/bad_at_runtime/infer", &json!({"inputs": [input]}));
                    match caller {
                        3 => assert_eq!(answer.status, 500, "{answer:?}"),
                        _ => assert_eq!(answer.json()["outputs"][0]["data"], json!(vec![value; 4])),
                    }
                }
            });
        }
    });
}

#[test]
fn photographs_that_wait_together_are_one_run_and_each_caller_gets_its_own_answer() {
    let root = TestRoot::new().models(&["efficientnet_lite0"]).set("runtimes.threads=1");
    let config = fs::read_to_string(root.model("efficientnet_lite0").join("model.toml")).unwrap();
    // Callers wait for one another, so that some go together on a machine of any speed.
    let batching = "[dynamic_batching]\nmax_queue_delay_us = 200000\n";
    let daemon = root.file("efficientnet_lite0/model.toml", config + batching).start();
    let best = |client: &mut Client, photograph: &[u8]| {
        let answer = client.post("/v2/models/efficientnet_lite0/infer", &[("content-type", "image/jpeg")], photograph);
        let labels = answer.json()["labels"].clone();
        assert!(answer.status == 200 && labels.is_array(), "{answer:?}");
        labels
    };
    let score = |labels: &Value, label: &Value| {
        let found = labels.as_array().unwrap().iter().find(|each| each["label"] == *label);
        found.and_then(|found| found["score"].as_f64()).unwrap_or(0.0)
    };
    let photographs: Vec<Vec<u8>> =
        ["chelsea.jpg", "astronaut.jpg", "cows.jpg"].iter().map(|name| data(&format!("photos/{name}"))).collect();
    let alone: Vec<_> = photographs.iter().map(|photograph| best(&mut daemon.client(), photograph)).collect();
    let before = statistics(&mut daemon.client(), "efficientnet_lite0")["execution_count"].as_u64().unwrap();
    std::thread::scope(|scope| {
        for caller in 0..8 {
            let (daemon, photographs, alone, best, score) = (&daemon, &photographs, &alone, &best, &score);
            scope.spawn(move || {
                let mut client = daemon.client();
                for round in 0..6 {
                    // A batch with a torn photograph is run again one by one, so the later rounds have none.
                    if caller == 7 && round > 1 {
                        break;
                    }
                    if caller == 7 {
                        let headers = [("content-type", "image/jpeg")];
                        let torn = &photographs[0][..photographs[0].len() / 3];
                        let answer = client.post("/v2/models/efficientnet_lite0/infer", &headers, torn);
                        assert_eq!(answer.status, 400, "{answer:?}");
                        continue;
                    }
                    let which = (caller + round) % photographs.len();
                    let labels = best(&mut client, &photographs[which]);
                    // The sums of a batch are rounded in another order.
                    let best = &alone[which][0];
                    let other = score(&labels, &best["label"]);
                    assert!((other - best["score"].as_f64().unwrap()).abs() < 0.05, "{labels} {}", alone[which]);
                }
            });
        }
    });
    let statistics = statistics(&mut daemon.client(), "efficientnet_lite0");
    let runs = statistics["execution_count"].as_u64().unwrap() - before;
    assert!(runs < 42, "{runs} runs for 42 photographs: none were put together");
}

#[test]
fn batch_work_waits_for_interactive_work() {
    let one_core = TestRoot::new().models(&["slow"]).set("runtimes.threads=1").start();
    let mut background: Vec<Client> = (0..12).map(|_| one_core.client()).collect();
    for client in &mut background {
        let mut body = slow_request(1.0);
        body["parameters"] = json!({"priority": 2});
        let body = body.to_string();
        let head =
            format!("POST /v2/models/slow/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
        client.send(format!("{head}{body}").as_bytes());
    }
    let mut client = one_core.client();
    // The background work has begun.
    while statistics(&mut client, "slow")["execution_count"].as_u64() < Some(1) {
        std::thread::yield_now();
    }
    for _ in 0..3 {
        assert_eq!(client.post_json("/v2/models/slow/infer", &slow_request(2.0)).status, 200);
    }
    // Each of the three waited for one background run at most, so most of those still wait.
    let done = statistics(&mut client, "slow")["execution_count"].as_u64().unwrap();
    assert!(done <= 3 + 6, "{done} runs: background work went first");
    for client in &mut background {
        assert_eq!(client.receive().status, 200);
    }
}

#[test]
fn each_core_has_one_pinned_worker_however_many_models_there_are() {
    let names = ["add_sub", "dynamic_sum", "fixed_shape", "identity_fp32", "log_nan"];
    let daemon = TestRoot::new().models(&names).start();
    // One process has all models: that of first loads, which has its own threads here, has ended.
    let is_watch = |(name, _): &(String, String)| name == "runtime-watch";
    wait_until("the models are loaded", Duration::from_mins(1), || {
        threads(&daemon).into_iter().filter(is_watch).count() == 1
    });
    let threads = threads(&daemon);
    let workers: Vec<_> = threads.iter().filter(|(name, _)| name.starts_with("infer-core-")).collect();
    let cores: BTreeSet<&str> = workers.iter().map(|(_, cores)| cores.as_str()).collect();
    assert_eq!(cores.len(), workers.len(), "two workers on one core: {threads:?}");
    for (name, cores) in &workers {
        assert_eq!(name.strip_prefix("infer-core-"), Some(cores.as_str()));
    }
    assert!(threads.len() <= 20, "{} threads: {threads:?}", threads.len());
}

#[test]
fn a_model_runs_on_the_cores_that_it_names() {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let first: usize = allowed.split(['-', ',']).next().unwrap().parse().unwrap();
    let daemon = TestRoot::new()
        .models(&["add_sub", "slow"])
        .file("slow/model.toml", format!("[instance_group]\ncores = [{first}]\n"))
        .file("add_sub/model.toml", "[instance_group]\ncores = [4000]\n")
        .start();
    let mut client = daemon.client();
    assert_eq!(client.post_json("/v2/models/slow/infer", &slow_request(1.0)).status, 200);
    let error = client.post_json("/v2/models/add_sub/infer", &add_sub_request(1, 1)).error();
    assert!(error.contains("instance_group.cores") && error.contains("[4000]"), "{error}");
}

#[test]
fn a_model_that_nobody_calls_gives_its_memory_back_and_the_next_call_loads_it_again() {
    for setting in ["keep_alive_s = 1", "min = 0"] {
        let daemon =
            TestRoot::new().models(&["slow"]).file("slow/model.toml", format!("[instance_group]\n{setting}\n")).start();
        daemon.wait_for_event_since_start("instance.unloaded");
        let mut client = daemon.client();
        assert_eq!(client.get("/v2/models/slow/ready").status, 200);
        for value in [1.5, 2.5] {
            let answer = client.post_json("/v2/models/slow/infer", &slow_request(value)).json();
            assert_eq!(answer["outputs"][0]["data"], json!(vec![value; 16]));
        }
        daemon.wait_for_event("instance.loaded");
    }
}

#[test]
fn a_model_that_cannot_be_loaded_again_tells_its_callers_why() {
    let daemon =
        TestRoot::new().models(&["slow"]).file("slow/model.toml", "[instance_group]\nkeep_alive_s = 1\n").start();
    daemon.wait_for_event("instance.unloaded");
    fs::remove_file(daemon.root.model("slow").join("1/model.onnx")).unwrap();
    let answer = daemon.client().post_json("/v2/models/slow/infer", &slow_request(1.0));
    assert!(answer.status == 503 && answer.error().contains("'slow'"), "{answer:?}");
}

#[test]
fn calls_that_wait_while_a_core_is_free_get_another_instance() {
    let daemon = TestRoot::new().models(&["slow"]).set("runtimes.threads=2").start();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for caller in 0..3 {
            let (daemon, stop) = (&daemon, &stop);
            scope.spawn(move || {
                let mut client = daemon.client();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let answer = client.post_json("/v2/models/slow/infer", &slow_request(f64::from(caller))).json();
                    assert_eq!(answer["outputs"][0]["data"], json!(vec![f64::from(caller); 16]));
                }
            });
        }
        daemon.wait_for_event("instance.loaded");
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn above_the_memory_budget_the_model_used_least_recently_gives_way_and_comes_back() {
    // No two models fit.
    let daemon = TestRoot::new().models(&["slow", "add_sub"]).set("runtimes.memory_mb=1").start();
    let mut client = daemon.client();
    for value in [1, 2, 3] {
        let answer = client.post_json("/v2/models/slow/infer", &slow_request(f64::from(value))).json();
        assert_eq!(answer["outputs"][0]["data"], json!(vec![f64::from(value); 16]));
        let answer = client.post_json("/v2/models/add_sub/infer", &add_sub_request(1, usize::try_from(value).unwrap()));
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[test]
fn the_choice_of_a_runtime_is_measured_once_and_remembered() {
    let root = TestRoot::new().models(&["add_sub"]).set("runtimes.measure=true");
    let daemon = root.start();
    let profiles = daemon.root.folder.path().join("profiles");
    let kept: Vec<_> = fs::read_dir(&profiles).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(kept.len(), 1);
    let profile: Value = serde_json::from_slice(&fs::read(&kept[0]).unwrap()).unwrap();
    assert_eq!(profile["effort"], "quick");
    let measured = profile["measured"].as_str().unwrap();
    assert!(measured.contains("onnxruntime") && measured.contains("openvino"), "{measured}");
    assert_eq!(daemon.events("model.measured").len(), 1);
    let again = daemon.kill().set("runtimes.measure=true").start();
    assert!(again.events("model.measured").is_empty());
    let model = again.client().get("/v2/models/add_sub").json();
    assert_eq!(model["name"], "add_sub");
}

#[test]
fn tune_keeps_what_it_found_and_the_daemon_uses_it() {
    let root = TestRoot::new().models(&["add_sub"]);
    let arguments =
        ["tune", "add_sub", "--goal", "throughput", "--slice", "20", "--rounds", "2", "--exhaustive", "--json"];
    let output = root.command(&arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["rows"][0]["choice"], report["chosen"]);
    assert!(report["ratio_to_best"].as_f64().unwrap() >= 1.0);
    let kept = fs::read(report["profile"].as_str().unwrap()).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&kept).unwrap()["choice"], report["chosen"]);
    let daemon = root.start();
    let loaded = daemon.wait_for_event_since_start("model.loaded");
    assert_eq!(loaded["runtime"], report["chosen"]["runtime"]);
}

#[test]
fn a_goal_that_cannot_be_met_fails_and_says_so() {
    let root = TestRoot::new().models(&["slow"]).file("slow/model.toml", "runtime = \"onnxruntime\"\n");
    let arguments = ["tune", "slow", "--goal", "p99<=1ms@20/s", "--slice", "100", "--rounds", "1", "--dry-run"];
    let output = root.command(&arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("No combination meets the goal"));
    assert!(!root.folder.path().join("profiles").exists());
    let output = root.command(&["tune", "slow", "--goal", "speed"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn photographs_whose_callers_are_gone_do_not_outlive_their_model_under_a_lock() {
    let daemon = TestRoot::new().models(&["efficientnet_lite0"]).set("runtimes.threads=1").start();
    let photograph = crate::daemon::data("photos/chelsea.jpg");
    let head = |timeout: u32| {
        format!(
            "POST /v2/models/efficientnet_lite0/infer HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/jpeg\r\n\
             x-ledge-timeout-ms: {timeout}\r\ncontent-length: {}\r\n\r\n",
            photograph.len()
        )
    };
    let mut client = daemon.client();
    for round in 0..3 {
        let mut callers: Vec<Client> = (0..40).map(|_| daemon.client()).collect();
        for (place, caller) in callers.iter_mut().enumerate() {
            // Some deadlines pass in the queue.
            let timeout = if place % 2 == 0 { 5 } else { 60_000 };
            caller.send(&[head(timeout).as_bytes(), &photograph].concat());
        }
        assert_eq!(client.post("/v2/repository/models/efficientnet_lite0/load", &[], b"").status, 200, "round {round}");
        for caller in &mut callers {
            assert!(matches!(caller.receive().status, 200 | 504));
        }
        assert_eq!(client.get("/v2/health/live").status, 200);
    }
}

#[test]
fn after_a_run_on_all_cores_a_model_that_is_bound_to_one_of_them_is_not_forgotten() {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let last: usize = allowed.rsplit(['-', ',']).next().unwrap().parse().unwrap();
    let daemon = TestRoot::new()
        .models(&["slow", "add_sub"])
        .file("slow/model.toml", "[instance_group]\nthreads = 1024\n")
        .file("add_sub/model.toml", format!("[instance_group]\ncores = [{last}]\n"))
        .start();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut client = daemon.client();
                for value in 0..10 {
                    assert_eq!(client.post_json("/v2/models/slow/infer", &slow_request(f64::from(value))).status, 200);
                }
            });
        }
        scope.spawn(|| {
            let mut client = daemon.client();
            for value in 0..100 {
                let answer = client.post_json("/v2/models/add_sub/infer", &add_sub_request(1, value));
                assert_eq!(answer.status, 200, "{answer:?}");
            }
        });
    });
}

#[test]
fn the_model_config_tells_how_requests_are_put_together_and_remembered() {
    let text = "max_batch_size = 8\n[dynamic_batching]\nmax_queue_delay_us = 500\npreferred_batch_sizes = [4, 2]\n\
                [queue]\nmax_size = 7\ndefault_timeout_ms = 90\n[response_cache]\nenable = true\n";
    let daemon = TestRoot::new().models(&["add_sub", "slow"]).file("add_sub/model.toml", text).start();
    let config = daemon.client().get("/v2/models/add_sub/config").json();
    let batching = &config["dynamic_batching"];
    assert_eq!(batching["preferred_batch_size"], json!([2, 4]));
    assert_eq!(batching["max_queue_delay_microseconds"], 500);
    assert_eq!((&batching["priority_levels"], &batching["default_priority_level"]), (&json!(2), &json!(1)));
    let policy = &batching["default_queue_policy"];
    assert_eq!((&policy["max_queue_size"], &policy["default_timeout_microseconds"]), (&json!(7), &json!(90_000)));
    assert_eq!(config["response_cache"], json!({"enable": true}));
    let plain = daemon.client().get("/v2/models/slow/config").json();
    assert!(plain.get("dynamic_batching").is_none() && plain.get("response_cache").is_none(), "{plain}");
}

/// ONNX Runtime notes the session of its telemetry in the temporary folder as soon as it is loaded; later it looks its
/// maker's host up. Without the note it does neither.
#[test]
fn onnx_runtime_starts_no_telemetry() {
    let root = TestRoot::new().models(&["add_sub"]);
    let temporary = tempfile::tempdir().unwrap();
    let request = root.folder.path().join("request.json");
    crate::daemon::write(&request, add_sub_request(1, 1).to_string().as_bytes());
    let mut command = root.command(&["infer", "add_sub", request.to_str().unwrap()]);
    let output = command.env("TMPDIR", temporary.path()).env_remove("ORT_DISABLE_TELEMETRY").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
}

#[test]
fn a_folder_is_background_work_that_waits_for_its_turn() {
    // Two calls a second, one at once: of three the last two get a Retry-After.
    let daemon =
        TestRoot::new().models(&["add_sub"]).set("quota.max_rate_per_principal=2").set("quota.burst=1").start();
    let folder = tempfile::tempdir().unwrap();
    for value in 0..3 {
        let body = add_sub_request(1, value).to_string();
        crate::daemon::write(&folder.path().join(format!("{value}.json")), body.as_bytes());
    }
    let ask = |arguments: &[&str]| {
        let url = format!("http://{}", daemon.address);
        let files = folder.path().to_str().unwrap();
        let verb = ["infer", "add_sub", files, "--format", "jsonl", "--url", &url];
        daemon.root.command(&[&verb, arguments].concat()).output().unwrap()
    };
    let output = ask(&[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 3);
    let urgent = ask(&["--priority", "interactive"]);
    assert!(String::from_utf8_lossy(&urgent.stdout).contains("(429)"));
}
