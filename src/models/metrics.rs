//! The metrics of models.

use std::fmt::Error;

use ledge_identity::access::CallerAccess;
use ledge_isolation::ChildUsage;
use ledge_part::metrics::{MetricLabels, family, gauge_value};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::scheduling::instance_spec::InstanceUsage;
use crate::repository::statistics::{
    CountAndTime, Histogram, RefusalReason, SizeHistogram, TimeHistogram, VersionCounters,
};
use crate::repository::{LoadedModel, Repository, VersionState};

/// Writes the metrics of every known version, and those of live versions.
pub fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    repository: &Repository,
    access: &CallerAccess,
) -> Result<(), Error> {
    let rows = repository.index().into_iter().filter(|row| access.has_model(&row.model)).collect::<Vec<_>>();
    let ready = rows.iter().filter_map(|row| {
        let labels = vec![("model", row.model.to_string()), ("version", row.version?.to_string())];
        Some((labels, ConstGauge::new(i64::from(row.state == VersionState::Ready))))
    });
    family(encoder, "model_ready", "1 when the version answers requests, else 0", ready)?;
    let failed = rows.iter().map(|row| {
        let version = row.version.map(|version| version.to_string()).unwrap_or_default();
        let labels = vec![("model", row.model.to_string()), ("version", version)];
        (labels, ConstGauge::new(i64::from(row.state.is_failure())))
    });
    let help = "1 when the version should answer and does not, else 0; without a version for a model that has none";
    family(encoder, "model_failed", help, failed)?;
    let failures = repository.load_failures().into_iter().filter(|(model, _, _)| access.has_model(model));
    let failures = failures.map(|(model, version, failure)| {
        let labels = vec![("model", model.to_string()), ("version", version.to_string())];
        (labels, ConstGauge::new(i64::from(failure.count())))
    });
    let help = "Loads of the version in a row that failed; absent for one whose last load succeeded";
    family(encoder, "model_load_failures", help, failures)?;

    let live: Vec<_> = repository
        .all_live()
        .into_iter()
        .filter(|model| access.has_model(&model.name))
        .map(|model| VersionMetrics::new(&model))
        .collect();
    let mut metrics = ModelMetrics { encoder, live: &live };
    metrics.requests()?;
    metrics.cache()?;
    metrics.instances()?;
    processes(encoder, &repository.engine().processes())
}

/// Writes the metrics of the processes that models run in.
fn processes(encoder: &mut DescriptorEncoder<'_>, processes: &[ChildUsage]) -> Result<(), Error> {
    let labels = |usage: &ChildUsage| vec![("process", usage.name.clone().unwrap_or_else(|| "shared".to_owned()))];
    let memory = processes
        .iter()
        .map(|usage| (labels(usage), ConstGauge::new(i64::try_from(usage.resident_bytes).unwrap_or(i64::MAX))));
    let help = "Memory of a process that runs models: the shared one, or that of a model and version";
    family(encoder, "runtime_process_resident_memory_bytes", help, memory)?;
    let cpu = processes.iter().map(|usage| (labels(usage), ConstCounter::new(usage.cpu.as_secs_f64())));
    family(encoder, "runtime_process_cpu_seconds", "CPU time of that process since its start", cpu)
}

/// A live version, and its counters at one moment.
struct VersionMetrics {
    labels: MetricLabels,
    counters: VersionCounters,
    instance_usage: InstanceUsage,
    memory_bytes: Option<u64>,
    is_stand_in: bool,
    is_crashing: bool,
}

impl VersionMetrics {
    fn new(model: &LoadedModel) -> Self {
        let labels = vec![
            ("model", model.name.to_string()),
            ("version", model.version.to_string()),
            ("runtime", model.runtime().to_string()),
        ];
        Self {
            labels,
            counters: model.statistics.snapshot(),
            instance_usage: model.instance_usage(),
            memory_bytes: model.memory_bytes(),
            is_stand_in: !model.passed_over.is_empty(),
            is_crashing: model.crashing().is_some(),
        }
    }
}

struct ModelMetrics<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
    live: &'a [VersionMetrics],
}

impl ModelMetrics<'_, '_> {
    fn requests(&mut self) -> Result<(), Error> {
        self.by("outcome", "inference_requests", "Requests by outcome", |live| {
            [("success", live.counters.success), ("fail", live.counters.fail)].map(count)
        })?;
        let help = "Requests turned away, or given up at their deadline, by reason; they are among the failed ones";
        self.by("reason", "inference_refusals", help, |live| {
            RefusalReason::ALL.map(|why| (why.as_str(), ConstCounter::new(live.counters.refusals.of(why))))
        })?;
        let help =
            "Requests answered with NaN or an infinity; failed ones where the version before gave no such answer";
        self.each("inference_non_finite", help, |live| ConstCounter::new(live.counters.non_finite))?;
        self.each("inference_elements", "Batch elements inferred, cache hits left out", |live| {
            ConstCounter::new(live.counters.inference_count)
        })?;
        self.each("inference_executions", "Runs of the model", |live| {
            ConstCounter::new(live.counters.execution_count)
        })?;
        let help = "Time from the arrival of an answered request to its answer, cache hits included";
        self.each("inference_duration_seconds", help, |live| times(&live.counters.end_to_end_times))?;
        let help = "Time of an answered request in the queue; of a cache hit, none";
        self.each("inference_queue_duration_seconds", help, |live| times(&live.counters.queue_times))?;
        let help = "Time of the run that answered a request; requests that shared it count it each";
        self.each("inference_compute_duration_seconds", help, |live| times(&live.counters.compute_times))?;
        let help = "The same time by phase: handing inputs over, running the model, taking outputs";
        self.by("phase", "inference_compute_phase_seconds", help, |live| {
            let compute = &live.counters.compute;
            let phases = [
                ("input", compute.compute_input),
                ("infer", compute.compute_infer),
                ("output", compute.compute_output),
            ];
            phases.map(seconds)
        })?;
        self.each("inference_batch_size", "Batch elements of a run", |live| sizes(&live.counters.batch_sizes))?;
        self.each(
            "inference_cpu_seconds",
            "CPU time of the model's runs on their worker's core; a runtime's own threads are not in it",
            |live| ConstCounter::new(live.counters.cpu.as_secs_f64()),
        )?;
        let help = "CPU time of making inputs from photographs: decoding, resizing, scaling";
        self.each("inference_prepare_cpu_seconds", help, |live| {
            ConstCounter::new(live.counters.prepare_cpu.as_secs_f64())
        })
    }

