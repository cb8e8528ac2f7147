//! The contents of `/metrics`.
#![expect(clippy::float_cmp, reason = "counts are exact")]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::client::Client;
use crate::daemon::TestRoot;

/// One scrape: the description of each metric, and its samples by the text before the value.
struct Scrape {
    kinds: BTreeMap<String, String>,
    help: BTreeSet<String>,
    samples: BTreeMap<String, f64>,
}

impl Scrape {
    /// Reads OpenMetrics' text as its specification has it; what breaks a rule panics.
    fn of(client: &mut Client) -> Self {
        let answer = client.request("GET", "/metrics", &[("accept", "application/openmetrics-text")], b"");
        assert_eq!(answer.status, 200);
        assert!(answer.header("content-type").unwrap().starts_with("application/openmetrics-text"), "{answer:?}");
        let text = String::from_utf8(answer.body).unwrap();
        let lines = text.strip_suffix("# EOF\n").expect("a scrape ends with # EOF");
        let mut scrape = Self { kinds: BTreeMap::new(), help: BTreeSet::new(), samples: BTreeMap::new() };
        for line in lines.lines() {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            match words[..] {
                ["#", "TYPE", metric, kind] => {
                    assert_eq!(scrape.kinds.insert(metric.into(), kind.into()), None, "{metric} is there twice");
                }
                ["#", "HELP", metric, help] if help.len() > 4 => assert!(scrape.help.insert(metric.into()), "{line}"),
                _ => {
                    let (series, value) = line.rsplit_once(' ').unwrap();
                    let value: f64 = value.parse().unwrap_or_else(|error| panic!("{error}: {line}"));
                    assert!(value.is_finite() && value >= 0.0, "{line}");
                    assert_eq!(scrape.samples.insert(series.into(), value), None, "{series} is there twice");
                }
            }
        }
        scrape
    }

    fn value(&self, series: &str) -> f64 {
        *self.samples.get(series).unwrap_or_else(|| panic!("no {series} in {:#?}", self.samples))
    }

    /// A value of the one model of the test.
    fn of_model(&self, metric: &str) -> f64 {
        self.value(&format!("{metric}{{{ADD_SUB}}}"))
    }

    /// The metric that a sample belongs to, by the suffix of its kind.
    fn metric_of<'a>(&self, series: &'a str) -> Option<&'a str> {
        let name = series.split('{').next().unwrap();
        let suffixes =
            [("counter", "_total"), ("histogram", "_bucket"), ("histogram", "_sum"), ("histogram", "_count")];
        let found = suffixes.iter().find_map(|(kind, suffix)| {
            let metric = name.strip_suffix(suffix)?;
            (self.kinds.get(metric)? == kind).then_some(metric)
        });
        found.or_else(|| (self.kinds.get(name)? == "gauge").then_some(name))
    }
}

/// The labels of the one model of the test.
const ADD_SUB: &str = r#"model="add_sub",version="1",runtime="onnxruntime""#;

fn infer(client: &mut Client, rows: usize) -> u16 {
    let tensor =
        |name: &str| json!({"name": name, "datatype": "FP32", "shape": [rows, 16], "data": vec![1.0; 16 * rows]});
    let request = json!({"inputs": [tensor("INPUT0"), tensor("INPUT1")]});
    client.post_json("/v2/models/add_sub/infer", &request).status
}

