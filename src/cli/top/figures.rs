//! The figures of `GET /metrics`, and the change between two readings.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Instant;

use anyhow::Context;
use ledge_base::clock;
use serde_json::{Value, json};

/// One answer of `/metrics`.
#[derive(Debug)]
pub struct MetricsScrape {
    at: Instant,
    /// Figures without a model.
    service: MetricSamples,
    /// By model and version.
    models: BTreeMap<(String, String), MetricSamples>,
}

#[derive(Debug, Default)]
struct MetricSamples(Vec<MetricSample>);

#[derive(Debug)]
struct MetricSample {
    /// The metric's name, without `ledge_`.
    name: String,
    /// Without control characters: the server is not necessarily trusted, and a name must not move the cursor.
    labels: BTreeMap<String, String>,
    value: f64,
}

impl MetricsScrape {
    /// Reads Prometheus's text format or OpenMetrics.
    pub fn parse(text: &str, at: Instant) -> anyhow::Result<Self> {
        let mut scrape = Self { at, service: MetricSamples::default(), models: BTreeMap::new() };
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
            let wrong = || format!("this is not a line of metrics: {:?}", line.chars().take(80).collect::<String>());
            let sample = MetricSample::parse(line).with_context(wrong)?;
            let samples = match sample.labels.get("model") {
                Some(model) => {
                    let version = sample.labels.get("version").cloned().unwrap_or_default();
                    scrape.models.entry((model.clone(), version)).or_default()
                }
                None => &mut scrape.service,
            };
            samples.0.push(sample);
        }
        Ok(scrape)
    }

    /// The activity between an older scrape and this one, and the state at this one, in base units. A figure without
    /// data is `null`.
    pub fn since(&self, older: &Self) -> Value {
        let seconds = self.at.saturating_duration_since(older.at).as_secs_f64();
        let gauge = |name| self.service.value(name);
        let cpu = |scrape: &Self| scrape.service.value("service_cpu_seconds_total");
        #[expect(clippy::cast_precision_loss, reason = "exact for 285,000 years of milliseconds")]
        let now = clock::unix_millis() as f64 / 1e3;

        let mut cores: BTreeMap<u32, Value> = BTreeMap::new();
        for (figure, name) in
            [("load_ratio", "machine_core_load_ratio"), ("frequency_hertz", "machine_core_frequency_hertz")]
        {
            for (core, value) in self.service.by_label(name, "core") {
                let none = || json!({ "core": core, "load_ratio": null, "frequency_hertz": null });
                cores.entry(core).or_insert_with(none)[figure] = json!(value);
            }
        }
        let models = self.models.iter().map(|(key, model)| {
            // For a model that was not loaded at the older scrape, the start of its counters is unknown.
            let before = older.models.get(key).filter(|older| older.runtime().is_some());
            model.since(before.unwrap_or(model), key, seconds)
        });
        json!({
            "version": self.service.by_label::<String>("build_info", "version").next().map(|(version, _)| version),
            "uptime_seconds": gauge("process_start_time_seconds").map(|started| (now - started).max(0.0)),
            "interval_seconds": seconds,
            // The daemon and all processes that it started.
            "process": {
                "cpu_cores": cpu(older).zip(cpu(self)).map(|(older, newer)| per(increase(older, newer), seconds)),
                "memory_bytes": gauge("service_memory_bytes").map(whole),
                "threads": gauge("service_threads").map(whole),
            },
            "cores": cores.into_values().collect::<Vec<_>>(),
            "temperatures_celsius":
                self.service.by_label("machine_temperature_celsius", "sensor").collect::<BTreeMap<String, f64>>(),
            "models": models.collect::<Vec<_>>(),
        })
    }
}

