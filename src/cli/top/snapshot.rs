//! The figures of one scrape, by model and core.

use std::collections::BTreeMap;
use std::time::Instant;

use super::exposition::{self, ExpositionError, Sample};

/// The figures of one scrape. Counters count from the daemon's start.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub at: Instant,
    pub version: Option<String>,
    /// The start time of the daemon, in seconds since the Unix epoch.
    pub started_at: Option<f64>,
    /// The CPU time of all processes of the service, in seconds.
    pub cpu_seconds: Option<f64>,
    /// The memory of all processes of the service, in bytes.
    pub memory_bytes: Option<f64>,
    pub threads: Option<f64>,
    /// The machine's cores by number.
    pub cores: BTreeMap<u32, Core>,
    /// Temperatures in degrees Celsius, by sensor.
    pub temperatures: BTreeMap<String, f64>,
    /// The figures of each model, by name and version.
    pub models: BTreeMap<(String, String), Model>,
}

/// One core of the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Core {
    /// The share of time that it was busy.
    pub load: Option<f64>,
    /// Its frequency in hertz.
    pub frequency: Option<f64>,
}

/// One version of a model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Model {
    pub ready: bool,
    /// The runtime; `None` when the model is not loaded.
    pub runtime: Option<String>,
    pub instances: f64,
    pub queue_depth: f64,
    pub answered: f64,
    pub failed: f64,
    pub refused: f64,
    /// Batch elements inferred.
    pub elements: f64,
    pub executions: f64,
    /// Requests that the cache answered.
    pub cache_hits: f64,
    /// Requests that the cache had no answer for.
    pub cache_misses: f64,
    /// The CPU time of the runs, in seconds.
    pub cpu_seconds: f64,
    /// Times from arrival to answer.
    pub end_to_end: Distribution,
    pub queue: Distribution,
}

impl Snapshot {
    /// Reads the text of a scrape made at `at`. Metrics that an older or newer daemon does not have are left out.
    pub fn parse(text: &str, at: Instant) -> Result<Self, ExpositionError> {
        let mut snapshot = Self {
            at,
            version: None,
            started_at: None,
            cpu_seconds: None,
            memory_bytes: None,
            threads: None,
            cores: BTreeMap::new(),
            temperatures: BTreeMap::new(),
            models: BTreeMap::new(),
        };
        for sample in exposition::parse(text)? {
            snapshot.take(&sample);
        }
        Ok(snapshot)
    }

    fn take(&mut self, sample: &Sample) {
        let Some(name) = sample.name.strip_prefix("ledge_") else { return };
        match name {
            "build_info" => self.version = Some(printable(sample.label("version"))),
            "process_start_time_seconds" => self.started_at = Some(sample.value),
            "service_cpu_seconds_total" => self.cpu_seconds = Some(sample.value),
            "service_memory_bytes" => self.memory_bytes = Some(sample.value),
            "service_threads" => self.threads = Some(sample.value),
            "machine_temperature_celsius" => {
                self.temperatures.insert(printable(sample.label("sensor")), sample.value);
            }
            "machine_core_load_ratio" | "machine_core_frequency_hertz" => {
                let Ok(number) = sample.label("core").parse() else { return };
                let core = self.cores.entry(number).or_default();
                let figure = if name == "machine_core_load_ratio" { &mut core.load } else { &mut core.frequency };
                *figure = Some(sample.value);
            }
            _ if sample.labels.contains_key("model") => {
                let key = (printable(sample.label("model")), printable(sample.label("version")));
                self.models.entry(key).or_default().take(name, sample);
            }
            _ => {}
        }
    }
}

impl Model {
    fn take(&mut self, name: &str, sample: &Sample) {
        if let Some(runtime) = sample.labels.get("runtime") {
            self.runtime = Some(printable(runtime));
        }
        let value = sample.value;
        match (name, sample.label("outcome")) {
            ("model_ready", _) => self.ready = value > 0.0,
            ("model_instances", _) => self.instances = value,
            ("queue_depth", _) => self.queue_depth = value,
            ("inference_requests_total", "success") => self.answered = value,
            ("inference_requests_total", "fail") => self.failed = value,
            // One sample for each reason.
            ("inference_refusals_total", _) => self.refused += value,
            ("inference_elements_total", _) => self.elements = value,
            ("inference_executions_total", _) => self.executions = value,
            ("cache_lookups_total", "hit") => self.cache_hits = value,
            ("cache_lookups_total", "miss") => self.cache_misses = value,
            ("inference_cpu_seconds_total", _) => self.cpu_seconds = value,
            ("inference_duration_seconds_bucket", _) => self.end_to_end.take(sample),
            ("inference_queue_duration_seconds_bucket", _) => self.queue.take(sample),
            _ => {}
        }
    }
}

/// Removes control characters, so that a text cannot move the cursor: the server may not be trusted.
fn printable(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).collect()
}

/// The buckets of a histogram: ascending upper bounds, each with the number of values up to it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Distribution {
    buckets: Vec<(f64, f64)>,
}

impl Distribution {
    fn take(&mut self, sample: &Sample) {
        let Ok(bound) = sample.label("le").parse::<f64>() else { return };
        let at = self.buckets.partition_point(|(below, _)| *below < bound);
        self.buckets.insert(at, (bound, sample.value));
    }