#[test]
fn every_series_has_a_type_a_help_text_and_a_unit_of_prometheus() {
    let allowed = "egress.allow=[{ host = 'broker.example:8883', region = 'eu' }]";
    let daemon = TestRoot::new().models(&["add_sub", "broken_empty"]).set(allowed).start();
    let client = &mut daemon.client();
    assert_eq!(infer(client, 1), 200);
    let scrape = Scrape::of(client);
    let broker = "destination=\"broker.example:8883\",region=\"eu\"";
    for content in ["protocol", "answers", "presence", "reports", "calls"] {
        assert_eq!(scrape.value(&format!("ledge_egress_bytes_total{{{broker},content=\"{content}\"}}")), 0.0);
    }
    for metric in ["received_bytes", "connections", "failures"] {
        assert_eq!(scrape.value(&format!("ledge_egress_{metric}_total{{{broker}}}")), 0.0);
    }
    for series in scrape.samples.keys() {
        let metric = scrape.metric_of(series).unwrap_or_else(|| panic!("{series} is of no metric"));
        assert!(metric.starts_with("ledge_") && scrape.help.contains(metric), "{series}");
        let is_foreign = |word: &str| {
            ["ms", "us", "ns", "percent", "mb", "mhz"].contains(&word)
                || word.starts_with("micro")
                || word.starts_with("milli")
        };
        assert!(!metric.split('_').any(is_foreign), "{metric} is not in base units");
    }
    assert_eq!(scrape.kinds.keys().collect::<Vec<_>>(), scrape.help.iter().collect::<Vec<_>>());
    assert_eq!(scrape.value("ledge_model_ready{model=\"broken_empty\",version=\"1\"}"), 0.0);
    assert!(scrape.value("ledge_process_resident_memory_bytes") > 1e6);
    assert!(scrape.value("ledge_process_start_time_seconds") > 1.7e9);
    assert!(scrape.value("ledge_process_threads") >= 2.0);
}

#[test]
fn a_scrape_that_asks_for_text_gets_the_same_samples_in_prometheus_own_format() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    let client = &mut daemon.client();
    assert_eq!(infer(client, 1), 200);
    let open = Scrape::of(client);
    for accept in [None, Some("*/*"), Some("text/plain"), Some("text/plain;version=0.0.4;q=1, */*;q=0.1")] {
        let headers: Vec<_> = accept.iter().map(|accept| ("accept", *accept)).collect();
        let answer = client.request("GET", "/metrics", &headers, b"");
        assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"), "{accept:?}");
        assert_eq!(answer.header("vary"), Some("accept"));
        let text = String::from_utf8(answer.body).unwrap();
        assert!(!text.lines().any(|line| line == "# EOF" || line.starts_with("# UNIT ")), "{accept:?}");
        let mut kinds = BTreeMap::new();
        let mut metric = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
                assert_eq!(name, metric, "the help text comes first");
                assert_eq!(kinds.insert(name.to_owned(), kind), None, "{name} is there twice");
            } else if let Some(rest) = line.strip_prefix("# HELP ") {
                metric = rest.split_once(' ').unwrap().0.to_owned();
            } else {
                // Samples stand behind the line that names them.
                let series = line.rsplit_once(' ').unwrap().0;
                let name = series.split('{').next().unwrap();
                let suffix = name.strip_prefix(metric.as_str()).unwrap_or_else(|| panic!("{line} is not of {metric}"));
                assert!(["", "_bucket", "_sum", "_count"].contains(&suffix), "{line}");
            }
        }
        assert_eq!(kinds.len(), open.kinds.len());
        let series: BTreeSet<_> =
            text.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit_once(' ').unwrap().0).collect();
        assert_eq!(series, open.samples.keys().map(String::as_str).collect());
    }
}