impl MetricSample {
    /// Reads `name{label="value",...} value`; the rest of the line is ignored.
    fn parse(line: &str) -> Option<Self> {
        let (name, mut rest) = line.split_at(line.find(['{', ' ']).filter(|end| *end > 0)?);
        let mut labels = BTreeMap::new();
        while let Some(after) = rest.strip_prefix(['{', ',']).filter(|after| !after.starts_with('}')) {
            let (label, after) = after.split_once("=\"")?;
            let (mut value, mut is_escaped) = (String::new(), false);
            let end = after.find(|c: char| {
                let is_end = c == '"' && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                value.extend(Some(c).filter(|c| !is_end && !is_escaped && !c.is_control()));
                is_end
            })?;
            labels.insert(label.to_owned(), value);
            rest = after.get(end + 1..)?;
        }
        let value = rest.trim_start_matches(['{', '}']).strip_prefix(' ')?.split(' ').next()?.parse().ok()?;
        Some(Self { name: name.strip_prefix("ledge_").unwrap_or(name).to_owned(), labels, value })
    }
}

impl MetricSamples {
    fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a MetricSample> {
        self.0.iter().filter(move |sample| sample.name == name)
    }

    fn value(&self, name: &str) -> Option<f64> {
        self.named(name).map(|sample| sample.value).next()
    }

    /// The sum of a counter, of one outcome where that is not empty.
    fn sum(&self, name: &str, outcome: &str) -> f64 {
        let is_meant = |sample: &&MetricSample| {
            outcome.is_empty() || sample.labels.get("outcome").is_some_and(|its_outcome| its_outcome == outcome)
        };
        self.named(name).filter(is_meant).map(|sample| sample.value).sum()
    }

    /// The runtime that a model is loaded in.
    fn runtime(&self) -> Option<&String> {
        self.0.iter().find_map(|sample| sample.labels.get("runtime"))
    }

    /// The values of a label, with their figures.
    fn by_label<'a, K: FromStr>(&'a self, name: &'a str, label: &'a str) -> impl Iterator<Item = (K, f64)> {
        self.named(name).filter_map(move |sample| Some((sample.labels.get(label)?.parse().ok()?, sample.value)))
    }

    /// The activity of a model since an older scrape.
    fn since(&self, older: &Self, (model, version): &(String, String), seconds: f64) -> Value {
        let more = |name: &str, outcome: &str| increase(older.sum(name, outcome), self.sum(name, outcome));
        let rate = |name: &str, outcome: &str| per(more(name, outcome), seconds);
        let ratio = |part: f64, all: f64| (all > 0.0).then(|| part / all);
        let (elements, hits) = (more("inference_elements_total", ""), more("cache_lookups_total", "hit"));
        let cpu = "inference_cpu_seconds_total";
        json!({
            "model": model,
            "version": version,
            "ready": self.value("model_ready").is_some_and(|ready| ready > 0.0),
            "runtime": self.runtime(),
            "instances": self.value("model_instances").map_or(0, whole),
            "requests_per_second": rate("inference_requests_total", ""),
            "failures_per_second": rate("inference_requests_total", "fail"),
            // They count among the failures, too.
            "refusals_per_second": rate("inference_refusals_total", ""),
            "elements_per_second": per(elements, seconds),
            "p50_seconds": self.quantile(older, "inference_duration_seconds_bucket", 0.5),
            "p99_seconds": self.quantile(older, "inference_duration_seconds_bucket", 0.99),
            "queue_p99_seconds": self.quantile(older, "inference_queue_duration_seconds_bucket", 0.99),
            "mean_batch": ratio(elements, more("inference_executions_total", "")),
            "cache_hit_ratio": ratio(hits, more("cache_lookups_total", "")),
            "queue_depth": self.value("queue_depth").map_or(0, whole),
            // 0 means that the CPU time of the runtime is not measured.
            "cpu_cores": (self.sum(cpu, "") > 0.0).then(|| rate(cpu, "")),
        })
    }

    /// The time that the share `q` of those since `older` did not exceed, estimated like Prometheus'
    /// `histogram_quantile`: times are evenly spread in their bucket, and those above the highest bound count as that
    /// bound.
    fn quantile(&self, older: &Self, name: &str, q: f64) -> Option<f64> {
        let buckets = |samples: &Self| {
            let mut buckets: Vec<(f64, f64)> = samples.by_label(name, "le").collect();
            buckets.sort_by(|(bound, _), (other, _)| bound.total_cmp(other));
            buckets
        };
        let (before, mut buckets) = (buckets(older), buckets(self));
        // Otherwise the daemon has restarted in between.
        if before.len() == buckets.len() && before.iter().zip(&buckets).all(|((_, before), (_, now))| before <= now) {
            buckets.iter_mut().zip(&before).for_each(|((_, now), (_, before))| *now -= before);
        }
        let rank = q * buckets.last().map(|(_, all)| *all).filter(|all| *all > 0.0)?;
        let (mut lower, mut below) = (0.0, 0.0);
        for (bound, count) in buckets.into_iter().filter(|(bound, _)| bound.is_finite()) {
            if count >= rank && count > below {
                return Some(lower + (bound - lower) * (rank - below) / (count - below));
            }
            (lower, below) = (bound, count);
        }
        Some(lower)
    }
}

