//! The figures of the time between two scrapes, in base units, as `--json` writes them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::snapshot::{Model, Snapshot};

/// The activity of a daemon between two scrapes, and its state at the second one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct View {
    pub version: Option<String>,
    pub uptime_seconds: Option<f64>,
    pub interval_seconds: f64,
    pub process: ProcessView,
    pub cores: Vec<CoreView>,
    /// Temperatures in degrees Celsius, by sensor.
    pub temperatures_celsius: BTreeMap<String, f64>,
    /// The models, ordered by name and version.
    pub models: Vec<ModelView>,
}

/// The daemon and all processes that it started.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ProcessView {
    /// The CPU time that it used, divided by the interval.
    pub cpu_cores: Option<f64>,
    pub memory_bytes: Option<u64>,
    pub threads: Option<u64>,
}

/// One core.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CoreView {
    pub core: u32,
    /// The share of time that the core was busy, with any process.
    pub load_ratio: Option<f64>,
    /// The frequency at the second scrape.
    pub frequency_hertz: Option<f64>,
}

/// One version of a model. A figure without data is `null`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelView {
    pub model: String,
    pub version: String,
    pub ready: bool,
    /// The runtime; `None` when the model is not loaded.
    pub runtime: Option<String>,
    pub instances: u64,
    /// Requests that ended, with or without success.
    pub requests_per_second: f64,
    pub failures_per_second: f64,
    /// Refused requests; they count among the failures, too.
    pub refusals_per_second: f64,
    /// Batch elements inferred.
    pub elements_per_second: f64,
    /// The median time of the answers.
    pub p50_seconds: Option<f64>,
    /// The time that 99 % of the answers did not exceed.
    pub p99_seconds: Option<f64>,
    /// The time in the queue that 99 % of them did not exceed.
    pub queue_p99_seconds: Option<f64>,
    /// Elements for each run.
    pub mean_batch: Option<f64>,
    /// The share of lookups that the cache answered.
    pub cache_hit_ratio: Option<f64>,
    pub queue_depth: u64,
    /// The CPU time of its runs, divided by the interval.
    pub cpu_cores: Option<f64>,
}

impl View {
    /// The view of the time from `older` to `newer`; `now` is in seconds since the Unix epoch.
    pub fn between(older: &Snapshot, newer: &Snapshot, now: f64) -> Self {
        let seconds = newer.at.saturating_duration_since(older.at).as_secs_f64();
        let rate = |increase: f64| if seconds > 0.0 { increase / seconds } else { 0.0 };
        let cpu = older.cpu_seconds.zip(newer.cpu_seconds).map(|(older, newer)| rate(increase(older, newer)));
        let cores = newer.cores.iter();
        let models = newer.models.iter().map(|((name, version), model)| {
            // For a model that was not loaded at the first scrape, the start of its counters is unknown.
            let before = older.models.get(&(name.clone(), version.clone())).filter(|older| older.runtime.is_some());
            ModelView::between(name, version, before.unwrap_or(model), model, rate)
        });
        Self {
            version: newer.version.clone(),
            uptime_seconds: newer.started_at.map(|started| (now - started).max(0.0)),
            interval_seconds: seconds,
            process: ProcessView {
                cpu_cores: cpu,
                memory_bytes: newer.memory_bytes.map(whole),
                threads: newer.threads.map(whole),
            },
            cores: cores
                .map(|(&core, figures)| CoreView { core, load_ratio: figures.load, frequency_hertz: figures.frequency })
                .collect(),
            temperatures_celsius: newer.temperatures.clone(),
            models: models.collect(),
        }
    }

    /// The rate of requests of all models.
    pub fn requests_per_second(&self) -> f64 {
        self.models.iter().map(|model| model.requests_per_second).sum()
    }
}

