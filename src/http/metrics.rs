//! `GET /metrics`: the counters of every live version and of the process, in Prometheus' text format.
//!
//! Nothing is counted twice: the figures are read from their owners at each scrape.

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::App;
use super::reply::error;
use crate::repository::statistics::Counters;
use crate::repository::{Repository, State as ModelState};
use crate::serving::Serving;
use crate::telemetry::process;

/// Answers with the metrics.
pub async fn metrics(State(app): State<App>) -> Response {
    let mut registry = Registry::with_prefix("ledge");
    registry.register_collector(Box::new(Scrape { serving: app.serving().clone() }));
    let mut text = String::new();
    if let Err(reason) = prometheus_client::encoding::text::encode(&mut text, &registry) {
        return error(StatusCode::INTERNAL_SERVER_ERROR, &format!("the metrics cannot be written: {reason}"));
    }
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

#[derive(Debug)]
struct Scrape {
    serving: Serving,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        encode_models(&mut encoder, self.serving.repository())?;
        encode_process(&mut encoder)?;
        let audit = self.serving.audit();
        let events = [("recorded", audit.recorded()), ("lost", audit.lost())];
        let samples = events.map(|(outcome, count)| (vec![("outcome", outcome.to_owned())], ConstCounter::new(count)));
        family(&mut encoder, "audit_events", "Audit events taken, and lost to a full queue", samples)
    }
}

type Labels = Vec<(&'static str, String)>;

fn family<M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Labels, M)>,
) -> Result<(), std::fmt::Error> {
    let mut samples = samples.into_iter().peekable();
    let Some((_, first)) = samples.peek() else { return Ok(()) };
    let mut metric = encoder.encode_descriptor(name, help, None, first.metric_type())?;
    for (labels, sample) in samples {
        if labels.is_empty() {
            sample.encode(metric.encode_family(&NO_LABELS)?)?;
        } else {
            sample.encode(metric.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

const NO_LABELS: [(&str, &str); 0] = [];

fn encode_models(encoder: &mut DescriptorEncoder<'_>, repository: &Repository) -> Result<(), std::fmt::Error> {
    let ready = repository.index().into_iter().filter_map(|row| {
        let labels = vec![("model", row.model.to_string()), ("version", row.version?.to_string())];
        Some((labels, ConstGauge::new(i64::from(row.state == ModelState::Ready))))
    });
    family(encoder, "model_ready", "1 when the version answers requests, else 0", ready)?;
    let live: Vec<_> = repository.all_live().into_iter().map(|model| (model.statistics.snapshot(), model)).collect();
    let labels = |model: &crate::repository::LoadedModel| -> Labels {
        vec![
            ("model", model.name.to_string()),
            ("version", model.version.to_string()),
            ("runtime", model.runtime().to_string()),
        ]
    };
    let with = |mut labels: Labels, name: &'static str, value: &str| {
        labels.push((name, value.to_owned()));
        labels
    };
    let requests = live.iter().flat_map(|(counters, model)| {
        [("success", counters.success.count), ("fail", counters.fail.count)]
            .map(|(outcome, count)| (with(labels(model), "outcome", outcome), ConstCounter::new(count)))
    });
    family(encoder, "inference_requests", "Requests by outcome", requests)?;
    let elements = live.iter().map(|(counters, model)| (labels(model), ConstCounter::new(counters.inference_count)));
    family(encoder, "inference_elements", "Batch elements inferred", elements)?;
    let runs = live.iter().map(|(counters, model)| (labels(model), ConstCounter::new(counters.execution_count)));
    family(encoder, "inference_executions", "Runs of the model", runs)?;
    let seconds = live.iter().flat_map(|(counters, model)| {
        phases(counters).map(|(phase, seconds)| (with(labels(model), "phase", phase), ConstCounter::new(seconds)))
    });
    family(encoder, "inference_seconds", "Time of answered requests by phase; end_to_end holds the others", seconds)?;
    let depth = live
        .iter()
        .map(|(_, model)| (labels(model), ConstGauge::new(i64::try_from(model.queue_depth()).unwrap_or(i64::MAX))));
    family(encoder, "queue_depth", "Requests that wait for an instance", depth)
}

fn phases(counters: &Counters) -> [(&'static str, f64); 5] {
    [
        ("end_to_end", counters.success.time.as_secs_f64()),
        ("queue", counters.queue.time.as_secs_f64()),
        ("compute_input", counters.compute.compute_input.time.as_secs_f64()),
        ("compute_infer", counters.compute.compute_infer.time.as_secs_f64()),
        ("compute_output", counters.compute.compute_output.time.as_secs_f64()),
    ]
}

fn encode_process(encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    family(encoder, "build_info", "The version of Ledge", [(version, ConstGauge::new(1_i64))])?;
    let Some(process) = process::usage() else { return Ok(()) };
    let resident = i64::try_from(process.resident_bytes).unwrap_or(i64::MAX);
    family(encoder, "process_resident_memory_bytes", "Resident memory", [(vec![], ConstGauge::new(resident))])?;
    let threads = i64::try_from(process.threads).unwrap_or(i64::MAX);
    family(encoder, "process_threads", "Threads", [(vec![], ConstGauge::new(threads))])?;
    family(encoder, "process_cpu_seconds", "CPU time used", [(vec![], ConstCounter::new(process.cpu_seconds))])
}