/// The increase of a counter; one that fell has restarted at 0.
fn increase(older: f64, newer: f64) -> f64 {
    if newer < older { newer } else { newer - older }
}

fn per(increase: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { increase / seconds } else { 0.0 }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count; a cast keeps within its bounds")]
fn whole(figure: f64) -> u64 {
    figure as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const OLD: &str = r#"
ledge_process_start_time_seconds 1000
ledge_service_cpu_seconds_total 4
ledge_inference_requests_total{LABELS,outcome="success"} 10
ledge_inference_requests_total{LABELS,outcome="fail"} 1
ledge_inference_elements_total{LABELS} 30
ledge_inference_executions_total{LABELS} 10
ledge_inference_cpu_seconds_total{LABELS} 1
ledge_inference_duration_seconds_bucket{le="0.1",LABELS} 10
ledge_inference_duration_seconds_bucket{le="0.5",LABELS} 10
ledge_inference_duration_seconds_bucket{le="+Inf",LABELS} 10
"#;

    const NEW: &str = r#"# HELP ledge_service_threads Threads

ledge_build_info{version="1.2.3"} 1
ledge_process_start_time_seconds 1000
ledge_service_cpu_seconds_total 5
ledge_service_threads 14
ledge_machine_core_load_ratio{core="10"} 0.5
ledge_machine_core_frequency_hertz{core="2"} 2e9
ledge_machine_temperature_celsius{sensor="cpu"} 54.5
ledge_model_ready{model="m",version="1"} 1
ledge_queue_depth{LABELS} 5
ledge_inference_requests_total{LABELS,outcome="success"} 50
ledge_inference_requests_total{LABELS,outcome="fail"} 5
ledge_inference_refusals_total{LABELS,reason="queue_full"} 1
ledge_inference_refusals_total{LABELS,reason="quota"} 1
ledge_inference_elements_total{LABELS} 90
ledge_inference_executions_total{LABELS} 30
ledge_inference_cpu_seconds_total{LABELS} 2
ledge_cache_lookups_total{LABELS,outcome="hit"} 30
ledge_cache_lookups_total{LABELS,outcome="miss"} 10
ledge_inference_duration_seconds_bucket{le="+Inf",LABELS} 50 # {trace="1"} 2
ledge_inference_duration_seconds_bucket{le="0.5",LABELS} 50
ledge_inference_duration_seconds_bucket{le="0.1",LABELS} 10
other_threads 9
# EOF
"#;

    fn since(older: &str, newer: &str) -> Value {
        let start = Instant::now();
        let scrape = |text: &str, seconds| {
            let text = text.replace("LABELS", r#"model="m",version="1",runtime="openvino""#);
            MetricsScrape::parse(&text, start + Duration::from_secs(seconds)).unwrap()
        };
        scrape(newer, 2).since(&scrape(older, 0))
    }

    #[test]
    fn figures_are_of_the_time_between_two_scrapes() {
        let view = since(OLD, NEW);
        assert_eq!((&view["version"], &view["interval_seconds"]), (&json!("1.2.3"), &json!(2.0)));
        assert_eq!(view["process"], json!({"cpu_cores": 0.5, "memory_bytes": null, "threads": 14}));
        assert_eq!(view["cores"][0], json!({"core": 2, "load_ratio": null, "frequency_hertz": 2e9}));
        assert_eq!(view["cores"][1], json!({"core": 10, "load_ratio": 0.5, "frequency_hertz": null}));
        assert_eq!(view["temperatures_celsius"], json!({"cpu": 54.5}));
        let mut model = view["models"][0].clone();
        // All answers of this time fell between 0.1 and 0.5 s.
        for (quantile, expected) in [("p50_seconds", 0.3), ("p99_seconds", 0.496)] {
            let quantile = model[quantile].take().as_f64().unwrap();
            assert!((quantile - expected).abs() < 1e-9, "{quantile}");
        }
        let expected = json!({
            "model": "m", "version": "1", "ready": true, "runtime": "openvino", "instances": 0,
            "requests_per_second": 22.0, "failures_per_second": 2.0, "refusals_per_second": 1.0,
            "elements_per_second": 30.0, "p50_seconds": null, "p99_seconds": null, "queue_p99_seconds": null,
            "mean_batch": 3.0, "cache_hit_ratio": 0.75, "queue_depth": 5, "cpu_cores": 0.5,
        });
        assert_eq!(model, expected);
    }

    #[test]
    fn the_counters_of_a_restarted_daemon_count_from_zero() {
        let model = &since(NEW, OLD)["models"][0];
        assert_eq!((&model["requests_per_second"], &model["elements_per_second"]), (&json!(5.5), &json!(15.0)));
        assert_eq!(model["p50_seconds"], json!(0.05));
    }

    #[test]
    fn a_model_that_was_just_loaded_did_nothing_yet() {
        let unloaded = "ledge_model_ready{model=\"m\",version=\"1\"} 0";
        for before in ["", unloaded] {
            let model = &since(before, NEW)["models"][0];
            assert_eq!((&model["requests_per_second"], &model["p50_seconds"]), (&json!(0.0), &Value::Null));
        }
        let gone = &since(NEW, unloaded)["models"][0];
        assert_eq!((&gone["ready"], &gone["runtime"]), (&json!(false), &Value::Null));
    }

    #[test]
    fn a_line_that_is_not_a_sample_is_shown() {
        for wrong in ["<html>", "x", "x{", "x{a=\"1\"", "x{a=\"1} 2", "x{a=\"1\"b=\"2\"} 3", "x{} ", "x one", "{} 1"] {
            let error = MetricsScrape::parse(&format!("up 1\n{wrong}"), Instant::now()).unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }

    #[test]
    fn labels_lose_their_escapes_and_what_moves_the_cursor() {
        let sample = MetricSample::parse("x{a=\"\\\\ \\\"}, b=\u{1b}[2J\",le=\"+Inf\"} +Inf 1700000000").unwrap();
        assert_eq!((&*sample.labels["a"], &*sample.labels["le"]), ("\\ \"}, b=[2J", "+Inf"));
        assert!(sample.value.is_infinite());
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}", line in "x\\{([a-z]=\".{0,5}\",?)*\\} [0-9]*", q in 0.0..1.0) {
            let scrape = MetricsScrape::parse(&line, Instant::now());
            if let Ok(scrape) = scrape {
                scrape.since(&scrape);
                scrape.service.quantile(&scrape.service, "x", q);
            }
            let _ = MetricsScrape::parse(&text, Instant::now());
        }
    }
}