impl ModelView {
    fn between(name: &str, version: &str, older: &Model, newer: &Model, rate: impl Fn(f64) -> f64) -> Self {
        let more = |counter: fn(&Model) -> f64| increase(counter(older), counter(newer));
        let times = newer.end_to_end.since(&older.end_to_end);
        let (runs, elements) = (more(|model| model.executions), more(|model| model.elements));
        let (hits, misses) = (more(|model| model.cache_hits), more(|model| model.cache_misses));
        let failures = more(|model| model.failed);
        Self {
            model: name.to_owned(),
            version: version.to_owned(),
            ready: newer.ready,
            runtime: newer.runtime.clone(),
            instances: whole(newer.instances),
            requests_per_second: rate(more(|model| model.answered) + failures),
            failures_per_second: rate(failures),
            refusals_per_second: rate(more(|model| model.refused)),
            elements_per_second: rate(elements),
            p50_seconds: times.quantile(0.5),
            p99_seconds: times.quantile(0.99),
            queue_p99_seconds: newer.queue.since(&older.queue).quantile(0.99),
            mean_batch: ratio(elements, runs),
            cache_hit_ratio: ratio(hits, hits + misses),
            queue_depth: whole(newer.queue_depth),
            // 0 means that the CPU time of the runtime is not measured.
            cpu_cores: (newer.cpu_seconds > 0.0).then(|| rate(more(|model| model.cpu_seconds))),
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count; a cast keeps within its bounds")]
fn whole(figure: f64) -> u64 {
    figure as u64
}

/// The increase of a counter; one that fell has restarted at 0.
fn increase(older: f64, newer: f64) -> f64 {
    if newer < older { newer } else { newer - older }
}

fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn scrape(at: Instant, seconds: u64, text: &str) -> Snapshot {
        let labels = r#"model="m",version="1",runtime="openvino""#;
        let text: String = text.replace("LABELS", labels);
        Snapshot::parse(&text, at + Duration::from_secs(seconds)).unwrap()
    }

    fn close(figure: f64, expected: f64) -> bool {
        (figure - expected).abs() < 1e-9
    }

    const OLD: &str = r#"
ledge_process_start_time_seconds 1000
ledge_service_cpu_seconds_total 4
ledge_inference_requests_total{LABELS,outcome="success"} 10
ledge_inference_requests_total{LABELS,outcome="fail"} 1
ledge_inference_elements_total{LABELS} 30
ledge_inference_executions_total{LABELS} 10
ledge_inference_cpu_seconds_total{LABELS} 1
ledge_cache_lookups_total{LABELS,outcome="hit"} 0
ledge_cache_lookups_total{LABELS,outcome="miss"} 0
ledge_inference_duration_seconds_bucket{le="0.1",LABELS} 10
ledge_inference_duration_seconds_bucket{le="0.5",LABELS} 10
ledge_inference_duration_seconds_bucket{le="+Inf",LABELS} 10
"#;

    const NEW: &str = r#"
ledge_process_start_time_seconds 1000
ledge_service_cpu_seconds_total 5
ledge_inference_requests_total{LABELS,outcome="success"} 50
ledge_inference_requests_total{LABELS,outcome="fail"} 5
ledge_inference_refusals_total{LABELS,reason="queue_full"} 2
ledge_inference_elements_total{LABELS} 90
ledge_inference_executions_total{LABELS} 30
ledge_inference_cpu_seconds_total{LABELS} 2
ledge_cache_lookups_total{LABELS,outcome="hit"} 30
ledge_cache_lookups_total{LABELS,outcome="miss"} 10
ledge_inference_duration_seconds_bucket{le="0.1",LABELS} 10
ledge_inference_duration_seconds_bucket{le="0.5",LABELS} 50
ledge_inference_duration_seconds_bucket{le="+Inf",LABELS} 50
"#;

    #[test]
    fn figures_are_of_the_time_between_two_scrapes() {
        let start = Instant::now();
        let view = View::between(&scrape(start, 0, OLD), &scrape(start, 2, NEW), 1060.0);
        assert_eq!((view.uptime_seconds, view.process.cpu_cores), (Some(60.0), Some(0.5)));
        let model = &view.models[0];
        assert!(close(model.requests_per_second, 22.0) && close(model.failures_per_second, 2.0), "{model:?}");
        assert!(close(model.refusals_per_second, 1.0) && close(model.elements_per_second, 30.0), "{model:?}");
        assert_eq!((model.mean_batch, model.cache_hit_ratio, model.cpu_cores), (Some(3.0), Some(0.75), Some(0.5)));
        // All answers of this time fell between 0.1 and 0.5 s.
        assert!(model.p50_seconds.is_some_and(|p50| close(p50, 0.3)), "{model:?}");
        assert_eq!((model.queue_p99_seconds, model.runtime.as_deref()), (None, Some("openvino")));
    }

    #[test]
    fn the_counters_of_a_restarted_daemon_count_from_zero() {
        let start = Instant::now();
        let view = View::between(&scrape(start, 0, NEW), &scrape(start, 1, OLD), 0.0);
        let model = &view.models[0];
        assert!(close(model.requests_per_second, 11.0) && close(model.elements_per_second, 30.0), "{model:?}");
        assert_eq!(view.uptime_seconds, Some(0.0), "a clock behind the daemon's");
    }

    #[test]
    fn a_model_that_was_just_loaded_did_nothing_yet() {
        let start = Instant::now();
        let unloaded = "ledge_model_ready{model=\"m\",version=\"1\"} 0";
        for before in ["", unloaded] {
            let view = View::between(&scrape(start, 0, before), &scrape(start, 1, NEW), 0.0);
            let model = &view.models[0];
            assert!(close(model.requests_per_second, 0.0) && model.p50_seconds.is_none(), "{model:?}");
        }
        let gone = View::between(&scrape(start, 0, NEW), &scrape(start, 1, unloaded), 0.0);
        assert!(!gone.models[0].ready && gone.models[0].runtime.is_none());
        assert!(close(gone.models[0].requests_per_second, 0.0));
    }
}