    /// The number of values.
    pub fn count(&self) -> f64 {
        self.buckets.last().map_or(0.0, |(_, count)| *count)
    }

    /// The values since `older`; all of them if the daemon restarted in between.
    pub fn since(&self, older: &Self) -> Self {
        let same = self.buckets.len() == older.buckets.len() && older.count() <= self.count();
        if !same {
            return self.clone();
        }
        let pairs = self.buckets.iter().zip(&older.buckets);
        Self { buckets: pairs.map(|((bound, new), (_, old))| (*bound, (new - old).max(0.0))).collect() }
    }

    /// The value that the share `q` of all values does not exceed, estimated like Prometheus' `histogram_quantile`:
    /// values are evenly spread in their bucket, and values above the highest bound count as that bound. `None` without
    /// values.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let rank = q * self.count();
        if self.count() <= 0.0 {
            return None;
        }
        let (mut lower, mut below) = (0.0, 0.0);
        for (bound, count) in &self.buckets {
            if bound.is_infinite() {
                break;
            }
            if *count >= rank && *count > below {
                return Some(lower + (bound - lower) * ((rank - below) / (count - below)));
            }
            (lower, below) = (*bound, *count);
        }
        Some(lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distribution(counts: &[(f64, f64)]) -> Distribution {
        Distribution { buckets: counts.to_vec() }
    }

    #[track_caller]
    fn close(figure: Option<f64>, expected: f64) {
        assert!(figure.is_some_and(|figure| (figure - expected).abs() < 1e-9), "{figure:?} is not {expected}");
    }

    #[test]
    fn a_quantile_lies_where_prometheus_puts_it() {
        let times = distribution(&[(0.1, 50.0), (0.5, 100.0), (f64::INFINITY, 100.0)]);
        close(times.quantile(0.5), 0.1);
        close(times.quantile(0.25), 0.05);
        close(times.quantile(0.99), 0.1 + 0.4 * 0.98);
        close(distribution(&[(0.1, 0.0), (0.5, 0.0), (f64::INFINITY, 3.0)]).quantile(0.5), 0.5);
        close(distribution(&[(0.1, 0.0), (0.5, 2.0), (f64::INFINITY, 2.0)]).quantile(0.0), 0.1);
        assert_eq!(distribution(&[(0.1, 0.0), (f64::INFINITY, 0.0)]).quantile(0.5), None);
        assert_eq!(Distribution::default().quantile(0.5), None);
    }

    #[test]
    fn a_difference_starts_over_when_the_daemon_did() {
        let older = distribution(&[(0.1, 5.0), (f64::INFINITY, 9.0)]);
        let newer = distribution(&[(0.1, 6.0), (f64::INFINITY, 12.0)]);
        assert_eq!(newer.since(&older), distribution(&[(0.1, 1.0), (f64::INFINITY, 3.0)]));
        assert_eq!(older.since(&newer), older);
        assert_eq!(newer.since(&Distribution::default()), newer);
    }

    #[test]
    fn a_scrape_is_sorted_by_model_and_core() {
        let text = r#"
ledge_build_info{version="1.2.3"} 1
ledge_service_threads 7
ledge_machine_core_load_ratio{core="10"} 0.5
ledge_machine_core_frequency_hertz{core="2"} 2e9
ledge_model_ready{model="m",version="2"} 1
ledge_inference_requests_total{model="m",version="2",runtime="onnxruntime",outcome="success"} 3
ledge_inference_refusals_total{model="m",version="2",runtime="onnxruntime",reason="quota"} 1
ledge_inference_refusals_total{model="m",version="2",runtime="onnxruntime",reason="deadline"} 2
ledge_inference_duration_seconds_bucket{le="+Inf",model="m",version="2",runtime="onnxruntime"} 3
ledge_inference_duration_seconds_bucket{le="0.1",model="m",version="2",runtime="onnxruntime"} 2
ledge_model_ready{model="m",version="1"} 0
other_threads 9
# EOF
"#;
        let snapshot = Snapshot::parse(text, Instant::now()).unwrap();
        assert_eq!((snapshot.version.as_deref(), snapshot.threads), (Some("1.2.3"), Some(7.0)));
        assert_eq!(snapshot.cores.keys().collect::<Vec<_>>(), [&2, &10]);
        let model = |version: &str| &snapshot.models[&("m".to_owned(), version.to_owned())];
        assert_eq!((model("1").ready, model("1").runtime.as_deref()), (false, None));
        assert_eq!((model("2").ready, model("2").answered, model("2").refused), (true, 3.0, 3.0));
        assert_eq!(model("2").end_to_end, distribution(&[(0.1, 2.0), (f64::INFINITY, 3.0)]));
    }

    #[test]
    fn a_name_cannot_move_the_cursor() {
        let text = "ledge_model_ready{model=\"\u{1b}[2Jm\",version=\"1\"} 1";
        let snapshot = Snapshot::parse(text, Instant::now()).unwrap();
        assert_eq!(snapshot.models.keys().next().unwrap().0, "[2Jm");
    }
}