#[test]
fn distributions_agree_with_the_statistics_and_with_themselves() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    let client = &mut daemon.client();
    for rows in [1, 1, 3, 8] {
        assert_eq!(infer(client, rows), 200);
    }
    let stats = client.get("/v2/models/add_sub/stats").json()["model_stats"][0].clone();
    let scrape = Scrape::of(client);
    let inferences = &stats["inference_stats"];
    let of = |key: &str, figure: &str| inferences[key][figure].as_f64().unwrap();
    let same = |metric: &str, keys: &[&str]| {
        let seconds: f64 = keys.iter().map(|key| of(key, "ns") / 1e9).sum();
        let sum = scrape.of_model(&format!("{metric}_sum"));
        assert!((sum - seconds).abs() < 1e-9, "{metric}: {sum} and {seconds}");
        assert_eq!(scrape.of_model(&format!("{metric}_count")), of(keys[0], "count"), "{metric}");
    };
    same("ledge_inference_duration_seconds", &["success"]);
    same("ledge_inference_queue_duration_seconds", &["queue"]);
    same("ledge_inference_compute_duration_seconds", &["compute_infer", "compute_input", "compute_output"]);
    let batches = |size: &str| scrape.value(&format!("ledge_inference_batch_size_bucket{{le=\"{size}\",{ADD_SUB}}}"));
    let runs = |most: u64| -> f64 {
        let rows = stats["batch_stats"].as_array().unwrap().iter();
        let within = rows.filter(|row| row["batch_size"].as_u64().unwrap() <= most);
        within.map(|row| row["compute_infer"]["count"].as_f64().unwrap()).sum()
    };
    assert_eq!((batches("1.0"), batches("4.0"), batches("+Inf")), (runs(1), runs(4), runs(u64::MAX)));
    assert_eq!(scrape.of_model("ledge_inference_batch_size_sum"), stats["inference_count"].as_f64().unwrap());
    assert_eq!(scrape.of_model("ledge_inference_executions_total"), stats["execution_count"].as_f64().unwrap());
    cumulative(&scrape);
}

/// Buckets never fall, and the last one holds every value.
fn cumulative(scrape: &Scrape) {
    let mut buckets: BTreeMap<(String, String), Vec<(f64, f64)>> = BTreeMap::new();
    for (series, &count) in &scrape.samples {
        let Some((name, labels)) = series.split_once("_bucket{") else { continue };
        let (bound, labels) = labels.strip_prefix("le=\"").unwrap().split_once("\",").unwrap();
        let bound = bound.replace("+Inf", "inf").parse().unwrap();
        buckets.entry((name.to_owned(), labels.to_owned())).or_default().push((bound, count));
    }
    assert_eq!(buckets.len(), 4);
    for ((name, labels), mut buckets) in buckets {
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{name}: {buckets:?}");
        let &(last, all) = buckets.last().unwrap();
        assert_eq!((last, all), (f64::INFINITY, scrape.value(&format!("{name}_count{{{labels}"))), "{name}");
    }
}

#[test]
fn counters_survive_a_reload_and_go_with_the_model() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    let client = &mut daemon.client();
    assert_eq!(infer(client, 2), 200);
    let before = Scrape::of(client).of_model("ledge_inference_elements_total");
    assert_eq!(client.post("/v2/repository/models/add_sub/load", &[], b"").status, 200);
    let after = Scrape::of(client).of_model("ledge_inference_elements_total");
    assert!(before >= 2.0 && after >= before, "{before} {after}");
    assert_eq!(client.post("/v2/repository/models/add_sub/unload", &[], b"").status, 200);
    let scrape = Scrape::of(client);
    assert_eq!(scrape.value("ledge_model_ready{model=\"add_sub\",version=\"1\"}"), 0.0);
    assert!(!scrape.kinds.contains_key("ledge_inference_elements"), "{:?}", scrape.kinds);
}

#[test]
fn the_machine_has_its_cores_in_the_scrape() {
    let daemon = TestRoot::new().start();
    let client = &mut daemon.client();
    // A load is the difference of two readings some time apart.
    let scrape = loop {
        let scrape = Scrape::of(client);
        if scrape.kinds.contains_key("ledge_machine_core_load_ratio") {
            break scrape;
        }
    };
    let loads: Vec<_> = scrape.samples.iter().filter(|(series, _)| series.contains("core_load_ratio")).collect();
    let cores = std::fs::read_to_string("/proc/stat").unwrap();
    let cores = cores.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
    assert_eq!(loads.len(), cores);
    assert!(loads.iter().all(|(_, load)| **load <= 1.0), "{loads:?}");
}