    fn cache(&mut self) -> Result<(), Error> {
        let help = "Requests looked up in the result cache, by outcome";
        self.by("outcome", "cache_lookups", help, |live| lookups(&live.counters).map(count))?;
        let help = "Time of looking results up, and of inserting what was missed, by outcome";
        self.by("outcome", "cache_seconds", help, |live| lookups(&live.counters).map(seconds))
    }

    fn instances(&mut self) -> Result<(), Error> {
        self.each("model_instances", "Copies of the model that run side by side", |live| {
            ConstGauge::new(gauge_value(live.instance_usage.instances))
        })?;
        self.each("queue_depth", "Requests that wait for an instance", |live| {
            ConstGauge::new(gauge_value(live.instance_usage.queued))
        })?;
        let help =
            "1 when another runtime or the float original stands in for a model that answered golden inputs wrong";
        self.each("model_fallback", help, |live| ConstGauge::new(i64::from(live.is_stand_in)))?;
        let help = "Runs and loads of the version that ended the process that it runs in";
        self.each("model_process_crashes", help, |live| ConstCounter::new(live.counters.process_crashes))?;
        let help = "1 while calls end the process of the version again and again; it goes on in a process of its own";
        self.each("model_crashing", help, |live| ConstGauge::new(i64::from(live.is_crashing)))?;
        let help = "Runs of the version that were cancelled, because they went on after their deadlines";
        self.each("model_cancelled_runs", help, |live| ConstCounter::new(live.counters.cancelled_runs))?;
        let help = "Memory of the process of a model that has one to itself; absent for models that share one";
        let own = self.live.iter().filter_map(|live| Some((live.labels.clone(), live.memory_bytes?)));
        family(
            self.encoder,
            "model_memory_bytes",
            help,
            own.map(|(labels, bytes)| (labels, ConstGauge::new(gauge_value(bytes)))),
        )
    }

    /// A metric with one sample a version.
    fn each<M: EncodeMetric>(
        &mut self,
        name: &str,
        help: &str,
        sample: impl Fn(&VersionMetrics) -> M,
    ) -> Result<(), Error> {
        family(self.encoder, name, help, self.live.iter().map(|live| (live.labels.clone(), sample(live))))
    }

    /// A metric with a sample for each value of `label`.
    fn by<M: EncodeMetric, const N: usize>(
        &mut self,
        label: &'static str,
        name: &str,
        help: &str,
        samples: impl Fn(&VersionMetrics) -> [(&'static str, M); N],
    ) -> Result<(), Error> {
        let samples = self.live.iter().flat_map(|live| {
            samples(live).map(|(value, sample)| {
                let mut labels = live.labels.clone();
                labels.push((label, value.to_owned()));
                (labels, sample)
            })
        });
        family(self.encoder, name, help, samples)
    }
}

fn lookups(counters: &VersionCounters) -> [(&'static str, CountAndTime); 2] {
    [("hit", counters.cache_hit), ("miss", counters.cache_miss)]
}

fn count((value, total): (&'static str, CountAndTime)) -> (&'static str, ConstCounter<u64>) {
    (value, ConstCounter::new(total.count))
}

fn seconds((value, total): (&'static str, CountAndTime)) -> (&'static str, ConstCounter<f64>) {
    (value, ConstCounter::new(total.time.as_secs_f64()))
}

fn times(times: &TimeHistogram) -> ConstHistogram {
    ConstHistogram::new(times, 1e9)
}

fn sizes(sizes: &SizeHistogram) -> ConstHistogram {
    ConstHistogram::new(sizes, 1.0)
}

/// A histogram that takes its counts from another place.
struct ConstHistogram {
    sum: f64,
    count: u64,
    buckets: Vec<(f64, u64)>,
}

impl ConstHistogram {
    /// `unit` is the number of the histogram's units in one unit of the metric: 1e9 nanoseconds in a second.
    #[expect(clippy::cast_precision_loss, reason = "bounds are far below 2^53, and a sum beyond it is off by 1e-16")]
    fn new<const N: usize>(histogram: &Histogram<N>, unit: f64) -> Self {
        let bound = |bound: Option<u64>| bound.map_or(f64::INFINITY, |bound| bound as f64 / unit);
        Self {
            sum: histogram.sum() as f64 / unit,
            count: histogram.count(),
            buckets: histogram.buckets().map(|(upper, count)| (bound(upper), count)).collect(),
        }
    }
}

impl EncodeMetric for ConstHistogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.encode_histogram::<NoLabelSet>(self.sum, self.count, &self.buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}
